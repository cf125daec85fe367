//! The gradients of queries and tables.
//!
//! Cubes share the query tiles per head in a fixed way: cube `s` of `slots` takes every `slots`-th.
//! Each cube has its own row of the tables' gradients, `[B, H, slots, C]` in all, and adds the
//! diagonals of its tiles to it; one unit always owns one column. A piecewise linear bias has its
//! own rows there, see [`lines`](super::lines). [`add_up()`](super::diagonals::add_up()) then sums
//! the rows in order: no atomics, and the same bits every time.

use super::diagonals::add_diagonals_of;
use super::lines::{MOMENTS, add_pieces_of};
use super::product::{Desk, add_weighted};
use super::slopes::{slopes_of, unbend, unbend_of, weigh};
use super::tile::{Has, Sizes, Tile, clear, end_key, first_key, length, load, narrowed, place, position, share, store};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// `delta = d_out . out`, a row a unit, with `d_out` as products have it.
#[cube(launch)]
pub(crate) fn row_products(out: &[f32], d_out: &[f32], delta: &mut [f32], rows: u32, #[comptime] tile: Tile) {
    let head_dim = comptime!(tile.head_dim);
    let row = ABSOLUTE_POS;
    if row < rows as usize {
        let mut sum = 0.0f32;
        for feature in 0..head_dim {
            let slope = narrowed::<f32>(d_out[row * head_dim + feature], tile);
            sum += out[row * head_dim + feature] * slope;
        }
        delta[row] = sum;
    }
}

/// Writes `d_q`, and rows of gradients in the tables.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_queries<N: Float>(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: &[f32],
    weight: &[f32],
    lengths: &[u32],
    clocks: &[i32],
    d_out: &[f32],
    lse: &[f32],
    delta: &[f32],
    d_q: &mut [f32],
    d_bias: &mut [f32],
    d_weight: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
    #[define(N)] _operands: ElemType,
) {
    let size = comptime!(tile.size());
    let chunks = comptime!(tile.chunks());

    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    let mut columns = sizes.columns as usize;
    if comptime!(has.lines > 0) {
        columns = comptime!(tile.units() * has.lines * MOMENTS);
    }
    let at = place(head, batch, &sizes, comptime!(tile.head_dim));
    let table = (at.unit * sizes.slots as usize + CUBE_POS_X as usize) * columns;

    let mut desk = Desk::<N>::new(tile);
    let mut scores = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut slopes = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut follows =
        Array::<f32>::new(comptime!(if has.cap && has.weight_gradient { tile.each * tile.each } else { 1 }));
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
            slopes_of(
                &mut scores,
                &mut slopes,
                &mut follows,
                &mut desk,
                q,
                k,
                v,
                bias,
                weight,
                clocks,
                d_out,
                lse,
                delta,
                &at,
                head,
                first,
                from,
                length,
                &sizes,
                false,
                tile,
                has,
            );
            let diagonal = sizes.origin + position(first, &sizes) - from as i32 - comptime!(tile.size() as i32 - 1);
            if comptime!(has.bias_gradient && has.lines == 0) {
                add_diagonals_of(d_bias, table, &slopes, &mut desk, diagonal, columns as i32, tile);
            }
            if comptime!(has.bias_gradient && has.lines > 0) {
                add_pieces_of(d_bias, table, &slopes, &mut desk, bias, first, from, length, &sizes, tile, has);
            }
            if comptime!(has.weight) {
                if comptime!(has.weight_gradient) {
                    #[unroll]
                    for n in 0..comptime!(tile.each * tile.each) {
                        scores[n] *= slopes[n];
                    }
                    add_diagonals_of(d_weight, table, &scores, &mut desk, diagonal, columns as i32, tile);
                }
                weigh(&mut slopes, first, from, head, weight, &sizes, tile);
            }
            if comptime!(has.cap) {
                if comptime!(has.weight_gradient) {
                    unbend(&mut slopes, &follows, tile);
                } else {
                    unbend_of(&mut slopes, &scores, &sizes, tile);
                }
            }
            if comptime!(has.bias_gradient || has.weight_gradient) {
                sync_cube();
            }
            share(&mut desk.weights, &slopes, tile);
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                // a head of one chunk has its keys there still
                if comptime!(tile.chunks() > 1) {
                    load(&mut desk.right, k, at.theirs, from, keys, comptime!(c * tile.chunk()), tile);
                    sync_cube();
                }
                add_weighted(&mut sums, &mut desk, c, false, tile);
            }
            from += size;
        }
        store(d_q, &sums, sizes.scale, at.own, first, queries, tile);
        first += sizes.slots as usize * size;
    }
}
