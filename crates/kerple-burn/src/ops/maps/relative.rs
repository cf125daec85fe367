//! Products of queries with vectors of relative position, and those beside values, see [`kerple::maps::relative`].

use super::{Mapped, Numbers};
use crate::forms;
use burn::tensor::{Device, Int, Tensor, TensorData};
use kerple::maps::Extent;
use kerple::maps::relative::{Relative, Source};
use std::ops::RangeInclusive;

/// Vectors, `w` and vectors of values, one after another, of what is learned.
pub(super) fn numbers(relative: &Relative, own: &Tensor<1>, extent: Extent) -> Tensor<1> {
    let (d, width) = (relative.head_dim, relative.heads * relative.head_dim);
    let (device, dtype) = (own.device(), own.dtype());
    match relative.source {
        Source::Learned { .. } if relative.lags.is_none() => own.clone(),
        Source::Learned { reach } => {
            let (each, sets) = (2 * reach + 1, if relative.values { 2 } else { 1 });
            let places = (0..sets).flat_map(|set| relative.places(reach, extent).map(move |place| set * each + place));
            let places: Vec<i64> = places.map(|place| place as i64).collect();
            let count = places.len();
            let places = Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &device);
            own.clone().reshape([sets * each, d]).select(0, places).reshape([count * d])
        }
        Source::Projected => {
            let mut learned = Numbers::new(own);
            let matrix = learned.take([width, width]);
            let [u, v] = [(); 2].map(|()| learned.take([width]));
            let waves = relative.waves(extent);
            let count = waves.len() / width;
            let waves = Tensor::<2>::from_data(TensorData::new(waves, [count, width]), (&device, dtype));
            let vectors = waves.matmul(matrix.transpose()).reshape([count * width]);
            Tensor::cat(vec![vectors, v - u], 0)
        }
    }
}

/// What is added to queries before their product with the keys, `[H, D]`: `u`.
pub(super) fn query_bias(relative: &Relative, own: &Tensor<1>) -> Option<Tensor<2>> {
    let (heads, d) = (relative.heads, relative.head_dim);
    match relative.source {
        Source::Learned { .. } => None,
        Source::Projected => {
            let width = heads * d;
            Some(own.clone().narrow(0, width * width, width).reshape([heads, d]))
        }
    }
}

pub(super) fn composed(relative: &Relative, mapped: Mapped) -> Tensor<4> {
    let Mapped { scores, own, q, extent, .. } = mapped;
    let [batch, heads, queries, keys] = scores.dims();
    let (d, of_vectors) = (relative.head_dim, relative.vector_heads());
    let all = numbers(relative, own.expect("vectors are learned"), extent);
    let mut all = Numbers::new(&all);
    let range = relative.distances(extent);
    let count = range.clone().count();
    // [1, Hr, D, N]
    let vectors = all.take([1, count, of_vectors, d]).permute([0, 2, 3, 1]);
    let vectors = if of_vectors == heads { vectors } else { vectors.repeat_dim(1, heads) };
    let shifted = if relative.is_shifted() { q + all.take([1, heads, 1, d]) } else { q };
    let products = (shifted * extent.scale).matmul(vectors.repeat_dim(0, batch));
    let places = places(range, [queries, keys], &scores.device()).unsqueeze::<4>();
    scores + products.gather(3, places.repeat_dim(0, batch).repeat_dim(1, heads))
}

/// Where the vector of each pair stands among those of `range`, `[Q, K]`; of distances beyond the first or the last.
fn places(range: RangeInclusive<isize>, pairs: [usize; 2], device: &Device) -> Tensor<2, Int> {
    let (first, last) = range.into_inner();
    forms::distances(pairs, device).clamp(first as i64, last as i64) - first as i64
}

/// What weights `[B, H, Q, K]` of the last queries make of the vectors beside values, `[B, H, Q, D]`.
pub(super) fn of_values(
    relative: &Relative,
    own: &Tensor<1>,
    weights: &Tensor<4>,
    extent: Extent,
) -> Option<Tensor<4>> {
    if !relative.values {
        return None;
    }
    let ([batch, heads, queries, keys], d) = (weights.dims(), relative.head_dim);
    let range = relative.distances(extent);
    let count = range.clone().count();
    let all = numbers(relative, own, extent);
    let vectors = all.clone().narrow(0, all.dims()[0] - count * d, count * d).reshape([count, d]);
    let places = places(range, [queries, keys], &weights.device()).reshape([queries * keys]);
    let of_pairs = vectors.select(0, places).reshape([queries, keys, d]);
    // the queries of all heads and sequences stand under the same vectors
    let rows = weights.clone().permute([2, 0, 1, 3]).reshape([queries, batch * heads, keys]);
    Some(rows.matmul(of_pairs).reshape([queries, batch, heads, d]).permute([1, 2, 0, 3]))
}
