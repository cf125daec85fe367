//! How products fade with distance.

use super::{CHUNK, loops};
use crate::Number;
use crate::features::padded;

/// `a_h(d)`: `near[h][d]` for positions of one chunk, `sum_k weights[h][k] exp(-rates[h][k] d)` for those of different ones.
///
/// The two should be one function: a kernel as it is, and a sum of exponentials within a tolerance of it at every `d >= 1`.
#[derive(Clone, Copy, Debug)]
pub struct Decay<'a, T> {
    /// Inside of a chunk, `[H, CHUNK]`.
    pub near: &'a [T],
    /// Number of exponentials, K.
    pub terms: usize,
    /// Rates, not negative, `[H, K]`.
    pub rates: &'a [f64],
    /// Weights, `[H, K]`.
    pub weights: &'a [T],
}

/// Gradients in a [`Decay`].
#[derive(Debug)]
pub struct DecayGradient<'a, T> {
    /// `[H, CHUNK]`
    pub d_near: &'a mut [T],
    /// `[H, K]`
    pub d_weights: &'a mut [T],
}

impl<T: Number> Decay<'_, T> {
    pub(super) fn check(&self, heads: usize) {
        let Decay { near, terms, rates, weights } = *self;
        crate::check_shape!(near, H = heads, CHUNK = CHUNK);
        crate::check_shape!(rates, H = heads, K = terms);
        crate::check_shape!(weights, H = heads, K = terms);
        assert!(rates.iter().all(|rate| *rate >= 0.0), "rates of decay are not negative");
    }

    /// The factor on the product of two positions.
    pub fn between(&self, head: usize, query: usize, key: usize) -> T {
        let d = query - key;
        if query / CHUNK == key / CHUNK {
            return self.near[head * CHUNK + d];
        }
        (0..self.terms).map(|k| self.weights[head * self.terms + k] * self.faded(head, k, d)).sum()
    }

    /// `exp(-rate d)`, made in f64.
    pub(super) fn faded(&self, head: usize, k: usize, d: usize) -> T {
        T::from_f64((-self.rates[head * self.terms + k] * d as f64).exp())
    }
}

/// The exponentials of one head over a chunk. Without a decay: one that does not fade.
#[derive(Clone, Debug)]
pub(super) struct Terms<T> {
    /// `exp(-rate_k d)`, `[K, CHUNK + 1]`
    faded: Vec<T>,
    /// `1 - exp(-rate_k CHUNK)`, `[K]`: of a slow term the factor itself would be rounded to a rate that is off by percents.
    lost: Vec<T>,
    /// `[K]`
    pub(super) weights: Vec<T>,
    /// Inside of a chunk, the last distance first, `[CHUNK]`; `None`: 1.
    near: Option<Vec<T>>,
}

impl<T: Number> Terms<T> {
    pub(super) fn new(decay: Option<&Decay<T>>, head: usize) -> Terms<T> {
        let Some(decay) = decay else {
            return Terms { faded: vec![T::ONE; CHUNK + 1], lost: vec![T::ZERO], weights: vec![T::ONE], near: None };
        };
        let all = (0..decay.terms).flat_map(|k| (0..=CHUNK).map(move |d| (k, d)));
        Terms {
            faded: all.map(|(k, d)| decay.faded(head, k, d)).collect(),
            lost: (0..decay.terms)
                .map(|k| T::from_f64(-f64::exp_m1(-decay.rates[head * decay.terms + k] * CHUNK as f64)))
                .collect(),
            weights: decay.weights[head * decay.terms..][..decay.terms].to_vec(),
            near: Some(decay.near[head * CHUNK..][..CHUNK].iter().rev().copied().collect()),
        }
    }

    /// Keeps of the products of a query with keys of its chunk, from the first on, what counts: those of the `seen` first
    /// keys, faded; the query is number `at`.
    pub(super) fn mask(&self, at: usize, seen: usize, products: &mut [T]) {
        products[seen..].fill(T::ZERO);
        if let Some(near) = &self.near {
            loops::multiply(&mut products[..seen], &near[CHUNK - 1 - at..]);
        }
    }

    /// `exp(-rate_k d)` for `d` up to [`CHUNK`].
    pub(super) fn at(&self, k: usize, d: usize) -> T {
        self.faded[k * (CHUNK + 1) + d]
    }

    /// Makes sums of a term fade over a chunk and adds what is fresh, rounding once: a sum that is nearly steady would drift
    /// if the two were rounded one after the other.
    pub(super) fn merge(&self, k: usize, sums: &mut [T], fresh: &[T]) {
        let (faded, lost) = (self.at(k, CHUNK), self.lost[k]);
        match lost < faded {
            true => loops::lose(sums, lost, fresh),
            false => loops::fade(sums, faded, fresh),
        }
    }

    /// Whether there is anything to multiply by.
    pub(super) fn is_plain(&self) -> bool {
        self.near.is_none()
    }
}

/// How sums of all terms lie side by side: a block of values for each term, then a column of counts for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// Values, padded to whole vectors.
    pub(super) value: usize,
    pub(super) terms: usize,
}

impl Columns {
    pub(super) fn new(value_dim: usize, terms: usize) -> Columns {
        Columns { value: padded(value_dim), terms }
    }

    /// Of all of it, padded.
    pub(super) fn all(self) -> usize {
        self.terms * self.value + padded(self.terms)
    }

    /// The column of a term's count.
    pub(super) fn count(self, k: usize) -> usize {
        self.terms * self.value + k
    }
}

/// Writes `[factor(k, j) v_j for each k, factor(k, j) for each k]` for rows `j`: `values` `[rows, padded]`, `counts` `[rows]`
/// or ones.
pub(super) fn spread<T: Number>(
    columns: Columns,
    rows: usize,
    (values, counts): (&[T], Option<&[T]>),
    factor: impl Fn(usize, usize) -> T,
    to: &mut [T],
) {
    let to = to.chunks_exact_mut(columns.all()).zip(values.chunks_exact(columns.value)).take(rows);
    for (j, (to, values)) in to.enumerate() {
        let count = counts.map_or(T::ONE, |counts| counts[j]);
        to[columns.count(columns.terms)..].fill(T::ZERO);
        for k in 0..columns.terms {
            let factor = factor(k, j);
            loops::scaled(&mut to[k * columns.value..(k + 1) * columns.value], factor, values);
            to[columns.count(k)] = factor * count;
        }
    }
}
