//! The gradients of keys and values: a cube takes a tile of keys and loops over the queries that
//! attend to them, one query head of the key head after another.

use super::product::{Desk, add_weighted};
use super::slopes::{slopes_of, unbend, weigh};
use super::tile::{Has, Sizes, Tile, clear, length, load, place, position, share, store};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// The first query that sees some key from `from` on.
#[cube]
fn first_query(from: usize, sizes: &Sizes) -> usize {
    let query = from as i32 + sizes.lowest - position(0usize, sizes);
    select(query > 0, query, 0i32) as usize
}

/// Behind the last query that sees some key before `end`.
#[cube]
fn end_query(end: usize, sizes: &Sizes) -> usize {
    let query = end as i32 + sizes.highest - position(0usize, sizes);
    let query = select(query > 0, query, 0i32) as usize;
    select(query < sizes.queries as usize, query, sizes.queries as usize)
}

/// Writes the sums of a tile's columns, of which each unit has a share, to the row at `base`.
#[cube]
fn add_columns(
    to: &mut [f32],
    sums: &Array<f32>,
    shares: &mut Shared<[f32]>,
    base: usize,
    from: usize,
    keys: usize,
    #[comptime] tile: Tile,
) {
    let side = comptime!(tile.side);
    let row = UNIT_POS as usize / side;
    let column = UNIT_POS as usize % side;
    sync_cube();
    #[unroll]
    for j in 0..comptime!(tile.each) {
        shares[(column + j * side) * comptime!(side + 1) + row] = sums[j];
    }
    sync_cube();
    let at = UNIT_POS as usize;
    if at < comptime!(tile.size()) && from + at < keys {
        let mut sum = 0.0f32;
        for x in 0..side {
            sum += shares[at * comptime!(side + 1) + x];
        }
        to[base + from + at] = sum;
    }
}

/// Writes `d_k`, `d_v`, and the gradient in clocks: of those of keys. The slopes of a row add up to nothing, and with them that in the
/// clock of its query.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_keys<N: Float>(
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
    d_k: &mut [f32],
    d_v: &mut [f32],
    d_clocks: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
    #[define(N)] _operands: ElemType,
) {
    let size = comptime!(tile.size());
    let chunks = comptime!(tile.chunks());

    let from = CUBE_POS_X as usize * size;
    let batch = CUBE_POS_Z as usize;
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    let group = sizes.group as usize;
    let theirs = place(CUBE_POS_Y as usize * group, batch, &sizes, comptime!(tile.head_dim)).theirs;

    let mut desk = Desk::<N>::new(tile);
    let mut scores = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut slopes = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut follows = Array::<f32>::new(comptime!(if has.cap { tile.each * tile.each } else { 1 }));
    let mut sums_k = Array::<f32>::new(comptime!(tile.sums()));
    let mut sums_v = Array::<f32>::new(comptime!(tile.sums()));
    let mut falls = Array::<f32>::new(comptime!(tile.each));
    let mut shares = Shared::<[f32]>::new_slice(comptime!(if has.clocks { tile.shares() } else { 1 }));
    clear(&mut sums_k, comptime!(tile.sums()));
    clear(&mut sums_v, comptime!(tile.sums()));

    let length = length(lengths, batch, &sizes, has);
    let end = end_query(select(from + size < length, from + size, length), &sizes);
    for member in 0..group {
        let head = CUBE_POS_Y as usize * group + member;
        let at = place(head, batch, &sizes, comptime!(tile.head_dim));
        let mut first = first_query(from, &sizes);
        clear(&mut falls, comptime!(tile.each));
        while first < end {
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
                true,
                tile,
                has,
            );
            if comptime!(has.clocks) {
                #[unroll]
                for n in 0..comptime!(tile.each * tile.each) {
                    falls[comptime!(n % tile.each)] -= slopes[n];
                }
            }
            if comptime!(has.weight) {
                weigh(&mut slopes, first, from, head, weight, &sizes, tile);
            }
            if comptime!(has.cap) {
                unbend(&mut slopes, &follows, tile);
            }
            share(&mut desk.weights, &scores, tile);
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                // of a head of one chunk it is there still
                if comptime!(tile.chunks() > 1) {
                    load(&mut desk.left, d_out, at.own, first, queries, comptime!(c * tile.chunk()), tile);
                    sync_cube();
                }
                add_weighted(&mut sums_v, &mut desk, c, true, tile);
            }
            sync_cube();
            share(&mut desk.weights, &slopes, tile);
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                load(&mut desk.left, q, at.own, first, queries, comptime!(c * tile.chunk()), tile);
                sync_cube();
                add_weighted(&mut sums_k, &mut desk, c, true, tile);
            }
            first += size;
        }
        if comptime!(has.clocks) {
            add_columns(d_clocks, &falls, &mut shares, at.unit * keys, from, keys, tile);
        }
    }
    store(d_k, &sums_k, sizes.scale, theirs, from, keys, tile);
    store(d_v, &sums_v, 1.0f32, theirs, from, keys, tile);
}
