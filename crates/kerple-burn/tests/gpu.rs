//! Attention on a GPU against the processor: output and every gradient.
//!
//! A software renderer stands in, unless `KERPLE_TEST_DEVICE` names a device as `--device` does.

use burn::tensor::{Device, Tensor, TensorData};
use kerple_burn::device::Name;
use kerple_burn::forms::{Positions, Scores, Sight};
use kerple_burn::fused::Engine;
use kerple_burn::ops::attention::{Scoring, attention};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn gpu() -> Device {
    let name: Name = std::env::var("KERPLE_TEST_DEVICE").map_or(Name::Software, |name| name.parse().unwrap());
    name.open().expect("a device; for tests without a GPU install Mesa's lavapipe").0
}

/// Output and gradients in queries, keys, values, bias and weight.
fn run(device: &Device, engine: Engine, case: &Case) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
    let mut random = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
    let [batch, heads, kv_heads, len, head_dim] = case.sizes;
    let mut four = |heads: usize| {
        let shape = [batch, len, heads, head_dim];
        let data = TensorData::new(random(shape.iter().product()), shape);
        Tensor::<4>::from_data(data, &device).require_grad()
    };
    // as a projection leaves them: heads of a token lie beside one another
    let own = [four(heads), four(kv_heads), four(kv_heads)];
    let columns = case.sight.sides().columns(len + 2);
    let mut table =
        || Tensor::<2>::from_data(TensorData::new(random(heads * columns), [heads, columns]), &device).require_grad();
    let (bias, weight) = (table(), case.weight.then(table));
    let positions = Positions {
        scores: Scores::Table { bias: Some(bias.clone()), weight: weight.clone() },
        sight: case.sight,
        lengths: case.lengths.clone().map(Into::into),
        ..Positions::default()
    };
    let [q, k, v] = own.clone().map(|x| x.swap_dims(1, 2));
    let scoring = Scoring { cap: case.cap, ..Scoring::from(0.4) };
    let out = attention(q, k, v, scoring, &positions, engine);
    let mut gradients = (out.clone() * out.clone().sin()).sum().backward();
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let flat = |tensor: Tensor<4>| get(tensor.reshape([-1]));
    let mut found = vec![flat(out.without_autodiff())];
    found.extend(own.map(|x| flat(x.grad_remove(&mut gradients).unwrap())));
    found.extend(
        [Some(bias), weight].into_iter().flatten().map(|x| get(x.grad_remove(&mut gradients).unwrap().reshape([-1]))),
    );
    found
}

struct Case {
    seed: u64,
    /// B, H, kv heads, L, D.
    sizes: [usize; 5],
    sight: Sight,
    weight: bool,
    lengths: Option<Vec<usize>>,
    cap: Option<f64>,
}

#[test]
fn attention_is_that_of_the_processor() {
    let case = Case { seed: 1, sizes: [2, 4, 2, 40, 8], sight: Sight::CAUSAL, weight: false, lengths: None, cap: None };
    let device = gpu();
    for case in [
        Case { sizes: [1, 2, 2, 33, 8], seed: 2, sight: Sight::Causal { window: Some(7) }, lengths: None, ..case },
        Case { weight: true, seed: 3, lengths: None, ..case },
        Case { sight: Sight::BOTH, lengths: Some(vec![40, 29]), ..case },
        // no kernel: it runs composed
        Case { cap: Some(3.0), lengths: None, ..case },
    ] {
        let expected = run(&Device::flex(), Engine::Fused, &case);
        for engine in [Engine::Fused, Engine::Composed] {
            let found = run(&device, engine, &case);
            assert_eq!(found.len(), expected.len());
            for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
                let largest = expected.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
                let error = expected.iter().zip(found).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                // f32 on both sides, summed in other orders
                assert!(
                    expected.len() == found.len() && error < 5e-6 * largest,
                    "{at} of {engine:?}: {error:e} of {largest:e}"
                );
            }
        }
    }
}
