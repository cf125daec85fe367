//! Folders of reproductions: what would lose or misplace results is refused, and changes nothing.

use crate::common::Place;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const FIGURE: [&str; 6] = ["reproduce", "dape", "--scale", "smoke", "--only", "figure1"];

fn figure<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&FIGURE[..], &["--out", out], more].concat()
}

/// Every file below a folder, and what it holds.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => _ = found.insert(path.clone(), fs::read(path).unwrap()),
            }
        }
    }
    found
}

/// Runs what must be refused, with a part of what is said, and changes no file.
fn refused(place: &Place, arguments: &[&str], part: &str) {
    let before = files(&place.path(""));
    let output = place.run(arguments);
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap()).concat();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}\n{said}");
    assert!(said.contains("error: ") && said.contains("hint: ") && said.contains(part), "{arguments:?}\n{said}");
    assert!(files(&place.path("")) == before, "{arguments:?} changed a file");
}

/// A reproduction of one figure in `r`, of the text in `texts`.
fn place() -> Place {
    let place = Place::new();
    place.make_text(1, 24_000);
    fs::create_dir(place.path("texts")).unwrap();
    fs::rename(place.path("text"), place.path("texts/latex")).unwrap();
    place.ok(&figure("r", &["--data", "texts"]));
    place
}

#[test]
fn an_export_replaces_no_more_than_an_older_one() {
    let place = place();
    refused(&place, &figure("r", &["--export", "r"]), "is the folder of the reproduction");
    refused(&place, &figure("r", &["--export", "r/../r/kept"]), "or inside it");
    place.ok(&["reproduce", "kerple", "--scale", "smoke", "--only", "table1", "--out", "other"]);
    refused(&place, &figure("r", &["--export", "other"]), "other contains the smoke reproduction of kerple");
    place.ok(&figure("second", &["--data", "texts"]));
    refused(&place, &figure("r", &["--export", "second"]), "this is not an export");
    // one that is an export is replaced
    let kept = place.ok(&figure("r", &["--export", "kept"]));
    assert_eq!(place.ok(&figure("r", &["--export", "kept"])), kept);
    // and keeps nothing that the reproduction has not
    fs::write(place.path("kept/timing.json"), "[]").unwrap();
    assert_eq!(place.ok(&figure("r", &["--export", "kept"])), kept);
    assert!(!place.path("kept/timing.json").exists());
    // files of others are theirs
    for (name, says) in [("SHA256SUMS", "mine/SHA256SUMS exists"), ("paper/report.md", "is not a report of kerple")] {
        fs::create_dir_all(place.path("mine/paper")).unwrap();
        fs::write(place.path("mine").join(name), "mine").unwrap();
        refused(&place, &figure("r", &["--export", "mine"]), says);
        fs::remove_dir_all(place.path("mine")).unwrap();
    }
}

#[test]
fn a_packed_export_is_as_good_as_the_folder_it_is_of() {
    let place = place();
    let pages = |folder: &str| files(&place.path(folder).join("paper")).into_values().collect::<Vec<_>>();
    place.ok(&figure("r", &["--export", "kept"]));
    assert!(pages("kept") == pages("r"), "the same pages, byte for byte");
    let said = place.ok(&["verify", "kept"]);
    assert!(said.starts_with("kept\n") && said.contains("1 of 1 runs"), "{said}");
    place.ok(&figure("kept", &["--export", "again"]));
    let archive = |folder: &str| fs::read(place.path(folder).join("runs.tar.zst")).unwrap();
    assert!(archive("kept") == archive("again"));
    // going on makes run folders of it, in which nothing is left to be done
    let printed = place.ok(&figure("kept", &["--data", "texts"]));
    assert_eq!(printed.replace("kept/", "r/"), place.ok(&figure("r", &["--pages-only"])));
    assert!(
        !place.path("kept/runs.tar.zst").exists() && place.path("kept/arxiv-512/dape/seed-1235/plan.json").is_file()
    );
    assert!(!place.path("kept/arxiv-512/dape/seed-1235/checkpoints").exists(), "it was not trained again");
    // what is damaged is named
    let mut damaged = archive("again");
    damaged.truncate(archive("again").len() / 2);
    place.write("again/runs.tar.zst", damaged);
    refused(&place, &figure("again", &["--pages-only"]), "again/runs.tar.zst");
    refused(&place, &["verify", "again"], "again/runs.tar.zst");
}

#[test]
fn a_manifest_leads_nowhere_else() {
    let place = place();
    let manifest = place.read("r/reproduction.json");
    for (from, to, part) in [
        ("\"arxiv-512/dape/seed-1235\"", "\"../victim\"", "`../victim` is outside"),
        ("\"arxiv\"", "\"arxiv/../../victim\"", "`arxiv/../../victim` contains other characters"),
        ("\"lengths\": [", "\"lengths\": [0, ", "a length of 0 tokens is out of range"),
        ("\"lengths\": [", "\"lengths\": [1099511627776, ", "between 1 and 4294967296"),
    ] {
        assert!(manifest.contains(from), "{from}");
        place.write("r/reproduction.json", manifest.replace(from, to));
        refused(&place, &figure("r", &["--export", "deep/er"]), part);
        refused(&place, &figure("r", &["--pages-only"]), part);
    }
}

#[test]
fn plans_and_rows_of_impossible_lengths_are_named() {
    let place = place();
    for name in ["r/arxiv-512/dape/seed-1235/plan.json", "r/arxiv-512/dape/seed-1235/evaluation.jsonl"] {
        let good = place.read(name);
        for lie in ["0", "1099511627776"] {
            let lying = format!("\"train_len\": {lie}");
            let text = good.replace("\"train_len\":64", &lying).replace("\"train_len\": 64", &lying);
            assert_ne!(text, good);
            place.write(name, text);
            refused(&place, &figure("r", &["--pages-only"]), &format!("a length of {lie} tokens is out of range"));
        }
        place.write(name, good);
    }
}

#[test]
fn a_result_is_shown_for_the_data_it_is_of() {
    let place = place();
    let printed = place.ok(&figure("r", &["--pages-only"]));
    place.write("upper/latex/00.txt", place.read("texts/latex/00.txt").to_uppercase());
    refused(&place, &figure("r", &["--data", "upper"]), "was prepared from other texts than upper/latex");
    refused(&place, &figure("r", &["--data", "nowhere"]), "nowhere/latex");
    refused(&place, &figure("r", &[]), "other texts than the built-in texts");
    // the same texts in another place are the same
    fs::rename(place.path("texts"), place.path("moved")).unwrap();
    assert_eq!(place.ok(&figure("r", &["--data", "moved"])), printed);
    // text that is added counts
    place.write("moved/latex/99.txt", "more");
    refused(&place, &figure("r", &["--data", "moved"]), "99.txt is new");
    assert_eq!(place.ok(&figure("r", &["--pages-only"])), printed);
}

/// A name that no disk can hold is an error of looking, as a disk that does not answer is.
#[test]
fn what_cannot_be_seen_is_not_left_out_of_an_export() {
    let place = place();
    let name = "x".repeat(300);
    let manifest = place.read("r/reproduction.json").replace("\"arxiv-512/dape/seed-1235\"", &format!("\"{name}\""));
    place.write("r/reproduction.json", manifest);
    refused(&place, &figure("r", &["--export", "kept"]), &name);
}

#[test]
fn an_export_loses_no_row() {
    let place = place();
    let path = "r/arxiv-512/dape/seed-1235/evaluation.jsonl";
    let rows = place.read(path);
    place.write(path, &rows[..rows.len() - 9]);
    refused(&place, &figure("r", &["--export", "kept"]), "evaluation.jsonl, line ");
}
