//! Features whose products decay by what tokens say (Wall).
//!
//! ```text
//! e^(P_i - P_j) = e^(P_i - A) e^(A - P_j)        P: cumulative decays of a feature, which never increase; A: any number
//! ```
//!
//! So a tile multiplies its queries by the first factor and its keys by the second, and is a product of rows again. Where all
//! keys of a tile are before its queries, A is P between them, at the last key or at the first query: both factors are at most
//! 1, and what becomes 0 is below the smallest number beside any other score. Where the diagonal crosses the tile, A is in the
//! middle of what a feature loses there: both factors of every visible pair are at most `e^30`. A feature that loses more than
//! `e^60` within a tile is *steep*: its products are added pair by pair, as far as they are not 0.
//!
//! # Why f64 sums, and two numbers for an exponent
//!
//! P grows with the length, and its `f32` has lost the differences between neighbours long before a million tokens. So P is
//! f64, and differences are taken in f64. An exponent of 30 in `f32` is rounded by 1e-6, which a factor would be off by; the
//! rounding is kept as a second number and multiplied in. Pairs cancel the large part, so scores are as exact as without
//! decays.

use crate::Number;
use crate::attention::{AttentionDims, AttentionProblem, DocumentSegment, View, ViewMut};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::workers;
use std::ops::Range;

/// Largest exponent of a factor.
const MOST: f64 = 30.0;

/// The cumulative decays of one head of a sequence.
#[derive(Clone, Copy)]
pub(super) struct HeadDecays<'a> {
    /// `[K, D]`
    sums: View<'a, f64>,
    head: usize,
    head_dim: usize,
}

impl<'a> HeadDecays<'a> {
    /// Of a problem of one sequence, where its features decay so.
    pub(super) fn of<R: Number>(problem: &AttentionProblem<'a, R>, head: usize) -> Option<HeadDecays<'a>> {
        let sums = problem.tables().decay_cumsum?;
        Some(HeadDecays { sums, head, head_dim: problem.dims.head_dim })
    }

    pub(super) fn at(&self, token: usize) -> &'a [f64] {
        self.sums.row(0, self.head, token, self.head_dim)
    }
}

/// What the exponents of a tile are counted from, and room for one thread to compute them in.
pub(super) struct DecayTile<R> {
    /// A, by feature.
    reference: Vec<f64>,
    /// Whether some of its keys are after some of its queries.
    pub(super) is_crossed: bool,
    /// Features whose products are added pair by pair.
    pub(super) steep: Vec<usize>,
    /// What the rounding of a token's exponents took, `[width]`.
    rest: Vec<R>,
    /// D rounded up to whole vectors.
    width: usize,
    pairs: SteepColumn<R>,
}

impl<R: Number> DecayTile<R> {
    pub(super) fn new(head_dim: usize, width: usize) -> Self {
        DecayTile {
            reference: vec![0.0; head_dim],
            is_crossed: false,
            steep: Vec::new(),
            rest: workers::scratch(width),
            width,
            pairs: SteepColumn::default(),
        }
    }

    /// Turns to the tile of the queries at these positions and of these keys. Where no key is after a query, exponents are
    /// counted from this token between the two.
    pub(super) fn set(&mut self, decays: HeadDecays, queries: &Range<usize>, keys: &Range<usize>, between: usize) {
        self.steep.clear();
        self.is_crossed = keys.end > queries.start + 1;
        if !self.is_crossed {
            self.reference.copy_from_slice(decays.at(between));
            return;
        }
        // visible pairs are within these tokens
        let last = keys.end.min(queries.end) - 1;
        let first = keys.start.max(queries.start).min(last);
        for (feature, (high, low)) in decays.at(first).iter().zip(decays.at(last)).enumerate() {
            self.reference[feature] = 0.5 * (high + low);
            if high - low > 2.0 * MOST {
                self.steep.push(feature);
            }
        }
    }

    /// `e^(P_i - A)` of these queries, or their rows times that, `[queries, width]`.
    pub(super) fn query_factors<L: Lanes<Number = R>>(
        &mut self,
        lanes: L,
        (decays, queries): (HeadDecays, Range<usize>),
        rows: Option<DecayedRows<R>>,
        to: &mut [R],
    ) {
        self.factors(lanes, (decays, queries), 1.0, rows, to);
    }

    /// `e^(A - P_j)` of these keys, or their rows times that, `[keys, width]`.
    pub(super) fn key_factors<L: Lanes<Number = R>>(
        &mut self,
        lanes: L,
        (decays, keys): (HeadDecays, Range<usize>),
        rows: Option<DecayedRows<R>>,
        to: &mut [R],
    ) {
        self.factors(lanes, (decays, keys), -1.0, rows, to);
    }

    fn factors<L: Lanes<Number = R>>(
        &mut self,
        lanes: L,
        (decays, tokens): (HeadDecays, Range<usize>),
        sign: f64,
        rows: Option<DecayedRows<R>>,
        to: &mut [R],
    ) {
        let DecayTile { reference, steep, rest, width, .. } = self;
        let to = &mut to[..tokens.len() * *width];
        lanes.run(Factors { decays, tokens, reference, steep, sign, rest, rows, to });
    }

    /// Calls `f` with each query and the decays `e^(P_i - P_j)` of one steep feature to some of the keys that are not after it:
    /// all others have decayed to 0. Queries and keys are counted from the first of the tile.
    pub(super) fn for_each_steep<L: Lanes<Number = R>>(
        &mut self,
        lanes: L,
        (decays, feature): (HeadDecays, usize),
        queries: Range<usize>,
        keys: Range<usize>,
        mut f: impl FnMut(usize, Range<usize>, &[R]),
    ) {
        let SteepColumn { sums, exponents, rest } = &mut self.pairs;
        let lowest = if R::from_f64(-104.0).exp() == R::ZERO { -104.0 } else { -746.0 };
        sums.clear();
        sums.extend(keys.clone().map(|key| decays.at(key)[feature]));
        for (query, position) in queries.enumerate() {
            let own = decays.at(position)[feature];
            let end = (position + 1).min(keys.end).saturating_sub(keys.start);
            // sums do not increase, so exponents do not decrease with the key
            let seen = sums[..end].partition_point(|sum| own - sum < lowest)..end;
            exponents.clear();
            exponents.extend(sums[seen.clone()].iter().map(|sum| R::from_f64(own - sum)));
            rest.clear();
            rest.extend(sums[seen.clone()].iter().zip(&*exponents).map(|(sum, e)| R::from_f64(own - sum - e.to_f64())));
            for padded in [&mut *exponents, &mut *rest] {
                padded.resize(seen.len().next_multiple_of(L::COUNT), R::ZERO);
            }
            lanes.run(Exponentials { of: exponents, rest });
            let decays = &exponents[..seen.len()];
            f(query, seen, decays);
        }
    }
}

/// One feature of the keys of a tile, and exponents of one query's pairs.
#[derive(Default)]
struct SteepColumn<R> {
    sums: Vec<f64>,
    exponents: Vec<R>,
    rest: Vec<R>,
}

/// Rows that are multiplied by their factors.
#[derive(Clone, Copy)]
pub(super) struct DecayedRows<'a, R> {
    pub(super) from: &'a [R],
    pub(super) stride: usize,
}

/// `e^(sign (P - A))` of tokens, `[tokens, width]`; 0 of steep features. Times rows, where there are some.
struct Factors<'a, R> {
    decays: HeadDecays<'a>,
    tokens: Range<usize>,
    reference: &'a [f64],
    steep: &'a [usize],
    sign: f64,
    rest: &'a mut [R],
    rows: Option<DecayedRows<'a, R>>,
    to: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for Factors<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let Factors { decays, tokens, reference, steep, sign, rest, rows, to } = self;
        let (width, head_dim) = (rest.len(), reference.len());
        rest[head_dim..].fill(R::ZERO);
        for (at, (to, token)) in to.chunks_exact_mut(width).zip(tokens).enumerate() {
            let (own, padding) = to.split_at_mut(head_dim);
            let sums = decays.at(token).iter().zip(reference);
            for ((own, rest), (sum, reference)) in own.iter_mut().zip(&mut *rest).zip(sums) {
                // only of pairs that are not visible does this change a factor
                let exponent = sign * (sum - reference);
                let exponent = if exponent > MOST { MOST } else { exponent };
                *own = R::from_f64(exponent);
                *rest = R::from_f64(exponent - own.to_f64());
            }
            for feature in steep {
                (own[*feature], rest[*feature]) = (R::NEG_INFINITY, R::ZERO);
            }
            padding.fill(R::ZERO);
            Exponentials { of: &mut *to, rest: &*rest }.run(lanes);
            if let Some(DecayedRows { from, stride }) = rows {
                let (own, padding) = to.split_at_mut(head_dim);
                own.iter_mut().zip(&from[at * stride..]).for_each(|(own, from)| *own = *own * *from);
                padding.fill(R::ZERO);
            }
        }
    }
}

/// Replaces numbers by `e^(number + rest)`, whole vectors.
struct Exponentials<'a, R> {
    of: &'a mut [R],
    rest: &'a [R],
}

impl<R: Number> SimdKernel<R> for Exponentials<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let Exponentials { of, rest } = self;
        assert!(of.len() == rest.len() && of.len().is_multiple_of(L::COUNT));
        for at in (0..of.len()).step_by(L::COUNT) {
            // SAFETY: both slices hold whole vectors.
            unsafe {
                let to = of.as_mut_ptr().add(at);
                let large = lanes.exp(lanes.load(to));
                lanes.store(to, lanes.mul_add(large, lanes.load(rest.as_ptr().add(at)), large));
            }
        }
    }
}

/// `to[i] *= by[i]`, whole vectors.
pub(super) struct Multiply<'a, R> {
    pub(super) to: &'a mut [R],
    pub(super) by: &'a [R],
}

impl<R: Number> SimdKernel<R> for Multiply<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let Multiply { to, by } = self;
        assert!(to.len() <= by.len() && to.len().is_multiple_of(L::COUNT));
        for at in (0..to.len()).step_by(L::COUNT) {
            // SAFETY: both slices hold that many numbers.
            unsafe {
                let to = to.as_mut_ptr().add(at);
                lanes.store(to, lanes.mul(lanes.load(to), lanes.load(by.as_ptr().add(at))));
            }
        }
    }
}

/// Adds the part of the gradient in cumulative decays, `[B, H, K, D]`, that queries bring: a query enters as `q e^P` alone, so
/// it is `q` times the gradient in `q`. Keys bring `-k` times that in `k`, head by head.
pub(super) fn add_queries<R: Number>(
    problem: &AttentionProblem<R>,
    q: View<R>,
    d_q: &ViewMut<R>,
    d_decay_cumsum: &ViewMut<f64>,
) {
    let AttentionDims { heads, head_dim, .. } = problem.dims;
    workers::for_each_number(problem.segments() * heads, &|unit| {
        let DocumentSegment { row, first_query, queries, first_key, keys, .. } = problem.segment(unit / heads);
        for at in 0..queries {
            let q = q.row(row, unit % heads, first_query + at, head_dim);
            // SAFETY: both views are checked, nobody writes to `d_q` any more, and this item alone writes this head's tokens.
            let (d_q, to) = unsafe {
                let d_q = d_q.row(row, unit % heads, first_query + at, head_dim);
                (&*d_q, d_decay_cumsum.row(row, unit % heads, first_key + keys - queries + at, head_dim))
            };
            to.iter_mut().zip(q).zip(d_q).for_each(|((to, q), d)| *to += q.to_f64() * d.to_f64());
        }
    });
}
