//! Products of queries with vectors of relative position, and vectors that are added to values, see
//! [`kerple_core::score_mods::relative`].

use super::{ParameterReader, ScoreModInput};
use crate::attention_context::QueryKeyPairs;
use crate::ops::matmul::exact;
use burn::tensor::{Int, Tensor, TensorData};
use kerple_core::score_mods::ScoreModExtent;
use kerple_core::score_mods::relative::{Relative, RelativeSource};

/// Vectors, `w` and vectors of values, one after another, of what is learned.
pub(super) fn numbers(relative: &Relative, own: &Tensor<1>, extent: ScoreModExtent) -> Tensor<1> {
    let (d, width) = (relative.head_dim, relative.heads * relative.head_dim);
    let (device, dtype) = (own.device(), own.dtype());
    match relative.source {
        RelativeSource::Learned { .. } if relative.drawn.is_none() => own.clone(),
        RelativeSource::Learned { reach } => {
            let (each, sets) = (2 * reach + 1, if relative.values { 2 } else { 1 });
            let places = (0..sets).flat_map(|set| relative.places(reach, extent).map(move |place| set * each + place));
            let places: Vec<i64> = places.map(|place| place as i64).collect();
            let count = places.len();
            let places = Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &device);
            own.clone().reshape([sets * each, d]).select(0, places).reshape([count * d])
        }
        RelativeSource::Projected => {
            let mut learned = ParameterReader::new(own);
            let matrix = learned.take([width, width]);
            let [u, v] = [(); 2].map(|()| learned.take([width]));
            let waves = relative.waves(extent);
            let count = waves.len() / width;
            let waves = Tensor::<2>::from_data(TensorData::new(waves, [count, width]), (&device, dtype));
            let vectors = exact(waves, matrix.transpose()).reshape([count * width]);
            Tensor::cat(vec![vectors, v - u], 0)
        }
    }
}

/// What is added to queries before their product with the keys, `[H, D]`: `u`.
pub(super) fn query_bias(relative: &Relative, own: &Tensor<1>) -> Option<Tensor<2>> {
    let (heads, d) = (relative.heads, relative.head_dim);
    match relative.source {
        RelativeSource::Learned { .. } => None,
        RelativeSource::Projected => {
            let width = heads * d;
            Some(own.clone().narrow(0, width * width, width).reshape([heads, d]))
        }
    }
}

pub(super) fn reference(relative: &Relative, mapped: ScoreModInput) -> Tensor<4> {
    let ScoreModInput { scores, own, q, extent, pairs, .. } = mapped;
    let [batch, heads, queries, keys] = scores.dims();
    let (d, of_vectors, count) = (relative.head_dim, relative.vector_heads(), queries + keys);
    let mut all = ParameterReader::new(own.expect("vectors are learned"));
    let (number, origin) = line(relative, extent);
    let vectors = pairs.along(all.take([number, of_vectors, d]), 0, origin);
    let shifted = if relative.is_shifted() { q + all.take([1, heads, 1, d]) } else { q };
    let rows = shifted * extent.scale;
    let products = if of_vectors == heads {
        // [H, B Q, D] by [H, D, N]
        let rows = rows.swap_dims(0, 1).reshape([heads, batch * queries, d]);
        let products = exact(rows, vectors.permute([1, 2, 0]));
        products.reshape([heads, batch, queries, count]).swap_dims(0, 1)
    } else {
        let rows = rows.reshape([batch * heads * queries, d]);
        exact(rows, vectors.reshape([count, d]).transpose()).reshape([batch, heads, queries, count])
    };
    scores + pairs.skewed(products)
}

/// How many distances have vectors, and where distance 0 is among them.
fn line(relative: &Relative, extent: ScoreModExtent) -> (usize, usize) {
    let range = relative.distances(extent);
    (range.clone().count(), range.start().unsigned_abs())
}

/// What weights `[B, H, Q, K]` make of the vectors beside values, `[B, H, Q, D]`.
pub(super) fn of_values(
    relative: &Relative,
    own: &Tensor<1>,
    weights: &Tensor<4>,
    extent: ScoreModExtent,
    pairs: &QueryKeyPairs,
) -> Option<Tensor<4>> {
    if !relative.values {
        return None;
    }
    let ([batch, heads, queries, keys], d) = (weights.dims(), relative.head_dim);
    let (count, origin) = line(relative, extent);
    let vectors = own.clone().narrow(0, own.dims()[0] - count * d, count * d).reshape([count, d]);
    // weights are summed by distance first; queries of all heads and sequences stand under the same vectors
    let rows = pairs.unskewed(weights.clone()).reshape([batch * heads * queries, queries + keys]);
    Some(exact(rows, pairs.along(vectors, 0, origin)).reshape([batch, heads, queries, d]))
}
