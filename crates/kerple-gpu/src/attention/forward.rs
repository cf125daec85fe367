//! The forward: a cube takes a tile of queries and loops over the keys they attend to, with an
//! online softmax: a running maximum and sum per row.

use super::product::{Desk, add_weighted, multiply};
use super::tile::{
    Has, LOWEST, Sizes, Tile, clear, end_key, first_key, length, load, mapped, narrowed, of_distances, place, scaled,
    sees, store,
};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// Puts together what the units of each row have of it, the largest or the sum, where the first of them had its own.
#[cube]
fn of_rows(shares: &mut Shared<[f32]>, #[comptime] largest: bool, #[comptime] tile: Tile) {
    let side = comptime!(tile.side);
    sync_cube();
    let first = UNIT_POS as usize * comptime!(side + 1);
    if (UNIT_POS as usize) < comptime!(tile.size()) {
        let mut all = shares[first];
        for x in 1..side {
            let share = shares[first + x];
            if comptime!(largest) {
                all = select(share > all, share, all);
            } else {
                all += share;
            }
        }
        shares[first] = all;
    }
    sync_cube();
}

/// Writes the output, and for the backward the logarithm of each row's sum of exponentials, [`LOWEST`] for a row that sees
/// nothing.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn attend<N: Float>(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: &[f32],
    weight: &[f32],
    lengths: &[u32],
    clocks: &[i32],
    out: &mut [f32],
    lse: &mut [f32],
    sizes: Sizes,
    #[comptime] tile: Tile,
    #[comptime] has: Has,
    #[define(N)] _operands: ElemType,
) {
    let side = comptime!(tile.side);
    let each = comptime!(tile.each);
    let size = comptime!(tile.size());
    let pitch = comptime!(tile.pitch());
    let line = comptime!(tile.side + 1);
    let chunks = comptime!(tile.chunks());
    let row = UNIT_POS as usize / side;
    let column = UNIT_POS as usize % side;

    let first = CUBE_POS_X as usize * size;
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let queries = sizes.queries as usize;
    let keys = sizes.keys as usize;
    let at = place(head, batch, &sizes, comptime!(tile.head_dim));

    let mut desk = Desk::<N>::new(tile);
    let mut shares = Shared::<[f32]>::new_slice(comptime!(tile.shares()));
    let mut scores = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut sums = Array::<f32>::new(comptime!(tile.sums()));
    let mut top = Array::<f32>::new(each);
    let mut total = Array::<f32>::new(each);
    clear(&mut sums, comptime!(tile.sums()));
    #[unroll]
    for i in 0..each {
        top[i] = LOWEST;
        total[i] = 0.0f32;
    }

    let length = length(lengths, batch, &sizes, has);
    let end = end_key(first + size, length, &sizes);
    let mut from = first_key(first, &sizes);
    while from < end {
        multiply(&mut scores, &mut desk, q, k, &at, first, from, queries, keys, tile);
        let biases = of_distances(bias, first, from, head, &sizes, comptime!(has.bias), tile);
        let weights = of_distances(weight, first, from, head, &sizes, comptime!(has.weight), tile);
        #[unroll]
        for n in 0..comptime!(tile.each * tile.each) {
            scores[n] = scaled(scores[n], &sizes, has);
        }
        #[unroll]
        for i in 0..each {
            let mut largest = f32::new(LOWEST);
            #[unroll]
            for j in 0..each {
                let query = first + row + i * side;
                let key = from + column + j * side;
                let mut z = f32::new(LOWEST);
                if sees(query, key, length, &sizes) {
                    let distance = comptime!(i + tile.each - 1 - j);
                    z = mapped(
                        scores[i * each + j],
                        biases[distance],
                        weights[distance],
                        query,
                        key,
                        head,
                        at.unit,
                        bias,
                        clocks,
                        &sizes,
                        has,
                    );
                    largest = select(z > largest, z, largest);
                }
                scores[i * each + j] = z;
            }
            shares[(row + i * side) * line + column] = largest;
        }
        of_rows(&mut shares, true, tile);
        #[unroll]
        for i in 0..each {
            let before = top[i];
            let found = shares[(row + i * side) * line];
            let largest = select(found > before, found, before);
            let kept = (before - largest).exp();
            top[i] = largest;
            total[i] *= kept;
            #[unroll]
            for j in 0..each {
                let z = scores[i * each + j];
                let p = select(z == LOWEST, 0.0f32, (z - largest).exp());
                total[i] += p;
                desk.weights[(row + i * side) * pitch + column + j * side] = narrowed::<N>(p, tile);
            }
            #[unroll]
            for c in 0..chunks {
                #[unroll]
                for j in 0..comptime!(tile.wide) {
                    sums[(c * each + i) * comptime!(tile.wide) + j] *= kept;
                }
            }
        }
        #[unroll]
        for c in 0..chunks {
            sync_cube();
            load(&mut desk.right, v, at.theirs, from, keys, comptime!(c * tile.chunk()), tile);
            sync_cube();
            add_weighted(&mut sums, &mut desk, c, false, tile);
        }
        from += size;
    }

    #[unroll]
    for i in 0..each {
        shares[(row + i * side) * line + column] = total[i];
    }
    of_rows(&mut shares, false, tile);
    #[unroll]
    for i in 0..each {
        let query = first + row + i * side;
        let sum = shares[(row + i * side) * line];
        let nothing = sum == 0.0f32;
        let factor = select(nothing, 0.0f32, 1.0f32 / select(nothing, 1.0f32, sum));
        if query < queries && column == 0 {
            lse[at.unit * queries + query] =
                select(nothing, f32::new(LOWEST), top[i] + select(nothing, 1.0f32, sum).ln());
        }
        #[unroll]
        for c in 0..chunks {
            #[unroll]
            for j in 0..comptime!(tile.wide) {
                sums[(c * each + i) * comptime!(tile.wide) + j] *= factor;
            }
        }
    }
    store(out, &sums, 1.0f32, at.own, first, queries, tile);
}
