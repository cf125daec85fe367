//! Blocks of queries of one head: scores, softmax, values.

use super::block::QueryBlock;
use super::tile::TileTokens;
use super::{HouseholderInputs, PreparedTiles, TILE};
use crate::Number;
use crate::attention::dropout::DropoutFactors;
use crate::attention::segments::{SegmentBlock, SegmentBlocks};
use crate::attention::{AttentionDims, DocumentSegment, Strides, ViewMut};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::rows::ScaleRow;
use crate::tiles::softmax::OnlineExponentials;
use crate::tiles::workers;

/// One call.
pub(super) struct HouseholderForward<'a, T> {
    pub(super) inputs: HouseholderInputs<'a, T>,
    pub(super) out: ViewMut<'a, T>,
    pub(super) lse: &'a mut [T],
}

/// What one thread computes in.
struct ForwardScratch<T> {
    tokens: TileTokens<T>,
    /// q, then `q~` at the border of a tile, and at the next, `[TILE, width]`.
    queries: [Vec<T>; 2],
    /// A, `[TILE, TILE]`
    overlaps: Vec<T>,
    /// Scores, then their exponentials, `[TILE, TILE]`.
    scores: Vec<T>,
    /// Values of a tile, `[TILE, width]`.
    values: Vec<T>,
    /// Sum of exponentials times values so far, `[TILE, width]`.
    out: Vec<T>,
    /// Of each row so far.
    row_max: [T; TILE],
    row_sum: [T; TILE],
    /// What the last tile made of the earlier sums.
    rescale: [T; TILE],
    dropout: Option<DropoutFactors<T>>,
}

/// Blocks of a segment.
pub(super) fn blocks(segment: &DocumentSegment) -> usize {
    if segment.queries == 0 { 0 } else { segment.keys.div_ceil(TILE) - (segment.keys - segment.queries) / TILE }
}

impl<T: Number> SimdKernel<T> for HouseholderForward<'_, T> {
    type Output = ();

    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let HouseholderForward { inputs, out, lse } = self;
        let AttentionDims { heads, kv_heads, queries, head_dim, .. } = inputs.problem.dims;
        let lse = ViewMut::new(lse, Strides { batch: heads * queries, head: queries, row: 1 });
        let prepared = PreparedTiles::new(lanes, &inputs);
        let items = SegmentBlocks::new(&inputs.problem, kv_heads, blocks);
        let scratch = || ForwardScratch::new(&inputs, inputs.layout::<L>().width, inputs.layout::<L>());
        workers::for_each(items.items(), scratch, |scratch, item| {
            let SegmentBlock { segment, head: kv_head, block } = items.independent(item);
            let DocumentSegment { row, first_query, .. } = inputs.problem.segment(segment);
            let [out, lse] = [&out, &lse].map(|view| view.starting_at(row, first_query));
            let inputs = inputs.alone(segment);
            let (block, sees) = inputs.block(lanes, inputs.first_block() + block);
            if sees {
                scratch.tokens.load(lanes, &inputs, kv_head, block.tile);
            }
            for head in kv_head * (heads / kv_heads)..(kv_head + 1) * (heads / kv_heads) {
                scratch.begin(inputs.problem.beginning(head));
                if sees {
                    let first = prepared.number([segment, kv_head, 0], inputs.tiles());
                    scratch.attend(&block, [head, kv_head], |tile| prepared.of(first + tile));
                }
                for at in 0..block.rows {
                    let query = block.first_query + at;
                    let seen = scratch.row_sum[at] != T::ZERO;
                    // SAFETY: `lse` is `[B, H, Q]`, and this item alone writes this number.
                    let lse = unsafe { lse.row(0, head, query, 1) };
                    lse[0] = if seen { scratch.row_max[at] + scratch.row_sum[at].ln() } else { T::NEG_INFINITY };
                    let factor = if seen { T::ONE / scratch.row_sum[at] } else { T::ZERO };
                    // SAFETY: `out` is checked, and this item alone writes this row.
                    let to = unsafe { out.row(0, head, query, head_dim) };
                    lanes.run(ScaleRow { to, factor, from: &scratch.out[at * block.layout.width..] });
                }
            }
        });
    }
}

impl<T: Number> ForwardScratch<T> {
    fn new(inputs: &HouseholderInputs<T>, width: usize, layout: super::TileLayout) -> Self {
        let [first, second, values, out] = [(); 4].map(|()| workers::scratch(TILE * width));
        let [overlaps, scores] = [(); 2].map(|()| workers::scratch(TILE * TILE));
        let [row_max, row_sum, rescale] = [[T::ZERO; TILE]; 3];
        ForwardScratch {
            tokens: TileTokens::new(layout),
            queries: [first, second],
            overlaps,
            scores,
            values,
            out,
            row_max,
            row_sum,
            rescale,
            dropout: DropoutFactors::new(&inputs.problem, TILE * TILE),
        }
    }

    fn begin(&mut self, [row_max, row_sum]: [T; 2]) {
        self.out.fill(T::ZERO);
        self.row_max.fill(row_max);
        self.row_sum.fill(row_sum);
    }

    /// Adds all tiles that a block sees, given what each is for later queries.
    fn attend<'p, L: Lanes<Number = T>>(
        &mut self,
        block: &QueryBlock<L>,
        [head, kv_head]: [usize; 2],
        prepared: impl Fn(usize) -> super::tile::PreparedTile<'p, T>,
    ) where
        T: 'p,
    {
        let own = prepared(block.tile);
        block.load(block.inputs.q, head, block.inputs.problem.scale, &mut self.queries[0]);
        block.overlaps(&self.tokens, &self.queries[0], &mut self.overlaps);
        block.own_products(&self.tokens, &own, [&self.queries[0], &self.overlaps], &mut self.scores);
        self.add(block, [head, kv_head], block.tile);
        if block.first_tile < block.tile {
            let [q, passed] = &mut self.queries;
            block.leave(&own, [q, &self.overlaps], passed);
            self.queries.swap(0, 1);
        }
        for tile in (block.first_tile..block.tile).rev() {
            let of_tile = prepared(tile);
            block.products(&of_tile, &self.queries[0], &mut self.scores);
            self.add(block, [head, kv_head], tile);
            if block.first_tile < tile {
                let [q, passed] = &mut self.queries;
                block.pass(&of_tile, q, passed);
                self.queries.swap(0, 1);
            }
        }
    }

    /// Adds what a tile of keys brings to the sums, given its products.
    fn add<L: Lanes<Number = T>>(&mut self, block: &QueryBlock<L>, [head, kv_head]: [usize; 2], tile: usize) {
        let (lanes, rows, width) = (block.lanes, block.rows, block.layout.width);
        let scores = &mut self.scores[..rows * TILE];
        block.finish((head, tile), scores, None);
        for (at, scores) in scores.chunks_exact_mut(TILE).enumerate() {
            let [now, factor, sum] = lanes.run(OnlineExponentials { scores, row_max: self.row_max[at] });
            self.row_sum[at] = self.row_sum[at] * factor + sum;
            (self.row_max[at], self.rescale[at]) = (now, factor);
        }
        if let Some(dropout) = &mut self.dropout {
            block.load_dropout(head, tile, dropout);
            dropout.apply(scores);
        }
        block.load_values(kv_head, tile, &mut self.values);
        let store = StoreMode::Rescale(&self.rescale);
        block.product((scores, TILE), (&self.values, block.keys(tile), width), &mut self.out, store);
    }
}
