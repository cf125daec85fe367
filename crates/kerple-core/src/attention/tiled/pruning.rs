//! Keys far to the left whose weights are 0 for all queries of a block, and which are not computed.
//!
//! ```text
//! ln weight_ij = z_ij - lse_i <= scale |q_i| |k_j| weight[d] + bias[d] + c_i - c_j - lse_i
//! ```
//!
//! Where the right side is below the lowest exponent of [`Number::exp`] for all pairs of a tile, its weights are 0
//! and it adds nothing to any sum. A bias that falls with the distance (as ALiBi's does), or gates that forget (as
//! FoX's), let a query see only so many keys then, however long the sequence is. Lin et al. 2025 (arXiv:2504.06949) prune
//! attention with gates so, by a threshold above 0.
//!
//! Norms of queries and of keys bound the first term. The backward knows `lse`. In the forward the score of a query
//! with its own key stands for it, since `lse` is not below any score.

use crate::Number;
use crate::attention::{AttentionProblem, DocumentSegment, View};
use crate::cpu::lanes::Lanes;
use crate::forms::{ScoreTable, ScoreTransform};
use crate::tiles::rows::Dots;
use crate::tiles::workers;
use std::ops::Range;

/// Keys, or distances, that share a bound.
const BLOCK: usize = 96;

/// What bounds the scores of a call.
pub(super) struct Pruning<'a, R> {
    problem: &'a AttentionProblem<'a, R>,
    /// The largest norm of a key, by segment, key head and block; infinite where a key or a value is not finite.
    key_norms: Vec<f64>,
    /// Where the blocks of a segment start in `key_norms`.
    offsets: Vec<usize>,
    /// By head.
    tables: Vec<TableBounds>,
}

/// What bounds the numbers of the tables of one head.
struct TableBounds {
    /// The largest bias of each block of distances, from `-ahead` on.
    bias: Vec<f64>,
    /// The largest size of a weight.
    weight: f64,
    /// Bias and weight of a query's own key.
    own: [f64; 2],
    /// Whether some biases are so far below others that weights can be 0.
    falls: bool,
}

/// What bounds the weights of some consecutive queries of a segment.
pub(super) struct QueryBounds {
    queries: Range<usize>,
    norm: f64,
    /// At most the smallest `lse`.
    lowest: f64,
}

impl<'a, R: Number> Pruning<'a, R> {
    /// Nothing where no weight can be seen to be 0.
    pub(super) fn new<L: Lanes<Number = R>>(
        lanes: L,
        problem: &'a AttentionProblem<'a, R>,
        [k, v]: [View<R>; 2],
    ) -> Option<Self> {
        let ScoreTransform::Table(table) = problem.scores else { return None };
        let ScoreTable { bias, gate_cumsum, feature_decay, decay_cumsum, positions, relative, .. } = table;
        let others = [feature_decay.is_some(), decay_cumsum.is_some(), positions.is_some(), relative.is_some()];
        let is_whole = problem.intervals.is_none() && problem.evicted == 0;
        let (largest, heads) = (problem.largest(), problem.dims.heads);
        if others.contains(&true) || !is_whole || !problem.normalizer.is_softmax() || largest.dims.keys <= BLOCK {
            return None;
        }
        if bias.is_none() && gate_cumsum.is_none() {
            return None;
        }
        let tables: Vec<TableBounds> = (0..heads).map(|head| TableBounds::new(&largest, head)).collect();
        if gate_cumsum.is_none() && !tables.iter().any(|table| table.falls) {
            return None;
        }
        let kv_heads = problem.dims.kv_heads;
        let offsets = problem.offsets(|alone| kv_heads * alone.dims.keys.div_ceil(BLOCK));
        let mut key_norms = vec![0.0; offsets[problem.segments()]];
        workers::for_each_task(key_norms.iter_mut(), |unit, norm| {
            let number = offsets.partition_point(|start| *start <= unit) - 1;
            let DocumentSegment { row, first_key, keys, .. } = problem.segment(number);
            let (unit, blocks) = (unit - offsets[number], keys.div_ceil(BLOCK));
            let start = unit % blocks * BLOCK;
            let of_block = first_key + start..first_key + keys.min(start + BLOCK);
            let largest = |view: View<R>, width| {
                largest_norm(lanes, of_block.clone().map(|key| view.row(row, unit / blocks, key, width)))
            };
            let values = largest(v, problem.dims.value_dim);
            *norm = if values.is_finite() { largest(k, problem.dims.head_dim) } else { f64::INFINITY };
        });
        Some(Pruning { problem, key_norms, offsets, tables })
    }

    /// Bounds in the forward of a segment, whose views start with it.
    pub(super) fn forward_bounds<L: Lanes<Number = R>>(
        &self,
        lanes: L,
        alone: &AttentionProblem<R>,
        head: usize,
        queries: Range<usize>,
        [q, k]: [View<R>; 2],
    ) -> QueryBounds {
        let (head_dim, kv_head) = (alone.dims.head_dim, head / (alone.dims.heads / alone.dims.kv_heads));
        let [bias, weight] = self.tables[head].own;
        let own_score = |query: usize| {
            let own = usize::try_from(alone.dims.position(query)).ok().filter(|own| *own < alone.length(0));
            let Some(own) = own else { return f64::NEG_INFINITY }; // of padding, or in front of every key
            let mut dot = [R::ZERO];
            let [q, k] = [q.row(0, head, query, head_dim), k.row(0, kv_head, own, head_dim)];
            lanes.run(Dots { q, k, stride: 0, to: &mut dot });
            let score = alone.scale.to_f64() * dot[0].to_f64();
            alone.softcap.map_or(score, |cap| cap.to_f64() * (score / cap.to_f64()).tanh()) * weight + bias
        };
        let norm = largest_norm(lanes, queries.clone().map(|query| q.row(0, head, query, head_dim)));
        QueryBounds { norm, lowest: smallest(queries.clone().map(own_score)), queries }
    }

    /// Bounds in the backward of a segment, whose views start with it, given the `lse` of these queries.
    pub(super) fn backward_bounds<L: Lanes<Number = R>>(
        &self,
        lanes: L,
        head: usize,
        queries: Range<usize>,
        [q, d_out]: [View<R>; 2],
        lse: &[R],
    ) -> QueryBounds {
        let largest =
            |view: View<R>, width| largest_norm(lanes, queries.clone().map(|query| view.row(0, head, query, width)));
        let is_finite = largest(d_out, self.problem.dims.value_dim).is_finite();
        let lowest = if is_finite { smallest(lse.iter().map(|lse| lse.to_f64())) } else { f64::NEG_INFINITY };
        QueryBounds { norm: largest(q, self.problem.dims.head_dim), lowest, queries }
    }

    /// The first of `seen` whose weights may differ from 0, up to whole tiles of keys from the first on. The last tile stays.
    pub(super) fn first_key(
        &self,
        [number, head]: [usize; 2],
        alone: &AttentionProblem<R>,
        bounds: &QueryBounds,
        seen: Range<usize>,
    ) -> usize {
        let tile = |first: usize| first..(first + BLOCK).min(alone.dims.keys);
        let stays =
            |first: &usize| first + BLOCK >= seen.end || !self.is_zero([number, head], alone, bounds, tile(*first));
        seen.clone().step_by(BLOCK).find(stays).unwrap_or(seen.start)
    }

    fn is_zero(
        &self,
        [number, head]: [usize; 2],
        alone: &AttentionProblem<R>,
        bounds: &QueryBounds,
        keys: Range<usize>,
    ) -> bool {
        let (dims, table) = (alone.dims, &self.tables[head]);
        let blocks = self.offsets[number] + head / (dims.heads / dims.kv_heads) * dims.keys.div_ceil(BLOCK);
        let norms = &self.key_norms[blocks + keys.start / BLOCK..=blocks + (keys.end - 1) / BLOCK];
        let product = alone.scale.to_f64().abs() * bounds.norm * largest(norms.iter().copied());
        let score = alone.softcap.map_or(product, |cap| product.min(cap.to_f64())) * table.weight;
        let last_query = dims.position(bounds.queries.end - 1);
        let nearest =
            (dims.position(bounds.queries.start) - (keys.end - 1).cast_signed()).max(-alone.ahead().cast_signed());
        let block_of = |distance: isize| (distance + alone.ahead().cast_signed()).cast_unsigned() / BLOCK;
        // under a causal mask the first queries may be in front of keys that others see
        let distances = block_of(nearest)..=block_of((last_query - keys.start.cast_signed()).max(nearest));
        let bias = if table.bias.is_empty() { 0.0 } else { largest(table.bias[distances].iter().copied()) };
        let gate = alone.gate_cumsum(0, head).map_or(0.0, |sums| {
            let own = dims.position(bounds.queries.start).cast_unsigned();
            largest(sums[own..][..bounds.queries.len()].iter().copied()) - smallest(sums[keys].iter().copied())
        });
        // f32 rounds scores and tables by 6e-8, and sums of products by ten times as much
        let rounding = 1e-5 * (score + bias.abs() + gate.abs() + bounds.lowest.abs());
        score + bias + gate + rounding - bounds.lowest < R::EXP_IS_ZERO_BELOW
    }
}

impl TableBounds {
    fn new<R: Number>(problem: &AttentionProblem<R>, head: usize) -> Self {
        let (tables, ahead, keys) = (problem.tables(), problem.ahead(), problem.dims.keys);
        let origin = problem.origin(tables, head);
        let own = [(tables.bias, 0.0), (tables.weight, 1.0)]
            .map(|(table, neutral)| table.map_or(neutral, |table| table[origin].to_f64()));
        let row = |table: &[R]| -> Vec<f64> {
            table[origin - ahead..][..ahead + keys].iter().map(|value| value.to_f64()).collect()
        };
        let bias = tables.bias.map(row).unwrap_or_default();
        let weight = tables.weight.map(row).map_or(1.0, |weights| largest(weights.into_iter().map(f64::abs)));
        let falls = smallest(bias.iter().copied()) - largest(bias.iter().copied()) < R::EXP_IS_ZERO_BELOW;
        let bias = bias.chunks(BLOCK).map(|block| largest(block.iter().copied())).collect();
        TableBounds { bias, weight, own, falls }
    }
}

/// The largest norm of rows, NaN if one of them is.
fn largest_norm<'r, L: Lanes>(lanes: L, rows: impl Iterator<Item = &'r [L::Number]>) -> f64
where
    L::Number: 'r,
{
    let square = |row: &'r [L::Number]| {
        let mut square = [L::Number::ZERO];
        lanes.run(Dots { q: row, k: row, stride: 0, to: &mut square });
        square[0].to_f64()
    };
    largest(rows.map(square)).sqrt()
}

/// The largest number, NaN if one is.
fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(f64::NEG_INFINITY, Number::max)
}

/// The smallest number, NaN if one is.
fn smallest(numbers: impl Iterator<Item = f64>) -> f64 {
    -largest(numbers.map(|number| -number))
}
