//! The gradient in queries, and in tables.
//!
//! Cubes share the tiles of queries of a head in a fixed way: cube `s` of `slots` takes every `slots`-th. Each has a row of
//! the tables' gradients for itself, `[B, H, slots, C]` in all, to which it adds the diagonals of its tiles; a column of it
//! is always the same unit's. [`add_up()`](super::diagonals::add_up()) then sums the rows in order: no atomics, and the same bits
//! every time.

use super::diagonals::add_diagonals;
use super::slopes::{slope, weigh};
use super::tile::{
    Has, Sizes, Tile, add_weighted, clear, end_key, first_key, length, load, multiply, place, position, share, store,
};
use cubecl::prelude::*;

/// `delta = d_out . out`, a row a unit.
#[cube(launch)]
pub(crate) fn row_products(out: &[f32], d_out: &[f32], delta: &mut [f32], rows: u32, #[comptime] head_dim: usize) {
    let row = ABSOLUTE_POS;
    if row < rows as usize {
        let mut sum = 0.0f32;
        for feature in 0..head_dim {
            sum += out[row * head_dim + feature] * d_out[row * head_dim + feature];
        }
        delta[row] = sum;
    }
}

/// Writes `d_q`, and rows of gradients in the tables.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_queries(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: &[f32],
    weight: &[f32],
    lengths: &[u32],
    d_out: &[f32],
    lse: &[f32],
    delta: &[f32],
    d_q: &mut [f32],
    d_bias: &mut [f32],
    d_weight: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
) {
    let size = comptime!(tile.size());
    let chunks = comptime!(tile.chunks());

    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    let columns = sizes.columns as usize;
    let at = place(head, batch, &sizes, comptime!(tile.head_dim));
    let table = (at.unit * sizes.slots as usize + CUBE_POS_X as usize) * columns;

    let mut left = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.line()));
    let mut right = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.line()));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.pitch()));
    let mut scores = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut slopes = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut sums = Array::<f32>::new(comptime!(tile.sums()));

    if comptime!(has.bias_gradient || has.weight_gradient) {
        let mut to = UNIT_POS as usize;
        while to < columns {
            if comptime!(has.bias_gradient) {
                d_bias[table + to] = 0.0f32;
            }
            if comptime!(has.weight_gradient) {
                d_weight[table + to] = 0.0f32;
            }
            to += comptime!(tile.units());
        }
    }

    let length = length(lengths, batch, &sizes, has);
    let mut first = CUBE_POS_X as usize * size;
    while first < queries {
        clear(&mut sums, comptime!(tile.sums()));
        let end = end_key(first + size, length, &sizes);
        let mut from = first_key(first, &sizes);
        while from < end {
            multiply(&mut slopes, &mut left, &mut right, d_out, v, &at, first, from, queries, keys, tile);
            multiply(&mut scores, &mut left, &mut right, q, k, &at, first, from, queries, keys, tile);
            slope(
                &mut scores,
                &mut slopes,
                bias,
                weight,
                lse,
                delta,
                at.unit,
                head,
                first,
                from,
                length,
                &sizes,
                false,
                tile,
                has,
            );
            share(&mut shared, &slopes, tile);
            let diagonal = sizes.origin + position(first, &sizes) - from as i32 - comptime!(tile.size() as i32 - 1);
            if comptime!(has.bias_gradient) {
                sync_cube();
                add_diagonals(d_bias, table, &shared, diagonal, columns as i32, tile);
            }
            if comptime!(has.weight) {
                if comptime!(has.weight_gradient) {
                    #[unroll]
                    for n in 0..comptime!(tile.each * tile.each) {
                        scores[n] *= slopes[n];
                    }
                    sync_cube();
                    share(&mut shared, &scores, tile);
                    sync_cube();
                    add_diagonals(d_weight, table, &shared, diagonal, columns as i32, tile);
                }
                weigh(&mut slopes, first, from, head, length, weight, &sizes, tile);
                sync_cube();
                share(&mut shared, &slopes, tile);
            }
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                // a head of one chunk has its keys there still
                if comptime!(tile.chunks() > 1) {
                    load(&mut right, k, at.theirs, from, keys, comptime!(c * tile.chunk()), tile);
                    sync_cube();
                }
                add_weighted(&mut sums, &shared, &right, c, false, tile);
            }
            from += size;
        }
        store(d_q, &sums, sizes.scale, at.own, first, queries, tile);
        first += sizes.slots as usize * size;
    }
}
