//! `kerple bench` through the binary: every work passes its check and is timed.

use crate::common::{Place, RUN};
use serde_json::Value;
use std::collections::BTreeSet;

/// Nothing of the size is made: the refusal comes before memory runs out.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    let place = Place::new();
    let small = ["--lengths", "16", "--heads", "2", "--head-dim", "4", "--repeats", "1"];
    let refused = |work: &str, options: &[&str], says: &str| {
        let output = place.run(&[&["bench", work], options].concat());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {message}");
        assert!(message.contains(says) && message.contains("hint: "), "{options:?}: {message}");
    };
    for option in ["--lengths", "--heads", "--head-dim", "--batch"] {
        for work in ["attention", "step"] {
            refused(work, &[option, "1099511627776", "--repeats", "1"], "it must be at most");
        }
    }
    let sizes = ["--lengths", "16777216", "--heads", "65536", "--head-dim", "65536"];
    refused("attention", &sizes, "--lengths 16777216 needs about ");
    for [option, most] in [["--layers", "16384"], ["--vocab", "16777216"]] {
        refused("step", &[option, "1099511627776"], &format!("{option} 1099511627776: it must be at most {most}"));
    }
    refused("step", &["--lengths", "16777216", "--batch", "16", "--layers", "1"], "training needs about ");
    refused("attention", &[&small[..], &["--threads", "100000"]].concat(), "at most 4096");
    for (options, says) in [
        (&["--set", "train.train_len=8"][..], "--set train.train_len=8: --lengths gives this value"),
        (&["--set", "train.steps=8"], "--set train.steps=8: a timed step does not depend on it"),
        (&["--set", "train.stepz=8"], "did you mean `steps`"),
        (&["--layers", "1", "--set", "model.n_layers=2"], "--layers gives this value"),
        (&["--encoding", "alibi", "--set", "encoding.kind=rotary"], "--encoding gives this value"),
        (&["--layers", "1", "--set", "model.block.glue=true"], "`glue`"),
    ] {
        refused("step", &[&small[..], options].concat(), says);
    }
    place.write("run.toml", RUN.replace("steps = 20", "steps = 20\ngrad_clip = 0.5"));
    let output =
        place.run(&["bench", "step", "--config", "run.toml", "--lengths", "16", "--batch", "1", "--repeats", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let named = ["note: run.toml: not used", "train.batch_size = 4", "train.steps = 20", "train.train_len = 16"];
    assert!(output.status.success() && named.iter().all(|name| said.contains(name)), "{said}");
    assert!(!said.contains("data.") && !said.contains("grad_clip"), "{said}");
    for (encoding, says) in [
        (r#"{"kind":"alibi","behind":0.5}"#, "it has a bias for keys after the query"),
        (r#"{"kind":"dape","base":{"kind":"t5","bidirectional":true}}"#, "it has a bias for keys after the query"),
        (r#"{"kind":"alibi","window":3}"#, "omit `window`; --window times KERPLE-log's scores under one"),
        (r#"{"kind":"learned","positions":3}"#, "`positions`: 3 rows are too few"),
        ("rotary", "rotary: it changes embeddings, queries or keys before the scores"),
        ("fope", "`kerple bench step --encoding fope`"),
        ("sine_spe", "sine_spe: it needs linear attention"),
    ] {
        refused("attention", &[&small[..], &["--encoding", encoding]].concat(), says);
    }
    for (options, says) in [
        (&["--encoding", "fire", "--normalizer", "softpick"][..], "--normalizer: timed with a bias by distance only"),
        (&["--encoding", "wall", "--selective-attention", "inclusive"], "not with wall"),
        (&["--normalizer", "softpick", "--selective-attention", "exclusive"], "it masks keys of the softmax"),
    ] {
        refused("attention", &[&small[..], options].concat(), says);
    }
}

#[test]
fn every_work_is_checked_and_timed() {
    let place = Place::new();
    for (work, options, engines) in [
        ("attention", &[][..], &["composed", "naive", "tiled"][..]),
        ("attention", &["--encoding", "fire"], &["fused", "tiled"]),
        ("attention", &["--encoding", "pope"], &["fused", "tiled"]),
        ("attention", &["--encoding", r#"{"kind":"wall","gate":"bounded"}"#], &["fused", "tiled"]),
        ("attention", &["--normalizer", "stick_breaking"], &["fused", "tiled"]),
        ("attention", &["--encoding", "none", "--normalizer", "softpick"], &["fused", "tiled"]),
        ("attention", &["--selective-attention", "exclusive"], &["fused", "tiled"]),
        ("attention", &["--window", "8", "--sink-tokens", "2"], &["composed", "naive", "tiled"]),
        ("step", &["--layers", "1"], &["composed", "fused"]),
    ] {
        let sizes = ["--lengths", "200", "--batch", "1", "--heads", "2", "--head-dim", "16", "--repeats", "1"];
        let all = [&["bench", work], &sizes[..], options].concat();
        let printed = place.ok(&[&all[..], &["--json"]].concat());
        let rows: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found: BTreeSet<&str> = rows.iter().map(|row| row["engine"].as_str().unwrap()).collect();
        assert!(found.iter().eq(engines), "{work}: {found:?}");
        for row in &rows {
            assert_eq!((&row["work"], &row["length"]), (&work.into(), &200.into()), "{row}");
            assert!(row["median_ms"].as_f64().unwrap() > 0.0 && row["gflops"].as_f64().unwrap() > 0.0, "{row}");
        }
        let table = place.ok(&all);
        assert_eq!(table.lines().count(), 1 + rows.len(), "{table}");
    }
}

/// Operations are those of the pairs that are visible: of position i its window, and the first tokens before it.
#[test]
fn a_window_counts_what_it_sees() {
    let place = Place::new();
    let sizes = ["--lengths", "200", "--batch", "1", "--heads", "2", "--head-dim", "16", "--repeats", "1", "--json"];
    let windows = ["--window", "8", "--sink-tokens", "2"];
    let printed = place.ok(&[&["bench", "attention"], &sizes[..], &windows].concat());
    let pairs: usize = (1..=200usize).map(|seen| seen.min(8) + seen.saturating_sub(8).min(2)).sum();
    for line in printed.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let products = if row["backward"] == true { 7 } else { 2 };
        let counted = row["gflops"].as_f64().unwrap() * row["median_ms"].as_f64().unwrap() * 1e6;
        let expected = (2 * products * pairs * 2 * 16) as f64;
        // divided by a time and multiplied again
        assert!((counted / expected - 1.0).abs() < 1e-12, "{row}");
    }
}

/// Of two times, the larger is not the middle.
#[test]
fn the_median_of_an_even_number_is_between_the_middle_ones() {
    let place = Place::new();
    let sizes = ["--lengths", "16", "--batch", "1", "--heads", "2", "--head-dim", "16", "--repeats", "2", "--json"];
    let printed = place.ok(&[&["bench", "attention"], &sizes[..]].concat());
    for line in printed.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let [median, min, max] = ["median_ms", "min_ms", "max_ms"].map(|name| row[name].as_f64().unwrap());
        assert!((median - 0.5 * (min + max)).abs() < 1e-9, "{row}");
    }
}

/// An engine whose loops are compiled without optimization is fifty times slower, and slower than plain Burn operations.
#[test]
fn engines_are_optimized_whatever_their_caller_is() {
    let place = Place::new();
    let sizes = ["--lengths", "512", "--batch", "1", "--heads", "2", "--head-dim", "64", "--repeats", "3", "--json"];
    let medians = |options: &[&str]| -> Vec<Value> {
        let printed = place.ok(&[&["bench", "attention"], &sizes[..], options].concat());
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let of = |rows: &[Value], engine: &str| {
        let own = rows.iter().filter(|row| row["engine"] == engine && row["backward"] == true && row["bias"] != "none");
        own.filter_map(|row| row["median_ms"].as_f64()).fold(f64::INFINITY, f64::min)
    };
    let plain = medians(&[]);
    assert!(3.0 * of(&plain, "tiled") < of(&plain, "composed"), "{plain:?}");
    let mapped = medians(&["--encoding", "dape"]);
    assert!(of(&mapped, "fused") < 15.0 * of(&mapped, "tiled"), "{mapped:?}");
}
