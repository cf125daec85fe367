//! Stick-breaking and softpick tile by tile, in place of the online softmax.
//!
//! The forward has queries as lanes. Stick-breaking goes through the keys of a tile, and through tiles, from the query to the left.
//! It keeps one number per query, the product of all `1 - sigmoid(z)` so far, so that no weight needs a maximum or a second look.
//! Softpick is an online softmax whose maximum starts at 0: where no logit is positive its weights are 0 whatever the shift.
//!
//! # Why the backward of stick-breaking goes from right to left too
//!
//! ```text
//! d_z[j] = A[j] G[j] - sigmoid(z[j]) (sum over n <= j of A[n] G[n] + remainder R)        G = d_out.v, R = d_out.v of the query
//! ```
//!
//! The inner sum is `d_out.out` minus the sum over the keys to the right, so one more number per query is enough, and weights are
//! computed as in the forward. From left to right the sum would be exact, but weights would be quotients of a product over the row,
//! which is 0 in `f32` after a hundred keys. From right to left the sum is a difference of numbers that cancel, and the far keys would
//! get its rounding error times their `sigmoid(z)`. It is at most what the keys to the right have left times the largest value, so
//! it is cut to that, [`RowCarry::bound`], and falls to 0 as it should.

use super::backward::{KEYS, QUERIES};
use super::forward::{self, QueryTile};
use super::gradient::RowLogits;
use super::tile::{KeyTile, STRIP};
use crate::Number;
use crate::attention::ViewMut;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::{Normalizer, SOFTPICK_EPS};
use crate::tiles::workers;
use std::array::from_fn;
use std::ops::Range;

// the forward and the backward share the columns
const _: () = assert!(forward::QUERIES == QUERIES && forward::KEYS == KEYS);

/// Rows of the backward that are scanned together, so that their sums need not wait for each other; divides [`STRIP`].
const ROWS_AT_ONCE: usize = 6;

const _: () = assert!(STRIP.is_multiple_of(ROWS_AT_ONCE));

/// `sigmoid(z)` and `1 - sigmoid(z)`, each to full precision.
#[inline(always)]
fn shares<R: Number>(z: R) -> [R; 2] {
    let small = (R::ZERO - magnitude(z)).exp();
    let larger = R::ONE / (R::ONE + small);
    let smaller = small * larger;
    if z > R::ZERO { [larger, smaller] } else { [smaller, larger] }
}

#[inline(always)]
fn magnitude<R: Number>(x: R) -> R {
    x.max(R::ZERO - x)
}

/// Logits of a tile by key, `[KEYS, QUERIES]`, become weights as [`Normalizer`] defines them, those of softpick times a denominator
/// that is not known yet.
pub(super) struct TileWeights<'a, R> {
    pub(super) normalizer: Normalizer,
    pub(super) tile: QueryTile,
    pub(super) logits: &'a mut [R],
    /// Of softpick, at least 0.
    pub(super) row_max: &'a mut [R],
    /// Of softpick the sum so far, of stick-breaking the share that is left.
    pub(super) row_sum: &'a mut [R],
    /// The factor of earlier sums of softpick.
    pub(super) rescale: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for TileWeights<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let TileWeights { normalizer, tile, logits, row_max, row_sum, rescale } = self;
        let end = tile.queries.next_multiple_of(L::COUNT);
        let columns = |key| first_lane::<L>(&tile, key)..end;
        if normalizer != Normalizer::Softpick {
            for key in (0..tile.keys).rev() {
                let columns = columns(key);
                let row = &mut logits[key * QUERIES..][columns.clone()];
                for (z, left) in row.iter_mut().zip(&mut row_sum[columns]) {
                    let [own, others] = shares(*z);
                    *z = own * *left;
                    *left = *left * others;
                }
            }
            return;
        }
        rescale[..end].copy_from_slice(&row_max[..end]);
        for key in 0..tile.keys {
            let row = &logits[key * QUERIES..][columns(key)];
            row_max[columns(key)].iter_mut().zip(row).for_each(|(max, &z)| *max = max.max(z));
        }
        let mut ones = [R::ZERO; QUERIES];
        for lane in 0..end {
            ones[lane] = (R::ZERO - row_max[lane]).exp();
            rescale[lane] = (rescale[lane] - row_max[lane]).exp();
            row_sum[lane] = row_sum[lane] * rescale[lane];
        }
        for key in 0..tile.keys {
            let columns = columns(key);
            let row = &mut logits[key * QUERIES..][columns.clone()];
            let of_lanes = row_max[columns.clone()].iter().zip(&ones[columns.clone()]).zip(&mut row_sum[columns]);
            for (z, ((&max, &one), sum)) in row.iter_mut().zip(of_lanes) {
                let above = shifted(*z, max, one);
                *sum += magnitude(above);
                *z = above.max(R::ZERO);
            }
        }
    }
}

/// `(e^z - 1) / e^max`, given `e^-max`; nothing of a hidden key.
#[inline(always)]
fn shifted<R: Number>(z: R, max: R, one: R) -> R {
    if z == R::NEG_INFINITY { R::ZERO } else { (z - max).exp() - one }
}

/// The first lane of the queries that look at a key of the tile.
#[inline(always)]
fn first_lane<L: Lanes>(tile: &QueryTile, key: usize) -> usize {
    let groups = tile.queries.div_ceil(L::COUNT);
    (0..groups).find(|group| key < tile.keys_seen_by(*group, L::COUNT)).unwrap_or(groups) * L::COUNT
}

/// The logits of some keys of one query, from left to right, become weights; those of softpick times a denominator that is not
/// known yet. Returns `[maximum, sum]` of softpick, or `[0, share left]` of stick-breaking.
pub(super) struct SplitWeights<'a, R> {
    pub(super) normalizer: Normalizer,
    pub(super) logits: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for SplitWeights<'_, R> {
    type Output = (R, R);

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) -> (R, R) {
        let SplitWeights { normalizer, logits } = self;
        if normalizer != Normalizer::Softpick {
            let mut left = R::ONE;
            for z in logits.iter_mut().rev() {
                let [own, others] = shares(*z);
                *z = own * left;
                left = left * others;
            }
            return (R::ZERO, left);
        }
        let max = logits.iter().fold(R::ZERO, |max, &z| max.max(z));
        let (one, mut sum) = ((R::ZERO - max).exp(), R::ZERO);
        for z in logits {
            let above = shifted(*z, max, one);
            sum += magnitude(above);
            *z = above.max(R::ZERO);
        }
        (max, sum)
    }
}

/// What a denominator of softpick has in addition to its sum.
pub(super) fn softpick_eps<R: Number>() -> R {
    R::from_f64(SOFTPICK_EPS)
}

/// What the backward of stick-breaking passes on from tile to tile, from right to left, `[B, H, Q]` each.
pub(super) struct RowCarry<'a, R> {
    /// What the keys so far have left.
    pub(super) left: ViewMut<'a, R>,
    /// What the other keys and the remainder contribute to `d_out.out`.
    pub(super) rest: ViewMut<'a, R>,
    /// At least every `|d_out.v|` of the row.
    pub(super) bound: ViewMut<'a, R>,
}

impl<R> RowCarry<'_, R> {
    /// That of a segment.
    pub(super) fn starting_at(&self, row: usize, first_query: usize) -> RowCarry<'_, R> {
        let [left, rest, bound] =
            [&self.left, &self.rest, &self.bound].map(|numbers| numbers.starting_at(row, first_query));
        RowCarry { left, rest, bound }
    }

    /// That of some rows.
    ///
    /// # Safety
    /// The caller alone has these rows.
    pub(super) unsafe fn rows(&self, head: usize, queries: Range<usize>) -> CarriedRows<'_, R> {
        // SAFETY: the caller's promise.
        let [left, rest, bound] = unsafe {
            [&self.left, &self.rest, &self.bound].map(|numbers| numbers.row(0, head, queries.start, queries.len()))
        };
        CarriedRows { left, rest, bound }
    }
}

/// The part of a [`RowCarry`] that a tile reads and writes, `[queries]` each.
pub(super) struct CarriedRows<'a, R> {
    pub(super) left: &'a mut [R],
    pub(super) rest: &'a mut [R],
    pub(super) bound: &'a [R],
}

impl<R: Number> CarriedRows<'_, R> {
    /// Whether keys further to the left have no weight and no gradient.
    pub(super) fn is_used_up(&self) -> bool {
        self.left.iter().all(|left| *left == R::ZERO)
    }
}

/// Weights of a tile and the gradient in its logits, `[QUERIES, KEYS]` each; zeros after the last key.
pub(super) struct NormalizedPairs<R> {
    pub(super) weights: Vec<R>,
    pub(super) d_logits: Vec<R>,
}

impl<R: Number> NormalizedPairs<R> {
    /// Room for a tile, where a normaliser other than softmax needs it.
    pub(super) fn new(normalizer: Normalizer) -> Option<Self> {
        let room = || workers::scratch(QUERIES * KEYS);
        (!normalizer.is_softmax()).then(|| NormalizedPairs { weights: room(), d_logits: room() })
    }
}

/// Computes them from scores and `d_out.v`.
pub(super) struct NormalizePairs<'a, R> {
    pub(super) tile: KeyTile,
    pub(super) logits: RowLogits<'a, R>,
    pub(super) d_weights: &'a [R],
    /// Of softpick: the logarithm of the denominator and `d_out.out` of each query.
    pub(super) lse: &'a [R],
    pub(super) delta: &'a [R],
    /// Of stick-breaking.
    pub(super) carried: Option<CarriedRows<'a, R>>,
    pub(super) to: &'a mut NormalizedPairs<R>,
}

impl<R: Number> SimdKernel<R> for NormalizePairs<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let NormalizePairs { tile, logits, d_weights, lse, delta, mut carried, to } = self;
        assert!(tile.queries <= QUERIES);
        for query in 0..tile.queries {
            let columns = tile.lanes_seen_by(query, L::COUNT);
            logits.store_row(lanes, query, columns, &mut to.weights[query * KEYS..][..KEYS]);
        }
        for first in (0..tile.queries).step_by(STRIP) {
            // all queries of a strip look at the same keys
            let columns = tile.lanes_seen_by(first, L::COUNT);
            let keys = columns.min(tile.keys);
            let queries = first..tile.queries.min(first + STRIP);
            for query in queries.clone() {
                let at = query * KEYS..query * KEYS + columns;
                let (weights, d_logits) = (&mut to.weights[at.clone()], &mut to.d_logits[at]);
                for numbers in [&mut *weights, &mut *d_logits] {
                    numbers[keys..].fill(R::ZERO);
                }
                let pairs = weights[..keys].iter_mut().zip(&mut d_logits[..keys]);
                if carried.is_some() {
                    pairs.for_each(|(z, other)| [*z, *other] = shares(*z));
                } else {
                    softpick_pairs(pairs.zip(&d_weights[query * KEYS..][..keys]), lse[query], delta[query]);
                }
            }
            let Some(carried) = &mut carried else { continue };
            let mut query = queries.start;
            while query < queries.end {
                let rows = (queries.end - query).min(ROWS_AT_ONCE);
                if rows == ROWS_AT_ONCE {
                    scan::<R, ROWS_AT_ONCE>(query, keys, d_weights, carried, to);
                } else {
                    (query..query + rows).for_each(|query| scan::<R, 1>(query, keys, d_weights, carried, to));
                }
                query += rows;
            }
        }
    }
}

/// Logits of a row become weights, given the logarithm of its denominator; `along` is the gradient of the output times the output.
#[inline(always)]
fn softpick_pairs<'a, R: Number>(pairs: impl Iterator<Item = ((&'a mut R, &'a mut R), &'a R)>, lse: R, along: R) {
    let one = (R::ZERO - lse).exp();
    for ((z, d_logit), &d) in pairs {
        let share = (*z - lse).exp();
        let slope = if *z > R::ZERO {
            d - along
        } else if *z < R::ZERO {
            along
        } else {
            *z * R::ZERO // 0, or NaN
        };
        *d_logit = share * slope;
        *z = (share - one).max(R::ZERO);
    }
}

/// From right to left, N rows side by side: `sigmoid(z)` and `1 - sigmoid(z)` become weights and the gradient in `z`.
#[inline(always)]
fn scan<R: Number, const N: usize>(
    first: usize,
    keys: usize,
    d_weights: &[R],
    carried: &mut CarriedRows<R>,
    to: &mut NormalizedPairs<R>,
) {
    let rows = first..first + N;
    let (Some(carried_left), Some(carried_rest), Some(bound)) = (
        carried.left[rows.clone()].as_mut_array::<N>(),
        carried.rest[rows.clone()].as_mut_array::<N>(),
        carried.bound[rows].as_array::<N>(),
    ) else {
        unreachable!("N rows are N numbers")
    };
    let (mut left, mut rest) = (*carried_left, *carried_rest);
    let at = first * KEYS..(first + N) * KEYS;
    let (weights, d_logits, d_weights) = (&mut to.weights[at.clone()], &mut to.d_logits[at.clone()], &d_weights[at]);
    assert!(keys <= KEYS);
    for key in (0..keys).rev() {
        let pairs: [(R, R, R); N] = from_fn(|row| {
            let at = row * KEYS + key;
            (weights[at], d_logits[at], d_weights[at])
        });
        for (row, (own, others, d)) in pairs.into_iter().enumerate() {
            let weight = own * left[row];
            let part = weight * d;
            let along = within(rest[row], left[row] * bound[row]);
            weights[row * KEYS + key] = weight;
            d_logits[row * KEYS + key] = part - own * along;
            rest[row] = along - part;
            left[row] = left[row] * others;
        }
    }
    (*carried_left, *carried_rest) = (left, rest);
}

/// The nearest number of `-limit..=limit`; NaN stays.
#[inline(always)]
fn within<R: Number>(x: R, limit: R) -> R {
    if x > limit {
        limit
    } else if x < R::ZERO - limit {
        R::ZERO - limit
    } else {
        x
    }
}
