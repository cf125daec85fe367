//! Networks over heads against loops in f64, for random shapes, and against themselves.
//!
//! They run on a software renderer, unless `KERPLE_TEST_DEVICE` names a kind of device: `wgpu`, `vulkan`, `metal` or `cuda`.

mod common;

use common::{client, random};
use cubecl::client::Client;
use cubecl::prelude::CubeElement;
use cubecl::server::Handle;
use kerple_core::score_mods::network::{Edge, Network, SLOPE, Variant};
use kerple_gpu::cubecl;
use kerple_gpu::head_mlp::{HeadMlp, HeadMlpGradients};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// f32 against f64, of the largest value of an array: what sums of a few hundred terms lose.
const TOLERANCE: f64 = 4e-6;

struct Case {
    network: Network,
    /// B, H and pairs.
    sizes: [usize; 3],
    scores: Vec<f64>,
    bias: Option<Vec<f64>>,
    numbers: Vec<f64>,
    d_y: Vec<f64>,
}

impl Case {
    fn new(rng: &mut ChaCha8Rng, variant: Variant, has_bias: bool) -> Case {
        let sizes = [rng.random_range(1..4), rng.random_range(1..7), rng.random_range(1..400)];
        let network = Network { hidden: rng.random_range(1..9), variant, kernel: 1, edge: Edge::Open };
        let [batch, heads, pairs] = sizes;
        let values = batch * heads * pairs;
        Case {
            scores: random(rng, values, 1.5),
            bias: has_bias.then(|| random(rng, heads * pairs, 1.5)),
            numbers: random(rng, network.len(heads, has_bias), 1.0),
            d_y: random(rng, values, 1.0),
            network,
            sizes,
        }
    }

    /// Scores with what is added to them, and the gradients in scores, numbers and bias.
    fn expected(&self) -> Vec<Vec<f64>> {
        let ([batch, heads, pairs], hidden) = (self.sizes, self.network.hidden);
        let variant = self.network.variant;
        let inputs = self.network.inputs(heads, self.bias.is_some());
        let (second, last) = (hidden * (inputs + 1), hidden * (inputs + 1 + heads));
        let numbers = &self.numbers;
        let mut y = self.scores.clone();
        let (mut d_scores, mut d_numbers) = (self.d_y.clone(), vec![0.0; numbers.len()]);
        let mut d_bias = self.bias.as_ref().map(|bias| vec![0.0; bias.len()]);
        for (sequence, pair) in (0..batch).flat_map(|sequence| (0..pairs).map(move |pair| (sequence, pair))) {
            let at = |head: usize| (sequence * heads + head) * pairs + pair;
            // how much of the score and of the bias of a head is in an input
            let share = |input: usize, head: usize| match (self.bias.is_some(), variant) {
                (false, _) => [f64::from(u8::from(input == head)), 0.0],
                (true, Variant::ConcatResidual | Variant::Concat) => {
                    [f64::from(u8::from(input == head)), f64::from(u8::from(input == heads + head))]
                }
                (true, Variant::AddResidual) => [f64::from(u8::from(input == head)); 2],
                (true, Variant::BiasOnly) => [0.0, f64::from(u8::from(input == head))],
            };
            let bias = |head: usize| self.bias.as_ref().map_or(0.0, |bias| bias[head * pairs + pair]);
            let seen = |input: usize| -> f64 {
                let of =
                    |head: usize| share(input, head)[0] * self.scores[at(head)] + share(input, head)[1] * bias(head);
                (0..heads).map(of).sum()
            };
            let seen: Vec<f64> = (0..inputs).map(seen).collect();
            for head in 0..heads {
                y[at(head)] += numbers[last + head];
                d_numbers[last + head] += self.d_y[at(head)];
                if let (true, Some(d_bias)) = (variant.adds_bias(), &mut d_bias) {
                    y[at(head)] += bias(head);
                    d_bias[head * pairs + pair] += self.d_y[at(head)];
                }
            }
            for unit in 0..hidden {
                let sum: f64 = (0..inputs).map(|input| numbers[unit * inputs + input] * seen[input]).sum();
                let sum = sum + numbers[hidden * inputs + unit];
                let factor = if sum > 0.0 { 1.0 } else { SLOPE };
                let mut slope = 0.0;
                for head in 0..heads {
                    y[at(head)] += numbers[second + head * hidden + unit] * sum * factor;
                    d_numbers[second + head * hidden + unit] += self.d_y[at(head)] * sum * factor;
                    slope += numbers[second + head * hidden + unit] * self.d_y[at(head)] * factor;
                }
                d_numbers[hidden * inputs + unit] += slope;
                for input in 0..inputs {
                    d_numbers[unit * inputs + input] += slope * seen[input];
                    for head in 0..heads {
                        let [of_score, of_bias] = share(input, head).map(|share| share * slope);
                        d_scores[at(head)] += of_score * numbers[unit * inputs + input];
                        if let Some(d_bias) = &mut d_bias {
                            d_bias[head * pairs + pair] += of_bias * numbers[unit * inputs + input];
                        }
                    }
                }
            }
        }
        [Some(y), Some(d_scores), Some(d_numbers), d_bias].into_iter().flatten().collect()
    }

    fn found(&self, client: &Client) -> Vec<Vec<f32>> {
        let put = |values: &Vec<f64>| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            client.create_from_slice(f32::as_bytes(&values))
        };
        let [scores, numbers, d_y] = [&self.scores, &self.numbers, &self.d_y].map(put);
        let bias = self.bias.as_ref().map(put);
        let call = HeadMlp::new(client, &self.network, self.sizes, bias.is_some()).unwrap();
        let y = call.forward(client, &scores, bias.as_ref(), &numbers);
        let HeadMlpGradients { d_scores, d_bias, d_parameters } =
            call.backward(client, [&scores, &numbers, &d_y], bias.as_ref());
        let get = |handle: Handle| f32::from_bytes(&client.read_one(handle).expect("the device answers")).to_vec();
        [Some(y), Some(d_scores), Some(d_parameters), d_bias].into_iter().flatten().map(get).collect()
    }
}

#[test]
fn they_equal_loops_and_themselves() {
    let (client, mut rng) = (client(), ChaCha8Rng::seed_from_u64(31));
    for variant in [Variant::ConcatResidual, Variant::Concat, Variant::AddResidual, Variant::BiasOnly] {
        for has_bias in [true, false] {
            let case = Case::new(&mut rng, variant, has_bias);
            let (found, expected) = (case.found(&client), case.expected());
            assert_eq!(found.len(), expected.len());
            for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.len(), expected.len());
                let largest = expected.iter().fold(1.0f64, |largest, value| largest.max(value.abs()));
                let error = found.iter().zip(expected).fold(0.0f64, |most, (a, b)| most.max((f64::from(*a) - b).abs()));
                let what = format!("{n} of {variant:?} {has_bias} {:?}", case.sizes);
                assert!(error < TOLERANCE * largest, "{what}: {error:e} of {largest:e}");
            }
            assert!(found == case.found(&client), "{variant:?} {has_bias}: other bits");
        }
    }
}

#[test]
fn what_has_no_room_has_no_kernel() {
    let client = client();
    let network = |hidden: usize, kernel: usize| {
        let (variant, edge) = (Variant::ConcatResidual, Edge::Open);
        Network { hidden, variant, kernel, edge }
    };
    let runs = |network: Network, heads: usize| HeadMlp::new(&client, &network, [1, heads, 100], true).is_some();
    assert!(runs(network(32, 1), 12));
    assert!(!runs(network(32, 3), 12) && !runs(network(32, 1), 33) && !runs(network(100_000, 1), 12));
}
