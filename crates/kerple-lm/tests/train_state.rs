//! The train_state: any model and task, parts of a batch and ranks that add up, parameters updated as they say.

use crate::common::{encoding, on_ranks, plan};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};
use kerple_burn::implementation::Impl;
use kerple_burn::layers::{LayerInit, normal_matrix};
use kerple_burn::parameters::{self, ParamGroup, ParamGroupOverrides};
use kerple_burn::plan::InitKind;
use kerple_core::encoding::{METHODS, ParameterShare};
use kerple_lm::config::TrainConfig;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::Decoder;
use kerple_lm::objective::{NextTokenPrediction, Objective, SequenceBatch, TargetScores};
use kerple_lm::plan::Plan;
use kerple_lm::ranks::Ranks;
use kerple_lm::train_state::{
    AdamWConfig, AdamWStep, CheckpointPart, NonFiniteValue, StepMetrics, TrainState, settings,
};
use rand::{RngExt, SeedableRng};

const SETTINGS: AdamWConfig = AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01, clip: 1.0 };

fn device() -> Device {
    kerple_lm::device().autodiff()
}

/// Which of two classes has more tokens in a sequence: the mean of the tokens' embeddings, `[V, 2]`, with dropout.
#[derive(Module, Debug)]
struct Bag {
    table: Param<Tensor<2>>,
}

impl ParamGroupOverrides for Bag {}

impl Bag {
    fn new() -> Bag {
        let (mut rng, device) = (rand_chacha::ChaCha8Rng::seed_from_u64(0), device());
        let mut init = LayerInit {
            rng: Some(&mut rng),
            kind: InitKind::Normal,
            std: 0.02,
            std_out: 0.02,
            device: &device,
            dtype: DType::F32,
        };
        Bag { table: normal_matrix([8, 2], 0.02, &mut init) }
    }
}

/// Classes of padded sequences.
struct Majority {
    dropout: f64,
}

impl Majority {
    /// Log-probabilities, `[B, 2]`. Padding and dropped tokens do not count.
    fn forward(&self, model: &Bag, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<2> {
        let device = model.table.val().device();
        let [rows, len] = [batch.rows, batch.len];
        let lengths = batch.lengths.clone().unwrap_or_else(|| vec![len; rows]);
        let mut kept = Vec::new();
        for (row, length) in lengths.into_iter().enumerate() {
            let mut noise = pass.noise(row, 0);
            kept.extend((0..len).map(|at| {
                let dropped = pass.train && noise.random::<f64>() < self.dropout;
                f32::from(u8::from(at < length && !dropped))
            }));
        }
        let kept = Tensor::<3>::from_data(TensorData::new(kept, [rows, len, 1]), &device);
        let ids: Vec<i64> = batch.tokens.iter().map(|id| i64::from(*id)).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [rows * len]), &device);
        let embedded = model.table.val().select(0, ids).reshape([rows, len, 2]);
        activation::log_softmax((embedded * kept).sum_dim(1).reshape([rows, 2]), 1)
    }
}

impl Objective<Bag> for Majority {
    fn loss(&self, model: &Bag, batch: &SequenceBatch, pass: &ForwardContext) -> Tensor<1> {
        let found = self.forward(model, batch, pass);
        let targets: Vec<i64> = batch.targets.iter().map(|id| i64::from(*id)).collect();
        let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [batch.rows, 1]), &found.device());
        -found.gather(1, targets).mean()
    }

    fn score(&self, model: &Bag, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores {
        let found: Vec<f64> = self.forward(model, batch, pass).into_data().iter::<f64>().collect();
        let (losses, hits) = found
            .chunks_exact(2)
            .zip(&batch.targets)
            .map(|(row, target)| (-row[*target as usize], u32::from(row[1] > row[0]) == *target))
            .unzip();
        TargetScores { losses, hits: Some(hits), scored: None }
    }
}

/// Sequences of odd lengths among tokens 0..8; the class is whether most tokens are above 3. Padding would spoil it.
fn majority(step: u64, rows: usize) -> SequenceBatch {
    let len = 7;
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(step);
    let (mut tokens, mut targets, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let length = [3, 5, 7][rng.random_range(0..3)];
        let row: Vec<u32> = (0..length).map(|_| rng.random_range(0..8)).collect();
        let high = row.iter().filter(|token| **token > 3).count();
        let class = u32::from(2 * high > length);
        tokens.extend(row.iter().copied().chain(std::iter::repeat_n(if class == 1 { 0 } else { 7 }, len - length)));
        targets.push(class);
        lengths.push(length);
    }
    SequenceBatch { tokens, targets, lengths: Some(lengths), rows, len, ..SequenceBatch::default() }
}

fn at(step: u64) -> AdamWStep {
    AdamWStep { learning_rate: 0.05, adam_step: step + 1 }
}

fn weights<M: Module + ParamGroupOverrides, T: Objective<M>>(train_state: &TrainState<M, T>) -> Vec<f32> {
    train_state.stored(CheckpointPart::Weights).iter().flat_map(|named| named.array.slice::<f32>().to_vec()).collect()
}

#[test]
fn a_classifier_is_learned() {
    let mut train_state = TrainState::new(Bag::new(), Majority { dropout: 0.1 }, SETTINGS);
    for step in 0..300 {
        let parts = majority(step, 16).split(8).unwrap();
        train_state.step(&parts, ForwardContext::training(7, step), at(step)).unwrap();
    }
    let model = parameters::without_autodiff(train_state.model());
    let score = || train_state.objective().score(&model, &majority(1_000_000, 200), &ForwardContext::evaluation(7));
    assert!(score().accuracy().unwrap() > 0.95, "{:?}", score().accuracy());
    assert!(score().loss() < 0.3, "{}", score().loss());
    assert_eq!(score(), score(), "evaluation draws");
}

#[test]
fn noise_depends_on_the_step_and_not_on_the_parts() {
    let train_state = TrainState::new(Bag::new(), Majority { dropout: 0.5 }, SETTINGS);
    let batch = majority(0, 12);
    let gradients = |rows: usize, pass: ForwardContext| {
        let found = train_state.gradients(&batch.split(rows).unwrap(), pass);
        let values: Vec<f64> = found.values[0].clone().into_data().iter::<f64>().collect();
        (found.loss, values)
    };
    let (loss, whole) = gradients(12, ForwardContext::training(1, 0));
    let (split_loss, parts) = gradients(4, ForwardContext::training(1, 0));
    // the same sums in another order, in f32
    assert!((loss - split_loss).abs() < 1e-6, "{loss} {split_loss}");
    assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-6), "{whole:?} {parts:?}");
    assert_ne!(gradients(12, ForwardContext::training(1, 1)).1, whole);
    assert_ne!(gradients(12, ForwardContext::training(2, 0)).1, whole);
    assert_ne!(gradients(12, ForwardContext::evaluation(1)).1, whole);
}

fn counting(step: u64, rows: usize, len: usize) -> SequenceBatch {
    let token = |row: usize, at: usize| ((step as usize * 7 + row * 5 + at) % 23) as u32;
    let all = |shift: usize| (0..rows).flat_map(|row| (0..len).map(move |at| token(row, at + shift))).collect();
    SequenceBatch { tokens: all(0), targets: all(1), rows, len, ..SequenceBatch::default() }
}

fn decoder(plan: &Plan) -> TrainState<Decoder, NextTokenPrediction> {
    TrainState::new(Decoder::new(plan, &device()), NextTokenPrediction::default(), settings(plan))
}

fn config() -> TrainConfig {
    TrainConfig { weight_decay: 0.1, ..TrainConfig::default() }
}

#[test]
fn matrices_are_decayed_and_kernels_are_not() {
    for kind in METHODS {
        let plan = plan(&encoding(kind), config());
        let model = Decoder::new(&plan, &device());
        let learned = plan.encoding.parameters(&plan.geometry());
        for (name, group) in parameters::names(&model).iter().zip(parameters::param_groups(&model)) {
            let expected = match name.strip_prefix("encoding.values.") {
                Some(index) => {
                    let parameter = &learned[index.parse::<usize>().unwrap()];
                    let matrix = ["t5", "learned"].contains(&kind);
                    ParamGroup { decay: matrix, range: Some([parameter.low, parameter.high]) }
                }
                None if name.starts_with("encoding.layers.") => {
                    // networks over scores: which of their numbers are decayed is said one by one
                    let index: usize = name.rsplit('.').next().unwrap().parse().unwrap();
                    let parameter =
                        learned.iter().filter(|known| known.share == ParameterShare::Layer).nth(index).unwrap();
                    ParamGroup { decay: parameter.decay, range: Some(parameter.raw_range()) }
                }
                None => {
                    ParamGroup { decay: name.ends_with("weight") || name == "embedding" || name == "head", range: None }
                }
            };
            assert_eq!(group, expected, "{kind}: {name}");
        }
    }
    let mut free = encoding("kerple_log");
    free.clamp = kerple_core::encoding::Clamp::ForwardOnly;
    let model = Decoder::new(&plan(&free, config()), &device());
    assert!(parameters::param_groups(&model).iter().all(|group| group.range.is_none()));
}

#[test]
fn decay_pulls_a_table_and_leaves_a_kernel() {
    let step = |kind: &str, weight_decay: f64| {
        let plan = plan(&encoding(kind), TrainConfig { weight_decay, ..config() });
        let mut train_state = decoder(&plan);
        train_state.step(&[counting(0, 4, 12)], ForwardContext::training(7, 0), at(0)).unwrap();
        train_state.model().trunk.encoding.numbers(0)
    };
    for kind in ["t5", "learned"] {
        assert_ne!(step(kind, 0.0), step(kind, 0.5), "{kind}");
    }
    assert_eq!(step("kerple_log", 0.0), step("kerple_log", 0.5));
}

#[test]
fn composed_and_fused_updates_agree() {
    for kind in ["kerple_log", "t5", "rotary", "learned"] {
        let plan = plan(&encoding(kind), config());
        let train_state = |implementation| {
            let model = Decoder::new(&plan, &device()).with_implementation(implementation);
            TrainState::new(model, NextTokenPrediction::default(), settings(&plan)).with_implementation(implementation)
        };
        let (mut fused, mut composed) = (train_state(Impl::Kernel), train_state(Impl::Reference));
        for step in 0..6 {
            let parts = counting(step, 4, 12).split(2).unwrap();
            let a = fused.step(&parts, ForwardContext::training(7, step), at(step)).unwrap();
            let b = composed.step(&parts, ForwardContext::training(7, step), at(step)).unwrap();
            // both in f32; Adam's first steps divide by the gradient's size and keep differences of the smallest alive
            assert!((a.loss - b.loss).abs() < 2e-4 * a.loss, "{kind} {step}: {a:?} {b:?}");
            assert!((a.grad_norm - b.grad_norm).abs() < 2e-3 * a.grad_norm, "{kind} {step}: {a:?} {b:?}");
        }
    }
}

#[test]
fn only_scored_targets_count() {
    let plan = plan(&encoding("alibi"), config());
    let train_state = decoder(&plan);
    let mut batch = counting(3, 4, 12);
    // one, two, three and four targets of the rows
    let scored: Vec<bool> = (0..48).map(|at| at % 12 <= at / 12).collect();
    batch.scored = Some(scored.clone());
    let model = parameters::without_autodiff(train_state.model());
    let scores = NextTokenPrediction::default().score(&model, &batch, &ForwardContext::evaluation(0));
    let whole = train_state.gradients(std::slice::from_ref(&batch), ForwardContext::training(7, 0));
    assert!((whole.loss - scores.loss()).abs() < 1e-5, "{} {}", whole.loss, scores.loss());

    let values = |tensors: &[Tensor<1>]| -> Vec<f64> {
        tensors.iter().flat_map(|t| t.clone().into_data().iter::<f64>().collect::<Vec<_>>()).collect()
    };
    for (target, scored) in batch.targets.iter_mut().zip(&scored) {
        *target = if *scored { *target } else { 22 - *target };
    }
    let other = train_state.gradients(std::slice::from_ref(&batch), ForwardContext::training(7, 0));
    assert_eq!((whole.loss, values(&whole.values)), (other.loss, values(&other.values)));

    // what is padding is not scored either, and as the last of its row changes nothing before it
    let lengths = SequenceBatch { scored: None, lengths: Some(vec![1, 2, 3, 4]), ..batch.clone() };
    assert_eq!(train_state.gradients(&[lengths], ForwardContext::training(7, 0)).loss, whole.loss);

    // parts score 1, 2, 3 and 4 targets: they are weighted by that
    let parts = train_state.gradients(&batch.split(1).unwrap(), ForwardContext::training(7, 0));
    assert!((whole.loss - parts.loss).abs() < 1e-5, "{} {}", whole.loss, parts.loss);
    let largest = values(&whole.values).iter().fold(0f64, |m, x| m.max(x.abs()));
    for (a, b) in values(&whole.values).iter().zip(values(&parts.values)) {
        assert!((a - b).abs() < 1e-5 * largest, "{a} {b}"); // the same sums in another order, in f32
    }
}

#[test]
fn any_number_of_ranks_equals_one_with_as_many_parts() {
    let plan = plan(&encoding("kerple_log"), config());
    let train = |ranks: Ranks| {
        let mut train_state = decoder(&plan).with_ranks(ranks.clone());
        let learned = |step: u64| {
            let batch = counting(step, 12, 12);
            let parts: Vec<SequenceBatch> = ranks.rows(12, 1).into_iter().map(|rows| batch.slice(rows)).collect();
            train_state.step(&parts, ForwardContext::training(7, step), at(step)).unwrap()
        };
        let learned: Vec<StepMetrics> = (0..4).map(learned).collect();
        (learned, weights(&train_state))
    };
    let alone = train(Ranks::alone());
    for count in [2, 3, 4, 6, 12] {
        for (rank, result) in on_ranks(count, train).into_iter().enumerate() {
            assert!(result == alone, "rank {rank} of {count}");
        }
    }
}

#[test]
fn ranks_of_which_some_score_nothing_add_up() {
    let plan = plan(&encoding("alibi"), config());
    let gradients = |ranks: Ranks| {
        let mut batch = counting(3, 4, 12);
        // nothing of the first and the third row counts
        batch.scored = Some((0..48).map(|at| at / 12 % 2 == 1 && at % 3 > 0).collect());
        let train_state = decoder(&plan).with_ranks(ranks.clone());
        let parts: Vec<SequenceBatch> = ranks.rows(4, 1).into_iter().map(|rows| batch.slice(rows)).collect();
        let found = train_state.gradients(&parts, ForwardContext::training(7, 0));
        let bits = |values: Tensor<1>| values.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<u32>>();
        (found.loss.to_bits(), found.values.into_iter().map(bits).collect::<Vec<_>>())
    };
    let alone = gradients(Ranks::alone());
    for count in [2, 4] {
        for (rank, result) in on_ranks(count, gradients).into_iter().enumerate() {
            assert!(result == alone, "rank {rank} of {count}");
        }
    }
}

#[test]
fn a_stored_state_is_restored() {
    let plan = plan(&encoding("kerple_bias_weight"), config());
    let mut train_state = decoder(&plan);
    let step = |train_state: &mut TrainState<Decoder, NextTokenPrediction>, n: u64| {
        train_state.step(&[counting(n, 4, 12)], ForwardContext::training(7, n), at(n)).unwrap()
    };
    step(&mut train_state, 0);
    let stored = [CheckpointPart::Weights, CheckpointPart::Moments].map(|part| train_state.stored(part));
    assert_eq!(stored[1].len(), 2 * stored[0].len());
    assert_eq!(stored[1][0].name, format!("first.{}", stored[0][0].name));
    assert_eq!(stored[1][0].array.shape(), stored[0][0].array.shape());

    let mut other = decoder(&plan);
    for (part, stored) in [CheckpointPart::Weights, CheckpointPart::Moments].into_iter().zip(&stored) {
        let fill = |name: &str, values: &mut [f32]| {
            let named = stored.iter().find(|named| named.name == name).ok_or(())?;
            values.copy_from_slice(named.array.slice());
            Ok::<(), ()>(())
        };
        other.restore(part, fill).unwrap();
    }
    let expected: Vec<StepMetrics> = (1..4).map(|n| step(&mut train_state, n)).collect();
    let got: Vec<StepMetrics> = (1..4).map(|n| step(&mut other, n)).collect();
    assert_eq!(got, expected);
    assert_eq!(weights(&train_state), weights(&other));
}

#[test]
fn a_number_that_is_none_changes_nothing() {
    let plan = plan(&encoding("kerple_log"), config());
    let mut train_state = decoder(&plan);
    assert_eq!(train_state.not_finite(), None);
    let poison = |name: &str, values: &mut [f32]| {
        values.fill(if name == "head" { f32::INFINITY } else { 0.01 });
        Ok::<(), ()>(())
    };
    train_state.restore(CheckpointPart::Weights, poison).unwrap();
    assert_eq!(train_state.not_finite().as_deref(), Some("head"));
    let before = weights(&train_state);
    let error = train_state.step(&[counting(0, 4, 12)], ForwardContext::training(7, 0), at(0)).unwrap_err();
    let NonFiniteValue { what, value } = error;
    assert!(what == "the loss" && !value.is_finite(), "{what} {value}");
    assert_eq!(weights(&train_state), before);
}

#[test]
fn updates_that_are_read_later_are_the_same_until_one_is_none() {
    let plan = plan(&encoding("kerple_log"), config());
    let pass = |n: u64| ForwardContext::training(7, n);
    let (mut soon, mut late) = (decoder(&plan), decoder(&plan));
    let batch = |n: u64| counting(n, 4, 12).split(2).unwrap();
    let read: Vec<StepMetrics> = (0..3).map(|n| soon.step(&batch(n), pass(n), at(n)).unwrap()).collect();
    (0..3).for_each(|n| late.advance(&batch(n), pass(n), at(n)));
    assert_eq!(late.read(), read);
    assert_eq!((weights(&late), late.read()), (weights(&soon), Vec::new()));
    // one update makes the weights infinite; those behind it leave them as they are
    late.advance(&batch(3), pass(3), AdamWStep { learning_rate: f64::INFINITY, ..at(3) });
    let spoiled = weights(&late);
    (4..6).for_each(|n| late.advance(&batch(n), pass(n), at(n)));
    let read: Vec<bool> = late.read().iter().map(StepMetrics::is_finite).collect();
    assert_eq!(read, [true, false, false]);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(weights(&late)), bits(spoiled));
}

#[test]
fn a_step_of_real_size_has_the_same_bits_at_any_number_of_threads() {
    // several blocks of every product, several tiles of attention, several tasks of every row operation and of Adam
    let plan = crate::common::plan_of(&encoding("kerple_log"), config(), [3, 4, 64], [160, 8]);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut train_state = decoder(&plan);
            let learned: Vec<StepMetrics> = (0..2)
                .map(|n| {
                    train_state
                        .step(&counting(n, 8, 160).split(4).unwrap(), ForwardContext::training(7, n), at(n))
                        .unwrap()
                })
                .collect();
            (learned, weights(&train_state))
        })
    };
    let one = run(1);
    for threads in [2, 3, 7] {
        assert!(run(threads) == one, "{threads} threads");
    }
}
