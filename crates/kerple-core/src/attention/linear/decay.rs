//! Decay of products with distance, and the number of sums that it needs.
//!
//! Between chunks a decay is a sum of K exponentials, and each needs a sum over the past of its own. Within a chunk the same
//! exponentials are nearly alike: as functions of the row they are combinations of J of themselves,
//!
//! ```text
//! e^(-rate_k t) ~ sum_m e^(-rate_k t_m) b_m(t)        t = 0 .. CHUNK - 1        J rows t_m, found by pivoting
//! ```
//!
//! (an interpolative decomposition, Cheng et al. 2005), and J is about 7 where K is 20 to 30. So rows meet J sums, not K, and a
//! chunk leaves J; the K sums are put together and taken apart once a chunk. Only slow exponentials are alike, which
//! is why the chunk before is treated one by one too, like the rows' own. Kernels that are no sum of exponentials, but soon
//! nothing, have all chunks before which matter treated so: an exact window.

use super::{CHUNK, NEAR, loops};
use crate::Number;
use crate::features::hash_numbers;
use std::hash::{DefaultHasher, Hash};

/// What sums of `f32` products leave of the tolerance of [`shapes`]; those of `f64` are as exact as they are.
pub const IN_F32: f64 = 1e-7;

/// `a_h(d)`: `near[h][d]` within a chunk and towards the near chunks before it, `sum_k weights[h][k] exp(-rates[h][k] d)`
/// for others.
///
/// The two should be one function: a kernel as it is, and a sum of exponentials within a tolerance of it at every `d > near_len - CHUNK`.
#[derive(Clone, Copy, Debug)]
pub struct Decay<'a, T> {
    /// Near positions, whose pairs are computed one by one, those of a row's own chunk among them: a multiple of [`CHUNK`], at least [`NEAR`].
    pub near_len: usize,
    /// At those, `[H, near_len]`.
    pub near: &'a [T],
    /// Number of exponentials, K; with none of them positions further away count for nothing.
    pub terms: usize,
    /// Rates, not negative, `[H, K]`.
    pub rates: &'a [f64],
    /// Weights, `[H, K]`.
    pub weights: &'a [T],
}

/// Gradients in a [`Decay`].
#[derive(Debug)]
pub struct DecayGradient<'a, T> {
    /// `[H, near_len]`
    pub d_near: &'a mut [T],
    /// `[H, K]`
    pub d_weights: &'a mut [T],
}

impl<T: Number> Decay<'_, T> {
    /// Puts everything that makes it another into `hasher`.
    pub(super) fn hash(&self, hasher: &mut DefaultHasher) {
        let Decay { near_len, near, terms, rates, weights } = *self;
        [near_len, terms].hash(hasher);
        hash_numbers(near.iter().chain(weights).map(|value| value.to_f64()), hasher);
        hash_numbers(rates.iter().copied(), hasher);
    }

    pub(super) fn check(&self, heads: usize) {
        let Decay { near_len, near, terms, rates, weights } = *self;
        assert!(
            near_len >= NEAR && near_len.is_multiple_of(CHUNK),
            "{near_len} positions are not a multiple of \
            {CHUNK} of at least two chunks"
        );
        crate::check_shape!(near, H = heads, near_len = near_len);
        crate::check_shape!(rates, H = heads, K = terms);
        crate::check_shape!(weights, H = heads, K = terms);
        assert!(rates.iter().all(|rate| *rate >= 0.0), "decay rates must not be negative");
    }

    /// Whether a pair is processed one by one, the later position first.
    pub fn is_near(&self, query: usize, key: usize) -> bool {
        query / CHUNK - key / CHUNK < self.near_len / CHUNK
    }

    /// The factor on the product of two positions.
    pub fn between(&self, head: usize, query: usize, key: usize) -> T {
        let d = query - key;
        if self.is_near(query, key) {
            return self.near[head * self.near_len + d];
        }
        (0..self.terms).map(|k| self.weights[head * self.terms + k] * self.exponential(head, k, d)).sum()
    }

    /// `exp(-rate d)`, made in f64.
    pub(super) fn exponential(&self, head: usize, k: usize, d: usize) -> T {
        T::from_f64((-self.rates[head * self.terms + k] * d as f64).exp())
    }
}

/// The exponentials of one head over the rows of a chunk. Without a decay: one with rate 0, and no chunk before.
#[derive(Clone, Debug)]
pub(super) struct DecayTerms<T> {
    /// K
    pub(super) terms: usize,
    /// J
    pub(super) shapes: usize,
    /// `b_m(t)`, `[J, CHUNK]`
    shape: Vec<T>,
    /// `exp(-rate_k t_m)`, `[K, J]`: what a term gets of what a chunk leaves in a shape.
    pub(super) taken: Vec<T>,
    /// `w_k exp(-rate_k (near_len - CHUNK + 1 + t_m))`, `[J, K]`: what a term gives to a shape over the chunks between.
    pub(super) given: Vec<T>,
    /// The same without `w_k`, `[K, J]`.
    pub(super) through: Vec<T>,
    /// `exp(-rate_k CHUNK)`, `[K]`
    kept: Vec<T>,
    /// `1 - exp(-rate_k CHUNK)`, `[K]`: of a slow term the factor itself would be rounded to a rate that is off by percents.
    lost: Vec<T>,
    /// Rows that are near: those of a chunk, and of earlier ones where there is a decay.
    pub(super) near_len: usize,
    /// Near, the last distance first, `[near_len]`; `None`: 1.
    near: Option<Vec<T>>,
}

impl<T: Number> DecayTerms<T> {
    pub(super) fn new(decay: Option<&Decay<T>>, head: usize) -> DecayTerms<T> {
        let one = || vec![T::ONE];
        let Some(decay) = decay else {
            let shape = vec![T::ONE; CHUNK];
            let [taken, given, through, kept] = [one(), one(), one(), one()];
            let lost = vec![T::ZERO];
            return DecayTerms {
                terms: 1,
                shapes: 1,
                shape,
                taken,
                given,
                through,
                kept,
                lost,
                near_len: CHUNK,
                near: None,
            };
        };
        let rates = &decay.rates[head * decay.terms..][..decay.terms];
        let weights = &decay.weights[head * decay.terms..][..decay.terms];
        let (rows, shape) = shapes(rates, if size_of::<T>() == 4 { IN_F32 } else { 1e-12 });
        let exponential = |rate: f64, d: usize| (-rate * d as f64).exp();
        let across = |k: usize, m: usize| exponential(rates[k], decay.near_len - CHUNK + 1 + rows[m]);
        let (terms, shapes) = (rates.len(), rows.len());
        let by_term = |at: usize| (at / shapes, at % shapes);
        let cast = |values: &mut dyn Iterator<Item = f64>| values.map(T::from_f64).collect::<Vec<T>>();
        let all = || (0..terms * shapes).map(by_term);
        DecayTerms {
            terms,
            shapes,
            shape: cast(&mut shape.into_iter()),
            taken: cast(&mut all().map(|(k, m)| exponential(rates[k], rows[m]))),
            given: cast(&mut (0..terms * shapes).map(|at| {
                let (m, k) = (at / terms, at % terms);
                weights[k].to_f64() * across(k, m)
            })),
            through: cast(&mut all().map(|(k, m)| across(k, m))),
            kept: cast(&mut rates.iter().map(|rate| exponential(*rate, CHUNK))),
            lost: cast(&mut rates.iter().map(|rate| -f64::exp_m1(-rate * CHUNK as f64))),
            near_len: decay.near_len,
            near: Some(decay.near[head * decay.near_len..][..decay.near_len].iter().rev().copied().collect()),
        }
    }

    /// Keeps of the products of a query with keys, from the first near one, what counts: those of the
    /// `seen` first, decayed; the query itself has number `at` among them.
    pub(super) fn mask(&self, at: usize, seen: usize, products: &mut [T]) {
        products[seen..].fill(T::ZERO);
        if let Some(near) = &self.near {
            loops::multiply(&mut products[..seen], &near[self.near_len - 1 - at..]);
        }
    }

    /// `b_m` of a row of a chunk.
    pub(super) fn shape(&self, m: usize, row: usize) -> T {
        self.shape[m * CHUNK + row]
    }

    /// Decays the sums of a term over a chunk and adds what is fresh, rounding once: a sum that is nearly steady would drift
    /// if the two were rounded one after the other.
    pub(super) fn merge(&self, k: usize, sums: &mut [T], fresh: &[T]) {
        let (kept, lost) = (self.kept[k], self.lost[k]);
        if lost < kept {
            loops::decay_add_slow(sums, lost, fresh);
        } else {
            loops::decay_add(sums, kept, fresh);
        }
    }

    /// Whether there is nothing to multiply by.
    pub(super) fn is_plain(&self) -> bool {
        self.near.is_none()
    }
}

/// Rows `t_m` of a chunk, J of them, and `b_m(t)`, `[J, CHUNK]`, such that `e^(-rate t)` of every rate is within a tolerance of
/// `sum_m e^(-rate t_m) b_m(t)`.
///
/// Gram-Schmidt over the columns `e^(-rate_k t)`, each time the one that is furthest from what those before it span.
pub fn shapes(rates: &[f64], tolerance: f64) -> (Vec<usize>, Vec<f64>) {
    let column = |t: usize| rates.iter().map(|rate| (-rate * t as f64).exp()).collect::<Vec<f64>>();
    let mut rest: Vec<Vec<f64>> = (0..CHUNK).map(column).collect();
    let (mut rows, mut along): (Vec<usize>, Vec<Vec<f64>>) = Default::default();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    while rows.len() < rates.len() {
        let norms: Vec<f64> = rest.iter().map(|column| dot(column, column).sqrt()).collect();
        let row = (0..CHUNK).max_by(|a, b| norms[*a].total_cmp(&norms[*b])).expect("a chunk has rows");
        if norms[row] <= tolerance {
            break;
        }
        let unit: Vec<f64> = rest[row].iter().map(|x| x / norms[row]).collect();
        let shares: Vec<f64> = rest.iter().map(|column| dot(column, &unit)).collect();
        for (column, share) in rest.iter_mut().zip(&shares) {
            column.iter_mut().zip(&unit).for_each(|(x, unit)| *x -= share * unit);
        }
        rows.push(row);
        along.push(shares);
    }
    // the columns of `rows` are a triangle in these directions: solved from the last on
    let mut shape = along.concat();
    for m in (0..rows.len()).rev() {
        for t in 0..CHUNK {
            let known: f64 = (m + 1..rows.len()).map(|n| along[m][rows[n]] * shape[n * CHUNK + t]).sum();
            shape[m * CHUNK + t] = (along[m][t] - known) / along[m][rows[m]];
        }
    }
    (rows, shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calculus::exponentials::{Amplitude, ErrorBudget, RateGrid, SumTolerance};

    #[test]
    fn exponentials_are_combinations_of_a_few() {
        for (tolerance, horizon) in [(SumTolerance::Thousandth, 1 << 20), (SumTolerance::TenThousandth, 1 << 12)] {
            let grid = RateGrid::log(&ErrorBudget { horizon, tolerance, amplitude: Amplitude::Eight });
            let (rows, shape) = shapes(grid.rates(), 1e-7);
            assert!(rows.len() <= 10 && rows.len() < grid.rates().len(), "{} shapes", rows.len());
            for (rate, t) in grid.rates().iter().flat_map(|rate| (0..CHUNK).map(move |t| (rate, t))) {
                let parts = rows.iter().enumerate().map(|(m, row)| shape[m * CHUNK + t] * (-rate * *row as f64).exp());
                let error = parts.sum::<f64>() - (-rate * t as f64).exp();
                // what is left of a column is within 1e-7; the rest is rounding of it
                assert!(error.abs() <= 2e-7, "{rate} {t}: {error}");
            }
            // they are no larger than what they are made of, so f32 loses nothing
            assert!(shape.iter().all(|b| b.abs() < 3.0));
        }
    }

    #[test]
    fn one_exponential_is_itself() {
        let (rows, shape) = shapes(&[0.02], 1e-7);
        assert_eq!(rows, [0]);
        assert!((0..CHUNK).all(|t| (shape[t] - (-0.02 * t as f64).exp()).abs() < 1e-15));
    }
}
