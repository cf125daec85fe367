//! Sums over chunks: those that each chunk leaves, and those of the chunks before or after it that
//! its rows read.

use super::fading::{advance, end_of, gated, shaped, through};
use super::{Form, Sizes};
use crate::attention::product::{Product, add_product};
use crate::attention::tile::{clear, load, store};
use cubecl::prelude::*;
use kerple_core::attention::linear::CHUNK;

/// `sum_t b_m(t) rows_t values_t`, `[M, U]`, of every chunk and shape: what the chunk leaves to those behind it, or, `ahead`, to
/// those before it.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn gather(
    rows: &[f32],
    values: &[f32],
    constants: &[f32],
    clocks: &[f32],
    sums: &mut [f32],
    sizes: Sizes,
    #[comptime] ahead: bool,
    #[comptime] form: Form,
) {
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
    let len = sizes.len as usize;
    let unit = sizes.first as usize + CUBE_POS_Z as usize;
    let constant = unit % sizes.heads as usize * comptime!(form.terms.constants()) + shape * comptime!(CHUNK);

    let mut left = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.pitch()));
    let mut right = Shared::<[f32]>::new_slice(comptime!(tile.size() * tile.line()));
    let mut products = Shared::<[f32]>::new_slice(comptime!(tile.products()));
    let mut found = Array::<f32>::new(comptime!(tile.sums()));
    clear(&mut found, comptime!(tile.sums()));
    for step in 0..comptime!(CHUNK / tile.size()) {
        let first = chunk * comptime!(CHUNK) + step * size;
        sync_cube();
        load(&mut left, rows, unit * len * wide, first, len, feature, square);
        shaped(&mut left, constants, constant, first, comptime!(!ahead), square);
        if comptime!(form.gates) {
            gated(&mut left, clocks, unit * len, first, len, comptime!(!ahead), square);
        }
        #[unroll]
        for c in 0..comptime!(tile.chunks()) {
            sync_cube();
            load(&mut right, values, unit * len * deep, first, len, comptime!(c * tile.chunk()), tile);
            sync_cube();
            let at = comptime!(c * tile.each);
            add_product(&mut found, &left, &right, &mut products, at, Product::Turned, tile);
        }
    }
    let place = (CUBE_POS_Z as usize * sizes.chunks as usize + chunk) * shapes + shape;
    store(sums, &found, 1.0f32, place * wide * deep, feature, wide, tile);
}

/// Turns what chunks left, `[chunks, J, elements]` for each head, into what rows meet: in place of chunk `c` stands what those of
/// chunk `c + apart` meet of it and all before it; `ahead`, those of chunk `c - apart` of it and all behind it.
#[cube(launch)]
pub(crate) fn pass(
    sums: &mut [f32],
    constants: &[f32],
    weights: &[f32],
    clocks: &[f32],
    sizes: Sizes,
    #[comptime] ahead: bool,
    #[comptime] form: Form,
) {
    let terms = comptime!(form.terms);
    let count = sizes.terms as usize;
    let shapes = sizes.shapes as usize;
    let elements = comptime!(form.elements());
    let element = CUBE_POS_X as usize * CUBE_DIM as usize + UNIT_POS as usize;
    let head = (sizes.first as usize + CUBE_POS_Z as usize) % sizes.heads as usize;
    let chunks = sizes.chunks as usize;
    let constant = head * comptime!(form.terms.constants());
    if element < elements {
        let mut all = Array::<f32>::new(comptime!(form.terms.terms));
        let mut met = Array::<f32>::new(comptime!(form.terms.shapes));
        clear(&mut all, comptime!(form.terms.terms));
        for step in 0..chunks {
            let mut chunk = step;
            if comptime!(ahead) {
                chunk = chunks - 1 - step;
            }
            let place = (CUBE_POS_Z as usize * chunks + chunk) * shapes;
            for m in 0..shapes {
                met[m] = sums[(place + m) * elements + element];
            }
            if comptime!(form.gates) {
                let len = sizes.len as usize;
                let unit = sizes.first as usize + CUBE_POS_Z as usize;
                let kept = clocks[unit * len + end_of(chunk, len)].exp();
                for k in 0..count {
                    all[k] *= kept;
                }
            }
            advance(&mut all, &met, constants, constant, &sizes, terms);
            for m in 0..shapes {
                let mut given = 0.0f32;
                for k in 0..count {
                    let mut share = through(constants, constant, k, m, terms);
                    if comptime!(form.weights) {
                        share *= weights[head * count + k];
                    }
                    given += share * all[k];
                }
                sums[(place + m) * elements + element] = given;
            }
        }
    }
}

/// Rows of gradients in the weights of terms, `[B, H, cubes, K]`: sums over keys, of which `of_keys` is what chunks left, by what the
/// queries of chunks leave ahead of them.
#[cube(launch)]
pub(crate) fn of_weights(
    of_keys: &[f32],
    of_queries: &[f32],
    constants: &[f32],
    parts: &mut [f32],
    sizes: Sizes,
    #[comptime] units: usize,
    #[comptime] form: Form,
) {
    let terms = comptime!(form.terms);
    let count = sizes.terms as usize;
    let shapes = sizes.shapes as usize;
    let elements = comptime!(form.elements());
    let element = CUBE_POS_X as usize * units + UNIT_POS as usize;
    let unit = sizes.first as usize + CUBE_POS_Z as usize;
    let chunks = sizes.chunks as usize;
    let apart = sizes.apart as usize;
    let constant = unit % sizes.heads as usize * comptime!(form.terms.constants());
    let mut all = Array::<f32>::new(comptime!(form.terms.terms));
    let mut slopes = Array::<f32>::new(comptime!(form.terms.terms));
    let mut met = Array::<f32>::new(comptime!(form.terms.shapes));
    clear(&mut all, comptime!(form.terms.terms));
    clear(&mut slopes, comptime!(form.terms.terms));
    if element < elements {
        for chunk in 0..chunks {
            let place = CUBE_POS_Z as usize * chunks + chunk;
            for m in 0..shapes {
                met[m] = of_keys[(place * shapes + m) * elements + element];
            }
            advance(&mut all, &met, constants, constant, &sizes, terms);
            if chunk + apart < chunks {
                for m in 0..shapes {
                    met[m] = of_queries[((place + apart) * shapes + m) * elements + element];
                }
                for k in 0..count {
                    let mut sum = 0.0f32;
                    for m in 0..shapes {
                        sum += through(constants, constant, k, m, terms) * met[m];
                    }
                    slopes[k] += all[k] * sum;
                }
            }
        }
    }
    let mut shares = Shared::<[f32]>::new_slice(units);
    for k in 0..count {
        sync_cube();
        shares[UNIT_POS as usize] = slopes[k];
        sync_cube();
        if UNIT_POS == 0 {
            let mut sum = 0.0f32;
            for x in 0..units {
                sum += shares[x];
            }
            parts[(unit * CUBE_COUNT_X as usize + CUBE_POS_X as usize) * count + k] = sum;
        }
    }
}
