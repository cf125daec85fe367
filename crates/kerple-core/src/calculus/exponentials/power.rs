//! `exp(-r1 d^p)`, `0 < p <= 1`, as a sum of exponentials: rates that follow the kernel, weights fitted to it.
//!
//! The kernel is a mixture of exponentials with the one-sided stable density (Zolotarev 1986), but no grid of rates serves all
//! of them: towards `p = 1` the density becomes a point at `r1`, which neighbours on a coarse grid do not replace. What it has is
//! an edge: below it the density falls like `e^-E`, above it like a power,
//!
//! ```text
//! E(lambda) = (1 - p) p^(p / (1 - p)) r1^(1 / (1 - p)) lambda^(-p / (1 - p))
//! a(d) ~ sum_j w_j e^(-lambda_j d)        lambda_0 = rho, E(rho) = 15        lambda_j = rho + lo e^(h (j - 1))
//! ```
//!
//! so rates are spread in the logarithm of their distance to an edge `rho`, for any `p` alike; for small `p`, where the kernel
//! hardly falls over the horizon, `rho` is 0. Weights are the least-squares fit that has no negative weight (Lawson and Hanson
//! 1974, chapter 23) of relative errors at distances spread evenly in their logarithm; most come out as 0, and their rates are
//! left out. The derivatives are those of the kernel itself, fitted on the same rates. A test walks through the distances.

use super::{ErrorBudget, ExponentialSum, NEAREST, SumTolerance};
use nalgebra::{DMatrix, DVector};

/// Below this the error is relative to this, not to the kernel: of a million tokens out there, all errors together are within
/// the tolerance of one token beside the query.
pub const FLOOR: f64 = 1e-6;

/// Distances fitted, a factor of e.
const PER_E: f64 = 16.0;

/// Squares of weights, of columns scaled to norm 1, that are paid for like squares of relative errors.
const RIDGE: f64 = 1e-12;

impl ExponentialSum {
    /// `exp(-r1 d^p)`, `0 < p <= 1`, at distances from [`NEAREST`] to the horizon, within the tolerance of the larger of it and
    /// [`FLOOR`]. All weights are positive.
    pub fn power(budget: &ErrorBudget, r1: f64, p: f64) -> ExponentialSum {
        let [nearest, horizon] = [NEAREST, budget.horizon.max(NEAREST)].map(|d| d as f64);
        let kernel = |d: f64| (-r1 * d.powf(p)).exp();
        let span = (horizon / nearest).ln();
        let count = (PER_E * span).ceil();
        let distance = |at: usize| nearest * (span * at as f64 / count.max(1.0)).exp();
        let least = least(budget);
        // behind the first distance that does not matter, a sum with positive weights does not either
        let end = 1 + (0..count as usize).take_while(|at| kernel(distance(*at)) > least).count();
        let distances: Vec<f64> = (0..end).map(distance).collect();
        let fit = Fit::new(rates(budget, r1, p), &distances, |d| kernel(d).max(FLOOR).recip());
        let (values, kept) = fit.not_negative(kernel);
        ExponentialSum {
            rates: kept.iter().map(|at| fit.rates[*at]).collect(),
            in_r1: fit.on(&kept, |d| -d.powf(p) * kernel(d)),
            in_r2: fit.on(&kept, |d| -r1 * d.powf(p) * d.ln() * kernel(d)),
            values,
        }
    }
}

/// The distance from which on `exp(-r1 d^p)` does not matter.
pub fn power_end(budget: &ErrorBudget, r1: f64, p: f64) -> usize {
    (-least(budget).ln() / r1).powf(p.recip()).ceil() as usize
}

/// Kernels this small do not matter.
fn least(budget: &ErrorBudget) -> f64 {
    0.1 * FLOOR * budget.tolerance.value()
}

/// Rates from the edge of the density on.
fn rates(budget: &ErrorBudget, r1: f64, p: f64) -> Vec<f64> {
    // the step, what of the density counts as nothing, how narrow a density has rates of its own, and what over the horizon is
    // one rate: by the test below
    let (step, edge, narrowest, same) = match budget.tolerance {
        SumTolerance::Hundredth => (0.6, 15.0, 3e-3, 0.1),
        SumTolerance::Thousandth => (0.5, 15.0, 1e-3, 0.1),
        SumTolerance::TenThousandth => (0.4, 18.0, 2e-4, 0.02),
    };
    let horizon = budget.horizon.max(NEAREST) as f64;
    let rest = (1.0 - p).max(narrowest);
    let p = 1.0 - rest;
    // where the kernel is gone, or the horizon
    let far = ((-least(budget).ln() / r1).ln() / p).min(horizon.ln()).exp();
    let slowest = same / far;
    // the rate whose E is this much
    let rate_of = |e: f64| p * ((r1.ln() + rest * (rest.ln() - e.ln())) / p).exp();
    let (rho, lo) = match rate_of(edge) {
        rho if p >= 0.4 && rho * horizon > 0.1 => (rho, (rate_of(0.6 * edge) - rho).min(rho).max(same / horizon)),
        _ => (0.0, slowest),
    };
    // beyond, the share of rates is within the tolerance, or exponentials vanish before the first distance
    let share = (r1 * 4.0 / (libm::tgamma(rest) * budget.tolerance.value())).ln() / p;
    let hi = share.min((20.0 / NEAREST as f64).ln()).exp();
    let count = ((hi / lo).ln().max(0.0) / step).ceil() as usize;
    [rho].into_iter().chain((0..=count).map(|j| rho + lo * (step * j as f64).exp())).collect()
}

/// Least squares over exponentials of these rates.
struct Fit {
    rates: Vec<f64>,
    /// Distances, and the factor on what happens there.
    places: Vec<(f64, f64)>,
    /// `factor e^(-rate d)`, `[distances, rates]`, each column divided by its norm.
    columns: DMatrix<f64>,
    norms: Vec<f64>,
    /// Products of columns, with the ridge.
    gram: DMatrix<f64>,
}

impl Fit {
    fn new(rates: Vec<f64>, distances: &[f64], factor: impl Fn(f64) -> f64) -> Fit {
        let places: Vec<(f64, f64)> = distances.iter().map(|d| (*d, factor(*d))).collect();
        let entry = |i: usize, j: usize| places[i].1 * (-rates[j] * places[i].0).exp();
        let mut columns = DMatrix::from_fn(places.len(), rates.len(), entry);
        // a column of zeros is never used
        let norms: Vec<f64> = columns.column_iter().map(|column| column.norm().max(f64::MIN_POSITIVE)).collect();
        columns.column_iter_mut().zip(&norms).for_each(|(mut column, norm)| column /= *norm);
        let mut gram = columns.tr_mul(&columns);
        (0..rates.len()).for_each(|j| gram[(j, j)] += RIDGE);
        Fit { rates, places, columns, norms, gram }
    }

    /// Products of all columns with a function.
    fn along(&self, function: impl Fn(f64) -> f64) -> DVector<f64> {
        let values = self.places.iter().map(|(d, factor)| factor * function(*d));
        self.columns.tr_mul(&DVector::from_iterator(self.places.len(), values))
    }

    /// Weights of some columns, of norm 1, by the normal equations.
    fn solve(&self, kept: &[usize], along: &DVector<f64>) -> DVector<f64> {
        let n = kept.len();
        let gram = DMatrix::from_fn(n, n, |i, j| self.gram[(kept[i], kept[j])]);
        let along = DVector::from_fn(n, |i, _| along[kept[i]]);
        gram.cholesky().expect("the ridge keeps it positive").solve(&along)
    }

    /// Weights of these rates that fit a function.
    fn on(&self, kept: &[usize], function: impl Fn(f64) -> f64) -> Vec<f64> {
        let weights = self.solve(kept, &self.along(function));
        weights.iter().zip(kept).map(|(weight, at)| weight / self.norms[*at]).collect()
    }

    /// The weights that fit a function best among those that are not negative, and the rates of those that are not 0.
    fn not_negative(&self, function: impl Fn(f64) -> f64) -> (Vec<f64>, Vec<usize>) {
        const SMALLEST_SLOPE: f64 = 1e-9;
        let along = self.along(function);
        let mut kept: Vec<usize> = Vec::new();
        let mut weights: Vec<f64> = Vec::new();
        let mut tried = vec![false; self.rates.len()];
        // each round lowers the error, so it ends; that it ends soon is seen
        for _ in 0..20 * self.rates.len() {
            let Some((slope, next)) = self.steepest(&along, &kept, &weights, &tried) else { break };
            if slope <= SMALLEST_SLOPE {
                break;
            }
            kept.push(next);
            let mut found = self.solve(&kept, &along);
            // rounding: it would go the other way
            if found[kept.len() - 1] <= 0.0 {
                kept.pop();
                tried[next] = true;
                continue;
            }
            tried.fill(false);
            weights.push(0.0);
            while found.iter().any(|weight| *weight <= 0.0) {
                let steps = weights.iter().zip(&found).filter(|(_, found)| **found <= 0.0);
                let step = steps.map(|(weight, found)| weight / (weight - found)).fold(1.0, f64::min);
                let moved = weights.iter().zip(&found).map(|(weight, found)| weight + step * (found - weight));
                (kept, weights) = kept.iter().copied().zip(moved).filter(|(_, weight)| *weight > 1e-15).unzip();
                found = self.solve(&kept, &along);
            }
            weights = found.iter().copied().collect();
        }
        weights.iter_mut().zip(&kept).for_each(|(weight, at)| *weight /= self.norms[*at]);
        (weights, kept)
    }

    /// The column whose weight would lower the error most, and by what slope.
    fn steepest(&self, along: &DVector<f64>, kept: &[usize], weights: &[f64], tried: &[bool]) -> Option<(f64, usize)> {
        let slope = |j: usize| along[j] - kept.iter().zip(weights).map(|(i, w)| self.gram[(*i, j)] * w).sum::<f64>();
        let open = (0..self.rates.len()).filter(|j| !tried[*j] && !kept.contains(j));
        open.map(|j| (slope(j), j)).max_by(|a, b| a.0.total_cmp(&b.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Amplitude, tests::worst};
    use super::*;
    use rayon::prelude::*;

    const EXPONENTS: [f64; 19] =
        [0.01, 0.05, 0.1, 0.2, 0.3, 0.39, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998, 1.0];

    fn demands() -> impl Iterator<Item = ErrorBudget> {
        let tolerances = [SumTolerance::Hundredth, SumTolerance::Thousandth, SumTolerance::TenThousandth];
        let amplitude = Amplitude::Two;
        tolerances
            .into_iter()
            .flat_map(move |tolerance| [1000, 1 << 20].map(|horizon| ErrorBudget { horizon, tolerance, amplitude }))
    }

    fn cases() -> Vec<(ErrorBudget, f64, f64)> {
        let amplitudes = || (0..9).map(|i| 0.01 * 2.5f64.powi(i));
        let of = |budget| amplitudes().flat_map(move |r1| EXPONENTS.map(|p| (budget, r1, p)));
        demands().flat_map(of).collect()
    }

    #[test]
    fn the_error_is_within_tolerance_at_every_distance() {
        cases().into_par_iter().for_each(|(budget, r1, p)| {
            let sum = ExponentialSum::power(&budget, r1, p);
            assert!(sum.values.iter().all(|w| *w > 0.0), "{budget:?} {r1} {p}: {:?}", sum.values);
            // all distances of a short horizon; of a long one all up to a thousand, then some a thousandth apart
            let kernel = |d: f64| (-r1 * d.powf(p)).exp();
            let error = match budget.horizon {
                1000 => worst(&sum.rates, &sum.values, 1000, kernel, FLOOR),
                horizon => {
                    let at = |d: f64| {
                        let terms = sum.rates.iter().zip(&sum.values).map(|(rate, w)| w * (-rate * d).exp());
                        (terms.sum::<f64>() - kernel(d)).abs() / kernel(d).max(FLOOR)
                    };
                    let far = (0..7000).map(|i| (1e-3 * i as f64).exp() * 1e3).filter(|d| *d <= horizon as f64);
                    far.map(at).fold(worst(&sum.rates, &sum.values, 1000, kernel, FLOOR), f64::max)
                }
            };
            assert!(error <= budget.tolerance.value(), "{budget:?} {r1} {p}: {error} with {} terms", sum.rates.len());
        });
    }

    #[test]
    fn few_terms_are_needed() {
        let most = |tolerance: SumTolerance| {
            let of = cases().into_par_iter().filter(|(budget, ..)| budget.tolerance == tolerance);
            of.map(|(budget, r1, p)| ExponentialSum::power(&budget, r1, p).rates.len()).max().unwrap()
        };
        assert!(most(SumTolerance::Hundredth) <= 22 && most(SumTolerance::Thousandth) <= 26);
    }

    /// Of what is learned: the sums over the derivatives of weights are the derivatives of the kernel.
    #[test]
    fn slopes_are_those_of_the_kernel() {
        cases().into_par_iter().filter(|(_, r1, p)| *r1 < 2.0 && *p < 1.0).for_each(|(budget, r1, p)| {
            let sum = ExponentialSum::power(&budget, r1, p);
            let kernel = |d: f64, r1: f64, p: f64| (-r1 * d.powf(p)).exp();
            let all = (0..100).map(|i| NEAREST as f64 * 1.1f64.powi(i));
            let matters = |d: &f64| *d <= budget.horizon as f64 && kernel(*d, r1, p) > least(&budget);
            let distances = || all.clone().filter(matters);
            for (slopes, by) in [(&sum.in_r1, [1e-6 * r1, 0.0]), (&sum.in_r2, [0.0, 1e-6])] {
                let want = |d: f64| {
                    (kernel(d, r1 + by[0], p + by[1]) - kernel(d, r1 - by[0], p - by[1])) / (2.0 * by[0].max(by[1]))
                };
                let size = distances().map(|d| want(d).abs() / kernel(d, r1, p).max(FLOOR)).fold(0.0, f64::max);
                for d in distances() {
                    let got: f64 = sum.rates.iter().zip(slopes).map(|(rate, slope)| slope * (-rate * d).exp()).sum();
                    let error = (got - want(d)).abs() / kernel(d, r1, p).max(FLOOR);
                    // fitted with the few rates that the kernel needs; 1e-8 is what differences leave
                    assert!(
                        error <= (20.0 * budget.tolerance.value() + 5e-3) * size + 1e-8,
                        "{budget:?} {r1} {p} {d}: {error} of {size}"
                    );
                }
            }
        });
    }
}
