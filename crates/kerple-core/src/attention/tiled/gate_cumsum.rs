//! Cumulative gates of a tile: the difference between its queries and its keys, exact wherever in a
//! sequence the tile is.
//!
//! ```text
//! c_i - c_j = (high_i - high_j) + (low_i - low_j)        c = base + high + low
//! ```
//!
//! # Why two numbers from a base per tile
//!
//! Scores need `c_i - c_j` in `f32`, where only differences count. In `f32` a cumulative gate after
//! a million tokens differs from its neighbours by a few units in its last place, so casting `c` loses
//! the differences. Subtracting pair by pair in f64 would be exact, but the inner loop works on `f32`
//! vectors. So `c` stays f64, and each tile subtracts its base, the first key of the block (the
//! first query in the forward), once per token. One `f32` would still not do, since a single token
//! can change `c` by more than all others of its tile; the rounding of the difference is kept as
//! `low`. The result is as exact at the end of a sequence as at its start.

use crate::Number;
use crate::attention::{AttentionDims, AttentionProblem, DocumentSegment, View};
use crate::cpu::lanes::Lanes;
use crate::forms::Sides;
use crate::tiles::workers;
use std::ops::Range;

/// Cumulative gates of consecutive tokens, minus a base.
pub(super) struct GateOffsets<R> {
    high: Vec<R>,
    low: Vec<R>,
}

impl<R: Number> GateOffsets<R> {
    /// Room for so many tokens, or for none where there are no cumulative gates.
    pub(super) fn new(tokens: usize, wanted: bool) -> Self {
        let room = || workers::scratch(if wanted { tokens } else { 0 });
        GateOffsets { high: room(), low: room() }
    }

    /// Loads these cumulative gates; those after them are 0.
    pub(super) fn load(&mut self, gate_cumsum: &[f64], base: f64) {
        for ((high, low), cumsum) in self.high.iter_mut().zip(&mut self.low).zip(gate_cumsum) {
            let (since, rest) = difference(*cumsum, base);
            *high = R::from_f64(since);
            *low = R::from_f64(since - high.to_f64() + rest);
        }
        self.high[gate_cumsum.len()..].fill(R::ZERO);
        self.low[gate_cumsum.len()..].fill(R::ZERO);
    }

    /// Of one token, in all lanes.
    #[inline(always)]
    pub(super) fn splat<L: Lanes<Number = R>>(&self, lanes: L, token: usize) -> [L::Vector; 2] {
        [lanes.splat(self.high[token]), lanes.splat(self.low[token])]
    }

    /// Of the tokens from `token` on.
    #[inline(always)]
    pub(super) fn load_at<L: Lanes<Number = R>>(&self, lanes: L, token: usize) -> [L::Vector; 2] {
        assert!(token + L::COUNT <= self.high.len() && token + L::COUNT <= self.low.len());
        // SAFETY: the assertion bounds both.
        unsafe { [lanes.load(self.high.as_ptr().add(token)), lanes.load(self.low.as_ptr().add(token))] }
    }
}

/// A difference as it is rounded, and what the rounding took (Knuth's exact sum).
fn difference(a: f64, b: f64) -> (f64, f64) {
    let rounded = a - b;
    let of_b = a - rounded;
    (rounded, (a - (rounded + of_b)) + (of_b - b))
}

/// The cumulative gates of a tile, of the same base.
#[derive(Clone, Copy)]
pub(super) struct TileGates<'a, R> {
    pub(super) queries: &'a GateOffsets<R>,
    pub(super) keys: &'a GateOffsets<R>,
    pub(super) sides: Sides,
}

impl<R: Number> TileGates<'_, R> {
    /// What is added to scores: the difference of cumulative gates from key to query.
    #[inline(always)]
    pub(super) fn difference<L: Lanes<Number = R>>(
        &self,
        lanes: L,
        queries: [L::Vector; 2],
        keys: [L::Vector; 2],
    ) -> L::Vector {
        let passed = lanes.add(lanes.sub(queries[0], keys[0]), lanes.sub(queries[1], keys[1]));
        match self.sides {
            Sides::OneSided => passed,
            // cumulative gates do not increase, so one of the two orders is not positive
            Sides::TwoSided => lanes.min(lanes.sub(lanes.splat(R::ZERO), passed), passed),
        }
    }
}

/// The vector with the sign of each key's distance from the query, whose own key is in lane `own`.
#[inline(always)]
pub(super) fn signed<L: Lanes>(lanes: L, vector: L::Vector, own: isize) -> L::Vector {
    if own >= L::COUNT as isize {
        return vector;
    }
    if own < 0 {
        return lanes.sub(lanes.splat(L::Number::ZERO), vector);
    }
    let mut numbers = [L::Number::ZERO; 16];
    assert!(L::COUNT <= numbers.len());
    // SAFETY: `COUNT` numbers fit.
    unsafe {
        lanes.store(numbers.as_mut_ptr(), vector);
        numbers[own as usize] = L::Number::ZERO;
        numbers[own as usize + 1..].iter_mut().for_each(|number| *number = -*number);
        lanes.load(numbers.as_ptr())
    }
}

/// Adds the part of the gradient that rows bring under a causal mask: the gradients of a row's scores sum to what its sink takes
/// of the mean, and to 0 where it has none.
pub(super) fn add_sinks<R: Number>(
    problem: &AttentionProblem<R>,
    lse: View<R>,
    delta: View<R>,
    d_gate_cumsum: &mut [f64],
) {
    let (Some(sinks), Sides::OneSided) = (problem.sinks, problem.mask.sides()) else { return };
    for OwnRows { row, head, queries, keys } in own_rows(problem) {
        let [lse, delta] = [lse, delta].map(|view| view.row(row, head, queries.start, queries.len()));
        for ((d_cumsum, lse), delta_i) in d_gate_cumsum[keys].iter_mut().zip(lse).zip(delta) {
            *d_cumsum += ((sinks[head] - *lse).exp() * *delta_i).to_f64();
        }
    }
}

/// One head's queries in a segment, and the keys at their positions in `[B, H, K]`.
struct OwnRows {
    row: usize,
    head: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

fn own_rows<R: Number>(problem: &AttentionProblem<R>) -> impl Iterator<Item = OwnRows> {
    let AttentionDims { heads, keys: all_keys, .. } = problem.dims;
    (0..problem.segments()).flat_map(move |number| {
        let DocumentSegment { row, first_query, queries, first_key, keys, .. } = problem.segment(number);
        (0..heads).map(move |head| {
            let first = (row * heads + head) * all_keys + first_key + keys - queries;
            OwnRows { row, head, queries: first_query..first_query + queries, keys: first..first + queries }
        })
    })
}

/// Adds sums over rows, `[B, H, Q]`, or nothing where there are none.
pub(super) fn add_rows<R: Number>(problem: &AttentionProblem<R>, rows: &[f64], d_gate_cumsum: &mut [f64]) {
    if rows.is_empty() {
        return;
    }
    let AttentionDims { heads, queries: all_queries, .. } = problem.dims;
    for OwnRows { row, head, queries, keys } in own_rows(problem) {
        let rows = &rows[(row * heads + head) * all_queries..][queries];
        d_gate_cumsum[keys].iter_mut().zip(rows).for_each(|(d_cumsum, row)| *d_cumsum += row);
    }
}
