//! One segment of the backward: the five products of each tile, from the scores to what it adds to gradients.

use super::decay_cumsum::BackwardDecays;
use super::{KEYS, QUERIES, TiledBackwardSegments, distances};
use crate::Number;
use crate::attention::dropout::{DropoutFactors, DropoutTile};
use crate::attention::tiled::blocks::most_queries;
use crate::attention::tiled::diagonal::DiagonalSums;
use crate::attention::tiled::gate_cumsum::{GateOffsets, TileGates};
use crate::attention::tiled::gradient::{GateGradientSums, PairGradient, RowLogits, TileScoreGradient};
use crate::attention::tiled::interval_mask::{IntervalMask, StrayRow, TileVisibility, add_stray_row, take_stray_rows};
use crate::attention::tiled::normalizer::{CarriedRows, NormalizePairs, NormalizedPairs, RowCarry};
use crate::attention::tiled::position_kernel::{
    KernelGradient, KernelScores, PositionGradientSums, PositionSums, PositionTile,
};
use crate::attention::tiled::relative::RelativeTileBackward;
use crate::attention::tiled::tile::{KeyTile, STRIP};
use crate::attention::{AttentionDims, AttentionProblem, AttentionSaved, View, ViewMut, softcap};
use crate::cpu::lanes::Lanes;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddScaledRow, CopyRows, ScaleRow, Transpose};
use crate::tiles::workers;

/// One segment of a call.
pub(super) struct TiledBackwardCall<'a, L: Lanes> {
    pub(super) lanes: L,
    pub(super) all: &'a TiledBackwardSegments<'a, L>,
    pub(super) number: usize,
    pub(super) problem: AttentionProblem<'a, L::Number>,
    pub(super) saved: AttentionSaved<'a, L::Number>,
    pub(super) lse: View<'a, L::Number>,
    pub(super) delta: View<'a, L::Number>,
    pub(super) d_q: ViewMut<'a, L::Number>,
    pub(super) d_k: ViewMut<'a, L::Number>,
    pub(super) d_v: ViewMut<'a, L::Number>,
    pub(super) d_gate_cumsum: Option<ViewMut<'a, f64>>,
    pub(super) d_decay_cumsum: Option<ViewMut<'a, f64>>,
    pub(super) gate_rows: Option<ViewMut<'a, f64>>,
    pub(super) carry: Option<RowCarry<'a, L::Number>>,
    pub(super) positions: Option<PositionSums<'a>>,
    pub(super) d_rows: Option<ViewMut<'a, L::Number>>,
}

/// What one thread computes in. Widths are D rounded up to whole vectors.
pub(super) struct TiledBackwardScratch<R> {
    /// `scale * k`, `[D, KEYS]` and `[KEYS, width]`
    pub(super) keys_transposed: Vec<R>,
    pub(super) keys: Vec<R>,
    /// `[D, KEYS]`
    values_transposed: Vec<R>,
    /// `[QUERIES, width]`
    pub(super) q: Vec<R>,
    /// `d_out`, and `delta` of the queries, times the scale of the head, as is everything that follows from them.
    d_out: Vec<R>,
    delta: Vec<R>,
    pub(super) d_q: Vec<R>,
    /// Scores, then weights, `[QUERIES, KEYS]`
    pub(super) weights: Vec<R>,
    /// `d_out.v`, then the gradient of `scale * q.k`, `[QUERIES, KEYS]`
    pub(super) d_scores: Vec<R>,
    /// `[KEYS, width]`
    pub(super) d_k: Vec<R>,
    d_v: Vec<R>,
    d_bias: Option<DiagonalSums<R>>,
    d_weight: Option<DiagonalSums<R>>,
    /// Cumulative gates of the queries and of the keys.
    gate_cumsum: [GateOffsets<R>; 2],
    gate_sums: Option<GateGradientSums<R>>,
    /// Where weights are not those of a softmax.
    normalized: Option<NormalizedPairs<R>>,
    /// Sums of the gate gradients of the keys over the tiles of a head so far, `[KEYS]`.
    gate_columns: Vec<f64>,
    positions: Option<PositionTile<R>>,
    /// What they add up, and the gradient of the logits that they do so from.
    position_sums: Option<(PositionGradientSums<R>, PairGradient<R>)>,
    relative: Option<RelativeTileBackward<R>>,
    /// Where queries have intervals of keys, or see first tokens.
    pub(super) mask: Option<IntervalMask<R>>,
    /// `[QUERIES, KEYS]`
    dropout: Option<DropoutFactors<R>>,
    /// Rows left out of `keys`.
    pub(super) stray_keys: Vec<StrayRow<R>>,
    pub(super) decays: Option<BackwardDecays<R>>,
    pub(super) width: usize,
    value_width: usize,
}

impl<R: Number> TiledBackwardScratch<R> {
    pub(super) fn new<L: Lanes<Number = R>>(call: &TiledBackwardSegments<L>, problem: &AttentionProblem<R>) -> Self {
        let (head_dim, queries) = (problem.dims.head_dim, most_queries(problem));
        let has_gates = problem.tables().gate_cumsum.is_some();
        let value_dim = problem.dims.value_dim;
        let [width, value_width] = [head_dim, value_dim].map(|dim| dim.next_multiple_of(L::COUNT));
        let unset = |n| workers::scratch(n);
        let sums = |wanted: bool| wanted.then(|| DiagonalSums::new(L::COUNT, queries));
        TiledBackwardScratch {
            keys_transposed: unset(head_dim * KEYS),
            keys: unset(KEYS * width),
            values_transposed: unset(value_dim * KEYS),
            q: unset(QUERIES * width),
            d_out: unset(QUERIES * value_width),
            delta: unset(QUERIES),
            d_q: unset(QUERIES * width),
            weights: unset(QUERIES * KEYS),
            d_scores: unset(QUERIES * KEYS),
            d_k: unset(KEYS * width),
            d_v: unset(KEYS * value_width),
            d_bias: sums(call.d_bias.is_some()),
            d_weight: sums(call.d_weight.is_some()),
            gate_cumsum: [QUERIES, KEYS].map(|tokens| GateOffsets::new(tokens, has_gates)),
            gate_sums: call.d_gate_cumsum.is_some().then(|| GateGradientSums::new(problem.mask.sides())),
            normalized: NormalizedPairs::new(problem.normalizer),
            gate_columns: vec![0.0; KEYS],
            positions: PositionTile::new(&call.kernels, true),
            position_sums: call.positions.is_some().then(|| {
                let by_token = GateGradientSums::new(problem.mask.sides());
                (PositionGradientSums::new(&call.kernels[0], by_token), PairGradient::new())
            }),
            relative: call.relative.as_ref().map(|profiles| RelativeTileBackward::new(profiles, call.d_rows.is_some())),
            mask: IntervalMask::new(problem),
            dropout: DropoutFactors::new(problem, QUERIES * KEYS),
            stray_keys: Vec::new(),
            decays: problem.tables().decay_cumsum.map(|_| BackwardDecays::new(head_dim, width)),
            width,
            value_width,
        }
    }
}

impl<L: Lanes> TiledBackwardCall<'_, L> {
    /// The scale of a head's `d_out` within tiles.
    fn scale(&self, head: usize) -> L::Number {
        self.all.scales.of(self.number, head)
    }

    pub(super) fn key_block(&self, scratch: &mut TiledBackwardScratch<L::Number>, kv_head: usize, block: usize) {
        let AttentionDims { heads, kv_heads, keys, .. } = self.problem.dims;
        let first_key = block * KEYS;
        let stored = (keys - first_key).min(KEYS);
        let keys = self.problem.length(0).saturating_sub(first_key).min(KEYS); // without padding
        scratch.d_k[..stored * scratch.width].fill(L::Number::ZERO);
        scratch.d_v[..stored * scratch.value_width].fill(L::Number::ZERO);
        if keys > 0 {
            self.load_keys(scratch, kv_head, first_key, keys);
            let group = heads / kv_heads;
            for head in kv_head * group..(kv_head + 1) * group {
                self.head(scratch, head, block, keys);
                self.add_remainders(scratch, head, first_key, keys);
                self.add_gate_columns(scratch, head, first_key, stored);
                self.end_decays(scratch, head, first_key, keys);
                if let (Some(to), Some((sums, _))) = (&self.positions, &mut scratch.position_sums) {
                    let blocks = self.problem.dims.keys.div_ceil(KEYS);
                    // SAFETY: this item alone has this block of keys of the heads that read it.
                    unsafe { to.take([self.number, head, block], [blocks, stored], sums) };
                }
            }
            if let Some(decays) = &scratch.decays {
                decays.store(&mut scratch.d_k);
            }
        }
        self.store_keys(scratch, kv_head, first_key, stored);
    }

    /// Adds to the gradients of values what the queries at their positions give them of what is left.
    fn add_remainders(
        &self,
        scratch: &mut TiledBackwardScratch<L::Number>,
        head: usize,
        first_key: usize,
        keys: usize,
    ) {
        if self.carry.is_none() {
            return;
        }
        let AttentionDims { queries, value_dim, .. } = self.problem.dims;
        let before = self.problem.dims.position(0);
        for (key, to) in scratch.d_v.chunks_exact_mut(scratch.value_width).take(keys).enumerate() {
            let query = usize::try_from((first_key + key).cast_signed() - before).ok().filter(|query| *query < queries);
            let Some(query) = query.filter(|query| self.problem.remainder_key(*query).is_some()) else { continue };
            let (factor, from) = (self.lse.row(0, head, query, 1)[0], self.saved.d_out.row(0, head, query, value_dim));
            self.lanes.run(AddScaledRow { to: &mut to[..value_dim], factor, from });
        }
    }

    /// Adds one head's gradients from a block of keys.
    fn head(&self, scratch: &mut TiledBackwardScratch<L::Number>, head: usize, block: usize, keys: usize) {
        let first_key = block * KEYS;
        let visits = self.all.visits;
        let query_blocks = visits.query_blocks([self.number, head, block], &self.problem);
        for sums in [&mut scratch.d_bias, &mut scratch.d_weight].into_iter().flatten() {
            sums.begin(query_blocks.start * QUERIES, query_blocks.len() * QUERIES);
        }
        let all_gates = self.problem.gate_cumsum(0, head);
        if let Some(gate_cumsum) = all_gates {
            scratch.gate_cumsum[1].load(&gate_cumsum[first_key..][..keys], gate_cumsum[first_key]);
        }
        let positions = self.problem.positions(0, head);
        if let (Some(x), Some(of_tile)) = (positions, &mut scratch.positions) {
            of_tile.offsets[1].load(&x[first_key..][..keys], x[first_key]);
        }
        for query_block in query_blocks {
            let unit = [self.number, head * self.problem.dims.queries.div_ceil(QUERIES) + query_block];
            let key_blocks = visits.key_blocks(unit, &self.problem);
            if !key_blocks.contains(block) {
                continue;
            }
            let sum = visits.sum(unit);
            let [turn, first_turn] = match &self.carry {
                Some(_) => [key_blocks.turn_from_last(block), 0],
                None => [key_blocks.turn(block), key_blocks.first_turn()],
            };
            let first_query = query_block * QUERIES;
            let distance = self.problem.dims.position(first_query) - first_key as isize;
            let queries = (self.problem.dims.queries - first_query).min(QUERIES);
            // a feature decay counts from the last of the loaded keys
            let is_decayed = self.all.feature_decay.is_some() || scratch.decays.is_some();
            let keys = if key_blocks.is_sink_block(block) && !is_decayed {
                keys.min(self.problem.mask.sink_tokens() - first_key)
            } else {
                keys
            };
            let (ahead, sees_own) = (self.problem.ahead(), self.problem.normalizer.attends_to_own());
            let tile = KeyTile { head, first_query, queries, keys, distance, ahead, sees_own };
            let visibility = match &mut scratch.mask {
                Some(mask) => {
                    mask.begin(&self.problem, first_query..first_query + queries);
                    mask.load(first_key..first_key + keys)
                }
                None => TileVisibility::Everything,
            };
            if visibility == TileVisibility::Nothing {
                // between the intervals of two queries, or their own keys, where a window has these only and they are hidden
                self.all.turns.take(sum, turn, || {
                    if turn == first_turn {
                        self.clear_d_q(&tile);
                    }
                });
                continue;
            }
            if let Some(gate_cumsum) = all_gates {
                let own = self.problem.dims.position(first_query).cast_unsigned();
                scratch.gate_cumsum[0].load(&gate_cumsum[own..][..queries], gate_cumsum[first_key]);
            }
            if let (Some(x), Some(of_tile)) = (positions, &mut scratch.positions) {
                let own = self.problem.dims.position(first_query).cast_unsigned();
                of_tile.offsets[0].load(&x[own..][..queries], x[first_key]);
            }
            if let Some(dropout) = &mut scratch.dropout {
                let strides = [KEYS, 1];
                dropout.load(&self.problem, DropoutTile { head, first_query, queries, first_key, keys, strides });
            }
            let Some(carry) = &self.carry else {
                self.tile(scratch, &tile, visibility, None);
                self.all.turns.take(sum, turn, || self.add_d_q(scratch, &tile, turn == first_turn));
                continue;
            };
            // the blocks to the right first
            self.all.turns.take(sum, turn, || {
                // SAFETY: the rows are this head's, and it is this item's turn to write them.
                let carried = unsafe { carry.rows(head, first_query..first_query + queries) };
                if !carried.is_used_up() {
                    self.tile(scratch, &tile, visibility, Some(carried));
                    self.add_d_q(scratch, &tile, turn == first_turn);
                }
            });
        }
        self.add_tables(scratch, head, block);
    }

    fn load_keys(&self, scratch: &mut TiledBackwardScratch<L::Number>, kv_head: usize, first_key: usize, keys: usize) {
        let AttentionDims { head_dim, value_dim, .. } = self.problem.dims;
        let (k, v) = (&self.saved.k, &self.saved.v);
        for (view, head_dim, factor, to) in [
            (k, head_dim, self.problem.scale, &mut scratch.keys_transposed),
            (v, value_dim, L::Number::ONE, &mut scratch.values_transposed),
        ] {
            let from = view.rows_from(0, kv_head, first_key);
            self.lanes.run(Transpose { from, stride: view.strides.row, rows: keys, head_dim, factor, to, width: KEYS });
        }
        self.lanes.run(CopyRows {
            from: k.rows_from(0, kv_head, first_key),
            stride: k.strides.row,
            rows: keys,
            head_dim,
            factor: self.problem.scale,
            to: &mut scratch.keys,
            width: scratch.width,
        });
        if let Some(feature_decay) = &self.all.feature_decay {
            self.lanes.run(feature_decay.keys(&mut scratch.keys, scratch.width, keys));
            let (from, stride, to) = (&scratch.keys[..], scratch.width, &mut scratch.keys_transposed[..]);
            let factor = L::Number::ONE;
            self.lanes.run(Transpose { from, stride, rows: keys, head_dim, factor, to, width: KEYS });
        }
        if let Some(decays) = &mut scratch.decays {
            decays.begin(&scratch.keys, keys);
        } else if scratch.mask.is_some() {
            scratch.stray_keys = take_stray_rows(&mut scratch.keys, scratch.width, keys);
        }
    }

    fn store_keys(&self, scratch: &mut TiledBackwardScratch<L::Number>, kv_head: usize, first_key: usize, keys: usize) {
        if let Some(feature_decay) = &self.all.feature_decay {
            let keys = self.problem.length(0).saturating_sub(first_key).min(keys);
            self.lanes.run(feature_decay.keys(&mut scratch.d_k, scratch.width, keys));
        }
        let AttentionDims { head_dim, value_dim, .. } = self.problem.dims;
        let (group, one) = (self.problem.dims.heads / self.problem.dims.kv_heads, L::Number::ONE);
        let unscaled = one / self.scale(kv_head * group);
        for (view, dim, from, width, factor) in [
            (&self.d_k, head_dim, &scratch.d_k, scratch.width, unscaled * self.problem.scale),
            (&self.d_v, value_dim, &scratch.d_v, scratch.value_width, unscaled),
        ] {
            for key in 0..keys {
                // SAFETY: the views are checked, and this item alone writes these keys.
                let to = unsafe { view.row(0, kv_head, first_key + key, dim) };
                self.lanes.run(ScaleRow { to, factor, from: &from[key * width..] });
            }
        }
    }

    /// Subtracts what the keys of a block are seen, and begins anew.
    fn add_gate_columns(
        &self,
        scratch: &mut TiledBackwardScratch<L::Number>,
        head: usize,
        first_key: usize,
        keys: usize,
    ) {
        let Some(d_gate_cumsum) = &self.d_gate_cumsum else { return };
        // SAFETY: the view is `[B, H, K]`, and this item alone writes these keys of it.
        let to = unsafe { d_gate_cumsum.row(0, head, first_key, keys) };
        let unscaled = 1.0 / self.scale(head).to_f64();
        to.iter_mut().zip(&scratch.gate_columns).for_each(|(to, column)| *to -= unscaled * column);
        scratch.gate_columns.fill(0.0);
    }

    fn add_d_q(&self, scratch: &TiledBackwardScratch<L::Number>, tile: &KeyTile, is_first: bool) {
        let factor = L::Number::ONE / self.scale(tile.head);
        if let (Some(rows), Some(sums)) = (&self.gate_rows, &scratch.gate_sums) {
            // SAFETY: the view is `[B, H, Q]`, and it is this item's turn to write these queries.
            let to = unsafe { rows.row(0, tile.head, tile.first_query, tile.queries) };
            to.iter_mut().zip(&sums.rows).for_each(|(to, row)| *to += factor.to_f64() * row.to_f64());
        }
        if let (Some(to), Some((sums, _))) = (&self.positions, &scratch.position_sums) {
            // SAFETY: as above.
            let to = unsafe { to.rows.row(0, tile.head, tile.first_query, tile.queries) };
            to.iter_mut().zip(&sums.by_token.rows).for_each(|(to, row)| *to += row.to_f64());
        }
        if let (Some(profiles), Some(from), Some(d_rows)) = (&self.all.relative, &scratch.relative, &self.d_rows) {
            from.add_d_rows(self.lanes, profiles, tile, d_rows);
        }
        for query in 0..tile.queries {
            // SAFETY: the view is checked, and it is this item's turn to write these queries.
            let to = unsafe { self.d_q.row(0, tile.head, tile.first_query + query, self.problem.dims.head_dim) };
            let from = &scratch.d_q[query * scratch.width..];
            if is_first {
                self.lanes.run(ScaleRow { to, factor, from });
            } else {
                self.lanes.run(AddScaledRow { to, factor, from });
            }
        }
    }

    /// Another tile adds to the `d_q` of this one, which adds nothing itself.
    fn clear_d_q(&self, tile: &KeyTile) {
        for query in tile.first_query..tile.first_query + tile.queries {
            // SAFETY: the view is checked, and it is this item's turn to write these queries.
            unsafe { self.d_q.row(0, tile.head, query, self.problem.dims.head_dim) }.fill(L::Number::ZERO);
        }
    }

    fn add_tables(&self, scratch: &mut TiledBackwardScratch<L::Number>, head: usize, block: usize) {
        // blocks of padding add nothing, and are the first where blocks come from the last
        let turn = if self.carry.is_some() { self.problem.length(0).div_ceil(KEYS) - 1 - block } else { block };
        let (all, own) = (self.all, distances(&self.problem));
        let origin = self.problem.dims.position(0) + self.problem.ahead() as isize - (block * KEYS) as isize;
        all.table_turns.take(self.number * self.problem.dims.heads + head, turn, || {
            for (sums, table) in [(&mut scratch.d_bias, &all.d_bias), (&mut scratch.d_weight, &all.d_weight)] {
                if let (Some(sums), Some(table)) = (sums, table) {
                    // SAFETY: the numbers are this head's, and it is this item's turn to write them.
                    let row = unsafe { table.row(0, 0, all.distances[self.number] + head * own, own) };
                    sums.move_into(row, origin, L::Number::ONE / self.scale(head));
                }
            }
            if let (Some(sums), Some(to)) = (&mut scratch.relative, &all.d_profiles) {
                let own = sums.unit(&self.problem);
                // SAFETY: the numbers are this head's, and it is this item's turn to write them.
                let to = unsafe { to.row(0, 0, all.profile_offsets[self.number] + head * own, own) };
                sums.move_into(self.lanes, to);
            }
        });
    }

    fn tile(
        &self,
        scratch: &mut TiledBackwardScratch<L::Number>,
        tile: &KeyTile,
        visibility: TileVisibility,
        carried: Option<CarriedRows<L::Number>>,
    ) {
        let AttentionDims { head_dim, value_dim, .. } = self.problem.dims;
        let scale = self.scale(tile.head);
        for (view, head_dim, factor, to, width) in [
            (&self.saved.q, head_dim, L::Number::ONE, &mut scratch.q, scratch.width),
            (&self.saved.d_out, value_dim, scale, &mut scratch.d_out, scratch.value_width),
        ] {
            let from = view.rows_from(0, tile.head, tile.first_query);
            let (stride, rows) = (view.strides.row, tile.queries);
            self.lanes.run(CopyRows { from, stride, rows, head_dim, factor, to, width });
        }
        let [lse, delta] = [&self.lse, &self.delta].map(|view| view.row(0, tile.head, tile.first_query, tile.queries));
        scratch.delta[..tile.queries].iter_mut().zip(delta).for_each(|(to, delta)| *to = scale * *delta);
        let decayed = self
            .all
            .feature_decay
            .as_ref()
            .map(|feature_decay| (feature_decay, feature_decay.over(tile.distance + 1 - tile.keys as isize)));
        if let Some((feature_decay, over)) = &decayed {
            self.lanes.run(feature_decay.queries(&mut scratch.q, scratch.width, tile.queries, over));
        }
        self.decay_by_content(scratch, tile);
        let crosses = tile.lanes_seen_by(0, L::COUNT) < tile.keys;
        let strip = if crosses { STRIP } else { tile.queries };
        for query in (0..tile.queries).step_by(strip) {
            self.scores(scratch, query, strip.min(tile.queries - query), tile.lanes_seen_by(query, L::COUNT));
        }
        self.add_steep_scores(scratch, tile);
        if let Some(cap) = self.problem.softcap {
            softcap::apply(&mut scratch.weights[..tile.queries * KEYS], cap);
        }
        let is_whole = tile.is_whole(self.problem.mask.furthest());
        let mut bias =
            (self.problem.tables().bias.is_some() || !is_whole).then(|| self.all.bias.at(tile.head, tile.distance));
        let profiles = self.all.relative.as_ref().filter(|profiles| profiles.reaches(tile.distance, tile.keys));
        let mut relative = profiles.zip(scratch.relative.as_mut());
        let mut d_pairs = None;
        if let Some((profiles, scratch)) = &mut relative {
            scratch.load(self.lanes, &self.problem, tile);
            let (table, gradient) = scratch.scores(self.lanes, profiles, tile, bias);
            (bias, d_pairs) = (Some(table), gradient);
        }
        if let Some(of_tile) = &mut scratch.positions {
            let columns = |query: usize| 0..tile.lanes_seen_by(query, L::COUNT);
            let kernel = &self.all.kernels[tile.head];
            self.lanes.run(KernelScores { kernel, tile: of_tile, row_side: 0, rows: tile.queries, columns, bias });
            bias = Some(of_tile.table());
            d_pairs = scratch.position_sums.as_mut().map(|(_, gradient)| gradient);
        }
        let [mut stray_queries, mut stray_gradients] = [(); 2].map(|()| Vec::new());
        if let Some(mask) = scratch.mask.as_mut().filter(|_| visibility == TileVisibility::Part) {
            mask.clear_hidden([&mut scratch.weights, &mut scratch.d_scores]);
            bias = Some(mask.row_table(bias));
            [stray_queries, stray_gradients] =
                [(&mut scratch.q, scratch.width), (&mut scratch.d_out, scratch.value_width)]
                    .map(|(rows, width)| take_stray_rows(rows, width, tile.queries));
        }
        let all = tile.queries * KEYS;
        if let Some(dropout) = &scratch.dropout {
            dropout.apply(&mut scratch.d_scores[..all]);
        }
        let delta = &scratch.delta[..tile.queries];
        self.level_lone_queries(&mut scratch.d_scores, tile, delta);
        let weight = self.all.weight.as_ref().map(|weight| weight.at(tile.head, tile.distance));
        let gate_cumsum = self.problem.tables().gate_cumsum.map(|_| {
            let [queries, keys] = &scratch.gate_cumsum;
            TileGates { queries, keys, sides: self.problem.mask.sides() }
        });
        if let Some(to) = &mut scratch.normalized {
            let logits = RowLogits { scores: &scratch.weights, bias, weight, gate_cumsum };
            let d_weights = &scratch.d_scores[..];
            self.lanes.run(NormalizePairs { tile: *tile, logits, d_weights, lse, delta, carried, to });
        }
        self.lanes.run(TileScoreGradient {
            tile: *tile,
            weights: &mut scratch.weights,
            d_scores: &mut scratch.d_scores,
            bias,
            weight,
            softcap: self.problem.softcap,
            lse,
            delta,
            normalized: scratch.normalized.as_ref(),
            with_rows: self.all.with_rows,
            d_bias: scratch.d_bias.as_mut(),
            d_weight: scratch.d_weight.as_mut(),
            gate_cumsum,
            d_gate_cumsum: scratch.gate_sums.as_mut(),
            d_pairs,
        });
        if let Some(dropout) = &scratch.dropout {
            dropout.apply(&mut scratch.weights[..all]);
        }
        if let Some(mask) = &scratch.mask {
            // of queries whose own numbers are not finite
            mask.clear_hidden([&mut scratch.weights, &mut scratch.d_scores]);
        }
        if let Some((profiles, scratch)) = &mut relative {
            scratch.backward(self.lanes, profiles, tile);
        }
        if let (Some(of_tile), Some((to, d_z))) = (&scratch.positions, &mut scratch.position_sums) {
            self.lanes.run(KernelGradient { kernel: &self.all.kernels[tile.head], tile, of_tile, d_z, to });
            to.by_token.move_columns(&mut to.columns[..tile.keys]);
        }
        if let Some(sums) = &mut scratch.gate_sums {
            sums.move_columns(&mut scratch.gate_columns[..tile.keys]);
        }
        for query in (0..tile.queries).step_by(strip) {
            let keys = tile.lanes_seen_by(query, L::COUNT).min(tile.keys);
            self.d_q(scratch, query, strip.min(tile.queries - query), keys);
        }
        add_stray_keys(scratch);
        if let Some((feature_decay, over)) = &decayed {
            self.lanes.run(feature_decay.queries(&mut scratch.d_q, scratch.width, tile.queries, over));
        }
        self.decay_d_q(scratch, tile);
        let group = if crosses { L::COUNT } else { tile.keys };
        for key in (0..tile.keys).step_by(group) {
            self.d_k_and_d_v(scratch, tile, key, group.min(tile.keys - key));
        }
        add_stray_queries(scratch, &stray_queries, &stray_gradients);
    }

    /// `weights = q (scale k)^T` and `d_scores = d_out v^T` for some queries and the first `columns` keys.
    fn scores(&self, scratch: &mut TiledBackwardScratch<L::Number>, query: usize, queries: usize, columns: usize) {
        let AttentionDims { head_dim, value_dim, .. } = self.problem.dims;
        for (inner, width, rows, transposed, to) in [
            (head_dim, scratch.width, &scratch.q, &scratch.keys_transposed, &mut scratch.weights),
            (value_dim, scratch.value_width, &scratch.d_out, &scratch.values_transposed, &mut scratch.d_scores),
        ] {
            self.lanes.run(SmallGemm {
                rows: queries,
                inner,
                columns,
                a: StridedMatrix::row_major(&rows[query * width..], width),
                b: transposed,
                b_stride: KEYS,
                c: &mut to[query * KEYS..],
                c_stride: KEYS,
                store: StoreMode::Overwrite,
            });
        }
    }

    /// A query that gives all its weight to one key has `d_out.v = delta`, so its score has no gradient. As computed, the two
    /// differ by a rounding, which the derivative of a steep bias multiplies by thousands.
    fn level_lone_queries(&self, d_scores: &mut [L::Number], tile: &KeyTile, delta: &[L::Number]) {
        let seen = |query: usize| self.problem.visible(0, query).len() + self.problem.visible_sink_tokens(0, query);
        let ends = [tile.first_query, tile.first_query + tile.queries - 1];
        // without intervals the number of keys rises and then falls with the query, so that the ends have the fewest
        let are_many = self.problem.intervals.is_none() && ends.into_iter().all(|query| seen(query) > 1);
        if self.problem.sinks.is_some() || !self.problem.normalizer.is_softmax() || are_many {
            return;
        }
        for (query, (d_scores, &delta)) in d_scores.chunks_exact_mut(KEYS).zip(delta).enumerate() {
            if seen(tile.first_query + query) == 1 {
                d_scores.fill(delta);
            }
        }
    }

    /// `d_q = d_scores (scale k)` for some queries, who see the first `keys` keys.
    fn d_q(&self, scratch: &mut TiledBackwardScratch<L::Number>, query: usize, queries: usize, keys: usize) {
        let width = scratch.width;
        self.lanes.run(SmallGemm {
            rows: queries,
            inner: keys,
            columns: width,
            a: StridedMatrix::row_major(&scratch.d_scores[query * KEYS..], KEYS),
            b: &scratch.keys,
            b_stride: width,
            c: &mut scratch.d_q[query * width..],
            c_stride: width,
            store: StoreMode::Overwrite,
        });
    }

    /// `d_k += d_scores^T q` and `d_v += weights^T d_out` for some keys.
    fn d_k_and_d_v(&self, scratch: &mut TiledBackwardScratch<L::Number>, tile: &KeyTile, key: usize, keys: usize) {
        let query = tile.first_query_of(key);
        if query == tile.queries {
            return;
        }
        for (columns, rows, to, width) in [
            (&scratch.d_scores, &scratch.q, &mut scratch.d_k, scratch.width),
            (&scratch.weights, &scratch.d_out, &mut scratch.d_v, scratch.value_width),
        ] {
            self.lanes.run(SmallGemm {
                rows: keys,
                inner: tile.queries - query,
                columns: width,
                a: StridedMatrix::transposed(&columns[query * KEYS + key..], KEYS),
                b: &rows[query * width..],
                b_stride: width,
                c: &mut to[key * width..],
                c_stride: width,
                store: StoreMode::Accumulate,
            });
        }
    }
}

/// Adds to the `d_q` of a tile what the keys bring that its products left out.
fn add_stray_keys<R: Number>(scratch: &mut TiledBackwardScratch<R>) {
    let TiledBackwardScratch { mask: Some(mask), stray_keys, d_scores, d_q, width, .. } = scratch else { return };
    for (key, row) in stray_keys {
        for query in mask.seeing(*key) {
            add_stray_row(&mut d_q[query * *width..][..*width], d_scores[query * KEYS + *key], row);
        }
    }
}

/// Adds to the `d_k` and `d_v` of a block of keys what the queries bring that a tile's products left out.
fn add_stray_queries<R: Number>(
    scratch: &mut TiledBackwardScratch<R>,
    queries: &[StrayRow<R>],
    gradients: &[StrayRow<R>],
) {
    let TiledBackwardScratch { mask: Some(mask), d_scores, weights, d_k, d_v, width, value_width, .. } = scratch else {
        return;
    };
    for (strays, factors, to, width) in [(queries, d_scores, d_k, *width), (gradients, weights, d_v, *value_width)] {
        for (query, row) in strays {
            for key in mask.seen(*query).into_iter().flatten() {
                add_stray_row(&mut to[key * width..][..width], factors[query * KEYS + key], row);
            }
        }
    }
}
