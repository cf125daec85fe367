//! What both backward passes compute from a tile: the gradient of the scores that enter the
//! softmax.

use super::product::{Desk, multiply};
use super::tile::{Has, Head, LOWEST, Sizes, Tile, follow, mapped, of_distances, scaled, sees};
use cubecl::prelude::*;

/// Makes the slopes of a tile, and with them scaled scores, or, of `keys`, weights; and how scores follow what a cap bends. On the desk stay keys to the right, or, of
/// `keys`, the output's gradient to the left.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn slopes_of<N: Float>(
    scores: &mut Array<f32>,
    slopes: &mut Array<f32>,
    follows: &mut Array<f32>,
    desk: &mut Desk<N>,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: &[f32],
    weight: &[f32],
    clocks: &[i32],
    d_out: &[f32],
    lse: &[f32],
    delta: &[f32],
    at: &Head,
    head: usize,
    first: usize,
    from: usize,
    length: usize,
    sizes: &Sizes,
    #[comptime] of_keys: bool,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
) {
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    if comptime!(of_keys) {
        multiply(scores, desk, q, k, at, first, from, queries, keys, tile);
        multiply(slopes, desk, d_out, v, at, first, from, queries, keys, tile);
    } else {
        multiply(slopes, desk, d_out, v, at, first, from, queries, keys, tile);
        multiply(scores, desk, q, k, at, first, from, queries, keys, tile);
    }
    slope(
        scores, slopes, follows, bias, weight, clocks, lse, delta, at.unit, head, first, from, length, sizes, of_keys,
        tile, has,
    );
}

/// Turns products of the output's gradient with values into slopes, and products of queries with keys into `weights` of keys
/// or into scaled scores, bent ones where there is a cap, with how these follow those that are not.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
fn slope(
    scores: &mut Array<f32>,
    slopes: &mut Array<f32>,
    follows: &mut Array<f32>,
    bias: &[f32],
    weight: &[f32],
    clocks: &[i32],
    lse: &[f32],
    delta: &[f32],
    unit: usize,
    head: usize,
    first: usize,
    from: usize,
    length: usize,
    sizes: &Sizes,
    #[comptime] of_keys: bool,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let queries = sizes.queries as usize;
    let biases = of_distances(bias, first, from, head, sizes, comptime!(has.bias), tile);
    let weights = of_distances(weight, first, from, head, sizes, comptime!(has.weight), tile);
    #[unroll]
    for i in 0..each {
        let query = first + UNIT_POS as usize / side + i * side;
        let mut row_lse = f32::new(LOWEST);
        let mut row_delta = 0.0f32;
        if query < queries {
            row_lse = lse[unit * queries + query];
            row_delta = delta[unit * queries + query];
        }
        #[unroll]
        for j in 0..each {
            let key = from + UNIT_POS as usize % side + j * side;
            let score = scaled(scores[i * each + j], sizes, has);
            let mut p = 0.0f32;
            let mut slope = 0.0f32;
            if sees(query, key, length, sizes) {
                let distance = comptime!(i + tile.each - 1 - j);
                let (bias_here, weight_here) = (biases[distance], weights[distance]);
                let z = mapped(score, bias_here, weight_here, query, key, head, unit, bias, clocks, sizes, has);
                p = (z - row_lse).exp();
                slope = p * (slopes[i * each + j] - row_delta);
            }
            slopes[i * each + j] = slope;
            if comptime!(of_keys) {
                scores[i * each + j] = p;
            } else {
                scores[i * each + j] = score;
            }
            if comptime!(has.cap && (of_keys || has.weight_gradient)) {
                follows[i * each + j] = follow(score, sizes);
            }
        }
    }
}

/// Turns the gradient in what the softmax gets into that in scaled scores.
#[cube]
pub(crate) fn weigh(
    slopes: &mut Array<f32>,
    first: usize,
    from: usize,
    head: usize,
    weight: &[f32],
    sizes: &Sizes,
    #[comptime] tile: Tile,
) {
    let weights = of_distances(weight, first, from, head, sizes, true, tile);
    #[unroll]
    for n in 0..comptime!(tile.each * tile.each) {
        slopes[n] *= weights[comptime!(n / tile.each + tile.each - 1 - n % tile.each)];
    }
}

/// Turns the gradient in bent scores into that in scaled ones.
#[cube]
pub(crate) fn unbend(slopes: &mut Array<f32>, follows: &Array<f32>, #[comptime] tile: Tile) {
    #[unroll]
    for n in 0..comptime!(tile.each * tile.each) {
        slopes[n] *= follows[n];
    }
}

/// The same of bent scores themselves, which takes fewer registers.
#[cube]
pub(crate) fn unbend_of(slopes: &mut Array<f32>, scores: &Array<f32>, sizes: &Sizes, #[comptime] tile: Tile) {
    #[unroll]
    for n in 0..comptime!(tile.each * tile.each) {
        slopes[n] *= follow(scores[n], sizes);
    }
}
