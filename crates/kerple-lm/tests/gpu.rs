//! Models on a GPU train as on the processor, and a run moves between the two.
//!
//! A software renderer stands in, unless `KERPLE_TEST_DEVICE` names a device as `--device` does.

mod common;

use burn::tensor::Device;
use common::{Counting, assert_same_gradients, encoding, plan, plan_of, plan_with};
use kerple_burn::device::{DeviceName, OpenDevice};
use kerple_burn::implementation::Impl;
use kerple_burn::parameters;
use kerple_burn::plan::{AttentionKind, BlockConfig, FeatureKind, LinearAttentionConfig, SinkKind};
use kerple_core::encoding::METHODS;
use kerple_core::precision::Precision;
use kerple_data::TextBatch;
use kerple_lm::config::TrainConfig;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::Decoder;
use kerple_lm::objective::{NextTokenPrediction, SequenceBatch};
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::BatchSource;
use kerple_lm::train::{TrainEvent, TrainOutcome, TrainSession, train};
use kerple_lm::train_state::{AdamWConfig, AdamWStep, TrainState};
use kerple_run::{SessionRow, read_rows};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn name() -> DeviceName {
    std::env::var("KERPLE_TEST_DEVICE").map_or(DeviceName::Software, |name| name.parse().unwrap())
}

fn opened() -> OpenDevice {
    name().open().expect("a device; for tests without a GPU install Mesa's lavapipe")
}

fn gpu() -> Device {
    opened().device
}

/// Small gradients stay small: the sign of one that is only rounding decides nothing.
const SETTINGS: AdamWConfig = AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-2, weight_decay: 0.01, clip: 1.0 };

/// The same tokens as documents: of one token, of a few, and as long as a sequence; the last target of a sequence may begin one.
fn packed(batch: SequenceBatch) -> SequenceBatch {
    let SequenceBatch { tokens, targets, rows, len, .. } = batch;
    let starts = [vec![0, 1, 5], vec![0], vec![0, 7, len], vec![0, 3, 4, 9]];
    let document_starts = (0..rows).map(|row| starts[row % starts.len()].clone()).collect();
    SequenceBatch::of_documents(TextBatch { tokens, targets, batch: rows, seq_len: len, document_starts })
}

fn assert_same_training(plan: &Plan, what: &str) {
    assert_same_training_on(plan, |batch| batch, what);
}

fn assert_same_training_on(plan: &Plan, adapt: impl Fn(SequenceBatch) -> SequenceBatch, what: &str) {
    let (batches, rows) = (Counting(plan.clone()), plan.train.batch_size);
    let train_state = |device: Device| {
        TrainState::new(Decoder::new(plan, &device.autodiff()), NextTokenPrediction::default(), SETTINGS)
    };
    let (mut here, mut there) = (train_state(kerple_lm::device()), train_state(gpu()));
    let names = parameters::names(here.model());
    for step in 0..3 {
        let (batch, pass) = ([adapt(batches.batch(step, 0..rows).unwrap())], ForwardContext::training(plan.seed, step));
        let (a, b) = (here.gradients(&batch, pass), there.gradients(&batch, pass));
        assert_same_gradients(b, a, &names, &format!("{what}, step {step}"));
        let update = AdamWStep { learning_rate: 0.02, adam_step: step + 1 };
        here.step(&batch, pass, update).unwrap();
        there.step(&batch, pass, update).unwrap();
    }
}

#[test]
fn every_method_trains_as_on_the_processor() {
    for kind in METHODS {
        assert_same_training(&plan(&encoding(kind), TrainConfig::default()), kind);
    }
}

#[test]
fn separate_documents_train_as_on_the_processor() {
    for kind in METHODS {
        assert_same_training_on(&plan(&encoding(kind), TrainConfig::default()), packed, &format!("documents, {kind}"));
    }
    let block = BlockConfig {
        ssmax: Some(0.4),
        n_kv_heads: Some(1),
        sink: SinkKind::Learned,
        attn_softcap: Some(3.0),
        ..BlockConfig::default()
    };
    for kind in ["kerple_log", "rotary", "fire", "dape"] {
        let plan = plan_with(&encoding(kind), TrainConfig::default(), block.clone());
        assert_same_training_on(&plan, packed, &format!("documents, {kind} with other scores"));
    }
}

#[test]
fn linear_attention_trains_as_on_the_processor() {
    for (kind, features) in [
        ("kerple_log", FeatureKind::Favor),
        ("kerple_power", FeatureKind::Elu),
        ("rotary", FeatureKind::Relu),
        ("fox", FeatureKind::Elu),
    ] {
        let attention = AttentionKind::Linear(LinearAttentionConfig {
            feature_map: features,
            n_features: 16,
            ..LinearAttentionConfig::default()
        });
        let block = BlockConfig { attention, ..BlockConfig::default() };
        let plan = plan_with(&encoding(kind), TrainConfig::default(), block);
        assert_same_training(&plan, &format!("linear {kind}"));
        assert_same_training_on(&plan, packed, &format!("documents, linear {kind}"));
    }
}

fn sit(runtime: &Runtime, folder: &Path, plan: &Plan, stop_after: Option<u64>) -> TrainOutcome {
    try_session(runtime, folder, plan, stop_after).unwrap()
}

fn try_session(
    runtime: &Runtime,
    folder: &Path,
    plan: &Plan,
    stop_after: Option<u64>,
) -> kerple_lm::Result<TrainOutcome> {
    let (run, batches, stop) = (RunFolder::new(folder), Counting(plan.clone()), AtomicBool::new(false));
    let session = TrainSession { plan, run: &run, batches: &batches, stop: &stop, strict: true, runtime };
    train(&session, &mut |event| {
        if let TrainEvent::Step(progress) = event {
            stop.store(stop_after == Some(progress.step), Ordering::Relaxed);
        }
    })
}

#[test]
fn a_device_with_less_memory_than_training_takes_is_refused() {
    let (plan, folder) = (plan(&encoding("kerple_log"), TrainConfig::default()), tempfile::tempdir().unwrap());
    let runtime = |memory| Runtime::cpu(None).on(name(), OpenDevice { memory, ..opened() });
    let needed = plan.training_memory(plan.train.batch_size, Precision::F32).total();
    let error = try_session(&runtime(Some(needed / 2)), folder.path(), &plan, Some(1)).unwrap_err();
    assert!(error.to_string().contains("the memory of the device is"), "{error}");
    try_session(&runtime(Some(needed)), folder.path(), &plan, Some(1)).unwrap();
}

#[test]
fn a_run_moves_between_devices() {
    let train =
        TrainConfig { steps: 12, learning_rate: 1e-2, warmup_ratio: 0.1, save_interval: 4, ..TrainConfig::default() };
    let (plan, folder) = (plan_of(&encoding("kerple_log"), train, [1, 2, 8], [16, 4]), tempfile::tempdir().unwrap());
    let here = Runtime::cpu(None);
    let there = here.clone().on(name(), opened());
    let [whole, moved] = ["whole", "moved"].map(|name| folder.path().join(name));
    let expected = sit(&here, &whole, &plan, None).loss.unwrap();
    for (runtime, stop_after) in [(&here, 4), (&there, 8), (&here, 10)] {
        sit(runtime, &moved, &plan, Some(stop_after));
    }
    let (found, sessions) = (sit(&there, &moved, &plan, None).loss.unwrap(), moved.join("sessions.jsonl"));
    assert!((found - expected).abs() < 1e-3 * expected, "{found}, on the processor alone {expected}");
    let rows: Vec<SessionRow> = read_rows(&sessions).unwrap().rows;
    let said: Vec<(u64, &str)> = rows.iter().map(|row| (row.first_step, &row.provenance.device[..])).collect();
    let gpu = &there.provenance.device[..];
    assert!(gpu.starts_with(&name().to_string()), "{gpu}");
    assert_eq!(said, [(1, "cpu"), (5, gpu), (9, "cpu"), (11, gpu)]);
}

#[test]
fn models_compute_with_the_precision_that_is_asked_for() {
    let (plan, pass) = (plan(&encoding("kerple_log"), TrainConfig::default()), ForwardContext::evaluation(0));
    let batch = Counting(plan.clone()).batch(0, 0..plan.train.batch_size).unwrap();
    let losses = |implementation: Impl, device: &Device| {
        let model = Decoder::new(&plan, device).with_implementation(implementation);
        model.nll(batch.input(), &batch.targets, &pass).into_data().iter::<f32>().collect::<Vec<f32>>()
    };
    let (device, bf16) = (gpu(), Impl::with_precision(Precision::Bf16));
    let (exact, short) = (losses(Impl::Kernel, &device), losses(bf16, &device));
    let off = exact.iter().zip(&short).map(|(a, b)| f64::from((a - b).abs() / a)).fold(0.0, f64::max);
    // in a model of two layers each value is the sum of many roundings to either side
    assert!(off > 1e-5 && off < Precision::Bf16.unit(), "{off:e}");
}
