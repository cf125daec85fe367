//! The gradients of keys and values: a cube takes a tile of keys and loops over the queries that
//! attend to them, one query head of the key head after another.

use super::inputs::{FlashInputs, TilePosition, end_query, first_query, head_offsets, query_rows, unpadded_keys};
use super::score_gradients::{
    BackwardPass, ScoreGradients, UpstreamGradients, compute_score_gradients, score_mods_backward,
};
use super::shared_tiles::{SharedTiles, add_weighted_transposed};
use super::tile::{TileRows, TileShape, clear, load, share, store, unit_position};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// What the pass writes.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct DkvOutputs {
    pub d_k: Box<[f32]>,
    pub d_v: Box<[f32]>,
    pub d_gate_cumsum: ComptimeOption<Box<[f32]>>,
}

/// Writes the sums of a tile's columns, of which each unit has a part, to a row of an array.
#[cube]
fn store_column_sums(
    to: &mut [f32],
    sums: &Array<f32>,
    partial: &mut Shared<[f32]>,
    row: TileRows,
    #[comptime] tile: TileShape,
) {
    let side = comptime!(tile.side);
    let unit = unit_position(tile);
    sync_cube();
    #[unroll]
    for j in 0..comptime!(tile.each) {
        partial[(unit.column + j * side) * comptime!(side + 1) + unit.row] = sums[j];
    }
    sync_cube();
    let at = UNIT_POS as usize;
    if at < comptime!(tile.size()) && row.first + at < row.rows {
        let mut sum = 0.0f32;
        for x in 0..side {
            sum += partial[at * comptime!(side + 1) + x];
        }
        to[row.base + row.first + at] = sum;
    }
}

/// Adds a tile's gradients of values, from its probabilities and the output's gradient.
#[cube]
fn add_d_v<N: Float>(
    sums: &mut Array<f32>,
    shared: &mut SharedTiles<N>,
    probabilities: &Array<f32>,
    d_out: &[f32],
    rows: TileRows,
    #[comptime] tile: TileShape,
) {
    share(&mut shared.weights, probabilities, tile);
    #[unroll]
    for c in 0..comptime!(tile.chunks()) {
        sync_cube();
        // the output's gradient of a head of one chunk is still there
        if comptime!(tile.chunks() > 1) {
            load(&mut shared.left, d_out, rows, comptime!(c * tile.chunk()), tile);
            sync_cube();
        }
        add_weighted_transposed(sums, shared, c, tile);
    }
}

/// Adds a tile's gradients of keys, from those of its scores and the queries.
#[cube]
fn add_d_k<N: Float>(
    sums: &mut Array<f32>,
    shared: &mut SharedTiles<N>,
    d_scores: &Array<f32>,
    q: &[f32],
    rows: TileRows,
    #[comptime] tile: TileShape,
) {
    sync_cube();
    share(&mut shared.weights, d_scores, tile);
    #[unroll]
    for c in 0..comptime!(tile.chunks()) {
        sync_cube();
        load(&mut shared.left, q, rows, comptime!(c * tile.chunk()), tile);
        sync_cube();
        add_weighted_transposed(sums, shared, c, tile);
    }
}

/// Writes `d_k`, `d_v`, and the gradient of cumulative gates, summed over the queries that read
/// them. Those of the queries themselves need no sum: a row's gradients of scores add up to 0.
#[cube(launch)]
pub(crate) fn bwd_dkv<N: Float>(
    inputs: &FlashInputs,
    upstream: &UpstreamGradients,
    outputs: &mut DkvOutputs,
    #[define(N)] _operands: ElemType,
) {
    let tile = comptime!(inputs.tile);
    let size = comptime!(tile.size());
    let gates = comptime!(outputs.d_gate_cumsum.is_some());
    let key = CUBE_POS_X as usize * size;
    let batch = CUBE_POS_Z as usize;
    let keys = inputs.sizes.keys as usize;
    let group = inputs.sizes.group as usize;
    let first_head = head_offsets(CUBE_POS_Y as usize * group, batch, &inputs.sizes, comptime!(tile.head_dim));

    let mut shared = SharedTiles::<N>::new(tile);
    let mut grads = ScoreGradients::new(inputs, comptime!(BackwardPass::Dkv));
    let mut sums_k = Array::<f32>::new(comptime!(tile.sums()));
    let mut sums_v = Array::<f32>::new(comptime!(tile.sums()));
    let mut d_gates = Array::<f32>::new(comptime!(tile.each));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(if gates { tile.row_partials() } else { 1 }));
    clear(&mut sums_k, comptime!(tile.sums()));
    clear(&mut sums_v, comptime!(tile.sums()));

    let length = unpadded_keys(inputs, batch);
    let end = end_query(key, batch, length, inputs);
    for member in 0..group {
        let head = head_offsets(CUBE_POS_Y as usize * group + member, batch, &inputs.sizes, comptime!(tile.head_dim));
        let mut query = first_query(key, batch, inputs);
        clear(&mut d_gates, comptime!(tile.each));
        while query < end {
            let at = TilePosition { head, query, key, length };
            let rows = query_rows(&at, &inputs.sizes);
            compute_score_gradients(&mut grads, &mut shared, inputs, upstream, &at, comptime!(BackwardPass::Dkv));
            if comptime!(gates) {
                #[unroll]
                for n in 0..comptime!(tile.each * tile.each) {
                    d_gates[comptime!(n % tile.each)] -= grads.d_scores[n];
                }
            }
            score_mods_backward(&mut grads, inputs, &at, comptime!(BackwardPass::Dkv));
            add_d_v(&mut sums_v, &mut shared, &grads.scores, &upstream.d_out, rows, tile);
            add_d_k(&mut sums_k, &mut shared, &grads.d_scores, &inputs.q, rows, tile);
            query += size;
        }
        #[comptime]
        if let ComptimeOption::Some(d_gate_cumsum) = &mut outputs.d_gate_cumsum {
            let row = TileRows { base: head.index * keys, first: key, rows: keys };
            store_column_sums(d_gate_cumsum, &d_gates, &mut partial, row, tile);
        }
    }
    let rows = TileRows { base: first_head.keys, first: key, rows: keys };
    store(&mut outputs.d_k, &sums_k, inputs.sizes.scale, rows, tile);
    store(&mut outputs.d_v, &sums_v, 1.0f32, rows, tile);
}
