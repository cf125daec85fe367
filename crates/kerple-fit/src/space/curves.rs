//! Families compared by their curves.

use super::{DRAWS, MERGED};
use crate::curve::{Curve, CurvePrecision, Support};
use crate::family::Family;
use crate::observations::{Observations, dot};
use crate::projection::{Amplitudes, project};
use crate::search::{SearchLimits, search};
use crate::starts::{log_spaced, rates_to_factors, starts};
use kerple_core::calculus::parameter::Role;
use rayon::prelude::*;
use std::f64::consts::PI;

/// Distances that stand for all, evenly spaced on a logarithmic scale; each has the weight of those around it.
const COMPARED_DISTANCES: usize = 48;
/// Starts from which a fit is searched.
const FINALISTS: usize = 5;
/// Steps of a search.
const STEPS: usize = 40;
/// Shares of the residual below which a step counts as small.
const DECREASE: f64 = 1e-6;
/// What a search may miss of the best fit to a fixed curve, as a share of the curve's size.
const MISSED: f64 = 0.002;

/// Distances on which families are compared, and the fixed curves.
pub(crate) struct CurveSpace {
    distances: Vec<f64>,
    weights: Vec<f64>,
    panel: Vec<Observations>,
}

impl CurveSpace {
    /// Distances `0..length`.
    pub(crate) fn new(length: usize) -> CurveSpace {
        let all: Vec<f64> = (0..length).map(|d| d as f64).collect();
        let kept = log_spaced(&all, COMPARED_DISTANCES);
        let distances: Vec<f64> = kept.iter().map(|i| all[*i]).collect();
        // as many distances as are nearer to this one than to its neighbours
        let border = |i: usize| 0.5 * (distances[i] + distances[i + 1]);
        let last = distances.len() - 1;
        let weight = |i: usize| {
            let low = if i == 0 { -0.5 } else { border(i - 1) };
            let high = if i == last { distances[last] + 0.5 } else { border(i) };
            high - low
        };
        let weights = (0..distances.len()).map(weight).collect();
        let mut space = CurveSpace { distances, weights, panel: Vec::new() };
        space.panel = panel(length as f64).iter().filter_map(|curve| space.observe(curve)).collect();
        space
    }

    /// A curve on the distances; none where it is constant.
    pub(crate) fn observe(&self, curve: &dyn Fn(f64) -> f64) -> Option<Observations> {
        let values = self.distances.iter().map(|d| curve(*d)).collect();
        let support = Support::Distances(self.distances.clone());
        let curve = Curve::new("curve", support, values, Some(self.weights.clone()), CurvePrecision::F64).ok()?;
        (!curve.is_constant()).then(|| Observations::of(&curve))
    }

    /// Errors of a family at the fixed curves.
    pub(super) fn panel_errors(&self, family: &Family) -> Vec<f64> {
        self.panel.iter().map(|curve| relative_error(family, curve, 0.01 * MISSED)).collect()
    }

    /// Whether the errors of two families at the fixed curves allow that they are one.
    pub(super) fn may_be_one(&self, first: &[f64], second: &[f64]) -> bool {
        first.iter().zip(second).all(|(x, y)| (x - y).abs() <= MERGED + MISSED)
    }

    /// Whether each family describes all curves of the other.
    pub(super) fn are_one(&self, first: &Family, second: &Family) -> bool {
        let describes = |family: &Family, curve: Option<Observations>| {
            curve.is_none_or(|curve| relative_error(family, &curve, 0.5 * MERGED) < MERGED)
        };
        let draw = |i: usize| describes(second, self.drawn(first, i)) && describes(first, self.drawn(second, i));
        // most pairs differ in the first few
        (0..4).all(draw) && (4..DRAWS).into_par_iter().all(draw)
    }

    /// Curve `i` of a family: parameters are spread evenly over what bends a kernel within the distances.
    fn drawn(&self, family: &Family, i: usize) -> Option<Observations> {
        let count = family.searched.len() + family.members.len();
        let spread = even_points(count, i);
        let (of_searched, of_members) = spread.split_at(family.searched.len());
        let furthest = self.distances[self.distances.len() - 1];
        let between = |(low, high): (f64, f64), share: f64| low * (high / low).powf(share);
        let value = |(of, share): (&crate::family::SearchedParameter, &f64)| {
            let x = match of.role {
                Role::Rate => between((1.0 / furthest, 3.0), *share),
                Role::Exponent => 0.2 + 1.7 * share,
                Role::Fraction => 0.1 + 0.8 * share,
                Role::Frequency => between((2.0 * PI / furthest, 1.0), *share),
                Role::Amplitude | Role::Level => between((0.2, 5.0), *share),
            };
            x.clamp(of.low, of.high)
        };
        let mut searched: Vec<f64> = family.searched.iter().zip(of_searched).map(value).collect();
        rates_to_factors(family, &mut searched);
        // members of one size first, so that each of them matters, then one a few times as large as another
        let mut amplitudes = vec![0.0; family.amplitudes.len()];
        let mut next = 0;
        for (member, share) in family.members.iter().zip(of_members) {
            if member.amplitude.is_none() {
                continue;
            }
            let mut alone = vec![0.0; family.amplitudes.len()];
            alone[next] = 1.0;
            let size = self.observe(&|d| family.at(&alone, &searched, d)).map(|own| dot(own.target(), own.target()));
            let size = size.filter(|size| *size > 0.0).map_or(1.0, f64::sqrt);
            amplitudes[next] = between((0.2, 5.0), *share) / size;
            next += 1;
        }
        self.observe(&|d| family.at(&amplitudes, &searched, d))
    }
}

/// The error of a family's best fit to a curve as a share of the curve's size without its level; a share of `enough` ends the
/// search for a better one.
pub(crate) fn relative_error(family: &Family, curve: &Observations, enough: f64) -> f64 {
    let size = dot(curve.target(), curve.target());
    let rounding = enough * enough * size;
    let furthest = curve.support().distances().iter().copied().fold(0.0, f64::max);
    let mut tried: Vec<(f64, Vec<f64>)> = starts(family, furthest)
        .into_iter()
        .map(|start| (project(family, curve, &start, Amplitudes::Positive).rss, start))
        .collect();
    tried.sort_by(|x, y| x.0.total_cmp(&y.0));
    tried.dedup_by(|x, y| x.0 == y.0);
    let limits =
        SearchLimits { admitted: Amplitudes::Positive, held: None, steps: STEPS, decrease: DECREASE, rounding };
    let mut best = tried.first().map_or(size, |(rss, _)| *rss);
    for (_, start) in tried.iter().take(FINALISTS) {
        if best <= rounding {
            break;
        }
        best = best.min(search(family, curve, start, limits).fit.rss);
    }
    (best / size).sqrt()
}

type FixedCurve = Box<dyn Fn(f64) -> f64>;

/// Curves that differ in where and how sharply they bend; few kernels describe them, and each in its own way.
fn panel(length: f64) -> Vec<FixedCurve> {
    let place = move |share: f64| length.powf(share);
    let mut found: Vec<FixedCurve> = Vec::new();
    for share in [0.2, 0.5, 0.8] {
        let at = place(share);
        // a step, and a line with a kink
        found.push(Box::new(move |d| 1.0 / (1.0 + (d / at).powi(4))));
        found.push(Box::new(move |d| -d.min(at)));
        found.push(Box::new(move |d| -(d - at).max(0.0)));
    }
    let (near, far) = (place(0.3), place(0.75));
    found.push(Box::new(move |d| (-d / near).exp() + 0.5 * (-(d / far).powi(2)).exp()));
    found.push(Box::new(move |d| -(1.0 + d / near).ln() - 0.5 * (1.0 + (d / far).powi(2)).ln()));
    found.push(Box::new(move |d| (-d / far).exp() * (2.0 * PI * d / far).cos()));
    found.push(Box::new(move |d| -(1.0 + (1.0 + d).ln()).ln()));
    found
}

/// Point `i` of an even sequence in `[0, 1)^count`: multiples of powers of the root of `x^(count + 1) = x + 1` (Roberts 2018).
fn even_points(count: usize, i: usize) -> Vec<f64> {
    let mut root = 2.0f64;
    for _ in 0..64 {
        root = (1.0 + root).powf(1.0 / (count as f64 + 1.0));
    }
    (1..=count).map(|j| (0.5 + (i + 1) as f64 * root.powi(-(j as i32))).fract()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(text: &str) -> Family {
        Family::read(text, false).unwrap()
    }

    #[test]
    fn families_that_are_one_are_found_and_others_are_not() {
        let space = CurveSpace::new(1024);
        let one = |x: &str, y: &str| {
            let (x, y) = (family(x), family(y));
            let curves = space.are_one(&x, &y);
            // the fixed curves never distinguish what is one
            assert!(!curves || space.may_be_one(&space.panel_errors(&x), &space.panel_errors(&y)), "{x:?} {y:?}");
            curves
        };
        assert!(one("power(a, p)", "s*pow(power(1, p), q)"));
        assert!(one("exp(c, a, p)", "s*exp(power(a, p))"));
        assert!(one("exp(c, a, 1)", "exp(c, a, 1)*exp(1, a, 1)"));
        assert!(one("log3(b, a, p)", "s*neglog(power(a, p))"));
        assert!(one("log(b, a)", "s*neglog(power(a, 1))"));
        // special cases, limits and others are not one
        for (x, y) in
            [("log", "log3"), ("power", "root_log"), ("exp", "two_exp"), ("log", "exp"), ("gauss", "stretched")]
        {
            assert!(!one(x, y), "{x} {y}");
        }
    }

    #[test]
    fn most_pairs_are_distinguished_by_the_fixed_curves() {
        let space = CurveSpace::new(1024);
        let errors: Vec<Vec<f64>> = Family::named()[1..].iter().map(|family| space.panel_errors(family)).collect();
        let pairs = || (0..errors.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        let alike = pairs().filter(|(i, j)| space.may_be_one(&errors[*i], &errors[*j])).count();
        assert!(alike * 10 <= pairs().count(), "{alike} of {} pairs", pairs().count());
    }

    #[test]
    fn draws_are_even() {
        let points: Vec<Vec<f64>> = (0..64).map(|i| even_points(3, i)).collect();
        for j in 0..3 {
            for quarter in 0..4 {
                let inside = points.iter().filter(|point| (point[j] * 4.0) as usize == quarter).count();
                assert!((12..=20).contains(&inside), "{j} {quarter}: {inside}");
            }
        }
    }
}
