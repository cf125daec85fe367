//! Positions that gates count, see [`kerple::maps::cope`].

use super::{Mapped, Numbers};
use burn::tensor::{DType, Device, Tensor, TensorData, activation};
use kerple::maps::Cope;

pub(super) fn composed(cope: &Cope, mapped: Mapped) -> Tensor<4> {
    let Mapped { scores, own, distances, q, hidden, .. } = mapped;
    let [batch, heads, queries, keys] = scores.dims();
    let (device, dtype) = (scores.device(), scores.dtype());
    let options = (&device, dtype);
    let embedding = Numbers::new(own.expect("positions are learned")).take([1, 1, cope.head_dim, cope.positions]);
    let z = q.matmul(embedding.repeat_dim(0, batch).repeat_dim(1, heads));
    let gates = activation::sigmoid(scores.clone()).mask_fill(hidden.clone(), 0.0);
    let ahead = pairs(distances, [queries, keys], options, |d| d < 0);
    let behind = pairs(distances, [queries, keys], options, |d| d >= 0);
    let own_and_ahead = pairs(distances, [queries, keys], options, |d| d <= 0);
    let all = [batch, heads, keys, keys];
    let from = |counts: fn(usize, usize) -> bool| ordered(keys, options, counts).expand(all);
    // gates of keys that lie between this one and the query
    let of_behind = (gates.clone() * behind.clone()).matmul(from(|t, j| t >= j)) * behind;
    let of_ahead = (gates * own_and_ahead).matmul(from(|t, j| t <= j)) * ahead;
    let most = (cope.positions - 1) as f64;
    let places = (of_behind + of_ahead).clamp_max(most);
    let whole = places.clone().detach().floor();
    let low = whole.clone().int();
    let high = (low.clone() + 1).clamp_max(most as i64);
    let share = places - whole;
    let (at_low, at_high) = (z.clone().gather(3, low), z.gather(3, high));
    scores + at_low.clone() + (at_high - at_low) * share
}

/// 1 for pairs at such distances, `[1, 1, Q, K]`.
fn pairs(
    distances: &[isize],
    [queries, keys]: [usize; 2],
    options: (&Device, DType),
    is: impl Fn(isize) -> bool,
) -> Tensor<4> {
    let values: Vec<f64> = distances.iter().map(|d| f64::from(u8::from(is(*d)))).collect();
    Tensor::from_data(TensorData::new(values, [1, 1, queries, keys]), options)
}

/// 1 where key `t` counts for key `j`, `[1, 1, K, K]`.
fn ordered(keys: usize, options: (&Device, DType), counts: fn(usize, usize) -> bool) -> Tensor<4> {
    let row = |t: usize| (0..keys).map(move |j| f64::from(u8::from(counts(t, j))));
    let values: Vec<f64> = (0..keys).flat_map(row).collect();
    Tensor::from_data(TensorData::new(values, [1, 1, keys, keys]), options)
}
