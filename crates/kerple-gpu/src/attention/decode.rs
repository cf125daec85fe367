//! Decoding with few queries over many keys, as split-KV: cubes compute spans of a row's keys in
//! parallel, and their results are combined in a fixed order.

use super::tile::{Has, LOWEST, Sizes, Tile, clear, length, mapped, narrowed, place, position, scaled, sees};
use crate::total::total as cube_total;
use cubecl::prelude::*;

/// Units of a cube.
pub(crate) const UNITS: usize = 64;
/// Keys of a span.
pub(crate) const SPAN: usize = 256;

/// For each query and span the largest score, the sum of exponentials below it, and the values they weigh.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_spans(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: &[f32],
    weight: &[f32],
    lengths: &[u32],
    clocks: &[i32],
    values: &mut [f32],
    tops: &mut [f32],
    totals: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
) {
    let head_dim = comptime!(tile.head_dim);
    // features that a unit adds up at once
    let wide = comptime!(tile.head_dim.div_ceil(UNITS).min(2));
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    let at_head = place(head, batch, &sizes, comptime!(tile.head_dim));
    let from = CUBE_POS_X as usize * comptime!(SPAN);
    let length = length(lengths, batch, &sizes, has);

    let mut own = Shared::<[f32]>::new_slice(comptime!(tile.head_dim));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(SPAN));
    let mut shares = Shared::<[f32]>::new_slice(comptime!(UNITS));
    for query in 0..queries {
        let row = at_head.unit * queries + query;
        sync_cube();
        let mut feature = UNIT_POS as usize;
        while feature < head_dim {
            own[feature] = narrowed::<f32>(q[row * head_dim + feature], tile);
            feature += comptime!(UNITS);
        }
        sync_cube();
        let mut largest = f32::new(LOWEST);
        let mut at = UNIT_POS as usize;
        while at < comptime!(SPAN) {
            let key = from + at;
            let mut z = f32::new(LOWEST);
            if sees(query, key, length, &sizes) {
                let mut product = 0.0f32;
                for feature in 0..head_dim {
                    product += own[feature] * narrowed::<f32>(k[at_head.theirs + key * head_dim + feature], tile);
                }
                let column = (sizes.origin + position(query, &sizes) - key as i32) as usize;
                let of_table = head * sizes.columns as usize + column;
                let mut bias_here = 0.0f32;
                let mut weight_here = 1.0f32;
                if comptime!(has.bias) {
                    bias_here = bias[of_table];
                }
                if comptime!(has.weight) {
                    weight_here = weight[of_table];
                }
                z = mapped(
                    scaled(product, &sizes, has),
                    bias_here,
                    weight_here,
                    query,
                    key,
                    head,
                    at_head.unit,
                    bias,
                    clocks,
                    &sizes,
                    has,
                );
                largest = select(z > largest, z, largest);
            }
            scores[at] = z;
            at += comptime!(UNITS);
        }
        shares[UNIT_POS as usize] = largest;
        sync_cube();
        for x in 0..comptime!(UNITS) {
            largest = select(shares[x] > largest, shares[x], largest);
        }
        sync_cube();
        let mut total = 0.0f32;
        let mut at = UNIT_POS as usize;
        while at < comptime!(SPAN) {
            let mut p = 0.0f32;
            if sees(query, from + at, length, &sizes) {
                p = (scores[at] - largest).exp();
            }
            scores[at] = narrowed::<f32>(p, tile);
            total += p;
            at += comptime!(UNITS);
        }
        let sum = cube_total(total, &mut shares, UNITS);
        let place = row * sizes.slots as usize + CUBE_POS_X as usize;
        if UNIT_POS == 0 {
            tops[place] = largest;
            totals[place] = sum;
        }
        let end = select(from + comptime!(SPAN) < keys, from + comptime!(SPAN), keys);
        let mut sums = Array::<f32>::new(wide);
        let mut feature = UNIT_POS as usize;
        while feature < head_dim {
            clear(&mut sums, wide);
            for key in from..end {
                let from_key = at_head.theirs + key * head_dim + feature;
                let p = scores[key - from];
                #[unroll]
                for j in 0..wide {
                    if feature + j * comptime!(UNITS) < head_dim {
                        sums[j] += p * narrowed::<f32>(v[from_key + j * comptime!(UNITS)], tile);
                    }
                }
            }
            #[unroll]
            for j in 0..wide {
                if feature + j * comptime!(UNITS) < head_dim {
                    values[place * head_dim + feature + j * comptime!(UNITS)] = sums[j];
                }
            }
            feature += comptime!(UNITS * wide);
        }
    }
}

/// Puts the spans of each row together, a feature a unit.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_rows(
    values: &[f32],
    tops: &[f32],
    totals: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    rows: u32,
    slots: u32,
    #[comptime] head_dim: usize,
) {
    let at = ABSOLUTE_POS;
    if at < rows as usize * head_dim {
        let row = at / head_dim;
        let feature = at % head_dim;
        let slots = slots as usize;
        let mut largest = f32::new(LOWEST);
        for slot in 0..slots {
            let top = tops[row * slots + slot];
            largest = select(top > largest, top, largest);
        }
        let mut total = 0.0f32;
        let mut sum = 0.0f32;
        for slot in 0..slots {
            let share = (tops[row * slots + slot] - largest).exp();
            total += share * totals[row * slots + slot];
            sum += share * values[(row * slots + slot) * head_dim + feature];
        }
        let nothing = total == 0.0f32;
        let total = select(nothing, 1.0f32, total);
        out[at] = sum / total;
        if feature == 0 {
            lse[row] = select(nothing, f32::new(LOWEST), largest + total.ln());
        }
    }
}
