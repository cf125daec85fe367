//! The update at which a run is complete: its last planned one, or the one at which its stop rule
//! ended it.

use crate::MetricsRow;
use serde::{Deserialize, Serialize};

/// `[train] until`, early stopping by a threshold: training stops once the validation score was at
/// least `score` in `checks` validations in a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table { score, checks }")]
pub struct StopRule {
    /// The least validation score that passes, a share of right answers: above 0 and at most 1.
    pub score: f64,
    /// Validations in a row that must pass.
    pub checks: u64,
}

/// The settings that decide when training ends.
///
/// ```
/// # use kerple_run::{StopRule, TrainingEnd};
/// let rule = StopRule { score: 0.9, checks: 2 };
/// let end = TrainingEnd { steps: 100, eval_interval: 10, until: Some(rule) };
/// assert_eq!(end.last_step(&[(10, 0.95), (20, 0.5), (30, 0.9), (40, 1.0)]), 40);
/// assert_eq!(end.last_step(&[(10, 0.95), (20, 0.5), (30, 0.9)]), 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingEnd {
    /// The most updates.
    pub steps: u64,
    /// Updates between validations; 0: no validations.
    pub eval_interval: u64,
    /// What may end it earlier.
    pub until: Option<StopRule>,
}

/// The validations by which a run has learned its task, as updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedAt {
    /// The first validation that passed of those in a row.
    pub first: u64,
    /// The last of them, after which training stopped.
    pub last: u64,
}

/// Update and score of every validation that some rows record, in their order.
pub fn validation_scores(rows: &[MetricsRow]) -> Vec<(u64, f64)> {
    rows.iter().filter_map(|row| Some((row.step, row.val_score?))).collect()
}

impl TrainingEnd {
    /// The update at which a run with these validation scores is complete: the one at which its
    /// stop rule was met, else the last planned one. `scores` are updates and scores, in order.
    pub fn last_step(&self, scores: &[(u64, f64)]) -> u64 {
        self.learned(scores).map_or(self.steps, |learned| learned.last)
    }

    /// The validations by which the stop rule was met; `None` where there is no rule or it was not
    /// met so far.
    ///
    /// A validation without a score ends a row of them, so a gap in `scores` never counts as
    /// passed. Scores at other updates than those of the validations are ignored: a run that was
    /// extended was also validated at its former end.
    pub fn learned(&self, scores: &[(u64, f64)]) -> Option<LearnedAt> {
        let rule = self.until?;
        // the first of the row so far, how many they are, and the number of the latest validation
        let (mut first, mut passed, mut latest) = (0, 0, 0);
        for &(step, score) in scores {
            let Some(number) = self.validation(step) else { continue };
            let follows = number == latest + 1;
            latest = number;
            // a score that is NaN does not pass
            let passes = score >= rule.score;
            (first, passed) = match (passes, follows && passed > 0) {
                (false, _) => (0, 0),
                (true, true) => (first, passed + 1),
                (true, false) => (step, 1),
            };
            if passed > 0 && passed >= rule.checks {
                return Some(LearnedAt { first, last: step });
            }
        }
        None
    }

    /// Whether every validation up to `step` has a score in `scores`.
    pub fn has_all_scores(&self, scores: &[(u64, f64)], step: u64) -> bool {
        let Some(expected) = step.checked_div(self.eval_interval) else { return true };
        let regular = |(at, _): &&(u64, f64)| *at > 0 && *at <= step && at.is_multiple_of(self.eval_interval);
        scores.iter().filter(regular).count() as u64 == expected
    }

    /// The number of validations up to the last planned update.
    pub fn validations(&self) -> u64 {
        if self.eval_interval == 0 { 0 } else { self.steps.div_ceil(self.eval_interval) }
    }

    /// The number of the validation after an update, counted from 1; `None` where there is none.
    fn validation(&self, step: u64) -> Option<u64> {
        let validated = step == self.steps || step.checked_rem(self.eval_interval) == Some(0);
        (validated && step > 0 && self.eval_interval > 0).then(|| step.div_ceil(self.eval_interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(score: f64, checks: u64) -> TrainingEnd {
        TrainingEnd { steps: 45, eval_interval: 10, until: Some(StopRule { score, checks }) }
    }

    #[test]
    fn it_takes_as_many_passes_in_a_row() {
        let scores = [(10, 0.9), (20, 0.8), (30, 0.9), (40, 0.95), (45, 1.0)];
        let learned = |checks| end(0.9, checks).learned(&scores).map(|at| (at.first, at.last));
        let found = [1, 2, 3, 4].map(learned);
        assert_eq!(found, [Some((10, 10)), Some((30, 40)), Some((30, 45)), None]);
        assert_eq!([1, 2, 3, 4].map(|checks| end(0.9, checks).last_step(&scores)), [10, 40, 45, 45]);
        assert_eq!(end(f64::MIN_POSITIVE, 1).learned(&[(10, f64::NAN), (20, 0.0)]), None);
        let none = TrainingEnd { until: None, ..end(0.9, 1) };
        assert_eq!((none.learned(&scores), none.last_step(&scores)), (None, 45));
    }

    #[test]
    fn gaps_and_updates_between_validations_do_not_count() {
        assert_eq!(end(0.9, 2).learned(&[(10, 1.0), (30, 1.0)]), None, "the validation at 20 is missing");
        assert_eq!(end(0.9, 2).learned(&[(30, 1.0), (45, 1.0)]), None, "that at 40 is missing");
        assert_eq!(end(0.9, 2).last_step(&[(10, 1.0), (15, 0.0), (20, 1.0)]), 20, "15 was a former end");
        let scores = [(10, 1.0), (15, 1.0), (20, 1.0), (30, 1.0)];
        for (kept, step, all) in [(4, 30, true), (4, 39, true), (4, 40, false), (3, 30, false), (0, 9, true)] {
            assert_eq!(end(0.9, 9).has_all_scores(&scores[..kept], step), all, "{kept} rows, step {step}");
        }
        let never = TrainingEnd { eval_interval: 0, ..end(0.9, 1) };
        assert_eq!((never.learned(&scores), never.validations(), end(0.9, 1).validations()), (None, 0, 5));
        assert!(never.has_all_scores(&[], 45));
    }
}
