//! What `docs/results-*.md` say is what the rows in `results/` say: their tables are the pages', and no sentence has a number that
//! stands in no table. `UPDATE_RESULTS=1 cargo test --release -p kerple-papers --test documents` writes tables, pages and the sums of the
//! archives anew; it changes no run.

use kerple_papers::{pages, seal};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Papers and questions with a page of results.
const PAPERS: [&str; 9] = ["kerple", "dape", "spe", "decay", "seeds", "budget", "induction", "draws", "arena"];

const BEGIN: &str = "<!-- table of ";
const END: &str = "<!-- end of table -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn results(paper: &str) -> PathBuf {
    root().join(format!("results/{paper}-small"))
}

/// A table of a page, by the title of its section and its caption, without links, which lead from the page.
fn table(page: &str, section: &str, caption: &str) -> String {
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section:?}"));
    let rest = rest.split("\n## ").next().unwrap();
    let (_, rest) =
        rest.split_once(&format!("\n{caption}\n")).unwrap_or_else(|| panic!("no table {caption:?} in {section:?}"));
    let lines = rest.lines().skip_while(|line| line.is_empty()).take_while(|line| !line.starts_with("!["));
    let rows = lines.take_while(|line| line.is_empty() || line.starts_with('|')).filter(|line| !line.is_empty());
    rows.map(|row| format!("{}\n", without_links(row.trim_end()))).collect()
}

fn without_links(row: &str) -> String {
    let parts: Vec<&str> = row.split("](").collect();
    let mut text = String::new();
    for (at, part) in parts.iter().enumerate() {
        let part = if at == 0 { part } else { part.split_once(')').unwrap().1 };
        // before a link's target stands its text, in the last bracket that was opened
        match part.rfind('[').filter(|_| at + 1 < parts.len()) {
            Some(open) => text += &(part[..open].to_owned() + &part[open + 1..]),
            None => text += part,
        }
    }
    text
}

/// A document with its tables as the page has them.
fn with_tables(document: &str, page: &str) -> String {
    let mut parts = document.split(BEGIN);
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n").unwrap();
        let (section, caption) = name.rsplit_once(" | ").unwrap();
        let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{name:?} has no end"));
        text += &format!("{BEGIN}{name} -->\n{}{END}{after}", table(page, section, caption));
    }
    text
}

/// Numbers with decimals, without their signs.
fn numbers(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    let words = words.map(|word| word.trim_matches('.'));
    words.filter(|word| word.contains('.') && word.matches('.').count() == 1).collect()
}

/// What a person wrote: no tables of the program, no code, no numbers of papers.
fn prose(document: &str) -> String {
    let outside = |text: &str, begin: &str, end: &str| {
        let mut parts = text.split(begin);
        let first = parts.next().unwrap().to_owned();
        first + &parts.map(|part| part.split_once(end).map_or("", |(_, after)| after)).collect::<String>()
    };
    let text = outside(&outside(document, BEGIN, END), "```\n", "```\n");
    outside(&text, "arXiv:", " ")
}

#[test]
fn documents_say_what_the_rows_say() {
    for paper in PAPERS {
        let path = root().join(format!("docs/results-{paper}.md"));
        let document = std::fs::read_to_string(&path).unwrap();
        let page = pages::markdown(&results(paper)).unwrap();
        let current = with_tables(&document, &page);
        if std::env::var_os("UPDATE_RESULTS").is_some() {
            std::fs::write(&path, &current).unwrap();
        } else {
            assert!(
                document == current,
                "{}: other tables than the rows give; UPDATE_RESULTS=1 writes them anew",
                path.display()
            );
        }
        assert!(document.contains(BEGIN), "{paper}");
        let prose = prose(&document);
        let foreign: Vec<&str> = numbers(&prose).difference(&numbers(&page)).copied().collect();
        assert_eq!(foreign, [""; 0], "{}: numbers that no table of the page has", path.display());
    }
}

#[test]
fn what_was_learned_stands_on_the_pages() {
    let pages: String = PAPERS.iter().map(|paper| pages::markdown(&results(paper)).unwrap()).collect();
    let learned = std::fs::read_to_string(root().join("docs/learned.md")).unwrap();
    let foreign: Vec<&str> = numbers(&learned).difference(&numbers(&pages)).copied().collect();
    assert_eq!(foreign, [""; 0], "docs/learned.md: numbers that no table has");
}

#[test]
fn pages_are_those_of_the_rows() {
    for paper in PAPERS {
        if std::env::var_os("UPDATE_RESULTS").is_some() {
            pages::write(&results(paper), &[], &[]).unwrap();
            // what says the same as the others is not kept
            ["index.html", "cells.json"]
                .map(|name| std::fs::remove_file(results(paper).join("paper").join(name)).unwrap());
            seal::seal(&results(paper)).unwrap();
        }
        let page = std::fs::read_to_string(results(paper).join("paper/report.md")).unwrap();
        // the head names the program that made the page
        let body = |page: &str| page.split_once("\n## ").unwrap().1.to_owned();
        let rendered = pages::markdown(&results(paper)).unwrap();
        assert!(body(&page) == body(&rendered), "results/{paper}-small/paper is not what `--render` makes");
    }
}

#[test]
fn links_go_and_brackets_stay() {
    assert_eq!(
        without_links("| [20.1](../a/) ± 1 (0.5 [0.1, 0.9]) | **[a](b)** |"),
        "| 20.1 ± 1 (0.5 [0.1, 0.9]) | **a** |"
    );
    assert_eq!(numbers("at 0.5, 1.0.3 and -2.75; 12").into_iter().collect::<Vec<_>>(), ["0.5", "2.75"]);
}
