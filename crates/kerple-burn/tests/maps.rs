//! Encodings that change the scores of all heads together: the fused block equals its definition in the output and every
//! gradient, passes finite differences, and gives the same bits on any number of threads.

mod common;

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use common::{PASS, Randomize, ToDouble, assert_close, assert_slopes, device, init, random, rng, run};
use kerple::encoding::{Encoding, Geometry};
use kerple_burn::block::Block;
use kerple_burn::forms::Positions;
use kerple_burn::fused::Engine;
use kerple_burn::plan::{BlockPlan, Sizes};
use kerple_burn::positions::PositionalEncoding;

const SIZES: Sizes = Sizes { d_model: 8, n_heads: 4, head_dim: 5, d_hidden: 6 };

/// A threshold that is no position: where they are equal, the slope of FIRE's bias in it jumps.
const ENCODINGS: &[&str] = &[
    r#"{"kind":"fire","threshold":4.5}"#,
    r#"{"kind":"fire","width":3,"threshold":6.25,"window":5}"#,
    r#"{"kind":"dape"}"#,
    r#"{"kind":"dape","base":"alibi","variant":"concat","hidden":7}"#,
    r#"{"kind":"dape","base":"t5","variant":"add_residual","hidden":4,"window":3}"#,
    r#"{"kind":"dape","base":{"kind":"kernel","bias":"log(b, a) + 0.5*power(a, p)","keep":"smooth"},"variant":"bias_only"}"#,
    r#"{"kind":"dape","base":"none","hidden":5}"#,
    r#"{"kind":"dape","base":"rotary","hidden":5}"#,
    r#"{"kind":"dape","base":{"kind":"fire","threshold":4.5,"width":6},"hidden":5}"#,
    r#"{"kind":"dape","kernel":3,"hidden":5}"#,
    r#"{"kind":"dape","base":"alibi","kernel":3,"variant":"concat","hidden":5,"window":4}"#,
    r#"{"kind":"dape","kernel":5,"variant":"add_residual","hidden":3,"edge":"closed"}"#,
    r#"{"kind":"dape","base":"alibi","kernel":7,"variant":"bias_only","hidden":3,"edge":"closed","window":4}"#,
    r#"{"kind":"dape","base":{"kind":"fire","threshold":4.5,"width":6},"kernel":3,"hidden":5}"#,
    r#"{"kind":"dape","base":"rotary","kernel":5,"hidden":5}"#,
    r#"{"kind":"transformer_xl"}"#,
    r#"{"kind":"transformer_xl","randomized":200,"window":4}"#,
    r#"{"kind":"shaw","max_distance":3}"#,
    r#"{"kind":"shaw","max_distance":8,"randomized":200}"#,
    r#"{"kind":"cope","positions":3}"#,
    r#"{"kind":"cope","window":5}"#,
];

/// A block and an encoding, so that gradients reach the parameters of both.
#[derive(Module, Debug)]
struct Both {
    block: Block,
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
    fn new(text: &str, plan: &BlockPlan, seed: u64) -> Both {
        let (device, mut rng) = (device(), rng(seed));
        let block = Block::new(plan, &SIZES, 0, &mut init(&mut rng, &device)).map(&mut Randomize(&mut rng));
        let encoding: Encoding = serde_json::from_str(text).unwrap();
        let geometry = Geometry::new(SIZES.n_heads, SIZES.head_dim, 4);
        Both { block, encoding: PositionalEncoding::new(&encoding, &geometry, 1, seed, &device).map(&mut ToDouble) }
    }

    fn forward(&self, x: Tensor<3>, sees: Sees, engine: Engine) -> Tensor<3> {
        let len = x.dims()[1];
        let positions = self.encoding.positions(0, [len, len], (&device(), DType::F64), engine, &PASS);
        let positions = match sees {
            Sees::Before => positions,
            Sees::All => positions.in_both_directions(),
            Sees::Padded => {
                Positions { lengths: Some([len, len / 2].as_slice().into()), ..positions.in_both_directions() }
            }
        };
        self.block.forward(x, &positions, &PASS, engine)
    }
}

#[test]
fn fused_equals_composed_and_finite_differences() {
    let shared = BlockPlan { kv_heads: Some(2), ..BlockPlan::default() };
    let clamped = BlockPlan { clamp_qkv: Some(2.0), ..BlockPlan::default() }; // takes the parts one by one
    for (seed, &text) in (0..).zip(ENCODINGS) {
        for (plan, sees, len) in [
            (BlockPlan::default(), Sees::Before, 9),
            (shared.clone(), Sees::Before, 1),
            (clamped.clone(), Sees::Before, 6),
            (shared.clone(), Sees::All, 7),
            (BlockPlan::default(), Sees::Padded, 6),
        ] {
            let (both, mut rng) = (Both::new(text, &plan, seed), rng(seed + 1));
            let [x, up] = [(); 2].map(|()| random([2, len, SIZES.d_model], &mut rng));
            let what = format!("{text} {sees:?} {len}");
            let fused = run(&both, &x, &up, |both, x| both.forward(x, sees, Engine::Fused));
            let composed = run(&both, &x, &up, |both, x| both.forward(x, sees, Engine::Composed));
            assert_close(&fused, &composed, &what);
            assert_slopes(&both, &x, &up, |both, x| both.forward(x, sees, Engine::Fused), &fused, 1e-5, &what);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for text in ENCODINGS {
        let (both, mut rng) = (Both::new(text, &BlockPlan::default(), 5), rng(6));
        let [x, up] = [(); 2].map(|()| random([3, 120, SIZES.d_model], &mut rng));
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(&both, &x, &up, |both, x| both.forward(x, Sees::Before, Engine::Fused)))
        };
        let one = on(1);
        assert!(one.iter().flatten().all(|value| value.is_finite()), "{text}");
        assert!(one == on(2) && one == on(5), "{text}");
    }
}
