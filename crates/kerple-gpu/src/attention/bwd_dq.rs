//! The gradients of queries and tables.
//!
//! Cubes share the query tiles per head in a fixed way: cube `s` of `splits` takes every
//! `splits`-th. Each cube has its own row of the tables' gradients, `[B, H, splits, C]` in all, and
//! adds the diagonals of its tiles to it; one unit always owns one column. A piecewise linear bias
//! has its own rows there, see [`piecewise_linear`](super::piecewise_linear).
//! [`sum_partial()`](crate::reduce::sum_partial()) then sums the rows in order: no atomics, and the
//! same bits every time.

use super::inputs::{
    FlashInputs, TilePosition, end_key, first_key, head_offsets, key_rows, position, query_rows, unpadded_keys,
};
use super::piecewise_linear::{PARTIAL_SUMS, add_segments};
use super::score_gradients::{
    BackwardPass, ScoreGradients, UpstreamGradients, compute_score_gradients, score_mods_backward,
};
use super::shared_tiles::{SharedTiles, add_weighted};
use super::table_gradients::{TableRow, add_diagonals};
use super::tile::{clear, load, share, store};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// What the pass writes: the gradient of queries, and a row per cube of those of the tables.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct DqOutputs {
    pub d_q: Box<[f32]>,
    /// Of the bias by distance or of the piecewise linear bias.
    pub d_bias: ComptimeOption<Box<[f32]>>,
    pub d_weight: ComptimeOption<Box<[f32]>>,
}

/// Sets a cube's rows of the tables' gradients to 0.
#[cube]
fn clear_table_gradients(outputs: &mut DqOutputs, row: &TableRow, #[comptime] units: usize) {
    if comptime!(outputs.d_bias.is_some() || outputs.d_weight.is_some()) {
        let mut to = UNIT_POS as usize;
        while to < row.columns {
            #[comptime]
            if let ComptimeOption::Some(d_bias) = &mut outputs.d_bias {
                d_bias[row.base + to] = 0.0f32;
            }
            #[comptime]
            if let ComptimeOption::Some(d_weight) = &mut outputs.d_weight {
                d_weight[row.base + to] = 0.0f32;
            }
            to += units;
        }
    }
}

/// Adds a tile to a cube's rows of the tables' gradients. Overwrites the scores for that of a
/// weight.
#[cube]
fn add_table_gradients<N: Float>(
    outputs: &mut DqOutputs,
    row: &TableRow,
    grads: &mut ScoreGradients,
    shared: &mut SharedTiles<N>,
    at: &TilePosition,
    inputs: &FlashInputs,
) {
    let tile = comptime!(inputs.tile);
    let sizes = &inputs.sizes;
    let diagonal = sizes.origin + position(at.query, sizes) - at.key as i32 - comptime!(tile.size() as i32 - 1);
    #[comptime]
    if let ComptimeOption::Some(d_bias) = &mut outputs.d_bias {
        #[comptime]
        if let ComptimeOption::Some(piecewise) = &inputs.score_mods.piecewise {
            add_segments(d_bias, row.base, &grads.d_scores, shared, piecewise, at, inputs);
        } else {
            add_diagonals(d_bias, row, &grads.d_scores, shared, diagonal, tile);
        }
    }
    #[comptime]
    if let ComptimeOption::Some(d_weight) = &mut outputs.d_weight {
        #[unroll]
        for n in 0..comptime!(tile.each * tile.each) {
            grads.scores[n] *= grads.d_scores[n];
        }
        add_diagonals(d_weight, row, &grads.scores, shared, diagonal, tile);
    }
}

/// Writes `d_q`, and the cube's rows of the tables' gradients.
#[cube(launch)]
pub(crate) fn bwd_dq<N: Float>(
    inputs: &FlashInputs,
    upstream: &UpstreamGradients,
    outputs: &mut DqOutputs,
    #[define(N)] _operands: ElemType,
) {
    let tile = comptime!(inputs.tile);
    let size = comptime!(tile.size());
    let pass = comptime!(BackwardPass::Dq { d_weight: outputs.d_weight.is_some() });
    let batch = CUBE_POS_Z as usize;
    let head = head_offsets(CUBE_POS_Y as usize, batch, &inputs.sizes, comptime!(tile.head_dim));
    let mut columns = inputs.sizes.columns as usize;
    #[comptime]
    if let ComptimeOption::Some(piecewise) = &inputs.score_mods.piecewise {
        columns = comptime!(tile.units() * piecewise.segments * PARTIAL_SUMS);
    }
    let row = TableRow { base: (head.index * inputs.sizes.splits as usize + CUBE_POS_X as usize) * columns, columns };

    let mut shared = SharedTiles::<N>::new(tile);
    let mut grads = ScoreGradients::new(inputs, pass);
    let mut sums = Array::<f32>::new(comptime!(tile.sums()));
    clear_table_gradients(outputs, &row, comptime!(tile.units()));

    let length = unpadded_keys(inputs, batch);
    let mut query = CUBE_POS_X as usize * size;
    while query < inputs.sizes.queries as usize {
        clear(&mut sums, comptime!(tile.sums()));
        let end = end_key(query, batch, length, inputs);
        let mut key = first_key(query, batch, inputs);
        while key < end {
            let at = TilePosition { head, query, key, length };
            compute_score_gradients(&mut grads, &mut shared, inputs, upstream, &at, pass);
            add_table_gradients(outputs, &row, &mut grads, &mut shared, &at, inputs);
            score_mods_backward(&mut grads, inputs, &at, pass);
            if comptime!(outputs.d_bias.is_some() || outputs.d_weight.is_some()) {
                sync_cube();
            }
            share(&mut shared.weights, &grads.d_scores, tile);
            #[unroll]
            for c in 0..comptime!(tile.chunks()) {
                sync_cube();
                // the keys of a head of one chunk are still there
                if comptime!(tile.chunks() > 1) {
                    load(&mut shared.right, &inputs.k, key_rows(&at, &inputs.sizes), comptime!(c * tile.chunk()), tile);
                    sync_cube();
                }
                add_weighted(&mut sums, &mut shared, c, tile);
            }
            key += size;
        }
        let at = TilePosition { head, query, key, length };
        store(&mut outputs.d_q, &sums, inputs.sizes.scale, query_rows(&at, &inputs.sizes), tile);
        query += inputs.sizes.splits as usize * size;
    }
}
