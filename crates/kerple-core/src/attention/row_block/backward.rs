//! Rows of all heads backwards: scores, map and weights again, then every gradient.

use super::{KEYS, RowBlockInputs, RowBlockScratch, RowBlockTile, RowKeyProduct, WeightedSum, tiles};
use crate::Number;
use crate::attention::{AttentionDims, AttentionGradients, AttentionSaved, Strides, ViewMut, sinks, softcap};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::{ScoreModGradients, Strided};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddRow, Dots, ScaleRow};
use crate::tiles::softmax::SoftmaxBackward;
use crate::tiles::workers;
use crate::tiles::workers::{BlockSchedule, Turns};

/// One call.
pub(super) struct RowBlockBackward<'a, T> {
    pub(super) inputs: RowBlockInputs<'a, T>,
    pub(super) saved: AttentionSaved<'a, T>,
    pub(super) gradients: AttentionGradients<'a, T>,
}

struct RowBlockBackwardCall<'a, L: Lanes> {
    lanes: L,
    inputs: RowBlockInputs<'a, L::Number>,
    saved: AttentionSaved<'a, L::Number>,
    d_q: ViewMut<'a, L::Number>,
    d_k: ViewMut<'a, L::Number>,
    d_v: ViewMut<'a, L::Number>,
    /// What the map sums, `[B, S]`, as a row for each sequence.
    map_sums: ViewMut<'a, L::Number>,
    /// Of each tile of each key head of each sequence: which block may add to its `d_k` and `d_v`.
    turns: Turns,
    /// Of each sequence: which block may add to `map_sums`.
    map_turns: Turns,
}

/// What one thread computes in.
struct RowBlockBackwardScratch<T> {
    tiles: RowBlockScratch<T>,
    /// `[H, rows, width]`
    d_out: Vec<T>,
    /// `d_out.out`, `[H, rows]`
    delta: Vec<T>,
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
}

impl<T: Number> SimdKernel<T> for RowBlockBackward<'_, T> {
    type Output = ();

    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RowBlockBackward { inputs, saved, gradients } = self;
        let AttentionDims { batch, kv_heads, .. } = inputs.problem.dims;
        let AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_score_mod,
            d_sinks,
            d_bias: _,
            d_weight: _,
            d_gate_cumsum: _,
            d_relative: _,
        } = gradients;
        sinks::backward(inputs.problem, &saved, d_sinks);
        let size = inputs.map.sums();
        let mut sums = vec![T::ZERO; batch * size];
        let (blocks, spans) = (inputs.blocks(), inputs.spans());
        let first = first_blocks::<L>(&inputs);
        let call = RowBlockBackwardCall {
            lanes,
            inputs,
            saved,
            d_q,
            d_k,
            d_v,
            map_sums: ViewMut::new(&mut sums, Strides { batch: size, head: size, row: size }),
            turns: Turns::new(batch * kv_heads * spans, |sum| first[sum / kv_heads / spans * spans + sum % spans]),
            map_turns: Turns::new(batch, |_| 0),
        };
        call.clear();
        let schedule = BlockSchedule::new(batch, blocks);
        workers::for_each(
            batch * blocks,
            || call.scratch(),
            |scratch, item| {
                let _guards = (call.turns.guard(), call.map_turns.guard());
                let (batch, block) = schedule.item(item);
                call.block(scratch, &inputs.place::<L>(batch, block), block);
            },
        );
        if let Some(d_score_mod) = d_score_mod {
            let (sum, others) = sums.split_at_mut(size);
            others.chunks_exact(size.max(1)).for_each(|from| lanes.run(AddRow { to: sum, from }));
            inputs.map.finish(sum, d_score_mod);
        }
    }
}

/// The first block that sees each tile of each sequence, `[B, spans]`. Those that see it are consecutive.
fn first_blocks<L: Lanes>(inputs: &RowBlockInputs<L::Number>) -> Vec<usize> {
    let (blocks, spans) = (inputs.blocks(), inputs.spans());
    let mut first = vec![usize::MAX; inputs.problem.dims.batch * spans];
    for (batch, first) in first.chunks_exact_mut(spans.max(1)).enumerate() {
        for block in (0..blocks).rev() {
            inputs.parts::<L>(&inputs.place::<L>(batch, block)).for_each(|(tile, _)| first[tile] = block);
        }
    }
    first
}

impl<L: Lanes> RowBlockBackwardCall<'_, L> {
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
        let AttentionDims { heads, head_dim, .. } = self.inputs.problem.dims;
        let (tiles, rows) = (self.inputs.tiles::<L>(), heads * self.inputs.rows());
        let [d_out, d_q] = [(); 2].map(|()| workers::scratch(rows * tiles.width));
        let [scores, weights, d_scores] = [(); 3].map(|()| self.inputs.scores::<L>());
        let (d_q_of_map, map_sums) = (workers::scratch(rows * head_dim), workers::scratch(self.inputs.map.sums()));
        let delta = workers::scratch(rows);
        RowBlockBackwardScratch { tiles, d_out, delta, d_q, d_q_of_map, scores, weights, d_scores, map_sums }
    }

    fn block(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile, block: usize) {
        scratch.d_q_of_map.fill(L::Number::ZERO);
        scratch.d_q.fill(L::Number::ZERO);
        scratch.map_sums.fill(L::Number::ZERO);
        let (inputs, d_out) = (&self.inputs, self.saved.d_out);
        inputs.load_queries(self.lanes, place, &mut scratch.tiles);
        let width = scratch.tiles.width;
        inputs.load_rows(self.lanes, place, d_out, L::Number::ONE, &mut scratch.d_out, width);
        self.compute_delta(scratch, place);
        for (tile, part) in inputs.parts::<L>(place) {
            self.part(scratch, &part, block, tile);
        }
        self.store_d_q(scratch, place);
        self.map_turns.take(place.batch, block, || {
            // SAFETY: the row is `[S]`, and it is this item's turn to write it.
            let to = unsafe { self.map_sums.row(place.batch, 0, 0, scratch.map_sums.len()) };
            self.lanes.run(AddRow { to, from: &scratch.map_sums });
        });
    }

    /// `d_out.out` of every row.
    fn compute_delta(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile) {
        let AttentionDims { heads, head_dim, .. } = self.inputs.problem.dims;
        for (at, delta_i) in scratch.delta[..heads * place.rows].chunks_exact_mut(1).enumerate() {
            let (head, query) = (at / place.rows, place.first_query + at % place.rows);
            let [q, k] = [self.saved.d_out, self.saved.out].map(|view| view.row(place.batch, head, query, head_dim));
            self.lanes.run(Dots { q, k, stride: 0, to: delta_i });
        }
    }

    /// Adds what a tile of keys brings to the gradients.
    fn part(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile, block: usize, tile: usize) {
        let AttentionDims { heads, kv_heads, head_dim, .. } = self.inputs.problem.dims;
        self.weights(scratch, place);
        let size = heads * place.rows * place.columns;
        let of_block = ScoreModGradients {
            d_scores: &mut scratch.d_scores[..size],
            d_q: &mut scratch.d_q_of_map[..heads * place.rows * head_dim],
            sums: &mut scratch.map_sums,
        };
        let described = self.inputs.block(place, &scratch.tiles.q_of_map);
        self.inputs.map.backward(&described, &scratch.scores[..size], of_block);
        if let Some(values) = self.inputs.map.values() {
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
            let sum = (place.batch * kv_heads + kv_head) * self.inputs.spans() + tile;
            self.turns.take(sum, block, || self.add_d_k_and_d_v(scratch, place, kv_head));
        }
    }

    /// Scores, weights, and the gradient in the mapped scores.
    fn weights(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile) {
        let (inputs, lanes) = (&self.inputs, self.lanes);
        let AttentionDims { heads, queries, .. } = inputs.problem.dims;
        let size = heads * place.rows * place.columns;
        let RowBlockBackwardScratch { tiles, d_out, delta, scores, weights, d_scores, .. } = scratch;
        let (scores, weights, d_scores) = (&mut scores[..size], &mut weights[..size], &mut d_scores[..size]);
        inputs.raw_scores(lanes, place, tiles, scores);
        weights.copy_from_slice(scores);
        inputs.map.forward(&inputs.block(place, &tiles.q_of_map), weights);
        let keys_transposed = &mut tiles.transposed[..];
        let (rows, width, keys) = (&d_out[..], tiles.width, inputs.v);
        inputs.products(lanes, place, RowKeyProduct { rows, width, keys, keys_transposed, out: &mut *d_scores });
        if let Some(values) = inputs.map.values() {
            let d_out = Strided { values: &d_out[..], stride: tiles.width };
            values.add_products(&inputs.block(place, &tiles.q_of_map), d_out, d_scores);
        }
        for (at, &delta_i) in delta.iter().enumerate().take(heads * place.rows) {
            let (head, query) = (at / place.rows, place.first_query + at % place.rows);
            let row = at * place.columns..(at + 1) * place.columns;
            let lse = self.saved.lse[(place.batch * heads + head) * queries + query];
            if lse == L::Number::NEG_INFINITY {
                weights[row.clone()].fill(L::Number::ZERO);
                d_scores[row].fill(L::Number::ZERO);
            } else {
                let (scores, d_scores) = (&mut weights[row.clone()], &mut d_scores[row]);
                lanes.run(SoftmaxBackward { scores, d_scores, lse, delta: delta_i });
            }
        }
        inputs.fill_unseen(place, L::Number::ZERO, weights);
        inputs.fill_unseen(place, L::Number::ZERO, d_scores);
    }

    /// `d_q = scale ds k`, and what the map adds.
    fn store_d_q(&self, scratch: &mut RowBlockBackwardScratch<L::Number>, place: &RowBlockTile) {
        let AttentionDims { heads, head_dim, .. } = self.inputs.problem.dims;
        let RowBlockBackwardScratch { tiles, d_q, d_q_of_map, .. } = scratch;
        for at in 0..heads * place.rows {
            // SAFETY: the view is checked, and this item alone writes this row.
            let to =
                unsafe { self.d_q.row(place.batch, at / place.rows, place.first_query + at % place.rows, head_dim) };
            self.lanes.run(ScaleRow { to, factor: self.inputs.problem.scale, from: &d_q[at * tiles.width..] });
            self.lanes.run(AddRow { to, from: &d_q_of_map[at * head_dim..] });
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
                    let to = unsafe { view.row(place.batch, kv_head, place.first_key + first + key, head_dim) };
                    self.lanes.run(AddRow { to, from });
                }
            }
        }
    }
}

const _: () = assert!(KEYS.is_multiple_of(16), "a tile starts at a whole vector");
