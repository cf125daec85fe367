//! Intervals of parameters: by the profile of the residual, and by its curvature at the optimum (Wald).
//!
//! ```text
//! profile: rss(t) <= rss (1 + F_{1, n-k+1}(.95) / (n-k+1)), the other parameters fitted anew for each t
//! Wald:    t +- se t_{n-k+1}(.975), se from s2 (J'J)^-1 with s2 = rss / (n-k+1)
//! ```
//!
//! A profile that has not left the interval at an end of the box is open on that side.

use crate::criteria::Noise;
use crate::family::Family;
use crate::fit::FamilyOptimum;
use crate::observations::{Observations, dot};
use crate::projection::Amplitudes;
use crate::search::{MAX_STEPS, ROUGH_DECREASE, SearchLimits, search, solve_positive};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Ends of an interval; none where it is open.
pub type Ends = [Option<f64>; 2];

/// A parameter of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Level,
    Amplitude(usize),
    Searched(usize),
}

/// Intervals of the level, the amplitudes and the searched parameters, in this order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Intervals {
    pub profile: Vec<Ends>,
    pub wald: Vec<Ends>,
}

/// How far a profile is searched: the error of an end, in standard errors.
const END_ERROR: f64 = 3e-4;
/// Most residuals computed for one end.
const MOST_TRIALS: usize = 60;

/// Intervals of all parameters of a fit.
pub(crate) fn intervals(
    family: &Family,
    observations: &Observations,
    optimum: &FamilyOptimum,
    noise: Noise,
) -> Intervals {
    let freedom = observations.len() as f64 - (family.parameter_count() - 1) as f64;
    let count = 1 + optimum.amplitudes().len() + optimum.searched().len();
    if freedom < 1.0 {
        return Intervals { profile: vec![[None; 2]; count], wald: vec![[None; 2]; count] };
    }
    // with a known sigma the statistic is normal
    let quantile = match noise {
        Noise::Known(_) => 1.959_963_984_540_054,
        _ => StudentsT::new(0.0, 1.0, freedom).map_or(1.96, |t| t.inverse_cdf(0.975)),
    };
    let variance = match noise {
        Noise::Known(sigma) => sigma * sigma,
        _ => optimum.rss() / freedom,
    };
    let errors = standard_errors(family, observations, optimum, variance);
    let room = quantile * quantile * variance;
    let targets = [Target::Level].into_iter();
    let targets = targets.chain((0..optimum.amplitudes().len()).map(Target::Amplitude));
    let targets = targets.chain((0..optimum.searched().len()).map(Target::Searched));
    let profile = targets.zip(&errors).map(|(target, error)| {
        let profile = Profile { family, observations, optimum, target, room };
        [-1.0, 1.0].map(|side| profile.end(side, error.map(|error| error * quantile)))
    });
    let estimates = [optimum.level]
        .into_iter()
        .chain(optimum.amplitudes().iter().copied())
        .chain(optimum.searched().iter().copied());
    let wald =
        estimates.zip(&errors).map(|(x, error)| [-1.0, 1.0].map(|side| error.map(|error| x + side * error * quantile)));
    Intervals { wald: wald.collect(), profile: profile.collect() }
}

/// Standard errors in the order of [`Intervals`]; none where a parameter has no influence.
fn standard_errors(
    family: &Family,
    observations: &Observations,
    optimum: &FamilyOptimum,
    variance: f64,
) -> Vec<Option<f64>> {
    let columns = full_columns(family, observations, optimum);
    let present: Vec<usize> = (0..columns.len()).filter(|i| dot(&columns[*i], &columns[*i]) > 0.0).collect();
    let gram: Vec<Vec<f64>> =
        present.iter().map(|i| present.iter().map(|j| dot(&columns[*i], &columns[*j])).collect()).collect();
    let mut errors = vec![None; columns.len()];
    for (place, parameter) in present.iter().enumerate() {
        let unit = (0..present.len()).map(|i| f64::from(u8::from(i == place))).collect();
        let diagonal = solve_positive(gram.clone(), unit).map(|column| column[place]);
        errors[*parameter] = diagonal.filter(|x| *x > 0.0).map(|x| (x * variance).sqrt());
    }
    errors
}

/// Derivatives of the fitted values in the level, the amplitudes and the searched parameters.
fn full_columns(family: &Family, observations: &Observations, optimum: &FamilyOptimum) -> Vec<Vec<f64>> {
    let open = observations.with_level(0.0); // columns keep their part along the level
    let values = family.values(optimum.amplitudes(), optimum.searched());
    let distances = open.support().distances();
    let mut gradient = vec![0.0; values.len()];
    let mut per_parameter: Vec<Vec<f64>> = values.iter().map(|_| Vec::with_capacity(distances.len())).collect();
    for d in distances {
        family.expr.gradient(&values, *d, &mut gradient);
        per_parameter.iter_mut().zip(&gradient).for_each(|(column, slope)| column.push(*slope));
    }
    let mut columns = vec![open.ones().to_vec()];
    let order = family.parameter_order();
    columns.extend(order.iter().map(|parameter| open.column(per_parameter[*parameter].clone())));
    columns
}

struct Profile<'a> {
    family: &'a Family,
    observations: &'a Observations,
    optimum: &'a FamilyOptimum,
    target: Target,
    /// How much the residual sum of squares may grow.
    room: f64,
}

impl Profile<'_> {
    /// The end on one side (-1 or 1); `guess` is its distance from the estimate by the curvature.
    fn end(&self, side: f64, guess: Option<f64>) -> Option<f64> {
        let estimate = match self.target {
            Target::Level => self.optimum.level,
            Target::Amplitude(i) => self.optimum.amplitudes()[i],
            Target::Searched(i) => self.optimum.searched()[i],
        };
        if self.room.is_nan() || self.room <= 0.0 {
            return None;
        }
        // a searched parameter moves by factors, others by differences
        let is_factor = matches!(self.target, Target::Searched(_));
        let size =
            guess.filter(|x| x.is_finite() && *x > 0.0).map_or(0.5, |x| if is_factor { x / estimate } else { x });
        let at = |by: f64| if is_factor { estimate * (side * by).exp() } else { estimate + side * by };
        let furthest = match self.target {
            Target::Level => f64::INFINITY,
            Target::Amplitude(_) if side > 0.0 => f64::INFINITY,
            Target::Amplitude(_) => estimate,
            Target::Searched(i) if side > 0.0 => (self.family.searched[i].high / estimate).ln(),
            Target::Searched(i) => (estimate / self.family.searched[i].low).ln(),
        };
        if furthest <= 0.0 {
            return None;
        }
        let mut start = self.optimum.searched().to_vec();
        let (mut inside, mut outside) = ((0.0, -1.0), None);
        let mut by = size.min(furthest).clamp(1e-12, 5.0);
        for _ in 0..MOST_TRIALS {
            let (excess, searched) = self.excess(at(by), &start);
            start = searched;
            if excess.abs() < END_ERROR {
                return Some(at(by));
            }
            if excess < 0.0 {
                if by >= furthest || by > 1e12 {
                    return None;
                }
                inside = (by, excess);
            } else {
                outside = Some((by, excess));
            }
            by = match outside {
                None => (2.0 * by).min(furthest),
                Some(outside) => between(inside, outside),
            };
            if let Some((outer, _)) = outside
                && outer - inside.0 <= 1e-9 * outer
            {
                break;
            }
        }
        outside.map(|(by, _)| at(by))
    }

    /// The root of the growth of the residual in units of the room, minus 1; and the searched parameters there.
    fn excess(&self, value: f64, start: &[f64]) -> (f64, Vec<f64>) {
        let mut limits = SearchLimits {
            admitted: Amplitudes::Positive,
            held: None,
            steps: MAX_STEPS,
            decrease: ROUGH_DECREASE,
            rounding: 0.0,
        };
        let mut shifted = None;
        match self.target {
            Target::Level => shifted = Some(self.observations.with_level(value)),
            Target::Amplitude(i) => limits.admitted = Amplitudes::Fixed(i, value),
            Target::Searched(i) => limits.held = Some(i),
        }
        let observations = shifted.as_ref().unwrap_or(self.observations);
        let mut start = start.to_vec();
        if let Target::Searched(i) = self.target {
            start[i] = value;
        }
        let best = search(self.family, observations, &start, limits);
        (((best.fit.rss - self.optimum.rss()).max(0.0) / self.room).sqrt() - 1.0, best.searched)
    }
}

/// A point between, by the secant, kept away from the ends.
fn between((x0, y0): (f64, f64), (x1, y1): (f64, f64)) -> f64 {
    let share = (y0 / (y0 - y1)).clamp(0.02, 0.98);
    x0 + share * (x1 - x0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secant_stays_inside() {
        assert!((between((0.0, -1.0), (2.0, 1.0)) - 1.0).abs() < 1e-15);
        assert_eq!(between((0.0, -1.0), (1.0, 1e9)), 0.02);
    }
}
