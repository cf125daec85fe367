//! Training: learns, resumes to the bit, is deterministic, and stops when a number is not one.

mod common;

use common::{Counting, encoding, plan};
use kerple_lm::config::TrainConfig;
use kerple_lm::train::{Outcome, train};
use kerple_lm::{Error, checkpoint};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn config(steps: u64) -> TrainConfig {
    TrainConfig {
        steps,
        learning_rate: 1e-2,
        warmup: 0.1,
        weight_decay: 0.1,
        log_every: 1,
        valid_every: 10,
        checkpoint_every: 5,
        ..TrainConfig::default()
    }
}

fn run(folder: &Path, kind: &str, config: TrainConfig, stop_after: Option<u64>) -> Outcome {
    let plan = plan(&encoding(kind), config);
    let stop = AtomicBool::new(false);
    train(&plan, folder, &Counting(plan.clone()), &stop, &mut |progress| {
        stop.store(stop_after == Some(progress.step), Ordering::Relaxed);
    })
    .unwrap()
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
fn resuming_equals_not_having_stopped() {
    for kind in ["kerple_bias_weight", "t5", "learned"] {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let straight = run(whole.path(), kind, config(14), None);
        let first = run(parts.path(), kind, config(14), Some(6));
        assert_eq!((first.step, first.finished), (6, false));
        let second = run(parts.path(), kind, config(14), None);
        assert_eq!(second.loss, straight.loss, "{kind}");
        assert!(weights(whole.path()) == weights(parts.path()), "{kind}: weights differ");
        let losses = |folder: &Path| -> Vec<(u64, f64)> {
            let rows =
                kerple_report::record::read_rows::<kerple_report::record::MetricsRow>(&folder.join("metrics.jsonl"));
            rows.unwrap().rows.into_iter().map(|row| (row.step, row.loss)).collect()
        };
        assert_eq!(losses(whole.path()), losses(parts.path()), "{kind}");
    }
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
    let b = run(parts.path(), "alibi", TrainConfig { micro_batch: Some(2), ..config(10) }, None).loss.unwrap();
    // the same sums in another order, in f32
    assert!((a - b).abs() < 1e-4 * a, "{a} {b}");
}

#[test]
fn a_loss_that_is_no_number_stops_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let wild = TrainConfig { learning_rate: 10.0, clip: 0.0, warmup: 0.0, eps: 1e-30, ..config(400) };
    let plan = plan(&encoding("kerple_power"), TrainConfig { betas: [0.0, 0.0], ..wild });
    let never = AtomicBool::new(false);
    // a model whose weights are poisoned after a good checkpoint
    let mut poisoned = plan.clone();
    poisoned.train.learning_rate = f64::INFINITY;
    let error = train(&poisoned, folder.path(), &Counting(poisoned.clone()), &never, &mut |_| {}).unwrap_err();
    let Error::NotFinite { step, ref what, .. } = error else { panic!("{error}") };
    assert!(step > 1 && what.contains("loss"), "{error}");
    assert!(error.hint().contains("learning_rate"));
}

#[test]
fn a_folder_of_another_plan_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "alibi", config(3), None);
    let other = plan(&encoding("alibi"), config(4));
    let never = AtomicBool::new(false);
    let error = train(&other, folder.path(), &Counting(other.clone()), &never, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("another plan"), "{error}");
}

#[test]
fn damaged_checkpoints_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "alibi", config(3), None);
    let (_, newest) = checkpoint::list(folder.path()).unwrap().pop().unwrap();
    let file = newest.join("model.safetensors");
    let mut data = std::fs::read(&file).unwrap();
    *data.last_mut().unwrap() ^= 1;
    std::fs::write(&file, data).unwrap();
    let error = kerple_lm::train::load(folder.path(), &kerple_lm::device()).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[test]
fn only_the_newest_checkpoints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "none", TrainConfig { keep: 2, ..config(17) }, None);
    let steps: Vec<u64> = checkpoint::list(folder.path()).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [15, 17]);
}
