//! `kerple bench` through the binary: every work passes its check and is timed.

mod common;

use common::Place;
use serde_json::Value;
use std::collections::BTreeSet;

#[test]
fn every_work_is_checked_and_timed() {
    let place = Place::new();
    for (work, engines) in [
        ("attention", &["composed", "naive", "tiled"][..]),
        ("linear", &["chunked", "fft", "naive"]),
        ("step", &["composed", "fused"]),
        ("eval", &["fused"]),
        ("decode", &["tiled"]),
    ] {
        let sizes =
            ["--lens", "200", "--batch", "1", "--heads", "2", "--head-dim", "16", "--layers", "1", "--repeats", "1"];
        let printed = place.ok(&[&["bench", work, "--json"], &sizes[..]].concat());
        let rows: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found: BTreeSet<&str> = rows.iter().map(|row| row["engine"].as_str().unwrap()).collect();
        assert!(found.iter().eq(engines), "{work}: {found:?}");
        for row in &rows {
            assert_eq!((&row["work"], &row["length"]), (&work.into(), &200.into()), "{row}");
            assert!(row["median_ms"].as_f64().unwrap() > 0.0 && row["gflops"].as_f64().unwrap() > 0.0, "{row}");
        }
        let table = place.ok(&[&["bench", work], &sizes[..]].concat());
        assert_eq!(table.lines().count(), 1 + rows.len(), "{table}");
    }
}
