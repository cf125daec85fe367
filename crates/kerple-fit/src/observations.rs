//! What a fit is compared with: values after weighting, whitening and removing the level, and the same done to any column.

use crate::curve::{Curve, Support};

/// The level of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Level {
    /// Found by least squares, as softmax ignores it.
    Free,
    /// A number, for its interval.
    Fixed(f64),
}

/// Values of a curve as a least-squares problem.
#[derive(Clone, Debug)]
pub(crate) struct Observations {
    support: Support,
    root_weights: Option<Vec<f64>>,
    /// Correlation of neighbouring residuals that is removed (Prais and Winsten 1954); 0 for independent ones.
    rho: f64,
    level: Level,
    /// What the level is multiplied with, and its squared norm.
    ones: (Vec<f64>, f64),
    /// Transformed values, without their part along the level.
    target: Vec<f64>,
    values: Vec<f64>,
}

impl Observations {
    pub(crate) fn of(curve: &Curve) -> Observations {
        let root_weights = curve.weights().map(|weights| weights.iter().map(|weight| weight.sqrt()).collect());
        Observations::new(curve.support().clone(), curve.values().to_vec(), root_weights, 0.0, Level::Free)
    }

    fn new(support: Support, values: Vec<f64>, root_weights: Option<Vec<f64>>, rho: f64, level: Level) -> Observations {
        let mut found = Observations {
            ones: (vec![1.0; values.len()], 0.0),
            target: values.clone(),
            support,
            root_weights,
            rho,
            level,
            values,
        };
        let mut ones = std::mem::take(&mut found.ones.0);
        found.transform(&mut ones);
        found.ones = (ones, 0.0);
        found.ones.1 = dot(&found.ones.0, &found.ones.0);
        let mut target = std::mem::take(&mut found.target);
        found.transform(&mut target);
        match level {
            Level::Free => found.remove_level(&mut target),
            Level::Fixed(level) => target.iter_mut().zip(&found.ones.0).for_each(|(y, one)| *y -= level * one),
        }
        found.target = target;
        found
    }

    /// The same values with another correlation of residuals.
    pub(crate) fn whitened(&self, rho: f64) -> Observations {
        Observations::new(self.support.clone(), self.values.clone(), self.root_weights.clone(), rho, self.level)
    }

    /// The same values with a given level.
    pub(crate) fn with_level(&self, level: f64) -> Observations {
        let level = Level::Fixed(level);
        Observations::new(self.support.clone(), self.values.clone(), self.root_weights.clone(), self.rho, level)
    }

    /// Some of the values. They are not neighbours any more, so their residuals count as independent.
    pub(crate) fn select(&self, kept: &[usize]) -> Observations {
        let pick = |of: &[f64]| kept.iter().map(|i| of[*i]).collect::<Vec<f64>>();
        let root_weights = self.root_weights.as_deref().map(pick);
        Observations::new(self.support.select(kept), pick(&self.values), root_weights, 0.0, self.level)
    }

    /// The values up to a distance, and the numbers of the others.
    pub(crate) fn split_at(&self, distance: f64) -> (Observations, Vec<usize>) {
        let (near, far): (Vec<usize>, Vec<usize>) =
            (0..self.len()).partition(|i| self.support.furthest(*i) <= distance);
        // the first values stay neighbours
        (self.select(&near).whitened(self.rho), far)
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn support(&self) -> &Support {
        &self.support
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    pub(crate) fn target(&self) -> &[f64] {
        &self.target
    }

    pub(crate) fn rho(&self) -> f64 {
        self.rho
    }

    /// What the level is multiplied with, `[n]`.
    pub(crate) fn ones(&self) -> &[f64] {
        &self.ones.0
    }

    /// A column of one number per distance as one number per value, weighted and whitened, without its part along the level.
    pub(crate) fn column(&self, per_distance: Vec<f64>) -> Vec<f64> {
        let mut column = self.averaged(per_distance);
        self.transform(&mut column);
        if self.level == Level::Free {
            self.remove_level(&mut column);
        }
        column
    }

    /// Means over buckets; the numbers themselves where each value has one distance.
    pub(crate) fn averaged(&self, per_distance: Vec<f64>) -> Vec<f64> {
        match &self.support {
            Support::Distances(_) => per_distance,
            Support::Buckets { ends, .. } => {
                let mut start = 0;
                let mean = |end: &usize| {
                    let bucket = &per_distance[start..*end];
                    start = *end;
                    bucket.iter().sum::<f64>() / bucket.len() as f64
                };
                ends.iter().map(mean).collect()
            }
        }
    }

    /// The level that goes with a sum of columns: `sum` has a number per value, without weights.
    pub(crate) fn level_beside(&self, sum: &[f64]) -> f64 {
        match self.level {
            Level::Fixed(level) => level,
            Level::Free => {
                let mut rest: Vec<f64> = self.values.iter().zip(sum).map(|(y, k)| y - k).collect();
                self.transform(&mut rest);
                dot(&rest, &self.ones.0) / self.ones.1
            }
        }
    }

    fn transform(&self, column: &mut [f64]) {
        if let Some(weights) = &self.root_weights {
            column.iter_mut().zip(weights).for_each(|(x, weight)| *x *= weight);
        }
        if self.rho != 0.0 {
            for i in (1..column.len()).rev() {
                column[i] -= self.rho * column[i - 1];
            }
            column[0] *= (1.0 - self.rho * self.rho).sqrt();
        }
    }

    fn remove_level(&self, column: &mut [f64]) {
        // twice is enough (Kahan, Parlett): a curve may stand far above its own variation
        for _ in 0..2 {
            let along = dot(column, &self.ones.0) / self.ones.1;
            column.iter_mut().zip(&self.ones.0).for_each(|(x, one)| *x -= along * one);
        }
    }
}

/// The inner product.
pub(crate) fn dot(x: &[f64], y: &[f64]) -> f64 {
    // four sums that do not wait for each other
    let mut sums = [0.0; 4];
    let (mut xs, mut ys) = (x.chunks_exact(4), y.chunks_exact(4));
    for (x, y) in (&mut xs).zip(&mut ys) {
        for lane in 0..4 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let rest: f64 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
}
