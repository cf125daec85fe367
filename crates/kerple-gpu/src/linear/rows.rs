//! The two parts of each row's sum: sums over chunks, and nearby rows one by one.

use super::fading::{gated, shaped};
use super::{Form, Sizes};
use crate::attention::diagonals::add_diagonals_of;
use crate::attention::product::{Desk, add_weighted, multiply};
use crate::attention::tile::{Head, clear, load, load_either, share, store};
use cubecl::prelude::*;
use kerple_core::attention::linear::CHUNK;

/// Keeps of the products of rows from `first` on with those from `from` on what counts, faded; rows see those before them and
/// themselves, or, `ahead`, themselves and those behind.
#[cube]
#[allow(clippy::too_many_arguments, reason = "an array each")]
fn fade(
    products: &mut Array<f32>,
    first: usize,
    from: usize,
    near: &[f32],
    head: usize,
    clocks: &[f32],
    unit: usize,
    sizes: &Sizes,
    #[comptime] ahead: bool,
    #[comptime] form: Form,
) {
    let side = comptime!(form.rows.side);
    let each = comptime!(form.rows.each);
    let len = sizes.len as usize;
    #[unroll]
    for i in 0..each {
        #[unroll]
        for j in 0..each {
            let row = first + UNIT_POS as usize / side + i * side;
            let other = from + UNIT_POS as usize % side + j * side;
            let mut distance = row as i32 - other as i32;
            if comptime!(ahead) {
                distance = -distance;
            }
            let mut product = 0.0f32;
            if distance >= 0 && row < len && other < len {
                product = products[i * each + j];
                if comptime!(form.near) {
                    product *= near[(head * sizes.apart as usize) * comptime!(CHUNK) + distance as usize];
                }
                if comptime!(form.gates) {
                    let mut fallen = clocks[unit * len + row] - clocks[unit * len + other];
                    if comptime!(ahead) {
                        fallen = -fallen;
                    }
                    product *= fallen.exp();
                }
            }
            products[i * each + j] = product;
        }
    }
}

/// `sum_j a(i, j) (own_i . theirs_j) values_j` over the rows that each sees.
///
/// `sums` is what [`pass()`](crate::linear::sums::pass()) left of the rows of others and values, `turned` where they are `[U, M]` there.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn weigh(
    own: &[f32],
    theirs: &[f32],
    values: &[f32],
    near: &[f32],
    sums: &[f32],
    constants: &[f32],
    clocks: &[f32],
    out: &mut [f32],
    sizes: Sizes,
    #[comptime] ahead: bool,
    #[comptime] turned: bool,
    #[comptime] form: Form,
) {
    let square = comptime!(form.rows.square());
    let rows = comptime!(form.rows);
    let tile = comptime!(form.values);
    let size = comptime!(tile.size());
    let shapes = comptime!(form.terms.shapes);
    let wide = comptime!(form.rows.head_dim);
    let deep = comptime!(tile.head_dim);

    let first = CUBE_POS_X as usize * size;
    let chunk = first / comptime!(CHUNK);
    let unit = sizes.first as usize + CUBE_POS_Z as usize;
    let head = unit % sizes.heads as usize;
    let len = sizes.len as usize;
    let chunks = sizes.chunks as usize;
    let apart = sizes.apart as usize;
    let at = Head { unit, own: unit * len * wide, theirs: unit * len * wide };

    let mut desk = Desk::<f32>::of_sizes(
        comptime!(form.rows.size() * form.rows.line()),
        comptime!(form.line() * form.rows.size()),
        comptime!(tile.size() * tile.pitch()),
        comptime!(tile.products()),
    );
    let mut products = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut found = Array::<f32>::new(comptime!(tile.sums()));
    clear(&mut found, comptime!(tile.sums()));

    let mut reaches = chunk >= apart;
    if comptime!(ahead) {
        reaches = chunk + apart < chunks;
    }
    if reaches {
        let mut slot = chunk - apart;
        if comptime!(ahead) {
            slot = chunk + apart;
        }
        for shape in 0..shapes {
            let constant = head * comptime!(form.terms.constants()) + shape * comptime!(CHUNK);
            let sum = ((CUBE_POS_Z as usize * chunks + slot) * shapes + shape) * comptime!(form.elements());
            for slice in 0..comptime!(tile.along(form.rows.head_dim)) {
                sync_cube();
                load(&mut desk.weights, own, at.own, first, len, slice * size, square);
                shaped(&mut desk.weights, constants, constant, first, ahead, square);
                if comptime!(form.gates) {
                    gated(&mut desk.weights, clocks, unit * len, first, len, ahead, square);
                }
                #[unroll]
                for c in 0..comptime!(tile.chunks()) {
                    sync_cube();
                    load_either(
                        &mut desk.right,
                        sums,
                        sum,
                        slice * size,
                        wide,
                        comptime!(c * tile.chunk()),
                        turned,
                        tile,
                    );
                    sync_cube();
                    add_weighted(&mut found, &mut desk, c, false, tile);
                }
            }
        }
    }

    let mut from = select(chunk + 1 > apart, (chunk + 1 - apart) * comptime!(CHUNK), 0usize);
    let mut end = first + size;
    if comptime!(ahead) {
        from = first;
        end = (chunk + apart) * comptime!(CHUNK);
    }
    end = select(end < len, end, len);
    while from < end {
        multiply(&mut products, &mut desk, own, theirs, &at, first, from, len, len, rows);
        fade(&mut products, first, from, near, head, clocks, unit, &sizes, ahead, form);
        share(&mut desk.weights, &products, tile);
        #[unroll]
        for c in 0..comptime!(tile.chunks()) {
            sync_cube();
            load(&mut desk.right, values, unit * len * deep, from, len, comptime!(c * tile.chunk()), tile);
            sync_cube();
            add_weighted(&mut found, &mut desk, c, false, tile);
        }
        from += size;
    }
    store(out, &found, 1.0f32, unit * len * deep, first, len, tile);
}

/// Rows of gradients in the table of distances, `[B, H, slots, met]`, as attention has them in its tables.
#[cube(launch)]
#[allow(clippy::too_many_arguments, reason = "an array each")]
pub(crate) fn of_near(
    q: &[f32],
    k: &[f32],
    values: &[f32],
    slopes: &[f32],
    parts: &mut [f32],
    sizes: Sizes,
    #[comptime] form: Form,
) {
    let rows = comptime!(form.rows);
    let tile = comptime!(form.values);
    let size = comptime!(tile.size());
    let unit = CUBE_POS_Z as usize;
    let len = sizes.len as usize;
    let apart = sizes.apart as usize;
    let of_rows =
        Head { unit, own: unit * len * comptime!(rows.head_dim), theirs: unit * len * comptime!(rows.head_dim) };
    let of_values =
        Head { unit, own: unit * len * comptime!(tile.head_dim), theirs: unit * len * comptime!(tile.head_dim) };
    let columns = apart * comptime!(CHUNK);
    let base = (unit * CUBE_COUNT_X as usize + CUBE_POS_X as usize) * columns;

    let chunk = comptime!(form.line() * form.rows.size());
    let mut desk =
        Desk::<f32>::of_sizes(chunk, chunk, comptime!(tile.size() * tile.pitch()), comptime!(tile.products()));
    let mut products = Array::<f32>::new(comptime!(tile.each * tile.each));
    let mut along = Array::<f32>::new(comptime!(tile.each * tile.each));

    let mut to = UNIT_POS as usize;
    while to < columns {
        parts[base + to] = 0.0f32;
        to += comptime!(tile.units());
    }
    let mut first = CUBE_POS_X as usize * size;
    while first < len {
        let chunk = first / comptime!(CHUNK);
        let mut from = select(chunk + 1 > apart, (chunk + 1 - apart) * comptime!(CHUNK), 0usize);
        let end = select(first + size < len, first + size, len);
        while from < end {
            multiply(&mut products, &mut desk, q, k, &of_rows, first, from, len, len, rows);
            multiply(&mut along, &mut desk, slopes, values, &of_values, first, from, len, len, tile);
            #[unroll]
            for n in 0..comptime!(tile.each * tile.each) {
                products[n] *= along[n];
            }
            let whole = comptime!(Form { near: false, ..form });
            fade(&mut products, first, from, slopes, 0usize, slopes, 0usize, &sizes, false, whole);
            let diagonal = first as i32 - from as i32 - comptime!(tile.size() as i32 - 1);
            add_diagonals_of(parts, base, &products, &mut desk, diagonal, columns as i32, tile);
            from += size;
        }
        first += CUBE_COUNT_X as usize * size;
    }
}
