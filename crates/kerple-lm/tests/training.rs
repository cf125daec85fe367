//! Training: learns, resumes to the bit, is deterministic, and stops when a number is not one.

use crate::common::{Counting, encoding, plan};
use kerple_lm::config::TrainConfig;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::memory_estimate::TOKENS_AT_ONCE;
use kerple_lm::objective::{NextTokenPrediction, Objective};
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::BatchSource;
use kerple_lm::train::{TrainEvent, TrainOutcome, TrainSession, train};
use kerple_lm::{Error, checkpoint};
use kerple_run::{MetricsRow, read_rows};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn config(steps: u64) -> TrainConfig {
    TrainConfig {
        steps,
        learning_rate: 1e-2,
        warmup_ratio: 0.1,
        weight_decay: 0.1,
        log_every: 1,
        eval_interval: 10,
        save_interval: 5,
        ..TrainConfig::default()
    }
}

fn run(folder: &Path, kind: &str, config: TrainConfig, stop_after: Option<u64>) -> TrainOutcome {
    let plan = plan(&encoding(kind), config);
    let stop = AtomicBool::new(false);
    let (run, batches) = (RunFolder::new(folder), Counting(plan.clone()));
    let session = TrainSession {
        plan: &plan,
        run: &run,
        batches: &batches,
        stop: &stop,
        strict: false,
        runtime: &Runtime::cpu(None),
    };
    train(&session, &mut |event| {
        if let TrainEvent::Step(progress) = event {
            stop.store(stop_after == Some(progress.step), Ordering::Relaxed);
        }
    })
    .unwrap()
}

/// Trains to the end without being stopped.
fn try_train(folder: &Path, plan: &Plan) -> Result<TrainOutcome, Error> {
    train_on(folder, plan, &Runtime::cpu(None))
}

fn train_on(folder: &Path, plan: &Plan, runtime: &Runtime) -> Result<TrainOutcome, Error> {
    let (run, batches, stop) = (RunFolder::new(folder), Counting(plan.clone()), AtomicBool::new(false));
    train(&TrainSession { plan, run: &run, batches: &batches, stop: &stop, strict: false, runtime }, &mut |_| {})
}

fn weights(folder: &Path) -> Vec<u8> {
    let (_, newest) = checkpoint::list(folder).unwrap().pop().unwrap();
    std::fs::read(newest.join("model.safetensors")).unwrap()
}

#[test]
fn a_predictable_language_is_learned() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = run(folder.path(), "kerple_log", config(150), None);
    assert!(outcome.finished);
    assert!(outcome.loss.unwrap() < 0.2, "{outcome:?}");
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let train_with = |threads: usize| {
        let folder = tempfile::tempdir().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run(folder.path(), "kerple_log", config(8), None));
        weights(folder.path())
    };
    let one = train_with(1);
    assert!(one == train_with(2) && one == train_with(3));
}

#[test]
fn parts_of_a_batch_add_up() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let a = run(whole.path(), "alibi", config(10), None).loss.unwrap();
    let b = run(parts.path(), "alibi", TrainConfig { micro_batch_size: Some(2), ..config(10) }, None).loss.unwrap();
    // the same sums in another order, in f32
    assert!((a - b).abs() < 1e-4 * a, "{a} {b}");
}

#[test]
fn validation_in_parts_is_the_loss_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let train = TrainConfig { eval_interval: 2, eval_sequences: 700, ..config(2) };
    let plan = plan(&encoding("kerple_log"), train);
    assert!(700 * plan.train_len > TOKENS_AT_ONCE, "more than one part, the last of them small");
    try_train(folder.path(), &plan).unwrap();
    let rows = read_rows::<MetricsRow>(&folder.path().join("metrics.jsonl")).unwrap().rows;
    let found = rows.last().unwrap().val_loss.unwrap();
    let model = RunFolder::new(folder.path()).load(&kerple_lm::device(), true).unwrap().model;
    let all = Counting(plan.clone()).validation(0..700).unwrap();
    let want =
        NextTokenPrediction::default().loss(&model, &all, &ForwardContext::evaluation(plan.seed)).into_scalar::<f32>();
    // a mean of 8400 losses in f32, in one sum or in two
    assert!((found - f64::from(want)).abs() < 1e-5 * found, "{found} {want}");
}

/// A rate that is a number, after which no weight is one.
const FAR_TOO_HIGH: f64 = 1e300;

#[test]
fn a_loss_that_is_no_number_stops_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let wild = TrainConfig { learning_rate: 10.0, grad_clip: 0.0, warmup_ratio: 0.0, adam_eps: 1e-30, ..config(400) };
    let plan = plan(&encoding("kerple_power"), TrainConfig { adam_betas: [0.0, 0.0], ..wild });
    // a model whose weights are poisoned after a good checkpoint
    let mut poisoned = plan.clone();
    poisoned.train.learning_rate = FAR_TOO_HIGH;
    let error = try_train(folder.path(), &poisoned).unwrap_err();
    let Error::NotFinite { step, ref what, .. } = error else { panic!("{error}") };
    assert!(step > 1 && what.contains("loss"), "{error}");
    assert!(error.hint().contains("learning_rate"));
}

#[test]
fn a_learning_rate_that_is_no_number_stops_the_run_before_it_is_used() {
    for rate in [f64::NAN, f64::INFINITY, -1.0] {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = plan(&encoding("kerple_power"), TrainConfig { warmup_ratio: 0.0, ..config(10) });
        plan.train.learning_rate = rate;
        plan.train.min_lr = rate.min(0.0);
        let error = try_train(folder.path(), &plan).unwrap_err();
        let Error::NotFinite { step: 1, ref what, .. } = error else { panic!("{error}") };
        assert!(what == "the learning rate" && error.hint().contains("train.learning_rate"), "{error}");
    }
}

#[test]
fn losses_that_are_read_late_are_the_same_and_so_is_what_they_stop() {
    let late = Runtime { reads_freely: false, ..Runtime::cpu(None) };
    let of = |runtime: &Runtime, config: TrainConfig, rate: f64| {
        let folder = tempfile::tempdir().unwrap();
        let train = TrainConfig { log_every: 7, micro_batch_size: Some(2), ..config };
        let mut plan = plan(&encoding("kerple_log"), train);
        plan.train.learning_rate *= rate;
        let error = train_on(folder.path(), &plan, runtime).err().map(|error| error.to_string());
        let rows = read_rows::<MetricsRow>(&folder.path().join("metrics.jsonl")).unwrap().rows;
        let rows: Vec<_> = rows.iter().map(|row| (row.step, row.loss, row.grad_norm, row.val_loss)).collect();
        (error, rows, checkpoint::list(folder.path()).unwrap().len())
    };
    let whole = |runtime: &Runtime| of(runtime, config(17), 1.0);
    assert_eq!(whole(&late), whole(&Runtime::cpu(None)));
    assert_eq!(whole(&late).1.iter().map(|row| row.0).collect::<Vec<_>>(), [1, 7, 10, 14, 17]);
    // the first update spoils the weights, the second sees it, the seventh or the checkpoint is where it is read
    for save_interval in [100, 4] {
        let spoiled = |runtime: &Runtime| {
            of(runtime, TrainConfig { save_interval, warmup_ratio: 0.0, ..config(17) }, FAR_TOO_HIGH)
        };
        let (error, rows, saved) = spoiled(&late);
        assert_eq!((rows.len(), saved), (1, 0));
        assert!(error.as_ref().unwrap().contains("step 2"), "{error:?}");
        assert_eq!((error, rows, saved), spoiled(&Runtime::cpu(None)));
    }
}

#[test]
fn only_the_newest_checkpoints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "none", TrainConfig { keep_last_n: 2, ..config(17) }, None);
    let steps: Vec<u64> = checkpoint::list(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [15, 17]);
}
