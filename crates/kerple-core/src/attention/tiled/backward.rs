//! All five products in one pass over the tiles, with keys as lanes.
//!
//! An item of work is a block of keys. It visits the blocks of queries that attend to it, keeps its
//! own `d_k` and `d_v` in scratch, and adds to the `d_q` of a block of queries once the block of
//! keys before it has done so. So additions have one order, whichever thread computes, and the threads
//! of a head run one tile apart.
//!
//! # Why weights are recomputed and `d_q` is added to in turns
//!
//! The weights of the forward are `[B, H, Q, K]` numbers, which no long sequence can store. The
//! forward leaves one `lse` per query instead, and `exp(z - lse)` is the weight again (Dao et al.
//! 2022, arXiv:2205.14135), for one more product per tile. A block of keys then has everything for
//! its `d_k` and `d_v`, but only a part of each `d_q`. Separate passes over queries and over keys
//! (as on GPUs, see `kerple-gpu`) need no order among threads, but compute scores and `d_out.v`
//! twice: seven products instead of five. Atomic additions, as in FlashAttention, keep five, but
//! add in the order in which threads happen to arrive, and the bits would change from run to run.
//! A `d_q` of its own for each block of keys would be quadratic in the length.

use super::blocks::{key_blocks, most_queries, query_blocks};
use super::diagonal::DiagonalSums;
use super::feature_decay::FeatureDecay;
use super::gate_cumsum::{self, GateOffsets, TileGates};
use super::gradient::{GateGradientSums, TileScoreGradient};
use super::relative::{self, RelativeBackward, RelativeProfiles};
use super::table::{DistanceOrder, PaddedTable};
use super::tile::{KeyTile, STRIP};
use crate::Number;
use crate::attention::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, RelativeGradients, Strides, View, ViewMut,
    sinks, softcap,
};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::Sides;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddRow, CopyRows, Dots, ScaleRow, Transpose};
use crate::tiles::workers::{self, BlockSchedule, Turns};

/// Queries of one tile.
pub(super) const QUERIES: usize = 96;
/// Keys of one tile and of one item of work.
pub(super) const KEYS: usize = 96;

/// One call.
pub(super) struct TiledBackward<'a, R> {
    pub(super) problem: &'a AttentionProblem<'a, R>,
    pub(super) saved: AttentionSaved<'a, R>,
    pub(super) gradients: AttentionGradients<'a, R>,
}

impl<R: Number> SimdKernel<R> for TiledBackward<'_, R> {
    type Output = ();

    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let TiledBackward { problem, saved, gradients } = self;
        let AttentionDims { batch, heads, kv_heads, queries, keys, .. } = problem.dims;
        let blocks = queries.div_ceil(QUERIES);
        let AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod: _,
            d_sinks,
            mut d_gate_cumsum,
            d_relative,
        } = gradients;
        sinks::backward(problem, &saved, d_sinks);
        let distances = problem.ahead() + keys;
        let partial = |wanted: bool| if wanted { vec![R::ZERO; batch * heads * distances] } else { Vec::new() };
        let (mut bias_sums, mut weight_sums) = (partial(d_bias.is_some()), partial(d_weight.is_some()));
        let strides = Strides { batch: heads * distances, head: distances, row: distances };
        let profiles = RelativeProfiles::new(problem, DistanceOrder::Descending);
        let (d_rows, d_profiles) =
            d_relative.map(|RelativeGradients { d_rows, d_profiles }| (d_rows, d_profiles)).unzip();
        let (mut profile_sums, profile_strides) = relative::partial_sums(problem, profiles.as_ref(), d_rows.is_some());
        let mut delta = vec![R::ZERO; batch * heads * queries];
        let of_rows = d_gate_cumsum.is_some() && problem.mask.sides() == Sides::TwoSided;
        let mut gate_rows = vec![0.0; if of_rows { batch * heads * queries } else { 0 }];
        let of_tokens = |tokens: usize| Strides { batch: heads * tokens, head: tokens, row: 1 };
        let call = TiledBackwardCall {
            lanes,
            problem,
            saved,
            d_q,
            d_k,
            d_v,
            d_bias: d_bias.is_some().then(|| ViewMut::new(&mut bias_sums, strides)),
            d_weight: d_weight.is_some().then(|| ViewMut::new(&mut weight_sums, strides)),
            bias: PaddedTable::bias(problem, DistanceOrder::Descending, QUERIES + KEYS),
            weight: PaddedTable::weight(problem, DistanceOrder::Descending, QUERIES + KEYS),
            turns: Turns::new(batch * heads * blocks, |sum| {
                key_blocks(problem, sum / blocks / heads, sum % blocks).start
            }),
            table_turns: Turns::new(batch * heads, |_| 0),
            gate_rows: of_rows.then(|| ViewMut::new(&mut gate_rows, of_tokens(queries))),
            d_gate_cumsum: None,
            delta: &[],
            feature_decay: FeatureDecay::new(problem, QUERIES.max(KEYS)),
            d_rows: relative::cleared(problem, d_rows),
            d_profiles: d_profiles.is_some().then(|| ViewMut::new(&mut profile_sums, profile_strides)),
            relative: profiles,
        };
        call.prepare(&mut delta);
        if let Some(d_gate_cumsum) = &mut d_gate_cumsum {
            d_gate_cumsum.fill(0.0);
            gate_cumsum::add_sinks(problem, &saved, &delta, d_gate_cumsum);
        }
        let d_gate_cumsum_view =
            d_gate_cumsum.as_deref_mut().map(|d_gate_cumsum| ViewMut::new(d_gate_cumsum, of_tokens(keys)));
        let call = TiledBackwardCall { delta: &delta, d_gate_cumsum: d_gate_cumsum_view, ..call };
        let schedule = BlockSchedule::new(batch * kv_heads, keys.div_ceil(KEYS));
        let scratch = || TiledBackwardScratch::new::<L>(&call);
        workers::for_each(batch * kv_heads * keys.div_ceil(KEYS), scratch, |scratch, item| {
            let _guards = (call.turns.guard(), call.table_turns.guard());
            let (unit, block) = schedule.item(item);
            call.key_block(scratch, unit / kv_heads, unit % kv_heads, block);
        });
        for (table, sums) in [(d_bias, bias_sums), (d_weight, weight_sums)] {
            if let Some(table) = table {
                add_batches(problem, &sums, table);
            }
        }
        if let Some(d_gate_cumsum) = d_gate_cumsum {
            gate_cumsum::add_rows(problem, &gate_rows, d_gate_cumsum);
        }
        if let Some(d_profiles) = d_profiles {
            relative::add_units(problem, &profile_sums, d_profiles);
        }
    }
}

/// `table[h, d] = sum over b of sums[b, h, d]`, zero at distances that no query has to a key.
fn add_batches<R: Number>(problem: &AttentionProblem<R>, sums: &[R], table: &mut [R]) {
    let (AttentionDims { batch, heads, keys, .. }, ahead) = (problem.dims, problem.ahead());
    table.fill(R::ZERO);
    for unit in 0..batch * heads {
        let to = &mut table[problem.origin(problem.tables(), unit % heads) - ahead..][..ahead + keys];
        to.iter_mut().zip(&sums[unit * (ahead + keys)..]).for_each(|(to, &sum)| *to += sum);
    }
}

struct TiledBackwardCall<'a, L: Lanes> {
    lanes: L,
    problem: &'a AttentionProblem<'a, L::Number>,
    saved: AttentionSaved<'a, L::Number>,
    d_q: ViewMut<'a, L::Number>,
    d_k: ViewMut<'a, L::Number>,
    d_v: ViewMut<'a, L::Number>,
    /// By distance from `-ahead` on, as one row for each head of each sequence.
    d_bias: Option<ViewMut<'a, L::Number>>,
    d_weight: Option<ViewMut<'a, L::Number>>,
    d_gate_cumsum: Option<ViewMut<'a, f64>>,
    /// The part of it that rows bring in both directions, by query.
    gate_rows: Option<ViewMut<'a, f64>>,
    bias: PaddedTable<L::Number>,
    weight: Option<PaddedTable<L::Number>>,
    /// Of each block of queries: which block of keys may add to its `d_q`.
    turns: Turns,
    /// Of each head of each sequence: which block of keys may add to its tables.
    table_turns: Turns,
    /// `d_out.out`, the mean of `d_out.v` under the weights, `[B, H, Q]`.
    delta: &'a [L::Number],
    feature_decay: Option<FeatureDecay<'a, L::Number>>,
    relative: Option<RelativeProfiles<'a, L::Number>>,
    d_rows: Option<ViewMut<'a, L::Number>>,
    /// As one row for each head of each sequence.
    d_profiles: Option<ViewMut<'a, L::Number>>,
}

/// What one thread computes in. Widths are D rounded up to whole vectors.
struct TiledBackwardScratch<R> {
    /// `scale * k`, `[D, KEYS]` and `[KEYS, width]`
    keys_transposed: Vec<R>,
    keys: Vec<R>,
    /// `[D, KEYS]`
    values_transposed: Vec<R>,
    /// `[QUERIES, width]`
    q: Vec<R>,
    d_out: Vec<R>,
    d_q: Vec<R>,
    /// Scores, then weights, `[QUERIES, KEYS]`
    weights: Vec<R>,
    /// `d_out.v`, then the gradient of `scale * q.k`, `[QUERIES, KEYS]`
    d_scores: Vec<R>,
    /// `[KEYS, width]`
    d_k: Vec<R>,
    d_v: Vec<R>,
    d_bias: Option<DiagonalSums<R>>,
    d_weight: Option<DiagonalSums<R>>,
    /// Cumulative gates of the queries and of the keys.
    gate_cumsum: [GateOffsets<R>; 2],
    gate_sums: Option<GateGradientSums<R>>,
    /// Those of the keys, of a head so far, `[KEYS]`.
    gate_columns: Vec<f64>,
    relative: Option<RelativeBackward<R>>,
    width: usize,
}

impl<R: Number> TiledBackwardScratch<R> {
    fn new<L: Lanes<Number = R>>(call: &TiledBackwardCall<L>) -> Self {
        let problem = call.problem;
        let (head_dim, queries) = (problem.dims.head_dim, most_queries(problem));
        let has_gates = problem.tables().gate_cumsum.is_some();
        let width = head_dim.next_multiple_of(L::COUNT);
        let unset = |n| workers::scratch(n);
        let sums = |wanted: bool| wanted.then(|| DiagonalSums::new(L::COUNT, queries));
        TiledBackwardScratch {
            keys_transposed: unset(head_dim * KEYS),
            keys: unset(KEYS * width),
            values_transposed: unset(head_dim * KEYS),
            q: unset(QUERIES * width),
            d_out: unset(QUERIES * width),
            d_q: unset(QUERIES * width),
            weights: unset(QUERIES * KEYS),
            d_scores: unset(QUERIES * KEYS),
            d_k: unset(KEYS * width),
            d_v: unset(KEYS * width),
            d_bias: sums(call.d_bias.is_some()),
            d_weight: sums(call.d_weight.is_some()),
            gate_cumsum: [QUERIES, KEYS].map(|tokens| GateOffsets::new(tokens, has_gates)),
            gate_sums: call.d_gate_cumsum.is_some().then(|| GateGradientSums::new(problem.mask.sides())),
            gate_columns: vec![0.0; KEYS],
            relative: call.relative.as_ref().map(|profiles| RelativeBackward::new(profiles, call.d_rows.is_some())),
            width,
        }
    }
}

impl<'a, L: Lanes> TiledBackwardCall<'a, L> {
    /// Computes `delta`, and clears `d_q` where no key is seen.
    fn prepare(&self, delta: &mut [L::Number]) {
        let AttentionDims { batch, heads, queries, head_dim, .. } = self.problem.dims;
        let delta = ViewMut::new(delta, Strides { batch: heads * queries, head: queries, row: 1 });
        let blocks = queries.div_ceil(QUERIES);
        workers::for_each(
            batch * heads * blocks,
            || (),
            |(), item| {
                let (unit, block) = (item / blocks, item % blocks);
                let (b, h, first) = (unit / heads, unit % heads, block * QUERIES);
                // SAFETY: `delta` is `[B, H, Q]` and this item alone writes these queries.
                let delta = unsafe { delta.row(b, h, first, QUERIES.min(queries - first)) };
                for (i, delta_i) in delta.iter_mut().enumerate() {
                    let row = |view: View<'a, L::Number>| view.row(b, h, first + i, head_dim);
                    let (q, k) = (row(self.saved.d_out), row(self.saved.out));
                    self.lanes.run(Dots { q, k, stride: 0, to: std::slice::from_mut(delta_i) });
                    if key_blocks(self.problem, b, block).is_empty() {
                        // SAFETY: `d_q` is checked, and this item alone writes this row now.
                        unsafe { self.d_q.row(b, h, first + i, head_dim) }.fill(L::Number::ZERO);
                    }
                }
            },
        );
    }

    fn key_block(&self, scratch: &mut TiledBackwardScratch<L::Number>, batch: usize, kv_head: usize, block: usize) {
        let AttentionDims { heads, kv_heads, queries, keys, .. } = self.problem.dims;
        let first_key = block * KEYS;
        let stored = (keys - first_key).min(KEYS);
        let keys = self.problem.length(batch).saturating_sub(first_key).min(KEYS); // without padding
        self.load_keys(scratch, batch, kv_head, first_key, keys);
        scratch.d_k.fill(L::Number::ZERO);
        scratch.d_v.fill(L::Number::ZERO);
        let group = heads / kv_heads;
        let query_blocks = query_blocks(self.problem, block);
        for head in kv_head * group..(kv_head + 1) * group {
            for sums in [&mut scratch.d_bias, &mut scratch.d_weight].into_iter().flatten() {
                sums.begin(query_blocks.start * QUERIES);
            }
            let gate_cumsum = self.problem.gate_cumsum(batch, head).map(|gate_cumsum| &gate_cumsum[first_key..]);
            if let Some(gate_cumsum) = gate_cumsum {
                scratch.gate_cumsum[1].load(&gate_cumsum[..keys], gate_cumsum[0]);
            }
            for query_block in query_blocks.clone() {
                let key_blocks = key_blocks(self.problem, batch, query_block);
                if !key_blocks.contains(&block) {
                    continue;
                }
                let first_query = query_block * QUERIES;
                let distance = self.problem.dims.position(first_query) - first_key as isize;
                let queries = (queries - first_query).min(QUERIES);
                let ahead = self.problem.ahead();
                let tile = KeyTile { batch, head, first_query, queries, keys, distance, ahead };
                if let Some(gate_cumsum) = gate_cumsum {
                    let all = self.problem.gate_cumsum(batch, head).expect("cumulative gates were given");
                    let own = self.problem.dims.position(first_query).cast_unsigned();
                    scratch.gate_cumsum[0].load(&all[own..][..queries], gate_cumsum[0]);
                }
                self.tile(scratch, &tile);
                let sum = (batch * heads + head) * self.problem.dims.queries.div_ceil(QUERIES) + query_block;
                self.turns.take(sum, block, || self.add_d_q(scratch, &tile, block == key_blocks.start));
            }
            self.add_tables(scratch, batch, head, block);
            self.add_gate_columns(scratch, batch, head, first_key, stored);
        }
        self.store_keys(scratch, batch, kv_head, first_key, stored);
    }

    fn load_keys(
        &self,
        scratch: &mut TiledBackwardScratch<L::Number>,
        batch: usize,
        kv_head: usize,
        first_key: usize,
        keys: usize,
    ) {
        let head_dim = self.problem.dims.head_dim;
        let (k, v) = (&self.saved.k, &self.saved.v);
        for (view, factor, to) in
            [(k, self.problem.scale, &mut scratch.keys_transposed), (v, L::Number::ONE, &mut scratch.values_transposed)]
        {
            let from = view.rows_from(batch, kv_head, first_key);
            self.lanes.run(Transpose { from, stride: view.strides.row, rows: keys, head_dim, factor, to, width: KEYS });
        }
        self.lanes.run(CopyRows {
            from: k.rows_from(batch, kv_head, first_key),
            stride: k.strides.row,
            rows: keys,
            head_dim,
            factor: self.problem.scale,
            to: &mut scratch.keys,
            width: scratch.width,
        });
        if let Some(feature_decay) = &self.feature_decay {
            self.lanes.run(feature_decay.keys(&mut scratch.keys, scratch.width, keys));
            let (from, stride, to) = (&scratch.keys[..], scratch.width, &mut scratch.keys_transposed[..]);
            let factor = L::Number::ONE;
            self.lanes.run(Transpose { from, stride, rows: keys, head_dim, factor, to, width: KEYS });
        }
    }

    fn store_keys(
        &self,
        scratch: &mut TiledBackwardScratch<L::Number>,
        batch: usize,
        kv_head: usize,
        first_key: usize,
        keys: usize,
    ) {
        if let Some(feature_decay) = &self.feature_decay {
            let keys = self.problem.length(batch).saturating_sub(first_key).min(keys);
            self.lanes.run(feature_decay.keys(&mut scratch.d_k, scratch.width, keys));
        }
        for (view, from, factor) in
            [(&self.d_k, &scratch.d_k, self.problem.scale), (&self.d_v, &scratch.d_v, L::Number::ONE)]
        {
            for key in 0..keys {
                // SAFETY: the views are checked, and this item alone writes these keys.
                let to = unsafe { view.row(batch, kv_head, first_key + key, self.problem.dims.head_dim) };
                self.lanes.run(ScaleRow { to, factor, from: &from[key * scratch.width..] });
            }
        }
    }

    /// Subtracts what the keys of a block are seen, and begins anew.
    fn add_gate_columns(
        &self,
        scratch: &mut TiledBackwardScratch<L::Number>,
        batch: usize,
        head: usize,
        first_key: usize,
        keys: usize,
    ) {
        let Some(d_gate_cumsum) = &self.d_gate_cumsum else { return };
        // SAFETY: the view is `[B, H, K]`, and this item alone writes these keys of it.
        let to = unsafe { d_gate_cumsum.row(batch, head, first_key, keys) };
        to.iter_mut().zip(&scratch.gate_columns).for_each(|(to, column)| *to -= column);
        scratch.gate_columns.fill(0.0);
    }

    fn add_d_q(&self, scratch: &TiledBackwardScratch<L::Number>, tile: &KeyTile, is_first: bool) {
        if let (Some(rows), Some(sums)) = (&self.gate_rows, &scratch.gate_sums) {
            // SAFETY: the view is `[B, H, Q]`, and it is this item's turn to write these queries.
            let to = unsafe { rows.row(tile.batch, tile.head, tile.first_query, tile.queries) };
            to.iter_mut().zip(&sums.rows).for_each(|(to, row)| *to += row.to_f64());
        }
        if let (Some(profiles), Some(from), Some(d_rows)) = (&self.relative, &scratch.relative, &self.d_rows) {
            from.add_d_rows(self.lanes, profiles, tile, d_rows);
        }
        for query in 0..tile.queries {
            // SAFETY: the view is checked, and it is this item's turn to write these queries.
            let to =
                unsafe { self.d_q.row(tile.batch, tile.head, tile.first_query + query, self.problem.dims.head_dim) };
            let from = &scratch.d_q[query * scratch.width..];
            if is_first {
                to.copy_from_slice(&from[..to.len()]);
            } else {
                self.lanes.run(AddRow { to, from });
            }
        }
    }

    fn add_tables(&self, scratch: &mut TiledBackwardScratch<L::Number>, batch: usize, head: usize, block: usize) {
        let AttentionDims { heads, keys, .. } = self.problem.dims;
        let ahead = self.problem.ahead();
        let origin = self.problem.dims.position(0) + ahead as isize - (block * KEYS) as isize;
        self.table_turns.take(batch * heads + head, block, || {
            for (sums, table) in [(&mut scratch.d_bias, &self.d_bias), (&mut scratch.d_weight, &self.d_weight)] {
                if let (Some(sums), Some(table)) = (sums, table) {
                    // SAFETY: the row is this head's, and it is this item's turn to write it.
                    let row = unsafe { table.row(batch, head, 0, ahead + keys) };
                    sums.move_into(row, origin);
                }
            }
            if let (Some(sums), Some(to)) = (&mut scratch.relative, &self.d_profiles) {
                sums.move_into(self.lanes, to, batch, head);
            }
        });
    }

    fn tile(&self, scratch: &mut TiledBackwardScratch<L::Number>, tile: &KeyTile) {
        let head_dim = self.problem.dims.head_dim;
        for (view, to) in [(&self.saved.q, &mut scratch.q), (&self.saved.d_out, &mut scratch.d_out)] {
            let from = view.rows_from(tile.batch, tile.head, tile.first_query);
            let (stride, rows, width) = (view.strides.row, tile.queries, scratch.width);
            self.lanes.run(CopyRows { from, stride, rows, head_dim, factor: L::Number::ONE, to, width });
        }
        let decayed = self
            .feature_decay
            .as_ref()
            .map(|feature_decay| (feature_decay, feature_decay.over(tile.distance + 1 - tile.keys as isize)));
        if let Some((feature_decay, over)) = &decayed {
            self.lanes.run(feature_decay.queries(&mut scratch.q, scratch.width, tile.queries, over));
        }
        let crosses = tile.lanes_seen_by(0, L::COUNT) < tile.keys;
        let strip = if crosses { STRIP } else { tile.queries };
        for query in (0..tile.queries).step_by(strip) {
            self.scores(scratch, query, strip.min(tile.queries - query), tile.lanes_seen_by(query, L::COUNT));
        }
        let at = (tile.batch * self.problem.dims.heads + tile.head) * self.problem.dims.queries + tile.first_query;
        if let Some(cap) = self.problem.softcap {
            softcap::apply(&mut scratch.weights[..tile.queries * KEYS], cap);
        }
        let is_whole = tile.is_whole(self.problem.mask.window());
        let mut bias =
            (self.problem.tables().bias.is_some() || !is_whole).then(|| self.bias.at(tile.head, tile.distance));
        let profiles = self.relative.as_ref().filter(|profiles| profiles.reaches(tile.distance, tile.keys));
        let mut relative = profiles.zip(scratch.relative.as_mut());
        let mut d_relative = None;
        if let Some((profiles, scratch)) = &mut relative {
            scratch.load(self.lanes, profiles, tile);
            let (table, gradient) = scratch.scores(self.lanes, profiles, tile, bias);
            (bias, d_relative) = (Some(table), gradient);
        }
        self.lanes.run(TileScoreGradient {
            tile: *tile,
            weights: &mut scratch.weights,
            d_scores: &mut scratch.d_scores,
            bias,
            weight: self.weight.as_ref().map(|weight| weight.at(tile.head, tile.distance)),
            softcap: self.problem.softcap,
            lse: &self.saved.lse[at..][..tile.queries],
            delta: &self.delta[at..][..tile.queries],
            d_bias: scratch.d_bias.as_mut(),
            d_weight: scratch.d_weight.as_mut(),
            gate_cumsum: self.problem.tables().gate_cumsum.map(|_| {
                let [queries, keys] = &scratch.gate_cumsum;
                TileGates { queries, keys, sides: self.problem.mask.sides() }
            }),
            d_gate_cumsum: scratch.gate_sums.as_mut(),
            d_relative,
        });
        if let Some((profiles, scratch)) = &mut relative {
            scratch.backward(self.lanes, profiles, tile);
        }
        if let Some(sums) = &mut scratch.gate_sums {
            sums.move_columns(&mut scratch.gate_columns[..tile.keys]);
        }
        for query in (0..tile.queries).step_by(strip) {
            let keys = tile.lanes_seen_by(query, L::COUNT).min(tile.keys);
            self.d_q(scratch, query, strip.min(tile.queries - query), keys);
        }
        if let Some((feature_decay, over)) = &decayed {
            self.lanes.run(feature_decay.queries(&mut scratch.d_q, scratch.width, tile.queries, over));
        }
        let group = if crosses { L::COUNT } else { tile.keys };
        for key in (0..tile.keys).step_by(group) {
            self.d_k_and_d_v(scratch, tile, key, group.min(tile.keys - key));
        }
    }

    /// `weights = q (scale k)^T` and `d_scores = d_out v^T` for some queries and the first `columns` keys.
    fn scores(&self, scratch: &mut TiledBackwardScratch<L::Number>, query: usize, queries: usize, columns: usize) {
        let width = scratch.width;
        for (rows, transposed, to) in [
            (&scratch.q, &scratch.keys_transposed, &mut scratch.weights),
            (&scratch.d_out, &scratch.values_transposed, &mut scratch.d_scores),
        ] {
            self.lanes.run(SmallGemm {
                rows: queries,
                inner: self.problem.dims.head_dim,
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
        let (width, query) = (scratch.width, tile.first_query_of(key));
        if query == tile.queries {
            return;
        }
        for (columns, rows, to) in
            [(&scratch.d_scores, &scratch.q, &mut scratch.d_k), (&scratch.weights, &scratch.d_out, &mut scratch.d_v)]
        {
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
