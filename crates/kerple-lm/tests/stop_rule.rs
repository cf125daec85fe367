//! `train.until`: where it ends a run, that it changes nothing before, and what it refuses.

use crate::common::on_ranks;
use kerple_data::Split;
use kerple_lm::checkpoint;
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::DataSource;
use kerple_lm::evaluate::{EvalCheckpoint, EvalRun, TaskEval, TaskEvalRequest};
use kerple_lm::plan::Plan;
use kerple_lm::ranks::Ranks;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::train::{TrainEvent, TrainOutcome, TrainSession, train};
use kerple_lm::{Error, Result};
use kerple_run::{LearnedAt, MetricsRow, StopRule, read_rows};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const STEPS: u64 = 23;
const INTERVAL: u64 = 2;

fn plan_of(task: &str, more: &[&str]) -> Result<Plan> {
    let text = format!(
        r#"
        data = {{ task = {task} }}
        encoding = {{ kind = "alibi" }}
        model = {{ n_layers = 1, n_heads = 2, head_dim = 8 }}
        [train]
        train_len = 12
        batch_size = 12
        micro_batch_size = 2
        steps = {STEPS}
        learning_rate = 1e-2
        log_every = 5
        eval_interval = {INTERVAL}
        eval_sequences = 40
        save_interval = 4
        keep_last_n = 99
        "#
    );
    let more: Vec<String> = more.iter().map(|more| (*more).to_owned()).collect();
    let config = RunConfig::parse(&text, "test", &more).unwrap();
    Plan::new(&config, DataSource::open(&config.data)?.facts())
}

const SORT: &str = "\"bucket_sort\"";

fn plan(more: &[&str]) -> Plan {
    plan_of(SORT, more).unwrap()
}

fn with_rule(score: f64, checks: u64) -> Plan {
    plan(&[&format!("train.until={{ score = {score}, checks = {checks} }}")])
}

/// One session of one rank, stopped after an update or at its end.
fn sit(ranks: &Ranks, folder: &Path, plan: &Plan, stop_after: Option<u64>) -> Result<TrainOutcome> {
    let (run, stop) = (RunFolder::new(folder), AtomicBool::new(false));
    let (source, runtime) = (DataSource::open(&plan.data)?, Runtime::cpu(None).with_ranks(ranks.clone()));
    let batches = source.batches(plan)?;
    let session = TrainSession { plan, run: &run, batches: &batches, stop: &stop, strict: false, runtime: &runtime };
    train(&session, &mut |event| {
        if let TrainEvent::Step(progress) = event {
            stop.store(stop_after == Some(progress.step), Ordering::Relaxed);
        }
    })
}

fn go(folder: &Path, plan: &Plan) -> TrainOutcome {
    sit(&Ranks::alone(), folder, plan, None).unwrap()
}

/// Rows without times.
fn rows(folder: &Path) -> Vec<MetricsRow> {
    let mut rows = read_rows::<MetricsRow>(&folder.join("metrics.jsonl")).unwrap().rows;
    rows.iter_mut().for_each(|row| (row.seconds, row.step_seconds, row.comm_wait_fraction) = (0.0, 0.0, None));
    rows
}

/// Weights and moments of a checkpoint.
fn weights(folder: &Path, step: u64) -> [Vec<u8>; 2] {
    let place = checkpoint::folder(folder).join(format!("step-{step:08}"));
    ["model", "optimizer"].map(|name| fs::read(place.join(name).with_extension("safetensors")).unwrap())
}

fn last_checkpoint(folder: &Path) -> u64 {
    checkpoint::list(folder).unwrap().pop().unwrap().0
}

/// A run without a rule, and a score and a number of checks that end it in its midst after a validation that failed: as long a row
/// of passes as there is behind a failure.
struct Unruled {
    folder: tempfile::TempDir,
    score: f64,
    checks: u64,
    learned: LearnedAt,
}

impl Unruled {
    fn new() -> Unruled {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(go(folder.path(), &plan(&[])).learned_at, None);
        let scores = RunFolder::new(folder.path()).validation_scores().unwrap();
        let mut candidates: Vec<f64> =
            scores.iter().map(|(_, score)| *score).filter(|score| *score > scores[0].1).collect();
        candidates.sort_by(f64::total_cmp);
        for score in candidates {
            for checks in [3, 2] {
                let passes = |window: &&[(u64, f64)]| window.iter().all(|(_, found)| *found >= score);
                let Some(window) = scores.windows(checks).find(passes) else { continue };
                let learned = LearnedAt { first: window[0].0, last: window[checks - 1].0 };
                if learned.first > INTERVAL && learned.last + 2 * INTERVAL < STEPS {
                    return Unruled { folder, score, checks: checks as u64, learned };
                }
            }
        }
        panic!("no rule ends this run in its midst: {scores:?}");
    }

    fn plan(&self) -> Plan {
        with_rule(self.score, self.checks)
    }
}

#[test]
fn the_rule_ends_a_run_and_changes_nothing_before() {
    let unruled = Unruled::new();
    let (whole, plan) = (unruled.folder.path(), unruled.plan());
    let ruled = tempfile::tempdir().unwrap();
    let outcome = go(ruled.path(), &plan);
    let last = unruled.learned.last;
    assert_eq!((outcome.step, outcome.finished, outcome.learned_at), (last, true, Some(unruled.learned)));
    assert_eq!(last_checkpoint(ruled.path()), last);
    let (straight, ended) = (rows(whole), rows(ruled.path()));
    assert_eq!(ended.last().unwrap().step, last);
    assert_eq!(ended[..], straight[..ended.len()], "learning rates are those of all steps too");
    // it is complete: nothing is trained, saved or recorded again
    let journals = || ["sessions.jsonl", "metrics.jsonl"].map(|name| fs::read(ruled.path().join(name)).unwrap());
    let before = journals();
    let again = go(ruled.path(), &plan);
    assert_eq!((again.step, again.finished, again.learned_at, again.loss), (last, true, Some(unruled.learned), None));
    assert!(journals() == before);
    let run = RunFolder::new(ruled.path());
    assert_eq!(run.last_step(&plan).unwrap(), last);
    assert!(run.verify().is_good(), "{:?}", run.verify().problems);
    // rows after the end are none of this run's
    let line = serde_json::to_string(&straight[ended.len()]).unwrap();
    fs::write(ruled.path().join("metrics.jsonl"), [&before[1][..], line.as_bytes(), b"\n"].concat()).unwrap();
    let problems = run.verify().problems;
    assert!(problems[0].to_string().contains("at which train.until ended the run"), "{problems:?}");
    fs::write(ruled.path().join("metrics.jsonl"), &before[1]).unwrap();
    // without the rule it goes on to the end of the run that never had one
    assert!(go(ruled.path(), &self::plan(&[])).finished);
    assert!(weights(ruled.path(), STEPS) == weights(whole, STEPS) && rows(ruled.path()) == straight);
}

#[test]
fn sessions_and_ranks_end_at_the_same_update() {
    let unruled = Unruled::new();
    let (plan, LearnedAt { first, last }) = (unruled.plan(), unruled.learned);
    let straight = tempfile::tempdir().unwrap();
    go(straight.path(), &plan);
    let expect = |folder: &Path, what: &str| {
        assert_eq!(last_checkpoint(folder), last, "{what}");
        assert!(weights(folder, last) == weights(straight.path(), last), "{what}");
        assert_eq!(rows(folder), rows(straight.path()), "{what}");
        assert!(RunFolder::new(folder).verify().is_good(), "{what}");
    };
    // stopped at the first pass, between two, and right before the end
    let parts = tempfile::tempdir().unwrap();
    for stop in BTreeSet::from([first, first + 1, last - 1]) {
        let outcome = sit(&Ranks::alone(), parts.path(), &plan, Some(stop)).unwrap();
        assert_eq!((outcome.step, outcome.finished, outcome.learned_at), (stop, false, None));
    }
    assert!(go(parts.path(), &plan).finished);
    expect(parts.path(), "stopped");
    // killed after the validation that ends it, before the checkpoint: its row is made again
    fs::remove_dir_all(checkpoint::folder(parts.path()).join(format!("step-{last:08}"))).unwrap();
    assert_eq!(go(parts.path(), &plan).step, last);
    expect(parts.path(), "killed");
    for count in [2, 3] {
        let folder = tempfile::tempdir().unwrap();
        for outcome in on_ranks(count, |ranks| sit(&ranks, folder.path(), &plan, Some(first)).unwrap()) {
            assert!(!outcome.finished);
        }
        for outcome in on_ranks(count, |ranks| sit(&ranks, folder.path(), &plan, None).unwrap()) {
            assert_eq!((outcome.step, outcome.finished, outcome.learned_at), (last, true, Some(unruled.learned)));
        }
        expect(folder.path(), &format!("{count} ranks"));
    }
}

#[test]
fn a_rule_that_is_not_met_trains_all_steps() {
    let (folder, plan) = (tempfile::tempdir().unwrap(), with_rule(1.0, 12));
    let outcome = go(folder.path(), &plan);
    assert_eq!((outcome.step, outcome.finished, outcome.learned_at), (STEPS, true, None));
    assert_eq!(RunFolder::new(folder.path()).last_step(&plan).unwrap(), STEPS);
    let validated: Vec<u64> =
        rows(folder.path()).iter().filter(|row| row.val_score.is_some()).map(|row| row.step).collect();
    let expected: Vec<u64> = (1..=STEPS).filter(|step| step % INTERVAL == 0 || *step == STEPS).collect();
    assert_eq!(validated, expected, "rows that are only logged have no score");
}

/// The score of a validation is the accuracy that an evaluation of the same sequences has.
#[test]
fn scores_are_shares_of_right_answers() {
    // answers at empty places, at marked tokens, and once, of rows of one length and of several
    for task in [
        SORT,
        "{ kind = \"recall\", pairs = 2 }",
        "\"even_pairs\"",
        "{ kind = \"listops\", more_than = 2, fewer_than = 10, depth = 2 }",
    ] {
        let plan = plan_of(task, &["train.steps=2"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        go(folder.path(), &plan);
        let score = rows(folder.path()).last().unwrap().val_score.unwrap();
        let (run, runtime) = (RunFolder::new(folder.path()), Runtime::cpu(None));
        let trained = run.load_any(&runtime.device, true).unwrap();
        let source = DataSource::open(&plan.data).unwrap();
        let examples = source.task().unwrap().available(Split::Valid, plan.train.eval_sequences as u64);
        let request = TaskEvalRequest { lengths: vec![plan.train_len], examples, seed: plan.seed, split: Split::Valid };
        let scored = TaskEval::new(source.task().unwrap(), request);
        let checkpoint = EvalCheckpoint { plan: &plan, step: 2, model: trained.model.as_ref() };
        let evaluation = EvalRun::new(&run, checkpoint, &scored, &runtime).unwrap();
        let row = evaluation.length(plan.train_len, &AtomicBool::new(false), &mut |_| {}).unwrap().unwrap();
        assert_eq!(score, row.task.unwrap().score(), "{task}");
        assert!(row.tokens >= 20, "{task}: {}", row.tokens);
    }
}

#[test]
fn the_rule_is_part_of_the_plan_and_not_of_the_trajectory() {
    let (plain, ruled) = (plan(&[]), with_rule(0.9, 3));
    assert_ne!(ruled.hash, plain.hash);
    assert!(!serde_json::to_string(&plain).unwrap().contains("until"), "plans without it are as they were");
    let set = "train.until={ score = 0.9, checks = 3 }";
    let others = ["train.until.score=0.8", "train.until.checks=2", "train.eval_interval=3", "train.eval_sequences=9"];
    for other in others {
        assert_ne!(plan(&[set, other]).hash, ruled.hash, "{other}");
        assert_eq!(plan(&[set, other]).trajectory_hash(), plain.trajectory_hash(), "{other}");
    }
    for other in ["train.log_every=9", "train.save_interval=9", "train.keep_last_n=9", "train.micro_batch_size=4"] {
        assert_eq!(plan(&[set, other]).hash, ruled.hash, "{other}");
    }
    let Plan { train, .. } = Plan::new(&ruled.config(), ruled.data_info.clone()).unwrap();
    assert_eq!(train.until, Some(StopRule { score: 0.9, checks: 3 }));
}

#[test]
fn rules_that_cannot_count_are_refused() {
    let refused = |task: &str, more: &[&str]| {
        let error = plan_of(task, more).unwrap_err();
        assert!(error.is_misuse() && !error.hint().is_empty(), "{error}");
        error.to_string()
    };
    let of_rule =
        |score: &str, checks: &str| refused(SORT, &[&format!("train.until={{ score = {score}, checks = {checks} }}")]);
    for score in ["0.0", "-0.5", "1.01", "nan", "inf"] {
        let found = of_rule(score, "3");
        assert!(found.contains("train.until.score") && found.contains("above 0 and at most 1"), "{found}");
    }
    for checks in ["0", "13"] {
        let found = of_rule("0.9", checks);
        let says = format!("train.until.checks: {checks} is out of range, it must be at least 1 and at most 12");
        assert!(found.contains(&says), "{found}");
    }
    let rule = "train.until={ score = 0.9, checks = 1 }";
    assert!(refused(SORT, &[rule, "train.eval_interval=0"]).contains("train.eval_interval: 0 turns validations off"));
    let text =
        RunConfig::parse("data.path = \"nowhere\"\nencoding.kind = \"alibi\"", "test", &[rule.to_owned()]).unwrap();
    let facts = kerple_lm::plan::DataInfo {
        vocab_size: 9,
        tokenizer: String::new(),
        train_tokens: 1 << 20,
        content: String::new(),
    };
    let error = Plan::new(&text, facts).unwrap_err();
    assert!(error.to_string().contains("train.until: a text has no score"), "{error}");
    let incomplete = RunConfig::parse(
        "data.task = \"parity_check\"\nencoding.kind = \"alibi\"",
        "test",
        &["train.until.score=0.9".to_owned()],
    );
    assert!(incomplete.unwrap_err().to_string().contains("missing field `checks`"));
}

#[test]
fn validations_under_other_settings_are_not_counted() {
    let unruled = Unruled::new();
    let copy = tempfile::tempdir().unwrap();
    let refused = |folder: &Path, plan: &Plan| -> Error {
        let before = fs::read(folder.join("plan.json")).unwrap();
        let error = sit(&Ranks::alone(), folder, plan, None).unwrap_err();
        assert!(error.is_misuse() && error.hint().contains("train.until"), "{error}: {}", error.hint());
        assert!(fs::read(folder.join("plan.json")).unwrap() == before, "a refused plan is not written");
        error
    };
    let says = |error: Error, text: &str| assert!(error.to_string().contains(text), "{error}, not {text}");
    says(refused(unruled.folder.path(), &unruled.plan()), "train.until is set, but the run was started without it");
    let folder = copy.path();
    go(folder, &unruled.plan());
    let set = format!("train.until={{ score = {}, checks = {} }}", unruled.score, unruled.checks);
    says(refused(folder, &plan(&[&set, "train.eval_interval=3"])), "train.eval_interval = 3 (was 2)");
    says(refused(folder, &plan(&[&set, "train.eval_sequences=41"])), "train.eval_sequences = 41 (was 40)");
    let last = unruled.learned.last;
    let lower = with_rule(f64::MIN_POSITIVE, 1);
    says(
        refused(folder, &lower),
        &format!("has done {last} updates, but this train.until would have ended it after 2"),
    );
    // a stricter rule goes on, as if it had been there from the start
    let stricter = with_rule(1.0, 12);
    assert_eq!(go(folder, &stricter).step, STEPS);
    let straight = tempfile::tempdir().unwrap();
    go(straight.path(), &stricter);
    assert!(weights(folder, STEPS) == weights(straight.path(), STEPS) && rows(folder) == rows(straight.path()));
    // without its rows it is not known how many validations passed
    fs::remove_file(folder.join("metrics.jsonl")).unwrap();
    fs::remove_dir_all(checkpoint::folder(folder).join(format!("step-{STEPS:08}"))).unwrap();
    says(refused(folder, &stricter), "metrics.jsonl lacks some of those up to update 20");
}
