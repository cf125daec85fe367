//! Variable projection (Golub and Pereyra 1973): for given values of the searched parameters, amplitudes and level follow
//! by linear least squares, so that a search has at most a few unknowns.
//!
//! Amplitudes are at least 0 (Fact 2: only positive multiples of a kernel are kernels). Of the `2^m` subsets of members
//! that may be present, the best one whose amplitudes are all positive is taken.

use crate::family::Family;
use crate::observations::{Observations, dot};

/// Which amplitudes are admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Amplitudes {
    /// At least 0.
    Positive,
    /// Any: for showing that a curve rises.
    Any,
    /// At least 0, and one of them a given number: for its interval.
    Fixed(usize, f64),
}

/// Amplitudes and residual at some values of the searched parameters.
#[derive(Clone, Debug)]
pub(crate) struct ProjectedFit {
    /// `[m]`
    pub amplitudes: Vec<f64>,
    /// Residual sum of squares.
    pub rss: f64,
    /// Transformed residuals, `[n]`.
    pub residual: Vec<f64>,
    /// Derivatives of the residual in the logarithm of each searched parameter, `[P][n]`, by Kaufman's approximation.
    pub jacobian: Vec<Vec<f64>>,
}

/// A column that is 0 after the level is removed: all of it is rounding below this share of its size before.
const VANISHES: f64 = 1e-13;

/// Fits amplitudes and level.
pub(crate) fn project(
    family: &Family,
    observations: &Observations,
    searched: &[f64],
    admitted: Amplitudes,
) -> ProjectedFit {
    let mut target = observations.target().to_vec();
    let mut columns = Vec::with_capacity(family.members.len());
    let mut slopes: Vec<(usize, usize, Vec<f64>)> = Vec::with_capacity(searched.len());
    for (number, member) in family.members.iter().enumerate() {
        let (value, gradients) = member_columns(family, number, observations, searched);
        if member.amplitude.is_none() {
            target.iter_mut().zip(&value).for_each(|(y, k)| *y -= k);
        }
        columns.push(value);
        slopes.extend(gradients.into_iter().map(|(parameter, column)| (number, parameter, column)));
    }
    let free: Vec<usize> = (0..columns.len()).filter(|i| family.members[*i].amplitude.is_some()).collect();
    let mut solution = solve(&columns, &free, target, admitted);
    let coefficient = |member: usize| free.iter().position(|i| *i == member).map_or(1.0, |i| solution.amplitudes[i]);
    let jacobian = slopes.into_iter().map(|(member, parameter, mut column)| {
        let factor = -coefficient(member) * searched[parameter];
        column.iter_mut().for_each(|x| *x *= factor);
        remove_along(&mut column, &solution.basis);
        (parameter, column)
    });
    let mut jacobian: Vec<(usize, Vec<f64>)> = jacobian.collect();
    jacobian.sort_by_key(|(parameter, _)| *parameter);
    let residual = std::mem::take(&mut solution.residual);
    ProjectedFit {
        rss: dot(&residual, &residual),
        amplitudes: solution.amplitudes,
        residual,
        jacobian: jacobian.into_iter().map(|(_, column)| column).collect(),
    }
}

/// The column of a member with amplitude 1, and its derivatives in the searched parameters it has.
fn member_columns(
    family: &Family,
    number: usize,
    observations: &Observations,
    searched: &[f64],
) -> (Vec<f64>, Vec<(usize, Vec<f64>)>) {
    let member = &family.members[number];
    let mut values = vec![1.0; member.searched.len() + usize::from(member.amplitude.is_some())];
    for (at, parameter) in &member.searched {
        values[*at] = searched[*parameter];
    }
    let distances = observations.support().distances();
    let mut gradient = vec![0.0; values.len()];
    let mut value = Vec::with_capacity(distances.len());
    let mut slopes: Vec<Vec<f64>> = member.searched.iter().map(|_| Vec::with_capacity(distances.len())).collect();
    for d in distances {
        value.push(member.expr.gradient(&values, *d, &mut gradient));
        for ((at, _), column) in member.searched.iter().zip(&mut slopes) {
            column.push(gradient[*at]);
        }
    }
    let slopes =
        member.searched.iter().zip(slopes).map(|((_, parameter), column)| (*parameter, observations.column(column)));
    (observations.column(value), slopes.collect())
}

struct LinearSolution {
    amplitudes: Vec<f64>,
    residual: Vec<f64>,
    /// Orthonormal columns that span what is fitted.
    basis: Vec<Vec<f64>>,
}

/// Least squares over the columns `free`, with the amplitudes that are admitted.
fn solve(columns: &[Vec<f64>], free: &[usize], mut target: Vec<f64>, admitted: Amplitudes) -> LinearSolution {
    let mut open: Vec<usize> = (0..free.len()).collect();
    if let Amplitudes::Fixed(which, value) = admitted {
        open.retain(|i| *i != which);
        target.iter_mut().zip(&columns[free[which]]).for_each(|(y, k)| *y -= value * k);
    }
    let all = (1usize << open.len()) - 1;
    let mut best: Option<(f64, LinearSolution)> = None;
    // from all members down: if the first is admitted, no other is better
    for subset in (0..=all).rev() {
        let present: Vec<usize> =
            open.iter().enumerate().filter(|(bit, _)| subset >> bit & 1 == 1).map(|(_, i)| *i).collect();
        let picked: Vec<&[f64]> = present.iter().map(|i| &columns[free[*i]][..]).collect();
        let Some((values, residual, basis)) = least_squares(&picked, &target) else { continue };
        if admitted != Amplitudes::Any && values.iter().any(|value| *value < 0.0) {
            continue;
        }
        let rss = dot(&residual, &residual);
        if best.as_ref().is_none_or(|(least, _)| rss < *least) {
            let mut amplitudes = vec![0.0; free.len()];
            present.iter().zip(values).for_each(|(i, value)| amplitudes[*i] = value);
            if let Amplitudes::Fixed(which, value) = admitted {
                amplitudes[which] = value;
            }
            best = Some((rss, LinearSolution { amplitudes, residual, basis }));
        }
        if subset == all {
            break;
        }
    }
    best.expect("no members at all are always admitted").1
}

/// Coefficients, residual, and orthonormal columns that span the fitted ones.
pub(crate) type Solved = (Vec<f64>, Vec<f64>, Vec<Vec<f64>>);

/// Least squares by modified Gram-Schmidt with the target as last column; nothing where columns depend on each other.
pub(crate) fn least_squares(columns: &[&[f64]], target: &[f64]) -> Option<Solved> {
    let count = columns.len();
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    let mut upper = vec![vec![0.0; count]; count];
    for (j, column) in columns.iter().enumerate() {
        let mut rest = column.to_vec();
        let size = dot(&rest, &rest).sqrt();
        // a second pass takes what rounding of the first has left
        for _ in 0..2 {
            for (i, unit) in basis.iter().enumerate() {
                let along = dot(&rest, unit);
                upper[i][j] += along;
                rest.iter_mut().zip(unit).for_each(|(x, q)| *x -= along * q);
            }
        }
        let norm = dot(&rest, &rest).sqrt();
        if !(norm > VANISHES * size && norm.is_finite()) {
            return None;
        }
        rest.iter_mut().for_each(|x| *x /= norm);
        upper[j][j] = norm;
        basis.push(rest);
    }
    let mut residual = target.to_vec();
    let mut along = vec![0.0; count];
    for _ in 0..2 {
        for (unit, sum) in basis.iter().zip(&mut along) {
            let part = dot(&residual, unit);
            *sum += part;
            residual.iter_mut().zip(unit).for_each(|(x, q)| *x -= part * q);
        }
    }
    for i in (0..count).rev() {
        let later: f64 = (i + 1..count).map(|j| upper[i][j] * along[j]).sum();
        along[i] = (along[i] - later) / upper[i][i];
    }
    along.iter().all(|x| x.is_finite()).then_some((along, residual, basis))
}

/// Removes the part of a column along orthonormal ones.
pub(crate) fn remove_along(column: &mut [f64], basis: &[Vec<f64>]) {
    for unit in basis {
        let along = dot(column, unit);
        column.iter_mut().zip(unit).for_each(|(x, q)| *x -= along * q);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::{Curve, CurvePrecision, Support};

    fn observations() -> Observations {
        let d: Vec<f64> = (0..48).map(f64::from).collect();
        // nothing that a family of the table describes, so that residuals are large
        let values = d.iter().map(|d| 2.0 - (0.3 * d).ln_1p() + 0.3 * (0.9 * d).sin()).collect();
        let weights = d.iter().map(|d| 1.0 + 0.1 * (d % 3.0)).collect();
        Observations::of(&Curve::new("c", Support::Distances(d), values, Some(weights), CurvePrecision::F64).unwrap())
    }

    #[test]
    fn the_gradient_matches_differences_inside_and_at_the_ends_of_the_box() {
        for observations in [observations(), observations().whitened(0.6), observations().with_level(1.5)] {
            for family in Family::named() {
                for corner in 0..3usize.pow(family.searched.len() as u32) {
                    let pick = |(i, of): (usize, &crate::family::SearchedParameter)| {
                        // rates near the box's own ends leave nothing of a kernel over 48 distances
                        let ends = [of.low.max(1e-3), (of.low.max(1e-3) * of.high.min(10.0)).sqrt(), of.high.min(10.0)];
                        ends[corner / 3usize.pow(i as u32) % 3]
                    };
                    let at: Vec<f64> = family.searched.iter().enumerate().map(pick).collect();
                    let fit = project(&family, &observations, &at, Amplitudes::Positive);
                    if fit.amplitudes.contains(&0.0) {
                        continue; // a subset may change there, where the residual has no derivative
                    }
                    for i in 0..at.len() {
                        // a wave over many distances bends within a small change of its frequency
                        let is_wave = family.searched[i].role == kerple_core::calculus::parameter::Role::Frequency;
                        let step: f64 = if is_wave { 1e-6 } else { 1e-4 };
                        let moved = |by: f64| {
                            let mut at = at.clone();
                            at[i] *= by.exp();
                            project(&family, &observations, &at, Amplitudes::Positive).rss
                        };
                        let numeric = (moved(step) - moved(-step)) / (2.0 * step);
                        let exact = 2.0 * dot(&fit.jacobian[i], &fit.residual);
                        // truncation is of relative size step^2; rounding eps rss / step, a thousand times as much where a column
                        // is all but constant
                        let tolerance = 1e-6 * exact.abs() + 1e-9 * fit.rss;
                        assert!((exact - numeric).abs() <= tolerance, "{} {at:?} {i}: {exact} {numeric}", family.name);
                    }
                }
            }
        }
    }

    #[test]
    fn of_all_subsets_of_amplitudes_the_best_admitted_one_is_taken() {
        let observations = observations();
        let family = Family::read("log(b, a) + power(a, 1) + gauss(c, a)", false).unwrap();
        for at in [[0.3, 0.01], [5.0, 0.2], [0.01, 1.0]] {
            let fit = project(&family, &observations, &at, Amplitudes::Positive);
            assert!(fit.amplitudes.iter().all(|c| *c >= 0.0), "{:?}", fit.amplitudes);
            // no direction along which the amplitudes may move lowers the residual (Karush, Kuhn and Tucker)
            for (i, amplitude) in fit.amplitudes.iter().enumerate() {
                let (column, _) = member_columns(&family, i, &observations, &at);
                let slope = dot(&column, &fit.residual) / dot(&column, &column).sqrt();
                assert!(slope <= 1e-9 && (*amplitude == 0.0 || slope >= -1e-9), "{i}: {slope}");
            }
        }
    }

    #[test]
    fn a_fixed_amplitude_is_kept_and_a_free_one_may_be_negative() {
        let family = Family::read("log_linear", false).unwrap();
        let fit = project(&family, &observations(), &[0.3], Amplitudes::Fixed(0, 0.25));
        assert_eq!(fit.amplitudes[0], 0.25);
        let line = Family::read("linear", false).unwrap();
        let d: Vec<f64> = (0..16).map(f64::from).collect();
        let values = d.iter().map(|d| 0.5 * d).collect();
        let curve = Curve::new("rises", Support::Distances(d), values, None, CurvePrecision::F64).unwrap();
        let rising = Observations::of(&curve);
        assert!((project(&line, &rising, &[], Amplitudes::Any).amplitudes[0] + 0.5).abs() < 1e-12);
        assert_eq!(project(&line, &rising, &[], Amplitudes::Positive).amplitudes, [0.0]);
    }
}
