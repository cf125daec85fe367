//! The kernels of linear attention against the definition in f64, and against themselves.
//!
//! They run on a software renderer, unless `KERPLE_TEST_DEVICE` names a kind of device, as those of attention.

mod common;

use common::{client, random};
use cubecl::client::Client;
use cubecl::prelude::CubeElement;
use cubecl::server::Handle;
use kerple_core::attention::linear::{
    self, CHUNK, Decay, DecayGradient, DenominatorGuard, LinearAttentionInputs, LinearAttentionProblem, LinearMask,
    NEAR, naive,
};
use kerple_core::attention::{Strides, View, ViewMut};
use kerple_core::calculus::exponentials::{Amplitude, ErrorBudget, RateGrid, SumTolerance};
use kerple_core::features::Pointwise;
use kerple_gpu::cubecl;
use kerple_gpu::linear::{ChunkedDecay, ChunkedDims, ChunkedGradients, ChunkedLinear};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// f32 against f64, of the largest value of an array: sums of a few hundred products.
const TOLERANCE: f64 = 4e-6;

/// A call with its inputs, which are `f32`, in f64; queries and keys are positive, as features are.
struct Case {
    dims: ChunkedDims,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_out: Vec<f64>,
    decay: Option<CaseDecay>,
}

struct CaseDecay {
    near_len: usize,
    near: Vec<f64>,
    rates: Vec<f64>,
    weights: Vec<f64>,
}

type Named = (&'static str, Vec<f64>);

impl Case {
    /// Values have a 1 after them on the device, so `values` is one more than the definition's.
    fn new(seed: u64, sizes: [usize; 5], near_len: usize, rates: &[f64]) -> Case {
        let [batch, heads, len, features, values] = sizes;
        let (mut rng, rows) = (ChaCha8Rng::seed_from_u64(seed), batch * heads * len);
        let mut positive =
            |count: usize| random(&mut rng, count, 0.5).into_iter().map(|x| x + 0.75).collect::<Vec<f64>>();
        let [q, k] = [(); 2].map(|()| positive(rows * features));
        let decay = (near_len > 0).then(|| CaseDecay {
            near_len,
            near: positive(heads * near_len),
            weights: positive(heads * rates.len()),
            // heads have rates of their own
            rates: (0..heads)
                .flat_map(|head| rates.iter().map(move |rate| rate * (1.0 + 0.25 * head as f64)))
                .collect(),
        });
        let [v, d_out] = [(); 2].map(|()| random(&mut rng, rows * (values - 1), 1.0));
        Case { dims: ChunkedDims { batch, heads, len, features, values }, q, k, v, d_out, decay }
    }

    /// Outputs and gradients of the definition, and the gradient in sums as attention's end leaves it: from there on the kernels
    /// are asked.
    fn expected(&self) -> (Vec<Named>, Vec<f64>) {
        let ChunkedDims { batch, heads, len, features, values } = self.dims;
        let (deep, rows) = (values - 1, batch * heads * len);
        let dims = linear::LinearAttentionDims { batch, heads, len, head_dim: features, value_dim: deep };
        let map = Pointwise::Relu { width: features, shift: 0.0 };
        let decay = self.decay.as_ref().map(|CaseDecay { near_len, near, rates, weights }| {
            let terms = rates.len() / heads;
            Decay { near_len: *near_len, near, terms, rates, weights }
        });
        let (reach, guard) = (LinearMask::Causal, DenominatorGuard::Nothing);
        let (lengths, documents, gates) = (None, None, None);
        let problem = LinearAttentionProblem { dims, reach, lengths, documents, maps: &[&map], decay, gates, guard };
        let strides = |width: usize| Strides { batch: heads * len * width, head: len * width, row: width };
        let [of_rows, of_values] = [features, deep].map(strides);
        let view = |data, strides| View { data, strides };
        let inputs =
            LinearAttentionInputs { q: view(&self.q, of_rows), k: view(&self.k, of_rows), v: view(&self.v, of_values) };
        let (mut out, mut sums) = (vec![0.0; rows * deep], vec![0.0; rows]);
        naive::forward(&problem, inputs, ViewMut::new(&mut out, of_values), &mut sums);
        let [mut d_q, mut d_k, mut d_v] = [features, features, deep].map(|width| vec![0.0; rows * width]);
        let room = |count: usize| vec![0.0; heads * count];
        let mut d_decay = self.decay.as_ref().map(|decay| [room(decay.near_len), room(decay.rates.len() / heads)]);
        let d_out = view(&self.d_out, of_values);
        let saved = linear::LinearAttentionSaved { inputs, out: view(&out, of_values), denominators: &sums, d_out };
        let gradients = linear::LinearAttentionGradients {
            d_q: ViewMut::new(&mut d_q, of_rows),
            d_k: ViewMut::new(&mut d_k, of_rows),
            d_v: ViewMut::new(&mut d_v, of_values),
            d_parameters: &mut [],
            d_decay: d_decay.as_mut().map(|[d_near, d_weights]| DecayGradient { d_near, d_weights }),
            d_gates: None,
        };
        naive::backward(&problem, saved, gradients);
        let of_sums =
            out.chunks_exact(deep).zip(self.d_out.chunks_exact(deep)).zip(&sums).flat_map(|((out, d), sum)| {
                let along: f64 = out.iter().zip(d).map(|(out, d)| out * d).sum();
                d.iter().map(|d| d / sum).chain([-along / sum]).collect::<Vec<f64>>()
            });
        let of_sums = of_sums.collect();
        let mut all = vec![("out", out), ("d_q", d_q), ("d_k", d_k), ("d_v", d_v)];
        all.extend(d_decay.into_iter().flat_map(|[d_near, d_weights]| [("d_near", d_near), ("d_weights", d_weights)]));
        // of a decay that ends with its table
        all.retain(|(_, values)| !values.is_empty());
        (all, of_sums)
    }

    /// The same from a device, in its own bits: the quotient of sums, and what a gradient in them gives.
    fn found(&self, client: &Client, d_sums: &[f64]) -> Vec<Vec<f32>> {
        let ChunkedDims { heads, values, .. } = self.dims;
        let put = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            client.create_from_slice(f32::as_bytes(&values))
        };
        let decay = match &self.decay {
            None => ChunkedDecay::none(client, heads),
            Some(CaseDecay { near_len, near, rates, weights }) => {
                let far = (!rates.is_empty()).then(|| (put(weights), &rates[..]));
                ChunkedDecay::new(client, heads, (put(near), *near_len), far)
            }
        };
        let wanted = [self.decay.is_some(), self.decay.as_ref().is_some_and(|decay| !decay.rates.is_empty())];
        let call = ChunkedLinear::new(client, self.dims, decay);
        let with_ones =
            self.v.chunks_exact(values - 1).flat_map(|v| v.iter().copied().chain([1.0])).collect::<Vec<f64>>();
        let [q, k, v] = [&self.q, &self.k, &with_ones].map(|values| put(values));
        let get = |handle: Handle| f32::from_bytes(&client.read_one(handle).expect("the device answers")).to_vec();
        let sums = get(call.forward([&q, &k, &v]));
        let ChunkedGradients { d_q, d_k, d_v, d_near, d_weights } = call.backward([&q, &k, &v], &put(d_sums), wanted);
        let of_values = |with_sums: &[f32]| with_sums[..values - 1].to_vec();
        let out = sums
            .chunks_exact(values)
            .flat_map(|sums| of_values(sums).into_iter().map(|x| x / sums[values - 1]))
            .collect();
        let d_v = get(d_v).chunks_exact(values).flat_map(of_values).collect();
        [out, get(d_q), get(d_k), d_v].into_iter().chain([d_near, d_weights].into_iter().flatten().map(get)).collect()
    }

    fn check(&self, client: &Client) {
        let (expected, of_sums) = self.expected();
        let found = self.found(client, &of_sums);
        assert_eq!(found.len(), expected.len());
        for ((name, expected), found) in expected.into_iter().zip(&found) {
            assert_eq!(expected.len(), found.len(), "{name}");
            let largest = expected.iter().fold(1e-3_f64, |largest, value| largest.max(value.abs()));
            for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
                let error = (expected - f64::from(*found)).abs() / largest;
                assert!(
                    error < TOLERANCE,
                    "{:?}: {name}[{at}] is {found}, expected {expected}, error {error:e}",
                    self.dims
                );
            }
        }
    }
}

#[test]
fn products_that_do_not_fade() {
    let client = client();
    for (seed, sizes) in [[2, 2, 300, 6, 4], [1, 1, 40, 6, 4], [1, 2, 257, 6, 4]].into_iter().enumerate() {
        Case::new(seed as u64, sizes, 0, &[]).check(&client);
    }
}

#[test]
fn products_that_fade() {
    let client = client();
    for (seed, len) in [700, 128, 385, 50, 512].into_iter().enumerate() {
        Case::new(10 + seed as u64, [2, 2, len, 6, 4], NEAR, &[0.001, 0.02, 0.3]).check(&client);
    }
    // more rows are computed pair by pair
    Case::new(20, [1, 2, 600, 6, 4], NEAR + CHUNK, &[0.01]).check(&client);
    // nothing is left beyond the table
    Case::new(21, [1, 2, 600, 6, 4], NEAR, &[]).check(&client);
}

#[test]
fn logarithmic_kernels_over_wide_features() {
    let demand = ErrorBudget { horizon: 1 << 20, tolerance: SumTolerance::Thousandth, amplitude: Amplitude::Four };
    let rates = RateGrid::log(&demand).rates().to_vec();
    assert!(rates.len() > 15);
    // of features, and where they are in the place of values, in more than one chunk
    Case::new(30, [1, 1, 400, 81, 4], NEAR, &rates).check(&client());
}

#[test]
fn the_same_bits_every_time() {
    let (client, case) = (client(), Case::new(40, [2, 2, 500, 6, 4], NEAR, &[0.001, 0.02, 0.3]));
    let (_, of_sums) = case.expected();
    let once = case.found(&client, &of_sums);
    assert!(once.iter().flatten().all(|value| value.is_finite()));
    for _ in 0..3 {
        assert!(case.found(&client, &of_sums) == once);
    }
}
