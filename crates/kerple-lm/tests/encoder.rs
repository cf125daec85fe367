//! The encoder sees in both directions and not into padding; a classifier on top of it learns.

use crate::common::{encoding, plan};
use burn::tensor::{Int, Tensor, TensorData, activation};
use kerple_burn::implementation::Impl;
use kerple_burn::parameters::without_autodiff;
use kerple_core::encoding::METHODS;
use kerple_lm::config::TrainConfig;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::{Classifier, Encoder, TokenBatch};
use kerple_lm::objective::{Objective, SequenceBatch, TargetScores};
use kerple_lm::train_state::{AdamWConfig, AdamWStep, TrainState};

const IDS: [u32; 12] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];

fn rows(model: &Encoder, ids: &[u32], batch: usize, lengths: Option<&[usize]>) -> Vec<f32> {
    model
        .forward(
            TokenBatch { ids, batch, len: ids.len() / batch, documents: None },
            lengths,
            &ForwardContext::evaluation(0),
        )
        .into_data()
        .try_to_vec()
        .unwrap()
}

/// Encoders of these are refused.
fn only_for_decoders(kind: &str) -> bool {
    let plan = plan(&encoding(kind), TrainConfig::default());
    plan.encoding.is_causal_only()
}

fn assert_near(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let error = a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    // rows are of size 1: the same sums in another order, in f32
    assert!(error < 2e-5, "{what}: {error}");
}

#[test]
fn every_position_sees_every_other() {
    for kind in METHODS.into_iter().filter(|kind| !only_for_decoders(kind)) {
        let model = Encoder::new(&plan(&encoding(kind), TrainConfig::default()), &kerple_lm::device());
        let before = rows(&model, &IDS, 1, None);
        let width = before.len() / IDS.len();
        for place in [0, 11] {
            let mut changed = IDS;
            changed[place] = 7;
            let after = rows(&model, &changed, 1, None);
            let same = |at: usize| before[at * width..][..width] == after[at * width..][..width];
            assert!((0..IDS.len()).all(|at| !same(at)), "{kind} {place}");
        }
        assert_near(&before, &rows(&model.with_implementation(Impl::Reference), &IDS, 1, None), kind);
    }
}

#[test]
fn padding_changes_nothing() {
    for kind in METHODS.into_iter().filter(|kind| !only_for_decoders(kind)) {
        for implementation in [Impl::Kernel, Impl::Reference] {
            let plan = plan(&encoding(kind), TrainConfig::default());
            let model = Encoder::new(&plan, &kerple_lm::device()).with_implementation(implementation);
            let short = rows(&model, &IDS[..5], 1, None);
            let mut padded = [IDS, IDS].concat();
            padded[17..].fill(11); // the second sequence ends after five tokens
            let both = rows(&model, &padded, 2, Some(&[12, 5]));
            let width = short.len() / 5;
            assert_near(&both[..12 * width], &rows(&model, &IDS, 1, None), kind);
            assert_near(&both[12 * width..][..5 * width], &short, kind);
        }
    }
}

/// Whether token 0 is in a sequence.
struct Contains;

impl Objective<Classifier> for Contains {
    fn loss(&self, model: &Classifier, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<1> {
        let found = activation::log_softmax(model.logits(batch.input(), batch.lengths.as_deref(), pass), 1);
        let targets: Vec<i64> = batch.targets.iter().map(|id| i64::from(*id)).collect();
        let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [batch.rows, 1]), &found.device());
        -found.gather(1, targets).mean()
    }

    fn score(&self, model: &Classifier, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores {
        let found: Vec<f64> =
            model.logits(batch.input(), batch.lengths.as_deref(), pass).into_data().iter::<f64>().collect();
        let hit = |(row, target): (&[f64], &u32)| u32::from(row[1] > row[0]) == *target;
        let hits: Vec<bool> = found.chunks_exact(2).zip(&batch.targets).map(hit).collect();
        TargetScores { losses: vec![0.0; hits.len()], hits: Some(hits), scored: None }
    }
}

/// Sequences of lengths 2 to 6; the class is whether token 0 is among them.
fn batch(step: u64, rows: usize) -> SequenceBatch {
    let len = 6;
    let noise = |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
    let (mut tokens, mut targets, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows as u64 {
        let seed = (step * 1000 + row) * 10;
        let length = 2 + noise(seed) % 5;
        let mut ids: Vec<u32> = (0..len).map(|at| 1 + (noise(seed + 1 + at as u64) % 9) as u32).collect();
        let class = (noise(seed + 8) % 2) as u32;
        if class == 1 {
            ids[noise(seed + 9) % length] = 0;
        } else if length < len {
            ids[length] = 0; // in the padding, where it must not count
        }
        tokens.extend(ids);
        targets.push(class);
        lengths.push(length);
    }
    SequenceBatch { tokens, targets, lengths: Some(lengths), rows, len, ..SequenceBatch::default() }
}

#[test]
fn a_classifier_learns_from_whole_sequences() {
    let plan = plan(&encoding("kerple_log"), TrainConfig::default());
    let model = Classifier::new(&plan, 2, &kerple_lm::device().autodiff());
    let settings = AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0, clip: 1.0 };
    let mut train_state = TrainState::new(model, Contains, settings);
    for step in 0..150 {
        let update = AdamWStep { learning_rate: 0.01, adam_step: step + 1 };
        train_state.step(&[batch(step, 32)], ForwardContext::training(1, step), update).unwrap();
    }
    let model = without_autodiff(train_state.model());
    let accuracy = Contains.score(&model, &batch(1 << 20, 300), &ForwardContext::evaluation(1)).accuracy().unwrap();
    assert!(accuracy > 0.95, "{accuracy}");
}

/// A plan of the arena: a classifier with linear attention and a pooling.
fn arena(encoding: &str, pooling: &str) -> kerple_lm::plan::Plan {
    let text = format!(
        "[data]\ntask = {{ kind = \"lra_retrieval\", train = 10, valid = 10, test = 10 }}\n[encoding]\n{encoding}\n\
         [model]\nn_layers = 2\nn_heads = 2\nhead_dim = 8\npooling = \"{pooling}\"\n[model.block]\ninit = \"xavier\"\n\
         attention = {{ linear = {{ feature_map = \"favor_jax\", n_features = 16 }} }}\n[train]\ntrain_len = 11\nbatch_size = 2\n"
    );
    let config = kerple_lm::config::RunConfig::parse(&text, "arena", &[]).unwrap();
    let facts = kerple_lm::tasks::facts(config.data.task.as_ref().unwrap().facts());
    kerple_lm::plan::Plan::new(&config, facts).unwrap()
}

fn logits(model: &Classifier, ids: &[u32], lengths: Option<&[usize]>, batch: usize) -> Vec<f32> {
    let tokens = TokenBatch { ids, batch, len: ids.len() / batch, documents: None };
    model.logits(tokens, lengths, &ForwardContext::evaluation(0)).into_data().try_to_vec().unwrap()
}

#[test]
fn answers_are_read_off_as_the_plan_says() {
    const SEPARATOR: u32 = kerple_data::tasks::PAIR_SEPARATOR;
    for encoding in
        ["kind = \"sinusoidal\"", "kind = \"sine_spe\"\nnum_realizations = 8", "kind = \"conv_spe\"\nkernel_size = [4]"]
    {
        for pooling in ["mean", "cls", "two_tower"] {
            let plan = arena(encoding, pooling);
            let model = Classifier::new(&plan, 2, &kerple_lm::device());
            let values: usize = kerple_burn::parameters::values(&model).iter().map(|values| values.dims()[0]).sum();
            assert_eq!(values, plan.parameters, "{encoding} {pooling}");
            let (pair, swapped) = ([5, 6, 7, SEPARATOR, 8, 9], [8, 9, SEPARATOR, 5, 6, 7]);
            let alone = logits(&model, &pair, None, 1);
            let both = [&pair[..], &[0, 0], &swapped, &[0, 0]].concat();
            let padded = logits(&model, &both, Some(&[6, 6]), 2);
            assert_near(&alone, &padded[..2], &format!("{encoding} {pooling}, padding"));
            assert_ne!(padded[..2], padded[2..], "{encoding} {pooling}: the order counts");
            let composed = model.clone().with_implementation(Impl::Reference);
            assert_near(&alone, &logits(&composed, &pair, None, 1), &format!("{encoding} {pooling}, composed"));
        }
    }
}
