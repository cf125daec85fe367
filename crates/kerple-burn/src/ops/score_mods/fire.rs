//! FIRE's bias, see [`kerple_core::score_mods::fire`].

use super::{ParameterReader, rectified};
use crate::attention_context::{AttentionMask, QueryKeyPairs};
use crate::ops::matmul::exact;
use burn::tensor::{Tensor, TensorData};
use kerple_core::score_mods::fire::{EPSILON, Fire};
use std::ops::Range;

/// `[1, H, Q, K]`, or `[B, H, Q, K]` where sequences consist of documents, in which positions restart.
pub(super) fn bias(
    fire: &Fire,
    heads: usize,
    numbers: &mut ParameterReader,
    (mask, pairs): (&AttentionMask, &QueryKeyPairs),
) -> Tensor<4> {
    let [queries, keys] = pairs.sizes();
    let positions = mask.documents.as_ref().map(|documents| documents.position_ids());
    let (rows, len) =
        mask.documents.as_ref().map_or((1, pairs.keys.end), |documents| (documents.rows(), documents.keys()));
    let (c, m) = (numbers.take([1, 1]), numbers.take([1, 1]));
    let first = numbers.take([1, fire.width]);
    let first_bias = numbers.take([1, fire.width]);
    let second = numbers.take([heads, fire.width]);
    let second_bias = numbers.take([1, heads]);
    let (device, dtype) = (c.device(), c.dtype());
    let places = |tokens: &Range<usize>, shape: [usize; 3]| {
        let position = |row: usize, token: usize| positions.as_ref().map_or(token, |all| all[row * len + token]);
        let of_row = |row: usize| tokens.clone().map(move |token| (row, token));
        let places = (0..rows).flat_map(of_row).map(|(row, token)| fire.position(position(row, token)) as f64);
        let places: Vec<f64> = places.collect();
        Tensor::<3>::from_data(TensorData::new(places, shape), (&device, dtype)).expand([rows, queries, keys])
    };
    let (own, places) = (places(&pairs.queries, [rows, queries, 1]), places(&pairs.keys, [rows, 1, keys]));
    let distance = (own.clone() - places.clone()).abs().reshape([rows * queries * keys, 1]);
    // that of the later of the two
    let position = own.max_pair(places).reshape([rows * queries * keys, 1]);
    let threshold = (m * fire.threshold).abs();
    // the larger of two, with half of the gradient for each where they are equal
    let largest = (position.clone() + threshold.clone() + (position - threshold).abs()) * 0.5;
    let psi = |x: Tensor<2>| (x * c.clone()).abs().log1p();
    let t = psi(distance) / (psi(largest) + EPSILON);
    let hidden = rectified(t * first + first_bias, fire.slope);
    let bias = exact(hidden, second.transpose()) + second_bias;
    bias.transpose().reshape([heads, rows, queries, keys]).swap_dims(0, 1)
}
