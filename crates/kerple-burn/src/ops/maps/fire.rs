//! FIRE's bias, see [`kerple::maps::fire`].

use super::{Numbers, rectified};
use burn::tensor::{Tensor, TensorData};
use kerple::maps::fire::{EPSILON, Fire};

/// `[1, H, Q, K]`
pub(super) fn bias(fire: &Fire, heads: usize, numbers: &mut Numbers, [queries, keys]: [usize; 2]) -> Tensor<4> {
    let (c, m) = (numbers.take([1, 1]), numbers.take([1, 1]));
    let first = numbers.take([1, fire.width]);
    let first_bias = numbers.take([1, fire.width]);
    let second = numbers.take([heads, fire.width]);
    let second_bias = numbers.take([1, heads]);
    let places: Vec<f64> = (0..keys).map(|token| fire.position(token) as f64).collect();
    let places = Tensor::<2>::from_data(TensorData::new(places, [1, keys]), (&c.device(), c.dtype()));
    let own = places.clone().narrow(1, keys - queries, queries).transpose().expand([queries, keys]);
    let places = places.expand([queries, keys]);
    let distance = (own.clone() - places.clone()).abs().reshape([queries * keys, 1]);
    // that of the later of the two
    let position = own.max_pair(places).reshape([queries * keys, 1]);
    let threshold = (m * fire.threshold).abs();
    // the larger of two, with half of the gradient for each where they are equal
    let largest = (position.clone() + threshold.clone() + (position - threshold).abs()) * 0.5;
    let psi = |x: Tensor<2>| (x * c.clone()).abs().log1p();
    let t = psi(distance) / (psi(largest) + EPSILON);
    let hidden = rectified(t * first + first_bias, fire.slope);
    let bias = hidden.matmul(second.transpose()) + second_bias;
    bias.transpose().reshape([1, heads, queries, keys])
}
