//! Every choice of a block's plan: the fused block equals its reference in the output and every gradient, and passes finite
//! differences.

use crate::common::{
    PASS, Randomize, TRAINING, ToDouble, ToSingle, assert_close, assert_slopes, device, init, random, rng, run, tensor,
};
use burn::module::Module;
use burn::tensor::{DType, Tensor};
use kerple_burn::attention_context::{AttentionMask, LinearContext, Mask, ScoreContext};
use kerple_burn::block::TransformerBlock;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::SelfAttention;
use kerple_burn::ops::ResidualBase;
use kerple_burn::ops::activation::Activation;
use kerple_burn::ops::attention::attention;
use kerple_burn::ops::linear_attention::{LinearAttentionSettings, linear_attention};
use kerple_burn::parameters;
use kerple_burn::plan::{
    BlockConfig, BlockSizes, FeatureKind, LinearAttentionConfig, NormKind, ResidualKind, SinkKind,
};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry, Method, fox, t5};
use kerple_core::forms::{AttnTemperature, Normalizer, Selective, StickBreaking};
use kerple_core::precision::Precision;

/// A block and an encoding, so that the tables' gradients reach its parameters.
#[derive(Module, Debug)]
struct Both {
    block: TransformerBlock,
    encoding: PositionalEncoding,
}

const SIZES: BlockSizes = BlockSizes { d_model: 10, n_heads: 4, head_dim: 6, d_hidden: 14 };

impl Both {
    fn new(plan: &BlockConfig, kind: &str, layer: usize, seed: u64) -> Both {
        let (device, mut rng) = (device(), rng(seed));
        let block =
            TransformerBlock::new(plan, &SIZES, layer, &mut init(&mut rng, &device)).map(&mut Randomize(&mut rng));
        let geometry = Geometry { d_model: SIZES.d_model, ..Geometry::new(SIZES.n_heads, SIZES.head_dim, 64) };
        let encoding = match kind {
            "t5_encoder" => Method::T5(t5::T5Config { bidirectional: true, ..t5::T5Config::default() }).into(),
            "fox_bias_only" => Method::Fox(fox::FoxConfig { gate: fox::FoxGate::BiasOnly, spans: None }).into(),
            kind => Encoding::from(Method::named(kind).unwrap()),
        };
        Both { block, encoding: PositionalEncoding::new(&encoding, &geometry, 1, 3, &device).map(&mut ToDouble) }
    }

    fn forward(&self, x: Tensor<3>, implementation: Impl) -> Tensor<3> {
        let len = x.dims()[1];
        let positions = self.encoding.attention_context(0, [len, len], (&device(), DType::F64), implementation, &PASS);
        self.block.forward(x, &positions, &TRAINING, implementation)
    }
}

fn check(plan: &BlockConfig, kind: &str, layer: usize, seed: u64) {
    let (both, mut rng) = (Both::new(plan, kind, layer, seed), rng(seed + 1));
    let (batch, len) = ([1, 2][seed as usize % 2], [5, 9, 1, 33][seed as usize % 4]);
    let (x, up) = (random([batch, len, SIZES.d_model], &mut rng), random([batch, len, SIZES.d_model], &mut rng));
    let what = format!("{plan:?} {kind}");
    let fused = run(&both, &x, &up, |both, x| both.forward(x, Impl::Kernel));
    let reference = run(&both, &x, &up, |both, x| both.forward(x, Impl::Reference));
    assert_close(&fused, &reference, &what);
    let kinked = plan.clip_qkv.is_some()
        || kind == "dape"
        || plan.normalizer == Normalizer::Softpick
        || plan.selective_attention.is_some()
        || matches!(plan.activation, Activation::Relu | Activation::Relu2);
    // the network of DAPE and selective attention together have kinks in every pair of tokens
    let step = match (kinked, kind == "dape" && plan.selective_attention.is_some()) {
        (_, true) => 4e-6,
        (true, false) => 1e-5,
        (false, false) => 1e-4,
    };
    assert_slopes(&both, &x, &up, |both, x| both.forward(x, Impl::Kernel), &fused, step, &what);
    let values: usize =
        parameters::collect(&both.block).iter().map(|n| n.array.shape().iter().product::<usize>()).sum();
    // the first block of a post-norm model has one norm less
    let absent = if both.block.attention.norm.is_none() { plan.norm.vectors() * SIZES.d_model } else { 0 };
    assert_eq!(values + absent, SIZES.parameters(plan), "{what}");
}

#[test]
fn products_of_choices_equal_their_reference() {
    let mut seed = 0;
    for norm in [NormKind::Layer, NormKind::LayerNoBias, NormKind::Rms] {
        for residual in
            [ResidualKind::Sequential, ResidualKind::Parallel, ResidualKind::NormResidual, ResidualKind::PostLn]
        {
            for (gated, kv_heads, biases) in [
                (false, None, true),
                (true, Some(2), false),
                (true, None, true),
                (false, Some(1), true),
                (false, Some(4), false),
            ] {
                seed += 1;
                let activation = Activation::ALL[seed as usize % 4];
                let plan = BlockConfig {
                    norm,
                    residual,
                    glu: gated,
                    n_kv_heads: kv_heads,
                    qkv_bias: biases,
                    out_bias: biases,
                    mlp_bias: biases,
                    activation,
                    ..BlockConfig::default()
                };
                check(&plan, ["kerple_bias_weight", "rotary", "t5"][seed as usize % 3], 0, seed);
            }
        }
    }
}

fn stick_breaking(attend_current: bool, remainder: bool) -> Normalizer {
    Normalizer::StickBreaking(StickBreaking { attend_current, remainder })
}

/// Whatever becomes of queries, keys and scores.
fn softened(plan: &BlockConfig) -> BlockConfig {
    let (ssmax, sink, attn_softcap) = (Some(0.4), SinkKind::Learned, Some(0.7));
    BlockConfig { qk_norm: true, ssmax, sink, attn_softcap, ..plan.clone() }
}

#[test]
fn maps_take_what_becomes_of_queries_and_scores() {
    let kinds = ["fire", "dape", "transformer_xl", "shaw", "cope", "xpos"];
    for (seed, kind) in kinds.into_iter().enumerate() {
        check(&BlockConfig { ssmax: None, ..softened(&BlockConfig::default()) }, kind, 0, seed as u64 + 200);
    }
}

#[test]
fn selective_attention_takes_maps_and_rotations() {
    let kinds = ["fire", "kerple_bias_weight", "transformer_xl", "shaw", "cope", "dape"];
    for (seed, kind) in kinds.into_iter().enumerate() {
        let selective_attention = Some([Selective::Exclusive, Selective::Inclusive][seed / 2 % 2]);
        check(&BlockConfig { selective_attention, ..BlockConfig::default() }, kind, 0, seed as u64 + 300);
    }
}

#[test]
fn single_choices_equal_their_reference() {
    let default = BlockConfig::default();
    let temperature = Some(AttnTemperature { floor: 2.0, alpha: 0.5 });
    for (seed, plan) in [
        BlockConfig { qkv_bias: false, ..default.clone() },
        BlockConfig { out_bias: false, ..default.clone() },
        BlockConfig { mlp_bias: false, ..default.clone() },
        BlockConfig { norm_eps: 0.3, ..default.clone() },
        BlockConfig { attn_scale: Some(1.0), ..default.clone() },
        BlockConfig { scale_attn_by_layer: true, ..default.clone() },
        BlockConfig { qk_norm: true, ..default.clone() },
        BlockConfig { qk_norm: true, norm_eps: 0.3, n_kv_heads: Some(2), ..default.clone() },
        BlockConfig { key_shift: true, ..default.clone() },
        BlockConfig { key_shift: true, n_kv_heads: Some(2), ..default.clone() },
        BlockConfig { key_shift: true, n_kv_heads: Some(1), clip_qkv: Some(0.4), ..softened(&default) },
        BlockConfig { key_shift: true, ssmax: Some(0.4), ..default.clone() },
        BlockConfig { key_shift: true, qk_norm: true, ..default.clone() },
        BlockConfig { short_conv: Some(4), ..default.clone() },
        BlockConfig { short_conv: Some(3), n_kv_heads: Some(2), dropout: 0.4, ..softened(&default) },
        BlockConfig { short_conv: Some(2), n_kv_heads: Some(1), residual: ResidualKind::Parallel, ..default.clone() },
        BlockConfig { short_conv: Some(7), clip_qkv: Some(0.4), residual: ResidualKind::PostLn, ..default.clone() },
        BlockConfig { short_conv: Some(4), ssmax: Some(0.4), norm: NormKind::Rms, glu: true, ..default.clone() },
        BlockConfig { ssmax: Some(0.4), ..default.clone() },
        BlockConfig { attn_temperature: temperature, ..default.clone() },
        BlockConfig { attn_temperature: temperature, ssmax: Some(0.4), key_shift: true, ..default.clone() },
        BlockConfig { ssmax: Some(0.4), qk_norm: true, n_kv_heads: Some(1), ..default.clone() },
        BlockConfig { sink: SinkKind::Learned, ..default.clone() },
        BlockConfig { sink: SinkKind::OffByOne, n_kv_heads: Some(2), ..default.clone() },
        BlockConfig { attn_softcap: Some(0.3), ..default.clone() },
        BlockConfig { normalizer: stick_breaking(false, true), ..default.clone() },
        BlockConfig { normalizer: stick_breaking(false, false), n_kv_heads: Some(2), ..default.clone() },
        BlockConfig { normalizer: stick_breaking(true, true), sink: SinkKind::None, ..softened(&default) },
        BlockConfig { normalizer: Normalizer::Softpick, ..default.clone() },
        BlockConfig { normalizer: Normalizer::Softpick, sink: SinkKind::None, ..softened(&default) },
        BlockConfig { selective_attention: Some(Selective::Exclusive), attn_scale: Some(2.0), ..default.clone() },
        BlockConfig { selective_attention: Some(Selective::Inclusive), n_kv_heads: Some(2), ..default.clone() },
        BlockConfig { selective_attention: Some(Selective::Exclusive), ..softened(&default) },
        BlockConfig { selective_attention: Some(Selective::Inclusive), ..softened(&default) },
        BlockConfig { clip_qkv: Some(0.4), qk_norm: true, ..softened(&default) },
        softened(&default),
        BlockConfig { clip_qkv: Some(0.4), ..default.clone() },
        BlockConfig {
            clip_qkv: Some(0.4),
            n_kv_heads: Some(2),
            residual: ResidualKind::NormResidual,
            ..default.clone()
        },
        BlockConfig { activation: Activation::Relu, ..default.clone() },
        BlockConfig { activation: Activation::Relu2, ..default.clone() },
        BlockConfig { dropout: 0.4, ..default.clone() },
        BlockConfig { dropout: 0.4, residual: ResidualKind::Parallel, ..default.clone() },
        BlockConfig { dropout: 0.4, residual: ResidualKind::NormResidual, ..default.clone() },
        BlockConfig { dropout: 0.4, residual: ResidualKind::PostLn, ..default.clone() },
        BlockConfig { dropout: 0.4, hidden_dropout: true, ..default.clone() },
        BlockConfig { dropout: 0.4, hidden_dropout: true, glu: true, ..default.clone() },
        default,
    ]
    .into_iter()
    .enumerate()
    {
        check(&plan, ["kerple_log", "rotary"][seed / 2 % 2], 2, seed as u64 + 100);
    }
}

/// Gates are made of the rows of a block, whatever else becomes of those.
#[test]
fn gates_equal_their_reference() {
    let default = BlockConfig::default();
    for (seed, plan) in [
        default.clone(),
        softened(&default),
        BlockConfig { n_kv_heads: Some(2), norm: NormKind::Rms, qkv_bias: false, ..default.clone() },
        BlockConfig {
            n_kv_heads: Some(1),
            sink: SinkKind::OffByOne,
            residual: ResidualKind::Parallel,
            ..default.clone()
        },
        BlockConfig { residual: ResidualKind::NormResidual, dropout: 0.4, ..default.clone() },
        BlockConfig { residual: ResidualKind::PostLn, ..default.clone() },
        BlockConfig { clip_qkv: Some(0.4), ..default },
    ]
    .into_iter()
    .enumerate()
    {
        for kind in ["fox", "fox_bias_only"] {
            // the first layer of a post-norm model has no norm
            check(&plan, kind, seed % 2, seed as u64 + 300);
        }
    }
}

/// Each choice changes what a block computes.
#[test]
fn every_choice_matters() {
    let plain = BlockConfig::default();
    let out = |plan: &BlockConfig, layer: usize| {
        let (both, mut rng) = (Both::new(plan, "kerple_log", layer, 5), rng(6));
        crate::common::values(&both.forward(random([1, 7, SIZES.d_model], &mut rng), Impl::Kernel))
    };
    // those that keep the parameters, and with them the random draws
    for changed in [
        BlockConfig { norm_eps: 0.3, ..plain.clone() },
        BlockConfig { residual: ResidualKind::Parallel, ..plain.clone() },
        BlockConfig { residual: ResidualKind::NormResidual, ..plain.clone() },
        BlockConfig { activation: Activation::GeluTanh, ..plain.clone() },
        BlockConfig { activation: Activation::Silu, ..plain.clone() },
        BlockConfig { activation: Activation::QuickGelu, ..plain.clone() },
        BlockConfig { attn_scale: Some(1.0), ..plain.clone() },
        BlockConfig { scale_attn_by_layer: true, ..plain.clone() },
        BlockConfig { clip_qkv: Some(0.1), ..plain.clone() },
        BlockConfig { sink: SinkKind::OffByOne, ..plain.clone() },
        BlockConfig { attn_softcap: Some(0.1), ..plain.clone() },
        BlockConfig { dropout: 0.4, ..plain.clone() },
    ] {
        assert_ne!(out(&changed, 1), out(&plain, 1), "{changed:?}");
    }
    let dropped = BlockConfig { dropout: 0.4, ..plain.clone() };
    assert_ne!(out(&BlockConfig { hidden_dropout: true, ..dropped.clone() }, 1), out(&dropped, 1));
    assert_eq!(out(&BlockConfig { hidden_dropout: true, ..plain.clone() }, 1), out(&plain, 1));
    let by_layer = BlockConfig { scale_attn_by_layer: true, ..plain.clone() };
    assert_eq!(out(&by_layer, 0), out(&plain, 0));
    let usual = BlockConfig { attn_scale: Some((SIZES.head_dim as f64).sqrt().recip()), ..plain.clone() };
    assert_eq!(out(&usual, 0), out(&plain, 0));
}

/// An encoder's attention: both directions, padded sequences, with and without a window.
#[test]
fn both_directions_equal_their_reference() {
    let plans = [
        BlockConfig::default(),
        BlockConfig { n_kv_heads: Some(2), residual: ResidualKind::Parallel, ..BlockConfig::default() },
        BlockConfig { clip_qkv: Some(0.9), ..BlockConfig::default() },
        softened(&BlockConfig::default()),
    ];
    let kinds = ["kerple_bias_weight", "rotary", "none", "alibi", "t5_encoder", "fox"];
    for (seed, (plan, kind)) in plans.iter().flat_map(|plan| kinds.map(|kind| (plan, kind))).enumerate() {
        let (both, mut rng) = (Both::new(plan, kind, 0, seed as u64), rng(seed as u64 + 50));
        let encoding = both.encoding.with_window([None, Some(3)][seed % 2]);
        let both = Both { encoding, ..both };
        let (batch, len) = (3, 7);
        let lengths = [None, Some([7, 4, 1])][seed / 2 % 2];
        let (x, up) = (random([batch, len, SIZES.d_model], &mut rng), random([batch, len, SIZES.d_model], &mut rng));
        let forward = |both: &Both, x: Tensor<3>, implementation| {
            let positions =
                both.encoding.attention_context(0, [len, len], (&device(), DType::F64), implementation, &PASS);
            let positions = positions.bidirectional().with_lengths(lengths.map(|lengths| lengths.into()));
            both.block.forward(x, &positions, &PASS, implementation)
        };
        let what = format!("{plan:?} {kind} {lengths:?}");
        let fused = run(&both, &x, &up, |both, x| forward(both, x, Impl::Kernel));
        let reference = run(&both, &x, &up, |both, x| forward(both, x, Impl::Reference));
        assert_close(&fused, &reference, &what);
        assert_slopes(&both, &x, &up, |both, x| forward(both, x, Impl::Kernel), &fused, 1e-5, &what);
    }
}

/// The first branch of a post-norm model has no norm, every other one that of the branch before it.
#[test]
fn post_norm_norms_what_a_branch_was_added_to() {
    let plan = BlockConfig { residual: ResidualKind::PostLn, ..BlockConfig::default() };
    let (first, second) = (Both::new(&plan, "none", 0, 1), Both::new(&plan, "none", 1, 2));
    let x = random([2, 5, SIZES.d_model], &mut rng(3));
    let positions = first.encoding.attention_context(0, [5, 5], (&device(), DType::F64), Impl::Kernel, &PASS);
    let e = Impl::Reference;
    let fed = |both: &Both, x: Tensor<3>| {
        let mlp = &both.block.mlp;
        mlp.down.forward(burn::tensor::activation::gelu(mlp.up.forward(x)))
    };
    let attended = |both: &Both, x: Tensor<3>| {
        let mut bare: SelfAttention = both.block.attention.clone();
        bare.norm = None;
        bare.forward(x, ResidualBase::Input, &positions, e)
    };
    let expected = {
        let n1 = first.block.mlp.norm.forward(attended(&first, x.clone()), e);
        let x = n1.clone() + fed(&first, n1);
        let n2 = second.block.attention.norm.as_ref().unwrap().forward(x, e);
        let n3 = second.block.mlp.norm.forward(attended(&second, n2), e);
        n3.clone() + fed(&second, n3)
    };
    let got = second.forward(first.forward(x, Impl::Kernel), Impl::Kernel);
    assert_close(&[crate::common::values(&got)], &[crate::common::values(&expected)], "post-norm");
}

/// One key head with H query heads is the same as H equal key heads.
#[test]
fn shared_key_heads_equal_repeated_ones() {
    let (device, mut rng) = (device(), rng(8));
    let none = Encoding::from(Method::named("none").unwrap());
    let geometry = Geometry::new(SIZES.n_heads, SIZES.head_dim, 64);
    let none = PositionalEncoding::new(&none, &geometry, 1, 0, &device);
    let positions = none.attention_context(0, [9, 9], (&device, DType::F64), Impl::Kernel, &PASS);
    let one = BlockConfig { n_kv_heads: Some(1), ..BlockConfig::default() };
    let one = TransformerBlock::new(&one, &SIZES, 0, &mut init(&mut rng, &device)).map(&mut Randomize(&mut rng));
    let mut all = TransformerBlock::new(&BlockConfig::default(), &SIZES, 0, &mut init(&mut rng, &device));
    // every parameter but the packed projection is the same
    let (d, m) = (SIZES.head_dim, SIZES.d_model);
    let columns = |packed: &[f64], width: usize| -> Vec<f64> {
        let row = |row: &[f64]| {
            let head = |h: usize| [&row[h * d..(h + 1) * d], &row[SIZES.n_heads * d..]].concat();
            (0..SIZES.n_heads).flat_map(head).collect::<Vec<f64>>()
        };
        packed.chunks(width).flat_map(row).collect()
    };
    let packed = one.attention.heads().packed();
    let weight = columns(&crate::common::values(&one.attention.qkv.weight.val()), packed);
    let bias = columns(&crate::common::values(&one.attention.qkv.bias.as_ref().unwrap().val()), packed);
    let out = one.attention.out.clone();
    let wide = weight.len() / m;
    all.attention.norm = one.attention.norm.clone();
    all.attention.qkv.weight = burn::module::Param::from_tensor(crate::common::tensor(weight, [m, wide]));
    all.attention.qkv.bias = Some(burn::module::Param::from_tensor(crate::common::tensor(bias, [wide])));
    all.attention.out = out;
    all.mlp = one.mlp.clone();
    let x = random([2, 9, m], &mut rng);
    let (a, b) =
        (one.forward(x.clone(), &positions, &PASS, Impl::Kernel), all.forward(x, &positions, &PASS, Impl::Kernel));
    assert_close(&[crate::common::values(&a)], &[crate::common::values(&b)], "shared key heads");
}

/// A batch is filled up with anything: gates there that are not known change no output and no gradient of what is not padding.
#[test]
fn unknown_gates_under_padding_count_as_nothing() {
    let (lengths, [batch, heads, len]) = ([7, 4, 1], [3, 2, 7]);
    let mut rng = rng(81);
    let gates = random([batch, heads, len], &mut rng).abs().neg();
    let rows = [(); 3].map(|()| random([batch, heads, len, SIZES.head_dim], &mut rng));
    let is_padding = |at: usize| at % len >= lengths[at / (heads * len)];
    let of = |padding: f64, linear: bool, implementation: Impl| {
        let filled = crate::common::values(&gates).into_iter().enumerate();
        let filled = filled.map(|(at, gate)| if is_padding(at) { padding } else { gate }).collect();
        let gates = tensor(filled, [batch, heads, len]).require_grad();
        let rows = rows.clone().map(Tensor::require_grad);
        let mask = AttentionMask { pattern: Mask::CAUSAL, lengths: Some(lengths.as_slice().into()), documents: None };
        let out = match linear {
            true => {
                let plan = LinearAttentionConfig { feature_map: FeatureKind::Elu, ..LinearAttentionConfig::default() };
                let linear = LinearAttentionSettings { plan, layer: 0 };
                linear_attention(
                    rows.clone(),
                    &linear,
                    &mask,
                    Some(gates.clone()),
                    &LinearContext::default(),
                    implementation,
                )
            }
            false => {
                let [q, k, v] = rows.clone();
                let context = ScoreContext { mask, gates: Some(gates.clone()), ..ScoreContext::default() };
                attention(q, k, v, 0.5, &context, implementation)
            }
        };
        let mut gradients = (out.clone() * out.clone().sin()).sum().backward();
        let mut found =
            vec![crate::common::values(&out), crate::common::values(&gates.grad_remove(&mut gradients).unwrap())];
        found.extend(rows.map(|rows| crate::common::values(&rows.grad_remove(&mut gradients).unwrap())));
        found
    };
    for linear in [false, true] {
        for implementation in [Impl::Kernel, Impl::Reference] {
            let (unknown, none) = (of(f64::NAN, linear, implementation), of(0.0, linear, implementation));
            assert!(unknown.iter().flatten().all(|value| value.is_finite()), "{linear} {implementation:?}");
            assert_eq!([&unknown[0], &unknown[2], &unknown[3], &unknown[4]], [&none[0], &none[2], &none[3], &none[4]]);
            let gates = unknown[1].iter().zip(&none[1]).enumerate();
            for (at, (unknown, none)) in gates {
                assert_eq!(*unknown, if is_padding(at) { 0.0 } else { *none }, "{linear} {implementation:?} {at}");
            }
        }
    }
}

/// With products of `bf16` a block is itself, but for their rounding, and its gradients are those of what it computes.
#[test]
fn products_of_bf16_are_close() {
    let sizes = BlockSizes { d_model: 64, n_heads: 2, head_dim: 32, d_hidden: 96 };
    let default = BlockConfig::default();
    let plans = [
        BlockConfig { glu: true, norm: NormKind::Rms, n_kv_heads: Some(1), ..default.clone() },
        BlockConfig { dropout: 0.1, ..softened(&default) },
        default,
    ];
    for (seed, (plan, kind)) in plans.iter().zip(["rotary", "fox", "kerple_log"]).enumerate() {
        let mut rng = rng(seed as u64 + 1);
        let block = TransformerBlock::new(plan, &sizes, 0, &mut init(&mut rng, &device()));
        let geometry = Geometry { d_model: sizes.d_model, ..Geometry::new(sizes.n_heads, sizes.head_dim, 64) };
        let encoding = Encoding::from(Method::named(kind).unwrap());
        let encoding = PositionalEncoding::new(&encoding, &geometry, 1, 3, &device());
        let both = Both { block, encoding }.map(&mut ToSingle);
        let [x, up] = [(); 2].map(|()| random([2, 40, sizes.d_model], &mut rng).cast(DType::F32));
        let of = |implementation| {
            run(&both, &x, &up, |both, x| {
                let to = (&device(), DType::F32);
                let positions = both.encoding.attention_context(0, [40, 40], to, implementation, &PASS);
                both.block.forward(x, &positions, &TRAINING, implementation)
            })
        };
        let (exact, short) = (of(Impl::Kernel), of(Impl::with_precision(Precision::Bf16)));
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        for (at, (exact, short)) in exact.iter().zip(&short).enumerate() {
            let size = norm(&mut exact.iter().copied());
            let error = norm(&mut exact.iter().zip(short).map(|(a, b)| a - b));
            // a dozen roundings of 2^-8 at most, of terms that in some gradients are a few times as large as their sum; what
            // adds one number to all keys has no gradient but rounding
            assert!(error <= 16.0 * Precision::Bf16.unit() * size + 1e-4, "{kind} {at}: {error:e} of {size:e}");
            assert!(at > 0 || error > 0.05 * Precision::Bf16.unit() * size, "{kind}: rounded, {error:e} of {size:e}");
        }
    }
}
