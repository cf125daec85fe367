//! Each concept is found by the field's word for it, where docs/glossary.md says that it lives.

use super::exceptions::{self, Counts};
use super::{read, root};
use std::fs;
use std::path::Path;

/// Rows of the glossary: the word, and the file or folder that is its home.
fn concepts(page: &str) -> Vec<(String, String)> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, word, _, home, _] = cells[..] else { return None };
        let home = home.strip_prefix('`')?.strip_suffix('`')?;
        Some((word.trim_matches('*').to_owned(), home.to_owned()))
    };
    page.lines().filter_map(row).collect()
}

/// All text below a path, in lower case, in which words are separated by blanks, underscores or nothing but case.
fn text(path: &Path) -> String {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        return entries.iter().map(|entry| text(entry)).collect();
    }
    let plain = |c: char| if c == '_' || c == '-' || c.is_whitespace() { ' ' } else { c.to_ascii_lowercase() };
    let text: String = fs::read_to_string(path).unwrap_or_default().chars().map(plain).collect();
    text.split(' ').filter(|word| !word.is_empty() && *word != "//!" && *word != "///").collect::<Vec<&str>>().join(" ")
}

#[test]
fn every_concept_is_found_by_its_word() {
    let concepts = concepts(&read("docs/glossary.md"));
    assert!(concepts.len() > 40, "the glossary has {} rows with a home", concepts.len());
    let mut found = Counts::new();
    for (word, home) in concepts {
        let path = root().join(&home);
        assert!(path.exists(), "{word}: docs/glossary.md names {home}, which does not exist");
        let sought = word.to_lowercase().replace(['_', '-'], " ");
        let joined = sought.replace(' ', "");
        let text = text(&path);
        if !text.contains(&sought) && !text.contains(&joined) {
            found.insert((format!("concept: {word}"), home), 1);
        }
    }
    exceptions::check("concept: ", &found);
}
