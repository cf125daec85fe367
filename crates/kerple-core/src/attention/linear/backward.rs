//! The backward of causal linear attention: once through the chunks forwards, for queries, and once
//! backwards, for keys and values.
//!
//! ```text
//! g_i = [d_out_i / r_i, -d_out_i.out_i / r_i]        r_i: the denominator        u_j = [v_j, 1]
//! d_phi(q_i) = sum_j a(i - j) (g_i.u_j) phi(k_j)     = sum_m b_m S_m g_i + the near keys, pair by pair
//! d_phi(k_j) = sum_i a(i - j) (g_i.u_j) phi(q_i)     = sum_m b_m T_m u_j + the near queries, pair by pair
//! ```
//!
//! with the sums `S` over keys of earlier chunks, as in the forward, and `T` over queries of later
//! chunks. `T` is computed like `S` from the other end: from `g_i` and `phi(q_i)` instead of `u_j` and
//! `phi(k_j)`.
//!
//! # Why two passes that recompute, and no stored states
//!
//! Automatic differentiation of the recurrence would store the state after every chunk, `[M, D + 1]`
//! per head and chunk and for each rate of a decay, and every feature; long sequences would be
//! limited by memory again. But the gradient of a key is the same kind of sum as an output, over later
//! queries instead of earlier keys. So the state starts from zero at either end, and nothing of the
//! forward is kept but outputs and denominators. The price is that features are computed three times
//! in all. What the backward carries from chunk to chunk is [`StateGradient`]: with it a sequence of
//! any length is trained chunk by chunk, from the last to the first.

use super::decay::DecayTerms;
use super::forward::{HeadTask, Strips, load};
use super::state::{ChunkRows, HeadState, HeadStateGradient, RecurrentState, StateGradient, StateSums};
use super::{
    CHUNK, DecayGradient, DocumentSegment, LinearAttentionDims, LinearAttentionGradients, LinearAttentionProblem,
    LinearAttentionSaved, loops, workers,
};
use crate::Number;
use crate::attention::segments::SumsByRow;
use crate::attention::{View, ViewMut};
use crate::cpu::reduce;
use crate::features::{FeatureChain, FeatureChainScratch, RowKind, padded};
use crate::tiles::microkernel::StoreMode;
use std::sync::Mutex;

/// What a segment reads of the forward's results, and of the gradient of the output.
pub(super) struct SegmentSaved<'a, T> {
    out: View<'a, T>,
    d_out: View<'a, T>,
    /// Of the head.
    denominators: &'a [T],
}

/// Where a segment writes.
pub(super) struct GradientViews<'a, T> {
    pub(super) d_q: ViewMut<'a, T>,
    pub(super) d_k: ViewMut<'a, T>,
    pub(super) d_v: ViewMut<'a, T>,
    pub(super) d_parameters: ViewMut<'a, T>,
    pub(super) d_near: ViewMut<'a, T>,
    pub(super) d_weights: ViewMut<'a, T>,
    /// In cumulative gates first, then in gates.
    pub(super) d_gates: Option<ViewMut<'a, T>>,
    pub(super) sizes: [usize; 3],
}

/// What one thread computes in.
pub(super) struct LinearBackwardScratch<T> {
    pub(super) chain: FeatureChainScratch<T>,
    /// Sums over chunks before or after, and the near keys.
    pub(super) unit: HeadState<T>,
    pub(super) room: [Vec<T>; 2],
    /// Features of queries, those of later ones behind them, `[near_len, padded(M)]`.
    pub(super) queries: Vec<T>,
    /// A gradient in features, `[CHUNK, padded(M)]`.
    pub(super) d_features: Vec<T>,
    /// `g` of queries: of numerators `[near_len, padded(value_dim)]`, of denominators `[near_len]`.
    pub(super) d_sums: Vec<T>,
    pub(super) d_counts: Vec<T>,
    /// Rows for the sums, weighed.
    pub(super) wide: Vec<T>,
    /// `[CHUNK, padded(value_dim)]`
    pub(super) d_values: Vec<T>,
    /// Products of features, products of values, `[CHUNK, near_len]` or `[near_len, CHUNK]`, and room for what is transposed.
    products: Vec<T>,
    of_values: Vec<T>,
    turned: Vec<T>,
}

impl<T: Number> LinearBackwardScratch<T> {
    fn new(chain: &FeatureChain<T>, value_dim: usize, terms: &DecayTerms<T>) -> LinearBackwardScratch<T> {
        let (width, value) = (padded(chain.widths()[1]), padded(value_dim));
        let unit = HeadState::new(chain.widths()[1], value_dim, terms);
        let near_len = terms.near_len;
        let rows = |count: usize, width: usize| workers::scratch(count * width);
        LinearBackwardScratch {
            chain: chain.room(workers::scratch),
            room: StateSums::room([chain.widths()[1], value_dim], terms, workers::scratch),
            queries: rows(near_len, width),
            d_features: rows(CHUNK, width),
            d_sums: rows(near_len, value),
            d_counts: rows(near_len, 1),
            wide: rows(CHUNK, width.max(unit.sums.stride())),
            d_values: rows(CHUNK, value),
            products: rows(CHUNK, near_len),
            of_values: rows(CHUNK, near_len),
            turned: rows(near_len, width.max(value)),
            unit,
        }
    }

    /// Continues before the later positions; returns how many of its rows are processed one by one.
    fn begin_behind(&mut self, ahead: &HeadStateGradient<T>) -> usize {
        self.unit.sums.clone_from(&ahead.sums);
        let held = [&ahead.queries, &ahead.d_sums, &ahead.d_counts];
        for (own, held) in [&mut self.queries, &mut self.d_sums, &mut self.d_counts].into_iter().zip(held) {
            own[..held.len()].copy_from_slice(held);
        }
        ahead.rows
    }

    /// Leaves the same to the rows before, to which `rows` are near.
    fn leave_behind(&self, rows: usize, ahead: &mut HeadStateGradient<T>) {
        ahead.sums.clone_from(&self.unit.sums);
        let held = [&mut ahead.queries, &mut ahead.d_sums, &mut ahead.d_counts];
        for (held, own) in held.into_iter().zip([&self.queries, &self.d_sums, &self.d_counts]) {
            let len = held.len();
            held.copy_from_slice(&own[..len]);
        }
        ahead.rows = rows;
    }

    /// No gradient of keys and values yet.
    pub(super) fn nothing_yet(&mut self, rows: usize) {
        let (width, value) = (self.d_features.len() / CHUNK, self.d_values.len() / CHUNK);
        self.d_features[..rows * width].fill(T::ZERO);
        self.d_values[..rows * value].fill(T::ZERO);
    }
}

/// Which pass over the segments this is, where two of them make one gradient. Documents that share a row have their passes
/// added before they are summed: what cancels within a document then leaves no rounding error in the sum.
pub(super) enum GradientPass<T> {
    /// The only one, or the passes are added after the sums over segments.
    Single,
    /// Leaves what each segment has of parameters, near weights and weights of exponentials here, and no sums.
    First([Vec<T>; 3]),
    /// Sums what the first pass left and its own, which has no part at distance 0.
    Second([Vec<T>; 3]),
}

impl<T: Number> GradientPass<T> {
    /// Makes of this pass's sums those that count: the first pass keeps them, and the second adds what was kept from `at` on.
    /// `near_len` is per head.
    fn take(&mut self, own: &mut [Vec<T>; 3], at: [usize; 3], near_len: usize) {
        match self {
            GradientPass::Single => {}
            GradientPass::First(kept) => {
                for (kept, own) in kept.iter_mut().zip(own) {
                    kept.append(own);
                }
            }
            GradientPass::Second(kept) => {
                own[1].chunks_exact_mut(near_len.max(1)).for_each(|near| near[near_len - 1] = T::ZERO);
                for ((kept, own), at) in kept.iter().zip(own).zip(at) {
                    own.iter_mut().zip(&kept[at..]).for_each(|(own, first)| *own = *first + *own);
                }
            }
        }
    }
}

/// Numbers that sum over segments of the documents which are processed at a time.
const MOST_SUMS: usize = 1 << 22;

/// Runs `work` for every head of every segment, whose first row has position `first`, and sums over segments what belongs to
/// heads.
pub(super) fn for_each_unit<T: Number>(
    problem: &LinearAttentionProblem<T>,
    first: usize,
    saved: LinearAttentionSaved<T>,
    gradients: LinearAttentionGradients<T>,
    pass: &mut GradientPass<T>,
    work: impl Fn(&HeadTask<T>, &SegmentSaved<T>, &GradientViews<T>, &mut LinearBackwardScratch<T>) + Sync,
) {
    let (dims, chain, terms, segments) = (problem.dims, problem.chain(), problem.terms(), problem.segments());
    let wanted = gradients.d_decay.is_some();
    let [near, weights] = match &problem.decay {
        Some(decay) if wanted => [decay.near_len, decay.terms],
        _ => [0, 0],
    };
    let sizes = [chain.parameters(), near, weights];
    let LinearAttentionGradients { d_q, d_k, d_v, d_parameters: to_parameters, d_decay, d_gates } = gradients;
    let by_row = super::Strides { batch: dims.heads * dims.len, head: dims.len, row: 1 };
    let d_gates = d_gates.map(|d_gates| ViewMut::new(d_gates, by_row));
    let mut totals = sizes.map(|size| SumsByRow::new(dims.heads * size));
    let of_segment = dims.heads * sizes.iter().sum::<usize>();
    let at_a_time = if problem.documents.is_some() { MOST_SUMS / of_segment.max(1) } else { segments }.max(1);
    for wave in (0..segments).step_by(at_a_time).map(|first| first..segments.min(first + at_a_time)) {
        let mut own = sizes.map(|size| crate::ops::zeros::<T>(wave.len() * dims.heads * size));
        let mut at = 0;
        let parts = own.each_mut().map(|own| {
            let size = sizes[at];
            at += 1;
            ViewMut::new(own, super::Strides { batch: dims.heads * size, head: size, row: 1 })
        });
        let order = problem.longest_first(wave.clone());
        workers::for_each(
            dims.heads * order.len(),
            || None,
            |own: &mut Option<(usize, LinearBackwardScratch<T>)>, item| {
                let (head, number) = (item / order.len(), order[item % order.len()]);
                let terms = &terms[head];
                // heads may differ in how many shapes their terms have
                if own.as_ref().is_none_or(|(of, _)| *of != head) {
                    *own = Some((head, LinearBackwardScratch::new(&chain, dims.value_dim, terms)));
                }
                let (_, scratch) = own.as_mut().expect("it was just created");
                let DocumentSegment { row, first_query, queries, .. } = problem.segment(number);
                let start = (row * dims.heads + head) * dims.len + first_query;
                let saved_rows = SegmentSaved {
                    out: saved.out.starting_at(row, first_query),
                    d_out: saved.d_out.starting_at(row, first_query),
                    denominators: &saved.denominators[start..][..queries],
                };
                let [d_parameters, d_near, d_weights] =
                    parts.each_ref().map(|parts| parts.starting_at(number - wave.start, 0));
                let outputs = GradientViews {
                    d_q: d_q.starting_at(row, first_query),
                    d_k: d_k.starting_at(row, first_query),
                    d_v: d_v.starting_at(row, first_query),
                    d_parameters,
                    d_near,
                    d_weights,
                    d_gates: d_gates.as_ref().map(|d_gates| d_gates.starting_at(row, first_query)),
                    sizes,
                };
                let task = HeadTask::new(problem, &chain, terms, saved.inputs, [head, number], first);
                work(&task, &saved_rows, &outputs, scratch);
            },
        );
        pass.take(&mut own, sizes.map(|size| wave.start * dims.heads * size), sizes[1]);
        if matches!(pass, GradientPass::First(_)) {
            continue;
        }
        for (at, number) in wave.enumerate() {
            let is_last = number + 1 == segments || problem.segment(number + 1).row != problem.segment(number).row;
            for (total, own) in totals.iter_mut().zip(&own) {
                total.add(at, own, is_last);
            }
        }
    }
    let [parameters, near, weights] = totals.map(SumsByRow::total);
    to_parameters.copy_from_slice(&parameters);
    if let Some(DecayGradient { d_near, d_weights }) = d_decay {
        d_near.copy_from_slice(&near);
        // they were added up as `DecayTerms::mask` reads them: the last distance first
        d_near.chunks_exact_mut(sizes[1]).for_each(<[T]>::reverse);
        d_weights.copy_from_slice(&weights);
    }
}

/// Of whole sequences, or of a piece with what is before and behind it.
pub(super) fn backward<T: Number>(
    problem: &LinearAttentionProblem<T>,
    saved: LinearAttentionSaved<T>,
    ends: Option<(&RecurrentState<T>, &mut StateGradient<T>)>,
    gradients: LinearAttentionGradients<T>,
    pass: &mut GradientPass<T>,
) {
    let (dims, (before, behind)) = (problem.dims, ends.unzip());
    let behind: Vec<Mutex<&mut HeadStateGradient<T>>> =
        behind.into_iter().flat_map(StateGradient::units).map(Mutex::new).collect();
    let first = before.map_or(0, RecurrentState::len);
    for_each_unit(problem, first, saved, gradients, pass, |task, saved, outputs, scratch| {
        let (len, item) = (task.problem.dims.len, task.head * dims.batch + task.number);
        match before {
            Some(before) => scratch.unit.clone_from(&before.units[item]),
            None => scratch.unit.clear(),
        }
        for row in (0..len).step_by(CHUNK) {
            task.backward_queries(row, (len - row).min(CHUNK), saved, outputs, scratch);
        }
        scratch.unit.clear();
        let mut behind = behind.get(item).map(|ahead| ahead.lock().expect("a unit is one item's"));
        let mut later = behind.as_ref().map_or(0, |ahead| scratch.begin_behind(ahead));
        for row in (0..len).step_by(CHUNK).rev() {
            let rows = (len - row).min(CHUNK);
            later = task.backward_keys(row, [rows, later], saved, outputs, scratch);
        }
        let mut d_cumsum = behind.as_ref().map_or(0.0, |ahead| ahead.d_cumsum);
        task.d_gates_from_cumsum(outputs, &mut d_cumsum);
        if let Some(ahead) = &mut behind {
            ahead.d_cumsum = d_cumsum;
            scratch.leave_behind(later, ahead);
        }
    });
}

impl<T: Number> HeadTask<'_, T> {
    /// `g` of rows.
    pub(super) fn load_gradient(
        &self,
        row: usize,
        rows: usize,
        saved: &SegmentSaved<T>,
        scratch: &mut LinearBackwardScratch<T>,
    ) {
        let value_dim = self.problem.dims.value_dim;
        let (place, value) = (self.place(RowKind::Query, row, rows), padded(value_dim));
        load(saved.d_out, place, row, value_dim, &mut scratch.d_sums);
        load(saved.out, place, row, value_dim, &mut scratch.d_values);
        let denominators = &saved.denominators[row..];
        let d_sums = scratch.d_sums.chunks_exact_mut(value).zip(scratch.d_values.chunks_exact(value));
        for (((d_sums, out), d_count), denominator) in d_sums.zip(&mut scratch.d_counts).zip(denominators).take(rows) {
            let factor = if *denominator == T::ZERO { T::ZERO } else { T::ONE / *denominator };
            *d_count = -(factor * reduce::dot(d_sums, out));
            d_sums.iter_mut().for_each(|d| *d = factor * *d);
        }
    }

    /// Gradient in queries, and in the decay, going forwards: the sums are those before the chunk, then those after.
    fn backward_queries(
        &self,
        row: usize,
        rows: usize,
        saved: &SegmentSaved<T>,
        outputs: &GradientViews<T>,
        scratch: &mut LinearBackwardScratch<T>,
    ) {
        let before = scratch.unit.held;
        self.hold(row, rows, &mut scratch.unit, &mut scratch.chain);
        self.features(RowKind::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
        self.load_gradient(row, rows, saved, scratch);
        let LinearBackwardScratch { unit, room, queries, d_sums, d_counts, wide, d_features, .. } = &mut *scratch;
        let counts = Some(&d_counts[..]);
        let (values, factors) = (&d_sums[..], unit.gates.decay_since_start(before % CHUNK));
        let rows_of_chunk =
            ChunkRows { count: rows, first: 0, to_end: false, features: queries, values, counts, factors };
        unit.sums.of_values(self.terms, &rows_of_chunk, wide, StoreMode::Overwrite, d_features);
        if outputs.sizes[2] > 0 {
            // SAFETY: this item alone writes the part of its head and sequence.
            let d_weights = unsafe { outputs.d_weights.row(0, self.head, 0, outputs.sizes[2]) };
            unit.sums.weigh(self.terms, &rows_of_chunk, wide, room, d_weights);
        }
        self.queries_of_near(before, rows, outputs, scratch);
        self.finish(RowKind::Query, row, rows, outputs, scratch);
        scratch.unit.close(self.terms, &mut scratch.wide, &mut scratch.room);
    }

    /// Adds to `d_features` of queries what the near keys give, `before` of which were held before them.
    fn queries_of_near(
        &self,
        before: usize,
        rows: usize,
        outputs: &GradientViews<T>,
        scratch: &mut LinearBackwardScratch<T>,
    ) {
        let (width, keys, near_len) = (scratch.d_features.len() / CHUNK, scratch.unit.valid, self.terms.near_len);
        if keys == 0 {
            return;
        }
        let strips = Strips { before, rows, keys };
        self.value_products(strips, near_len, scratch);
        let LinearBackwardScratch { queries, unit, turned, products, of_values, d_features, .. } = scratch;
        if outputs.sizes[1] > 0 {
            strips.products(queries, &unit.keys, width, turned, (&mut products[..], near_len));
            // SAFETY: this item alone writes the part of its head and sequence.
            let d_near = unsafe { outputs.d_near.row(0, self.head, 0, near_len) };
            for t in 0..rows {
                let row = t * near_len..t * near_len + strips.seen(t);
                loops::add_products(&mut d_near[near_len - 1 - before - t..], &products[row.clone()], &of_values[row]);
            }
        }
        strips.mask(self.terms, &unit.gates, of_values, near_len);
        strips.times(of_values, near_len, &unit.keys, (d_features, width));
    }

    /// `g_i.u_j` of queries and near keys, `[rows, stride]`.
    fn value_products(&self, strips: Strips, stride: usize, scratch: &mut LinearBackwardScratch<T>) {
        let value = scratch.d_values.len() / CHUNK;
        let LinearBackwardScratch { d_sums, d_counts, unit, turned, of_values, .. } = scratch;
        strips.products(d_sums, &unit.values, value, turned, (&mut of_values[..], stride));
        for (t, (row, d_count)) in of_values.chunks_exact_mut(stride).zip(d_counts).enumerate().take(strips.rows) {
            loops::add(&mut row[..strips.seen(t)], *d_count);
        }
    }

    /// Gradient in keys and values, going backwards, in front of `later` queries that are near; the sums are over those
    /// behind them. Returns how many of them are near to the keys before.
    fn backward_keys(
        &self,
        row: usize,
        [rows, later]: [usize; 2],
        saved: &SegmentSaved<T>,
        outputs: &GradientViews<T>,
        scratch: &mut LinearBackwardScratch<T>,
    ) -> usize {
        let (width, value) = (scratch.d_features.len() / CHUNK, scratch.d_values.len() / CHUNK);
        if later > 0 {
            scratch.queries.copy_within(..later * width, CHUNK * width);
            scratch.d_sums.copy_within(..later * value, CHUNK * value);
            scratch.d_counts.copy_within(..later, CHUNK);
        }
        let queries_ahead = rows + later;
        scratch.unit.hold_none();
        self.features(RowKind::Query, row, rows, &mut scratch.chain, &mut scratch.queries);
        self.hold(row, rows, &mut scratch.unit, &mut scratch.chain);
        self.load_gradient(row, rows, saved, scratch);
        scratch.nothing_yet(rows);
        if scratch.unit.valid > 0 {
            self.keys_of_near(queries_ahead, scratch);
            self.keys_of_sums(scratch);
        }
        self.finish(RowKind::Key, row, rows, outputs, scratch);
        // what is not near to the next keys goes into the sums
        let from = queries_ahead.min(self.terms.near_len - CHUNK);
        if queries_ahead > from {
            let LinearBackwardScratch { unit, room, queries, d_sums, d_counts, wide, .. } = scratch;
            let (features, values) = (&queries[from * width..], &d_sums[from * value..]);
            let counts = Some(&d_counts[from..]);
            let (cumsum, factors) = (unit.gates.end(), unit.gates.decay_since_start(0));
            let gone =
                ChunkRows { count: queries_ahead - from, first: 0, to_end: false, features, values, counts, factors };
            unit.sums.add(self.terms, (&gone, cumsum), wide, room);
        }
        from
    }

    /// `d_features` of keys and `d_values` through the near queries.
    fn keys_of_near(&self, rows: usize, scratch: &mut LinearBackwardScratch<T>) {
        let (width, value) = (scratch.d_features.len() / CHUNK, scratch.d_values.len() / CHUNK);
        let strips = Strips { before: 0, rows, keys: scratch.unit.valid };
        self.value_products(strips, CHUNK, scratch);
        let LinearBackwardScratch { products, of_values, queries, d_sums, d_features, d_values, unit, turned, .. } =
            scratch;
        strips.products(queries, &unit.keys, width, turned, (&mut products[..], CHUNK));
        for products in [&mut *of_values, products] {
            strips.mask(self.terms, &unit.gates, products, CHUNK);
        }
        strips.transposed_times(of_values, CHUNK, queries, (d_features, width));
        strips.transposed_times(products, CHUNK, d_sums, (d_values, value));
    }

    /// Adds to both what the sums over queries give.
    pub(super) fn keys_of_sums(&self, scratch: &mut LinearBackwardScratch<T>) {
        let LinearBackwardScratch { unit, wide, d_features, d_values, .. } = scratch;
        let HeadState { sums, keys, values, valid, gates, .. } = unit;
        let factors = gates.decay_until_end();
        let rows_of_chunk =
            ChunkRows { count: *valid, first: 0, to_end: true, features: keys, values, counts: None, factors };
        if !sums.is_empty() {
            sums.of_values(self.terms, &rows_of_chunk, wide, StoreMode::Accumulate, d_features);
            sums.of_features(self.terms, &rows_of_chunk, wide, StoreMode::Accumulate, (d_values, None));
        }
    }

    /// From `d_features` to the gradient in rows, which is written, and in parameters; of keys also `d_values`.
    pub(super) fn finish(
        &self,
        side: RowKind,
        row: usize,
        rows: usize,
        outputs: &GradientViews<T>,
        scratch: &mut LinearBackwardScratch<T>,
    ) {
        let LinearAttentionDims { head_dim, value_dim, .. } = self.problem.dims;
        let LinearBackwardScratch { chain, unit, queries, d_features, d_values, .. } = scratch;
        let features = if side == RowKind::Query { &queries[..] } else { &unit.keys[..] };
        self.gate_cumsum(side, row, [rows, d_features.len() / CHUNK], [features, d_features], outputs);
        // SAFETY: this item alone writes the part of its head and sequence.
        let d_parameters = unsafe { outputs.d_parameters.row(0, self.head, 0, outputs.sizes[0]) };
        let d_x = self.chain.backward(self.place(side, row, rows), features, d_features, chain, d_parameters);
        let to = if side == RowKind::Query { &outputs.d_q } else { &outputs.d_k };
        for (t, d_x) in d_x.chunks_exact(padded(head_dim)).enumerate() {
            // SAFETY: the view is checked, and this item alone writes this row.
            unsafe { to.row(0, self.head, row + t, head_dim) }.copy_from_slice(&d_x[..head_dim]);
        }
        if side == RowKind::Key {
            for (t, d) in d_values.chunks_exact(padded(value_dim)).take(rows).enumerate() {
                // SAFETY: likewise.
                unsafe { outputs.d_v.row(0, self.head, row + t, value_dim) }.copy_from_slice(&d[..value_dim]);
            }
        }
    }

    /// Writes what queries leave in the gradient of their cumulative gates, of which keys then take: `d_c_t = sum_j d_p_tj p_tj - sum_i d_p_it p_it`,
    /// where `p` are the decayed products, so each is a product of features with their gradient.
    fn gate_cumsum(
        &self,
        side: RowKind,
        row: usize,
        [rows, width]: [usize; 2],
        [features, d_features]: [&[T]; 2],
        outputs: &GradientViews<T>,
    ) {
        let Some(d_gate_cumsum) = &outputs.d_gates else { return };
        // SAFETY: the buffer is checked, and this item alone writes the row of its head and sequence.
        let d_gate_cumsum = unsafe { d_gate_cumsum.row(0, self.head, 0, self.problem.dims.len) };
        let pairs = features.chunks_exact(width).zip(d_features.chunks_exact(width));
        for (d_cumsum, (features, d_features)) in d_gate_cumsum[row..row + rows].iter_mut().zip(pairs) {
            let product = reduce::dot(features, d_features);
            *d_cumsum = if side == RowKind::Query { product } else { *d_cumsum - product };
        }
    }

    /// From the gradient in cumulative gates to that in gates, which are in every cumulative gate from theirs on; `behind` is the sum over later rows.
    fn d_gates_from_cumsum(&self, outputs: &GradientViews<T>, behind: &mut f64) {
        let Some(d_gates) = &outputs.d_gates else { return };
        // SAFETY: as above.
        let d_gates = unsafe { d_gates.row(0, self.head, 0, self.problem.dims.len) };
        for d in d_gates.iter_mut().rev() {
            *behind += d.to_f64();
            *d = T::from_f64(*behind);
        }
    }
}
