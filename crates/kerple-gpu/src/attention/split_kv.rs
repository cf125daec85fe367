//! Decoding with few queries over many keys, as split-KV: cubes compute splits of a row's keys in
//! parallel, and their results are combined in a fixed order.

use super::inputs::{
    FlashInputs, LOWEST, QueryKeys, TilePosition, attends, head_offsets, position, query_row, unpadded_keys,
};
use super::score_mods::{modified, scaled};
use super::tile::{TileShape, clear, narrowed};
use crate::reduce::cube_sum;
use cubecl::prelude::*;

/// Units of a cube.
pub(crate) const UNITS: usize = 64;
/// Keys of a split.
pub(crate) const SPLIT: usize = 256;

/// The results of splits, `[B, H, Q, splits]` and for values another axis of features.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct SplitResults {
    /// Sums of values, weighted by exponentials below the largest score.
    pub values: Box<[f32]>,
    /// Largest scores.
    pub row_max: Box<[f32]>,
    /// Sums of exponentials below the largest score.
    pub row_sum: Box<[f32]>,
}

/// Stages a query in shared memory, rounded as products round it.
#[cube]
fn load_query(to: &mut Shared<[f32]>, q: &[f32], row: usize, #[comptime] tile: TileShape) {
    let head_dim = comptime!(tile.head_dim);
    let mut feature = UNIT_POS as usize;
    while feature < head_dim {
        to[feature] = narrowed::<f32>(q[row * head_dim + feature], tile);
        feature += comptime!(UNITS);
    }
}

/// The score that enters the softmax of a query and a key that it attends to.
#[cube]
fn score_of(own: &Shared<[f32]>, row: &QueryKeys, key: usize, at: &TilePosition, inputs: &FlashInputs) -> f32 {
    let head_dim = comptime!(inputs.tile.head_dim);
    let mut product = 0.0f32;
    for feature in 0..head_dim {
        product +=
            own[feature] * narrowed::<f32>(inputs.k[at.head.keys + key * head_dim + feature], comptime!(inputs.tile));
    }
    let column = (inputs.sizes.origin + position(at.query, &inputs.sizes) - key as i32) as usize;
    let in_table = at.head.head * inputs.sizes.columns as usize + column;
    let mut bias_here = 0.0f32;
    let mut weight_here = 1.0f32;
    #[comptime]
    if let ComptimeOption::Some(bias) = &inputs.score_mods.bias {
        bias_here = bias[in_table];
    }
    #[comptime]
    if let ComptimeOption::Some(weight) = &inputs.score_mods.weight {
        weight_here = weight[in_table];
    }
    modified(scaled(product, inputs), bias_here, weight_here, row, key, &at.head, inputs)
}

/// Computes a query's scores of a split; returns the unit's largest.
#[cube]
fn compute_scores(scores: &mut Shared<[f32]>, own: &Shared<[f32]>, at: &TilePosition, inputs: &FlashInputs) -> f32 {
    let row = query_row(at.query, at, inputs);
    let mut largest = f32::new(LOWEST);
    let mut n = UNIT_POS as usize;
    while n < comptime!(SPLIT) {
        let key = at.key + n;
        let mut z = f32::new(LOWEST);
        if attends(&row, key, inputs) {
            z = score_of(own, &row, key, at, inputs);
            largest = select(z > largest, z, largest);
        }
        scores[n] = z;
        n += comptime!(UNITS);
    }
    largest
}

/// Replaces a query's scores by their exponentials below the largest; returns the unit's sum.
#[cube]
fn exponentiate(scores: &mut Shared<[f32]>, largest: f32, at: &TilePosition, inputs: &FlashInputs) -> f32 {
    let row = query_row(at.query, at, inputs);
    let mut total = 0.0f32;
    let mut n = UNIT_POS as usize;
    while n < comptime!(SPLIT) {
        let mut p = 0.0f32;
        if attends(&row, at.key + n, inputs) {
            p = (scores[n] - largest).exp();
        }
        scores[n] = narrowed::<f32>(p, comptime!(inputs.tile));
        total += p;
        n += comptime!(UNITS);
    }
    total
}

/// Writes the sums of a split's values, weighted by `weights`; a unit sums some features.
#[cube]
fn weigh_values(to: &mut [f32], base: usize, weights: &Shared<[f32]>, at: &TilePosition, inputs: &FlashInputs) {
    let head_dim = comptime!(inputs.tile.head_dim);
    // features that a unit sums at once
    let wide = comptime!(head_dim.div_ceil(UNITS).min(2));
    let keys = inputs.sizes.keys as usize;
    let mut first = at.key;
    let mut end = select(at.key + comptime!(SPLIT) < keys, at.key + comptime!(SPLIT), keys);
    if comptime!(inputs.intervals.is_some()) {
        // the weights of others are 0
        let row = query_row(at.query, at, inputs);
        first = select(row.start > first, row.start, first);
        end = select(row.end < end, row.end, end);
    }
    let mut sums = Array::<f32>::new(wide);
    let mut feature = UNIT_POS as usize;
    while feature < head_dim {
        clear(&mut sums, wide);
        for key in first..end {
            let from_key = at.head.keys + key * head_dim + feature;
            let p = weights[key - at.key];
            #[unroll]
            for j in 0..wide {
                if feature + j * comptime!(UNITS) < head_dim {
                    sums[j] += p * narrowed::<f32>(inputs.v[from_key + j * comptime!(UNITS)], comptime!(inputs.tile));
                }
            }
        }
        #[unroll]
        for j in 0..wide {
            if feature + j * comptime!(UNITS) < head_dim {
                to[base + feature + j * comptime!(UNITS)] = sums[j];
            }
        }
        feature += comptime!(UNITS * wide);
    }
}

/// Writes the results of a split for each query.
#[cube(launch)]
pub(crate) fn split_kv(inputs: &FlashInputs, results: &mut SplitResults) {
    let tile = comptime!(inputs.tile);
    let head_dim = comptime!(tile.head_dim);
    let queries = inputs.sizes.queries as usize;
    let batch = CUBE_POS_Z as usize;
    let head = head_offsets(CUBE_POS_Y as usize, batch, &inputs.sizes, head_dim);
    let key = CUBE_POS_X as usize * comptime!(SPLIT);
    let length = unpadded_keys(inputs, batch);

    let mut own = Shared::<[f32]>::new_slice(head_dim);
    let mut scores = Shared::<[f32]>::new_slice(comptime!(SPLIT));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(UNITS));
    for query in 0..queries {
        let at = TilePosition { head, query, key, length };
        let row = head.index * queries + query;
        sync_cube();
        load_query(&mut own, &inputs.q, row, tile);
        sync_cube();
        let mut largest = compute_scores(&mut scores, &own, &at, inputs);
        partial[UNIT_POS as usize] = largest;
        sync_cube();
        for x in 0..comptime!(UNITS) {
            largest = select(partial[x] > largest, partial[x], largest);
        }
        sync_cube();
        let total = exponentiate(&mut scores, largest, &at, inputs);
        let sum = cube_sum(total, &mut partial, UNITS);
        let place = row * inputs.sizes.splits as usize + CUBE_POS_X as usize;
        if UNIT_POS == 0 {
            results.row_max[place] = largest;
            results.row_sum[place] = sum;
        }
        weigh_values(&mut results.values, place * head_dim, &scores, &at, inputs);
    }
}

/// Combines the splits of each row, one feature per unit.
#[cube(launch)]
pub(crate) fn combine(
    results: &SplitResults,
    out: &mut [f32],
    lse: &mut [f32],
    rows: u32,
    splits: u32,
    #[comptime] head_dim: usize,
) {
    let at = ABSOLUTE_POS;
    if at < rows as usize * head_dim {
        let row = at / head_dim;
        let feature = at % head_dim;
        let splits = splits as usize;
        let mut largest = f32::new(LOWEST);
        for split in 0..splits {
            let row_max = results.row_max[row * splits + split];
            largest = select(row_max > largest, row_max, largest);
        }
        let mut total = 0.0f32;
        let mut sum = 0.0f32;
        for split in 0..splits {
            let share = (results.row_max[row * splits + split] - largest).exp();
            total += share * results.row_sum[row * splits + split];
            sum += share * results.values[(row * splits + split) * head_dim + feature];
        }
        let nothing = total == 0.0f32;
        let total = select(nothing, 1.0f32, total);
        out[at] = sum / total;
        if feature == 0 {
            lse[row] = select(nothing, f32::new(LOWEST), largest + total.ln());
        }
    }
}
