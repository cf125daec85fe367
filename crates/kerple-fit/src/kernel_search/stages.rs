//! Successive halving and the confirmation, given a way to measure runs.

use super::confirmation::{SearchResult, confirm};
use super::plan::{BASELINES, REFERENCE, SearchPlan, StagePlan};
use crate::space::SpaceExpression;
use kerple_core::encoding::Encoding;
use kerple_report::statistics::mean;
use kerple_run::{Error, Result};
use serde::{Deserialize, Serialize};

/// What takes part in a stage: an expression of the space, or a baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its number in the space; `None` of a baseline.
    pub number: Option<usize>,
    /// The name in tables.
    pub title: String,
    /// The kernel, or the name of the baseline.
    pub text: String,
    /// The name of its folder.
    pub folder: String,
}

impl Arm {
    /// An expression of the space.
    pub fn expression(number: usize, of: &SpaceExpression) -> Arm {
        let folder = format!("e{number:04}");
        Arm { number: Some(number), title: of.title(), text: of.expression.clone(), folder }
    }

    /// The baselines.
    pub fn baselines() -> Vec<Arm> {
        let baseline = |(name, _): &(&str, &str)| {
            let [title, text, folder] = [name, name, name].map(|name| (*name).to_owned());
            Arm { number: None, title, text, folder }
        };
        BASELINES.iter().map(baseline).collect()
    }

    /// Whether it is what finalists are tested against.
    pub fn is_reference(&self) -> bool {
        self.number.is_none() && self.text == REFERENCE
    }

    /// What a run of it has as its positional encoding.
    ///
    /// # Errors
    /// A kernel that training does not take.
    pub fn encoding(&self, unproven: bool) -> Result<Encoding> {
        let value = match self.number {
            None => self.text.as_str().into(),
            Some(_) if unproven => serde_json::json!({ "kind": "kernel", "bias": self.text, "unproven": true }),
            Some(_) => serde_json::json!({ "kind": "kernel", "bias": self.text }),
        };
        serde_json::from_value(value).map_err(|error| {
            Error::refused(format!("`{}`: {error}", self.text), "search again with the program that made the plan")
        })
    }
}

/// What was measured of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct ArmScore {
    /// Loss by length; empty where the run diverged.
    pub nll_by_length: Vec<(u64, f64)>,
    /// Why it has no loss, if so.
    pub diverged: Option<String>,
}

/// What became of a stage.
#[derive(Clone, Debug, PartialEq)]
pub enum StageOutcome {
    /// Scores `[arms][seeds]`.
    Measured(Vec<Vec<ArmScore>>),
    /// The user stopped it.
    Stopped,
    /// So many of its runs are left to other shards.
    Missing(usize),
}

/// A run as a row of `rows.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchRow {
    /// Hash of the plan.
    pub plan: String,
    /// The stage.
    pub stage: String,
    /// The expression, or the baseline.
    pub expression: String,
    /// Whether it is a baseline.
    pub baseline: bool,
    /// The seed.
    pub seed: u64,
    /// Updates.
    pub updates: u64,
    /// Split of the text.
    pub split: String,
    /// Mean loss over the lengths; absent of a run that diverged.
    pub nll: Option<f64>,
    /// Loss by length.
    pub nll_by_length: Vec<(u64, f64)>,
    /// Why it has no loss, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged: Option<String>,
}

/// An arm in a rung.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungEntry {
    /// The expression, or the baseline.
    pub expression: String,
    /// Whether it is a baseline.
    pub baseline: bool,
    /// Mean loss over seeds and lengths; absent where a run diverged.
    pub nll: Option<f64>,
    /// Mean loss minus that of the reference.
    pub difference: Option<f64>,
    /// Whether it is in the next stage.
    pub goes_on: bool,
}

/// A rung, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungResult {
    /// Its name.
    pub name: String,
    /// Updates of each run.
    pub updates: u64,
    /// Its arms, best first.
    pub entries: Vec<RungEntry>,
}

/// How a search ended.
#[derive(Clone, Debug, PartialEq)]
pub enum SearchOutcome {
    /// With a result.
    Finished(Box<SearchResult>),
    /// The user stopped it.
    Stopped,
    /// Runs of a stage are left to other shards.
    Missing {
        /// The stage.
        stage: String,
        /// How many.
        runs: usize,
    },
}

/// The arms of a stage with their scores.
pub(super) struct MeasuredStage<'a> {
    pub plan: &'a StagePlan,
    pub arms: Vec<Arm>,
    /// Mean loss over lengths, `[arms][seeds]`.
    pub nll: Vec<Vec<Option<f64>>>,
}

impl MeasuredStage<'_> {
    /// Mean over seeds of an arm.
    pub(super) fn mean(&self, arm: usize) -> Option<f64> {
        let values: Option<Vec<f64>> = self.nll[arm].iter().copied().collect();
        values.map(|values| mean(&values))
    }

    pub(super) fn reference(&self) -> usize {
        self.arms.iter().position(Arm::is_reference).expect("every stage has the reference")
    }

    /// Arms that are expressions, best first; what diverged is last, and of two equal ones the shorter is first.
    fn ranked(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.arms.len()).filter(|arm| self.arms[*arm].number.is_some()).collect();
        let score = |arm: &usize| self.mean(*arm).unwrap_or(f64::INFINITY);
        order.sort_by(|x, y| score(x).total_cmp(&score(y)).then(self.arms[*x].number.cmp(&self.arms[*y].number)));
        order
    }

    fn result(&self, next: usize) -> RungResult {
        let reference = self.mean(self.reference());
        let ranked = self.ranked();
        let baselines = (0..self.arms.len()).filter(|arm| self.arms[*arm].number.is_none());
        let entry = |(arm, goes_on): (usize, bool)| RungEntry {
            expression: self.arms[arm].title.clone(),
            baseline: self.arms[arm].number.is_none(),
            nll: self.mean(arm),
            difference: self.mean(arm).zip(reference).map(|(own, reference)| own - reference),
            goes_on,
        };
        let expressions = ranked.iter().enumerate().map(|(rank, arm)| (*arm, rank < next));
        let entries = expressions.chain(baselines.map(|arm| (arm, true))).map(entry).collect();
        RungResult { name: self.plan.name.clone(), updates: self.plan.updates, entries }
    }
}

/// Searches. `measure` gives the scores of a stage, `record` keeps all rows after each stage.
///
/// # Errors
/// Those of `measure` and `record`.
pub fn run(
    plan: &SearchPlan,
    measure: &mut dyn FnMut(&StagePlan, &[Arm]) -> Result<StageOutcome>,
    record: &mut dyn FnMut(&[SearchRow]) -> Result<()>,
) -> Result<SearchOutcome> {
    let mut arms: Vec<Arm> =
        plan.space.expressions.iter().enumerate().map(|(number, of)| Arm::expression(number, of)).collect();
    let (mut rows, mut rungs) = (Vec::new(), Vec::new());
    for (index, stage) in plan.stages.iter().enumerate() {
        let all = [arms, Arm::baselines()].concat();
        let scores = match measure(stage, &all)? {
            StageOutcome::Measured(scores) => scores,
            StageOutcome::Stopped => return Ok(SearchOutcome::Stopped),
            StageOutcome::Missing(runs) => return Ok(SearchOutcome::Missing { stage: stage.name.clone(), runs }),
        };
        let measured = MeasuredStage { plan: stage, nll: scores.iter().map(|own| losses(own)).collect(), arms: all };
        for (arm, own) in measured.arms.iter().zip(&scores) {
            rows.extend(stage.seeds.iter().zip(own).map(|(seed, score)| row(plan, stage, arm, *seed, score)));
        }
        record(&rows)?;
        if stage.is_confirmation() {
            return Ok(SearchOutcome::Finished(Box::new(confirm(plan, &measured, rungs))));
        }
        let next = plan.stages[index + 1].expressions;
        rungs.push(measured.result(next));
        arms = measured.ranked().into_iter().take(next).map(|arm| measured.arms[arm].clone()).collect();
    }
    unreachable!("the last stage confirms")
}

fn losses(scores: &[ArmScore]) -> Vec<Option<f64>> {
    scores.iter().map(ArmScore::nll).collect()
}

impl ArmScore {
    /// Mean loss over the lengths; `None` of a run that diverged.
    pub fn nll(&self) -> Option<f64> {
        let values: Vec<f64> = self.nll_by_length.iter().map(|(_, nll)| *nll).collect();
        (self.diverged.is_none() && !values.is_empty()).then(|| mean(&values)).filter(|nll| nll.is_finite())
    }
}

fn row(plan: &SearchPlan, stage: &StagePlan, arm: &Arm, seed: u64, score: &ArmScore) -> SearchRow {
    SearchRow {
        plan: plan.hash.clone(),
        stage: stage.name.clone(),
        expression: arm.title.clone(),
        baseline: arm.number.is_none(),
        seed,
        updates: stage.updates,
        split: stage.split.clone(),
        nll: score.nll(),
        nll_by_length: score.nll_by_length.clone(),
        diverged: score.diverged.clone(),
    }
}
