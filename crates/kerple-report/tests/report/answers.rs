//! Runs of a task: right answers instead of perplexities.

use std::path::Path;

use kerple_report::{ReportOptions, find_runs, table_text, write};
use kerple_run::{ANSWERS, EvaluationRow, Journal, ScoredText, ShortcutScore, TaskScore, read_rows};
use serde_json::json;

/// A run folder with the accuracies of some lengths.
fn run(root: &Path, encoding: &str, seed: u64, accuracies: &[(u64, f64)], depths: Option<&[f64]>) {
    let folder = root.join(format!("{encoding}-{seed}"));
    std::fs::create_dir_all(&folder).unwrap();
    let plan = json!({
        "label": encoding, "seed": seed, "train_len": 40, "steps": 9, "hash": format!("{encoding}{seed}"),
        "encoding": {"kind": encoding}, "data": {"task": "passkey"},
    });
    std::fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    let mut text = String::new();
    for &(length, accuracy) in accuracies {
        let row = EvaluationRow {
            label: encoding.to_owned(),
            seed,
            train_len: 40,
            eval_len: length,
            protocol: ANSWERS.to_owned(),
            window: None,
            rope_scaling: None,
            documents: kerple_run::DocumentMask::Joined,
            split: "test".to_owned(),
            step: 9,
            text: ScoredText {
                checksum: "ab".to_owned(),
                segment_len: length,
                n_segments: 64,
                seed,
                within: Default::default(),
            },
            n_windows: 64,
            tokens: 320,
            bytes: None,
            nll: 1.0,
            perplexity: 1f64.exp(),
            bits_per_byte: None,
            rolling: None,
            seconds: 0.5,
            nll_by_position: None,
            nll_by_own_context: None,
            nll_by_segment: None,
            key_tokens: None,
            provenance: None,
            task: Some(TaskScore {
                whole: None,
                name: "passkey".to_owned(),
                accuracy,
                chance: 0.1,
                by_depth: depths.map(<[f64]>::to_vec),
                shortcut: Some(ShortcutScore { rule: "the first value".into(), score: 0.25 }),
            }),
        };
        text += &(serde_json::to_string(&row).unwrap() + "\n");
    }
    std::fs::write(folder.join("evaluation.jsonl"), text).unwrap();
}

fn all(root: &Path) {
    run(root, "alibi", 1, &[(20, 1.0), (40, 0.9), (80, 0.8), (160, 0.6)], Some(&[0.5, f64::NAN]));
    run(root, "alibi", 2, &[(20, 1.0), (40, 0.7), (80, 0.4), (160, 0.2)], Some(&[0.1, 0.9]));
    run(root, "rotary", 1, &[(20, 1.0), (40, 1.0), (80, 0.3), (160, 0.1)], None);
}

#[test]
fn accuracies_meet_by_length_with_their_means() {
    let root = tempfile::tempdir().unwrap();
    all(root.path());
    let summary =
        write(&find_runs(&[root.path()]).unwrap(), &root.path().join("report"), &ReportOptions::default()).unwrap();
    let results = summary.results;
    assert!(results.tables.is_empty() && results.answers.len() == 1, "{results:?}");
    let table = &results.answers[0];
    assert_eq!((table.task.as_str(), table.examples, table.lengths()), ("passkey", 64, vec![20, 40, 80, 160]));
    let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
    let alibi = table.means.iter().find(|mean| mean.encoding == "alibi").unwrap();
    assert!(alibi.n == 2 && close(alibi.within.unwrap(), 0.9), "{alibi:?}");
    // (0.8 + 0.6) / 2 and (0.4 + 0.2) / 2
    assert!(close(alibi.beyond.unwrap(), 0.5) && close(alibi.beyond_max.unwrap(), 0.7), "{alibi:?}");
    assert!(close(alibi.beyond_deviation.unwrap(), 0.08f64.sqrt()), "{alibi:?}");
    let at = |name: &str, length: u64| table.score((name, None), length).unwrap();
    assert!(close(at("alibi", 80).accuracy, 0.6) && at("alibi", 80).best && !at("rotary", 80).best);
    assert!(at("alibi", 20).best && at("rotary", 20).best, "all that are equally high are marked");
    assert!(at("rotary", 40).best && close(at("alibi", 40).accuracy_max, 0.9));
    let depths = table.depths.iter().find(|depths| depths.eval_len == 160).unwrap();
    assert!(close(depths.accuracy[0], 0.3) && close(depths.accuracy[1], 0.9), "{depths:?}");

    let page = std::fs::read_to_string(&summary.index).unwrap();
    for part in ["Right answers", "passkey: beyond the training length of 40, alibi", "guessing", "place of the key"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("id=\"results\""), "there is no text");
    let markdown = std::fs::read_to_string(root.path().join("report/report.md")).unwrap();
    assert!(markdown.contains("## Right answers") && !markdown.contains("## Results"), "{markdown}");
    let csv = std::fs::read_to_string(root.path().join("report/tables/answers.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 8, "{csv}");
    assert!(
        markdown.contains("rule: the first value") && !markdown.contains("As RULER reports"),
        "one task is no suite"
    );
    assert_eq!(table.shortcut.as_ref().unwrap().scores, [20, 40, 80, 160].map(|length| (length, 0.25)));
    for figure in ["answers-0", "answers-0-reach", "answers-0-depth"] {
        assert!(root.path().join(format!("report/figures/{figure}.svg")).exists(), "{figure}");
    }
    let text = table_text(&results);
    assert!(text.contains("beyond 40") && text.contains("50.00") && !text.contains("nothing evaluated"), "{text}");
}

/// Of two tasks, which the same runs answer here: reaches side by side, and the table of RULER, computed by hand.
#[test]
fn several_tasks_have_tables_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    all(root.path());
    for run in ["alibi-1", "alibi-2", "rotary-1"] {
        let file = root.path().join(run).join("evaluation.jsonl");
        for mut row in read_rows::<EvaluationRow>(&file).unwrap().rows {
            let task = row.task.as_mut().unwrap();
            (task.name, task.accuracy) = ("recall".to_owned(), 1.0);
            row.text.checksum = "cd".to_owned();
            Journal::open(&file).unwrap().push(&row).unwrap();
        }
    }
    let runs = find_runs(&[root.path()]).unwrap();
    write(&runs, &root.path().join("report"), &ReportOptions::default()).unwrap();
    let markdown = std::fs::read_to_string(root.path().join("report/report.md")).unwrap();
    // means of both tasks: 100, 90, 80 and 70 of alibi, 100, 100, 65 and 55 of rotary
    for row in [
        "| encoding | passkey | recall |",
        "| encoding | effective length | 20 | 40 | 80 | 160 | mean, long count more | mean, short count more |",
        "| alibi | 40 | 100.0 | 90.0 | 80.0 | 70.0 | 80.0 | 90.0 |",
        "| rotary | 40 | 100.0 | 100.0 | 65.0 | 55.0 | 71.5 | 88.5 |",
    ] {
        assert!(markdown.contains(row), "no `{row}` in:\n{markdown}");
    }
    // one figure has both tasks, with a rule that skips each, and the median of what all have learned: of two alibis one has not
    let figure = std::fs::read_to_string(root.path().join("report/figures/reach.svg")).unwrap();
    for part in [
        ">Passkey<",
        ">Associative recall<",
        ">Median of 1 tasks",
        "trained at 40",
        "class=\"dot f",
        "class=\"hollow s",
    ] {
        assert!(figure.contains(part), "{part}: {figure}");
    }
    assert!(markdown.contains("figures/reach.svg") && markdown.contains("A hollow mark is not learned"), "{markdown}");
}

#[test]
fn accuracies_on_other_sequences_never_meet() {
    type Change = fn(&mut ScoredText);
    let others: [(&str, Change); 3] = [
        ("passkey, text decaf", |text| text.checksum = "decaf".to_owned()),
        ("passkey, 99 sequences", |text| text.n_segments = 99),
        ("passkey, text seed 77", |text| text.seed = 77),
    ];
    for (title, change) in others {
        let root = tempfile::tempdir().unwrap();
        all(root.path());
        let file = root.path().join("alibi-1/evaluation.jsonl");
        let known = read_rows::<EvaluationRow>(&file).unwrap().rows;
        let mut row = known.into_iter().find(|row| row.eval_len == 80).unwrap();
        change(&mut row.text);
        row.task.as_mut().unwrap().accuracy = 0.05;
        Journal::open(&file).unwrap().push(&row).unwrap();
        let runs = find_runs(&[root.path()]).unwrap();
        let tables = write(&runs, &root.path().join("report"), &ReportOptions::default()).unwrap().results.answers;
        let at = |other: bool| {
            let table = tables.iter().find(|table| (table.title == title) == other).unwrap();
            table.score(("alibi", None), 80).unwrap().accuracy
        };
        assert_eq!((tables.len(), at(true)), (2, 0.05), "{title}");
        assert!((at(false) - 0.6).abs() < 1e-12, "{title}");
    }
}

#[test]
fn means_over_other_lengths_are_not_shown() {
    let root = tempfile::tempdir().unwrap();
    all(root.path());
    run(root.path(), "learned", 1, &[(20, 0.5), (40, 0.7), (80, 0.9)], None);
    let summary =
        write(&find_runs(&[root.path()]).unwrap(), &root.path().join("report"), &ReportOptions::default()).unwrap();
    let table = &summary.results.answers[0];
    let learned = table.means.iter().find(|mean| mean.encoding == "learned").unwrap();
    assert!((learned.within.unwrap() - 0.6).abs() < 1e-12 && learned.beyond.is_none(), "{learned:?}");
}

#[test]
fn texts_and_tasks_have_tables_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    all(root.path());
    crate::made_up::run(root.path(), "t5", 9, &[(64, 2.0)]);
    let summary =
        write(&find_runs(&[root.path()]).unwrap(), &root.path().join("report"), &ReportOptions::default()).unwrap();
    assert_eq!((summary.results.tables.len(), summary.results.answers.len()), (1, 1));
    let rows = &summary.results.tables[0].evaluations;
    assert!(rows.iter().all(|row| !row.run.to_string_lossy().contains("rotary-1")), "{rows:?}");
}

#[test]
fn accuracies_beyond_the_training_length_are_tested_in_pairs() {
    let root = tempfile::tempdir().unwrap();
    for (seed, own, reference) in [(1, 0.50, 0.90), (2, 0.45, 0.80), (3, 0.50, 0.85)] {
        run(root.path(), "alibi", seed, &[(40, 1.0), (80, own), (160, own)], None);
        run(root.path(), "kerple_log", seed, &[(40, 1.0), (80, reference), (160, reference)], None);
        // as good on the whole
        run(
            root.path(),
            "rotary",
            seed,
            &[(40, 1.0), (80, reference), (160, reference + 0.02 * (seed as f64 - 2.0))],
            None,
        );
    }
    // a seed of its own is no pair
    run(root.path(), "alibi", 9, &[(40, 1.0), (80, 0.0), (160, 0.0)], None);
    let summary =
        write(&find_runs(&[root.path()]).unwrap(), &root.path().join("report"), &ReportOptions::default()).unwrap();
    let means = &summary.results.answers[0].means;
    let test = |name: &str| means.iter().find(|mean| mean.encoding == name).unwrap().test.clone();
    assert_eq!(test("kerple_log"), None);
    let alibi = test("alibi").unwrap();
    assert_eq!((alibi.reference.as_str(), alibi.n, alibi.dagger), ("kerple_log", 3, true));
    // -0.40, -0.35, -0.35
    assert!((alibi.difference + 1.1 / 3.0).abs() < 1e-12 && alibi.p < 0.01, "{alibi:?}");
    assert_eq!(alibi.p_holm, 2.0 * alibi.p, "two tests stand in the table");
    assert!(alibi.difference_low < alibi.difference && alibi.difference_high < 0.0);
    let rotary = test("rotary").unwrap();
    assert!(!rotary.dagger && rotary.p > 0.9, "{rotary:?}");
    let page = std::fs::read_to_string(&summary.index).unwrap();
    for part in ["kerple_log has significantly more right answers", "<sup>†</sup>", "n = 4; −36.67 ["] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn reaches_have_intervals_and_all_pairs_are_tested_together() {
    let root = tempfile::tempdir().unwrap();
    let lengths = [20, 40, 80, 160, 320];
    let curve = |accuracies: [f64; 5]| lengths.into_iter().zip(accuracies).collect::<Vec<_>>();
    for (seed, more) in [(1, 0.0), (2, 0.01), (3, 0.03), (4, 0.02)] {
        run(root.path(), "alibi", seed, &curve([1.0, 1.0, 0.95, 0.9, 0.3 + more]), None);
        run(root.path(), "rotary", seed, &curve([1.0, 0.95, 0.5 + 2.0 * more, 0.1, 0.1 - more]), None);
        run(root.path(), "none", seed, &curve([1.0, 0.3, 0.1, 0.1 + more, 0.1]), None);
    }
    let summary =
        write(&find_runs(&[root.path()]).unwrap(), &root.path().join("report"), &ReportOptions::default()).unwrap();
    let table = &summary.results.answers[0];
    let reach = |name: &str| table.reaches.iter().find(|reach| reach.encoding == name).unwrap();
    // chance is 0.1, so that 0.8704 count as reached: between 160 and 320 tokens of 0.9 and about 0.3
    let alibi = reach("alibi");
    assert_eq!((alibi.n, alibi.learned), (4, 4), "{alibi:?}");
    let expected = 160.0 * ((0.9 - 0.8704) / 0.6f64).exp2();
    assert!((alibi.seeds[0].tokens - expected).abs() < 1e-9 && alibi.seeds[0].cell == [160.0, 320.0], "{alibi:?}");
    let (low, high) = (alibi.tokens_low.unwrap(), alibi.tokens_high.unwrap());
    assert!(low < alibi.tokens.unwrap() && alibi.tokens.unwrap() < high, "{alibi:?}");
    let none = reach("none");
    assert_eq!((none.learned, none.tokens_low), (0, None), "{none:?}");
    let octaves = [0.2f64, 0.0, 0.0, 0.0].map(|right| right / 0.9);
    assert!((none.seeds[0].beyond - octaves[0] / 2.0 / 3.0).abs() < 1e-12, "{none:?}");

    // ranks by the mean, each told apart from the others; the bootstrap of the means is a number for programs
    let of = |name: &str| (reach(name).rank, reach(name).letters.as_str());
    assert_eq!([of("alibi"), of("rotary"), of("none")], [(1, "a"), (2, "b"), (3, "c")]);
    let means = alibi.mean_curve.unwrap();
    assert!(means.tokens_low < means.tokens && means.tokens < means.tokens_high, "{means:?}");
    let json = std::fs::read_to_string(root.path().join("report/report.json")).unwrap();
    assert!(json.contains("\"mean_curve\"") && json.contains("\"letters\": \"b\""), "{json}");

    assert_eq!(table.pairs.len(), 3);
    for pair in &table.pairs {
        assert!(pair.n == 4 && pair.p_holm >= pair.p && pair.is_significant(), "{pair:?}");
        // alibi reaches further than rotary with each of four seeds; the other has not learned the task
        let has_none = pair.rows.iter().any(|row| table.reaches[*row].encoding == "none");
        assert_eq!(pair.signs_p, (!has_none).then_some(0.125), "{pair:?}");
    }
    let markdown = std::fs::read_to_string(root.path().join("report/report.md")).unwrap();
    for part in [
        "Reach: up to which length 87.04 % are right",
        "4 of 4",
        "not learned",
        "3 of 3 differences are significant",
        "3 differences of pairs were tested on this page, over 4 seeds: 3 have p < 0.05 uncorrected, and 3 after Holm's \
             correction for the whole page.",
    ] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    assert!(std::fs::read_to_string(&summary.index).unwrap().contains("beyond 160"));
    assert!(table_text(&summary.results).contains("reaches"));
}

#[test]
fn means_over_fewer_seeds_or_lengths_say_so() {
    let root = tempfile::tempdir().unwrap();
    for seed in [1, 2, 3, 4] {
        run(root.path(), "kerple_log", seed, &[(40, 1.0), (80, 0.75), (160, 0.5)], None);
        let all = [(40, 1.0), (80, 1.0), (160, 0.25)];
        run(root.path(), "alibi", seed, if seed > 2 { &all[..2] } else { &all }, None);
        run(root.path(), "rotary", seed, &[(40, 1.0), (80, 0.0)], None);
    }
    let summary =
        write(&find_runs(&[root.path()]).unwrap(), &root.path().join("report"), &ReportOptions::default()).unwrap();
    let mean = |name: &str| summary.results.answers[0].means.iter().find(|mean| mean.encoding == name).unwrap();
    assert_eq!((mean("alibi").n, mean("alibi").n_beyond, mean("alibi").beyond), (4, 2, Some(0.625)));
    assert_eq!((mean("rotary").n_beyond, mean("rotary").beyond), (0, None));
    let markdown = std::fs::read_to_string(root.path().join("report/report.md")).unwrap();
    for part in [
        "62.50 ± 0.00 (n = 2 of 4; not tested: 2 common seeds",
        "25.00 ± 0.00 (n = 2) |",
        "- Not evaluated (passkey): rotary at 160.",
        "- Fewer seeds than others, so the means cover different sequences (passkey): alibi at 160.",
    ] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
}

#[test]
fn unfinished_checkpoints_and_tasks_of_several_settings_are_noted() {
    let root = tempfile::tempdir().unwrap();
    all(root.path());
    for name in ["alibi-1", "alibi-2", "rotary-1"] {
        let file = root.path().join(name).join("evaluation.jsonl");
        let rows = read_rows::<EvaluationRow>(&file).unwrap().rows;
        for mut row in rows {
            // another task, and the first one on other sequences
            let mut other = row.clone();
            other.task.as_mut().unwrap().name = "recall".to_owned();
            other.text.checksum = "cd".to_owned();
            row.text.n_segments = 32;
            let mut journal = Journal::open(&file).unwrap();
            [other, row].iter().for_each(|row| journal.push(row).unwrap());
        }
    }
    let plan = root.path().join("alibi-1/plan.json");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&plan, text.replace(r#""steps":9"#, r#""steps":10"#)).unwrap();
    let notes = |root: &Path| {
        let summary = write(&find_runs(&[root]).unwrap(), &root.join("report"), &ReportOptions::default()).unwrap();
        summary.results.notes.join("\n")
    };
    let found = notes(root.path());
    assert!(found.contains("Checkpoints of unfinished training (passkey"), "{found}");
    std::fs::write(&plan, text).unwrap();
    let found = notes(root.path());
    let expected =
        "Tables over all tasks are left out, because some tasks have tables of several settings: passkey has 2 tables.";
    assert!(found.contains(expected) && !found.contains("unfinished"), "{found}");
}

#[test]
fn a_share_that_is_no_number_never_leads() {
    let root = tempfile::tempdir().unwrap();
    for seed in [1, 2, 3] {
        run(root.path(), "alibi", seed, &[(40, 1.0), (80, if seed == 2 { f64::NAN } else { 1.0 })], None);
        run(root.path(), "rotary", seed, &[(40, 1.0), (80, 0.5)], None);
        run(root.path(), "none", seed, &[(40, 1.0), (80, 0.25)], None);
    }
    let summary =
        write(&find_runs(&[root.path()]).unwrap(), &root.path().join("report"), &ReportOptions::default()).unwrap();
    let page = std::fs::read_to_string(&summary.index).unwrap();
    assert!(page.contains("rotary has the most right answers of 2 encodings: 50.00 %"), "{page}");
}
