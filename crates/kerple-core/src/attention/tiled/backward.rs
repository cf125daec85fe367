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

mod decay_cumsum;
mod gradient_scale;
mod segment;
mod visits;

use self::gradient_scale::GradientScales;
use self::segment::{TiledBackwardCall, TiledBackwardScratch};
use self::visits::TileVisits;
use super::blocks::key_blocks;
use super::decay_cumsum::add_queries;
use super::feature_decay::FeatureDecay;
use super::gate_cumsum;
use super::normalizer::RowCarry;
use super::position_kernel::{self, HeadKernel, PositionSums};
use super::relative::{self, RelativeProfiles};
use super::table::{DistanceOrder, PaddedTable};
use crate::Number;
use crate::attention::segments::{SegmentBlock, SegmentBlocks};
use crate::attention::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, DocumentSegment, PositionGradients,
    RelativeGradients, Strides, View, ViewMut, sinks,
};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::Sides;
use crate::tiles::rows::Dots;
use crate::tiles::workers::{self, Turns};

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
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = problem.dims;
        let AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod: _,
            d_sinks,
            mut d_gate_cumsum,
            d_decay_cumsum,
            mut d_positions,
            d_relative,
            d_path: _,
            d_householder: _,
        } = gradients;
        sinks::backward(problem, &saved, d_sinks);
        let distances = problem.offsets(|alone| heads * distances(alone));
        let partial = |wanted: bool| if wanted { vec![R::ZERO; distances[problem.segments()]] } else { Vec::new() };
        let (mut bias_sums, mut weight_sums) = (partial(d_bias.is_some()), partial(d_weight.is_some()));
        let (d_rows, d_profiles) =
            d_relative.map(|RelativeGradients { d_rows, d_profiles }| (d_rows, d_profiles)).unzip();
        let profile_offsets = relative::offsets(problem);
        let mut profile_sums =
            vec![R::ZERO; if d_profiles.is_some() { profile_offsets[problem.segments()] } else { 0 }];
        let mut delta = vec![R::ZERO; batch * heads * queries];
        let with_rows = problem.mask.sides() == Sides::TwoSided || !problem.normalizer.is_softmax();
        let of_rows = d_gate_cumsum.is_some() && with_rows;
        let from_last = problem.stick_breaking().is_some();
        let [mut left, mut rest, mut bound] =
            [(); 3].map(|()| vec![R::ZERO; if from_last { batch * heads * queries } else { 0 }]);
        let mut gate_rows = vec![0.0; if of_rows { batch * heads * queries } else { 0 }];
        let parameter_offsets = position_kernel::offsets(problem);
        let learns = |numbers: usize| vec![0.0; if d_positions.is_some() { numbers } else { 0 }];
        let mut parameter_sums = learns(parameter_offsets[problem.segments()]);
        let mut position_rows = learns(batch * heads * queries);
        let of_tokens = |tokens: usize| Strides { batch: heads * tokens, head: tokens, row: 1 };
        let flat = Strides { batch: 0, head: 0, row: 1 };
        let largest = problem.largest();
        let visits = TileVisits::new(lanes, problem, &saved);
        let all = TiledBackwardSegments {
            lanes,
            problem,
            saved,
            d_q,
            d_k,
            d_v,
            d_bias: d_bias.is_some().then(|| ViewMut::new(&mut bias_sums, flat)),
            d_weight: d_weight.is_some().then(|| ViewMut::new(&mut weight_sums, flat)),
            bias: PaddedTable::bias(&largest, DistanceOrder::Descending, QUERIES + KEYS),
            weight: PaddedTable::weight(&largest, DistanceOrder::Descending, QUERIES + KEYS),
            turns: Turns::from_first((0..problem.segments()).flat_map(|number| {
                let (alone, visits) = (problem.alone(number), &visits);
                (0..heads * alone.dims.queries.div_ceil(QUERIES))
                    .map(move |sum| if from_last { 0 } else { visits.key_blocks([number, sum], &alone).first_turn() })
            })),
            table_turns: Turns::new(problem.segments() * heads, |_| 0),
            distances: &distances,
            visits: &visits,
            with_rows,
            carry: from_last.then(|| {
                let strides = of_tokens(queries);
                RowCarry {
                    left: ViewMut::new(&mut left, strides),
                    rest: ViewMut::new(&mut rest, strides),
                    bound: ViewMut::new(&mut bound, strides),
                }
            }),
            gate_rows: of_rows.then(|| ViewMut::new(&mut gate_rows, of_tokens(queries))),
            d_gate_cumsum: None,
            d_decay_cumsum: d_decay_cumsum.map(|sums| {
                sums.fill(0.0);
                let head = keys * head_dim;
                ViewMut::new(sums, Strides { batch: heads * head, head, row: head_dim })
            }),
            kernels: HeadKernel::all(problem),
            positions: d_positions.as_mut().map(|PositionGradients { d_positions, .. }| {
                d_positions.fill(0.0);
                PositionSums {
                    columns: ViewMut::new(d_positions, of_tokens(keys)),
                    rows: ViewMut::new(&mut position_rows, of_tokens(queries)),
                    parameters: ViewMut::new(&mut parameter_sums, flat),
                    offsets: &parameter_offsets,
                }
            }),
            lse: View { data: saved.lse, strides: of_tokens(queries) },
            delta: View { data: &[], strides: of_tokens(queries) },
            feature_decay: FeatureDecay::new(&largest, QUERIES.max(KEYS)),
            d_rows: relative::cleared(problem, d_rows),
            d_profiles: d_profiles.is_some().then(|| ViewMut::new(&mut profile_sums, flat)),
            profile_offsets: &profile_offsets,
            relative: RelativeProfiles::new(&largest, DistanceOrder::Descending),
            scales: GradientScales::new(lanes, problem, saved.d_out),
        };
        all.prepare(&mut delta);
        let all = TiledBackwardSegments { delta: View { data: &delta, ..all.delta }, ..all };
        if let Some(d_gate_cumsum) = &mut d_gate_cumsum {
            d_gate_cumsum.fill(0.0);
            gate_cumsum::add_sinks(problem, all.lse, all.delta, d_gate_cumsum);
        }
        let d_gate_cumsum_view =
            d_gate_cumsum.as_deref_mut().map(|d_gate_cumsum| ViewMut::new(d_gate_cumsum, of_tokens(keys)));
        let all = TiledBackwardSegments { d_gate_cumsum: d_gate_cumsum_view, ..all };
        let blocks = SegmentBlocks::new(problem, kv_heads, |segment| segment.keys.div_ceil(KEYS));
        let scratch = || TiledBackwardScratch::new::<L>(&all, &largest);
        workers::for_each(blocks.items(), scratch, |scratch, item| {
            let _guards = (all.turns.guard(), all.table_turns.guard());
            let SegmentBlock { segment, head, block: turn } = blocks.consecutive(item);
            let last = problem.segment(segment).keys.div_ceil(KEYS) - 1;
            let block = if from_last { last - turn } else { turn };
            all.alone(segment).key_block(scratch, head, block);
        });
        if let Some(d_decay_cumsum) = &all.d_decay_cumsum {
            add_queries(problem, saved.q, &all.d_q, d_decay_cumsum);
        }
        for (table, sums) in [(d_bias, bias_sums), (d_weight, weight_sums)] {
            if let Some(table) = table {
                add_segments(problem, &distances, &sums, table);
            }
        }
        if let Some(d_gate_cumsum) = d_gate_cumsum {
            gate_cumsum::add_rows(problem, &gate_rows, d_gate_cumsum);
        }
        if let Some(PositionGradients { d_positions, d_parameters }) = d_positions {
            gate_cumsum::add_rows(problem, &position_rows, d_positions);
            let sums = (&parameter_offsets[..], &parameter_sums[..]);
            position_kernel::finish_parameters(problem, sums, d_parameters);
        }
        if let Some(d_profiles) = d_profiles {
            relative::add_segments(problem, &profile_offsets, &profile_sums, d_profiles);
        }
    }
}

/// Distances between the queries and keys of a segment, from `-ahead` on; none where there is padding only.
fn distances<R: Number>(alone: &AttentionProblem<R>) -> usize {
    if alone.length(0) == 0 { 0 } else { alone.ahead() + alone.dims.keys }
}

/// `table[h, d]` is the sum over the rows of a batch of the sum over their segments of `sums[h, d]`, zero at distances that
/// no query has to a key. The segments of a row are added in f64, so that many short documents round once.
fn add_segments<R: Number>(problem: &AttentionProblem<R>, offsets: &[usize], sums: &[R], table: &mut [R]) {
    table.fill(R::ZERO);
    let (heads, largest) = (problem.dims.heads, problem.largest());
    let (ahead, most) = (largest.ahead(), largest.ahead() + largest.dims.keys);
    let mut row_sums = vec![0.0; heads * most];
    for number in 0..problem.segments() {
        let alone = problem.alone(number);
        let (own_ahead, own) = (alone.ahead(), distances(&alone));
        for head in 0..if own == 0 { 0 } else { heads } {
            let to = &mut row_sums[head * most + ahead - own_ahead..][..own];
            let from = &sums[offsets[number] + head * own..][..own];
            to.iter_mut().zip(from).for_each(|(to, sum)| *to += sum.to_f64());
        }
        if number + 1 == problem.segments() || problem.segment(number + 1).row != problem.segment(number).row {
            for (head, row_sums) in row_sums.chunks_exact_mut(most.max(1)).enumerate() {
                let to = &mut table[problem.origin(problem.tables(), head) - ahead..][..most];
                to.iter_mut().zip(&*row_sums).for_each(|(to, &sum)| *to += R::from_f64(sum));
                row_sums.fill(0.0);
            }
        }
    }
}

/// All segments of a call.
struct TiledBackwardSegments<'a, L: Lanes> {
    lanes: L,
    problem: &'a AttentionProblem<'a, L::Number>,
    saved: AttentionSaved<'a, L::Number>,
    d_q: ViewMut<'a, L::Number>,
    d_k: ViewMut<'a, L::Number>,
    d_v: ViewMut<'a, L::Number>,
    /// By segment, head and distance from `-ahead` on.
    d_bias: Option<ViewMut<'a, L::Number>>,
    d_weight: Option<ViewMut<'a, L::Number>>,
    d_gate_cumsum: Option<ViewMut<'a, f64>>,
    d_decay_cumsum: Option<ViewMut<'a, f64>>,
    /// Whether the gradients of a row's logits add up to something else than 0, or count by the direction of the key.
    with_rows: bool,
    /// Of stick-breaking attention, whose blocks of keys come from the last to the first.
    carry: Option<RowCarry<'a, L::Number>>,
    /// The part of it that rows bring where `with_rows`, by query.
    gate_rows: Option<ViewMut<'a, f64>>,
    /// Of learned positions, by head.
    kernels: Vec<HeadKernel<L::Number>>,
    positions: Option<PositionSums<'a>>,
    /// For the longest of the segments.
    bias: PaddedTable<L::Number>,
    weight: Option<PaddedTable<L::Number>>,
    /// Of each block of queries: which block of keys may add to its `d_q`.
    turns: Turns,
    /// Of each head of each segment: which block of keys may add to its tables.
    table_turns: Turns,
    /// Where the distances of a segment start in `d_bias` and `d_weight`.
    distances: &'a [usize],
    visits: &'a TileVisits,
    /// `[B, H, Q]`
    lse: View<'a, L::Number>,
    /// `d_out.out`, the mean of `d_out.v` under the weights, `[B, H, Q]`.
    delta: View<'a, L::Number>,
    feature_decay: Option<FeatureDecay<'a, L::Number>>,
    relative: Option<RelativeProfiles<L::Number>>,
    d_rows: Option<ViewMut<'a, L::Number>>,
    /// By segment and head, see [`relative::offsets`].
    d_profiles: Option<ViewMut<'a, L::Number>>,
    /// Where the profiles of a segment start in `d_profiles`.
    profile_offsets: &'a [usize],
    scales: GradientScales<L::Number>,
}

impl<L: Lanes> TiledBackwardSegments<'_, L> {
    /// The call of one segment, whose views start with it.
    fn alone(&self, number: usize) -> TiledBackwardCall<'_, L> {
        let DocumentSegment { row, first_query, first_key, .. } = self.problem.segment(number);
        let AttentionSaved { q, k, v, out, lse, d_out } = self.saved;
        let [q, out, d_out] = [q, out, d_out].map(|view| view.starting_at(row, first_query));
        let [k, v] = [k, v].map(|view| view.starting_at(row, first_key));
        TiledBackwardCall {
            lanes: self.lanes,
            all: self,
            number,
            problem: self.problem.alone(number),
            saved: AttentionSaved { q, k, v, out, lse, d_out },
            lse: self.lse.starting_at(row, first_query),
            delta: self.delta.starting_at(row, first_query),
            d_q: self.d_q.starting_at(row, first_query),
            d_k: self.d_k.starting_at(row, first_key),
            d_v: self.d_v.starting_at(row, first_key),
            d_decay_cumsum: self.d_decay_cumsum.as_ref().map(|view| view.starting_at(row, first_key)),
            d_gate_cumsum: self.d_gate_cumsum.as_ref().map(|view| view.starting_at(row, first_key)),
            gate_rows: self.gate_rows.as_ref().map(|view| view.starting_at(row, first_query)),
            carry: self.carry.as_ref().map(|carry| carry.starting_at(row, first_query)),
            positions: self.positions.as_ref().map(|sums| sums.starting_at(row, first_query, first_key)),
            d_rows: self.d_rows.as_ref().map(|view| view.starting_at(row, first_query)),
        }
    }

    /// The largest square of the norm of a value that some query sees, of each key head of each segment; nothing but for
    /// stick-breaking attention.
    fn largest_values(&self) -> Vec<L::Number> {
        let AttentionDims { kv_heads, value_dim, .. } = self.problem.dims;
        let units = if self.carry.is_some() { self.problem.segments() * kv_heads } else { 0 };
        let mut largest = vec![L::Number::ZERO; units];
        workers::for_each_task(largest.iter_mut(), |unit, largest| {
            let DocumentSegment { row, first_key, length, .. } = self.problem.segment(unit / kv_heads);
            for key in first_key..first_key + length {
                let value = self.saved.v.row(row, unit % kv_heads, key, value_dim);
                let mut square = [L::Number::ZERO];
                self.lanes.run(Dots { q: value, k: value, stride: 0, to: &mut square });
                *largest = largest.max(square[0]);
            }
        });
        largest
    }

    /// Computes `delta` and the carry of each row, and clears `d_q` where no key is seen.
    fn prepare(&self, delta: &mut [L::Number]) {
        let AttentionDims { heads, kv_heads, head_dim, value_dim, .. } = self.problem.dims;
        let largest_values = self.largest_values();
        let delta = ViewMut::new(delta, self.delta.strides);
        let blocks = SegmentBlocks::new(self.problem, heads, |segment| segment.queries.div_ceil(QUERIES));
        workers::for_each(
            blocks.items(),
            || (),
            |(), item| {
                let SegmentBlock { segment, head, block } = blocks.independent(item);
                let DocumentSegment { row, first_query, queries, .. } = self.problem.segment(segment);
                let first = block * QUERIES;
                let is_unseeing = key_blocks(&self.problem.alone(segment), block).is_empty();
                for query in first_query + first..first_query + queries.min(first + QUERIES) {
                    // SAFETY: `delta` is `[B, H, Q]` and this item alone writes this query.
                    let delta_i = unsafe { delta.row(row, head, query, 1) };
                    let [q, k] = [self.saved.d_out, self.saved.out].map(|view| view.row(row, head, query, value_dim));
                    self.lanes.run(Dots { q, k, stride: 0, to: delta_i });
                    if let Some(carry) = &self.carry {
                        let mut square = [L::Number::ZERO];
                        self.lanes.run(Dots { q, k: q, stride: 0, to: &mut square });
                        let of_values = largest_values[segment * kv_heads + head / (heads / kv_heads)];
                        // by Cauchy and Schwarz, with room for roundings
                        let bound = square[0].sqrt() * of_values.sqrt() * L::Number::from_f64(1.001);
                        // SAFETY: the carry is `[B, H, Q]` and this item alone writes this query now.
                        let [left, rest, to] = unsafe {
                            [&carry.left, &carry.rest, &carry.bound]
                                .map(|numbers| &mut numbers.row(row, head, query, 1)[0])
                        };
                        (*left, *rest, *to) = (L::Number::ONE, delta_i[0], bound);
                    }
                    if is_unseeing {
                        // SAFETY: `d_q` is checked, and this item alone writes this row now.
                        unsafe { self.d_q.row(row, head, query, head_dim) }.fill(L::Number::ZERO);
                    }
                }
            },
        );
    }
}
