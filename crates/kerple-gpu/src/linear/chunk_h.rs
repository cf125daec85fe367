//! Sums over chunks: those that each chunk leaves, and those of the chunks before or after it that
//! its rows read.

use super::decay::{ChunkedDecayInputs, advance, chunk_end, scale_by_gates, scale_by_shape, term_factor};
use crate::attention::shared_tiles::{TileProduct, add_product};
use crate::attention::tile::{TileRows, clear, load, store};
use cubecl::prelude::*;
use kerple_core::attention::linear::CHUNK;

/// `sum_t b_m(t) rows_t values_t`, `[M, U]`, of every chunk and shape: what the chunk leaves to
/// those after it, or, in `reverse`, to those before it.
#[cube(launch)]
pub(crate) fn chunk_h(
    rows: &[f32],
    values: &[f32],
    sums: &mut [f32],
    decay: &ChunkedDecayInputs,
    #[comptime] reverse: bool,
) {
    let form = comptime!(decay.shape);
    let square = comptime!(form.rows.square());
    let tile = comptime!(form.values);
    let size = comptime!(tile.size());
    let slices = comptime!(tile.along(form.rows.head_dim));
    let shapes = comptime!(form.terms.shapes);
    let wide = comptime!(form.rows.head_dim);
    let deep = comptime!(tile.head_dim);

    let chunk = CUBE_POS_X as usize;
    let feature = CUBE_POS_Y as usize % slices * size;
    let shape = CUBE_POS_Y as usize / slices;
    let len = decay.sizes.len as usize;
    let index = decay.sizes.first as usize + CUBE_POS_Z as usize;
    let constant = index % decay.sizes.heads as usize * comptime!(form.terms.constants()) + shape * comptime!(CHUNK);

    let mut left = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.score_stride()));
    let mut right = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.chunk_stride()));
    let mut products = Shared::<[f32]>::new_slice(comptime!(tile.products()));
    let mut found = Array::<f32>::new(comptime!(tile.sums()));
    clear(&mut found, comptime!(tile.sums()));
    for step in 0..comptime!(CHUNK / tile.size()) {
        let first = chunk * comptime!(CHUNK) + step * size;
        sync_cube();
        load(&mut left, rows, TileRows { base: index * len * wide, first, rows: len }, feature, square);
        scale_by_shape(&mut left, &decay.constants, constant, first, comptime!(!reverse), square);
        #[comptime]
        if let ComptimeOption::Some(gate_cumsum) = &decay.gate_cumsum {
            scale_by_gates(&mut left, gate_cumsum, index * len, first, len, comptime!(!reverse), square);
        }
        #[unroll]
        for c in 0..comptime!(tile.chunks()) {
            sync_cube();
            let from = TileRows { base: index * len * deep, first, rows: len };
            load(&mut right, values, from, comptime!(c * tile.chunk()), tile);
            sync_cube();
            let at = comptime!(c * tile.each);
            add_product(&mut found, &left, &right, &mut products, at, TileProduct::TransposedValues, tile);
        }
    }
    let place = (CUBE_POS_Z as usize * decay.sizes.chunks as usize + chunk) * shapes + shape;
    store(sums, &found, 1.0f32, TileRows { base: place * wide * deep, first: feature, rows: wide }, tile);
}

/// Turns what chunks left, `[chunks, J, elements]` per head, into what rows read: in place of chunk
/// `c` the sums over it and all before it, as rows of chunk `c + near_chunks` read them; in
/// `reverse`, the sums over it and all after it, as rows of chunk `c - near_chunks` do.
#[cube(launch)]
pub(crate) fn scan_h(
    sums: &mut [f32],
    weights: &ComptimeOption<Box<[f32]>>,
    decay: &ChunkedDecayInputs,
    #[comptime] reverse: bool,
) {
    let form = comptime!(decay.shape);
    let count = decay.sizes.terms as usize;
    let shapes = decay.sizes.shapes as usize;
    let elements = comptime!(form.elements());
    let element = CUBE_POS_X as usize * CUBE_DIM as usize + UNIT_POS as usize;
    let head = (decay.sizes.first as usize + CUBE_POS_Z as usize) % decay.sizes.heads as usize;
    let chunks = decay.sizes.chunks as usize;
    let constant = head * comptime!(form.terms.constants());
    if element < elements {
        let mut all = Array::<f32>::new(comptime!(form.terms.terms));
        let mut own = Array::<f32>::new(comptime!(form.terms.shapes));
        clear(&mut all, comptime!(form.terms.terms));
        for step in 0..chunks {
            let mut chunk = step;
            if comptime!(reverse) {
                chunk = chunks - 1 - step;
            }
            let place = (CUBE_POS_Z as usize * chunks + chunk) * shapes;
            for m in 0..shapes {
                own[m] = sums[(place + m) * elements + element];
            }
            #[comptime]
            if let ComptimeOption::Some(gate_cumsum) = &decay.gate_cumsum {
                let len = decay.sizes.len as usize;
                let index = decay.sizes.first as usize + CUBE_POS_Z as usize;
                let kept = gate_cumsum[index * len + chunk_end(chunk, len)].exp();
                for k in 0..count {
                    all[k] *= kept;
                }
            }
            advance(&mut all, &own, constant, decay);
            for m in 0..shapes {
                let mut given = 0.0f32;
                for k in 0..count {
                    let mut factor = term_factor(decay, constant, k, m);
                    #[comptime]
                    if let ComptimeOption::Some(weights) = weights {
                        factor *= weights[head * count + k];
                    }
                    given += factor * all[k];
                }
                sums[(place + m) * elements + element] = given;
            }
        }
    }
}

/// Writes rows of gradients of the terms' weights, `[B, H, cubes, K]`: sums over keys, of which
/// `of_keys` is what chunks left, times what the queries of later chunks leave, `of_queries`.
#[cube(launch)]
pub(crate) fn bwd_decay_weights(
    of_keys: &[f32],
    of_queries: &[f32],
    partial: &mut [f32],
    decay: &ChunkedDecayInputs,
    #[comptime] units: usize,
) {
    let form = comptime!(decay.shape);
    let count = decay.sizes.terms as usize;
    let shapes = decay.sizes.shapes as usize;
    let elements = comptime!(form.elements());
    let element = CUBE_POS_X as usize * units + UNIT_POS as usize;
    let index = decay.sizes.first as usize + CUBE_POS_Z as usize;
    let chunks = decay.sizes.chunks as usize;
    let near_chunks = decay.sizes.near_chunks as usize;
    let constant = index % decay.sizes.heads as usize * comptime!(form.terms.constants());
    let mut all = Array::<f32>::new(comptime!(form.terms.terms));
    let mut d_weights = Array::<f32>::new(comptime!(form.terms.terms));
    let mut own = Array::<f32>::new(comptime!(form.terms.shapes));
    clear(&mut all, comptime!(form.terms.terms));
    clear(&mut d_weights, comptime!(form.terms.terms));
    if element < elements {
        for chunk in 0..chunks {
            let place = CUBE_POS_Z as usize * chunks + chunk;
            for m in 0..shapes {
                own[m] = of_keys[(place * shapes + m) * elements + element];
            }
            advance(&mut all, &own, constant, decay);
            if chunk + near_chunks < chunks {
                for m in 0..shapes {
                    own[m] = of_queries[((place + near_chunks) * shapes + m) * elements + element];
                }
                for k in 0..count {
                    let mut sum = 0.0f32;
                    for m in 0..shapes {
                        sum += term_factor(decay, constant, k, m) * own[m];
                    }
                    d_weights[k] += all[k] * sum;
                }
            }
        }
    }
    let mut values = Shared::<[f32]>::new_slice(units);
    for k in 0..count {
        sync_cube();
        values[UNIT_POS as usize] = d_weights[k];
        sync_cube();
        if UNIT_POS == 0 {
            let mut sum = 0.0f32;
            for x in 0..units {
                sum += values[x];
            }
            partial[(index * CUBE_COUNT_X as usize + CUBE_POS_X as usize) * count + k] = sum;
        }
    }
}
