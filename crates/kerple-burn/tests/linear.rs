//! Linear attention in a block: the fused operation equals its reference in the output and every gradient, for every feature
//! map and every encoding it takes; and going on from a state equals having computed all at once.

use crate::common::{Randomize, ToDouble, assert_close, assert_slopes, device, init, random, rng, run};
use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use kerple_burn::attention_context::AttentionContext;
use kerple_burn::block::TransformerBlock;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::LayerInit;
use kerple_burn::plan::{AttentionKind, BlockConfig, BlockSizes, FeatureKind, InitKind, LinearAttentionConfig};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry};

#[derive(Module, Debug)]
struct Both {
    block: TransformerBlock,
    encoding: PositionalEncoding,
}

const SIZES: BlockSizes = BlockSizes { d_model: 10, n_heads: 2, head_dim: 4, d_hidden: 12 };
const GEOMETRY: Geometry = Geometry { d_model: 10, ..Geometry::new(2, 4, 64) };
const FEATURES: [FeatureKind; 5] =
    [FeatureKind::Favor, FeatureKind::FavorJax, FeatureKind::Relu, FeatureKind::ReluRf, FeatureKind::Elu];

fn encodings() -> Vec<Encoding> {
    let read = |text: &str| serde_json::from_str::<Encoding>(text).unwrap();
    [
        r#"{"kind":"none"}"#,
        r#"{"kind":"rotary"}"#,
        r#"{"kind":"alibi"}"#,
        r#"{"kind":"kerple_log"}"#,
        r#"{"kind":"kerple_power","r2":[0.0,1.0]}"#,
        r#"{"kind":"sine_spe","num_sines":2,"num_realizations":6}"#,
        r#"{"kind":"sine_spe","num_sines":1,"num_realizations":5,"gated":false,"noise":"shared","share":"layer"}"#,
        r#"{"kind":"sine_spe","num_sines":1,"num_realizations":5,"gating":"jax"}"#,
        r#"{"kind":"conv_spe","kernel_size":[5],"num_realizations":6}"#,
        r#"{"kind":"conv_spe","kernel_size":[2,3],"size":[12,20],"num_realizations":6,"gated":false}"#,
        r#"{"kind":"kerple_power","r1":[0.03,0.1],"r2":[1.1,1.4]}"#,
        r#"{"kind":"fox"}"#,
        r#"{"kind":"fox","gate":"bias_only"}"#,
        r#"{"kind":"fox","gate":"fixed","spans":[2,16]}"#,
    ]
    .map(read)
    .into()
}

fn plan(features: FeatureKind) -> BlockConfig {
    let linear = LinearAttentionConfig { feature_map: features, n_features: 10, ..LinearAttentionConfig::default() };
    BlockConfig { attention: AttentionKind::Linear(linear), ..BlockConfig::default() }
}

impl Both {
    fn new(plan: &BlockConfig, encoding: &Encoding, seed: u64) -> Both {
        let (device, mut rng) = (device(), rng(seed));
        let block = TransformerBlock::new(plan, &SIZES, 1, &mut init(&mut rng, &device)).map(&mut Randomize(&mut rng));
        let encoding = PositionalEncoding::new(encoding, &GEOMETRY, 2, 3, &device).map(&mut ToDouble);
        Both { block, encoding: encoding.with_attention(&plan.attention) }
    }

    fn positions(&self, len: usize, pass: &ForwardContext, implementation: Impl) -> AttentionContext {
        self.encoding.attention_context(1, [len, len], (&device(), DType::F64), implementation, pass)
    }
}

#[test]
fn fused_equals_its_reference() {
    let all = encodings().into_iter().flat_map(|encoding| FEATURES.map(|features| (encoding.clone(), features)));
    for (seed, (encoding, features)) in all.enumerate() {
        let (both, mut rng) = (Both::new(&plan(features), &encoding, seed as u64), rng(seed as u64 + 1));
        // more than two chunks in some of them
        let (batch, len) = ([1, 2][seed % 2], [7, 290, 33][seed % 3]);
        let (x, up) = (random([batch, len, SIZES.d_model], &mut rng), random([batch, len, SIZES.d_model], &mut rng));
        let lengths = (seed % 4 == 3).then(|| (2..2 + batch).map(|part| len / part).collect::<Vec<usize>>());
        let forward = |both: &Both, x: Tensor<3>, implementation| {
            let positions = both.positions(len, &ForwardContext::training(3, 5), implementation);
            let causal = seed % 5 > 1 || positions.gates.is_some();
            let positions = if causal { positions } else { positions.bidirectional() };
            let positions = positions.with_lengths(lengths.clone().map(|lengths| lengths.into()));
            both.block.forward(x, &positions, &ForwardContext::training(3, 5), implementation)
        };
        let what = format!("{} {features:?} {len}", encoding.label());
        let fused = run(&both, &x, &up, |both, x| forward(both, x, Impl::Kernel));
        let reference = run(&both, &x, &up, |both, x| forward(both, x, Impl::Reference));
        assert_close(&fused, &reference, &what);
        if seed % 7 == 0 {
            let kinked = matches!(features, FeatureKind::Relu | FeatureKind::ReluRf);
            let step = if kinked { 1e-5 } else { 1e-4 };
            assert_slopes(&both, &x, &up, |both, x| forward(both, x, Impl::Kernel), &fused, step, &what);
        }
    }
}

/// Their gradients are of draws' means, not of what was drawn: no differences to compare them with.
#[test]
fn centred_gradients_are_those_of_the_reference() {
    let encoding =
        serde_json::from_str(r#"{"kind":"sine_spe","num_sines":2,"num_realizations":6,"centred":true}"#).unwrap();
    let (both, mut rng, len) = (Both::new(&plan(FeatureKind::Favor), &encoding, 3), rng(4), 290);
    let (x, up) = (random([1, len, SIZES.d_model], &mut rng), random([1, len, SIZES.d_model], &mut rng));
    let forward = |both: &Both, x: Tensor<3>, implementation| {
        both.block.forward(
            x,
            &both.positions(len, &ForwardContext::training(3, 5), implementation),
            &ForwardContext::training(3, 5),
            implementation,
        )
    };
    let [fused, reference] = [Impl::Kernel, Impl::Reference]
        .map(|implementation| run(&both, &x, &up, |both, x| forward(both, x, implementation)));
    assert_close(&fused, &reference, "centred");
    let plain = serde_json::from_str(r#"{"kind":"sine_spe","num_sines":2,"num_realizations":6}"#).unwrap();
    let plain = Both::new(&plan(FeatureKind::Favor), &plain, 3);
    let plain = run(&plain, &x, &up, |both, x| forward(both, x, Impl::Kernel));
    assert_ne!(format!("{fused:?}"), format!("{plain:?}"), "the key changes something");
}

#[test]
fn a_state_equals_whole_sequences() {
    let device = Device::flex();
    for (seed, encoding) in encodings().into_iter().enumerate() {
        let features = FEATURES[seed % FEATURES.len()];
        let (plan, mut draws) = (plan(features), rng(seed as u64));
        let mut init = LayerInit {
            rng: Some(&mut draws),
            kind: InitKind::Normal,
            std: 0.3,
            std_out: 0.3,
            device: &device,
            dtype: DType::F32,
        };
        let block = TransformerBlock::new(&plan, &SIZES, 0, &mut init);
        let module = PositionalEncoding::new(&encoding, &GEOMETRY, 1, 3, &device).with_attention(&plan.attention);
        let (len, pass) = (330, ForwardContext::evaluation(4));
        let x = random([2, len, SIZES.d_model], &mut rng(9)).inner().cast(DType::F32);
        for implementation in [Impl::Kernel, Impl::Reference] {
            let at = |new: usize, all: usize| {
                module.attention_context(0, [new, all], (&device, DType::F32), implementation, &pass)
            };
            let whole = block.forward(x.clone(), &at(len, len), &pass, implementation);
            let mut cache = block.attention.kv_cache(2, implementation);
            let mut first = 0;
            let mut parts = Vec::new();
            for step in [1, 3, 120, 10, 1, 130, 65] {
                let part = x.clone().narrow(1, first, step);
                first += step;
                parts.push(block.extend(part, &at(step, first), &mut cache, implementation));
            }
            assert_eq!((first, cache.len()), (len, len));
            let parts = Tensor::cat(parts, 1);
            let error = (whole.clone() - parts).abs().max().into_scalar::<f32>();
            let size = whole.abs().max().into_scalar::<f32>();
            // f32 sums in another order
            assert!(error <= 2e-5 * size, "{} {features:?} {implementation:?}: {error} of {size}", encoding.label());
        }
    }
}

#[test]
fn draws_are_by_step_in_training_and_fixed_in_evaluation() {
    let encoding = serde_json::from_str::<Encoding>(r#"{"kind":"sine_spe","num_realizations":6}"#).unwrap();
    let out = |plan: &BlockConfig, pass: ForwardContext| {
        let both = Both::new(plan, &encoding, 1);
        let x = random([1, 9, SIZES.d_model], &mut rng(2));
        let positions = both.positions(9, &pass, Impl::Kernel);
        crate::common::values(&both.block.forward(x, &positions, &pass, Impl::Kernel))
    };
    let plan = plan(FeatureKind::Favor);
    let train = |step| out(&plan, ForwardContext::training(1, step));
    assert_eq!(train(3), train(3));
    assert_ne!(train(3), train(4));
    let evaluated = out(&plan, ForwardContext::evaluation(1));
    assert_eq!(evaluated, out(&plan, ForwardContext::evaluation(1).at_row(5)), "rows of a batch share a draw");
    assert_ne!(evaluated, out(&plan, ForwardContext::evaluation(2)));
    // features alone: the same for so many updates
    let none = serde_json::from_str::<Encoding>(r#"{"kind":"none"}"#).unwrap();
    let omega = |redraw: u64, pass: ForwardContext| {
        let linear = LinearAttentionConfig { n_features: 10, redraw_every: redraw, ..LinearAttentionConfig::default() };
        let plan = BlockConfig { attention: AttentionKind::Linear(linear), ..BlockConfig::default() };
        let both = Both::new(&plan, &none, 1);
        let positions = both.positions(9, &pass, Impl::Kernel);
        let x = random([1, 9, SIZES.d_model], &mut rng(2));
        crate::common::values(&both.block.forward(x, &positions, &pass, Impl::Kernel))
    };
    assert_eq!(omega(20, ForwardContext::training(1, 20)), omega(20, ForwardContext::training(1, 39)));
    assert_ne!(omega(20, ForwardContext::training(1, 39)), omega(20, ForwardContext::training(1, 40)));
    assert_eq!(omega(0, ForwardContext::training(1, 39)), omega(0, ForwardContext::evaluation(1)));
}
