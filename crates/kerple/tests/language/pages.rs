//! Pages that are read: short sentences, and a heading before long.

use super::exceptions::{self, Counts};
use super::{files, read};

/// Words between two headings, at most.
const MOST_WORDS: usize = 250;
/// Words of a sentence, in the mean over a page.
const LONGEST_MEAN: usize = 25;

/// The prose of a page: no code, tables, comments and captions of pictures; a heading is a line that begins with `#`.
fn prose(page: &str) -> Vec<&str> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for line in page.lines().map(str::trim_start) {
        if line.starts_with("```") {
            in_code = !in_code;
        } else if !(in_code || line.starts_with('|') || line.starts_with("<!--") || line.starts_with("![")) {
            lines.push(line);
        }
    }
    lines
}

fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
}

/// Words of each section.
fn sections(page: &str) -> Vec<usize> {
    let mut found = vec![0];
    for line in prose(page) {
        if line.starts_with('#') {
            found.push(0);
        } else {
            *found.last_mut().expect("there is a first one") += words(line);
        }
    }
    found
}

/// The mean number of words of a sentence, rounded up; an item of a list ends one, and so does an empty line.
fn mean_sentence(page: &str) -> usize {
    let mut text = String::new();
    for line in prose(page) {
        let heading = line.starts_with('#');
        let item = line.starts_with("* ") || line.starts_with("- ") || line.starts_with(|c: char| c.is_ascii_digit());
        text += if line.is_empty() || item || heading { "\n" } else { " " };
        text += if heading { "" } else { line };
    }
    let ended = text.replace(". ", "\n").replace("? ", "\n").replace("! ", "\n");
    let lengths: Vec<usize> = ended.lines().map(words).filter(|words| *words > 0).collect();
    lengths.iter().sum::<usize>().div_ceil(lengths.len().max(1))
}

#[test]
fn pages_have_short_sentences_and_headings() {
    let mut found = Counts::new();
    // the reference of commands is generated from the help texts
    for file in files("docs", ".md").into_iter().filter(|file| !file.ends_with("commands.md")) {
        let page = read(&file);
        let long = sections(&page).into_iter().filter(|words| *words > MOST_WORDS).count();
        let over = mean_sentence(&page).saturating_sub(LONGEST_MEAN);
        for (rule, count) in [("page: sections over 250 words", long), ("page: words of a mean sentence over 25", over)]
        {
            if count > 0 {
                found.insert((rule.to_owned(), file.clone()), count);
            }
        }
    }
    exceptions::check("page: ", &found);
}

#[test]
fn code_and_tables_are_not_prose() {
    let page = "# A\none two. three\n```\nfour five\n```\n| six | seven |\n## B\neight nine ten\n";
    assert_eq!(sections(page), [0, 3, 3]);
    assert_eq!(mean_sentence(page), 2);
}
