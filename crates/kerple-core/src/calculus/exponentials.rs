//! Kernels as sums of decaying exponentials, with positive weights and an error that is guaranteed at every distance.
//!
//! KERPLE's logarithmic kernel is the Laplace transform of a Gamma density (Bernstein), so with `lambda = e^u` and the
//! trapezoid rule of step `h`, which is exponentially accurate here,
//!
//! ```text
//! a(d) = (1 + r2 d)^-r1 = integral over lambda > 0 of lambda^(r1-1) e^(-lambda/r2) / (Gamma(r1) r2^r1) e^(-lambda d)
//!      ~ sum_j w_j e^(-lambda_j d)        w_j = h / Gamma(r1) (lambda_j / r2)^r1 e^(-lambda_j / r2)        lambda_j = lambda_0 e^(h j)
//! |sum / a - 1| <= 2 sum over k >= 1 of |Gamma(r1 + 2 pi i k / h)| / Gamma(r1)        at every d >= 0 (Poisson summation)
//! ```
//!
//! The grid of rates is fixed: it depends on the largest amplitude, the tolerance and the horizon, not on `r1` and `r2`, so
//! weights are differentiable in them and heads share rates. Two ends are cut off:
//!
//! * Slow nodes `lambda = s lambda_0`, `s = e^(-h m) < 1`: over the horizon, `e^(-s x) ~ (1 - s) + s e^(-x)` with an error of
//!   second order, so their weights are shared out, in closed form, between a rate of 0 and `lambda_0`.
//! * Fast nodes matter at short distances only, where linear attention needs no sum: before [`NEAREST`].
//!
//! Positive weights keep the denominators of linear attention positive. Power kernels with exponents up to 1 are in [`ExponentialSum::power`].

mod power;

pub use power::{FLOOR, power_end};

use std::ops::RangeInclusive;

/// The nearest distance that a sum serves; nearer positions linear attention meets one by one.
pub const NEAREST: usize = crate::attention::linear::CHUNK + 1;

/// What a sum of exponentials must do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorBudget {
    /// Furthest distance, in tokens.
    pub horizon: usize,
    /// Largest relative error at distances `NEAREST..=horizon`.
    pub tolerance: SumTolerance,
    /// Largest amplitude `r1`.
    pub amplitude: Amplitude,
}

/// Relative errors that there are grids for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumTolerance {
    /// 0.01
    Hundredth,
    /// 0.001
    Thousandth,
    /// 0.0001
    TenThousandth,
}

/// Largest amplitudes that there are grids for. Larger ones are used as the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amplitude {
    /// 2, the range that KERPLE starts from.
    Two,
    /// 4
    Four,
    /// 8
    Eight,
}

impl SumTolerance {
    /// As a number.
    pub fn value(self) -> f64 {
        match self {
            SumTolerance::Hundredth => 1e-2,
            SumTolerance::Thousandth => 1e-3,
            SumTolerance::TenThousandth => 1e-4,
        }
    }
}

impl Amplitude {
    /// As a number.
    pub fn value(self) -> f64 {
        match self {
            Amplitude::Two => 2.0,
            Amplitude::Four => 4.0,
            Amplitude::Eight => 8.0,
        }
    }
}

/// Rates `r2` for which the tolerance is guaranteed; KERPLE keeps them at or above the lowest.
pub const RATES: RangeInclusive<f64> = 0.01..=1e6;

/// The rates of a sum: 0, then a geometric grid.
#[derive(Clone, Debug, PartialEq)]
pub struct RateGrid {
    step: f64,
    rates: Vec<f64>,
    largest: f64,
}

/// A sum of exponentials, with the derivatives in the parameters of the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExponentialSum {
    /// Rates, `[K]`, none negative.
    pub rates: Vec<f64>,
    /// Weights, `[K]`, none negative.
    pub values: Vec<f64>,
    /// What the sum of the derivatives in `r1` has for weights, `[K]`.
    pub in_r1: Vec<f64>,
    /// In `r2`, likewise.
    pub in_r2: Vec<f64>,
}

impl RateGrid {
    /// The grid for the logarithmic kernel.
    pub fn log(budget: &ErrorBudget) -> RateGrid {
        use {Amplitude::*, SumTolerance::*};
        // step by the bound above for the largest amplitude; the fastest rate over the nearest distance, and what the slowest
        // may be over the horizon, by the error at either end: the test below walks through all of them
        let (step, fastest) = match (budget.amplitude, budget.tolerance) {
            (Two, Hundredth) => (1.111, 2.031),
            (Two, Thousandth) => (0.853, 2.553),
            (Two, TenThousandth) => (0.690, 2.710),
            (Four, Hundredth) => (0.851, 1.700),
            (Four, Thousandth) => (0.672, 2.220),
            (Four, TenThousandth) => (0.561, 2.480),
            (Eight, Hundredth) => (0.627, 2.480),
            (Eight, Thousandth) => (0.512, 2.740),
            (Eight, TenThousandth) => (0.430, 2.900),
        };
        let slowest = match budget.tolerance {
            Hundredth => 0.2,
            Thousandth => 0.05,
            TenThousandth => 0.02,
        };
        let fastest = fastest - (NEAREST as f64).ln();
        let span: f64 = fastest - (slowest / budget.horizon.max(1) as f64).ln();
        let count = (span / step).ceil().max(1.0) as usize;
        let rate = |j: usize| (fastest - step * (count - j) as f64).exp();
        RateGrid {
            step,
            rates: [0.0].into_iter().chain((0..=count).map(rate)).collect(),
            largest: budget.amplitude.value(),
        }
    }

    /// Rates, K of them, slowest first.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// The sum for `(1 + r2 d)^-r1`; an amplitude beyond the largest of the grid is used as that, with its derivative.
    pub fn log_sum(&self, r1: f64, r2: f64) -> ExponentialSum {
        let r1 = r1.min(self.largest);
        let (scale, in_scale) = (self.step / libm::tgamma(r1), -digamma(r1));
        let zero = || vec![0.0];
        let mut weights = ExponentialSum { rates: self.rates.clone(), values: zero(), in_r1: zero(), in_r2: zero() };
        for rate in &self.rates[1..] {
            let x = rate / r2;
            let value = scale * x.powf(r1) * (-x).exp();
            weights.values.push(value);
            weights.in_r1.push(value * (x.ln() + in_scale));
            weights.in_r2.push(value * (x - r1) / r2);
        }
        let x = self.rates[1] / r2;
        let (mut factor, mut power) = (scale * x.powf(r1), r1);
        // sum over slow nodes m = 1, 2, .. of w and of w e^(-h m), by the series of e^(-lambda / r2)
        for p in 1..60 {
            let share = |rate: f64| {
                let grown = (rate * self.step).exp_m1();
                (grown.recip(), -self.step * (grown + 1.0) / (grown * grown))
            };
            let ([all, d_all], [moved, d_moved]) =
                (<[f64; 2]>::from(share(power)), <[f64; 2]>::from(share(power + 1.0)));
            for (to, part, d_part) in [(0, all - moved, d_all - d_moved), (1, moved, d_moved)] {
                weights.values[to] += factor * part;
                weights.in_r1[to] += factor * (part * (x.ln() + in_scale) + d_part);
                weights.in_r2[to] -= factor * part * power / r2;
            }
            factor *= -x / p as f64;
            power += 1.0;
            if factor.abs() <= f64::EPSILON * weights.values[0] * 1e-3 {
                break;
            }
        }
        weights
    }
}

/// The derivative of `ln Gamma` at a positive number, by recurrence to where its asymptotic series is exact.
fn digamma(x: f64) -> f64 {
    let (mut x, mut sum) = (x, 0.0);
    while x < 12.0 {
        sum -= x.recip();
        x += 1.0;
    }
    let square = (x * x).recip();
    let series = square
        * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0 - square * (1.0 / 240.0 - square / 132.0))));
    sum + x.ln() - 0.5 / x - series
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    fn demands() -> impl Iterator<Item = ErrorBudget> {
        let tolerances = [SumTolerance::Hundredth, SumTolerance::Thousandth, SumTolerance::TenThousandth];
        let amplitudes = [Amplitude::Two, Amplitude::Four, Amplitude::Eight];
        let all = tolerances.into_iter().flat_map(move |tolerance| amplitudes.map(|amplitude| (tolerance, amplitude)));
        let at = |(tolerance, amplitude)| [1000, 1 << 20].map(|horizon| ErrorBudget { horizon, tolerance, amplitude });
        all.flat_map(at)
    }

    /// The largest error at distances from the nearest on, relative to the larger of the kernel and a floor. The sum is made by repeated
    /// multiplication in blocks that start from exact exponentials.
    pub(super) fn worst(
        rates: &[f64],
        weights: &[f64],
        horizon: usize,
        kernel: impl Fn(f64) -> f64,
        floor: f64,
    ) -> f64 {
        const BLOCK: usize = 1024;
        let mut worst = 0.0f64;
        let once: Vec<f64> = rates.iter().map(|rate| (-rate).exp()).collect();
        for start in (NEAREST..=horizon).step_by(BLOCK) {
            let mut terms: Vec<f64> =
                rates.iter().zip(weights).map(|(rate, w)| w * (-rate * start as f64).exp()).collect();
            for d in start..=horizon.min(start + BLOCK - 1) {
                let a = kernel(d as f64);
                worst = worst.max((terms.iter().sum::<f64>() - a).abs() / a.max(floor));
                terms.iter_mut().zip(&once).for_each(|(term, once)| *term *= once);
            }
        }
        worst
    }

    #[test]
    fn the_error_is_within_tolerance_at_every_distance() {
        demands().collect::<Vec<ErrorBudget>>().into_par_iter().for_each(|budget| {
            let grid = RateGrid::log(&budget);
            let most = budget.amplitude.value();
            // all corners of the box up to a million, what lies between up to a thousand
            let (amplitudes, rates) = match budget.horizon {
                1000 => (vec![0.01, 0.1, 0.3, 1.0, 0.7 * most, most], vec![0.01, 0.1, 1.0, 30.0, 1e6]),
                _ => (vec![0.01, 1.0, most], vec![0.01, 1.0, 1e6]),
            };
            for (r1, r2) in amplitudes.into_iter().flat_map(|r1| rates.iter().map(move |r2| (r1, *r2))) {
                assert!(RATES.contains(&r2));
                let weights = grid.log_sum(r1, r2).values;
                assert!(weights.iter().all(|w| *w >= 0.0), "{budget:?} {r1} {r2}: {weights:?}");
                let error = worst(grid.rates(), &weights, budget.horizon, |d| (1.0 + r2 * d).powf(-r1), 0.0);
                assert!(
                    error <= budget.tolerance.value(),
                    "{budget:?} {r1} {r2}: {error} with {} terms",
                    weights.len()
                );
            }
        });
    }

    #[test]
    fn few_terms_are_needed() {
        let terms =
            |tolerance, amplitude, horizon| RateGrid::log(&ErrorBudget { horizon, tolerance, amplitude }).rates().len();
        assert!(terms(SumTolerance::Hundredth, Amplitude::Two, 1 << 20) <= 16);
        assert!(terms(SumTolerance::Thousandth, Amplitude::Two, 1 << 20) <= 22);
        assert!(terms(SumTolerance::TenThousandth, Amplitude::Two, 1 << 20) <= 28);
        assert!(terms(SumTolerance::Thousandth, Amplitude::Four, 1 << 20) <= 26);
        assert!(terms(SumTolerance::Hundredth, Amplitude::Four, 1 << 20) <= 19);
    }

    #[test]
    fn weights_know_their_slopes() {
        for budget in demands() {
            let grid = RateGrid::log(&budget);
            for (r1, r2) in [(0.05, 0.02), (0.7, 0.4), (1.9, 3.0)] {
                let (h, found) = (1e-6, grid.log_sum(r1, r2));
                let near = [grid.log_sum(r1 + h, r2), grid.log_sum(r1 - h, r2)];
                let beside = [grid.log_sum(r1, r2 * (1.0 + h)), grid.log_sum(r1, r2 * (1.0 - h))];
                for k in 0..found.values.len() {
                    let slopes = [
                        (near[0].values[k] - near[1].values[k]) / (2.0 * h),
                        (beside[0].values[k] - beside[1].values[k]) / (2.0 * h * r2),
                    ];
                    for (got, slope) in [found.in_r1[k], found.in_r2[k]].into_iter().zip(slopes) {
                        // cut off at h^2, rounding of 1e-16 / h
                        assert!((got - slope).abs() <= 1e-7 * (1.0 + slope.abs()), "{budget:?} {k}: {got} {slope}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_digamma_function_is_known_at_some_points() {
        let euler = 0.577_215_664_901_532_9;
        assert!((digamma(1.0) + euler).abs() < 1e-14);
        assert!((digamma(0.5) + euler + 2.0 * 2f64.ln()).abs() < 1e-14);
        assert!((digamma(0.01) - (-100.560_885_457_868_7)).abs() < 1e-10);
    }
}
