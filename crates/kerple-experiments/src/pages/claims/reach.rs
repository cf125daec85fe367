//! Claims about how far encodings answer a task: of their reaches, and of the mean from the training length on.
//!
//! A reach is known by the two lengths that it is between, of which one may be infinite. So differences of reaches
//! are judged by the profile likelihood of their cells, which is the paired t-test where the cells are small and finite.

use super::arm_runs;
use crate::claim::{Claim, ClaimBound, ClaimMeasure};
use crate::pages::reader::ReproductionFolder;
use crate::pages::verdict::{ClaimFinding, ClaimVerdict, DifferenceUnit, LengthDifferences, compare, judge};
use kerple_report::format::{number, probability};
use kerple_report::results::{AccuracyByLength, AnswerReach, SeedReach};
use kerple_report::statistics::reach::{ReachInterval, ReachProfile, difference_cell};
use kerple_report::statistics::{ALPHA, LEAST_PAIRS, mean};
use std::collections::{BTreeMap, BTreeSet};

/// The rule in the words of a page.
pub(super) const RULE: &str = "Claims about reaches and about the mean beyond the training length have one difference per seed, over all lengths \
                               of the evaluation that they name. A reach that no length ends is only known to be larger than the last length. \
                               Differences of reaches, in octaves, are therefore tested by the profile likelihood of the lengths that each \
                               reach is between; without such reaches that is the t-test. They are tested only if three runs of both \
                               encodings have learned the task, and means only if those of one encoding are above guessing at the training length.";

/// Points of a hundred above guessing that a mean at the training length must have before differences say anything.
const LEAST_ABOVE_CHANCE: f64 = 0.05;

/// The runs of an arm.
struct ArmReach {
    name: String,
    reach: AnswerReach,
    /// Whether their mean at the training length is above guessing.
    is_above_chance: bool,
}

/// What was found of a claim on a corpus; `None` while a length of either arm has no run.
pub(super) fn find(claim: &Claim, all: &ReproductionFolder, corpus: &str) -> Option<ClaimFinding> {
    let arms: Vec<ArmReach> = claim.arms().map(|arm| read(claim, all, corpus, arm)).collect::<Option<_>>()?;
    let [treatment, baseline] = &arms[..] else { return None };
    let others: BTreeMap<u64, &SeedReach> = baseline.reach.seeds.iter().map(|seed| (seed.seed, seed)).collect();
    let own = treatment.reach.seeds.iter();
    let common: Vec<(&SeedReach, &SeedReach)> = own.filter_map(|seed| Some((seed, *others.get(&seed.seed)?))).collect();
    let found = if claim.measure == ClaimMeasure::Reach {
        let cells: Vec<[f64; 2]> =
            common.iter().map(|(own, other)| difference_cell(own.octaves(), other.octaves())).collect();
        judge_reaches(claim.bound, [treatment, baseline], &cells)
    } else {
        let by_length = LengthDifferences {
            differences: common.iter().map(|(own, other)| own.beyond - other.beyond).collect(),
            is_learned: arms.iter().any(|arm| arm.is_above_chance),
            ..LengthDifferences::default()
        };
        judge(claim.bound, DifferenceUnit::Plain, &[by_length])
    };
    let [own, other] = [&claim.treatment, claim.baseline.as_ref()?].map(|arm| arm_runs(all, corpus, arm));
    Some(found?.with_mixed_programs(&own, &other))
}

fn read(
    claim: &Claim,
    all: &ReproductionFolder,
    corpus: &str,
    (arm, evaluation): (&crate::claim::Arm, &str),
) -> Option<ArmReach> {
    let facts = all.manifest.evaluations.get(evaluation)?;
    let train_len = all.train_len(corpus, &arm.variant)?;
    let runs = arm_runs(all, corpus, arm);
    let (mut seeds, mut chance): (BTreeMap<u64, AccuracyByLength>, _) = (BTreeMap::new(), None);
    for run in &runs {
        for length in &claim.lengths {
            let Some(task) = all.row_at(run, &[facts], *length).and_then(|row| row.task.as_ref()) else { continue };
            seeds.entry(run.seed()?).or_default().insert(*length, task.score());
            chance = Some(task.chance);
        }
    }
    let chance = chance?;
    let lengths = BTreeSet::from_iter(claim.lengths.iter().copied());
    let reach = AnswerReach::of((&arm.encoding, None), &seeds, (train_len, &lengths), chance)?;
    let trained = *lengths.iter().rfind(|length| **length <= train_len)?;
    let shares: Vec<f64> = seeds.values().filter_map(|curve| curve.get(&trained).copied()).collect();
    let is_above_chance =
        mean(&shares) >= chance + LEAST_ABOVE_CHANCE && all.is_learned(corpus, &runs, trained, &shares);
    Some(ArmReach { name: arm.encoding.clone(), reach, is_above_chance })
}

/// Judges a claim by the cells of the differences of reaches; `None` before there are any.
fn judge_reaches(bound: ClaimBound, arms: [&ArmReach; 2], cells: &[[f64; 2]]) -> Option<ClaimFinding> {
    let untested = |verdict, numbers: String| Some(ClaimFinding { verdict, numbers, p: 1.0, pairs: 0 });
    let n = cells.len();
    if n == 0 {
        return None;
    }
    if let Some(few) = arms.iter().find(|arm| arm.reach.learned < LEAST_PAIRS) {
        let is_nothing = arms.iter().all(|arm| arm.reach.learned == 0);
        let verdict = if is_nothing { ClaimVerdict::NothingLearned } else { ClaimVerdict::Unsettled };
        let AnswerReach { learned, n, .. } = few.reach;
        return untested(verdict, format!("{learned} of {n} runs of {} have learned the task, no test", few.name));
    }
    let Some(profile) = ReachProfile::of(cells) else {
        return untested(ClaimVerdict::Unsettled, format!("both reach every length in most of {n} pairs, no test"));
    };
    let interval = profile.interval();
    let shown = in_words(&interval);
    if interval.n < LEAST_PAIRS {
        return untested(ClaimVerdict::Unsettled, format!("{shown}, n = {}, no test", interval.n));
    }
    let (holds, p) = compare(bound, interval.centre, |bound| profile.p_against(bound));
    let verdict = match holds {
        _ if p >= ALPHA => ClaimVerdict::Unsettled,
        true => ClaimVerdict::Confirmed,
        false => ClaimVerdict::Contradicted,
    };
    let numbers = format!("{shown}, p = {}, n = {}", probability(p), interval.n);
    Some(ClaimFinding { verdict, numbers, p, pairs: interval.n })
}

/// The centre and its interval; the interval alone where it has an open end, because the centre may be anywhere then.
fn in_words(interval: &ReachInterval) -> String {
    let low =
        if interval.low.is_finite() { format!("[{}", number(interval.low)) } else { "(\u{2212}\u{221e}".to_owned() };
    let high = if interval.high.is_finite() { format!("{}]", number(interval.high)) } else { "\u{221e})".to_owned() };
    let is_closed = interval.low.is_finite() && interval.high.is_finite();
    let centre = if is_closed { format!("{} ", number(interval.centre)) } else { String::new() };
    format!("{centre}{low}, {high} octaves")
}

#[cfg(test)]
mod tests;
