//! FIRE's bias, see [`kerple_core::score_mods::fire`].

use super::{ParameterReader, rectified};
use crate::attention_context::QueryKeyPairs;
use crate::ops::matmul::exact;
use burn::tensor::{Tensor, TensorData};
use kerple_core::score_mods::fire::{EPSILON, Fire};
use std::ops::Range;

/// `[1, H, Q, K]`
pub(super) fn bias(fire: &Fire, heads: usize, numbers: &mut ParameterReader, pairs: &QueryKeyPairs) -> Tensor<4> {
    let [queries, keys] = pairs.sizes();
    let (c, m) = (numbers.take([1, 1]), numbers.take([1, 1]));
    let first = numbers.take([1, fire.width]);
    let first_bias = numbers.take([1, fire.width]);
    let second = numbers.take([heads, fire.width]);
    let second_bias = numbers.take([1, heads]);
    let (device, dtype) = (c.device(), c.dtype());
    let places = |tokens: &Range<usize>, shape: [usize; 2]| {
        let places: Vec<f64> = tokens.clone().map(|token| fire.position(token) as f64).collect();
        Tensor::<2>::from_data(TensorData::new(places, shape), (&device, dtype)).expand([queries, keys])
    };
    let (own, places) = (places(&pairs.queries, [queries, 1]), places(&pairs.keys, [1, keys]));
    let distance = (own.clone() - places.clone()).abs().reshape([queries * keys, 1]);
    // that of the later of the two
    let position = own.max_pair(places).reshape([queries * keys, 1]);
    let threshold = (m * fire.threshold).abs();
    // the larger of two, with half of the gradient for each where they are equal
    let largest = (position.clone() + threshold.clone() + (position - threshold).abs()) * 0.5;
    let psi = |x: Tensor<2>| (x * c.clone()).abs().log1p();
    let t = psi(distance) / (psi(largest) + EPSILON);
    let hidden = rectified(t * first + first_bias, fire.slope);
    let bias = exact(hidden, second.transpose()) + second_bias;
    bias.transpose().reshape([1, heads, queries, keys])
}
