//! What both backward passes compute from a tile: the gradient of the scores that enter the
//! softmax, and with it that of the products of queries and keys.

use super::inputs::{FlashInputs, LOWEST, TilePosition, attends, key_rows, query_row, query_rows};
use super::score_mods::{modified, scaled, softcap_grad, table_values};
use super::shared_tiles::{SharedTiles, multiply};
use super::tile::{TileShape, narrowed};
use cubecl::prelude::*;

/// What both backward passes read beside the inputs of the forward.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct UpstreamGradients {
    /// Gradient of the output, `[B, H, Q, D]`.
    pub d_out: Box<[f32]>,
    /// Log-sum-exp of the scores, `[B, H, Q]`.
    pub lse: Box<[f32]>,
    /// `d_out . out`, `[B, H, Q]`.
    pub delta: Box<[f32]>,
}

/// Which gradients a pass is for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum BackwardPass {
    /// Those of queries, and of the tables; `d_weight` where that of the weight is among them.
    Dq { d_weight: bool },
    /// Those of keys and values.
    Dkv,
}

impl BackwardPass {
    /// Whether the derivatives of a softcap are kept. Otherwise they are computed from the scores,
    /// which takes fewer registers, but the other passes overwrite the scores before.
    fn keeps_softcap_grads(self) -> bool {
        self != BackwardPass::Dq { d_weight: false }
    }
}

/// A unit's values of a tile in the backward.
#[derive(CubeType)]
pub(crate) struct ScoreGradients {
    /// Scaled scores after the softcap; for keys and values, probabilities.
    pub scores: Array<f32>,
    /// Gradient of the scores.
    pub d_scores: Array<f32>,
    /// Derivatives of the softcap, where they are kept.
    pub softcap_grads: Array<f32>,
}

#[cube]
impl ScoreGradients {
    pub(crate) fn new(inputs: &FlashInputs, #[comptime] pass: BackwardPass) -> ScoreGradients {
        let count = comptime!(inputs.tile.each * inputs.tile.each);
        let keeps = comptime!(inputs.score_mods.softcap.is_some() && pass.keeps_softcap_grads());
        ScoreGradients {
            scores: Array::<f32>::new(count),
            d_scores: Array::<f32>::new(count),
            softcap_grads: Array::<f32>::new(comptime!(if keeps { count } else { 1 })),
        }
    }
}

/// `delta = d_out . out`, one row per unit, with `d_out` rounded as products round it.
#[cube(launch)]
pub(crate) fn bwd_preprocess(out: &[f32], d_out: &[f32], delta: &mut [f32], rows: u32, #[comptime] tile: TileShape) {
    let head_dim = comptime!(tile.head_dim);
    let row = ABSOLUTE_POS;
    if row < rows as usize {
        let mut sum = 0.0f32;
        for feature in 0..head_dim {
            let upstream = narrowed::<f32>(d_out[row * head_dim + feature], tile);
            sum += out[row * head_dim + feature] * upstream;
        }
        delta[row] = sum;
    }
}

/// Computes a tile's gradients of scores. In the shared tiles stay the keys at the right, or, for
/// the gradients of keys and values, the output's gradient at the left.
#[cube]
pub(crate) fn compute_score_gradients<N: Float>(
    grads: &mut ScoreGradients,
    shared: &mut SharedTiles<N>,
    inputs: &FlashInputs,
    upstream: &UpstreamGradients,
    at: &TilePosition,
    #[comptime] pass: BackwardPass,
) {
    let tile = comptime!(inputs.tile);
    let own = query_rows(at, &inputs.sizes);
    let theirs = key_rows(at, &inputs.sizes);
    if comptime!(pass == BackwardPass::Dkv) {
        multiply(&mut grads.scores, shared, &inputs.q, &inputs.k, own, theirs, tile);
        multiply(&mut grads.d_scores, shared, &upstream.d_out, &inputs.v, own, theirs, tile);
    } else {
        multiply(&mut grads.d_scores, shared, &upstream.d_out, &inputs.v, own, theirs, tile);
        multiply(&mut grads.scores, shared, &inputs.q, &inputs.k, own, theirs, tile);
    }
    softmax_backward(grads, inputs, upstream, at, pass);
}

/// Turns `d_out . v` into the gradient of scores, and `q.k` into scaled scores or probabilities.
#[cube]
fn softmax_backward(
    grads: &mut ScoreGradients,
    inputs: &FlashInputs,
    upstream: &UpstreamGradients,
    at: &TilePosition,
    #[comptime] pass: BackwardPass,
) {
    let side = comptime!(inputs.tile.side);
    let each = comptime!(inputs.tile.each);
    let queries = inputs.sizes.queries as usize;
    let biases = table_values(&inputs.score_mods.bias, at, &inputs.sizes, comptime!(inputs.tile));
    let weights = table_values(&inputs.score_mods.weight, at, &inputs.sizes, comptime!(inputs.tile));
    #[unroll]
    for i in 0..each {
        let query = at.query + UNIT_POS as usize / side + i * side;
        let row = query_row(query, at, inputs);
        let mut row_lse = f32::new(LOWEST);
        let mut row_delta = 0.0f32;
        if query < queries {
            row_lse = upstream.lse[at.head.index * queries + query];
            row_delta = upstream.delta[at.head.index * queries + query];
        }
        #[unroll]
        for j in 0..each {
            let key = at.key + UNIT_POS as usize % side + j * side;
            let score = scaled(grads.scores[i * each + j], inputs);
            let mut p = 0.0f32;
            let mut d_score = 0.0f32;
            if attends(&row, key, inputs) {
                let distance = comptime!(i + each - 1 - j);
                let z = modified(score, biases[distance], weights[distance], &row, key, &at.head, inputs);
                p = (z - row_lse).exp();
                d_score = p * (grads.d_scores[i * each + j] - row_delta);
            }
            grads.d_scores[i * each + j] = d_score;
            if comptime!(pass == BackwardPass::Dkv) {
                grads.scores[i * each + j] = p;
            } else {
                grads.scores[i * each + j] = score;
            }
            if comptime!(pass.keeps_softcap_grads()) {
                #[comptime]
                if let ComptimeOption::Some(softcap) = &inputs.score_mods.softcap {
                    grads.softcap_grads[i * each + j] = softcap_grad(score, softcap);
                }
            }
        }
    }
}

/// Turns the gradient of the scores that enter the softmax into that of scaled scores, through the
/// weight and then the softcap.
#[cube]
pub(crate) fn score_mods_backward(
    grads: &mut ScoreGradients,
    inputs: &FlashInputs,
    at: &TilePosition,
    #[comptime] pass: BackwardPass,
) {
    if comptime!(inputs.score_mods.weight.is_some()) {
        scale_by_weight(&mut grads.d_scores, inputs, at);
    }
    #[comptime]
    if let ComptimeOption::Some(softcap) = &inputs.score_mods.softcap {
        #[unroll]
        for n in 0..comptime!(inputs.tile.each * inputs.tile.each) {
            if comptime!(pass.keeps_softcap_grads()) {
                grads.d_scores[n] *= grads.softcap_grads[n];
            } else {
                grads.d_scores[n] *= softcap_grad(grads.scores[n], softcap);
            }
        }
    }
}

/// Multiplies the gradients of a tile's scores by the weight at their distances.
#[cube]
fn scale_by_weight(d_scores: &mut Array<f32>, inputs: &FlashInputs, at: &TilePosition) {
    let each = comptime!(inputs.tile.each);
    let weights = table_values(&inputs.score_mods.weight, at, &inputs.sizes, comptime!(inputs.tile));
    #[unroll]
    for n in 0..comptime!(inputs.tile.each * inputs.tile.each) {
        d_scores[n] *= weights[comptime!(n / each + each - 1 - n % each)];
    }
}
