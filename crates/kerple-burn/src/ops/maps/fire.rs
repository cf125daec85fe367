//! FIRE's bias, see [`kerple::maps::fire`].

use super::{Numbers, rectified};
use burn::tensor::{Tensor, TensorData};
use kerple::maps::fire::{EPSILON, Fire};

/// `[1, H, Q, K]`
pub(super) fn bias(
    fire: &Fire,
    heads: usize,
    numbers: &mut Numbers,
    distances: &[isize],
    [queries, keys]: [usize; 2],
) -> Tensor<4> {
    let (c, m) = (numbers.take([1, 1]), numbers.take([1, 1]));
    let first = numbers.take([1, fire.width]);
    let first_bias = numbers.take([1, fire.width]);
    let second = numbers.take([heads, fire.width]);
    let second_bias = numbers.take([1, heads]);
    let pairs = |number: &dyn Fn(usize, isize) -> usize| {
        let values: Vec<f64> = distances.iter().enumerate().map(|(at, d)| number(at % keys, *d) as f64).collect();
        Tensor::<2>::from_data(TensorData::new(values, [queries * keys, 1]), (&c.device(), c.dtype()))
    };
    let later = |key: usize, d: isize| key.saturating_add_signed(d.max(0));
    // a pair before the first token is not seen
    let distance =
        pairs(&|key, d| fire.position(later(key, d)) - fire.position(later(key, d).saturating_sub(d.unsigned_abs())));
    let position = pairs(&|key, d| fire.position(later(key, d)));
    let threshold = (m * fire.threshold).abs();
    // the larger of two, with half of the gradient for each where they are equal
    let largest = (position.clone() + threshold.clone() + (position - threshold).abs()) * 0.5;
    let psi = |x: Tensor<2>| (x * c.clone()).abs().log1p();
    let t = psi(distance) / (psi(largest) + EPSILON);
    let hidden = rectified(t * first + first_bias, fire.slope);
    let bias = hidden.matmul(second.transpose()) + second_bias;
    bias.transpose().reshape([1, heads, queries, keys])
}
