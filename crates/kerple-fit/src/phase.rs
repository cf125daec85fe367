//! A decaying wave with a phase, `e^(-a d) cos(w d + phi)`: the family `damped_cos` has phi = 0.
//!
//! Its spectral density at a frequency t is, up to a positive factor,
//!
//! ```text
//! a cos(phi) (a^2 + w^2 + t^2) - w sin(phi) (a^2 + w^2 - t^2)
//! ```
//!
//! over a positive denominator. That is linear in t^2, so it is negative nowhere where it is not at t = 0 and for large t. By
//! Bochner's theorem the wave is therefore a kernel of points on a line, strictly positive definite, if and only if
//! `a cos(phi) >= w |sin(phi)|`. With another phase it is not a kernel.
//!
//! Kernel expressions have no phase: the fit says what a curve is, and no run starts from it.

use crate::Noise;
use crate::criteria::{Criteria, TOLD_APART, criteria};
use crate::family::Family;
use crate::fit::FamilyOptimum;
use crate::observations::{Observations, dot};
use crate::projection::{ProjectedFit, least_squares, remove_along};
use crate::search::{Optimum, ROUGH_DECREASE, SearchLimits, search_box};
use crate::starts::{log_spaced, starts};
use serde::Serialize;

/// The family without a phase.
pub(crate) const DAMPED_COS: &str = "damped_cos";
/// Distances that starts are tried on.
const TRIAL_DISTANCES: usize = 64;
/// Steps that each start is tried for.
const TRIAL_STEPS: usize = 8;
/// Starts that go on to all distances.
const FINALISTS: usize = 4;

/// A decaying wave `c e^(-a d) cos(w d + phi)` that describes a curve better than one without a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WavePhase {
    /// The amplitude, above 0.
    pub c: f64,
    /// The rate.
    pub a: f64,
    /// The frequency.
    pub w: f64,
    /// The phase, between -pi and pi.
    pub phi: f64,
    /// Residual sum of squares.
    pub rss: f64,
    /// Bayesian information criterion, with a parameter more than `damped_cos` has.
    pub bic: f64,
    /// Akaike's criterion for small samples.
    pub aicc: f64,
    /// Whether it is a kernel of points on a line.
    pub is_kernel: bool,
}

/// Whether `e^(-a d) cos(w d + phi)` is positive definite on the line.
pub fn is_kernel(a: f64, w: f64, phi: f64) -> bool {
    a * phi.cos() >= w * phi.sin().abs()
}

/// What a fit without a phase is compared with.
pub(crate) struct PhaseFit<'a> {
    pub family: &'a Family,
    pub observations: &'a Observations,
    pub optimum: &'a FamilyOptimum,
    pub limits: SearchLimits,
    /// Residual variance that is rounding.
    pub floor: f64,
    pub noise: Noise,
    /// Parameters of the fit without a phase, and its criteria.
    pub k: usize,
    pub without: Criteria,
}

impl PhaseFit<'_> {
    /// The wave with a phase, where it is distinguished from that without and the curve has at least a sixth of a wave.
    pub fn found(&self) -> Option<WavePhase> {
        if self.optimum.rss() <= self.limits.rounding {
            return None;
        }
        let best = self.search();
        let [a, w] = best.searched[..] else { return None };
        let (n, rho) = (self.observations.len(), self.observations.rho());
        let found = criteria(best.fit.rss, n, self.k + 1, self.floor, self.noise, rho);
        let furthest = self.observations.support().distances().iter().copied().fold(0.0, f64::max);
        if found.bic > self.without.bic - TOLD_APART || w * furthest < 1.0 {
            return None;
        }
        let [u, v] = best.fit.amplitudes[..] else { return None };
        let phi = (-v).atan2(u);
        let is_kernel = is_kernel(a, w, phi);
        Some(WavePhase { c: u.hypot(v), a, w, phi, rss: best.fit.rss, bic: found.bic, aicc: found.aicc, is_kernel })
    }

    fn search(&self) -> Optimum {
        let ends: Vec<(f64, f64)> = self.family.searched.iter().map(|of| (of.low, of.high)).collect();
        let on = |observations: &Observations, start: &[f64], limits: SearchLimits| {
            search_box(&ends, start, limits, |searched| project(observations, searched))
        };
        let support = self.observations.support();
        let furthest: Vec<f64> = (0..self.observations.len()).map(|i| support.furthest(i)).collect();
        let trial = self.observations.select(&log_spaced(&furthest, TRIAL_DISTANCES));
        let few = SearchLimits { steps: TRIAL_STEPS, decrease: ROUGH_DECREASE, ..self.limits };
        let all = starts(self.family, furthest.iter().copied().fold(0.0, f64::max));
        let mut tried: Vec<Optimum> = all.iter().map(|start| on(&trial, start, few)).collect();
        tried.sort_by(|x, y| x.fit.rss.total_cmp(&y.fit.rss));
        let finalists = tried.iter().take(FINALISTS).map(|tried| &tried.searched[..]);
        finalists
            .chain([self.optimum.searched()])
            .map(|start| on(self.observations, start, self.limits))
            .min_by(|x, y| x.fit.rss.total_cmp(&y.fit.rss))
            .expect("the fit without a phase is a start")
    }
}

/// Least squares over `e^(-a d) cos(w d)` and `e^(-a d) sin(w d)`.
fn project(observations: &Observations, searched: &[f64]) -> ProjectedFit {
    let [a, w] = searched[..] else { panic!("a decaying wave has a rate and a frequency, got {searched:?}") };
    let column = |of: &dyn Fn(f64) -> f64| {
        observations.column(observations.support().distances().iter().map(|d| of(*d)).collect())
    };
    let waves = [column(&|d| (-a * d).exp() * (w * d).cos()), column(&|d| (-a * d).exp() * (w * d).sin())];
    let (cosine, both) = ([&waves[0][..]], [&waves[0][..], &waves[1][..]]);
    // at whole distances the sine of the highest frequency is 0
    let solved = least_squares(&both, observations.target()).or_else(|| least_squares(&cosine, observations.target()));
    let (mut amplitudes, residual, basis) =
        solved.unwrap_or_else(|| (Vec::new(), observations.target().to_vec(), Vec::new()));
    amplitudes.resize(2, 0.0);
    let (u, v) = (amplitudes[0], amplitudes[1]);
    // of the residual, in the logarithms of a and w
    let mut jacobian = vec![
        column(&|d| a * d * (-a * d).exp() * (u * (w * d).cos() + v * (w * d).sin())),
        column(&|d| w * d * (-a * d).exp() * (u * (w * d).sin() - v * (w * d).cos())),
    ];
    jacobian.iter_mut().for_each(|column| remove_along(column, &basis));
    ProjectedFit { rss: dot(&residual, &residual), amplitudes, residual, jacobian }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{Curve, CurvePrecision, Support};
    use std::f64::consts::PI;

    fn observed(values: impl Fn(f64) -> f64) -> Observations {
        let d: Vec<f64> = (0..96).map(f64::from).collect();
        let values = d.iter().map(|d| values(*d)).collect();
        Observations::of(&Curve::new("c", Support::Distances(d), values, None, CurvePrecision::F64).unwrap())
    }

    /// The density by quadrature: the cosine transform of the wave.
    fn density(a: f64, w: f64, phi: f64, t: f64) -> f64 {
        let (end, steps) = (40.0 / a, 400_000);
        let width = end / f64::from(steps);
        (0..steps)
            .map(|i| (f64::from(i) + 0.5) * width)
            .map(|d| (-a * d).exp() * (w * d + phi).cos() * (t * d).cos() * width)
            .sum()
    }

    #[test]
    fn a_phase_is_a_kernel_where_its_spectral_density_is_not_negative() {
        for (a, w) in [(0.1, 0.3), (0.5, 0.2)] {
            let limit = f64::atan2(a, w);
            for phi in [-PI, -1.5, -1.05 * limit, -0.95 * limit, 0.0, 0.95 * limit, 1.05 * limit, 1.5, 3.0] {
                let least =
                    [0.0, 0.1, 0.3, 1.0, 3.0].map(|t| density(a, w, phi, t)).into_iter().fold(f64::MAX, f64::min);
                assert_eq!(is_kernel(a, w, phi), least > 0.0, "a {a} w {w} phi {phi}: {least}");
            }
        }
    }

    #[test]
    fn the_gradient_matches_differences() {
        let observations = observed(|d| 1.0 - (0.3 * d).ln_1p() + 0.3 * (0.9 * d).sin());
        for at in [[0.02, 0.3], [0.5, 1.7], [0.003, 0.02]] {
            let fit = project(&observations, &at);
            for i in 0..2 {
                let moved = |by: f64| {
                    let mut at = at;
                    at[i] *= by.exp();
                    project(&observations, &at).rss
                };
                let numeric = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                let exact = 2.0 * dot(&fit.jacobian[i], &fit.residual);
                assert!(
                    (exact - numeric).abs() <= 1e-6 * exact.abs() + 1e-9 * fit.rss,
                    "{at:?} {i}: {exact} {numeric}"
                );
            }
        }
    }

    #[test]
    fn at_the_highest_frequency_there_is_no_sine() {
        let fit = project(&observed(|d| (-0.1 * d).exp() * (PI * d).cos()), &[0.1, PI]);
        assert!(fit.rss < 1e-20 && (fit.amplitudes[0] - 1.0).abs() < 1e-9, "{fit:?}");
    }
}
