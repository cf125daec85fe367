//! What the confirmation shows: one paired test per finalist, all corrected together.
//!
//! ```text
//! d_s = loss of the finalist - loss of the reference, at the same seed s       ratio of perplexities = exp(mean d)
//! better      p(d = 0) < 0.05 after Holm, mean d < 0                           better by the margin excluded:
//! equal       p(d = -m) and p(d = m) < 0.05 after Holm, |mean d| < m             p(d = -m) < 0.05 after Holm, mean d > -m
//! ```

use super::plan::{CONFIRMATION_SEEDS, SearchPlan};
use super::stages::{MeasuredStage, RungResult};
use kerple_report::format::{number, probability};
use kerple_report::statistics::{ALPHA, PairedTest, holm, paired_t_test};
use serde::{Deserialize, Serialize};

/// What is concluded of a finalist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalistVerdict {
    /// Significantly better than the reference: a winner.
    Better,
    /// Significantly worse.
    Worse,
    /// Neither, and shown to differ by less than the margin.
    Equal,
    /// None of these.
    NotSettled,
    /// A run diverged, or the pairs show no spread.
    NotTested,
}

impl FinalistVerdict {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            FinalistVerdict::Better => "better",
            FinalistVerdict::Worse => "worse",
            FinalistVerdict::Equal => "equal within the margin",
            FinalistVerdict::NotSettled => "not settled",
            FinalistVerdict::NotTested => "not tested",
        }
    }
}

/// A finalist or a baseline in the confirmation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedArm {
    /// The expression, or the baseline.
    pub expression: String,
    /// What the rules prove of it; absent of a baseline.
    pub class: Option<String>,
    /// Seeds.
    pub n: usize,
    /// Mean loss; absent where a run diverged.
    pub nll: Option<f64>,
    /// Its perplexity divided by that of the reference.
    pub ratio: Option<f64>,
    /// Ends of the 95 % interval of the ratio.
    pub interval: Option<(f64, f64)>,
    /// Probability of such a difference where there is none, uncorrected; absent of baselines, which are not tested.
    pub p: Option<f64>,
    /// The same after the correction.
    pub p_corrected: Option<f64>,
    /// Corrected probability of what was found if it were better by the margin.
    pub p_better_by_margin: Option<f64>,
    /// Corrected probability of what was found if it differed by the margin.
    pub p_equal: Option<f64>,
    /// What is concluded; absent of baselines.
    pub verdict: Option<FinalistVerdict>,
    /// What each rung showed, by which it was selected.
    pub selection: Vec<SelectionRatio>,
    /// Why it was not tested, if so.
    pub note: Option<String>,
}

impl ComparedArm {
    /// Whether it is excluded that it is better by the margin.
    pub fn excludes_margin(&self) -> bool {
        self.p_better_by_margin.is_some_and(|p| p < ALPHA)
    }
}

/// An arm in a rung: selection, biased upwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelectionRatio {
    /// The rung.
    pub rung: String,
    /// Its perplexity divided by that of the reference; absent where a run diverged.
    pub ratio: Option<f64>,
    /// Difference to the reference in the rung minus that in the confirmation, nats: below 0 where the rung showed too much.
    pub shrinkage: Option<f64>,
}

/// How much was tried: always shown with the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchCounts {
    /// Expressions in the space.
    pub expressions: usize,
    /// Expressions that were measured: by training, or in place of it.
    pub trained: usize,
    /// Expressions that a rung dropped.
    pub halved_away: usize,
    /// Runs.
    pub runs: usize,
    /// Tests of finalists.
    pub tests: usize,
    /// Winners that tests without a correction would declare on average if no expression differed from the reference.
    pub winners_by_chance: f64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// Hash of the plan.
    pub plan: String,
    /// The result in a sentence.
    pub headline: String,
    /// The best of the finalists that are significantly better than the reference.
    pub winner: Option<String>,
    /// How much was tried.
    pub counts: SearchCounts,
    /// Finalists, best first.
    pub finalists: Vec<ComparedArm>,
    /// Baselines, the reference first; not tested.
    pub baselines: Vec<ComparedArm>,
    /// The rungs: selection, biased upwards.
    pub rungs: Vec<RungResult>,
}

/// Judges the finalists.
pub(super) fn confirm(plan: &SearchPlan, stage: &MeasuredStage, rungs: Vec<RungResult>) -> SearchResult {
    let margin = (1.0 + plan.rules.margin).ln();
    let reference: Option<Vec<f64>> = stage.nll[stage.reference()].iter().copied().collect();
    let compare = |arm: usize| {
        let own: Option<Vec<f64>> = stage.nll[arm].iter().copied().collect();
        let (Some(own), Some(reference)) = (own, &reference) else { return Err("a run diverged".to_owned()) };
        paired_t_test(&own, reference).map_err(|why| why.to_string())
    };
    let selected = |title: &str, confirmed: Option<f64>| {
        let of = |rung: &RungResult| {
            let entry = rung.entries.iter().find(|entry| entry.expression == title)?;
            Some(SelectionRatio {
                rung: rung.name.clone(),
                ratio: entry.difference.map(f64::exp),
                shrinkage: entry.difference.zip(confirmed).map(|(selected, confirmed)| selected - confirmed),
            })
        };
        rungs.iter().filter_map(of).collect()
    };
    let describe = |arm: usize| {
        let title = stage.arms[arm].title.clone();
        let test = compare(arm);
        let found = test.as_ref().ok();
        let difference = found.map(|test| test.mean_difference);
        let is_reference = stage.arms[arm].is_reference();
        ComparedArm {
            class: stage.arms[arm].number.map(|number| plan.space.expressions[number].class.clone()),
            n: stage.nll[arm].iter().flatten().count(),
            nll: stage.mean(arm),
            ratio: difference.map(f64::exp),
            interval: found.filter(|test| test.standard_error > 0.0 && !is_reference).map(ratio_interval),
            p: None,
            p_corrected: None,
            p_better_by_margin: None,
            p_equal: None,
            verdict: None,
            selection: selected(&title, difference),
            note: test.as_ref().err().cloned(),
            expression: title,
        }
    };
    let is_expression = |arm: &usize| stage.arms[*arm].number.is_some();
    let (tested, others): (Vec<usize>, Vec<usize>) = (0..stage.arms.len()).partition(is_expression);
    let tests: Vec<Option<PairedTest>> = tested.iter().map(|arm| compare(*arm).ok()).collect();
    let corrected = |p: &dyn Fn(&PairedTest) -> f64| {
        // what was not tested counts all the same: the number of tests was planned
        holm(&tests.iter().map(|test| test.as_ref().map_or(1.0, p)).collect::<Vec<f64>>())
    };
    let differs = corrected(&|test| test.p);
    let better = corrected(&|test| if test.mean_difference > -margin { test.p_against(-margin) } else { 1.0 });
    let equal = corrected(&|test| match test.mean_difference {
        mean if mean.abs() < margin => test.p_against(margin).max(test.p_against(-margin)),
        _ => 1.0,
    });
    let judged = tested.iter().enumerate().map(|(i, arm)| {
        let mut found = describe(*arm);
        let Some(test) = &tests[i] else { return ComparedArm { verdict: Some(FinalistVerdict::NotTested), ..found } };
        found.p = Some(test.p);
        (found.p_corrected, found.p_better_by_margin, found.p_equal) =
            (Some(differs[i]), Some(better[i]), Some(equal[i]));
        found.verdict = Some(match test.mean_difference {
            mean if differs[i] < ALPHA && mean < 0.0 => FinalistVerdict::Better,
            _ if differs[i] < ALPHA => FinalistVerdict::Worse,
            _ if equal[i] < ALPHA => FinalistVerdict::Equal,
            _ => FinalistVerdict::NotSettled,
        });
        found
    });
    let mut finalists: Vec<ComparedArm> = judged.collect();
    finalists.sort_by(|x, y| x.nll.unwrap_or(f64::INFINITY).total_cmp(&y.nll.unwrap_or(f64::INFINITY)));
    let winner = finalists.iter().find(|arm| arm.verdict == Some(FinalistVerdict::Better));
    let counts = SearchCounts {
        expressions: plan.space.expressions.len(),
        trained: plan.stages[0].expressions,
        halved_away: plan.stages[0].expressions - finalists.len(),
        runs: plan.runs(),
        tests: finalists.len(),
        // two-sided tests, of which one half finds a better expression
        winners_by_chance: 0.5 * ALPHA * finalists.len() as f64,
    };
    SearchResult {
        plan: plan.hash.clone(),
        headline: headline(&finalists, plan.rules.margin),
        winner: winner.map(|arm| arm.expression.clone()),
        baselines: others.into_iter().map(describe).collect(),
        counts,
        finalists,
        rungs,
    }
}

fn ratio_interval(test: &PairedTest) -> (f64, f64) {
    let (low, high) = test.interval(0.95);
    (low.exp(), high.exp())
}

/// A number without zeros at its end.
pub(super) fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// The result in a sentence or two.
fn headline(finalists: &[ComparedArm], margin: f64) -> String {
    let percent = short(100.0 * margin);
    let winners: Vec<&ComparedArm> =
        finalists.iter().filter(|arm| arm.verdict == Some(FinalistVerdict::Better)).collect();
    let excluded = finalists.iter().filter(|arm| arm.excludes_margin()).count();
    let none = format!("No expression is better than the logarithm by {percent} %.");
    let best = winners.first().map(|best| {
        let (low, high) = best.interval.unwrap_or((f64::NAN, f64::NAN));
        format!(
            "`{}` is better than the logarithm: {} times its perplexity, 95 % interval {} to {}, p = {} after Holm's correction \
             (n = {CONFIRMATION_SEEDS}).",
            best.expression,
            number(best.ratio.unwrap_or(f64::NAN)),
            number(low),
            number(high),
            probability(best.p_corrected.unwrap_or(f64::NAN)),
        )
    });
    match best {
        Some(best) if excluded == finalists.len() => format!("{none} {best}"),
        Some(best) => best,
        None if excluded == finalists.len() => none,
        None => format!(
            "No expression is significantly better than the logarithm. Whether one is better by {percent} % is not settled: that is \
             excluded of {excluded} of {} finalists.",
            finalists.len()
        ),
    }
}

impl SearchCounts {
    /// What is always shown with a result.
    pub fn sentences(&self) -> Vec<String> {
        vec![
            format!(
                "{} expressions were in the space, {} were measured, and rungs dropped {}.",
                self.expressions, self.trained, self.halved_away
            ),
            format!("{} runs were made. {} finalists were tested, once each.", self.runs, self.tests),
            format!(
                "If no expression differed from the logarithm, {} of {} tests would declare a winner by chance (p < {ALPHA}, \
                 uncorrected). With Holm's correction at most {} in 100 searches declare any.",
                short(self.winners_by_chance),
                self.tests,
                short(100.0 * ALPHA),
            ),
        ]
    }
}
