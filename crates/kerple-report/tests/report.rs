//! Reports of small made-up runs: what is in them, and that nothing missing or broken is hidden.

use std::collections::BTreeMap;
use std::path::Path;

use kerple_report::record::{self, EvaluationRow, Journal, KernelSnapshot, MetricsRow, write_json};
use kerple_report::{Error, Options, Summary, find_runs, table_text, write};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A run of 100 steps, trained at 64, with a perplexity per length.
fn run(root: &Path, label: &str, seed: u64, perplexities: &[(u64, f64)]) {
    let folder = root.join("runs").join(format!("{label} #{seed}"));
    std::fs::create_dir_all(&folder).unwrap();
    let plan = json!({"label": label, "seed": seed, "train_len": 64, "steps": 100, "hash": format!("{label}-hash"),
        "encoding": {"kind": label}, "parameters": 1234});
    write_json(&folder.join(record::PLAN_FILE), &plan).unwrap();
    let mut metrics = Journal::open(&folder.join(record::METRICS_FILE)).unwrap();
    for step in [50, 100] {
        let encoding = BTreeMap::from([("r1".to_owned(), vec![0.1 * step as f64, 1.0])]);
        let seconds = 0.5 * step as f64;
        let row = MetricsRow {
            step,
            loss: 3.0,
            learning_rate: 0.1,
            grad_norm: 1.0,
            tokens: 64 * step,
            seconds,
            step_seconds: 0.5,
            valid_loss: Some(3.1),
            encoding,
        };
        metrics.push(&row).unwrap();
    }
    let mut evaluations = Journal::open(&folder.join(record::EVALUATION_FILE)).unwrap();
    for &(length, perplexity) in perplexities {
        evaluations.push(&evaluation(label, seed, length, perplexity)).unwrap();
    }
    let bias = Some(vec![vec![0.0, -1.0, -4.0], vec![0.0, -0.1, -0.2]]);
    let snapshot = KernelSnapshot {
        step: 100,
        distances: vec![0, 1, 64],
        bias,
        weight: None,
        effective_length: vec![Some(20), None],
    };
    write_json(&folder.join(record::KERNELS_FILE), &[snapshot]).unwrap();
}

fn evaluation(label: &str, seed: u64, length: u64, perplexity: f64) -> EvaluationRow {
    EvaluationRow {
        encoding: label.into(),
        seed,
        train_len: 64,
        length,
        protocol: "segments".into(),
        window: None,
        split: "test".into(),
        step: 100,
        text: None,
        segments: 2,
        tokens: 2 * length,
        bytes: Some(8 * length),
        nll: perplexity.ln(),
        perplexity,
        bits_per_byte: None,
        seconds: 1.0,
        position_nll: Some(vec![perplexity.ln(); length as usize]),
        segment_nll: None,
    }
}

fn report(root: &TempDir) -> Result<Summary, Error> {
    let runs = find_runs(&[root.path().join("runs")])?;
    write(&runs, &root.path().join("report"), &Options { title: "A < B".into(), ..Options::default() })
}

fn read(root: &TempDir, file: &str) -> String {
    std::fs::read_to_string(root.path().join("report").join(file)).unwrap()
}

/// Two encodings, three seeds, two lengths, numbers that can be checked by hand.
fn complete() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (seed, text) in [(1, 0.0), (2, 2.0), (3, 4.0)] {
        run(root.path(), "kerple_log", seed, &[(64, 20.0 + text), (128, 18.0 + text)]);
        run(root.path(), "sinusoidal", seed, &[(64, 20.0 + text), (128, 1e4 * (1.0 + seed as f64))]);
    }
    root
}

#[test]
fn numbers_are_those_computed_by_hand() {
    let root = complete();
    let results = report(&root).unwrap().results;
    assert_eq!(results.reference.as_deref(), Some("kerple_log"));
    let [table] = &results.tables[..] else { panic!("one setting, one table") };
    let log = table.score("kerple_log", 128).unwrap();
    assert_eq!(
        (log.perplexity, log.perplexity_deviation, log.n, log.best, log.dagger),
        (20.0, Some(2.0), 3, true, false)
    );
    let ratio = (18.0 / 20.0 + 20.0 / 22.0 + 22.0 / 24.0) / 3.0;
    // A few roundings.
    assert!((log.ratio.unwrap() - ratio).abs() < 1e-15);
    // nll * tokens / (bytes ln 2), with 2 tokens for 8 bytes.
    let bits = ([18.0f64, 20.0, 22.0].map(f64::log2).iter().sum::<f64>()) / 3.0 / 4.0;
    assert!((log.bits_per_byte.unwrap() - bits).abs() < 1e-14);
    let sinusoidal = table.score("sinusoidal", 128).unwrap();
    assert_eq!((sinusoidal.perplexity, sinusoidal.perplexity_deviation), (3e4, Some(1e4)));
    assert!(sinusoidal.dagger && !sinusoidal.best);
    // At 64 the two are equal under every seed: no winner by more than order, p = 1.
    let test = table.tests.iter().find(|test| test.length == 64).unwrap();
    assert_eq!((test.p, test.p_holm, test.difference, test.dagger), (Some(1.0), Some(1.0), Some(0.0), false));
    // At 128 the other's p counts twice.
    let test = table.tests.iter().find(|test| test.length == 128).unwrap();
    assert!((test.p_holm.unwrap() - 2.0 * test.p.unwrap()).abs() < 1e-15);
    assert!(results.notes.is_empty());
    let speed = &results.speeds[1];
    assert_eq!((speed.seconds, speed.relative, speed.baseline.as_str()), (0.5, 1.0, "sinusoidal"));
    let heads: Vec<_> = results.effective_lengths.iter().take(2).map(|row| row.effective_length).collect();
    assert_eq!(heads, [Some(20), None]);
}

#[test]
fn the_page_is_well_formed_and_self_contained() {
    let root = complete();
    report(&root).unwrap();
    let html = read(&root, "index.html");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    assert_eq!(page.descendants().find(|node| node.has_tag_name("h1")).unwrap().text(), Some("A < B"));
    let svg = page.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "svg")));
    let pictures: Vec<_> = svg.filter(|node| node.attribute("role") == Some("img")).collect();
    assert!(pictures.len() > 8, "{}", pictures.len());
    for picture in pictures {
        let child = |name: &str| picture.children().any(|node| node.tag_name().name() == name && node.text().is_some());
        assert!(child("title") && child("desc"));
    }
    assert!(!html.contains("<script") && !html.contains("@import") && !html.contains("url("));
    assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("://"));
    for node in page.descendants() {
        assert!(node.attribute("src").is_none());
        let Some(target) = node.attribute("href") else { continue };
        match target.strip_prefix('#') {
            Some(id) => assert!(page.descendants().any(|node| node.attribute("id") == Some(id)), "#{id} leads nowhere"),
            None => {
                let path = target.replace("%20", " ").replace("%23", "#");
                assert!(root.path().join("report").join(&path).exists(), "{path} leads nowhere");
            }
        }
    }
}

#[test]
fn every_file_that_is_listed_exists_and_figures_parse() {
    let root = complete();
    let summary = report(&root).unwrap();
    assert!(summary.files.contains(&summary.index));
    let mut figures = 0;
    for file in &summary.files {
        let text = std::fs::read_to_string(file).unwrap();
        if file.extension().is_some_and(|extension| extension == "svg") {
            roxmltree::Document::parse(&text).unwrap();
            figures += 1;
        }
    }
    // Perplexity twice, positions at two lengths, kernels, effective lengths, parameters, two losses.
    assert_eq!(figures, 9);
    let markdown = read(&root, "report.md");
    assert!(markdown.contains("| kerple_log | **22.00 ± 2.00** | **20.00 ± 2.00** |"), "{markdown}");
    assert!(markdown.contains("| sinusoidal | 22.00 ± 2.00 | 30000 ± 10000 † |"), "{markdown}");
    assert!(markdown.contains("](figures/perplexity-0.svg)"));
}

/// Every CSV cell against the JSON value of the same name.
fn same_numbers(csv_text: &str, rows: &[Value], what: &str) {
    let mut reader = csv::Reader::from_reader(csv_text.as_bytes());
    let names: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    let records: Vec<csv::StringRecord> = reader.records().map(|record| record.unwrap()).collect();
    assert_eq!(records.len(), rows.len(), "{what}");
    for (record, row) in records.iter().zip(rows) {
        assert_eq!(names.len(), row.as_object().unwrap().len(), "{what}: {names:?} against {row}");
        for (name, cell) in names.iter().zip(record) {
            match &row[name] {
                Value::Number(number) => {
                    assert_eq!(cell.parse::<f64>().unwrap(), number.as_f64().unwrap(), "{what}: {name}")
                }
                Value::String(text) => assert_eq!(cell, text, "{what}: {name}"),
                Value::Bool(flag) => assert_eq!(cell, flag.to_string(), "{what}: {name}"),
                Value::Null => assert_eq!(cell, "", "{what}: {name}"),
                other => panic!("{what}: {name} is {other}"),
            }
        }
    }
}

#[test]
fn csv_and_json_hold_the_same_numbers() {
    let root = complete();
    run(root.path(), "none", 1, &[(64, f64::NAN), (128, f64::INFINITY)]);
    report(&root).unwrap();
    let json: Value = serde_json::from_str(&read(&root, "report.json")).unwrap();
    for list in ["runs", "speeds", "effective_lengths"] {
        same_numbers(&read(&root, &format!("tables/{list}.csv")), json[list].as_array().unwrap(), list);
    }
    for list in ["scores", "tests", "evaluations"] {
        let tables = json["tables"].as_array().unwrap().iter();
        let rows = tables.flat_map(|table| {
            table[list].as_array().unwrap().iter().map(|row| {
                let mut row = row.clone();
                for name in ["train_len", "split", "window", "protocol"] {
                    row[name] = table[name].clone();
                }
                row
            })
        });
        same_numbers(&read(&root, &format!("tables/{list}.csv")), &rows.collect::<Vec<_>>(), list);
    }
    assert!(
        read(&root, "tables/scores.csv").contains(",NaN,") && read(&root, "tables/evaluations.csv").contains(",inf,")
    );
}

#[test]
fn what_is_missing_is_shown() {
    let root = complete();
    run(root.path(), "alibi", 1, &[(64, 21.0)]);
    let summary = report(&root).unwrap();
    let table = &summary.results.tables[0];
    let alibi = table.score("alibi", 64).unwrap();
    assert_eq!((alibi.n, alibi.n_expected, alibi.perplexity_deviation), (1, 3, None));
    assert!(table.score("alibi", 128).is_none());
    let test = table.tests.iter().find(|test| test.encoding == "alibi").unwrap();
    assert_eq!((test.n, test.p), (1, None));
    assert!(test.untestable.as_ref().unwrap().contains("1 common seeds"));
    let html = read(&root, "index.html");
    for words in ["n = 1 of 3", "alibi at 128", "alibi at 64", "1 common seeds; a paired test needs at least 2"] {
        assert!(html.contains(words), "{words}");
    }
    let text = table_text(&find_runs(&[root.path().join("runs")]).unwrap()).unwrap();
    assert!(text.contains("21.00 (n=1)"), "{text}");
}

#[test]
fn losses_that_are_not_finite_are_shown_and_never_win() {
    let root = complete();
    for (seed, perplexity) in [(1, f64::NAN), (2, 1.0), (3, 1.0)] {
        run(root.path(), "none", seed, &[(64, 1e300), (128, perplexity)]);
    }
    let summary = report(&root).unwrap();
    let none = summary.results.tables[0].score("none", 128).unwrap();
    assert!(none.perplexity.is_nan() && !none.best && !none.dagger);
    assert_eq!(none.n_not_finite, 1);
    let html = read(&root, "index.html");
    assert!(html.contains(">NaN</span>") && html.contains("1 not finite") && html.contains("a value is not finite"));
}

#[test]
fn one_seed_and_one_encoding_make_a_report() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "alibi", 1, &[(128, 21.0)]);
    let summary = report(&root).unwrap();
    assert!(summary.results.tables[0].scores.iter().all(|score| !score.best && score.ratio.is_none()));
    assert!(summary.results.tables[0].tests.is_empty());
    assert!(read(&root, "index.html").contains("not yet a length at which two encodings can be compared"));
    run(root.path(), "kerple_log", 1, &[(128, 20.0)]);
    report(&root).unwrap();
    let html = read(&root, "index.html");
    assert!(
        html.contains(
            "kerple_log has the lowest perplexity of 2 encodings: 20.00 (n = 1). With one seed it is not known"
        )
    );
}

#[test]
fn a_plan_alone_makes_a_report() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("runs/alone");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(record::PLAN_FILE), "{}").unwrap();
    let summary = report(&root).unwrap();
    assert_eq!(summary.results.encodings, ["alone"]);
    assert!(summary.results.notes[0].ends_with("holds a plan and no results."));
    assert!(read(&root, "index.html").contains("not started"));
    assert!(table_text(&find_runs(&[folder]).unwrap()).unwrap().starts_with("nothing evaluated yet"));
}

#[test]
fn other_settings_make_other_tables_and_the_latest_checkpoint_counts() {
    let root = complete();
    let file = root.path().join("runs/kerple_log #1").join(record::EVALUATION_FILE);
    let mut rows = Journal::open(&file).unwrap();
    let row = |length, perplexity| evaluation("kerple_log", 1, length, perplexity);
    rows.push(&EvaluationRow { step: 50, ..row(64, 90.0) }).unwrap();
    rows.push(&EvaluationRow { step: 50, ..row(256, 19.0) }).unwrap();
    rows.push(&EvaluationRow { window: Some(32), ..row(64, 30.0) }).unwrap();
    rows.push(&EvaluationRow { protocol: "last:16".into(), ..row(64, 40.0) }).unwrap();
    let summary = report(&root).unwrap();
    let found: Vec<_> = summary.results.tables.iter().map(|table| table.setting.title()).collect();
    let expected = ["segments", "last:16"].map(|protocol| format!("{protocol}, test split, trained at 64"));
    assert_eq!(found, [expected[0].clone(), expected[1].clone(), format!("{}, window of 32 keys", expected[0])]);
    let table = &summary.results.tables[0];
    assert_eq!(table.score("kerple_log", 64).unwrap().perplexity, 22.0);
    assert_eq!(table.score("kerple_log", 256).unwrap().n_unfinished, 1);
    let html = read(&root, "index.html");
    assert!(html.contains("only their last 16 tokens are scored") && html.contains("restricted to the last 32 keys"));
}

#[test]
fn duplicates_count_once() {
    let root = complete();
    let copy = root.path().join("runs/a copy");
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::copy(root.path().join("runs/kerple_log #1").join(record::PLAN_FILE), copy.join(record::PLAN_FILE))
        .unwrap();
    let summary = report(&root).unwrap();
    assert_eq!(summary.results.tables[0].score("kerple_log", 64).unwrap().n, 3);
    assert!(read(&root, "report.md").contains("(duplicate of ../runs/kerple_log #1)"));
}

#[test]
fn the_reference_can_be_chosen_and_must_exist() {
    let root = complete();
    let runs = find_runs(&[root.path()]).unwrap();
    let options = |name: &str| Options { reference: Some(name.into()), ..Options::default() };
    let summary = write(&runs, &root.path().join("report"), &options("sinusoidal")).unwrap();
    assert!(summary.results.tables[0].tests.iter().all(|test| test.encoding == "kerple_log" && !test.dagger));
    let error = write(&runs, &root.path().join("other"), &options("alibi")).unwrap_err();
    assert!(error.to_string().contains("kerple_log, sinusoidal"), "{error}");
    assert!(error.hint().unwrap().contains("--reference kerple_log"));
    assert!(!root.path().join("other").exists());
}

#[test]
fn corrupt_rows_stop_with_file_and_line_and_incomplete_ones_are_noted() {
    let root = complete();
    let file = root.path().join("runs/kerple_log #1").join(record::EVALUATION_FILE);
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    let summary = report(&root).unwrap();
    assert!(
        summary.results.notes.iter().any(|note| note.contains("evaluation.jsonl: line 2, the last, is incomplete"))
    );
    assert_eq!(summary.results.tables[0].score("kerple_log", 128).unwrap().n, 2);
    std::fs::write(&file, whole.replacen('{', "[", 1)).unwrap();
    let error = report(&root).unwrap_err();
    assert!(error.to_string().contains("evaluation.jsonl:1: not a record"), "{error}");
}

#[test]
fn no_runs_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("runs")).unwrap();
    let error = report(&root).unwrap_err();
    assert!(matches!(error, Error::NoRuns { .. }) && error.hint().is_some());
    assert!(matches!(write(&[], root.path(), &Options::default()), Err(Error::NoRuns { .. })));
}

#[test]
fn the_terminal_table_lines_up() {
    let root = complete();
    let text = table_text(&find_runs(&[root.path()]).unwrap()).unwrap();
    let expected = "\
segments, test split, trained at 64
  perplexity            64             128
  kerple_log  22.00 ± 2.00*   20.00 ± 2.00*
  sinusoidal  22.00 ± 2.00   30000 ± 10000†
  bits per byte             64             128
  kerple_log     1.114 ± 0.033*  1.079 ± 0.036*
  sinusoidal     1.114 ± 0.033   3.704 ± 0.126

* lowest at the length
† kerple_log is significantly better (paired t-test, p < 0.05)
";
    assert_eq!(text, expected);
}
