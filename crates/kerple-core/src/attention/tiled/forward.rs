//! Scores with queries as lanes, so that every step of the softmax is vertical: no sums across a
//! vector.
//!
//! # Why an online softmax over tiles, and where the mask is
//!
//! The softmax of a row needs its largest score and its sum before the first weight is known. A
//! first pass for both would compute every score twice; storing the scores would be quadratic in
//! the length. The online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) keeps a running
//! maximum and sum per query instead, and multiplies the output so far by `exp(old - new)` when a
//! tile raises the maximum. The product with the values applies that factor as it stores
//! (`StoreMode::Rescale`), so rescaling is not a pass of its own. The mask has no code in the inner
//! loop: the padded table holds minus infinity at every distance that the mask hides, and tiles
//! without hidden pairs and without a bias do not read it. Strips of keys that no query of a
//! vector sees are skipped, and so are tiles whose weights are 0 (`pruning`).

mod decays;
mod softmax;

use self::decays::ForwardDecays;
use self::softmax::{ColumnLogits, OnlineSoftmax};
use super::decode::SplitKvDecode;
use super::feature_decay::FeatureDecay;
use super::gate_cumsum::{GateOffsets, TileGates};
use super::interval_mask::{IntervalMask, TileVisibility, add_stray_row, take_stray_rows};
use super::normalizer::{TileWeights, softpick_eps};
use super::position_kernel::{HeadKernel, KernelScores, PositionTile};
use super::pruning::Pruning;
use super::relative::{RelativeProfiles, RelativeScores};
use super::table::{DistanceOrder, PaddedTable, TileTable};
use crate::Number;
use crate::attention::dropout::{DropoutFactors, DropoutTile};
use crate::attention::segments::{SegmentBlock, SegmentBlocks};
use crate::attention::{AttentionDims, AttentionProblem, DocumentSegment, Strides, View, ViewMut, softcap};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::Normalizer;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{AddScaledRow, CopyRows, ScaleRow, Transpose};
use crate::tiles::workers;
use std::ops::Range;

/// Queries of one item of work.
pub(super) const QUERIES: usize = 96;
/// Keys of one tile.
pub(super) const KEYS: usize = 96;
/// Where the diagonal crosses a tile, keys are skipped in strips of this many.
const STRIP: usize = 12;

/// One call.
pub(super) struct TiledForward<'a, R> {
    pub(super) problem: AttentionProblem<'a, R>,
    pub(super) q: View<'a, R>,
    pub(super) k: View<'a, R>,
    pub(super) v: View<'a, R>,
    pub(super) out: ViewMut<'a, R>,
    /// `[B, H, Q]`
    pub(super) lse: ViewMut<'a, R>,
}

impl<R: Number> SimdKernel<R> for TiledForward<'_, R> {
    type Output = ();

    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        // a segment of one query is computed as a call of one query is
        if self.problem.dims.queries == 1 {
            return SplitKvDecode(self).run(lanes);
        }
        let (problem, largest) = (&self.problem, self.problem.largest());
        let tables = ForwardTables {
            bias: PaddedTable::bias(&largest, DistanceOrder::Ascending, QUERIES + KEYS),
            weight: PaddedTable::weight(&largest, DistanceOrder::Ascending, QUERIES + KEYS),
            feature_decay: FeatureDecay::new(&largest, QUERIES.max(KEYS)),
            kernels: HeadKernel::all(problem),
            relative: RelativeProfiles::new(&largest, DistanceOrder::Ascending),
            pruning: Pruning::new(lanes, problem, [self.k, self.v]),
        };
        let scratch = || TiledForwardScratch::new::<L>(problem, &tables);
        let count = |queries: usize| if queries == 1 { 0 } else { queries.div_ceil(QUERIES) };
        let blocks = SegmentBlocks::new(problem, problem.dims.heads, |segment| count(segment.queries));
        workers::for_each(blocks.items(), scratch, |scratch, item| {
            let SegmentBlock { segment, head, block } = blocks.independent(item);
            let call = TiledForwardCall { lanes, tables: &tables, number: segment, of: self.alone(segment) };
            call.query_block(scratch, head, block * QUERIES);
        });
        if problem.documents.is_some() {
            SplitKvDecode(self).run(lanes);
        }
    }
}

impl<'a, R: Number> TiledForward<'a, R> {
    pub(super) fn new(
        problem: &'a AttentionProblem<'a, R>,
        [q, k, v]: [View<'a, R>; 3],
        out: ViewMut<'a, R>,
        lse: &'a mut [R],
    ) -> Self {
        let AttentionDims { heads, queries, .. } = problem.dims;
        let lse = ViewMut::new(lse, Strides { batch: heads * queries, head: queries, row: 1 });
        TiledForward { problem: *problem, q, k, v, out, lse }
    }

    /// Adds the remainder's share of the value of a query's own key to its output, of a call of one segment.
    pub(super) fn add_remainder<L: Lanes<Number = R>>(
        &self,
        lanes: L,
        [head, query]: [usize; 2],
        factor: R,
        to: &mut [R],
    ) {
        let AttentionDims { heads, kv_heads, value_dim, .. } = self.problem.dims;
        let Some(key) = self.problem.remainder_key(query) else { return };
        let from = self.v.row(0, head / (heads / kv_heads), key, value_dim);
        lanes.run(AddScaledRow { to, factor, from });
    }

    /// The call of one segment.
    pub(super) fn alone(&self, segment: usize) -> TiledForward<'_, R> {
        let DocumentSegment { row, first_query, first_key, .. } = self.problem.segment(segment);
        TiledForward {
            problem: self.problem.alone(segment),
            q: self.q.starting_at(row, first_query),
            k: self.k.starting_at(row, first_key),
            v: self.v.starting_at(row, first_key),
            out: self.out.starting_at(row, first_query),
            lse: self.lse.starting_at(row, first_query),
        }
    }
}

/// What all segments share: made for the longest of them.
struct ForwardTables<'a, R> {
    bias: PaddedTable<R>,
    weight: Option<PaddedTable<R>>,
    feature_decay: Option<FeatureDecay<'a, R>>,
    /// Of learned positions, by head.
    kernels: Vec<HeadKernel<R>>,
    relative: Option<RelativeProfiles<R>>,
    pruning: Option<Pruning<'a, R>>,
}

/// One segment.
struct TiledForwardCall<'a, L: Lanes> {
    lanes: L,
    tables: &'a ForwardTables<'a, L::Number>,
    number: usize,
    of: TiledForward<'a, L::Number>,
}

/// What one thread computes in. `transposed` means that queries are the columns: lanes are queries.
struct TiledForwardScratch<R> {
    /// `scale * q`, `[D, QUERIES]`
    q_transposed: Vec<R>,
    /// The same with the decays of a tile, `[D, QUERIES]`; empty without any.
    q_decayed_transposed: Vec<R>,
    /// The keys of a tile with their decays, `[KEYS, width]`; empty without any.
    k_decayed: Vec<R>,
    decays: Option<ForwardDecays<R>>,
    /// Cumulative gates of the queries and of the keys.
    gate_cumsum: [GateOffsets<R>; 2],
    positions: Option<PositionTile<R>>,
    /// Rows of the relative bias, `[R, QUERIES]`; empty without one.
    relative_transposed: Vec<R>,
    /// What a tile within its reach adds to scores, `[KEYS, QUERIES]`; empty without one.
    relative: Vec<R>,
    /// `[KEYS, value_width]`
    v: Vec<R>,
    /// Scores, then their exponentials, `[KEYS, QUERIES]`
    scores_transposed: Vec<R>,
    /// Sum of exponentials times values so far, `[QUERIES, value_width]`
    out: Vec<R>,
    /// Of each query so far.
    row_max: Vec<R>,
    row_sum: Vec<R>,
    /// The factor of earlier sums after the last tile.
    rescale: Vec<R>,
    /// Where queries have intervals of keys, or see first tokens.
    mask: Option<IntervalMask<R>>,
    /// `[KEYS, QUERIES]`
    dropout: Option<DropoutFactors<R>>,
    /// D rounded up to whole vectors.
    width: usize,
    /// E rounded up to whole vectors.
    value_width: usize,
}

impl<R: Number> TiledForwardScratch<R> {
    fn new<L: Lanes>(problem: &AttentionProblem<R>, tables: &ForwardTables<R>) -> Self {
        let by_content = problem.tables().decay_cumsum.is_some();
        let decayed = tables.feature_decay.is_some() || by_content;
        let (head_dim, has_gates) = (problem.dims.head_dim, problem.tables().gate_cumsum.is_some());
        let [width, value_width] = [head_dim, problem.dims.value_dim].map(|dim| dim.next_multiple_of(L::COUNT));
        let rank = problem.relative().map_or(0, |relative| relative.rank);
        let unset = |n| workers::scratch(n);
        TiledForwardScratch {
            q_transposed: unset(head_dim * QUERIES),
            q_decayed_transposed: unset(if decayed { head_dim * QUERIES } else { 0 }),
            k_decayed: unset(if decayed { width * KEYS } else { 0 }),
            decays: by_content.then(|| ForwardDecays::new(head_dim, width)),
            gate_cumsum: [QUERIES, KEYS].map(|tokens| GateOffsets::new(tokens, has_gates)),
            positions: PositionTile::new(&tables.kernels, false),
            relative_transposed: unset(rank * QUERIES),
            relative: unset(if rank > 0 { KEYS * QUERIES } else { 0 }),
            v: unset(KEYS * value_width),
            scores_transposed: unset(KEYS * QUERIES),
            out: unset(QUERIES * value_width),
            row_max: unset(QUERIES),
            row_sum: unset(QUERIES),
            rescale: unset(QUERIES),
            mask: IntervalMask::new(problem),
            dropout: DropoutFactors::new(problem, KEYS * QUERIES),
            width,
            value_width,
        }
    }
}

/// Where one tile lies.
#[derive(Clone, Copy)]
pub(super) struct QueryTile {
    head: usize,
    kv_head: usize,
    first_query: usize,
    pub(super) queries: usize,
    first_key: usize,
    pub(super) keys: usize,
    /// Distance between the first query and the first key.
    pub(super) distance: isize,
    /// Keys after its own position that a query sees.
    ahead: usize,
    /// Whether a query sees its own key.
    sees_own: bool,
}

impl QueryTile {
    /// Keys of the tile that the lanes of `group` have to look at.
    pub(super) fn keys_seen_by(&self, group: usize, lanes: usize) -> usize {
        let last = self.distance + (((group + 1) * lanes).min(self.queries) + self.ahead) as isize;
        (last.max(0) as usize).next_multiple_of(STRIP).min(self.keys)
    }

    /// Lanes of queries that do not have to look at a strip of keys, since they are before it.
    fn lanes_before(&self, first_key: usize, lanes: usize) -> usize {
        (first_key as isize - self.distance - self.ahead as isize).max(0) as usize / lanes * lanes
    }

    fn is_whole(&self, furthest: Option<usize>) -> bool {
        self.distance + (self.ahead as isize) + isize::from(self.sees_own) >= self.keys as isize
            && furthest.is_none_or(|furthest| self.distance + (self.queries as isize) <= furthest as isize)
    }
}

impl<L: Lanes> TiledForwardCall<'_, L> {
    fn query_block(&self, scratch: &mut TiledForwardScratch<L::Number>, head: usize, first_query: usize) {
        let AttentionDims { heads, kv_heads, head_dim, .. } = self.of.problem.dims;
        let queries = (self.of.problem.dims.queries - first_query).min(QUERIES);
        let sink_tokens = self.of.problem.sink_tokens_before(first_query..first_query + queries);
        let mut seen = self.of.problem.hull(first_query..first_query + queries);
        if let Some(pruning) = &self.tables.pruning {
            let (queries, rows) = (first_query..first_query + queries, [self.of.q, self.of.k]);
            let bounds = pruning.forward_bounds(self.lanes, &self.of.problem, head, queries, rows);
            seen.start = pruning.first_key([self.number, head], &self.of.problem, &bounds, seen.clone());
        }
        if let Some(mask) = &mut scratch.mask {
            mask.begin(&self.of.problem, first_query..first_query + queries);
        }
        self.lanes.run(Transpose {
            from: self.of.q.rows_from(0, head, first_query),
            stride: self.of.q.strides.row,
            rows: queries,
            head_dim,
            factor: self.of.problem.scale,
            to: &mut scratch.q_transposed,
            width: QUERIES,
        });
        if let Some(feature_decay) = &self.tables.feature_decay {
            self.lanes.run(feature_decay.columns(&mut scratch.q_transposed, QUERIES, queries));
        }
        if let Some(relative) = self.of.problem.relative() {
            let (from, stride) = (relative.rows.rows_from(0, head, first_query), relative.rows.strides.row);
            let (rows, head_dim, to) = (queries, relative.rank, &mut scratch.relative_transposed[..]);
            let factor = L::Number::ONE;
            self.lanes.run(Transpose { from, stride, rows, head_dim, factor, to, width: QUERIES });
        }
        let gate_cumsum = self.of.problem.gate_cumsum(0, head);
        let own = self.of.problem.dims.position(first_query).max(0) as usize;
        self.load_decayed_queries(scratch, head, first_query, own..own + queries);
        if let Some(gate_cumsum) = gate_cumsum {
            scratch.gate_cumsum[0].load(&gate_cumsum[own..][..queries], gate_cumsum[own]);
        }
        let positions = self.of.problem.positions(0, head);
        if let (Some(x), Some(tile)) = (positions, &mut scratch.positions) {
            tile.offsets[0].load(&x[own..][..queries], x[own]);
        }
        let [row_max, row_sum] = self.of.problem.beginning(head);
        scratch.row_max.fill(row_max);
        scratch.row_sum.fill(row_sum);
        let from_right = self.of.problem.stick_breaking().is_some();
        if from_right || seen.is_empty() && sink_tokens == 0 {
            scratch.out.fill(L::Number::ZERO); // there is no tile that would, or queries may see nothing of the first
        }
        // keys between the first tokens and the windows of these queries are skipped
        let of_range = |keys: Range<usize>| keys.clone().step_by(KEYS).map(move |first| (first, keys.end));
        let mut tiles: Vec<(usize, usize)> = of_range(0..sink_tokens).chain(of_range(seen)).collect();
        if from_right {
            tiles.reverse();
        }
        let mut is_first = !from_right;
        for (first_key, end) in tiles {
            let tile = QueryTile {
                head,
                kv_head: head / (heads / kv_heads),
                first_query,
                queries,
                first_key,
                keys: (end - first_key).min(KEYS),
                distance: self.of.problem.distance(first_query, first_key),
                ahead: self.of.problem.ahead(),
                sees_own: self.of.problem.normalizer.attends_to_own(),
            };
            let visibility = match &mut scratch.mask {
                Some(mask) => mask.load(first_key..first_key + tile.keys),
                None => TileVisibility::Everything,
            };
            if visibility == TileVisibility::Nothing {
                continue;
            }
            if let Some(gate_cumsum) = gate_cumsum {
                scratch.gate_cumsum[1].load(&gate_cumsum[first_key..][..tile.keys], gate_cumsum[own]);
            }
            if let (Some(x), Some(of_tile)) = (positions, &mut scratch.positions) {
                of_tile.offsets[1].load(&x[first_key..][..tile.keys], x[own]);
            }
            self.tile(scratch, &tile, visibility, is_first);
            is_first = false;
            if from_right && scratch.row_sum[..queries].iter().all(|left| *left == L::Number::ZERO) {
                break; // weights of keys further to the left are 0
            }
        }
        self.finish(scratch, head, first_query, queries);
    }

    fn tile(
        &self,
        scratch: &mut TiledForwardScratch<L::Number>,
        tile: &QueryTile,
        visibility: TileVisibility,
        is_first: bool,
    ) {
        self.decay_features(scratch, tile);
        let crosses = self.lanes_crossed(tile);
        let strip = if crosses { STRIP } else { tile.keys };
        for from in (0..tile.keys).step_by(strip) {
            let skipped = tile.lanes_before(from, L::COUNT);
            self.scores(scratch, tile, from, strip.min(tile.keys - from), if crosses { skipped } else { 0 });
        }
        self.add_steep(scratch, tile);
        if let Some(cap) = self.of.problem.softcap {
            softcap::apply(&mut scratch.scores_transposed[..tile.keys * QUERIES], cap);
        }
        let is_whole = tile.is_whole(self.of.problem.mask.furthest());
        let mut bias = (self.of.problem.tables().bias.is_some() || !is_whole)
            .then(|| self.tables.bias.at(tile.head, tile.distance));
        let relative = self.tables.relative.as_ref();
        if let Some(relative) = relative.filter(|relative| relative.reaches(tile.distance, tile.keys)) {
            let (rows, to) = (&scratch.relative_transposed, &mut scratch.relative[..]);
            self.lanes.run(RelativeScores { tile: *tile, profiles: relative, rows, bias, to });
            bias = Some(TileTable { values: &scratch.relative, origin: 0, step: QUERIES as isize });
        }
        if let Some(of_tile) = &mut scratch.positions {
            let end = tile.queries.next_multiple_of(L::COUNT);
            let columns =
                |key: usize| if crosses { tile.lanes_before(key / STRIP * STRIP, L::COUNT)..end } else { 0..end };
            let kernel = &self.tables.kernels[tile.head];
            self.lanes.run(KernelScores { kernel, tile: of_tile, row_side: 1, rows: tile.keys, columns, bias });
            bias = Some(of_tile.table());
        }
        if let (TileVisibility::Part, Some(mask)) = (visibility, &mut scratch.mask) {
            let sizes = [tile.keys, tile.queries.next_multiple_of(L::COUNT)];
            bias = Some(mask.hide_columns(sizes, &mut scratch.scores_transposed, bias));
        }
        let logits = ColumnLogits {
            tile: *tile,
            scores: &mut scratch.scores_transposed,
            bias,
            weight: self.tables.weight.as_ref().map(|weight| weight.at(tile.head, tile.distance)),
            gate_cumsum: self.of.problem.tables().gate_cumsum.map(|_| {
                let [queries, keys] = &scratch.gate_cumsum;
                TileGates { queries, keys, sides: self.of.problem.mask.sides() }
            }),
        };
        let (row_max, row_sum) = (&mut scratch.row_max[..], &mut scratch.row_sum[..]);
        let rescale = &mut scratch.rescale[..];
        let normalizer = self.of.problem.normalizer;
        if normalizer.is_softmax() {
            self.lanes.run(OnlineSoftmax { logits, row_max, row_sum, rescale });
        } else {
            self.lanes.run(logits);
            let logits = &mut scratch.scores_transposed[..];
            self.lanes.run(TileWeights { normalizer, tile: *tile, logits, row_max, row_sum, rescale });
        }
        if let Some(dropout) = &mut scratch.dropout {
            let QueryTile { head, first_query, queries, first_key, keys, .. } = *tile;
            let strides = [1, QUERIES];
            dropout.load(&self.of.problem, DropoutTile { head, first_query, queries, first_key, keys, strides });
            dropout.apply(&mut scratch.scores_transposed[..keys * QUERIES]);
        }
        self.lanes.run(CopyRows {
            from: self.of.v.rows_from(0, tile.kv_head, tile.first_key),
            stride: self.of.v.strides.row,
            rows: tile.keys,
            head_dim: self.of.problem.dims.value_dim,
            factor: L::Number::ONE,
            to: &mut scratch.v,
            width: scratch.value_width,
        });
        let strays = match visibility {
            TileVisibility::Part => take_stray_rows(&mut scratch.v, scratch.value_width, tile.keys),
            TileVisibility::Nothing | TileVisibility::Everything => Vec::new(),
        };
        let group = if crosses { L::COUNT } else { tile.queries };
        for from in (0..tile.queries).step_by(group) {
            let keys = if crosses { tile.keys_seen_by(from / L::COUNT, L::COUNT) } else { tile.keys };
            self.values(scratch, from, group.min(tile.queries - from), keys, is_first);
        }
        for ((key, row), mask) in strays.iter().flat_map(|stray| scratch.mask.as_ref().map(|mask| (stray, mask))) {
            for query in mask.seeing(*key) {
                let to = &mut scratch.out[query * scratch.value_width..][..scratch.value_width];
                add_stray_row(to, scratch.scores_transposed[key * QUERIES + query], row);
            }
        }
    }

    /// Whether some lanes see fewer keys of the tile than others.
    fn lanes_crossed(&self, tile: &QueryTile) -> bool {
        tile.keys_seen_by(0, L::COUNT) < tile.keys
    }

    /// Scores of `keys` keys from `from` on, for the queries from `skipped` on.
    fn scores(
        &self,
        scratch: &mut TiledForwardScratch<L::Number>,
        tile: &QueryTile,
        from: usize,
        keys: usize,
        skipped: usize,
    ) {
        let head_dim = self.of.problem.dims.head_dim;
        let (data, row_stride) = if scratch.k_decayed.is_empty() {
            (self.of.k.rows_from(0, tile.kv_head, tile.first_key + from), self.of.k.strides.row)
        } else {
            (&scratch.k_decayed[from * scratch.width..], scratch.width)
        };
        let is_crossed = scratch.decays.as_ref().is_some_and(ForwardDecays::is_crossed);
        let by_tile = self.tables.feature_decay.is_some() || is_crossed;
        let q = if by_tile { &scratch.q_decayed_transposed } else { &scratch.q_transposed };
        self.lanes.run(SmallGemm {
            rows: keys,
            inner: head_dim,
            columns: tile.queries.next_multiple_of(L::COUNT) - skipped,
            a: StridedMatrix::row_major(data, row_stride),
            b: &q[skipped..],
            b_stride: QUERIES,
            c: &mut scratch.scores_transposed[from * QUERIES + skipped..],
            c_stride: QUERIES,
            store: StoreMode::Overwrite,
        });
    }

    /// Adds the values of `keys` keys to `queries` queries from `from` on.
    fn values(
        &self,
        scratch: &mut TiledForwardScratch<L::Number>,
        from: usize,
        queries: usize,
        keys: usize,
        is_first: bool,
    ) {
        self.lanes.run(SmallGemm {
            rows: queries,
            inner: keys,
            columns: scratch.value_width,
            a: StridedMatrix::transposed(&scratch.scores_transposed[from..], QUERIES),
            b: &scratch.v,
            b_stride: scratch.value_width,
            c: &mut scratch.out[from * scratch.value_width..],
            c_stride: scratch.value_width,
            store: if is_first {
                StoreMode::Overwrite
            } else if self.of.problem.stick_breaking().is_some() {
                StoreMode::Accumulate
            } else {
                StoreMode::Rescale(&scratch.rescale[from..])
            },
        });
    }

    fn finish(&self, scratch: &mut TiledForwardScratch<L::Number>, head: usize, first_query: usize, queries: usize) {
        let (zero, one) = (L::Number::ZERO, L::Number::ONE);
        // SAFETY: `lse` is `[B, H, Q]` and this item alone writes these queries.
        let lse = unsafe { self.of.lse.row(0, head, first_query, queries) };
        for (i, lse) in lse.iter_mut().enumerate() {
            // SAFETY: `out` is checked, and this item alone writes this row.
            let out = unsafe { self.of.out.row(0, head, first_query + i, self.of.problem.dims.value_dim) };
            if self.of.problem.stick_breaking().is_some() {
                *lse = scratch.row_sum[i];
                self.lanes.run(ScaleRow { to: out, factor: one, from: &scratch.out[i * scratch.value_width..] });
                self.of.add_remainder(self.lanes, [head, first_query + i], *lse, out);
                continue;
            }
            if self.of.problem.normalizer == Normalizer::Softpick {
                scratch.row_sum[i] += softpick_eps();
            }
            if scratch.row_sum[i] == zero {
                out.fill(zero);
                *lse = L::Number::NEG_INFINITY;
                continue;
            }
            *lse = scratch.row_max[i] + scratch.row_sum[i].ln();
            let factor = one / scratch.row_sum[i];
            self.lanes.run(ScaleRow { to: out, factor, from: &scratch.out[i * scratch.value_width..] });
        }
    }
}
