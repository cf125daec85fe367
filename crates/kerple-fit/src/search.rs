//! The search over the nonlinear parameters of a family: bounded Levenberg-Marquardt in their logarithms.
//!
//! # Why written here, and what was rejected
//!
//! A problem has at most four unknowns, so a step is a system of at most four equations. Crates with a bounded solver bring
//! linear algebra of any size; those without bounds let a rate run to infinity on a flat valley, which is where
//! the families that do not fit a curve end. A joint search over amplitudes as well was rejected: it ended far from the best
//! values (rms 0.115 in place of 0.057 for `log3` on stretched curves).

use crate::family::Family;
use crate::observations::{Observations, dot};
use crate::projection::{Amplitudes, ProjectedFit, project};

/// A search stops when a step reduces the residual by less than a share, twice in a row: this one for a fit.
pub(crate) const FIT_DECREASE: f64 = 1e-12;
/// The same for starts and intervals, whose residual need not be as exact.
pub(crate) const ROUGH_DECREASE: f64 = 1e-9;
/// Most steps of a search.
pub(crate) const MAX_STEPS: usize = 60;
/// Largest change of a logarithm in one step.
const LONGEST_STEP: f64 = 3.0;

/// Values of the searched parameters, and what is fitted there.
#[derive(Clone, Debug)]
pub(crate) struct Optimum {
    /// `[P]`
    pub searched: Vec<f64>,
    pub fit: ProjectedFit,
}

/// What a search keeps fixed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchLimits {
    pub admitted: Amplitudes,
    /// A searched parameter that keeps its value, for its interval.
    pub held: Option<usize>,
    pub steps: usize,
    /// The share of the residual below which a step counts as small.
    pub decrease: f64,
    /// A residual sum of squares that is rounding.
    pub rounding: f64,
}

/// Searches for a family from `start`, which is brought into the box.
pub(crate) fn search(family: &Family, observations: &Observations, start: &[f64], limits: SearchLimits) -> Optimum {
    let ends: Vec<(f64, f64)> = family.searched.iter().map(|of| (of.low, of.high)).collect();
    search_box(&ends, start, limits, |searched| project(family, observations, searched, limits.admitted))
}

/// Searches from `start` in a box with these ends; `fit` fits what is linear at values of the searched parameters.
pub(crate) fn search_box(
    ends: &[(f64, f64)],
    start: &[f64],
    limits: SearchLimits,
    fit: impl Fn(&[f64]) -> ProjectedFit,
) -> Optimum {
    let clamp = |values: Vec<f64>| -> Vec<f64> {
        values.iter().zip(ends).map(|(x, (low, high))| x.clamp(*low, *high)).collect()
    };
    let searched = clamp(start.to_vec());
    let mut best = Optimum { fit: fit(&searched), searched };
    let mut damping = 1e-3;
    let mut small_steps = 0;
    for _ in 0..limits.steps {
        if best.fit.rss <= limits.rounding || small_steps == 2 {
            break;
        }
        let Some(step) = step(ends, &best, limits.held, damping) else { break };
        let moved = clamp(
            best.searched.iter().zip(&step).map(|(x, by)| x * by.clamp(-LONGEST_STEP, LONGEST_STEP).exp()).collect(),
        );
        if moved == best.searched {
            break;
        }
        let found = fit(&moved);
        if found.rss < best.fit.rss {
            small_steps = if best.fit.rss - found.rss < limits.decrease * best.fit.rss { small_steps + 1 } else { 0 };
            best = Optimum { searched: moved, fit: found };
            damping = (damping * 0.1).max(1e-15);
        } else {
            damping *= 8.0;
            if damping > 1e12 {
                break;
            }
        }
    }
    best
}

/// The damped step of the parameters that may move; nothing where none may.
fn step(ends: &[(f64, f64)], at: &Optimum, held: Option<usize>, damping: f64) -> Option<Vec<f64>> {
    let jacobian = &at.fit.jacobian;
    let slope: Vec<f64> = jacobian.iter().map(|column| dot(column, &at.fit.residual)).collect();
    let may_move = |i: &usize| {
        let (x, (low, high)) = (at.searched[*i], ends[*i]);
        let leaves = (x <= low && slope[*i] >= 0.0) || (x >= high && slope[*i] <= 0.0);
        held != Some(*i) && !leaves && slope[*i] != 0.0 && slope[*i].is_finite()
    };
    let free: Vec<usize> = (0..slope.len()).filter(may_move).collect();
    if free.is_empty() {
        return None;
    }
    let mut matrix: Vec<Vec<f64>> =
        free.iter().map(|i| free.iter().map(|j| dot(&jacobian[*i], &jacobian[*j])).collect()).collect();
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] *= 1.0 + damping;
    }
    let solved = solve_positive(matrix, free.iter().map(|i| -slope[*i]).collect())?;
    let mut step = vec![0.0; slope.len()];
    free.iter().zip(solved).for_each(|(i, by)| step[*i] = by);
    Some(step)
}

/// Solves a small positive definite system by Cholesky's method, scaled to a unit diagonal; nothing where it is singular.
pub(crate) fn solve_positive(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let n = right.len();
    let scale: Vec<f64> = (0..n).map(|i| matrix[i][i].sqrt().recip()).collect();
    if scale.iter().any(|x| !x.is_finite()) {
        return None;
    }
    for i in 0..n {
        right[i] *= scale[i];
        for j in 0..n {
            matrix[i][j] *= scale[i] * scale[j];
        }
    }
    for j in 0..n {
        let rest = matrix[j][j] - (0..j).map(|k| matrix[j][k] * matrix[j][k]).sum::<f64>();
        // a direction that is all but flat: the damping of a later step opens it
        matrix[j][j] = rest.max(1e-15).sqrt();
        for i in j + 1..n {
            let inner: f64 = (0..j).map(|k| matrix[i][k] * matrix[j][k]).sum();
            matrix[i][j] = (matrix[i][j] - inner) / matrix[j][j];
        }
    }
    for i in 0..n {
        let inner: f64 = (0..i).map(|k| matrix[i][k] * right[k]).sum();
        right[i] = (right[i] - inner) / matrix[i][i];
    }
    for i in (0..n).rev() {
        let inner: f64 = (i + 1..n).map(|k| matrix[k][i] * right[k]).sum();
        right[i] = (right[i] - inner) / matrix[i][i];
    }
    let solved: Vec<f64> = right.iter().zip(&scale).map(|(x, scale)| x * scale).collect();
    solved.iter().all(|x| x.is_finite()).then_some(solved)
}
