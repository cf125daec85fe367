//! The language of the project: concepts keep the field's words, and prose keeps the rules of CONTRIBUTING.md.
//!
//! What does not follow a rule yet is counted in `exceptions.tsv`, whose numbers may only shrink:
//! `KERPLE_REFRESH=1 cargo test --release -p kerple --test language` lowers them.

mod exceptions;
mod glossary;
mod literals;
mod pages;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Files below a folder of the project with this ending, as paths from the root, sorted.
fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&name, ending));
        } else if name.ends_with(ending) {
            found.push(name);
        }
    }
    found.sort();
    found
}

/// The pages that people read first and the documentation.
fn documents() -> Vec<String> {
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned);
    top.into_iter().chain(files("docs", ".md")).collect()
}
