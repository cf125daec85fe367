//! Bidirectional linear attention without a decay: one sum over all keys.

use super::backward::{self, GradientPass, for_each_unit};
use super::decay::DecayTerms;
use super::forward::{HeadTask, LinearForwardScratch};
use super::state::{ChunkRows, HeadState, StateSums};
use super::{
    CHUNK, DocumentSegment, LinearAttentionGradients, LinearAttentionInputs, LinearAttentionProblem,
    LinearAttentionSaved, Strides, workers,
};
use crate::Number;
use crate::attention::ViewMut;
use crate::features::RowKind;
use crate::tiles::microkernel::StoreMode;

pub(super) fn forward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    inputs: LinearAttentionInputs<T>,
    out: ViewMut<T>,
    denominators: &mut [T],
) {
    let (dims, chain, terms) = (problem.dims, problem.chain(), DecayTerms::new(None, 0));
    let strides = Strides { batch: dims.heads * dims.len, head: dims.len, row: 1 };
    let denominators = ViewMut::new(denominators, strides);
    let scratch = || {
        let unit = HeadState::new(chain.widths()[1], dims.value_dim, &terms);
        (LinearForwardScratch::new(&chain, dims.value_dim, &terms), unit)
    };
    let order = problem.longest_first(0..problem.segments());
    workers::for_each(dims.heads * order.len(), scratch, |(scratch, held), item| {
        let (head, number) = (item / order.len(), order[item % order.len()]);
        let DocumentSegment { row: batch, first_query, queries: len, .. } = problem.segment(number);
        let task = HeadTask::new(problem, &chain, &terms, inputs, [head, number], 0);
        held.clear();
        for row in (0..len).step_by(CHUNK) {
            task.hold(row, (len - row).min(CHUNK), held, &mut scratch.chain);
            held.leave(&terms, &mut scratch.wide, &mut scratch.room);
        }
        // SAFETY: this item alone writes the denominators of its head and segment.
        let denominators = unsafe { denominators.row(batch, head, first_query, len) };
        let out = out.starting_at(batch, first_query);
        for row in (0..len).step_by(CHUNK) {
            let rows = (len - row).min(CHUNK);
            task.features(RowKind::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
            task.of_sums(0, rows, held, scratch);
            task.write(row, rows, scratch, denominators, &out);
        }
    });
}

pub(super) fn backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    gradients: LinearAttentionGradients<T>,
) {
    for_each_unit(problem, 0, saved, gradients, &mut GradientPass::Single, |task, saved, outputs, scratch| {
        let len = task.problem.dims.len;
        let chunks = || (0..len).step_by(CHUNK).map(|row| (row, (len - row).min(CHUNK)));
        // sums over keys
        scratch.unit.clear();
        for (row, rows) in chunks() {
            task.hold(row, rows, &mut scratch.unit, &mut scratch.chain);
            scratch.unit.leave(task.terms, &mut scratch.wide, &mut scratch.room);
        }
        // sums over queries
        let mut of_queries = StateSums::new(task.chain.widths()[1], task.problem.dims.value_dim, task.terms);
        for (row, rows) in chunks() {
            task.features(RowKind::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
            task.load_gradient(row, rows, saved, scratch);
            let backward::LinearBackwardScratch { unit, wide, room, queries, d_sums, d_counts, d_features, .. } =
                &mut *scratch;
            let counts = Some(&d_counts[..]);
            let rows_of_chunk = ChunkRows {
                count: rows,
                first: 0,
                to_end: false,
                features: queries,
                values: d_sums,
                counts,
                factors: None,
            };
            unit.sums.of_values(task.terms, &rows_of_chunk, wide, StoreMode::Overwrite, d_features);
            of_queries.add(task.terms, (&rows_of_chunk, 0.0), wide, room);
            task.finish(RowKind::Query, row, rows, outputs, scratch);
        }
        std::mem::swap(&mut scratch.unit.sums, &mut of_queries);
        for (row, rows) in chunks() {
            scratch.unit.hold_none();
            task.hold(row, rows, &mut scratch.unit, &mut scratch.chain);
            scratch.nothing_yet(rows);
            task.keys_of_sums(scratch);
            task.finish(RowKind::Key, row, rows, outputs, scratch);
        }
    });
}
