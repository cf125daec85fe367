//! Rows of all heads: scores, map, softmax, values.

use super::selection::{BlockOrder, KeyTile, PassedOn, SelectionScratch};
use super::{RowBlockInputs, RowBlockScratch, RowBlockTile, WeightedSum};
use crate::Number;
use crate::attention::dropout::DropoutFactors;
use crate::attention::segments::{SegmentBlock, SegmentBlocks};
use crate::attention::{AttentionDims, DocumentSegment, Strides, ViewMut};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::Strided;
use crate::tiles::rows::ScaleRow;
use crate::tiles::softmax::OnlineExponentials;
use crate::tiles::workers;

/// One call.
pub(super) struct RowBlockForward<'a, T> {
    pub(super) inputs: RowBlockInputs<'a, T>,
    pub(super) out: ViewMut<'a, T>,
    pub(super) lse: &'a mut [T],
}

/// What one thread computes in.
struct RowBlockForwardScratch<T> {
    tiles: RowBlockScratch<T>,
    /// Scores, then their exponentials, `[H, rows, columns]`
    scores: Vec<T>,
    /// Sum of exponentials times values so far, `[H, rows, width]`
    out: Vec<T>,
    /// Of each row so far, `[H, rows]`.
    row_max: Vec<T>,
    row_sum: Vec<T>,
    /// What the last tile made of the earlier sums.
    rescale: Vec<T>,
    /// `[H, rows, columns]`
    dropout: Option<DropoutFactors<T>>,
    selection: Option<SelectionScratch<T>>,
}

impl<T: Number> SimdKernel<T> for RowBlockForward<'_, T> {
    type Output = ();

    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RowBlockForward { inputs, out, lse } = self;
        let AttentionDims { heads, queries, .. } = inputs.problem.dims;
        let lse = ViewMut::new(lse, Strides { batch: heads * queries, head: queries, row: 1 });
        let (problem, largest) = (&inputs.problem, inputs.largest());
        let blocks = SegmentBlocks::new(problem, inputs.units(), |segment| segment.queries.div_ceil(inputs.rows()));
        let scratch = || {
            let tiles = largest.tiles::<L>();
            let rows = largest.problem.dims.heads * inputs.rows();
            let out = workers::scratch(rows * tiles.width);
            let [row_max, row_sum, rescale] = [(); 3].map(|()| workers::scratch(rows));
            let scores = largest.scores::<L>();
            let dropout = DropoutFactors::new(problem, scores.len());
            let selection = SelectionScratch::new::<L>(&inputs);
            RowBlockForwardScratch { tiles, scores, out, row_max, row_sum, rescale, dropout, selection }
        };
        let mut sums = problem.selection.map(|selection| selection.sums(problem.dims));
        let order = BlockOrder::FirstToLast;
        let passed_on = sums.as_mut().map(|sums| PassedOn::new::<L>(&inputs, order, sums));
        workers::for_each(blocks.items(), scratch, |scratch, item| {
            let _guard = passed_on.as_ref().map(PassedOn::guard);
            let SegmentBlock { segment, head: unit, block } =
                if passed_on.is_some() { blocks.consecutive(item) } else { blocks.independent(item) };
            let DocumentSegment { row, first_query, .. } = problem.segment(segment);
            let [out, lse] = [&out, &lse].map(|view| view.starting_at(row, first_query));
            let [out, lse] = [&out, &lse].map(|view| view.starting_at_head(inputs.head_of_unit(unit)));
            let inputs = inputs.alone(segment).unit(unit);
            let heads = inputs.problem.dims.heads;
            let place = inputs.place::<L>(block);
            scratch.out.fill(T::ZERO);
            for head in 0..heads {
                let rows = head * place.rows..(head + 1) * place.rows;
                let [row_max, row_sum] = inputs.problem.beginning(head);
                scratch.row_max[rows.clone()].fill(row_max);
                scratch.row_sum[rows].fill(row_sum);
            }
            inputs.load_queries(lanes, &place, &mut scratch.tiles);
            if let Some(path) = &mut scratch.tiles.path {
                path.begin(lanes, &inputs, &place);
            }
            for (tile, part) in inputs.parts::<L>(&place) {
                let of = KeyTile { segment, tile, turn: block };
                add_part(&inputs, lanes, (&part, of), passed_on.as_ref(), scratch);
            }
            let RowBlockForwardScratch { tiles, out: sums, row_max, row_sum, .. } = scratch;
            for at in 0..heads * place.rows {
                let (head, query) = (at / place.rows, place.first_query + at % place.rows);
                let seen = row_sum[at] != T::ZERO;
                // SAFETY: `lse` is `[B, H, Q]`, and this item alone writes this number.
                let lse = unsafe { lse.row(0, head, query, 1) };
                lse[0] = if seen { row_max[at] + row_sum[at].ln() } else { T::NEG_INFINITY };
                let factor = if seen { T::ONE / row_sum[at] } else { T::ZERO };
                // SAFETY: `out` is checked, and this item alone writes this row.
                let to = unsafe { out.row(0, head, query, inputs.problem.dims.head_dim) };
                lanes.run(ScaleRow { to, factor, from: &sums[at * tiles.width..] });
            }
        });
    }
}

/// Adds what a tile of keys brings to the sums of a block.
fn add_part<L: Lanes>(
    inputs: &RowBlockInputs<L::Number>,
    lanes: L,
    (place, of): (&RowBlockTile, KeyTile),
    passed_on: Option<&PassedOn>,
    scratch: &mut RowBlockForwardScratch<L::Number>,
) {
    let RowBlockForwardScratch { tiles, scores, out, row_max, row_sum, rescale, dropout, selection } = scratch;
    let heads = inputs.problem.dims.heads;
    let scores = &mut scores[..heads * place.rows * place.columns];
    inputs.mapped_scores(lanes, place, tiles, scores);
    if let (Some(selection), Some(passed_on)) = (selection, passed_on) {
        selection.mask(lanes, (inputs, passed_on, BlockOrder::FirstToLast), of, place, scores);
    }
    if let Some(path) = &mut tiles.path {
        path.add_bias(lanes, inputs, place, scores, None);
    }
    inputs.fill_unseen(place, L::Number::NEG_INFINITY, scores);
    let see = inputs.rows_that_see(place, 0, place.keys);
    for (at, scores) in scores.chunks_exact_mut(place.columns).enumerate() {
        if !see.contains(&(at % place.rows)) {
            scores.fill(L::Number::ZERO);
            continue;
        }
        let [now, factor, sum] = lanes.run(OnlineExponentials { scores, row_max: row_max[at] });
        row_sum[at] = row_sum[at] * factor + sum;
        (row_max[at], rescale[at]) = (now, factor);
    }
    if let Some(dropout) = dropout {
        inputs.load_dropout(place, dropout);
        dropout.apply(scores);
    }
    let (keys_copied, rescale) = (&mut tiles.tile[..], Some(&rescale[..]));
    inputs.add_weighted(lanes, place, WeightedSum { weights: scores, keys: inputs.v, keys_copied, rescale, out });
    if let Some(values) = inputs.values() {
        values.add(
            &inputs.block(place, &tiles.q_of_map),
            scores,
            Strided { values: &mut out[..], stride: tiles.width },
        );
    }
}
