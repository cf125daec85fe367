//! Rows that see all keys: one sum over all of them.

use super::backward::{self, for_each_unit};
use super::decay::{Columns, Terms, spread};
use super::forward::{Scratch, Task};
use super::state::Unit;
use super::{CHUNK, Gradients, Inputs, Problem, Saved, Strides, unit, workers};
use crate::Number;
use crate::attention::ViewMut;
use crate::attention::product::Keep;
use crate::features::{Multiply, Side};

pub(super) fn forward<T: Number>(problem: &Problem<T>, inputs: Inputs<T>, out: ViewMut<T>, denominators: &mut [T]) {
    let (dims, chain, terms) = (problem.dims, problem.chain(), Terms::new(None, 0));
    let strides = Strides { batch: dims.heads * dims.len, head: dims.len, row: 0 };
    let denominators = ViewMut::new(denominators, strides);
    let scratch = || {
        let unit = Unit::new(chain.widths()[1], Columns::new(dims.value_dim, 1));
        (Scratch::new(&chain, &unit), unit)
    };
    workers::for_each(dims.heads * dims.batch, scratch, |(scratch, held), item| {
        let (head, batch) = unit(dims, item);
        let task = Task { problem, chain: &chain, terms: &terms, inputs, batch, head, first: 0 };
        held.clear();
        for row in (0..dims.len).step_by(CHUNK) {
            task.hold(row, (dims.len - row).min(CHUNK), held, &mut scratch.chain);
            held.close(&terms, &mut scratch.wide, &mut scratch.fresh);
        }
        // SAFETY: this item alone writes the denominators of its head and sequence.
        let denominators = unsafe { denominators.row(batch, head, 0, dims.len) };
        for row in (0..dims.len).step_by(CHUNK) {
            let rows = (dims.len - row).min(CHUNK);
            task.features(Side::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
            task.of_sums(0, rows, held, scratch);
            task.write(row, rows, held, scratch, denominators, &out);
        }
    });
}

pub(super) fn backward<T: Number>(problem: &Problem<T>, saved: Saved<T>, gradients: Gradients<T>) {
    for_each_unit(problem, saved, gradients, |task, saved, outputs, scratch| {
        let (len, columns) = (task.problem.dims.len, scratch.unit.columns);
        let (all, width) = (columns.all(), scratch.queries.len() / CHUNK);
        let chunks = || (0..len).step_by(CHUNK).map(|row| (row, (len - row).min(CHUNK)));
        let one = |_: usize, _: usize| T::ONE;
        // sums over keys, `[columns, padded(M)]`
        let mut of_keys = vec![T::ZERO; all * width];
        for (row, rows) in chunks() {
            hold(task, row, rows, scratch);
            let backward::Scratch { unit, wide, .. } = &mut *scratch;
            spread(columns, unit.valid, (&unit.values, None), one, wide);
            let product = Multiply { sizes: [all, unit.valid, width], a: (wide, [1, all]), b: (&unit.keys, width) };
            product.to(&mut of_keys, width, Keep::Add);
        }
        // sums over queries, likewise
        scratch.sums.fill(T::ZERO);
        for (row, rows) in chunks() {
            task.features(Side::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
            task.load_gradient(row, rows, saved, scratch);
            let backward::Scratch { d_sums, d_counts, wide, sums, queries, d_features, .. } = &mut *scratch;
            spread(columns, rows, (d_sums, Some(d_counts)), one, wide);
            let product = Multiply { sizes: [rows, all, width], a: (wide, [all, 1]), b: (&of_keys, width) };
            product.to(d_features, width, Keep::Overwrite);
            Multiply { sizes: [all, rows, width], a: (wide, [1, all]), b: (queries, width) }.to(sums, width, Keep::Add);
            task.finish(Side::Query, row, rows, outputs, scratch);
        }
        for (row, rows) in chunks() {
            hold(task, row, rows, scratch);
            scratch.d_features[..rows * width].fill(T::ZERO);
            scratch.d_values[..rows * columns.value].fill(T::ZERO);
            task.keys_of_sums(scratch, one);
            task.finish(Side::Key, row, rows, outputs, scratch);
        }
    });
}

/// Holds a chunk alone.
fn hold<T: Number>(task: &Task<T>, row: usize, rows: usize, scratch: &mut backward::Scratch<T>) {
    (scratch.unit.held, scratch.unit.valid) = (0, 0);
    task.hold(row, rows, &mut scratch.unit, &mut scratch.chain);
}
