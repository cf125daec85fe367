//! The demo shows what it is for: rotary positions fail beyond the training length, the others do not.

use crate::common::Place;
use std::collections::BTreeMap;

/// The perplexities of every encoding, by length.
fn table(printed: &str) -> BTreeMap<String, Vec<f64>> {
    let rows = printed.lines().skip(1).take_while(|line| !line.is_empty());
    rows.map(|line| {
        let (label, numbers) = line.split_once(' ').unwrap();
        (label.to_owned(), numbers.split_whitespace().map(|number| number.parse().unwrap()).collect())
    })
    .collect()
}

#[test]
fn rotary_rises_beyond_the_training_length_and_the_others_do_not() {
    let place = Place::new();
    let printed = place.ok(&["demo", "--out", "demo"]);
    let table = table(&printed);
    let change = |label: &str| table[label][4] / table[label][0];
    assert!(change("rotary") > 1.3, "{table:?}");
    assert!(change("alibi") < 1.1 && change("kerple_log") < 1.1, "{table:?}");
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");

    let report = printed.lines().find_map(|line| line.strip_prefix("report: ")).unwrap();
    assert!(place.read(report).contains("kerple_log"));

    let rows = place.read("demo/runs/rotary/seed-1235/metrics.jsonl");
    assert_eq!(place.ok(&["demo", "--out", "demo"]), printed, "what is finished is shown again");
    assert_eq!(place.read("demo/runs/rotary/seed-1235/metrics.jsonl"), rows);
}
