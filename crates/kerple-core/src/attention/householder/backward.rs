//! Blocks of queries of one head backwards, then the tiles of keys.

use super::block::QueryBlock;
use super::forward::blocks;
use super::tile::{PreparedTile, TileLayout, TileTokens};
use super::tile_backward::PreparedGradients;
use super::{HouseholderInputs, PreparedTiles, TILE, tile_places};
use crate::Number;
use crate::attention::dropout::DropoutFactors;
use crate::attention::segments::{SegmentBlock, SegmentBlocks};
use crate::attention::{
    AttentionDims, AttentionGradients, AttentionSaved, DocumentSegment, HouseholderGradients, Strides, View, ViewMut,
    sinks, softcap,
};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::rows::{AddRow, Dots, ScaleRow, Transpose};
use crate::tiles::softmax::SoftmaxBackward;
use crate::tiles::workers::{self, Turns};
use std::mem;

/// One call.
pub(super) struct HouseholderBackward<'a, T> {
    pub(super) inputs: HouseholderInputs<'a, T>,
    pub(super) saved: AttentionSaved<'a, T>,
    pub(super) gradients: AttentionGradients<'a, T>,
}

/// The blocks of all segments of a call.
struct BackwardCall<'a, L: Lanes> {
    lanes: L,
    inputs: HouseholderInputs<'a, L::Number>,
    saved: AttentionSaved<'a, L::Number>,
    /// `[B, H, Q]`
    lse: View<'a, L::Number>,
    prepared: &'a PreparedTiles<L::Number>,
    /// The gradients in what each tile is for queries, a tile a row.
    sums: PreparedGradients<ViewMut<'a, L::Number>>,
    d_q: ViewMut<'a, L::Number>,
    d_k: &'a ViewMut<'a, L::Number>,
    d_v: ViewMut<'a, L::Number>,
    d_directions: Option<&'a ViewMut<'a, L::Number>>,
    /// `[B, H, K]`
    d_gate_cumsum: Option<ViewMut<'a, f64>>,
    /// Of each tile: which head of which block may add to the gradients in its keys and values.
    key_turns: Turns,
    /// The same for the gradient in its transport.
    transport_turns: Turns,
}

/// One block of one segment, and one of its heads.
#[derive(Clone, Copy)]
struct BlockHead<'a, L: Lanes> {
    block: &'a QueryBlock<'a, L>,
    segment: usize,
    kv_head: usize,
    head: usize,
    /// The number of the first tile of its key head.
    first: usize,
    /// Whose turn it is.
    turn: usize,
}

/// What one thread computes in.
struct BackwardScratch<T> {
    tokens: TileTokens<T>,
    /// q, then `q~` at the border of each tile from the right to the left, `[TILE, width]` each.
    queries: Vec<Vec<T>>,
    /// The gradient in the scores of each of these tiles, `[TILE, TILE]` each.
    d_scores: Vec<Vec<T>>,
    /// A, and the gradient in it, `[TILE, TILE]`.
    overlaps: Vec<T>,
    d_overlaps: Vec<T>,
    /// Scores, then weights, and capped scores, `[TILE, TILE]`.
    scores: Vec<T>,
    capped: Vec<T>,
    d_out: Vec<T>,
    /// `d_out.out`
    delta: [T; TILE],
    /// The gradient in `q~` at the border of a tile, and at the next, `[TILE, width]`.
    d_queries: [Vec<T>; 2],
    /// A matrix that is turned, `[width, max(TILE, width)]` at most.
    turned: Vec<T>,
    /// What the gradient in a tile gets, `[TILE, width]` or `[D, width]`.
    added: Vec<T>,
    /// What the heads of the block give to the gradients in keys, directions, `-Z` and `-Y` of their own tile.
    own: OwnGradients<T>,
    dropout: Option<DropoutFactors<T>>,
}

struct OwnGradients<T> {
    keys: Vec<T>,
    directions: Vec<T>,
    z: Vec<T>,
    y: Vec<T>,
}

impl<T: Number> SimdKernel<T> for HouseholderBackward<'_, T> {
    type Output = ();

    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let HouseholderBackward { inputs, saved, gradients } = self;
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = inputs.problem.dims;
        let AttentionGradients {
            d_q,
            mut d_k,
            mut d_v,
            d_sinks,
            mut d_gate_cumsum,
            mut d_householder,
            d_score_mod: _,
            d_bias: _,
            d_weight: _,
            d_decay_cumsum: _,
            d_positions: _,
            d_relative: _,
            d_path: _,
        } = gradients;
        sinks::backward(&inputs.problem, &saved, d_sinks);
        let shape = [batch, kv_heads, keys, head_dim];
        d_k.fill(shape, T::ZERO);
        d_v.fill(shape, T::ZERO);
        if let Some(HouseholderGradients { d_directions, d_strengths }) = &mut d_householder {
            d_directions.fill(shape, T::ZERO);
            d_strengths.fill([batch, kv_heads, keys, 1], T::ZERO);
        }
        let prepared = PreparedTiles::new(lanes, &inputs);
        let places = tile_places(&prepared.starts, &inputs);
        let sizes = prepared.layout.gradient_sizes();
        let mut sums = PreparedGradients::from(sizes.map(|size| vec![T::ZERO; places.len() * size]));
        let call = BackwardCall {
            lanes,
            inputs,
            saved,
            lse: View { data: saved.lse, strides: Strides { batch: heads * queries, head: queries, row: 1 } },
            prepared: &prepared,
            sums: sums.by_tile(sizes),
            d_q,
            d_k: &d_k,
            d_v,
            d_directions: d_householder.as_ref().map(|of| &of.d_directions),
            d_gate_cumsum: d_gate_cumsum.as_deref_mut().map(|sums| {
                sums.fill(0.0);
                ViewMut::new(sums, Strides { batch: heads * keys, head: keys, row: 1 })
            }),
            // the block of a tile is the first to see it, the next one the first to pass it
            key_turns: turns(&places, &inputs, 0),
            transport_turns: turns(&places, &inputs, 1),
        };
        let items = SegmentBlocks::new(&inputs.problem, kv_heads, blocks);
        let scratch = || BackwardScratch::new(&call.inputs, call.prepared.layout);
        workers::for_each(items.items(), scratch, |scratch, item| {
            let _guards = (call.key_turns.guard(), call.transport_turns.guard());
            call.block(scratch, items.consecutive(item));
        });
        drop(call);
        if let Some(d_gate_cumsum) = d_gate_cumsum {
            add_sinks_to_gates(&inputs, &saved, d_gate_cumsum);
        }
        let scratch = || TileTokens::new(prepared.layout);
        workers::for_each(places.len(), scratch, |tokens, number| {
            let [segment, kv_head, tile] = places[number];
            let DocumentSegment { row, first_key, .. } = inputs.problem.segment(segment);
            let alone = inputs.alone(segment);
            tokens.load(lanes, &alone, kv_head, tile);
            let found = tokens.backward(lanes, sums.of_tile(sizes, number));
            let width = prepared.layout.width;
            for (at, token) in alone.tokens(tile).enumerate() {
                let add = |view: &ViewMut<T>, from: &[T], count: usize| {
                    // SAFETY: the views are checked, and this item alone writes these rows now.
                    let to = unsafe { view.row(row, kv_head, first_key + token, count) };
                    lanes.run(AddRow { to, from });
                };
                add(&d_k, &found.keys[at * width..], head_dim);
                if let Some(HouseholderGradients { d_directions, d_strengths }) = &d_householder {
                    add(d_directions, &found.directions[at * width..], head_dim);
                    add(d_strengths, &found.strengths[at..], 1);
                }
            }
        });
    }
}

/// Turns of each tile, which begin with the first block that is at least `more` blocks after it.
fn turns<T: Number>(places: &[[usize; 3]], inputs: &HouseholderInputs<T>, more: usize) -> Turns {
    let AttentionDims { heads, kv_heads, .. } = inputs.problem.dims;
    Turns::from_first(places.iter().map(|&[segment, _, tile]| {
        let first_block = inputs.alone(segment).first_block();
        heads / kv_heads * (tile + more).saturating_sub(first_block)
    }))
}

/// Adds the part of the gradient in cumulative gates that rows bring: the gradients in the scores of a row sum to what its sink takes
/// of the mean, and to 0 where it has none.
fn add_sinks_to_gates<T: Number>(inputs: &HouseholderInputs<T>, saved: &AttentionSaved<T>, d_gate_cumsum: &mut [f64]) {
    let (Some(sinks), dims) = (inputs.problem.sinks, inputs.problem.dims) else { return };
    for number in 0..inputs.problem.segments() {
        let DocumentSegment { row, first_query, queries, first_key, keys, .. } = inputs.problem.segment(number);
        for (head, &sink) in sinks.iter().enumerate() {
            let unit = row * dims.heads + head;
            let own = &mut d_gate_cumsum[unit * dims.keys + first_key + keys - queries..][..queries];
            for (query, d_cumsum) in (first_query..).zip(own) {
                let [out, d_out] = [saved.out, saved.d_out].map(|view| view.row(row, head, query, dims.value_dim));
                let mean: T = out.iter().zip(d_out).map(|(&out, &d_out)| out * d_out).sum();
                *d_cumsum += ((sink - saved.lse[unit * dims.queries + query]).exp() * mean).to_f64();
            }
        }
    }
}

impl<T: Number> BackwardScratch<T> {
    fn new(inputs: &HouseholderInputs<T>, layout: TileLayout) -> Self {
        let TileLayout { width, .. } = layout;
        let tiles = inputs.problem.largest().dims.keys.div_ceil(TILE);
        let rows = || workers::scratch(TILE * width);
        let square = || workers::scratch(TILE * TILE);
        BackwardScratch {
            tokens: TileTokens::new(layout),
            queries: (0..tiles).map(|_| rows()).collect(),
            d_scores: (0..tiles).map(|_| square()).collect(),
            overlaps: square(),
            d_overlaps: square(),
            scores: square(),
            capped: square(),
            d_out: rows(),
            delta: [T::ZERO; TILE],
            d_queries: [rows(), rows()],
            turned: workers::scratch(TILE.max(width) * TILE.max(width)),
            added: workers::scratch((2 * TILE).max(width) * width),
            own: OwnGradients { keys: rows(), directions: rows(), z: square(), y: rows() },
            dropout: DropoutFactors::new(&inputs.problem, TILE * TILE),
        }
    }
}

impl<L: Lanes> BackwardCall<'_, L> {
    fn block(&self, scratch: &mut BackwardScratch<L::Number>, item: SegmentBlock) {
        let SegmentBlock { segment, head: kv_head, block: number } = item;
        let inputs = self.inputs.alone(segment);
        let (block, sees) = inputs.block(self.lanes, inputs.first_block() + number);
        let group = inputs.problem.dims.heads / inputs.problem.dims.kv_heads;
        let first = self.prepared.number([segment, kv_head, 0], inputs.tiles());
        let OwnGradients { keys, directions, z, y } = &mut scratch.own;
        [keys, directions, z, y].into_iter().for_each(|sum| sum.fill(L::Number::ZERO));
        if sees {
            scratch.tokens.load(self.lanes, &inputs, kv_head, block.tile);
        }
        for at in 0..group {
            let head = kv_head * group + at;
            let of = BlockHead { block: &block, segment, kv_head, head, first, turn: number * group + at };
            if sees {
                self.leftwards(scratch, of);
                self.rightwards(scratch, of);
                self.own_tile(scratch, of);
            }
            self.store_d_q(scratch, of, sees);
        }
        self.store_own(scratch, &block, [segment, kv_head, first + block.tile]);
    }

    fn of_tile(&self, of: BlockHead<L>, tile: usize) -> PreparedTile<'_, L::Number> {
        self.prepared.of(of.first + tile)
    }

    /// From the own tile to the first: `q~` at each border, gradients in scores, and those in keys and values.
    fn leftwards(&self, scratch: &mut BackwardScratch<L::Number>, of: BlockHead<L>) {
        let BlockHead { block, segment, head, .. } = of;
        let DocumentSegment { row, first_query, .. } = self.inputs.problem.segment(segment);
        let [out, d_out] = [self.saved.out, self.saved.d_out].map(|view| view.starting_at(row, first_query));
        block.load(block.inputs.q, head, block.inputs.problem.scale, &mut scratch.queries[0]);
        block.load(d_out, head, L::Number::ONE, &mut scratch.d_out);
        for (at, to) in scratch.delta[..block.rows].chunks_exact_mut(1).enumerate() {
            let query = block.first_query + at;
            let [q, k] = [d_out, out].map(|view| view.row(0, head, query, self.prepared.layout.head_dim));
            self.lanes.run(Dots { q, k, stride: 0, to });
        }
        block.overlaps(&scratch.tokens, &scratch.queries[0], &mut scratch.overlaps);
        for tile in (block.first_tile..=block.tile).rev() {
            let (at, of_tile) = (block.tile - tile, self.of_tile(of, tile));
            let (before, after) = scratch.queries.split_at_mut(at + 1);
            let q = &before[at];
            if at == 0 {
                block.own_products(&scratch.tokens, &of_tile, [q, &scratch.overlaps], &mut scratch.scores);
                if block.first_tile < tile {
                    block.leave(&of_tile, [q, &scratch.overlaps], &mut after[0]);
                }
            } else {
                // the border of the own tile is that of the tile before it
                block.products(&of_tile, q, &mut scratch.scores);
                if block.first_tile < tile {
                    block.pass(&of_tile, q, &mut after[0]);
                }
            }
            self.tile(scratch, of, tile);
        }
    }

    /// The gradient in the scores of one tile, given its products, and what it brings to those in keys and values.
    fn tile(&self, scratch: &mut BackwardScratch<L::Number>, of: BlockHead<L>, tile: usize) {
        let (BlockHead { block, segment, kv_head, head, .. }, TileLayout { head_dim, width }) =
            (of, self.prepared.layout);
        let (at, size) = (block.tile - tile, block.rows * TILE);
        let BackwardScratch { queries, d_scores, scores, capped, d_out, delta, turned, added, own, dropout, .. } =
            scratch;
        let (scores, d_scores, capped) = (&mut scores[..size], &mut d_scores[at][..size], &mut capped[..size]);
        block.finish((head, tile), scores, Some(capped));
        block.load_values_transposed(kv_head, tile, turned);
        block.product((d_out, width), (turned, head_dim, TILE), d_scores, StoreMode::Overwrite);
        if let Some(dropout) = dropout {
            block.load_dropout(head, tile, dropout);
            dropout.apply(d_scores);
        }
        let first_query = self.inputs.problem.segment(segment).first_query;
        let row_of_batch = self.inputs.problem.segment(segment).row;
        let rows = scores.chunks_exact_mut(TILE).zip(d_scores.chunks_exact_mut(TILE));
        for (row, (scores, d_scores)) in rows.enumerate() {
            let lse = self.lse.row(row_of_batch, head, first_query + block.first_query + row, 1)[0];
            if lse == L::Number::NEG_INFINITY {
                scores.fill(L::Number::ZERO);
                d_scores.fill(L::Number::ZERO);
            } else {
                self.lanes.run(SoftmaxBackward { scores, d_scores, lse, delta: delta[row] });
            }
        }
        block.fill_unseen(tile, L::Number::ZERO, scores);
        block.fill_unseen(tile, L::Number::ZERO, d_scores);
        if let Some(dropout) = dropout {
            dropout.apply(scores);
        }
        let of_gates = self.d_gate_cumsum.is_some().then(|| column_sums(d_scores));
        if let Some(cap) = self.inputs.problem.softcap {
            softcap::backward(capped, d_scores, cap);
        }
        let (number, keys) = (of.first + tile, block.keys(tile));
        let (d_values, d_keys) = added.split_at_mut(TILE * width);
        block.sum_over_rows((scores, keys, TILE), (d_out, width), d_values, StoreMode::Overwrite);
        if at == 0 {
            block.sum_over_rows((d_scores, TILE, TILE), (&queries[0], width), &mut own.keys, StoreMode::Accumulate);
        } else {
            block.sum_over_rows((d_scores, TILE, TILE), (&queries[at], width), d_keys, StoreMode::Overwrite);
        }
        self.key_turns.take(number, of.turn, || {
            let DocumentSegment { row, first_key, .. } = self.inputs.problem.segment(segment);
            let first_key = first_key + tile * TILE;
            for (key, from) in d_values.chunks_exact(width).take(keys).enumerate() {
                // SAFETY: the view is checked, and it is this item's turn to write these keys.
                let to = unsafe { self.d_v.row(row, kv_head, first_key + key, head_dim) };
                self.lanes.run(AddRow { to, from });
            }
            if at > 0 {
                // SAFETY: each tile is a row of its own, and it is this item's turn to write it.
                let to = unsafe { self.sums.keys.row(number, 0, 0, TILE * width) };
                self.lanes.run(AddRow { to, from: d_keys });
            }
            if let (Some(d_gate_cumsum), Some(sums)) = (&self.d_gate_cumsum, of_gates) {
                // SAFETY: rows are `[K]` of each head, and it is this item's turn to write these keys.
                let to = unsafe { d_gate_cumsum.row(row, head, first_key, keys) };
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to -= sum);
            }
        });
    }

    /// From the first tile to the own one: the gradient in `q~` at its border, and those in transports.
    fn rightwards(&self, scratch: &mut BackwardScratch<L::Number>, of: BlockHead<L>) {
        let (BlockHead { block, .. }, TileLayout { head_dim, width }) = (of, self.prepared.layout);
        let BackwardScratch { queries, d_scores, d_queries: [d, next], turned, added, .. } = scratch;
        for tile in block.first_tile..block.tile {
            let (at, of_tile, number) = (block.tile - tile, self.of_tile(of, tile), of.first + tile);
            let mut store = StoreMode::Overwrite;
            if block.first_tile < tile {
                let d_transport = &mut added[..head_dim * width];
                block.sum_over_rows((&queries[at], head_dim, width), (d, width), d_transport, StoreMode::Overwrite);
                self.transport_turns.take(number, of.turn, || {
                    // SAFETY: each tile is a row of its own, and it is this item's turn to write it.
                    let to = unsafe { self.sums.transport.row(number, 0, 0, head_dim * width) };
                    self.lanes.run(AddRow { to, from: d_transport });
                });
                transpose(self.lanes, (of_tile.transport, head_dim, head_dim, width), (turned, width));
                block.product((d, width), (turned, head_dim, width), next, StoreMode::Overwrite);
                store = StoreMode::Accumulate;
            }
            transpose(self.lanes, (of_tile.keys, head_dim, TILE, TILE), (turned, width));
            block.product((&d_scores[at], TILE), (turned, TILE, width), next, store);
            mem::swap(d, next);
        }
    }

    /// Gradients in queries, and in what the own tile is for them.
    fn own_tile(&self, scratch: &mut BackwardScratch<L::Number>, of: BlockHead<L>) {
        let (BlockHead { block, .. }, TileLayout { head_dim, width }) = (of, self.prepared.layout);
        let BackwardScratch { tokens, queries, d_scores, overlaps, d_overlaps, d_queries, turned, own, .. } = scratch;
        let ([d, d_q], q, d_scores) = (d_queries, &queries[0], &d_scores[0]);
        let of_tile = self.of_tile(of, block.tile);
        transpose(self.lanes, (of_tile.z, TILE, TILE, TILE), (turned, TILE));
        block.product((d_scores, TILE), (turned, TILE, TILE), d_overlaps, StoreMode::Overwrite);
        block.product((d_scores, TILE), (&tokens.k, TILE, width), d_q, StoreMode::Overwrite);
        block.sum_over_rows((overlaps, TILE, TILE), (d_scores, TILE), &mut own.z, StoreMode::Accumulate);
        if block.first_tile < block.tile {
            transpose(self.lanes, (of_tile.y, TILE, head_dim, width), (turned, TILE));
            block.product((d, width), (turned, head_dim, TILE), d_overlaps, StoreMode::Accumulate);
            block.sum_over_rows((overlaps, TILE, TILE), (d, width), &mut own.y, StoreMode::Accumulate);
            self.lanes.run(AddRow { to: &mut d_q[..block.rows * width], from: d });
        }
        block.keep_up_to_own(d_overlaps);
        block.product((d_overlaps, TILE), (&tokens.w, TILE, width), d_q, StoreMode::Accumulate);
        block.sum_over_rows((d_overlaps, TILE, TILE), (q, width), &mut own.directions, StoreMode::Accumulate);
    }

    /// Writes the gradient in the queries of one head, 0 where they see nothing.
    fn store_d_q(&self, scratch: &BackwardScratch<L::Number>, of: BlockHead<L>, sees: bool) {
        let (TileLayout { head_dim, width }, block) = (self.prepared.layout, of.block);
        let DocumentSegment { row, first_query, .. } = self.inputs.problem.segment(of.segment);
        for at in 0..block.rows {
            // SAFETY: the view is checked, and this item alone writes this row.
            let to = unsafe { self.d_q.row(row, of.head, first_query + block.first_query + at, head_dim) };
            if sees {
                let (factor, from) = (self.inputs.problem.scale, &scratch.d_queries[1][at * width..]);
                self.lanes.run(ScaleRow { to, factor, from });
            } else {
                to.fill(L::Number::ZERO);
            }
        }
    }

    /// Writes what the heads of a block give to the gradients of their own tile.
    fn store_own(
        &self,
        scratch: &BackwardScratch<L::Number>,
        block: &QueryBlock<L>,
        [segment, kv_head, number]: [usize; 3],
    ) {
        let (TileLayout { head_dim, width }, own) = (self.prepared.layout, &scratch.own);
        // SAFETY: each tile is a row of its own, whose numbers this item alone writes.
        let [z, y] =
            unsafe { [self.sums.z.row(number, 0, 0, TILE * TILE), self.sums.y.row(number, 0, 0, TILE * width)] };
        z.copy_from_slice(&own.z);
        y.copy_from_slice(&own.y);
        let DocumentSegment { row, first_key, .. } = self.inputs.problem.segment(segment);
        for (at, token) in block.inputs.tokens(block.tile).enumerate() {
            let to = |view: &ViewMut<L::Number>, from: &[L::Number]| {
                // SAFETY: the views are checked, and this item alone writes these rows now.
                let to = unsafe { view.row(row, kv_head, first_key + token, head_dim) };
                to.copy_from_slice(&from[at * width..][..head_dim]);
            };
            to(self.d_k, &own.keys);
            if let Some(d_directions) = self.d_directions {
                to(d_directions, &own.directions);
            }
        }
    }
}

/// Sums over the rows of `[rows, TILE]`.
fn column_sums<T: Number>(values: &[T]) -> [f64; TILE] {
    let mut sums = [0.0; TILE];
    for row in values.chunks_exact(TILE) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.to_f64());
    }
    sums
}

/// `to[c, r] = from[r, c]` of so many rows and columns, `from` in rows of `stride` and `to` of `width`.
pub(super) fn transpose<L: Lanes>(
    lanes: L,
    (from, rows, columns, stride): (&[L::Number], usize, usize, usize),
    (to, width): (&mut [L::Number], usize),
) {
    lanes.run(Transpose { from, stride, rows, head_dim: columns, factor: L::Number::ONE, to, width });
}
