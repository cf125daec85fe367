//! Updates until a task was learned, of runs that a stop rule ends.

use serde::Serialize;

use super::group::RunGroup;
use super::number;
use crate::run::Run;
use kerple_run::{LearnedAt, StopRule};

/// When one run learned its task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunLearning {
    /// The [`RunGroup`] of the run.
    pub group: String,
    /// Name of the encoding.
    pub encoding: String,
    /// Its seed.
    pub seed: Option<u64>,
    /// Name of the task, where the plan has it.
    pub task: Option<String>,
    /// The validation score that passes.
    #[serde(with = "number")]
    pub score: f64,
    /// Validations in a row that must pass.
    pub checks: u64,
    /// Updates between validations.
    pub eval_interval: u64,
    /// The most updates.
    pub steps: u64,
    /// Whether it has learned the task.
    pub outcome: LearningOutcome,
    /// Updates until it was learned: up to the first validation that passed of those in a row.
    pub updates: Option<u64>,
    /// Updates until training stopped: up to the last of these.
    pub stopped_at: Option<u64>,
    /// Its latest validation score.
    #[serde(with = "number")]
    pub latest_score: Option<f64>,
}

/// Whether a run has learned its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LearningOutcome {
    /// Its stop rule was met.
    Learned,
    /// All its updates are done, and its stop rule was not met.
    NotLearned,
    /// Neither yet.
    Unfinished,
}

/// How many runs of an encoding learned their task, over seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LearnedCount {
    /// The [`RunGroup`] of the runs.
    pub group: String,
    /// Name of the encoding.
    pub encoding: String,
    /// Runs that are complete.
    pub n: usize,
    /// Those of them that learned the task.
    pub learned: usize,
    /// Runs that are not complete, and count for nothing.
    pub unfinished: usize,
    /// Median updates until learned over the `n` runs. A run that has not learned takes longer than all others, so there is no
    /// median where that is one in the middle.
    #[serde(with = "number")]
    pub median_updates: Option<f64>,
}

/// Of all runs whose plan has a stop rule, in the order of groups, encodings and seeds.
pub(super) fn runs(runs: &[&Run], groups: &[RunGroup], encodings: &[String]) -> Vec<RunLearning> {
    let mut found: Vec<RunLearning> = runs.iter().filter_map(|run| of_run(run)).collect();
    let place = |row: &RunLearning| {
        let group = groups.iter().position(|group| group.id == row.group);
        (group, encodings.iter().position(|name| *name == row.encoding), row.seed)
    };
    found.sort_by_key(place);
    found
}

fn of_run(run: &Run) -> Option<RunLearning> {
    let end = run.plan.training_end()?;
    let StopRule { score, checks } = end.until?;
    let scores = kerple_run::validation_scores(&run.metrics);
    let learned = end.learned(&scores);
    let outcome = match learned {
        Some(_) => LearningOutcome::Learned,
        None if run.steps_done() >= end.steps => LearningOutcome::NotLearned,
        None => LearningOutcome::Unfinished,
    };
    let task = &run.plan.keys["data"]["task"];
    Some(RunLearning {
        group: run.conditions.fingerprint(),
        encoding: run.name.clone(),
        seed: run.seed(),
        task: task.as_str().or_else(|| task["kind"].as_str()).map(str::to_owned),
        score,
        checks,
        eval_interval: end.eval_interval,
        steps: end.steps,
        outcome,
        updates: learned.map(|LearnedAt { first, .. }| first),
        stopped_at: learned.map(|LearnedAt { last, .. }| last),
        latest_score: scores.last().map(|(_, score)| *score),
    })
}

/// The counts of rows that [`runs`] has put in order.
pub(super) fn counts(rows: &[RunLearning]) -> Vec<LearnedCount> {
    let by_encoding = rows.chunk_by(|a, b| (&a.group, &a.encoding) == (&b.group, &b.encoding));
    let count = |rows: &[RunLearning]| {
        let with = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
        let (learned, unfinished) = (with(LearningOutcome::Learned), with(LearningOutcome::Unfinished));
        let mut updates: Vec<u64> = rows.iter().filter_map(|row| row.updates).collect();
        updates.sort_unstable();
        let n = rows.len() - unfinished;
        LearnedCount {
            group: rows[0].group.clone(),
            encoding: rows[0].encoding.clone(),
            n,
            learned,
            unfinished,
            median_updates: censored_median(&updates, n),
        }
    };
    by_encoding.map(count).collect()
}

/// The median of `n` numbers of which only the least are known, in ascending order.
fn censored_median(known: &[u64], n: usize) -> Option<f64> {
    let upper = *known.get(n / 2)?;
    let lower = if n.is_multiple_of(2) { known[n / 2 - 1] } else { upper };
    Some((lower as f64 + upper as f64) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_did_not_learn_are_above_every_median() {
        assert_eq!(censored_median(&[10, 20, 40], 3), Some(20.0));
        assert_eq!(censored_median(&[10, 20], 3), Some(20.0), "the third is longer, whatever it is");
        assert_eq!(censored_median(&[10, 20, 40], 4), Some(30.0));
        assert_eq!(censored_median(&[10, 20], 4), None, "it is between 20 and what is not known");
        assert_eq!(censored_median(&[10], 3), None);
        assert_eq!(censored_median(&[], 0), None);
    }
}
