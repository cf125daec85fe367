//! Without fused operations a decoder is the same: its definition runs on any backend, and trains as the fused one does.

use crate::common::{assert_same_gradients, encoding, plan, plan_with};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::activation::Activation;
use kerple_burn::ops::loss::LossTargets;
use kerple_burn::parameters;
use kerple_burn::plan::{BlockConfig, NormKind, ResidualKind, SinkKind};
use kerple_core::encoding::METHODS;
use kerple_core::forms::{Normalizer, Selective, StickBreaking};
use kerple_lm::config::TrainConfig;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::objective::{NextTokenPrediction, SequenceBatch};
use kerple_lm::plan::Plan;
use kerple_lm::train_state::{AdamWConfig, AdamWStep, TrainState};

const BATCH: usize = 4;
const LEN: usize = 12;

/// Sequences that count up from a start that the step decides, modulo 23, and what follows each token.
fn counting(step: u64) -> [Vec<u32>; 2] {
    let token = |row: usize, at: usize| ((step as usize * 7 + row * 5 + at) % 23) as u32;
    [0, 1].map(|shift| (0..BATCH).flat_map(|row| (0..LEN).map(move |at| token(row, at + shift))).collect())
}

/// Small gradients stay small: the sign of one that is only rounding decides nothing.
const SETTINGS: AdamWConfig = AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-2, weight_decay: 0.01, clip: 1.0 };

fn assert_same_training(plan: &Plan, what: &str) {
    let model = Decoder::new(plan, &kerple_lm::device().autodiff());
    let mut fused = TrainState::new(model.clone(), NextTokenPrediction::default(), SETTINGS);
    let mut composed =
        TrainState::new(model.with_implementation(Impl::Reference), NextTokenPrediction::default(), SETTINGS)
            .with_implementation(Impl::Reference);
    let names = parameters::names(fused.model());
    let mut first = None;
    for step in 0..6 {
        let [tokens, targets] = counting(step);
        let batch = [SequenceBatch { tokens, targets, rows: BATCH, len: LEN, ..SequenceBatch::default() }];
        let pass = ForwardContext::training(plan.seed, step);
        let (a, b) = (fused.gradients(&batch, pass), composed.gradients(&batch, pass));
        let loss = b.loss;
        assert_same_gradients(a, b, &names, &format!("{what}, step {step}"));
        let update = AdamWStep { learning_rate: 0.02, adam_step: step + 1 };
        fused.step(&batch, pass, update).unwrap();
        composed.step(&batch, pass, update).unwrap();
        let first = *first.get_or_insert(loss);
        assert!(step < 5 || loss < first - 0.05, "{what}: the loss went from {first} to {loss}");
    }
}

#[test]
fn every_method_trains_composed_as_fused() {
    for kind in METHODS {
        assert_same_training(&plan(&encoding(kind), TrainConfig::default()), kind);
    }
    let of_rows = [
        r#"{"kind":"wall","rank":2}"#,
        r#"{"kind":"wall","g_max":0.5,"scalar_gate":true,"window":6}"#,
        r#"{"kind":"wall","gate":"bounded","rank":2}"#,
        r#"{"kind":"wall","order":"rope_then_channel_decay"}"#,
        r#"{"kind":"grape_ap","features":4,"relative":true,"window":6}"#,
        r#"{"kind":"path","rank":3,"gate":true,"gate_scale":"inside","window":6}"#,
        r#"{"kind":"selective_rope","bias":false,"rank":3}"#,
        r#"{"kind":"selective_rope","gate":true,"decay":true,"scalar_gate":true,"window":6}"#,
        r#"{"kind":"rotary_positions","step":"softplus"}"#,
        r#"{"kind":"pope","width":3,"window":6}"#,
        r#"{"kind":"fope","zero_pad":false}"#,
    ];
    let of_rows = of_rows.map(|text| serde_json::from_str(text).unwrap());
    for encoding in crate::common::maps().into_iter().chain(of_rows) {
        assert_same_training(&plan(&encoding, TrainConfig::default()), &encoding.label());
    }
}

#[test]
fn layers_that_differ_train_composed_as_fused() {
    for (what, plan) in crate::common::patterns(&TrainConfig::default()) {
        assert_same_training(&plan, what);
    }
}

#[test]
fn other_blocks_train_composed_as_fused() {
    let default = BlockConfig::default();
    for block in [
        BlockConfig { residual: ResidualKind::Parallel, tie_embeddings: true, ..default.clone() },
        BlockConfig {
            qk_norm: true,
            ssmax: Some(0.4),
            sink: SinkKind::Learned,
            attn_softcap: Some(2.0),
            ..default.clone()
        },
        BlockConfig { embedding_norm: true, clip_qkv: Some(0.05), lm_head_bias: true, ..default.clone() },
        BlockConfig { normalizer: Normalizer::StickBreaking(StickBreaking::default()), ..default.clone() },
        BlockConfig { normalizer: Normalizer::Softpick, n_kv_heads: Some(1), ..default.clone() },
        BlockConfig { selective_attention: Some(Selective::Exclusive), n_kv_heads: Some(1), ..default.clone() },
        BlockConfig {
            norm: NormKind::Rms,
            glu: true,
            n_kv_heads: Some(1),
            activation: Activation::Silu,
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            ..default
        },
    ] {
        assert_same_training(
            &plan_with(&encoding("kerple_log"), TrainConfig::default(), block.clone()),
            &format!("{block:?}"),
        );
    }
}

#[test]
fn parts_of_a_batch_bring_their_share_of_the_mean() {
    let plan = plan(&encoding("kerple_log"), TrainConfig::default());
    let model = Decoder::new(&plan, &kerple_lm::device());
    let [ids, targets] = counting(3);
    let scored: Vec<bool> = (0..ids.len()).map(|at| at % 5 < 2).collect();
    let number = |tensor: burn::tensor::Tensor<1>| f64::from(tensor.into_scalar::<f32>());
    let all = LossTargets { ids: &targets, scored: Some(&scored) };
    let tokens = TokenBatch { ids: &ids, batch: BATCH, len: LEN, documents: None };
    let (share, pass) = (kerple_burn::ops::loss::mean_share(all), ForwardContext::evaluation(0));
    let whole = number(model.weighted_loss(tokens, all, share, &pass));
    let part = |rows: std::ops::Range<usize>| {
        let at = rows.start * LEN..rows.end * LEN;
        let targets = LossTargets { ids: &targets[at.clone()], scored: Some(&scored[at.clone()]) };
        number(model.weighted_loss(
            TokenBatch { ids: &ids[at], batch: rows.len(), len: LEN, documents: None },
            targets,
            share,
            &pass,
        ))
    };
    assert!((whole - part(0..1) - part(1..4)).abs() < 1e-6 * whole);
    let losses: Vec<f32> = model.losses(tokens, all, &pass).into_data().try_to_vec().unwrap();
    let mean = losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() * share;
    assert!((whole - mean).abs() < 1e-6 * whole, "{whole} {mean}");
}
