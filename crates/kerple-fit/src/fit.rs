//! The fit of one family to a curve: starts on few distances, the best of them on all.

use crate::family::Family;
use crate::observations::Observations;
use crate::projection::Amplitudes;
use crate::search::{FIT_DECREASE, MAX_STEPS, Optimum, ROUGH_DECREASE, SearchLimits, search};
use crate::starts::{log_spaced, starts};

/// Distances that all starts are tried on.
const TRIAL_DISTANCES: usize = 64;
/// Steps that each start is tried for.
const TRIAL_STEPS: usize = 8;
/// Starts that go on to all distances, at most.
const FINALISTS: usize = 6;
/// Starts that are first searched to the end on few distances, where most of them meet.
const SEMIFINALISTS: usize = 2 * FINALISTS;

/// A family fitted to a curve.
#[derive(Clone, Debug)]
pub(crate) struct FamilyOptimum {
    pub level: f64,
    pub optimum: Optimum,
}

impl FamilyOptimum {
    pub(crate) fn amplitudes(&self) -> &[f64] {
        &self.optimum.fit.amplitudes
    }

    pub(crate) fn searched(&self) -> &[f64] {
        &self.optimum.searched
    }

    pub(crate) fn rss(&self) -> f64 {
        self.optimum.fit.rss
    }

    /// The fitted curve at the values of `observations`, with the level.
    pub(crate) fn predicted(&self, family: &Family, observations: &Observations) -> Vec<f64> {
        let sum = kernel_values(family, observations, self.amplitudes(), self.searched());
        sum.into_iter().map(|k| self.level + k).collect()
    }
}

/// The kernel at the values of `observations`, without level, weights or whitening.
fn kernel_values(family: &Family, observations: &Observations, amplitudes: &[f64], searched: &[f64]) -> Vec<f64> {
    let values = family.values(amplitudes, searched);
    let members: Vec<_> = family.expr.members();
    let at = |d: &f64| {
        let mut next = 0;
        let of = |member: &kerple_core::calculus::expr::Expr| {
            let count = member.roles().len();
            next += count;
            if member.is_constant() { 0.0 } else { member.at(&values[next - count..next], *d) }
        };
        members.iter().map(of).sum()
    };
    observations.averaged(observations.support().distances().iter().map(at).collect())
}

/// Fits one family. `found` are the optima of families before it, some of which are its special cases.
pub(crate) fn fit_family(
    family: &Family,
    observations: &Observations,
    rounding: f64,
    admitted: Amplitudes,
    found: &[(&str, &FamilyOptimum)],
) -> FamilyOptimum {
    let limits = SearchLimits { admitted, held: None, steps: MAX_STEPS, decrease: FIT_DECREASE, rounding };
    let mut best: Option<Optimum> = None;
    let special = family.nested.iter().flat_map(|(name, values)| {
        let own = found.iter().filter(move |(other, _)| other == name);
        own.map(move |(_, optimum)| {
            let mut left = optimum.searched().iter();
            values.iter().map(|value| value.unwrap_or_else(|| *left.next().expect("a value for each"))).collect()
        })
    });
    let finalists: Vec<Vec<f64>> = special.chain(finalists(family, observations, limits)).collect();
    for start in finalists {
        let optimum = search(family, observations, &start, limits);
        if best.as_ref().is_none_or(|best| optimum.fit.rss < best.fit.rss) {
            best = Some(optimum);
        }
    }
    let mut optimum = best.expect("every family has a start");
    family.put_faster_first(&mut optimum.fit.amplitudes, &mut optimum.searched);
    let sum = kernel_values(family, observations, &optimum.fit.amplitudes, &optimum.searched);
    FamilyOptimum { level: observations.level_beside(&sum), optimum }
}

/// The best starts after a few steps on a few distances, no two of them alike.
fn finalists(family: &Family, observations: &Observations, limits: SearchLimits) -> Vec<Vec<f64>> {
    let support = observations.support();
    let furthest: Vec<f64> = (0..observations.len()).map(|i| support.furthest(i)).collect();
    let all = starts(family, furthest.iter().copied().fold(0.0, f64::max));
    if all.len() == 1 {
        return all;
    }
    let trial = observations.select(&log_spaced(&furthest, TRIAL_DISTANCES));
    let limits = SearchLimits { decrease: ROUGH_DECREASE, ..limits };
    let few = SearchLimits { steps: TRIAL_STEPS, ..limits };
    let mut tried: Vec<Optimum> = all.iter().map(|start| search(family, &trial, start, few)).collect();
    tried.sort_by(|x, y| x.fit.rss.total_cmp(&y.fit.rss));
    tried.truncate(SEMIFINALISTS);
    let mut tried: Vec<Optimum> =
        tried.iter().map(|optimum| search(family, &trial, &optimum.searched, limits)).collect();
    tried.sort_by(|x, y| x.fit.rss.total_cmp(&y.fit.rss));
    let mut kept: Vec<Vec<f64>> = Vec::with_capacity(FINALISTS);
    for optimum in tried {
        let close = |other: &Vec<f64>| other.iter().zip(&optimum.searched).all(|(x, y)| (x / y).ln().abs() < 1e-3);
        if !kept.iter().any(close) {
            kept.push(optimum.searched);
        }
        if kept.len() == FINALISTS {
            break;
        }
    }
    kept
}
