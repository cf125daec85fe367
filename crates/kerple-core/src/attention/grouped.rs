//! Attention with near keys at their own distances and far keys at distances of groups (Self-Extend).
//!
//! ```text
//! d < W           s_ij of near rows            queries and keys turned by their positions
//! d >= W          s_ij of far rows             queries turned by floor(i / G) + W - floor(W / G), keys by floor(j / G)
//! out             one softmax over both, and over an attention sink
//! ```
//!
//! Each part is attention of its own: near keys under a window, far keys in an interval per query. The log-sum-exp of a part is its share
//! of a row, so no score is computed twice and memory is linear in the length. The backward of each part takes the log-sum-exp and
//! the output of both together.

mod naive;

use super::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, DocumentSegment, KeyInterval, Mask,
    ScoreTable, ScoreTransform, Strides, View, ViewMut,
};
use crate::Number;
use crate::forms::Sides;
use crate::tiles::workers;

/// Queries and keys as they are turned for near keys and for far ones, and values.
#[derive(Clone, Copy, Debug)]
pub struct GroupedRows<'a, T> {
    /// For keys nearer than the window, `[B, H, Q, D]` and `[B, kv_heads, K, D]`.
    pub near: [View<'a, T>; 2],
    /// For the others.
    pub far: [View<'a, T>; 2],
    /// `[B, kv_heads, K, D]`
    pub v: View<'a, T>,
}

/// What the backward reads of the forward, and the gradient of its output.
#[derive(Clone, Copy, Debug)]
pub struct GroupedSaved<'a, T> {
    /// `[B, H, Q, D]`
    pub out: View<'a, T>,
    /// Of both parts together, `[B, H, Q]`.
    pub lse: &'a [T],
    /// `[B, H, Q, D]`
    pub d_out: View<'a, T>,
}

/// Where the gradients go; every buffer is overwritten.
#[derive(Debug)]
pub struct GroupedGradients<'a, T> {
    /// In queries and keys for near keys.
    pub near: [ViewMut<'a, T>; 2],
    /// In those for far keys.
    pub far: [ViewMut<'a, T>; 2],
    /// `[B, kv_heads, K, D]`
    pub d_v: ViewMut<'a, T>,
    /// `[H]`, where the problem has sinks.
    pub d_sinks: Option<&'a mut [T]>,
}

/// Writes `out` and `lse`, `[B, H, Q]`; keys at distances below `window` are near.
///
/// # Panics
/// If the problem is not causal attention by softmax without tables, intervals and dropout, or a slice does not fit its sizes.
pub fn forward<T: Number>(
    problem: &AttentionProblem<T>,
    window: usize,
    rows: GroupedRows<T>,
    out: ViewMut<T>,
    lse: &mut [T],
) {
    check(problem);
    let AttentionDims { batch, heads, queries, value_dim, .. } = problem.dims;
    let ([q, k], [far_q, far_k]) = (rows.near, rows.far);
    super::forward(&near_keys(problem, window), q, k, rows.v, out.starting_at(0, 0), lse);
    let Some(intervals) = far_keys(problem, window) else { return };
    let strides = Strides { batch: heads * queries * value_dim, head: queries * value_dim, row: value_dim };
    let (mut far_out, mut far_lse) = (vec![T::ZERO; batch * strides.batch], vec![T::ZERO; batch * heads * queries]);
    let to = ViewMut::new(&mut far_out, strides);
    super::forward(&far_problem(problem, &intervals), far_q, far_k, rows.v, to, &mut far_lse);
    workers::for_each_task(lse.chunks_mut(queries.max(1)), |unit, lse| {
        for (query, lse) in lse.iter_mut().enumerate() {
            let row = unit * queries + query;
            let (near, far) = (*lse, far_lse[row]);
            if far == T::NEG_INFINITY {
                continue;
            }
            let largest = near.max(far);
            *lse = largest + ((near - largest).exp() + (far - largest).exp()).ln();
            let [of_near, of_far] = [near, far].map(|part| (part - *lse).exp());
            // SAFETY: the view is checked, and this item alone writes this row.
            let to = unsafe { out.row(unit / heads, unit % heads, query, value_dim) };
            let from = &far_out[row * value_dim..][..value_dim];
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = of_near * *to + of_far * from);
        }
    });
}

/// The same by the reference in plain loops.
///
/// # Panics
/// As [`forward()`].
pub fn naive_forward<T: Number>(
    problem: &AttentionProblem<T>,
    window: usize,
    rows: GroupedRows<T>,
    out: ViewMut<T>,
    lse: &mut [T],
) {
    naive::forward(problem, window, rows, out, lse);
}

/// Writes every gradient of [`forward()`].
///
/// # Panics
/// As [`forward()`], or if two gradients share an element.
pub fn backward<T: Number>(
    problem: &AttentionProblem<T>,
    window: usize,
    rows: GroupedRows<T>,
    saved: GroupedSaved<T>,
    gradients: GroupedGradients<T>,
) {
    check(problem);
    let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim } = problem.dims;
    // a query that sees one key of a part may see others in the other part: as with a sink, that key has not all its weight
    let others = vec![T::ZERO; heads];
    let problem = &AttentionProblem { sinks: problem.sinks.or(Some(&others)), ..*problem };
    let GroupedGradients { near, far: [mut d_far_q, mut d_far_k], d_v, d_sinks } = gradients;
    let GroupedSaved { out, lse, d_out } = saved;
    let [of_near, of_far] = [rows.near, rows.far].map(|[q, k]| AttentionSaved { q, k, v: rows.v, out, lse, d_out });
    let [d_q, d_k] = near;
    let d_near = AttentionGradients { d_sinks, ..AttentionGradients::of_rows(d_q, d_k, d_v.starting_at(0, 0)) };
    super::backward(&near_keys(problem, window), of_near, d_near);
    let Some(intervals) = far_keys(problem, window) else {
        d_far_q.fill([batch, heads, queries, head_dim], T::ZERO);
        d_far_k.fill([batch, kv_heads, keys, head_dim], T::ZERO);
        return;
    };
    let strides = Strides { batch: kv_heads * keys * value_dim, head: keys * value_dim, row: value_dim };
    let mut d_far_v = vec![T::ZERO; batch * kv_heads * keys * value_dim];
    let d_far = AttentionGradients::of_rows(d_far_q, d_far_k, ViewMut::new(&mut d_far_v, strides));
    let far = AttentionProblem { sinks: problem.sinks, ..far_problem(problem, &intervals) };
    super::backward(&far, of_far, d_far);
    workers::for_each_number(batch * kv_heads, &|unit| {
        for (key, from) in d_far_v[unit * strides.head..][..strides.head].chunks_exact(value_dim).enumerate() {
            // SAFETY: the view is checked, and this item alone writes this head now.
            let to = unsafe { d_v.row(unit / kv_heads, unit % kv_heads, key, value_dim) };
            to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
        }
    });
}

/// The same by the reference in plain loops.
///
/// # Panics
/// As [`backward()`].
pub fn naive_backward<T: Number>(
    problem: &AttentionProblem<T>,
    window: usize,
    rows: GroupedRows<T>,
    saved: GroupedSaved<T>,
    gradients: GroupedGradients<T>,
) {
    naive::backward(problem, window, rows, saved, gradients);
}

fn check<T: Number>(problem: &AttentionProblem<T>) {
    let AttentionProblem { mask, normalizer, intervals, evicted, dropout, selection, scores, .. } = problem;
    assert!(mask.sides() == Sides::OneSided && mask.sink_tokens() == 0, "grouped distances require a causal window");
    let is_plain = normalizer.is_softmax() && intervals.is_none() && dropout.is_none() && selection.is_none();
    let ScoreTransform::Table(ScoreTable {
        bias: None,
        weight: None,
        feature_decay: None,
        decay_cumsum: None,
        gate_cumsum: None,
        positions: None,
        relative: None,
        ..
    }) = scores
    else {
        panic!("grouped distances take products of queries and keys and no other scores")
    };
    assert!(is_plain && *evicted == 0, "grouped distances are for softmax without intervals, dropout and selection");
}

/// Keys nearer than the window.
fn near_keys<'a, T: Number>(problem: &AttentionProblem<'a, T>, window: usize) -> AttentionProblem<'a, T> {
    let window = Some(problem.mask.window().map_or(window, |own| own.min(window)));
    AttentionProblem { mask: Mask::Causal { window }, ..*problem }
}

/// Keys at distances from the window on, as intervals.
fn far_problem<'a, T: Number>(
    problem: &AttentionProblem<'a, T>,
    intervals: &'a [KeyInterval],
) -> AttentionProblem<'a, T> {
    let (mask, intervals) = (Mask::BIDIRECTIONAL, Some(intervals));
    AttentionProblem { mask, intervals, lengths: None, documents: None, sinks: None, ..*problem }
}

/// Of every query the keys at distances from the window on, `[B, Q]`; `None`: no query has any.
fn far_keys<T: Number>(problem: &AttentionProblem<T>, window: usize) -> Option<Vec<KeyInterval>> {
    let AttentionDims { batch, queries, .. } = problem.dims;
    let mut intervals = vec![KeyInterval { start: 0, end: 0 }; batch * queries];
    for number in 0..problem.segments() {
        let (DocumentSegment { row, first_query, first_key, .. }, alone) =
            (problem.segment(number), problem.alone(number));
        for query in 0..alone.dims.queries {
            let seen = alone.visible(0, query);
            let before = alone.dims.position(query) + 1 - isize::try_from(window).unwrap_or(isize::MAX);
            let end = seen.end.min(before.max(0).cast_unsigned());
            if seen.start < end {
                let [start, end] = [seen.start, end].map(|key| first_key + key);
                intervals[row * queries + first_query + query] = KeyInterval { start, end };
            }
        }
    }
    intervals.iter().any(|interval| interval.start < interval.end).then_some(intervals)
}
