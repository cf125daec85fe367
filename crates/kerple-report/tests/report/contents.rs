//! The numbers and words of a report, also where something is missing or broken.

use kerple_report::{ReportOptions, find_runs, table_text, write};
use kerple_run::write_json;
use serde_json::{Value, json};

use crate::made_up::{complete, read, report, run};

#[test]
fn numbers_are_those_computed_by_hand() {
    let root = complete();
    let results = report(&root).unwrap().results;
    assert_eq!(results.reference.as_deref(), Some("kerple_log"));
    let [table] = &results.tables[..] else { panic!("one setting, one table") };
    let log = table.score(("kerple_log", None), 128).unwrap();
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
    let sinusoidal = table.score(("sinusoidal", None), 128).unwrap();
    assert_eq!((sinusoidal.perplexity, sinusoidal.perplexity_deviation), (3e4, Some(1e4)));
    assert!(sinusoidal.dagger && !sinusoidal.best);
    // At 64 the two are equal under every seed: no winner by more than order, p = 1.
    let test = table.tests.iter().find(|test| test.eval_len == 64).unwrap();
    assert_eq!((test.p, test.p_holm, test.difference, test.dagger), (Some(1.0), Some(1.0), Some(0.0), false));
    // At 128 the other's p counts twice.
    let test = table.tests.iter().find(|test| test.eval_len == 128).unwrap();
    assert!((test.p_holm.unwrap() - 2.0 * test.p.unwrap()).abs() < 1e-15);
    assert!(results.notes.is_empty());
    let speed = &results.speeds[1];
    assert_eq!((speed.seconds, speed.relative, speed.baseline.as_str()), (0.5, 1.0, "sinusoidal"));
    let heads: Vec<_> = results.effective_lengths.iter().take(2).map(|row| row.effective_length).collect();
    assert_eq!(heads, [Some(20), None]);
}

#[test]
fn what_is_missing_is_shown() {
    let root = complete();
    run(root.path(), "alibi", 1, &[(64, 21.0)]);
    let summary = report(&root).unwrap();
    let table = &summary.results.tables[0];
    let alibi = table.score(("alibi", None), 64).unwrap();
    assert_eq!((alibi.n, alibi.n_expected, alibi.perplexity_deviation), (1, 3, None));
    assert!(table.score(("alibi", None), 128).is_none());
    let test = table.tests.iter().find(|test| test.encoding == "alibi").unwrap();
    assert_eq!((test.n, test.p), (1, None));
    assert!(test.untestable.as_ref().unwrap().contains("1 common seeds"));
    let html = read(&root, "index.html");
    for words in ["n = 1 of 3", "alibi at 128", "alibi at 64", "1 common seeds; a paired test needs at least 3"] {
        assert!(html.contains(words), "{words}");
    }
    let text = table_text(&summary.results);
    assert!(text.contains("21.00 (n=1)"), "{text}");
}

#[test]
fn losses_that_are_not_finite_are_shown_and_never_win() {
    let root = complete();
    for (seed, perplexity) in [(1, f64::NAN), (2, 1.0), (3, 1.0)] {
        run(root.path(), "none", seed, &[(64, 1e300), (128, perplexity)]);
    }
    let summary = report(&root).unwrap();
    let none = summary.results.tables[0].score(("none", None), 128).unwrap();
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
    assert!(read(&root, "index.html").contains("No length has two encodings to compare yet"));
    run(root.path(), "kerple_log", 1, &[(128, 20.0)]);
    report(&root).unwrap();
    let html = read(&root, "index.html");
    assert!(
        html.contains("kerple_log has the lowest perplexity of 2 encodings: 20.00 (n = 1). One seed does not show")
    );
}

#[test]
fn a_plan_alone_makes_a_report() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("runs/alone");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(kerple_run::PLAN_FILE), "{}").unwrap();
    let summary = report(&root).unwrap();
    assert_eq!(summary.results.encodings, ["alone"]);
    assert!(summary.results.notes[0].ends_with("contains a plan and no results."));
    assert!(read(&root, "index.html").contains("not started"));
    assert!(table_text(&summary.results).starts_with("nothing evaluated yet"));
}

#[test]
fn rows_that_contradict_the_plan_are_noted() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "alibi", 1, &[(64, 20.0)]);
    let path = root.path().join("runs/alibi #1").join(kerple_run::PLAN_FILE);
    let mut plan: Value = kerple_run::read_json(&path).unwrap();
    plan["seed"] = json!(2);
    write_json(&path, &plan).unwrap();
    let text = table_text(&report(&root).unwrap().results);
    assert!(text.contains("rows of seed 1, trained at 64, which plan.json contradicts"), "{text}");
}

#[test]
fn the_reference_can_be_chosen_and_must_exist() {
    let root = complete();
    run(root.path(), "alibi", 1, &[(64, 21.0)]);
    let runs = find_runs(&[root.path()]).unwrap();
    let options = |name: &str| ReportOptions { reference: Some(name.into()), ..ReportOptions::default() };
    let summary = write(&runs, &root.path().join("report"), &options("sinusoidal")).unwrap();
    assert!(summary.results.tables[0].tests.iter().all(|test| test.reference == "sinusoidal" && !test.dagger));
    let error = write(&runs, &root.path().join("other"), &options("t5")).unwrap_err();
    assert!(error.is_misuse() && error.to_string().contains("alibi, kerple_log, sinusoidal"), "{error}");
    assert!(error.hint().contains("--reference alibi"));
    assert!(!root.path().join("other").exists());
}

#[test]
fn the_terminal_tells_of_the_reference_that_was_named() {
    let root = tempfile::tempdir().unwrap();
    for seed in [1, 2, 3] {
        run(root.path(), "alibi", seed, &[(64, 20.0 + seed as f64)]);
        run(root.path(), "t5", seed, &[(64, 30.0 + 1.1 * seed as f64)]);
    }
    let runs = find_runs(&[root.path().join("runs")]).unwrap();
    let nothing = "nothing is tested";
    assert!(
        table_text(&write(&runs, &root.path().join("a"), &ReportOptions::default()).unwrap().results).contains(nothing)
    );
    let options = ReportOptions { reference: Some("alibi".into()), ..ReportOptions::default() };
    let text = table_text(&write(&runs, &root.path().join("b"), &options).unwrap().results);
    assert!(!text.contains(nothing) && text.contains("\u{2020} alibi is significantly better"), "{text}");
}

#[test]
fn what_made_the_runs_is_shown_and_not_what_makes_the_page() {
    let root = complete();
    let seed = |seed: u64| root.path().join(format!("runs/kerple_log #{seed}"));
    let session = |first_step: u64, cpu: &str, commit: &str| {
        json!({"first_step": first_step, "commit": commit, "cpu": cpu, "simd": "avx2", "threads": 2,
            "device": "cpu", "precision": "f32", "micro_batch_size": 8, "started_at": 1})
    };
    // the second session of seed 3 made all again that the first had
    let rows = [session(1, "thrown away", "abc9"), session(1, "a Xeon", "abc3")].map(|row| format!("{row}\n"));
    std::fs::write(seed(3).join(kerple_run::SESSIONS_FILE), rows.concat()).unwrap();
    for number in [1, 2] {
        let path = seed(number).join(kerple_run::PLAN_FILE);
        let mut plan: Value = kerple_run::read_json(&path).unwrap();
        plan["commit"] = json!(format!("abc{number}"));
        write_json(&path, &plan).unwrap();
    }
    let results = report(&root).unwrap().results;
    assert_eq!(results.groups.len(), 1);
    let page = read(&root, "report.md");
    assert!(page.contains("- programs: abc1 (1 runs); abc2 (1 runs); abc3 (1 runs); not recorded (3 runs)"), "{page}");
    assert!(page.contains("- trained on: a Xeon, 2 threads, avx2, cpu, f32 (1 runs); not recorded (5 runs)"), "{page}");
    assert!(!page.contains("- machine:") && !page.contains("thrown away"), "{page}");
}

#[test]
fn the_terminal_table_lines_up() {
    let root = complete();
    let text = table_text(&report(&root).unwrap().results);
    let expected = "\
segments, test split, trained at 64
  perplexity            64             128
  kerple_log  22.00 ± 2.00*   20.00 ± 2.00*
  sinusoidal  22.00 ± 2.00*  30000 ± 10000†
  bits per byte             64             128
  kerple_log     1.114 ± 0.033*  1.079 ± 0.036*
  sinusoidal     1.114 ± 0.033*  3.704 ± 0.126

* lowest at the length
† kerple_log is significantly better (paired t-test, p < 0.05)
";
    assert_eq!(text, expected);
}
