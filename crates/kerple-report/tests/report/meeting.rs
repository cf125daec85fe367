//! What may meet in one mean, table and test, and what never does.

use kerple_report::table_text;
use kerple_run::{
    DocumentMask, EvaluationRow, Journal, KeyEvaluator, KeyTokens, OwnContextLoss, Provenance, ScoredText, SegmentKeys,
    write_json,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::made_up::{complete, evaluation, read, report, run, run_of, text};

#[test]
fn other_settings_make_other_tables_and_the_latest_checkpoint_counts() {
    let root = complete();
    let file = root.path().join("runs/kerple_log #1").join(kerple_run::EVALUATION_FILE);
    let mut rows = Journal::open(&file).unwrap();
    let row = |length, perplexity| evaluation("kerple_log", 1, length, perplexity);
    rows.push(&EvaluationRow { step: 50, ..row(64, 90.0) }).unwrap();
    rows.push(&EvaluationRow { step: 50, ..row(256, 19.0) }).unwrap();
    rows.push(&EvaluationRow { protocol: "last:16".into(), ..row(64, 40.0) }).unwrap();
    let summary = report(&root).unwrap();
    let found: Vec<_> = summary.results.tables.iter().map(|table| table.setting.title.clone()).collect();
    assert_eq!(found, ["segments", "last:16"].map(|protocol| format!("{protocol}, test split, trained at 64")));
    let table = &summary.results.tables[0];
    assert_eq!(table.score(("kerple_log", None), 64).unwrap().perplexity, 22.0);
    assert_eq!(table.score(("kerple_log", None), 256).unwrap().n_unfinished, 1);
    assert!(read(&root, "index.html").contains("The last 16 tokens of every segment"));
}

#[test]
fn rows_over_other_text_never_meet() {
    type Change = fn(&mut ScoredText);
    let other_texts: [(&str, Change); 4] = [
        ("text decaf", |text| text.checksum = "decaf".into()),
        ("segments of 512 tokens", |text| text.segment_len = 512),
        ("99 segments", |text| text.n_segments = 99),
        ("text seed 77", |text| text.seed = 77),
    ];
    for (words, change) in other_texts {
        let root = complete();
        // The same split, protocol and length for every seed of one encoding, over other text.
        for seed in [1, 2, 3] {
            let file = root.path().join(format!("runs/kerple_log #{seed}")).join(kerple_run::EVALUATION_FILE);
            let mut other = text(seed);
            change(&mut other);
            let row = EvaluationRow { text: other, ..evaluation("kerple_log", seed, 128, 5.0) };
            Journal::open(&file).unwrap().push(&row).unwrap();
        }
        let tables = report(&root).unwrap().results.tables;
        assert_eq!(tables.len(), 2, "{words}");
        let of = |title: bool| tables.iter().find(|table| table.setting.title.contains(words) == title).unwrap();
        assert_eq!(of(false).score(("kerple_log", None), 128).unwrap().perplexity, 20.0, "{words}");
        assert_eq!(of(true).score(("kerple_log", None), 128).unwrap().perplexity, 5.0, "{words}");
        assert_eq!((of(true).tests.len(), of(false).tests.len()), (0, 2), "{words}");
    }
}

/// What computed a row.
fn provenance(precision: &str, device: &str, simd: &str) -> Provenance {
    let [precision, device, simd] = [precision, device, simd].map(str::to_owned);
    Provenance { commit: None, cpu: "m".into(), simd, threads: 1, device, precision }
}

/// Appends a row of every seed of one encoding at 128 that differs in nothing but what computed it.
fn evaluated_again(root: &TempDir, perplexity: f64, provenance: impl Fn(u64) -> Provenance) {
    for seed in [1, 2, 3] {
        let file = root.path().join(format!("runs/kerple_log #{seed}")).join(kerple_run::EVALUATION_FILE);
        let row =
            EvaluationRow { provenance: Some(provenance(seed)), ..evaluation("kerple_log", seed, 128, perplexity) };
        Journal::open(&file).unwrap().push(&row).unwrap();
    }
}

#[test]
fn rows_of_another_precision_or_device_are_other_rows() {
    for (words, provenance) in [
        (", bf16", provenance("bf16", "cpu", "avx2")),
        (", on cuda", provenance("f32", "cuda:0 (H100)", "avx2")),
        (", bf16, on cuda", provenance("bf16", "cuda:1 (H100)", "avx512")),
    ] {
        let root = complete();
        evaluated_again(&root, 5.0, |_| provenance.clone());
        let tables = report(&root).unwrap().results.tables;
        let of = |other: bool| tables.iter().find(|table| table.setting.title.ends_with(words) == other).unwrap();
        assert_eq!(tables.len(), 2, "{words}");
        assert_eq!(of(false).score(("kerple_log", None), 128).unwrap().perplexity, 20.0, "{words}");
        assert_eq!(of(true).score(("kerple_log", None), 128).unwrap().perplexity, 5.0, "{words}");
        assert!(read(&root, "report.md").contains("- evaluated with: "), "{words}");
    }
}

#[test]
fn instruction_sets_part_rows_of_one_run_and_are_named_between_runs() {
    let root = complete();
    evaluated_again(&root, 5.0, |_| provenance("f32", "cpu", "avx512"));
    let tables = report(&root).unwrap().results.tables;
    let titles: Vec<&str> = tables.iter().map(|table| table.setting.title.as_str()).collect();
    let title = |set: &str| format!("segments, test split, trained at 64, simd {set}");
    assert_eq!(titles, [title("avx512"), title("not recorded")]);
    let at = |table: usize| tables[table].score(("kerple_log", None), 128).unwrap().perplexity;
    assert_eq!([at(0), at(1)], [5.0, 20.0]);
    // every run once, each evaluated by another machine: one table, and what is in it is said
    let root = complete();
    for (seed, simd) in [(1, "avx2"), (2, "avx512"), (3, "avx2")] {
        let row = |length| EvaluationRow {
            provenance: Some(provenance("f32", "cpu", simd)),
            ..evaluation("kerple_log", seed, length, 20.0 + seed as f64)
        };
        let file = root.path().join(format!("runs/kerple_log #{seed}")).join(kerple_run::EVALUATION_FILE);
        std::fs::remove_file(&file).unwrap();
        let mut rows = Journal::open(&file).unwrap();
        [64, 128].map(row).iter().for_each(|row| rows.push(row).unwrap());
    }
    let results = report(&root).unwrap().results;
    assert_eq!((results.tables.len(), results.tables[0].score(("kerple_log", None), 128).unwrap().n), (1, 3));
    let note = results.notes.iter().find(|note| note.starts_with("Rows of one table")).unwrap();
    assert!(note.contains("f32 on cpu, avx2 (4 rows) and f32 on cpu, avx512 (2 rows) and what is not"), "{note}");
}

#[test]
fn runs_of_another_precision_are_other_runs() {
    let root = complete();
    for seed in [1, 2, 3] {
        let folder = root.path().join(format!("runs/kerple_log #{seed}"));
        let session = |first_step: u64, precision: &str, simd: &str| {
            let provenance = json!({"cpu": "m", "simd": simd, "threads": 1, "device": "cpu"});
            let mut row =
                json!({"first_step": first_step, "precision": precision, "micro_batch_size": 8, "started_at": 1});
            row.as_object_mut().unwrap().extend(provenance.as_object().unwrap().clone());
            format!("{row}\n")
        };
        let rows = match seed {
            1 => session(1, "bf16", "avx2"),
            2 => session(1, "f32", "avx2") + &session(60, "f32", "avx512"),
            _ => session(1, "f32", "avx2"),
        };
        std::fs::write(folder.join(kerple_run::SESSIONS_FILE), rows).unwrap();
    }
    let results = report(&root).unwrap().results;
    let titles: Vec<&str> = results.groups.iter().map(|group| group.title.as_str()).collect();
    assert_eq!(titles, ["precision f32", "precision bf16"]);
    let of_log = |table: usize| results.tables[table].score(("kerple_log", None), 64).unwrap().n;
    assert_eq!([of_log(0), of_log(1)], [2, 1]);
    let partly = "was trained partly in f32 on cpu, avx2, partly in f32 on cpu, avx512";
    assert_eq!(results.notes.iter().filter(|note| note.contains(partly)).count(), 1, "{:?}", results.notes);
}

#[test]
fn a_run_that_went_on_otherwise_is_no_copy() {
    let root = complete();
    let [whole, other] = ["runs/kerple_log #1", "runs/other"].map(|name| root.path().join(name));
    std::fs::create_dir_all(&other).unwrap();
    for file in std::fs::read_dir(&whole).unwrap().map(|file| file.unwrap().path()).filter(|file| file.is_file()) {
        std::fs::copy(&file, other.join(file.file_name().unwrap())).unwrap();
    }
    let sessions = |folder: &std::path::Path, rows: &[(u64, &str)]| {
        let row = |(first_step, precision): &(u64, &str)| {
            json!({"first_step": first_step, "precision": precision, "micro_batch_size": 8, "started_at": 1,
                   "cpu": "m", "simd": "avx2", "threads": 1, "device": "cpu"})
        };
        let rows: String = rows.iter().map(|of| format!("{}\n", row(of))).collect();
        std::fs::write(folder.join(kerple_run::SESSIONS_FILE), rows).unwrap();
    };
    let copies = || {
        let notes = report(&root).unwrap().results.notes;
        notes.iter().filter(|note| note.contains("is not counted")).count()
    };
    sessions(&whole, &[(1, "f32")]);
    for (of_other, expected) in [
        (&[(1, "f32")][..], 1),
        // resumed, by the same program in the same numbers
        (&[(1, "f32"), (2, "f32")], 1),
        (&[(1, "f32"), (2, "bf16")], 0),
        (&[(1, "bf16")], 0),
    ] {
        sessions(&other, of_other);
        assert_eq!(copies(), expected, "{of_other:?}");
    }
}

#[test]
fn no_seed_stands_alone_by_its_number() {
    // documents in their order: no seed draws them, whatever the row says
    for seeds in [[0, 1, 2], [5, 0, 7]] {
        let root = tempfile::tempdir().unwrap();
        for seed in seeds {
            run(root.path(), "alibi", seed, &[]);
            let file = root.path().join(format!("runs/alibi #{seed}")).join(kerple_run::EVALUATION_FILE);
            let row = evaluation("alibi", seed, 64, 20.0 + seed as f64);
            let row = EvaluationRow { protocol: "rolling:64".into(), text: text(0), ..row };
            Journal::open(&file).unwrap().push(&row).unwrap();
        }
        let tables = report(&root).unwrap().results.tables;
        assert_eq!(tables.len(), 1, "{seeds:?}");
        assert_eq!((tables[0].scores[0].n, tables[0].setting.text_seed), (3, None));
        assert!(tables[0].setting.meaning().ends_with("The text is 2 documents, the same for every seed."));
    }
    // one text for all runs, drawn with the seed of one of them
    let root = tempfile::tempdir().unwrap();
    for seed in [1, 2, 3] {
        run(root.path(), "alibi", seed, &[]);
        let file = root.path().join(format!("runs/alibi #{seed}")).join(kerple_run::EVALUATION_FILE);
        let row = EvaluationRow { text: text(2), ..evaluation("alibi", seed, 64, 20.0 + seed as f64) };
        Journal::open(&file).unwrap().push(&row).unwrap();
    }
    let found = |root: &TempDir| {
        let tables = report(root).unwrap().results.tables;
        let shown = tables.iter().map(|table| (table.setting.text_seed, table.scores[0].n));
        shown.collect::<Vec<(Option<u64>, usize)>>()
    };
    assert_eq!(found(&root), [(Some(2), 3)]);
    // and their own texts too: the run of that seed is among both
    for seed in [1, 3] {
        let file = root.path().join(format!("runs/alibi #{seed}")).join(kerple_run::EVALUATION_FILE);
        Journal::open(&file).unwrap().push(&evaluation("alibi", seed, 64, 20.0)).unwrap();
    }
    assert_eq!(found(&root), [(None, 3), (Some(2), 3)]);
}

/// A small and a large model, two encodings with two seeds each.
fn two_models() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for seed in [1, 2] {
        for (layers, perplexity) in [(2, 20.0), (12, 10.0)] {
            for label in ["kerple_log", "alibi"] {
                let model = json!({"n_layers": layers, "n_heads": layers});
                let perplexity = perplexity + seed as f64 + label.len() as f64;
                run_of(root.path(), &format!("runs/{layers}"), label, seed, model, &[(64, perplexity)]);
            }
        }
    }
    root
}

#[test]
fn runs_of_other_plans_never_meet() {
    let root = two_models();
    let results = report(&root).unwrap().results;
    let titles: Vec<_> = results.tables.iter().map(|table| table.setting.title.as_str()).collect();
    let title = |layers: u64| format!("segments, test split, trained at 64, n_layers {layers}, n_heads {layers}");
    assert!(titles.len() == 2 && [2, 12].iter().all(|&layers| titles.contains(&title(layers).as_str())), "{titles:?}");
    for table in &results.tables {
        let small = table.setting.title == title(2);
        let log = table.score(("kerple_log", None), 64).unwrap();
        assert_eq!((log.n, log.n_expected, log.perplexity), (2, 2, if small { 31.5 } else { 21.5 }));
        assert_eq!(table.tests.iter().map(|test| test.n).collect::<Vec<_>>(), [2]);
    }
    assert!(results.notes.iter().any(|note| note.ends_with("n_layers 2 | 12, n_heads 2 | 12.")), "{:?}", results.notes);
    // No figure and no time of a step is of both.
    assert_eq!(results.speeds.iter().map(|speed| speed.n).collect::<Vec<_>>(), [2; 4]);
    for figure in ["training-loss", "training-loss-2", "kernels", "kernels-2", "parameters-2", "effective-lengths-2"] {
        assert!(root.path().join(format!("report/figures/{figure}.svg")).exists(), "{figure}");
    }
    assert!(read(&root, "index.html").contains("Training loss: n_layers 12, n_heads 12"));
}

#[test]
fn other_training_lengths_are_said_once() {
    let root = tempfile::tempdir().unwrap();
    for (label, train_len) in [("alibi", 64), ("t5", 32)] {
        run(root.path(), label, 1, &[]);
        let folder = root.path().join(format!("runs/{label} #1"));
        let mut plan: Value = kerple_run::read_json(&folder.join(kerple_run::PLAN_FILE)).unwrap();
        plan["train_len"] = json!(train_len);
        write_json(&folder.join(kerple_run::PLAN_FILE), &plan).unwrap();
        let row = EvaluationRow { train_len, ..evaluation(label, 1, 64, 20.0) };
        Journal::open(&folder.join(kerple_run::EVALUATION_FILE)).unwrap().push(&row).unwrap();
    }
    let results = report(&root).unwrap().results;
    let titles: Vec<_> = results.tables.iter().map(|table| table.setting.title.as_str()).collect();
    assert_eq!(titles, ["segments, test split, trained at 32", "segments, test split, trained at 64"]);
    assert_eq!(
        results.groups.iter().map(|group| group.title.as_str()).collect::<Vec<_>>(),
        ["train_len 32", "train_len 64"]
    );
}

#[test]
fn another_place_of_the_data_and_other_logging_are_the_same_setting() {
    let root = tempfile::tempdir().unwrap();
    for seed in [1, 2] {
        run(root.path(), "kerple_log", seed, &[(64, 20.0 + seed as f64)]);
        let path = root.path().join(format!("runs/kerple_log #{seed}")).join(kerple_run::PLAN_FILE);
        let mut plan: Value = kerple_run::read_json(&path).unwrap();
        plan["data"] = json!({"path": format!("place {seed}"), "sampling": "random"});
        plan["train"] = json!({"batch_size": 8, "log_every": seed, "keep_last_n": seed});
        write_json(&path, &plan).unwrap();
    }
    let results = report(&root).unwrap().results;
    assert_eq!((results.groups.len(), results.tables[0].scores[0].n), (1, 2));
}

#[test]
fn a_window_in_evaluation_is_tested_against_the_reference() {
    let root = complete();
    for seed in [1, 2, 3] {
        let file = root.path().join(format!("runs/kerple_log #{seed}")).join(kerple_run::EVALUATION_FILE);
        let row =
            evaluation("kerple_log-window32", seed, 128, 18.0 + 2.0 * (seed - 1) as f64 + 1.0 + 0.01 * seed as f64);
        Journal::open(&file).unwrap().push(&EvaluationRow { window: Some(32), ..row }).unwrap();
    }
    let results = report(&root).unwrap().results;
    let [table] = &results.tables[..] else { panic!("the same text, one table") };
    let windowed = table.score(("kerple_log", Some(32)), 128).unwrap();
    assert!(windowed.n == 3 && windowed.dagger && !windowed.best);
    assert_eq!(table.score(("kerple_log", None), 128).unwrap().n, 3);
    let test = table.tests.iter().find(|test| test.window == Some(32)).unwrap();
    assert_eq!((test.encoding.as_str(), test.reference.as_str(), test.n), ("kerple_log", "kerple_log", 3));
    // Three differences, each rounded once or twice.
    assert!((test.difference.unwrap() - 1.02).abs() < 1e-12);
    let html = read(&root, "index.html");
    assert!(html.contains("At 128 tokens, kerple_log limited to the last 32 keys has a perplexity 1.020 higher"));
    assert!(html.contains("It uses tokens beyond the window"));
    assert!(table_text(&results).contains("kerple_log, window 32"));
}

#[test]
fn a_window_in_training_is_the_encodings_own() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "alibi-window16", 1, &[]);
    let folder = root.path().join("runs/alibi-window16 #1");
    let mut plan: Value = kerple_run::read_json(&folder.join(kerple_run::PLAN_FILE)).unwrap();
    plan["encoding"]["window"] = json!(16);
    write_json(&folder.join(kerple_run::PLAN_FILE), &plan).unwrap();
    let row = EvaluationRow { window: Some(16), ..evaluation("alibi-window16", 1, 64, 20.0) };
    Journal::open(&folder.join(kerple_run::EVALUATION_FILE)).unwrap().push(&row).unwrap();
    let results = report(&root).unwrap().results;
    assert_eq!(results.tables[0].names(), [("alibi-window16", None)]);
}

#[test]
fn last_tokens_make_a_curve_over_all_lengths() {
    let root = complete();
    for (label, seed) in [("kerple_log", 1), ("kerple_log", 2), ("sinusoidal", 1), ("sinusoidal", 2)] {
        let file = root.path().join(format!("runs/{label} #{seed}")).join(kerple_run::EVALUATION_FILE);
        let mut rows = Journal::open(&file).unwrap();
        for length in [32, 128] {
            // Only the last 32 positions are scored, and the others have no loss.
            let losses = (0..length).map(|i| if i + 32 < length { f64::NAN } else { 2.0 }).collect();
            let row = evaluation(label, seed, length, 2f64.exp());
            rows.push(&EvaluationRow { protocol: "last:32".into(), nll_by_position: Some(losses), ..row }).unwrap();
        }
    }
    let results = report(&root).unwrap().results;
    let curves: Vec<_> = results.positions.iter().filter(|curve| curve.setting.protocol == "last:32").collect();
    assert_eq!(curves.len(), 4);
    for curve in &curves {
        assert_eq!((curve.bins[0].first, curve.bins.last().unwrap().last), (curve.eval_len - 31, curve.eval_len));
        assert!(curve.bins.iter().all(|bin| (bin.perplexity.ln() - 2.0).abs() < 1e-12));
    }
    let html = read(&root, "index.html");
    assert!(html.contains("Perplexity by position, 32 to 128 tokens"));
    let figure = html.split("<figure").find(|figure| figure.contains("Perplexity by position, 32 to 128")).unwrap();
    let line = figure.split("class=\"line s0\" d=\"").nth(1).unwrap();
    assert!(line[..line.find('"').unwrap()].matches('L').count() >= 10, "{line}");
}

#[test]
fn rows_with_and_without_document_masks_never_meet() {
    let root = complete();
    for seed in [1, 2, 3] {
        let file = root.path().join(format!("runs/sinusoidal #{seed}")).join(kerple_run::EVALUATION_FILE);
        let row = evaluation("sinusoidal", seed, 64, 15.0 + seed as f64);
        Journal::open(&file).unwrap().push(&EvaluationRow { documents: DocumentMask::Separate, ..row }).unwrap();
    }
    let tables = report(&root).unwrap().results.tables;
    let [joined, separate] = &tables[..] else { panic!("{} tables", tables.len()) };
    assert_eq!((joined.setting.documents, separate.setting.documents), (DocumentMask::Joined, DocumentMask::Separate));
    let perplexity = |table: usize| tables[table].score(("sinusoidal", None), 64).unwrap().perplexity;
    assert_eq!([perplexity(0), perplexity(1)], [22.0, 17.0], "of 20, 22 and 24, and of 16, 17 and 18");
    assert!(separate.tests.iter().all(|test| test.n == 0), "the reference has no such row: {:?}", separate.tests);
    assert!(separate.setting.title.contains("separate documents") && !joined.setting.title.contains("documents"));
    assert!(separate.setting.meaning().contains("first tokens of documents are not scored"));
}

#[test]
fn losses_by_own_context_are_means_over_seeds() {
    let root = complete();
    for (seed, far) in [(1, 2.0f64), (2, 4.0)] {
        let file = root.path().join(format!("runs/kerple_log #{seed}")).join(kerple_run::EVALUATION_FILE);
        let bin = |from, tokens, perplexity: f64| OwnContextLoss { from, tokens, nll: perplexity.ln() };
        let mut bins = vec![bin(0, 3, 100.0), bin(64, 253, far)];
        bins.extend((seed == 2).then(|| bin(1, 0, 7.0)));
        let row = evaluation("kerple_log", seed, 128, 18.0);
        let row = EvaluationRow { protocol: "last:32".into(), nll_by_own_context: Some(bins), ..row };
        Journal::open(&file).unwrap().push(&row).unwrap();
    }
    let results = report(&root).unwrap().results;
    assert!(results.tables[0].own_context.is_empty(), "rows without them have none");
    let found = &results.tables[1].own_context;
    let shown: Vec<_> = found.iter().map(|score| (score.from, score.n, score.tokens)).collect();
    assert_eq!(shown, [(0, 2, 6), (1, 1, 0), (64, 2, 506)]);
    // 1e-12: an exp and a ln
    assert!((found[2].perplexity - 3.0).abs() < 1e-12 && (found[0].perplexity_deviation.unwrap()).abs() < 1e-12);
    let page = read(&root, "report.md");
    assert!(page.contains("Perplexity at 128 tokens, by tokens of the own document before the target"), "{page}");
    assert!(page.contains("64 to 127"), "{page}");
    assert_eq!(read(&root, "tables/own_context.csv").lines().count(), 4);
}

/// Key tokens of one evaluator and of another are other tokens; the interval is that of two segments.
#[test]
fn key_tokens_of_other_evaluators_never_meet() {
    let root = complete();
    let keys = |name: &str, tokens: u64| KeyTokens {
        candidates: 200,
        evaluators: vec![KeyEvaluator {
            plan: name.to_owned(),
            step: 9,
            label: name.to_owned(),
            seed: 4,
            full_nll: 3.5,
            truncated_nll: 3.0,
        }],
        segments: vec![SegmentKeys { tokens, nll: 2.0 }, SegmentKeys { tokens, nll: 3.0 }],
    };
    for (seed, evaluator, tokens) in [(1, "alibi", 60), (2, "alibi", 60), (3, "rotary", 10)] {
        let file = root.path().join(format!("runs/kerple_log #{seed}")).join(kerple_run::EVALUATION_FILE);
        let row = evaluation("kerple_log", seed, 128, f64::exp(2.5));
        let key_tokens = Some(keys(evaluator, tokens));
        let row = EvaluationRow { protocol: "key:2:-4:64:16".into(), tokens: 2 * tokens, key_tokens, ..row };
        assert_eq!(row.contradiction(), None);
        Journal::open(&file).unwrap().push(&row).unwrap();
    }
    let results = report(&root).unwrap().results;
    let tables: Vec<_> = results.tables.iter().filter(|table| table.setting.evaluators.is_some()).collect();
    let n: Vec<usize> = tables.iter().map(|table| table.scores[0].n).collect();
    assert_eq!(n, [2, 1]);
    // means of 2 and 3 by two segments: 2.5 -+ 12.706 * 0.5
    let ends = [tables[0].evaluations[0].perplexity_low, tables[0].evaluations[0].perplexity_high];
    let expected = [-1.0f64, 1.0].map(|sign| (2.5 + sign * 12.706_204_736_2 * 0.5).exp());
    for (found, expected) in ends.into_iter().zip(expected) {
        assert!((found.unwrap() / expected - 1.0).abs() < 1e-9, "{ends:?}");
    }
    assert_eq!(tables[1].evaluations[0].perplexity_low, None, "of 20 key tokens");
    let page = read(&root, "report.md");
    for part in [
        "Evaluators: alibi (seed 4, step 9, plan alibi).",
        "key tokens of rotary (seed 4, step 9, plan rotary)",
        "| kerple_log | 1 | 128 | 120 of 200 | 60.00 | 12.18 |",
        "fewer than 100 tokens",
        "the evaluator alibi, seed 4, does not use far context",
    ] {
        assert!(page.contains(part), "no `{part}` in:\n{page}");
    }
    // settings with and without evaluators share the columns of a table
    assert!(read(&root, "tables/evaluations.csv").contains("alibi (seed 4, step 9, plan alibi)"));
}

#[test]
fn duplicates_count_once() {
    let root = complete();
    let copy = root.path().join("runs/a copy");
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::copy(root.path().join("runs/kerple_log #1").join(kerple_run::PLAN_FILE), copy.join(kerple_run::PLAN_FILE))
        .unwrap();
    let summary = report(&root).unwrap();
    assert_eq!(summary.results.tables[0].score(("kerple_log", None), 64).unwrap().n, 3);
    assert!(read(&root, "report.md").contains("(duplicate of ../runs/kerple_log #1)"));
}
