//! Split-KV decoding: one query and a long KV cache. Every key and value is read once, so memory
//! bandwidth is the limit and tiles would not help.
//!
//! # Why splits of a fixed length
//!
//! One query leaves nothing to share among threads but its keys, and with few heads a thread per
//! head would leave cores idle. So the keys are split, as in Flash-Decoding: each split leaves its
//! largest score, its sum of exponentials and its weighted sum of values, and the results are
//! combined in the order of the keys. One split per thread would be the obvious choice, but then
//! sums would depend on the number of threads. So a split has [`SPLIT`] keys whatever the machine.
//! Within it, values are added up in runs of [`RUN`] keys, because short sums in `f32` round less
//! than one long sum.

use super::decay_cumsum::{DecayTile, DecayedRows, HeadDecays};
use super::feature_decay::FeatureDecay;
use super::forward::TiledForward;
use super::normalizer::{SplitWeights, softpick_eps};
use super::position_kernel::{AddKernel, HeadKernel};
use crate::Number;
use crate::attention::dropout::{DropoutFactors, DropoutTile};
use crate::attention::segments::{SegmentBlock, SegmentBlocks};
use crate::attention::{AttentionDims, AttentionProblem, RelativeBias, Strides, ViewMut, softcap};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::Normalizer;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{CopyRows, Dots};
use crate::tiles::softmax::RowExponentials;
use crate::tiles::workers;
use std::borrow::Cow;
use std::ops::Range;

/// Keys of one split, an item of work.
const SPLIT: usize = 512;

/// Keys whose values are summed before they join the others of the split.
const RUN: usize = 64;

/// The forward for the segments of a single query: calls of one query, or documents that have one.
pub(super) struct SplitKvDecode<'a, R>(pub(super) TiledForward<'a, R>);

impl<R: Number> SimdKernel<R> for SplitKvDecode<'_, R> {
    type Output = ();

    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let SplitKvDecode(call) = self;
        let problem = &call.problem;
        let single = (0..problem.segments()).filter(|number| problem.segment(*number).queries == 1);
        let alone: Vec<AttentionProblem<R>> = single.map(|number| problem.alone(number)).collect();
        let splits = alone.iter().map(splits).max().unwrap_or(0);
        let most = alone.iter().flat_map(|it| (0..splits).map(|split| split_keys(it, split).len())).max().unwrap_or(0);
        let width = problem.dims.value_dim.next_multiple_of(L::COUNT);
        let feature_decay = FeatureDecay::new(problem, most);
        let kernels = HeadKernel::all(problem);
        let whole = SplitKvWhole { lanes, call, splits, width, feature_decay, kernels };
        if whole.call.problem.documents.is_some() { whole.by_head() } else { whole.by_split() }
    }
}

/// Splits of a problem of one sequence and one query.
fn splits<R: Number>(problem: &AttentionProblem<R>) -> usize {
    problem.visible_sink_tokens(0, 0).div_ceil(SPLIT) + problem.visible(0, 0).len().div_ceil(SPLIT)
}

/// The keys of one of them: first tokens come before those of the window. Splits past the last have no keys.
fn split_keys<R: Number>(problem: &AttentionProblem<R>, split: usize) -> Range<usize> {
    let (sink_tokens, visible) = (problem.visible_sink_tokens(0, 0), problem.visible(0, 0));
    let (split, of) = match split.checked_sub(sink_tokens.div_ceil(SPLIT)) {
        None => (split, 0..sink_tokens),
        Some(split) => (split, visible),
    };
    let first = (of.start + split * SPLIT).min(of.end); // shorter sequences have splits without keys
    first..of.end.min(first + SPLIT)
}

/// All segments.
struct SplitKvWhole<'a, L: Lanes> {
    lanes: L,
    call: TiledForward<'a, L::Number>,
    /// Of the longest.
    splits: usize,
    /// E rounded up to whole vectors.
    width: usize,
    feature_decay: Option<FeatureDecay<'a, L::Number>>,
    /// Of learned positions, by head.
    kernels: Vec<HeadKernel<L::Number>>,
}

impl<L: Lanes> SplitKvWhole<'_, L> {
    /// Processes each split of each key head by itself.
    fn by_split(&self) {
        let AttentionDims { batch, heads, kv_heads, .. } = self.call.problem.dims;
        let mut partial = workers::scratch(batch * heads * self.splits * (2 + self.width));
        let partial = ViewMut::new(&mut partial, self.strides());
        let alone = |segment| self.alone(segment, partial.starting_at(segment, 0));
        workers::for_each(
            batch * kv_heads * self.splits,
            || self.scratch(),
            |scratch, item| {
                let (unit, split) = (item / self.splits, item % self.splits);
                alone(unit / kv_heads).split(scratch, unit % kv_heads, split);
            },
        );
        for unit in 0..batch * heads {
            alone(unit / heads).combine(unit % heads, self.splits);
        }
    }

    /// Processes the splits of each key head of a document one after another: there are many documents.
    fn by_head(&self) {
        let AttentionDims { heads, kv_heads, .. } = self.call.problem.dims;
        let blocks = SegmentBlocks::new(&self.call.problem, kv_heads, |segment| usize::from(segment.queries == 1));
        let group = heads / kv_heads;
        let scratch = || (self.scratch(), workers::scratch(heads * self.splits * (2 + self.width)));
        workers::for_each(blocks.items(), scratch, |(scratch, partial), item| {
            let SegmentBlock { segment, head: kv_head, .. } = blocks.independent(item);
            let call = self.alone(segment, ViewMut::new(partial, self.strides()));
            let splits = splits(&call.of.problem);
            (0..splits).for_each(|split| call.split(scratch, kv_head, split));
            (kv_head * group..(kv_head + 1) * group).for_each(|head| call.combine(head, splits));
        });
    }

    /// Of `[B, H, splits, maximum | sum | values]`.
    fn strides(&self) -> Strides {
        let (row, heads) = (2 + self.width, self.call.problem.dims.heads);
        Strides { batch: heads * self.splits * row, head: self.splits * row, row }
    }

    fn scratch(&self) -> SplitKvScratch<L::Number> {
        let scores = workers::scratch(SPLIT.next_multiple_of(L::COUNT));
        let dropout = DropoutFactors::new(&self.call.problem, SPLIT);
        let decays = self.call.problem.tables().decay_cumsum.map(|_| {
            let head_dim = self.call.problem.dims.head_dim;
            let width = head_dim.next_multiple_of(L::COUNT);
            SplitDecays { tile: DecayTile::new(head_dim, width), k: workers::scratch(SPLIT * width) }
        });
        SplitKvScratch { scores, values: workers::scratch(SPLIT * self.width), dropout, decays }
    }

    fn alone<'a>(&'a self, segment: usize, partial: ViewMut<'a, L::Number>) -> SplitKvCall<'a, L> {
        let SplitKvWhole { lanes, ref call, width, ref feature_decay, ref kernels, .. } = *self;
        SplitKvCall { lanes, of: call.alone(segment), width, feature_decay: feature_decay.as_ref(), kernels, partial }
    }
}

/// What one thread computes in.
struct SplitKvScratch<R> {
    scores: Vec<R>,
    /// `[SPLIT, width]`
    values: Vec<R>,
    dropout: Option<DropoutFactors<R>>,
    decays: Option<SplitDecays<R>>,
}

/// What decays by the content are computed in.
struct SplitDecays<R> {
    tile: DecayTile<R>,
    /// The keys of a split with their decays, `[SPLIT, D]` with D rounded up to whole vectors.
    k: Vec<R>,
}

/// Puts chunks of `[maximum, sum, weighted values]` together, from a maximum and a sum on; returns the log of the sum of
/// exponentials, or of stick-breaking attention what all keys have left.
fn combine<R: Number>(normalizer: Normalizer, chunks: &[R], stride: usize, [first, sum]: [R; 2], out: &mut [R]) -> R {
    out.fill(R::ZERO);
    let chunks = || chunks.chunks_exact(stride);
    if normalizer.stick_breaking().is_some() {
        let mut left = sum;
        for chunk in chunks().rev() {
            out.iter_mut().zip(&chunk[2..]).for_each(|(out, &value)| *out += left * value);
            left = left * chunk[1];
        }
        return left;
    }
    let eps = if normalizer == Normalizer::Softpick { softpick_eps() } else { R::ZERO };
    let largest = chunks().fold(first, |largest, chunk| largest.max(chunk[0]));
    let total = chunks().map(|chunk| chunk[1] * (chunk[0] - largest).exp()).sum::<R>() + sum * (first - largest).exp();
    let total = total + eps;
    if total == R::ZERO {
        return R::NEG_INFINITY;
    }
    for chunk in chunks() {
        let factor = (chunk[0] - largest).exp() / total;
        out.iter_mut().zip(&chunk[2..]).for_each(|(out, &value)| *out += factor * value);
    }
    largest + total.ln()
}

/// One segment.
struct SplitKvCall<'a, L: Lanes> {
    lanes: L,
    of: TiledForward<'a, L::Number>,
    /// E rounded up to whole vectors.
    width: usize,
    feature_decay: Option<&'a FeatureDecay<'a, L::Number>>,
    kernels: &'a [HeadKernel<L::Number>],
    /// `[H, splits, maximum | sum | values]`
    partial: ViewMut<'a, L::Number>,
}

impl<L: Lanes> SplitKvCall<'_, L> {
    /// Merges the splits of one head.
    fn combine(&self, head: usize, splits: usize) {
        let (stride, value_dim) = (2 + self.width, self.of.problem.dims.value_dim);
        // SAFETY: `out` and `lse` are checked, `partial` has room for all splits of a head, and the thread that merges them holds
        // these rows alone.
        let (out, lse, partial) = unsafe {
            let partial = self.partial.row(0, head, 0, splits * stride);
            (self.of.out.row(0, head, 0, value_dim), self.of.lse.row(0, head, 0, 1), partial)
        };
        let problem = &self.of.problem;
        lse[0] = combine(problem.normalizer, partial, stride, problem.beginning(head), out);
        self.of.add_remainder(self.lanes, [head, 0], lse[0], out);
    }

    fn split(&self, scratch: &mut SplitKvScratch<L::Number>, kv_head: usize, split: usize) {
        let AttentionDims { heads, kv_heads, head_dim, value_dim, .. } = self.of.problem.dims;
        let group = heads / kv_heads;
        let heads = kv_head * group..(kv_head + 1) * group;
        let keys = split_keys(&self.of.problem, split);
        if keys.is_empty() {
            for head in heads {
                // SAFETY: as below.
                let partial = unsafe { self.partial.row(0, head, split, 2 + self.width) };
                partial.fill(L::Number::ZERO);
                partial[0] = L::Number::LOWEST;
                if self.of.problem.stick_breaking().is_some() {
                    partial[1] = L::Number::ONE; // nothing takes its share
                }
            }
            return;
        }
        let SplitKvScratch { scores, values, dropout, decays } = scratch;
        let mut k = (self.of.k.rows_from(0, kv_head, keys.start), self.of.k.strides.row);
        let decayed = self.decayed_keys(k, keys.len());
        if let Some(decayed) = &decayed {
            k = (&decayed[..], head_dim);
        }
        let (mut v, mut v_stride) = (self.of.v.rows_from(0, kv_head, keys.start), self.of.v.strides.row);
        if self.width > value_dim {
            let (rows, head_dim, factor, width) = (keys.len(), value_dim, L::Number::ONE, self.width);
            self.lanes.run(CopyRows { from: v, stride: v_stride, rows, head_dim, factor, to: values, width });
            (v, v_stride) = (values, width);
        }
        for head in heads {
            // SAFETY: `partial` has a row for each split of each head, and this item alone writes this one.
            let partial = unsafe { self.partial.row(0, head, split, 2 + self.width) };
            let (statistics, weighted) = partial.split_at_mut(2);
            let q = self.of.q.row(0, head, 0, head_dim);
            let (q, k) = match decays {
                Some(decays) => (q.into(), self.decayed_by_content(decays, k, head, &keys)),
                None => (self.decayed_query(q, self.positions(&keys) - keys.end), k),
            };
            self.lanes.run(Dots { q: &q, k: k.0, stride: k.1, to: &mut scores[..keys.len()] });
            let scale = self.softcap(&mut scores[..keys.len()]);
            let mut passed = self.passed(head, &keys);
            self.add_positions(head, &keys, &mut passed);
            self.add_relative(head, &keys, &mut passed);
            let statistics_of = SplitStatistics {
                normalizer: self.of.problem.normalizer,
                scale,
                weight: self.distances(self.of.problem.tables().weight, head, &keys),
                bias: self.distances(self.of.problem.tables().bias, head, &keys),
                passed: passed.as_deref(),
                scores: &mut scores[..keys.len().next_multiple_of(L::COUNT)],
                keys: keys.len(),
            };
            (statistics[0], statistics[1]) = self.lanes.run(statistics_of);
            if let Some(dropout) = dropout {
                let (first_key, keys) = (keys.start, keys.len());
                let tile = DropoutTile { head, first_query: 0, queries: 1, first_key, keys, strides: [SPLIT, 1] };
                dropout.load(&self.of.problem, tile);
                dropout.apply(&mut scores[..keys]);
            }
            weighted.fill(L::Number::ZERO);
            for (i, scores) in scores[..keys.len()].chunks(RUN).enumerate() {
                self.lanes.run(SmallGemm {
                    rows: 1,
                    inner: scores.len(),
                    columns: self.width,
                    a: StridedMatrix::row_major(scores, 0),
                    b: &v[i * RUN * v_stride..],
                    b_stride: v_stride,
                    c: weighted,
                    c_stride: self.width,
                    store: StoreMode::Accumulate,
                });
            }
        }
    }

    /// The difference of a head's cumulative gates from each key to the query, which is at the last
    /// key's position.
    fn passed(&self, head: usize, keys: &Range<usize>) -> Option<Vec<L::Number>> {
        let gate_cumsum = self.of.problem.gate_cumsum(0, head)?;
        let own = gate_cumsum[gate_cumsum.len() - 1];
        Some(gate_cumsum[keys.clone()].iter().map(|cumsum| L::Number::from_f64(own - cumsum)).collect())
    }

    /// Adds one head's kernel of learned positions to the bias of some keys.
    fn add_positions(&self, head: usize, keys: &Range<usize>, to: &mut Option<Vec<L::Number>>) {
        let (Some(x), Some(kernel)) = (self.of.problem.positions(0, head), self.kernels.get(head)) else { return };
        let own = x[x.len() - 1];
        let mut u: Vec<L::Number> = x[keys.clone()].iter().map(|x| L::Number::from_f64((own - x).abs())).collect();
        u.resize(keys.len().next_multiple_of(L::COUNT), L::Number::ZERO);
        let to = to.get_or_insert_with(|| vec![L::Number::ZERO; keys.len()]);
        self.lanes.run(AddKernel { kernel, u: &u, to });
    }

    /// Keys and evicted positions from key 0 to the query, counted as if all of these keys followed the evicted positions or
    /// preceded them.
    fn positions(&self, keys: &Range<usize>) -> usize {
        self.of.problem.dims.keys + self.of.problem.evicted_after(keys.start)
    }

    /// Adds one head's relative bias to the bias of some keys; the query is at the last key's position.
    fn add_relative(&self, head: usize, keys: &Range<usize>, to: &mut Option<Vec<L::Number>>) {
        let Some(RelativeBias { rows, profiles, rank, reach }) = self.of.problem.relative() else { return };
        let all = self.positions(keys);
        let near = keys.start.max(all.saturating_sub(reach))..keys.end;
        if near.is_empty() {
            return;
        }
        let distances = all - near.end..all - near.start;
        let mut bias = vec![L::Number::ZERO; distances.len()];
        for (factor, profile) in rows.row(0, head, 0, rank).iter().zip(profiles.chunks_exact(reach)) {
            bias.iter_mut().zip(&profile[distances.clone()]).for_each(|(to, &p)| *to += *factor * p);
        }
        let to = to.get_or_insert_with(|| vec![L::Number::ZERO; keys.len()]);
        to[near.start - keys.start..].iter_mut().zip(bias.iter().rev()).for_each(|(to, &bias)| *to += bias);
    }

    /// Scales and caps dot products where there is a softcap; returns the factor that is left to apply.
    fn softcap(&self, dots: &mut [L::Number]) -> L::Number {
        let AttentionProblem { scale, softcap: Some(cap), .. } = self.of.problem else { return self.of.problem.scale };
        dots.iter_mut().for_each(|dot| *dot = *dot * scale);
        softcap::apply(dots, cap);
        L::Number::ONE
    }

    /// The keys of a chunk as their products count them, where products are decayed.
    fn decayed_keys(&self, (from, stride): (&[L::Number], usize), rows: usize) -> Option<Vec<L::Number>> {
        let (feature_decay, head_dim) = (self.feature_decay?, self.of.problem.dims.head_dim);
        let mut to = workers::scratch(rows * head_dim);
        self.lanes.run(CopyRows { from, stride, rows, head_dim, factor: L::Number::ONE, to: &mut to, width: head_dim });
        self.lanes.run(feature_decay.keys(&mut to, head_dim, rows));
        Some(to)
    }

    /// The query as its products with a chunk count it, whose last key is this far behind it.
    fn decayed_query<'q>(&self, q: &'q [L::Number], distance: usize) -> Cow<'q, [L::Number]> {
        let Some(feature_decay) = self.feature_decay else { return q.into() };
        let over = feature_decay.over(distance as isize);
        q.iter().zip(over).map(|(q, factor)| *q * factor).collect::<Vec<_>>().into()
    }

    /// Some keys of one head as their products with the query count them where features decay by the content. The query is at
    /// the last key's position.
    fn decayed_by_content<'s>(
        &self,
        decays: &'s mut SplitDecays<L::Number>,
        (from, stride): (&[L::Number], usize),
        head: usize,
        keys: &Range<usize>,
    ) -> (&'s [L::Number], usize) {
        let SplitDecays { tile, k } = decays;
        let of_head = HeadDecays::of(&self.of.problem, head).expect("features decay by the content");
        let own = self.of.problem.dims.keys - 1;
        // the exponent of the query is 0
        tile.set(of_head, &(own..own + 1), keys, own);
        tile.key_factors(self.lanes, (of_head, keys.clone()), Some(DecayedRows { from, stride }), k);
        (&k[..], k.len() / SPLIT)
    }

    /// A head's table from the distance of the last key of `keys` up to that of the first.
    fn distances<'t>(
        &self,
        table: Option<&'t [L::Number]>,
        head: usize,
        keys: &Range<usize>,
    ) -> Option<&'t [L::Number]> {
        let first = self.of.problem.origin(self.of.problem.tables(), head) + self.positions(keys) - keys.end;
        table.map(|table| &table[first..][..keys.len()])
    }
}

/// Turns dots into exponentials: `z = scale * dot * weight + bias + passed`, then `exp(z - max z)`. Returns `max z` and their
/// sum. For other normalisers than softmax see [`SplitWeights`].
struct SplitStatistics<'a, R> {
    normalizer: Normalizer,
    scale: R,
    /// By distance, so the last belongs to the first score.
    weight: Option<&'a [R]>,
    bias: Option<&'a [R]>,
    /// By key.
    passed: Option<&'a [R]>,
    /// Whole vectors, of which the first `keys` numbers count.
    scores: &'a mut [R],
    keys: usize,
}

impl<R: Number> SimdKernel<R> for SplitStatistics<'_, R> {
    type Output = (R, R);

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) -> (R, R) {
        let SplitStatistics { normalizer, scale, weight, bias, passed, scores, keys } = self;
        scores.iter_mut().for_each(|z| *z = *z * scale);
        if let Some(weight) = weight {
            scores.iter_mut().zip(weight.iter().rev()).for_each(|(z, &weight)| *z = *z * weight);
        }
        if let Some(bias) = bias {
            scores.iter_mut().zip(bias.iter().rev()).for_each(|(z, &bias)| *z += bias);
        }
        if let Some(passed) = passed {
            scores.iter_mut().zip(passed).for_each(|(z, &passed)| *z += passed);
        }
        if !normalizer.is_softmax() {
            return SplitWeights { normalizer, logits: &mut scores[..keys] }.run(lanes);
        }
        scores[keys..].fill(R::NEG_INFINITY);
        RowExponentials { scores }.run(lanes)
    }
}
