//! `docs/results-*.md` agree with the rows in `results/`: their tables are the pages', and every number in a sentence occurs in
//! a table. `UPDATE_RESULTS=1 cargo test --release -p kerple-experiments --test documents` writes tables, pages and the sums of the
//! archives anew; it changes no run.

use kerple_data::tasks::{Examples, TaskConfig};
use kerple_experiments::floors::{FLOORS_FILE, Floor};
use kerple_experiments::manifest::{Manifest, PlannedRun};
use kerple_experiments::packed::unpacked;
use kerple_experiments::{pages, seal};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Papers and questions with a page of results.
const PAPERS: [&str; 20] = [
    "kerple",
    "dape",
    "spe",
    "decay",
    "seeds",
    "budget",
    "order",
    "induction",
    "draws",
    "arena",
    "documents",
    "borders",
    "tasks",
    "reach",
    "equal",
    "rivals",
    "parity",
    "cost",
    "windows",
    "shift",
];

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

const COUNTED: [&str; 2] = ["<!-- tests of the page -->\n", "<!-- end of tests -->"];
const SHARED: [&str; 2] = ["<!-- runs of other pages -->\n", "<!-- end of runs -->"];

/// A document with what is between two marks replaced.
fn with_block(document: &str, [begin, end]: [&str; 2], text: &str) -> String {
    let (before, rest) = document.split_once(begin).unwrap_or_else(|| panic!("no {begin:?}"));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("{begin:?} has no end"));
    format!("{before}{begin}{text}\n{end}{after}")
}

/// How many claims a page tests and what of them stays: its first sentences of that.
fn counted(page: &str) -> &str {
    const LAST: &str = "Benjamini and Hochberg at 5 %.";
    let place = page.find(" cells of claims were tested").expect("the page counts its tests");
    let start = page[..place].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |before| before + 1);
    let end = start + page[start..].find(LAST).expect("to the end") + LAST.len();
    &page[start..end]
}

/// Plan hashes of the runs of a paper, each with the seed in it, and how many runs there are.
fn hashes(paper: &str) -> BTreeSet<String> {
    let aside = unpacked(&results(paper)).unwrap().unwrap();
    let runs = Manifest::read(&results(paper)).unwrap().runs;
    let hash = |run: &PlannedRun| {
        let plan = std::fs::read_to_string(aside.path().join(&run.folder).join("plan.json")).ok()?;
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        Some(plan["hash"].as_str().unwrap().to_owned())
    };
    runs.iter().filter_map(hash).collect()
}

/// Which runs of a question are runs of the paper that raised it again: of the same plan, seed and text.
fn shared(question: &str) -> String {
    let own = hashes(question);
    let of = |paper: &&str| {
        let both = hashes(paper).intersection(&own).count();
        (both > 0).then(|| format!("{both} of them are in [results/{paper}-small](../results/{paper}-small) too"))
    };
    let found: Vec<String> = ["kerple", "dape", "spe"].iter().filter_map(of).collect();
    match found.is_empty() {
        true => {
            format!("Of the {} runs of this page none has the plan and seed of a run in a paper's results.", own.len())
        }
        false => format!(
            "This page has {} runs; {}, with the same plan and seed. These runs are part of what raised the question, so they are not \
             independent evidence for its answer.",
            own.len(),
            found.join(", ")
        ),
    }
}

/// The cells of a row of a page's table, by the caption of the table.
fn row<'a>(page: &'a str, caption: &str, name: &str) -> Vec<&'a str> {
    let (_, rest) = page.split_once(&format!("\n{caption}\n")).unwrap_or_else(|| panic!("no table {caption:?}"));
    let lines =
        rest.lines().skip_while(|line| line.is_empty()).take_while(|line| line.starts_with('|') || line.is_empty());
    let cells = |line: &'a str| line.trim().trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    // a claim on several places has a row for each, and its name in the first or in all of them
    let (name, place) = name.split_once(" @ ").map_or((name, None), |(name, place)| (name, Some(place)));
    let mut last = "";
    let found = lines.filter(|line| line.starts_with('|')).map(cells).find(|cells| {
        last = if cells[0].is_empty() { last } else { cells[0] };
        last == name && place.is_none_or(|place| cells[1] == place)
    });
    found.unwrap_or_else(|| panic!("no row {name:?} in {caption:?}"))
}

const RESTS: &str = "<!-- rests on ";

/// What a passage says that it rests on: `PAPER | CAPTION | ROW: WORD[, WORD]`, each word that of a cell, or `numbers` where the row is
/// one of numbers. The rows' own numbers.
fn rests(passage: &str, pages: &BTreeMap<&str, String>) -> Vec<String> {
    let parts = passage.split(RESTS).skip(1).map(|rest| rest.split_once(" -->").unwrap().0);
    let check = |cited: &str| {
        let (place, words) = cited.rsplit_once(": ").unwrap();
        let [paper, caption, name] = place.splitn(3, " | ").collect::<Vec<_>>().try_into().unwrap();
        let cells = row(&pages[paper], caption, name);
        for (at, word) in words.split(", ").enumerate().filter(|(_, word)| *word != "numbers") {
            let judged: Vec<&&str> = cells[1..].iter().filter(|cell| is_verdict(cell)).collect();
            assert!(judged.get(at).is_some_and(|cell| cell.contains(word)), "{cited}: the page says {judged:?}");
        }
        cells.join(" | ")
    };
    parts.map(check).collect()
}

/// Whether a cell is a verdict.
fn is_verdict(cell: &str) -> bool {
    ["confirmed", "contradicted", "not settled", "flips", "nothing learned"].iter().any(|word| cell.contains(word))
}

fn all_pages() -> BTreeMap<&'static str, String> {
    PAPERS.iter().map(|paper| (*paper, pages::markdown(&results(paper)).unwrap())).collect()
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
    // a fence both opens and closes: what is code is every second part
    let text: String = outside(document, BEGIN, END).split("```").step_by(2).collect();
    outside(&outside(&text, RESTS, "-->"), "arXiv:", " ")
}

#[test]
fn documents_say_what_the_rows_say() {
    for paper in PAPERS {
        let path = root().join(format!("docs/results-{paper}.md"));
        let document = std::fs::read_to_string(&path).unwrap();
        let page = pages::markdown(&results(paper)).unwrap();
        let mut current = with_block(&with_tables(&document, &page), COUNTED, counted(&page));
        if !["kerple", "dape", "spe"].contains(&paper) {
            current = with_block(&current, SHARED, &shared(paper));
        }
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

/// The answer of a page is what its claims say: each passage before the first section names the rows that it rests on.
#[test]
fn headlines_are_what_the_claims_say() {
    let pages = all_pages();
    for paper in PAPERS {
        let document = std::fs::read_to_string(root().join(format!("docs/results-{paper}.md"))).unwrap();
        let (head, _) = document.split_once("\n## ").unwrap();
        assert!(!rests(head, &pages).is_empty(), "{paper}: the answer of the page rests on no claim");
        let passages = head.split("\n\n").filter(|passage| passage.contains("**"));
        for passage in passages {
            assert!(!rests(passage, &pages).is_empty(), "{paper}: no claim stands for {passage:?}");
        }
    }
}

/// Each sentence names its rows, has no number that they do not have, and says how many seeds and how sure.
#[test]
fn what_was_learned_is_what_the_rows_say() {
    let pages = all_pages();
    let learned = std::fs::read_to_string(root().join("docs/learned.md")).unwrap();
    let sentences: Vec<&str> = learned.split("\n### ").skip(1).collect();
    assert_eq!(sentences.len(), 11);
    for sentence in sentences {
        let rows = rests(sentence, &pages).join("\n");
        let (said, known) = (prose(&without_comments(sentence)), numbers(&rows));
        let foreign: Vec<&str> = numbers(&said).difference(&known).copied().collect();
        assert_eq!(foreign, [""; 0], "numbers that the rows named by this sentence do not have: {said}");
        assert!(said.contains(" seeds") && said.contains('['), "how many seeds, how sure: {said}");
    }
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("<!--");
    let first = parts.next().unwrap().to_owned();
    first + &parts.map(|part| part.split_once("-->").unwrap().1).collect::<String>()
}

/// Marks are explained where they stand, and no page names a processor that its rows do not.
#[test]
fn marks_are_explained_and_processors_are_recorded() {
    for paper in PAPERS {
        let document = std::fs::read_to_string(root().join(format!("docs/results-{paper}.md"))).unwrap();
        let text = prose(&document);
        for mark in ["\u{2020}", "\u{2021}"] {
            assert!(!document.contains(mark) || text.contains(&format!("`{mark}` marks")), "{paper}: {mark}");
        }
        let page = pages::markdown(&results(paper)).unwrap();
        if page.contains("trained on: not recorded") {
            for name in ["Intel", "AMD", "EPYC", "Xeon"] {
                assert!(!text.contains(name), "{paper}: rows do not say that they were trained on {name}");
            }
        }
    }
}

/// The tasks of a paper with their floors, by corpus: from the plan of a run; none where files are needed that are not there.
fn recomputed(paper: &str) -> Vec<Floor> {
    let aside = unpacked(&results(paper)).unwrap().unwrap();
    let mut known = BTreeSet::new();
    let mut floors = Vec::new();
    for run in Manifest::read(&results(paper)).unwrap().runs {
        let Ok(plan) = std::fs::read_to_string(aside.path().join(&run.folder).join("plan.json")) else { continue };
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        let Ok(task) = serde_json::from_value::<TaskConfig>(plan["data"]["task"].clone()) else { continue };
        if !known.insert(run.corpus.clone()) {
            continue;
        }
        let path = PathBuf::from(plan["data"]["path"].as_str().unwrap_or_default());
        let data = std::env::var_os("KERPLE_DATA").map(PathBuf::from);
        let examples: Box<dyn Examples> = match (path.as_os_str().is_empty(), data) {
            (true, _) => task.open(None).unwrap(),
            (false, Some(data)) => task.open(Some(&data.join(path))).unwrap(),
            (false, None) => {
                eprintln!("skipped: the floors of {} need its files; KERPLE_DATA says where they are", run.corpus);
                continue;
            }
        };
        let train_len = plan["train_len"].as_u64().unwrap() as usize;
        floors.extend(Floor::of(&run.corpus, &*examples, train_len).unwrap());
    }
    floors
}

#[test]
fn floors_are_those_of_the_tasks() {
    for paper in ["arena", "spe"] {
        let file = results(paper).join(FLOORS_FILE);
        let now = recomputed(paper);
        if std::env::var_os("UPDATE_RESULTS").is_some() && std::env::var_os("KERPLE_DATA").is_some() {
            std::fs::write(&file, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
        }
        let kept: Vec<Floor> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert!(!now.is_empty(), "{paper}");
        for floor in now {
            assert!(kept.contains(&floor), "{paper}: {floor:?} is not in {kept:?}");
        }
    }
}

#[test]
fn pages_are_those_of_the_rows() {
    for paper in PAPERS {
        if std::env::var_os("UPDATE_RESULTS").is_some() {
            pages::write(&results(paper), &[], &[]).unwrap();
            // what says the same as the others is not kept
            for name in ["index.html", "cells.json"] {
                std::fs::remove_file(results(paper).join("paper").join(name)).unwrap();
            }
            seal::seal(&results(paper)).unwrap();
        }
        let page = std::fs::read_to_string(results(paper).join("paper/report.md")).unwrap();
        // the head names the program that made the page
        let body = |page: &str| page.split_once("\n## ").unwrap().1.to_owned();
        let rendered = pages::markdown(&results(paper)).unwrap();
        assert!(body(&page) == body(&rendered), "results/{paper}-small/paper is not what `--pages-only` makes");
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
