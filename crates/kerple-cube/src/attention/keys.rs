//! The gradients in keys and values: a cube takes a tile of keys and goes over the queries that see them, head by head of
//! those that read it.

use super::queries::{share, weigh};
use super::tile::{
    Has, LOWEST, Sizes, Tile, add_products, add_weighted, clear, length, load, mapped, position, sees, store,
};
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

/// Writes `d_k` and `d_v`.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_keys(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: &[f32],
    weight: &[f32],
    lengths: &[u32],
    d_out: &[f32],
    lse: &[f32],
    delta: &[f32],
    d_k: &mut [f32],
    d_v: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let size = comptime!(tile.size());
    let head_dim = comptime!(tile.head_dim);
    let chunks = comptime!(tile.chunks());
    let row = UNIT_POS as usize / side;
    let column = UNIT_POS as usize % side;

    let from = CUBE_POS_X as usize * size;
    let batch = CUBE_POS_Z as usize;
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    let kv_heads = sizes.heads / sizes.group;
    let theirs = (batch * kv_heads as usize + CUBE_POS_Y as usize) * keys * head_dim;

    let mut left = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.line()));
    let mut right = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.line()));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.pitch()));
    let mut scores = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut slopes = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut sums_k = Array::<f32>::new(comptime!(tile.sums()));
    let mut sums_v = Array::<f32>::new(comptime!(tile.sums()));
    clear(&mut sums_k, comptime!(tile.sums()));
    clear(&mut sums_v, comptime!(tile.sums()));

    let length = length(lengths, batch, &sizes, has);
    let end = end_query(select(from + size < length, from + size, length), &sizes);
    for member in 0..sizes.group as usize {
        let head = CUBE_POS_Y as usize * sizes.group as usize + member;
        let unit = batch * sizes.heads as usize + head;
        let own = unit * queries * head_dim;
        let mut first = first_query(from, &sizes);
        while first < end {
            clear(&mut scores, comptime!(tile.each * tile.each));
            clear(&mut slopes, comptime!(tile.each * tile.each));
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                load(&mut left, q, own, first, queries, comptime!(c * tile.chunk()), tile);
                load(&mut right, k, theirs, from, keys, comptime!(c * tile.chunk()), tile);
                sync_cube();
                add_products(&mut scores, &left, &right, tile);
            }
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                load(&mut left, d_out, own, first, queries, comptime!(c * tile.chunk()), tile);
                load(&mut right, v, theirs, from, keys, comptime!(c * tile.chunk()), tile);
                sync_cube();
                add_products(&mut slopes, &left, &right, tile);
            }
            // scores become what the softmax makes of them, slopes the gradient in what it gets
            #[unroll]
            for i in 0..each {
                let query = first + row + i * side;
                let mut row_lse = f32::new(LOWEST);
                let mut row_delta = 0.0f32;
                if query < queries {
                    row_lse = lse[unit * queries + query];
                    row_delta = delta[unit * queries + query];
                }
                #[unroll]
                for j in 0..each {
                    let key = from + column + j * side;
                    let mut p = 0.0f32;
                    if sees(query, key, length, &sizes) {
                        let score = scores[i * each + j] * sizes.scale;
                        p = (mapped(score, query, key, head, bias, weight, &sizes, has) - row_lse).exp();
                    }
                    scores[i * each + j] = p;
                    slopes[i * each + j] = p * (slopes[i * each + j] - row_delta);
                }
            }
            if comptime!(has.weight) {
                weigh(&mut slopes, first, from, head, length, weight, &sizes, tile);
            }
            share(&mut shared, &scores, tile);
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                // of a head of one chunk it is there still
                if comptime!(tile.chunks() > 1) {
                    load(&mut left, d_out, own, first, queries, comptime!(c * tile.chunk()), tile);
                    sync_cube();
                }
                add_weighted(&mut sums_v, &shared, &left, c, true, tile);
            }
            sync_cube();
            share(&mut shared, &slopes, tile);
            #[unroll]
            for c in 0..chunks {
                sync_cube();
                load(&mut left, q, own, first, queries, comptime!(c * tile.chunk()), tile);
                sync_cube();
                add_weighted(&mut sums_k, &shared, &left, c, true, tile);
            }
            first += size;
        }
    }
    store(d_k, &sums_k, sizes.scale, theirs, from, keys, tile);
    store(d_v, &sums_v, 1.0f32, theirs, from, keys, tile);
}
