//! Hints name options that there are: those of the command they name, or of the command that gives them.

use crate::common::{Place, document};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("tests") => {}
            true => sources(&path, found),
            false if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") => found.push(path),
            false => {}
        }
    }
}

/// The string literals of a file, without its tests; lines that are continued are joined.
fn literals(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n").replace("\\\"", "'").replace("'\"'", "' '");
    let joined = code.split("\\\n").map(str::trim_start).collect::<Vec<_>>().join("");
    joined.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Options in a text, such as `--out`.
fn options(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices("--").map(|(at, _)| at);
    let free = starts.filter(|at| *at == 0 || text[..*at].ends_with([' ', '`', '(', '\'', '[', '\n']));
    let name =
        |at: usize| text[at + 2..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect::<String>();
    free.map(name).filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

/// The commands that a help lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.split("Commands:\n").nth(1).unwrap_or_default().lines();
    let lines = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The options of every command and of those below it, as help lists them.
fn commands(place: &Place) -> BTreeMap<String, BTreeSet<String>> {
    let of = |name: String| {
        let help = place.ok(&[&name, "--help"]);
        let below = listed(&help).into_iter().map(|below| place.ok(&[&name, &below, "--help"]));
        let all: Vec<String> = below.chain([help.clone()]).collect();
        (name, all.iter().flat_map(|help| options(help)).collect())
    };
    listed(&place.ok(&["--help"])).into_iter().map(of).collect()
}

/// A literal in parts: what is said of a command that is named, and what of none.
fn parts<'a>(literal: &'a str, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<(Option<String>, &'a str)> {
    let mut found = Vec::new();
    let mut rest = literal;
    while let Some((before, after)) = rest.split_once("kerple ") {
        found.push((None, before));
        let name: String = after.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
        if !known.contains_key(&name) {
            rest = after;
            continue;
        }
        let end = ["`", ";", ", ", ": ", " makes ", "kerple "].iter().filter_map(|end| after.find(end)).min();
        let (said, left) = after.split_at(end.unwrap_or(after.len()));
        found.push((Some(name), said));
        rest = left;
    }
    found.push((None, rest));
    found
}

#[test]
fn options_in_messages_are_options_that_there_are() {
    let place = Place::new();
    let known = commands(&place);
    assert!(
        known.len() > 12 && known["train"].contains("init-from") && known["serve"].contains("max-model-len"),
        "{known:?}"
    );
    let mut files = Vec::new();
    for name in ["kerple-lm", "kerple-serve", "kerple-convert", "kerple-experiments", "kerple"] {
        sources(&document(&format!("crates/{name}/src")), &mut files);
    }
    let anywhere: BTreeSet<&String> = known.values().flatten().collect();
    let (mut named, mut bare) = (0, 0);
    for file in &files {
        // the command that a file is about
        let of = file.parent().is_some_and(|folder| folder.ends_with("commands"));
        let own = of.then(|| file.file_stem().unwrap().to_str().unwrap().replace('_', "-"));
        // scripts for sbatch, and a page about other programs
        if file.ends_with("commands/slurm.rs") || file.ends_with("export/readme.rs") {
            continue;
        }
        for literal in literals(file).into_iter().filter(|literal| !literal.contains("cargo ")) {
            for (command, said) in parts(&literal, &known) {
                for option in options(said) {
                    let (place, has) = match (&command, own.as_ref().and_then(|own| known.get(own))) {
                        (Some(command), _) => (command.as_str(), known[command].contains(&option)),
                        (None, Some(all)) => (own.as_deref().unwrap(), all.contains(&option)),
                        (None, None) => ("any command", anywhere.contains(&option)),
                    };
                    named += usize::from(command.is_some());
                    bare += usize::from(command.is_none());
                    assert!(has, "{}: --{option} is no option of {place}: {literal}", file.display());
                }
            }
        }
    }
    // as many as there are today, about: the scan sees them
    assert!(named > 15 && bare > 40, "{named} {bare}");
}
