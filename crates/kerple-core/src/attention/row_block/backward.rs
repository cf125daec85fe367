//! Rows of all heads backwards: scores, map and weights again, then every gradient.

use super::path::PathBackwardScratch;
use super::selection::{BlockOrder, KeyTile, PassedOn, SelectionScratch, first_turns, masked_sums};
use super::{KEYS, RowBlockInputs, RowBlockScratch, RowBlockTile, RowKeyProduct, WeightedSum, tiles};
use crate::Number;
use crate::attention::dropout::DropoutFactors;
use crate::attention::segments::{SegmentBlock, SegmentBlocks, SumsByRow};
use crate::attention::{
    AttentionDims, AttentionGradients, AttentionSaved, DocumentSegment, PathGradients, Strides, View, ViewMut, sinks,
    softcap,
};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::{ScoreModGradients, SoftmaxRows, Strided};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddRow, Dots, ScaleRow};
use crate::tiles::softmax::SoftmaxBackward;
use crate::tiles::workers::{self, Turns};
use std::ops::Range;

/// One call.
pub(super) struct RowBlockBackward<'a, T> {
    pub(super) inputs: RowBlockInputs<'a, T>,
    pub(super) saved: AttentionSaved<'a, T>,
    pub(super) gradients: AttentionGradients<'a, T>,
}

/// All segments of a call.
struct RowBlockBackwardSegments<'a, L: Lanes> {
    lanes: L,
    inputs: RowBlockInputs<'a, L::Number>,
    saved: AttentionSaved<'a, L::Number>,
    /// `[B, H, Q]`
    lse: View<'a, L::Number>,
    d_q: ViewMut<'a, L::Number>,
    d_k: ViewMut<'a, L::Number>,
    d_v: ViewMut<'a, L::Number>,
    d_path: Option<PathGradients<'a, L::Number>>,
    /// Of each tile of each key head of each segment: which block may add to its `d_k` and `d_v`.
    turns: Turns,
    /// Where the tiles of a segment start in `turns`.
    tiles: Vec<usize>,
    /// Of each segment: which block may add to what its map sums.
    map_turns: Turns,
    /// With selective attention: F of each key, and what later queries bring.
    selection: Option<[PassedOn<'a>; 2]>,
    order: BlockOrder,
}

/// One segment of a call, or a unit of its heads.
struct RowBlockBackwardCall<'a, L: Lanes> {
    lanes: L,
    all: &'a RowBlockBackwardSegments<'a, L>,
    number: usize,
    unit: usize,
    inputs: RowBlockInputs<'a, L::Number>,
    saved: AttentionSaved<'a, L::Number>,
    lse: View<'a, L::Number>,
    d_q: ViewMut<'a, L::Number>,
    d_k: ViewMut<'a, L::Number>,
    d_v: ViewMut<'a, L::Number>,
    d_path: Option<PathGradients<'a, L::Number>>,
    /// What the map sums, `[S]`.
    map_sums: ViewMut<'a, L::Number>,
}

/// Numbers that maps sum of the documents which are processed at a time.
const MOST_SUMS: usize = 1 << 22;

/// What one thread computes in.
struct RowBlockBackwardScratch<T> {
    tiles: RowBlockScratch<T>,
    /// `[H, rows, width]`
    d_out: Vec<T>,
    /// `d_out.out` and the log of the sum of exponentials, `[H, rows]`
    delta: Vec<T>,
    lse: Vec<T>,
    d_q: Vec<T>,
    /// What the map adds to `d_q`, `[H, rows, D]`
    d_q_of_map: Vec<T>,
    /// As the map gets them, `[H, rows, columns]`
    scores: Vec<T>,
    /// Mapped scores, then weights.
    weights: Vec<T>,
    /// `d_out.v`, then the gradient in the mapped scores, then that in the scores.
    d_scores: Vec<T>,
    /// `[S]`
    map_sums: Vec<T>,
    path: Option<PathBackwardScratch<T>>,
    /// `[H, rows, columns]`
    dropout: Option<DropoutFactors<T>>,
    selection: Option<SelectionScratch<T>>,
}

impl<T: Number> SimdKernel<T> for RowBlockBackward<'_, T> {
    type Output = ();

    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RowBlockBackward { inputs, saved, gradients } = self;
        let AttentionDims { heads, kv_heads, queries, .. } = inputs.problem.dims;
        let AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_score_mod,
            d_sinks,
            d_bias,
            d_weight,
            d_gate_cumsum: _,
            d_decay_cumsum: _,
            d_positions: _,
            d_relative: _,
            d_path,
            d_householder: _,
        } = gradients;
        sinks::backward(&inputs.problem, &saved, d_sinks);
        // what a query masks has a gradient from later ones
        let order = if inputs.problem.selection.is_some() { BlockOrder::LastToFirst } else { BlockOrder::FirstToLast };
        let mut passed_on = inputs.problem.selection.map(|_| {
            let masked = masked_sums(lanes, &inputs);
            let later = vec![0.0; masked.len()];
            [masked, later]
        });
        let selection =
            passed_on.as_mut().map(|both| both.each_mut().map(|sums| PassedOn::new::<L>(&inputs, order, sums)));
        let segments = inputs.problem.segments();
        let lse = View { data: saved.lse, strides: Strides { batch: heads * queries, head: queries, row: 1 } };
        let all = RowBlockBackwardSegments {
            lanes,
            inputs,
            saved,
            lse,
            d_q,
            d_k,
            d_v,
            d_path: cleared(&inputs, d_path),
            turns: Turns::from_first(first_turns::<L>(&inputs, order, kv_heads).into_iter()),
            tiles: inputs.problem.offsets(|alone| kv_heads * RowBlockInputs { problem: *alone, ..inputs }.spans()),
            map_turns: Turns::new(segments, |_| 0),
            selection,
            order,
        };
        all.clear();
        let sums = if inputs.problem.segments_share_rows() { all.sums_of_documents() } else { all.sums_of_rows() };
        if let Some(table) = inputs.table {
            table.store(&sums, [d_bias, d_weight]);
        } else if let Some(d_score_mod) = d_score_mod {
            inputs.map().expect("only a score modification has parameters").finish(&sums, d_score_mod);
        }
    }
}

/// The gradients of a path, those of keys 0: blocks add to them.
fn cleared<'a, T: Number>(
    inputs: &RowBlockInputs<T>,
    d_path: Option<PathGradients<'a, T>>,
) -> Option<PathGradients<'a, T>> {
    let (mut d_path, AttentionDims { batch, heads, keys, .. }) = (d_path?, inputs.problem.dims);
    d_path.d_keys.fill([batch, heads, keys, inputs.problem.path()?.width], T::ZERO);
    Some(d_path)
}

impl<L: Lanes> RowBlockBackwardSegments<'_, L> {
    fn row(&self, number: usize) -> usize {
        self.inputs.problem.segment(number).row
    }

    /// How many numbers the map sums.
    fn map_sums(&self) -> usize {
        self.inputs.map().map_or(0, |map| map.sums())
    }

    /// What the map sums, where each row is one segment.
    fn sums_of_rows(&self) -> Vec<L::Number> {
        let (size, segments) = (self.map_sums(), self.inputs.problem.segments());
        let mut sums = vec![L::Number::ZERO; segments.max(1) * size];
        self.blocks(0..segments, ViewMut::new(&mut sums, Strides { batch: size, head: size, row: size }));
        let (sum, others) = sums.split_at_mut(size);
        others.chunks_exact(size.max(1)).for_each(|from| self.lanes.run(AddRow { to: sum, from }));
        sums.truncate(size);
        sums
    }

    /// The same, where rows have several: some segments at a time.
    fn sums_of_documents(&self) -> Vec<L::Number> {
        let (size, segments) = (self.map_sums(), self.inputs.problem.segments());
        let mut total = SumsByRow::new(size);
        let at_a_time = (MOST_SUMS / size.max(1)).max(1);
        for first in (0..segments).step_by(at_a_time) {
            let wave = first..segments.min(first + at_a_time);
            let mut sums = vec![L::Number::ZERO; wave.len() * size];
            self.blocks(wave.clone(), ViewMut::new(&mut sums, Strides { batch: size, head: size, row: size }));
            for (at, number) in wave.enumerate() {
                let is_last = number + 1 == segments || self.row(number + 1) != self.row(number);
                total.add(at, &sums, is_last);
            }
        }
        total.total()
    }

    /// Processes some segments; `map_sums` has a row for each.
    fn blocks(&self, segments: Range<usize>, map_sums: ViewMut<L::Number>) {
        let (first, problem) = (segments.start, &self.inputs.problem);
        let count = |segment: &DocumentSegment| segment.queries.div_ceil(self.inputs.rows());
        let blocks = SegmentBlocks::of(problem, segments, self.inputs.units(), count);
        let scratch = || self.scratch();
        workers::for_each(blocks.items(), scratch, |scratch, item| {
            let of_selection = self.selection.as_ref().map(|both| both.each_ref().map(PassedOn::guard));
            let _guards = (self.turns.guard(), self.map_turns.guard(), of_selection);
            let SegmentBlock { segment, head: unit, block } = blocks.consecutive(item);
            let call = self.alone(segment, map_sums.starting_at(segment - first, 0));
            let call = call.unit(unit);
            let place = call.inputs.place::<L>(self.order.block(block, call.inputs.blocks()));
            call.block(scratch, &place, block);
        });
    }

    /// The call of one segment, whose views start with it.
    fn alone<'s>(&'s self, number: usize, map_sums: ViewMut<'s, L::Number>) -> RowBlockBackwardCall<'s, L> {
        let DocumentSegment { row, first_query, first_key, .. } = self.inputs.problem.segment(number);
        let inputs = self.inputs.alone(number);
        let [out, d_out] = [self.saved.out, self.saved.d_out].map(|view| view.starting_at(row, first_query));
        RowBlockBackwardCall {
            lanes: self.lanes,
            all: self,
            number,
            unit: 0,
            inputs,
            saved: AttentionSaved { q: inputs.q, k: inputs.k, v: inputs.v, out, lse: self.saved.lse, d_out },
            lse: self.lse.starting_at(row, first_query),
            d_q: self.d_q.starting_at(row, first_query),
            d_k: self.d_k.starting_at(row, first_key),
            d_v: self.d_v.starting_at(row, first_key),
            d_path: self.d_path.as_ref().map(|PathGradients { d_queries, d_keys }| PathGradients {
                d_queries: d_queries.starting_at(row, first_query),
                d_keys: d_keys.starting_at(row, first_key),
            }),
            map_sums,
        }
    }

    /// Clears `d_k` and `d_v`, to which blocks add.
    fn clear(&self) {
        let AttentionDims { batch, kv_heads, keys, head_dim, .. } = self.inputs.problem.dims;
        workers::for_each(
            batch * kv_heads,
            || (),
            |(), unit| {
                for key in 0..keys {
                    for view in [&self.d_k, &self.d_v] {
                        // SAFETY: the views are checked, and this item alone writes this head now.
                        unsafe { view.row(unit / kv_heads, unit % kv_heads, key, head_dim) }.fill(L::Number::ZERO);
                    }
                }
            },
        );
    }

    fn scratch(&self) -> RowBlockBackwardScratch<L::Number> {
        let largest = self.inputs.largest();
        let AttentionDims { heads, head_dim, .. } = largest.problem.dims;
        let (tiles, rows) = (largest.tiles::<L>(), heads * largest.rows());
        let [d_out, d_q] = [(); 2].map(|()| workers::scratch(rows * tiles.width));
        let [scores, weights, d_scores] = [(); 3].map(|()| largest.scores::<L>());
        let (d_q_of_map, map_sums) = (workers::scratch(rows * head_dim), workers::scratch(self.map_sums()));
        let [delta, lse] = [(); 2].map(|()| workers::scratch(rows));
        let dropout = DropoutFactors::new(&self.inputs.problem, scores.len());
        let path = PathBackwardScratch::new::<L>(&largest);
        RowBlockBackwardScratch {
            tiles,
            d_out,
            delta,
            lse,
            d_q,
            d_q_of_map,
            scores,
            weights,
            d_scores,
            map_sums,
            path,
            dropout,
            selection: SelectionScratch::new::<L>(&self.inputs),
        }
    }
}

impl<L: Lanes> RowBlockBackwardCall<'_, L> {
    /// The call of one unit of its heads.
    fn unit(&self, unit: usize) -> RowBlockBackwardCall<'_, L> {
        let first = self.inputs.head_of_unit(unit);
        let inputs = self.inputs.unit(unit);
        let [out, d_out] = [self.saved.out, self.saved.d_out].map(|view| view.starting_at_head(first));
        RowBlockBackwardCall {
            unit,
            inputs,
            saved: AttentionSaved { q: inputs.q, k: inputs.k, v: inputs.v, out, lse: self.saved.lse, d_out },
            lse: self.lse.starting_at_head(first),
            d_q: self.d_q.starting_at_head(first),
            d_k: self.d_k.starting_at_head(unit),
            d_v: self.d_v.starting_at_head(unit),
            d_path: self.d_path.as_ref().map(|PathGradients { d_queries, d_keys }| PathGradients {
                d_queries: d_queries.starting_at_head(first),
                d_keys: d_keys.starting_at_head(first),
            }),
            map_sums: self.map_sums.starting_at_head(0),
            ..*self
        }
    }

    fn block(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile, block: usize) {
        scratch.d_q_of_map.fill(L::Number::ZERO);
        scratch.d_q.fill(L::Number::ZERO);
        scratch.map_sums.fill(L::Number::ZERO);
        let (inputs, d_out) = (&self.inputs, self.saved.d_out);
        inputs.load_queries(self.lanes, place, &mut scratch.tiles);
        let width = scratch.tiles.width;
        inputs.load_rows(self.lanes, place, d_out, L::Number::ONE, &mut scratch.d_out, width);
        self.load_delta_and_lse(scratch, place);
        if let (Some(path), Some(backward)) = (&mut scratch.tiles.path, &mut scratch.path) {
            path.begin(self.lanes, inputs, place);
            backward.begin(inputs, place, |at| [scratch.delta[at], scratch.lse[at]]);
        }
        for (tile, part) in inputs.parts::<L>(place) {
            self.part(scratch, &part, block, tile);
        }
        self.store_d_q(scratch, place);
        if let (Some(path), Some(d_path)) = (&scratch.path, &self.d_path) {
            path.store_d_queries::<L>(inputs, place, &d_path.d_queries);
        }
        if inputs.map().is_some() {
            self.all.map_turns.take(self.number, block, || {
                // SAFETY: the row is `[S]`, and it is this item's turn to write it.
                let to = unsafe { self.map_sums.row(0, 0, 0, scratch.map_sums.len()) };
                self.lanes.run(AddRow { to, from: &scratch.map_sums });
            });
        }
    }

    /// `d_out.out` and the log of the sum of exponentials of every row.
    fn load_delta_and_lse(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile) {
        let AttentionDims { heads, head_dim, .. } = self.inputs.problem.dims;
        for (at, delta_i) in scratch.delta[..heads * place.rows].chunks_exact_mut(1).enumerate() {
            let (head, query) = (at / place.rows, place.first_query + at % place.rows);
            scratch.lse[at] = self.lse.row(0, head, query, 1)[0];
            let [q, k] = [self.saved.d_out, self.saved.out].map(|view| view.row(0, head, query, head_dim));
            self.lanes.run(Dots { q, k, stride: 0, to: delta_i });
        }
    }

    /// Adds what a tile of keys brings to the gradients.
    fn part(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile, block: usize, tile: usize) {
        let AttentionDims { heads, kv_heads, .. } = self.inputs.problem.dims;
        let of = KeyTile { segment: self.number, tile, turn: block };
        self.scores(scratch, place);
        self.weights(scratch, place, of);
        let size = heads * place.rows * place.columns;
        let described = self.inputs.block(place, &scratch.tiles.q_of_map);
        if let (Some(path), Some(_)) = (&mut scratch.path, &self.d_path) {
            path.add_d_queries(self.lanes, &self.inputs, place, &scratch.d_scores[..size]);
        }
        if let Some(values) = self.inputs.values() {
            let d_out = Strided { values: &scratch.d_out[..], stride: scratch.tiles.width };
            values.add_gradient(&described, &scratch.weights[..size], d_out, &mut scratch.map_sums);
        }
        if let Some(cap) = self.inputs.problem.softcap {
            softcap::backward(&scratch.scores[..size], &mut scratch.d_scores[..size], cap);
        }
        self.inputs.fill_unseen(place, L::Number::ZERO, &mut scratch.d_scores[..size]);
        let RowBlockBackwardScratch { tiles, d_q, d_scores, .. } = scratch;
        let keys_copied = &mut tiles.tile[..];
        let sum = WeightedSum { weights: d_scores, keys: self.inputs.k, keys_copied, rescale: None, out: d_q };
        self.inputs.add_weighted(self.lanes, place, sum);
        for kv_head in 0..kv_heads {
            let sum = self.all.tiles[self.number] + (self.unit + kv_head) * self.inputs.spans() + tile;
            self.all.turns.take(sum, block, || {
                self.add_d_k_and_d_v(scratch, place, kv_head);
                self.add_path_keys(scratch, place, kv_head);
            });
        }
    }

    /// Scores as the map gets them, and the gradient in the weights.
    fn scores(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile) {
        let inputs = &self.inputs;
        let size = inputs.problem.dims.heads * place.rows * place.columns;
        let RowBlockBackwardScratch { tiles, d_out, scores, d_scores, dropout, .. } = scratch;
        let (scores, d_scores) = (&mut scores[..size], &mut d_scores[..size]);
        inputs.raw_scores(self.lanes, place, tiles, scores);
        let keys_transposed = &mut tiles.transposed[..];
        let (rows, width, keys) = (&d_out[..], tiles.width, inputs.v);
        inputs.products(self.lanes, place, RowKeyProduct { rows, width, keys, keys_transposed, out: &mut *d_scores });
        if let Some(values) = inputs.values() {
            let d_out = Strided { values: &d_out[..], stride: tiles.width };
            values.add_products(&inputs.block(place, &tiles.q_of_map), d_out, d_scores);
        }
        if let Some(dropout) = dropout {
            inputs.load_dropout(place, dropout);
            dropout.apply(d_scores);
        }
    }

    /// The weights, and from the gradient in them that in the scores.
    fn weights(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile, of: KeyTile) {
        let (inputs, lanes) = (&self.inputs, self.lanes);
        let AttentionDims { heads, head_dim, .. } = inputs.problem.dims;
        let (rows, size) = (heads * place.rows, heads * place.rows * place.columns);
        let RowBlockBackwardScratch {
            tiles,
            delta,
            lse,
            scores,
            weights,
            d_scores,
            d_q_of_map,
            map_sums,
            path,
            dropout,
            selection,
            ..
        } = scratch;
        let (scores, weights, d_scores) = (&scores[..size], &mut weights[..size], &mut d_scores[..size]);
        let of_rows = SoftmaxRows { lse: &lse[..rows], delta: &delta[..rows] };
        let (map, block) = (inputs.map(), inputs.block(place, &tiles.q_of_map));
        let d_q = &mut d_q_of_map[..rows * head_dim];
        if let (Some(map), None) = (map.and_then(|map| map.softmax()), &selection) {
            let gradients = ScoreModGradients { d_scores, d_q, sums: map_sums };
            map.softmax_backward(&block, of_rows, scores, weights, gradients);
        } else {
            weights.copy_from_slice(scores);
            if let Some(map) = map {
                map.forward(&block, weights);
            }
            if let Some(of_path) = &mut tiles.path {
                of_path.add_bias(lanes, inputs, place, weights, path.as_mut());
            }
            if let (Some(selection), Some([masked, _])) = (&mut *selection, &self.all.selection) {
                selection.mask(lanes, (inputs, masked, self.all.order), of, place, weights);
            }
            let see = inputs.rows_that_see(place, 0, place.keys);
            for (row, (&lse, &delta)) in of_rows.lse.iter().zip(of_rows.delta).enumerate() {
                if !see.contains(&(row % place.rows)) {
                    continue;
                }
                let row = row * place.columns..(row + 1) * place.columns;
                let (scores, d_scores) = (&mut weights[row.clone()], &mut d_scores[row]);
                lanes.run(SoftmaxBackward { scores, d_scores, lse, delta });
            }
            inputs.fill_unseen(place, L::Number::ZERO, d_scores);
            if let (Some(selection), Some(kind), Some([_, later])) =
                (selection, inputs.problem.selection, &self.all.selection)
            {
                selection.backward(lanes, (kind, later), of, place, d_scores);
            }
            if let Some(map) = map {
                map.backward(&block, scores, ScoreModGradients { d_scores, d_q, sums: map_sums });
            }
        }
        if let Some(dropout) = dropout {
            dropout.apply(weights);
        }
        inputs.fill_unseen(place, L::Number::ZERO, weights);
    }

    /// `d_q = scale ds k`, and what the map adds.
    fn store_d_q(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile) {
        let AttentionDims { heads, head_dim, .. } = self.inputs.problem.dims;
        let RowBlockBackwardScratch { tiles, d_q, d_q_of_map, .. } = scratch;
        for at in 0..heads * place.rows {
            // SAFETY: the view is checked, and this item alone writes this row.
            let to = unsafe { self.d_q.row(0, at / place.rows, place.first_query + at % place.rows, head_dim) };
            self.lanes.run(ScaleRow { to, factor: self.inputs.problem.scale, from: &d_q[at * tiles.width..] });
            self.lanes.run(AddRow { to, from: &d_q_of_map[at * head_dim..] });
        }
    }

    /// Adds the gradient in r of the heads that read one key head.
    fn add_path_keys(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile, kv_head: usize) {
        let (Some(PathGradients { d_keys, .. }), Some(of)) = (&self.d_path, self.inputs.problem.path()) else { return };
        let (Some(path), Some(backward)) = (&scratch.tiles.path, &mut scratch.path) else { return };
        let group = self.inputs.problem.dims.heads / self.inputs.problem.dims.kv_heads;
        for head in kv_head * group..(kv_head + 1) * group {
            backward.add_d_keys(self.lanes, path, (&self.inputs, place), head, (d_keys, of.width));
        }
    }

    /// `d_k += ds^T (scale q)` and `d_v += p^T d_out` for one key head.
    fn add_d_k_and_d_v(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile, kv_head: usize) {
        let AttentionDims { heads, kv_heads, head_dim, .. } = self.inputs.problem.dims;
        let RowBlockBackwardScratch { tiles: RowBlockScratch { q, tile, width, .. }, d_out, weights, d_scores, .. } =
            scratch;
        for (_, first, count) in tiles(1, place.keys) {
            let see = self.inputs.rows_that_see(place, first, count);
            if see.is_empty() {
                continue;
            }
            for (of_scores, rows, view) in [(&*d_scores, &*q, &self.d_k), (&*weights, &*d_out, &self.d_v)] {
                let group = heads / kv_heads;
                for head in kv_head * group..(kv_head + 1) * group {
                    let row = head * place.rows + see.start;
                    let data = &of_scores[row * place.columns + first..];
                    self.lanes.run(SmallGemm {
                        rows: count,
                        inner: see.len(),
                        columns: *width,
                        a: StridedMatrix::transposed(data, place.columns),
                        b: &rows[row * *width..],
                        b_stride: *width,
                        c: tile,
                        c_stride: *width,
                        store: if head % group == 0 { StoreMode::Overwrite } else { StoreMode::Accumulate },
                    });
                }
                for (key, from) in tile.chunks_exact(*width).take(count).enumerate() {
                    // SAFETY: the views are checked, and it is this item's turn to write these keys.
                    let to = unsafe { view.row(0, kv_head, place.first_key + first + key, head_dim) };
                    self.lanes.run(AddRow { to, from });
                }
            }
        }
    }
}

const _: () = assert!(KEYS.is_multiple_of(16), "a tile starts at a whole vector");
