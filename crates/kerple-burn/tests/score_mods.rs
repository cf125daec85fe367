//! Encodings that change the scores of all heads together, and products that fade: the fused block equals its reference in
//! the output and every gradient, passes finite differences, gives the same bits on any number of threads, and decodes what
//! it computes of whole sequences.

use crate::common::{PASS, Randomize, ToDouble, assert_close, assert_slopes, device, init, random, rng, run};
use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use kerple_burn::block::TransformerBlock;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::LayerInit;
use kerple_burn::plan::{BlockConfig, BlockSizes, InitKind};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry};

const SIZES: BlockSizes = BlockSizes { d_model: 8, n_heads: 4, head_dim: 5, d_hidden: 6 };

/// A threshold that is no position: where they are equal, the slope of FIRE's bias in it jumps.
const ENCODINGS: &[&str] = &[
    r#"{"kind":"fire","init_l":4.5}"#,
    r#"{"kind":"fire","hidden":3,"init_l":6.25,"window":5}"#,
    r#"{"kind":"dape"}"#,
    r#"{"kind":"dape","base":"alibi","variant":"concat","hidden":7}"#,
    r#"{"kind":"dape","base":"t5","variant":"add_residual","hidden":4,"window":3}"#,
    r#"{"kind":"dape","base":{"kind":"kernel","bias":"log(b, a) + 0.5*power(a, p)","keep":"smooth"},"variant":"bias_only"}"#,
    r#"{"kind":"dape","base":"none","hidden":5}"#,
    r#"{"kind":"dape","base":"rotary","hidden":5}"#,
    r#"{"kind":"dape","base":{"kind":"fire","init_l":4.5,"hidden":6},"hidden":5}"#,
    r#"{"kind":"dape","kernel":3,"hidden":5}"#,
    r#"{"kind":"dape","base":"alibi","kernel":3,"variant":"concat","hidden":5,"window":4}"#,
    r#"{"kind":"dape","kernel":5,"variant":"add_residual","hidden":3,"edge":"closed"}"#,
    r#"{"kind":"dape","base":"alibi","kernel":7,"variant":"bias_only","hidden":3,"edge":"closed","window":4}"#,
    r#"{"kind":"dape","kernel":7,"hidden":3}"#,
    r#"{"kind":"dape","base":{"kind":"fire","init_l":4.5,"hidden":6},"kernel":3,"hidden":5}"#,
    r#"{"kind":"dape","base":"rotary","kernel":5,"hidden":5}"#,
    r#"{"kind":"fire","init_l":40.5,"randomized":200}"#,
    r#"{"kind":"dape","base":{"kind":"fire","init_l":40.5,"hidden":6},"hidden":5,"randomized":200}"#,
    r#"{"kind":"dape","base":{"kind":"fire","init_l":40.5},"kernel":3,"hidden":5,"randomized":200,"window":4}"#,
    r#"{"kind":"dape","base":"rotary","hidden":5,"randomized":200}"#,
    r#"{"kind":"dape","base":"alibi","kernel":3,"hidden":5,"randomized":200}"#,
    r#"{"kind":"transformer_xl"}"#,
    r#"{"kind":"transformer_xl","randomized":200,"window":4}"#,
    r#"{"kind":"shaw","max_distance":3}"#,
    r#"{"kind":"shaw","max_distance":8,"randomized":200}"#,
    r#"{"kind":"shaw","max_distance":3,"values":true}"#,
    r#"{"kind":"shaw","max_distance":3,"values":true,"window":5}"#,
    r#"{"kind":"shaw","max_distance":8,"values":true,"randomized":200}"#,
    r#"{"kind":"cope","npos_max":3}"#,
    r#"{"kind":"cope","window":5}"#,
    r#"{"kind":"xpos","scale_base":12}"#,
    r#"{"kind":"xpos","base":100,"scale_base":16,"gamma":0.2,"window":5}"#,
];

/// Whether an encoder can have it.
fn sees_ahead(text: &str) -> bool {
    !text.contains("xpos")
}

/// A block and an encoding, so that gradients reach the parameters of both.
#[derive(Module, Debug)]
struct Both {
    block: TransformerBlock,
    encoding: PositionalEncoding,
}

/// What a pass sees.
#[derive(Clone, Copy, Debug)]
enum Sees {
    Before,
    All,
    Padded,
}

impl Both {
    fn new(text: &str, plan: &BlockConfig, seed: u64) -> Both {
        let (device, mut rng) = (device(), rng(seed));
        let block = TransformerBlock::new(plan, &SIZES, 0, &mut init(&mut rng, &device)).map(&mut Randomize(&mut rng));
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        let geometry = Geometry::new(SIZES.n_heads, SIZES.head_dim, 4);
        Both { block, encoding: PositionalEncoding::new(&encoding, &geometry, 1, seed, &device).map(&mut ToDouble) }
    }

    fn forward(&self, x: Tensor<3>, sees: Sees, implementation: Impl) -> Tensor<3> {
        let len = x.dims()[1];
        let positions = self.encoding.attention_context(0, [len, len], (&device(), DType::F64), implementation, &PASS);
        let positions = match sees {
            Sees::Before => positions,
            Sees::All => positions.bidirectional(),
            Sees::Padded => positions.bidirectional().with_lengths(Some([len, len / 2].as_slice().into())),
        };
        self.block.forward(x, &positions, &PASS, implementation)
    }
}

#[test]
fn fused_equals_reference_and_finite_differences() {
    let shared = BlockConfig { n_kv_heads: Some(2), ..BlockConfig::default() };
    let clamped = BlockConfig { clip_qkv: Some(2.0), ..BlockConfig::default() }; // takes the parts one by one
    for (seed, &text) in (0..).zip(ENCODINGS) {
        for (plan, sees, len) in [
            (BlockConfig::default(), Sees::Before, 9),
            (shared.clone(), Sees::Before, 1),
            (clamped.clone(), Sees::Before, 6),
            (shared.clone(), Sees::All, 7),
            (BlockConfig::default(), Sees::Padded, 6),
        ] {
            if !matches!(sees, Sees::Before) && !sees_ahead(text) {
                continue;
            }
            let (both, mut rng) = (Both::new(text, &plan, seed), rng(seed + 1));
            let [x, up] = [(); 2].map(|()| random([2, len, SIZES.d_model], &mut rng));
            let what = format!("{text} {sees:?} {len}");
            let fused = run(&both, &x, &up, |both, x| both.forward(x, sees, Impl::Kernel));
            let reference = run(&both, &x, &up, |both, x| both.forward(x, sees, Impl::Reference));
            assert_close(&fused, &reference, &what);
            assert_slopes(&both, &x, &up, |both, x| both.forward(x, sees, Impl::Kernel), &fused, 1e-5, &what);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for text in ENCODINGS {
        let (both, mut rng) = (Both::new(text, &BlockConfig::default(), 5), rng(6));
        let [x, up] = [(); 2].map(|()| random([3, 120, SIZES.d_model], &mut rng));
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(&both, &x, &up, |both, x| both.forward(x, Sees::Before, Impl::Kernel)))
        };
        let one = on(1);
        assert!(one.iter().flatten().all(|value| value.is_finite()), "{text}");
        assert!(one == on(2) && one == on(5), "{text}");
    }
}

#[test]
fn a_kv_cache_equals_whole_sequences() {
    let device = Device::flex();
    for (seed, &text) in (0..).zip(ENCODINGS) {
        let (mut draws, dtype, kind) = (rng(seed), DType::F32, InitKind::Normal);
        let mut init = LayerInit { rng: Some(&mut draws), kind, std: 0.3, std_out: 0.3, device: &device, dtype };
        let block = TransformerBlock::new(&BlockConfig::default(), &SIZES, 0, &mut init);
        let geometry = Geometry::new(SIZES.n_heads, SIZES.head_dim, 4);
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        let module = PositionalEncoding::new(&encoding, &geometry, 1, seed, &device);
        // rows near a closed end are others than in a longer sequence
        let (len, closed) = (150, text.contains("closed"));
        let x = random([2, len, SIZES.d_model], &mut rng(9)).inner().cast(dtype);
        for implementation in [Impl::Kernel, Impl::Reference] {
            let at = |new: usize, all: usize| {
                module.attention_context(0, [new, all], (&device, dtype), implementation, &PASS.over(len))
            };
            let whole = block.forward(x.clone(), &at(len, len), &PASS, implementation);
            let mut cache = block.attention.kv_cache(2, implementation);
            let (mut first, mut parts) = (0, Vec::new());
            for step in [1, 3, 100, 45, 1] {
                let part = x.clone().narrow(1, first, step);
                first += step;
                parts.push(block.extend(part, &at(step, first), &mut cache, implementation));
            }
            assert_eq!((first, cache.len()), (len, len));
            let error = (whole.clone() - Tensor::cat(parts, 1)).abs();
            let error = if closed { error.narrow(1, len - 1, 1) } else { error }.max().into_scalar::<f32>();
            let size = whole.abs().max().into_scalar::<f32>();
            // f32 sums in another order
            assert!(error <= 2e-5 * size, "{text} {implementation:?}: {error} of {size}");
        }
    }
}
