//! The forward: a cube takes a tile of queries and loops over the keys they attend to, with an
//! online softmax: a running maximum and sum per row.

use super::inputs::{
    FlashInputs, LOWEST, TilePosition, attends, end_key, first_key, head_offsets, key_rows, query_row, query_rows,
    unpadded_keys,
};
use super::score_mods::{modified, scaled, table_values};
use super::shared_tiles::{SharedTiles, add_weighted, multiply};
use super::tile::{TileShape, UnitPosition, clear, load, narrowed, store, unit_position};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// The running softmax of a unit's rows.
#[derive(CubeType)]
struct FlashSoftmax {
    row_max: Array<f32>,
    /// This unit's part of the sum of exponentials below the maximum.
    row_sum: Array<f32>,
    /// The units' parts of a reduction over rows.
    partial: Shared<[f32]>,
}

#[cube]
impl FlashSoftmax {
    fn new(#[comptime] tile: TileShape) -> FlashSoftmax {
        let partial = Shared::<[f32]>::new_slice(comptime!(tile.row_partials()));
        let mut row_max = Array::<f32>::new(comptime!(tile.each));
        let mut row_sum = Array::<f32>::new(comptime!(tile.each));
        #[unroll]
        for i in 0..comptime!(tile.each) {
            row_max[i] = LOWEST;
            row_sum[i] = 0.0f32;
        }
        FlashSoftmax { row_max, row_sum, partial }
    }
}

/// Reduces the parts of each row, to their largest or to their sum, into the first of them.
#[cube]
fn reduce_rows(partial: &mut Shared<[f32]>, #[comptime] largest: bool, #[comptime] tile: TileShape) {
    let side = comptime!(tile.side);
    sync_cube();
    let first = UNIT_POS as usize * comptime!(side + 1);
    if (UNIT_POS as usize) < comptime!(tile.size()) {
        let mut all = partial[first];
        for x in 1..side {
            let share = partial[first + x];
            if comptime!(largest) {
                all = select(share > all, share, all);
            } else {
                all += share;
            }
        }
        partial[first] = all;
    }
    sync_cube();
}

/// Turns the products of a tile into the scores that enter the softmax, [`LOWEST`] where the mask
/// excludes a pair, and leaves each unit's largest per row in `partial`.
#[cube]
fn modify_scores(
    scores: &mut Array<f32>,
    partial: &mut Shared<[f32]>,
    unit: UnitPosition,
    at: &TilePosition,
    inputs: &FlashInputs,
) {
    let side = comptime!(inputs.tile.side);
    let each = comptime!(inputs.tile.each);
    let biases = table_values(&inputs.score_mods.bias, at, &inputs.sizes, comptime!(inputs.tile));
    let weights = table_values(&inputs.score_mods.weight, at, &inputs.sizes, comptime!(inputs.tile));
    #[unroll]
    for n in 0..comptime!(inputs.tile.each * inputs.tile.each) {
        scores[n] = scaled(scores[n], inputs);
    }
    #[unroll]
    for i in 0..each {
        let row = query_row(at.query + unit.row + i * side, at, inputs);
        let mut largest = f32::new(LOWEST);
        #[unroll]
        for j in 0..each {
            let key = at.key + unit.column + j * side;
            let mut z = f32::new(LOWEST);
            if attends(&row, key, inputs) {
                let distance = comptime!(i + each - 1 - j);
                z = modified(scores[i * each + j], biases[distance], weights[distance], &row, key, &at.head, inputs);
                largest = select(z > largest, z, largest);
            }
            scores[i * each + j] = z;
        }
        partial[(unit.row + i * side) * comptime!(side + 1) + unit.column] = largest;
    }
}

/// Advances the softmax by a tile of scores: writes their exponentials to `weights` and scales the
/// sums of earlier tiles to the new maximum.
#[cube]
fn advance_softmax<N: Float>(
    softmax: &mut FlashSoftmax,
    sums: &mut Array<f32>,
    weights: &mut Shared<[N]>,
    scores: &Array<f32>,
    unit: UnitPosition,
    #[comptime] tile: TileShape,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    #[unroll]
    for i in 0..each {
        let before = softmax.row_max[i];
        let found = softmax.partial[(unit.row + i * side) * comptime!(side + 1)];
        let largest = select(found > before, found, before);
        let kept = (before - largest).exp();
        softmax.row_max[i] = largest;
        softmax.row_sum[i] *= kept;
        #[unroll]
        for j in 0..each {
            let z = scores[i * each + j];
            let p = select(z == LOWEST, 0.0f32, (z - largest).exp());
            softmax.row_sum[i] += p;
            weights[(unit.row + i * side) * comptime!(tile.score_stride()) + unit.column + j * side] =
                narrowed::<N>(p, tile);
        }
        #[unroll]
        for c in 0..comptime!(tile.chunks()) {
            #[unroll]
            for j in 0..comptime!(tile.wide) {
                sums[(c * each + i) * comptime!(tile.wide) + j] *= kept;
            }
        }
    }
}

/// Divides the sums by each row's sum of exponentials and writes its logarithm, [`LOWEST`] for a
/// row that attends to nothing.
#[cube]
fn finish_softmax(
    softmax: &mut FlashSoftmax,
    sums: &mut Array<f32>,
    lse: &mut [f32],
    unit: UnitPosition,
    at: &TilePosition,
    queries: usize,
    #[comptime] tile: TileShape,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    #[unroll]
    for i in 0..each {
        softmax.partial[(unit.row + i * side) * comptime!(side + 1) + unit.column] = softmax.row_sum[i];
    }
    reduce_rows(&mut softmax.partial, false, tile);
    #[unroll]
    for i in 0..each {
        let query = at.query + unit.row + i * side;
        let sum = softmax.partial[(unit.row + i * side) * comptime!(side + 1)];
        let nothing = sum == 0.0f32;
        let factor = select(nothing, 0.0f32, 1.0f32 / select(nothing, 1.0f32, sum));
        if query < queries && unit.column == 0 {
            lse[at.head.index * queries + query] =
                select(nothing, f32::new(LOWEST), softmax.row_max[i] + select(nothing, 1.0f32, sum).ln());
        }
        #[unroll]
        for c in 0..comptime!(tile.chunks()) {
            #[unroll]
            for j in 0..comptime!(tile.wide) {
                sums[(c * each + i) * comptime!(tile.wide) + j] *= factor;
            }
        }
    }
}

/// Writes the output, and for the backward the log-sum-exp of each row.
#[cube(launch)]
pub(crate) fn fwd<N: Float>(inputs: &FlashInputs, out: &mut [f32], lse: &mut [f32], #[define(N)] _operands: ElemType) {
    let tile = comptime!(inputs.tile);
    let size = comptime!(tile.size());
    // before everything else: computed in the loop, it makes ptxas spill at 256 features
    let unit = unit_position(tile);
    let query = CUBE_POS_X as usize * size;
    let batch = CUBE_POS_Z as usize;
    let head = head_offsets(CUBE_POS_Y as usize, batch, &inputs.sizes, comptime!(tile.head_dim));

    let mut shared = SharedTiles::<N>::new(tile);
    let mut scores = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut sums = Array::<f32>::new(comptime!(tile.sums()));
    clear(&mut sums, comptime!(tile.sums()));
    let mut softmax = FlashSoftmax::new(tile);

    let length = unpadded_keys(inputs, batch);
    let end = end_key(query, batch, length, inputs);
    let mut key = first_key(query, batch, inputs);
    while key < end {
        let at = TilePosition { head, query, key, length };
        let own = query_rows(&at, &inputs.sizes);
        let theirs = key_rows(&at, &inputs.sizes);
        multiply(&mut scores, &mut shared, &inputs.q, &inputs.k, own, theirs, tile);
        modify_scores(&mut scores, &mut softmax.partial, unit, &at, inputs);
        reduce_rows(&mut softmax.partial, true, tile);
        advance_softmax(&mut softmax, &mut sums, &mut shared.weights, &scores, unit, tile);
        #[unroll]
        for c in 0..comptime!(tile.chunks()) {
            sync_cube();
            load(&mut shared.right, &inputs.v, theirs, comptime!(c * tile.chunk()), tile);
            sync_cube();
            add_weighted(&mut sums, &mut shared, c, tile);
        }
        key += size;
    }
    let at = TilePosition { head, query, key, length };
    finish_softmax(&mut softmax, &mut sums, lse, unit, &at, inputs.sizes.queries as usize, tile);
    store(out, &sums, 1.0f32, query_rows(&at, &inputs.sizes), tile);
}
