//! Pages of odd rows: nothing false is said, and nothing is left out without a word.

use kerple_report::table_text;
use kerple_run::{EVALUATION_FILE, EvaluationRow, Journal, OwnContextLoss, Rolled, read_rows, replace_rows};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

use crate::made_up::{complete, evaluation, read, report, run};

fn rows_file(root: &Path, label: &str, seed: u64) -> PathBuf {
    root.join("runs").join(format!("{label} #{seed}")).join(EVALUATION_FILE)
}

fn add(root: &TempDir, label: &str, seed: u64, row: &EvaluationRow) {
    Journal::open(&rows_file(root.path(), label, seed)).unwrap().push(row).unwrap();
}

fn change(root: &TempDir, label: &str, seed: u64, change: impl Fn(&mut EvaluationRow)) {
    let path = rows_file(root.path(), label, seed);
    let mut rows = read_rows::<EvaluationRow>(&path).unwrap().rows;
    rows.iter_mut().for_each(change);
    replace_rows(&path, &rows).unwrap();
}

fn headline(root: &TempDir) -> String {
    report(root).unwrap();
    read(root, "report.md").lines().nth(3).unwrap().to_owned()
}

#[test]
fn the_headline_counts_who_is_compared_at_its_length() {
    let root = complete();
    for seed in [1, 2, 3] {
        run(root.path(), "alibi", seed, &[(64, 30.0 + seed as f64)]);
    }
    let at = "At 128 tokens, 2 times the training length, kerple_log has the lowest perplexity of";
    assert!(
        headline(&root).starts_with(&format!("{at} 2 encodings: 20.00")),
        "alibi is not there: {}",
        headline(&root)
    );
    // the longest length has one encoding alone, so the length before it is compared
    add(&root, "kerple_log", 1, &evaluation("kerple_log", 1, 256, 19.0));
    assert!(headline(&root).starts_with(at), "{}", headline(&root));
    // another seed of one of them
    run(root.path(), "kerple_log", 4, &[(64, 20.0), (128, 30.0)]);
    assert!(headline(&root).contains("of 2 encodings on their common seeds: 22.50"), "{}", headline(&root));
}

#[test]
fn a_factor_of_a_thousand_keeps_its_zeros() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "alibi", 1, &[(64_000, 20.0)]);
    run(root.path(), "kerple_log", 1, &[(64_000, 21.0)]);
    assert!(headline(&root).contains(", 1000 times the training length, alibi"), "{}", headline(&root));
    for label in ["alibi", "kerple_log"] {
        change(&root, label, 1, |row| row.eval_len = 96);
    }
    assert!(headline(&root).contains(" tokens, 1.5 times the training length, alibi"), "{}", headline(&root));
}

#[test]
fn equally_low_encodings_share_the_headline() {
    let root = tempfile::tempdir().unwrap();
    for (label, seed) in ["alibi", "kerple_log"].into_iter().flat_map(|label| [1, 2, 3].map(|seed| (label, seed))) {
        run(root.path(), label, seed, &[(64, 20.0 + seed as f64)]);
    }
    let expected = "kerple_log and alibi share the lowest perplexity of 2 encodings.";
    assert!(headline(&root).ends_with(expected), "{}", headline(&root));
}

#[test]
fn encodings_without_a_common_seed_are_said_to_have_none() {
    let root = complete();
    run(root.path(), "alibi", 9, &[(64, 30.0), (128, 30.0)]);
    let said = headline(&root);
    assert!(said.starts_with("No lowest perplexity is marked: the encodings have no seed in common"), "{said}");
    let notes = report(&root).unwrap().results.notes.join("\n");
    assert!(notes.contains("because no seed is common to all encodings: at 64 and 128."), "{notes}");
}

#[test]
fn rows_of_another_label_are_left_out_and_noted() {
    let root = complete();
    add(&root, "kerple_log", 1, &evaluation("alibi", 1, 128, 99.0));
    let results = report(&root).unwrap().results;
    assert_eq!(results.tables[0].score(("kerple_log", None), 128).unwrap().perplexity, 20.0);
    let note = r#"evaluation.jsonl has rows of "alibi" (1 rows) and plan.json of "kerple_log"; these rows belong to another run"#;
    assert!(results.notes.iter().any(|found| found.contains(note)), "{:?}", results.notes);
    // a window, or other rates, make the label of a row longer
    let mut row = evaluation("kerple_log-window32", 1, 128, 21.0);
    row.window = Some(32);
    add(&root, "kerple_log", 1, &row);
    let results = report(&root).unwrap().results;
    assert_eq!(results.tables[0].score(("kerple_log", Some(32)), 128).unwrap().n, 1);
}

#[test]
fn a_ratio_is_that_of_one_checkpoint_and_unlike_checkpoints_are_not_tested() {
    let root = complete();
    // evaluated at both lengths half way, and at the training length at the end
    for seed in [1, 2, 3] {
        change(&root, "sinusoidal", seed, |row| row.step = 50);
        add(&root, "sinusoidal", seed, &evaluation("sinusoidal", seed, 64, 20.0 + seed as f64 * 1.1));
    }
    let results = report(&root).unwrap().results;
    let table = &results.tables[0];
    let [short, long] = [64, 128].map(|length| table.score(("sinusoidal", None), length).unwrap());
    assert_eq!((short.ratio, short.n_unfinished), (Some(1.0), 0));
    assert_eq!((long.ratio, long.n_unfinished, long.n), (None, 3, 3));
    let test = |length: u64| table.tests.iter().find(|test| test.eval_len == length).unwrap();
    assert!(test(64).p.is_some());
    assert!(test(128).p.is_none() && !long.dagger, "{:?}", test(128));
    assert!(test(128).untestable.as_ref().unwrap().contains("3 of the pairs compare unfinished training"));
    let page = read(&root, "report.md");
    assert!(
        page.contains("counts all 1 tests of this table. Comparisons that cannot be tested: 1.\n\n| encoding"),
        "{page}"
    );
    // both half way are alike
    for seed in [1, 2, 3] {
        change(&root, "kerple_log", seed, |row| row.step = if row.eval_len == 128 { 50 } else { 100 });
    }
    let results = report(&root).unwrap().results;
    assert!(results.tables[0].tests.iter().all(|test| test.p.is_some()), "{:?}", results.tables[0].tests);
    assert!(headline(&root).ends_with("Some runs are unfinished."), "{}", headline(&root));
}

#[test]
fn a_ratio_over_fewer_seeds_says_so() {
    let root = complete();
    change(&root, "sinusoidal", 3, |row| row.split = if row.eval_len == 64 { "valid".into() } else { "test".into() });
    let results = report(&root).unwrap().results;
    let score = results.tables.iter().find_map(|table| table.score(("sinusoidal", None), 128)).unwrap();
    assert_eq!((score.n, score.n_ratio), (3, 2));
    let page = read(&root, "report.md");
    let ratios = page.split("Extrapolation ratio").nth(1).unwrap();
    assert!(ratios.lines().any(|line| line.contains("sinusoidal") && line.ends_with("(n = 2 of 3) | ")), "{ratios}");
}

#[test]
fn documents_after_another_token_make_a_table_with_the_others() {
    let root = complete();
    let rolled = |start: &str| {
        let mut row = evaluation("kerple_log", 1, 64, 20.0);
        row.protocol = "rolling:64".into();
        let sum = row.nll * row.tokens as f64;
        let per = |count: u64| (sum / count as f64).exp();
        let (word_perplexity, byte_perplexity) = (per(50), per(row.bytes.unwrap()));
        row.rolling =
            Some(Rolled { documents: 3, words: 50, start: Some(start.into()), word_perplexity, byte_perplexity });
        row
    };
    for start in ["end-of-document", "bos 1"] {
        add(&root, "kerple_log", 1, &rolled(start));
    }
    assert_eq!(report(&root).unwrap().results.tables.len(), 3);
    for name in ["scores", "tests", "evaluations", "positions"] {
        let table = read(&root, &format!("tables/{name}.csv"));
        let columns: Vec<usize> = table.lines().map(|line| line.split(',').count()).collect();
        assert!(columns.iter().all(|count| *count == columns[0]), "{name}: {table}");
    }
    let scores = read(&root, "tables/scores.csv");
    let starts: Vec<&str> = scores.lines().map(|line| line.split(',').nth(3).unwrap()).collect();
    assert_eq!((starts[0], starts.iter().filter(|start| **start == "bos 1").count()), ("start", 1), "{scores}");
}

#[test]
fn own_context_of_fewer_seeds_says_so_wherever_it_is() {
    let root = complete();
    let bins = |all: &[(u64, u64)]| -> Vec<OwnContextLoss> {
        all.iter().map(|&(from, tokens)| OwnContextLoss { from, tokens, nll: 3.0 }).collect()
    };
    for seed in [1, 2, 3] {
        // only one seed has the first bin
        let found = if seed == 1 { bins(&[(0, 4), (1, 124)]) } else { bins(&[(1, 128)]) };
        change(&root, "kerple_log", seed, |row| row.nll_by_own_context = Some(found.clone()));
    }
    report(&root).unwrap();
    let page = read(&root, "report.md");
    assert!(page.contains("| kerple_log | 20.09 (n = 1) | 20.09 ± 0.00 | "), "{page}");
}

#[test]
fn labels_keep_to_their_cell() {
    let root = complete();
    let label = "two\nlines|<b>bold";
    let odd = root.path().join("runs/odd");
    std::fs::create_dir_all(&odd).unwrap();
    let plan = serde_json::json!({"label": label, "seed": 1, "train_len": 64, "steps": 100, "encoding": {"kind": "x"},
        "parameters": 1234, "model": {"n_layers": 2}});
    std::fs::write(odd.join(kerple_run::PLAN_FILE), plan.to_string()).unwrap();
    Journal::open(&odd.join(EVALUATION_FILE)).unwrap().push(&evaluation(label, 1, 64, 9.0)).unwrap();
    let results = report(&root).unwrap().results;
    let page = read(&root, "report.md");
    assert!(page.contains("| two lines\\|&lt;b>bold | **9.000**") && !page.contains("<b>"), "{page}");
    assert!(table_text(&results).contains("two lines|<b>bold"), "{}", table_text(&results));
    assert!(read(&root, "tables/scores.csv").contains(&format!("\"{label}\"")), "programs have the label as it is");
}

#[test]
fn losses_by_position_of_fewer_seeds_are_said() {
    let root = complete();
    change(&root, "sinusoidal", 3, |row| row.nll_by_position = None);
    report(&root).unwrap();
    assert!(read(&root, "report.md").contains("Lines are over 2 to 3 seeds"));
}
