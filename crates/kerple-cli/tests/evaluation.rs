//! What was scored is known: rows are reused for exactly the same text, and only then.

mod common;

use common::Place;
use serde_json::Value;

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A place with data, other data of the same tokenizer, and a comparison of one encoding at length 16.
fn compared() -> Place {
    let place = Place::new();
    place.make_data();
    for part in 0..12 {
        let text = place.read(format!("text/{part:02}.txt")).to_uppercase();
        place.write(&format!("upper/{part:02}.txt"), text);
    }
    place.ok(&["prepare", "--input", "upper", "--out", "data2"]);
    assert_eq!(compare(&place, "16", &["--segments", "4"]), [16]);
    place
}

const RUN: &str = "all/runs/alibi/seed-1235";

/// Compares at `lengths` and returns the lengths that were evaluated now.
fn compare(place: &Place, lengths: &str, options: &[&str]) -> Vec<u64> {
    let basic = ["compare", "--config", "run.toml", "--encodings", "alibi", "--out", "all", "--json", "--lengths"];
    let printed = place.ok(&[&basic[..], &[lengths], options].concat());
    rows(&printed).iter().filter_map(|row| row["length"].as_u64()).collect()
}

#[test]
fn other_data_is_another_text() {
    let place = compared();
    let other = rows(&place.ok(&["eval", RUN, "--json", "--lengths", "32", "--segments", "4", "--data", "data2"]));
    assert_eq!(compare(&place, "16,32", &["--segments", "4"]), [32], "the row over other text is not the run's result");
    let all = rows(&place.read(format!("{RUN}/evaluation.jsonl")));
    assert_eq!(all.len(), 3);
    assert_eq!(all[0]["text"], all[2]["text"], "later calls keep the text");
    assert_ne!(other[0]["text"]["checksum"], all[2]["text"]["checksum"]);
    assert_ne!(other[0]["nll"], all[2]["nll"]);
}

#[test]
fn windows_segments_and_spans_are_told_apart() {
    let place = compared();
    place.ok(&["eval", RUN, "--lengths", "32", "--segments", "4", "--window", "2"]);
    assert_eq!(compare(&place, "16,32", &["--segments", "4"]), [32], "a row with a window is another result");
    assert_eq!(compare(&place, "16,32", &["--segments", "4"]), [0u64; 0], "nothing is done twice");
    assert_eq!(compare(&place, "16,32", &["--segments", "9"]), [16, 32], "more segments are more text");
    assert_eq!(compare(&place, "16", &["--segments", "4", "--span", "64"]), [16], "another span is another text");
    assert_eq!(compare(&place, "32", &["--segments", "4", "--positions"]), [32], "positions were not kept");
    // of the earlier texts of 4 segments the last that is long enough
    assert_eq!(compare(&place, "128", &["--segments", "4"]), [128]);
    let last = rows(&place.read(format!("{RUN}/evaluation.jsonl"))).pop().unwrap();
    assert_eq!(last["text"]["span"], 512);
}

#[test]
fn evaluating_again_shows_what_is_known() {
    let place = compared();
    let eval = ["eval", RUN, "--json", "--lengths", "16,48", "--protocol", "last:16", "--positions"];
    let first = place.ok(&eval);
    let kept = place.read(format!("{RUN}/evaluation.jsonl"));
    assert_eq!(place.ok(&eval), first);
    assert_eq!(place.read(format!("{RUN}/evaluation.jsonl")), kept);
    assert_eq!(kept.lines().count(), 3);
}

#[test]
fn numbers_do_not_wrap() {
    let place = compared();
    let kept = place.read(format!("{RUN}/evaluation.jsonl"));
    for options in [
        ["--lengths", "18446744073709551615"],
        ["--lengths", "18446744073709551614"],
        ["--segments", "1152921504606846976"],
        ["--span", "18446744073709551615"],
    ] {
        for protocol in ["segments", "blocks", "last:1", "sliding:1"] {
            let output = place.run(&[&["eval", RUN, "--protocol", protocol], &options[..]].concat());
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{options:?} {protocol}: {message}");
            assert!(message.contains("hint: "), "{message}");
        }
    }
    assert_eq!(place.read(format!("{RUN}/evaluation.jsonl")), kept);
}
