//! How far encodings answer a task, and which of them differ significantly.

use super::answers::AccuracyByLength;
use super::number;
use super::table::RowName;
use crate::statistics::letters::letters;
use crate::statistics::reach::{MeanCurveReach, ModelReach, beyond, sign_flip_p, threshold};
use crate::statistics::{ALPHA, LEAST_PAIRS, holm, paired_t_test};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// How far an encoding's runs answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerReach {
    /// Name of the encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Runs that were evaluated at every length.
    pub n: usize,
    /// Of these, runs that reach the training length.
    pub learned: usize,
    /// The median of the runs' reaches in tokens; absent where it lies between a run that reaches every length and one that
    /// reaches none.
    #[serde(with = "number")]
    pub tokens: Option<f64>,
    /// Ends of its 95 % interval; absent where fewer than three runs have learned the task.
    #[serde(with = "number")]
    pub tokens_low: Option<f64>,
    /// See `tokens_low`.
    #[serde(with = "number")]
    pub tokens_high: Option<f64>,
    /// Of each run by seed.
    pub seeds: Vec<SeedReach>,
    /// Mean over runs of the accuracy from the training length on, see [`beyond`].
    #[serde(with = "number")]
    pub beyond: f64,
    /// Its place among the encodings of the table by this mean, from 1 on; equal means share one.
    pub rank: usize,
    /// Letters, of which two encodings share one exactly where the test of their means does not tell them apart.
    pub letters: String,
    /// The reach of the mean accuracies with its bootstrap, which is too narrow to be an interval of the reach; absent of more
    /// than ten runs.
    pub mean_curve: Option<MeanCurveTokens>,
}

/// The reach of the mean accuracies over runs, in tokens, see [`MeanCurveReach`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeanCurveTokens {
    /// Where the means fall below the threshold.
    #[serde(with = "number")]
    pub tokens: f64,
    /// The middle 95 % of the draws of runs with replacement begin here.
    #[serde(with = "number")]
    pub tokens_low: f64,
    /// And end here.
    #[serde(with = "number")]
    pub tokens_high: f64,
}

/// How far one run answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeedReach {
    /// Seed of the run.
    pub seed: u64,
    /// Tokens, infinite or 0 where it reaches every length or none.
    #[serde(with = "number")]
    pub tokens: f64,
    /// The lengths before and behind it.
    #[serde(with = "number")]
    pub cell: Vec<f64>,
    /// Accuracy where a guess counts 0, from the training length on.
    #[serde(with = "number")]
    pub beyond: f64,
}

/// Two encodings' accuracies from the training length on, over common seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerPair {
    /// Rows of the two in the table of reaches.
    pub rows: [usize; 2],
    /// Common seeds.
    pub n: usize,
    /// Mean of the first less the second.
    #[serde(with = "number")]
    pub difference: Option<f64>,
    /// Lower end of its 95 % confidence interval.
    #[serde(with = "number")]
    pub difference_low: Option<f64>,
    /// Upper end of its 95 % confidence interval.
    #[serde(with = "number")]
    pub difference_high: Option<f64>,
    /// Two-sided p-value of a paired t-test.
    #[serde(with = "number")]
    pub p: Option<f64>,
    /// The p-value corrected by Holm's method for all pairs of this table.
    #[serde(with = "number")]
    pub p_holm: Option<f64>,
    /// Why this was not tested.
    pub untestable: Option<String>,
    /// Two-sided p-value of the signs of the differences of reaches, see [`sign_flip_p`]; absent where either has fewer
    /// than three runs that have learned the task.
    #[serde(with = "number")]
    pub signs_p: Option<f64>,
}

impl AnswerReach {
    /// The reach of the runs of one encoding at all `lengths`, of which some must exceed the training length and one must not.
    pub fn of(
        name: RowName,
        seeds: &BTreeMap<u64, AccuracyByLength>,
        (train_len, lengths): (u64, &BTreeSet<u64>),
        chance: f64,
    ) -> Option<AnswerReach> {
        let octaves: Vec<f64> = lengths.iter().map(|length| (*length as f64).log2()).collect();
        let trained = lengths.iter().rposition(|length| *length <= train_len)?;
        let whole = |(seed, curve): (&u64, &AccuracyByLength)| {
            let accuracy: Option<Vec<f64>> = lengths.iter().map(|length| curve.get(length).copied()).collect();
            Some((*seed, accuracy.filter(|all| all.iter().all(|share| share.is_finite()))?))
        };
        let (seeds, curves): (Vec<u64>, Vec<Vec<f64>>) = seeds.iter().filter_map(whole).unzip();
        if curves.is_empty() || trained + 1 == octaves.len() {
            return None;
        }
        let found = ModelReach::of(&octaves, &curves, trained, threshold(chance));
        let of_seed = |((seed, curve), reach): ((&u64, &Vec<f64>), &crate::statistics::reach::Reach)| SeedReach {
            seed: *seed,
            tokens: reach.point.exp2(),
            cell: reach.cell.map(|end| end.exp2().round()).to_vec(),
            beyond: beyond(&octaves[trained..], &curve[trained..], chance),
        };
        let of_seeds: Vec<SeedReach> = seeds.iter().zip(&curves).zip(&found.seeds).map(of_seed).collect();
        Some(AnswerReach {
            encoding: name.0.to_owned(),
            window: name.1,
            n: curves.len(),
            learned: found.learned,
            tokens: found.median.map(f64::exp2),
            tokens_low: found.interval.map(|interval| interval.low.exp2()),
            tokens_high: found.interval.map(|interval| interval.high.exp2()),
            beyond: of_seeds.iter().map(|seed| seed.beyond).sum::<f64>() / of_seeds.len() as f64,
            seeds: of_seeds,
            rank: 1,
            letters: String::new(),
            mean_curve: MeanCurveReach::of(&octaves, &curves, threshold(chance)).map(|found| MeanCurveTokens {
                tokens: found.point.exp2(),
                tokens_low: found.low.exp2(),
                tokens_high: found.high.exp2(),
            }),
        })
    }

    /// Its row.
    pub fn name(&self) -> RowName<'_> {
        (&self.encoding, self.window)
    }
}

impl SeedReach {
    /// The logarithms to base 2 of the lengths before and after the reach.
    pub fn octaves(&self) -> [f64; 2] {
        [self.cell[0], self.cell[1]].map(f64::log2)
    }
}

impl AnswerPair {
    /// Whether the two differ significantly.
    pub fn is_significant(&self) -> bool {
        self.p_holm.is_some_and(|p| p < ALPHA)
    }
}

/// Ranks of the rows by their means, and the letters of those that the pairs do not tell apart.
pub(super) fn rank(reaches: &mut [AnswerReach], pairs: &[AnswerPair]) {
    let mut order: Vec<usize> = (0..reaches.len()).collect();
    order.sort_by(|a, b| reaches[*b].beyond.total_cmp(&reaches[*a].beyond));
    let places: BTreeMap<usize, usize> = order.iter().enumerate().map(|(place, row)| (*row, place)).collect();
    let apart: Vec<[usize; 2]> =
        pairs.iter().filter(|pair| pair.is_significant()).map(|pair| pair.rows.map(|row| places[&row])).collect();
    let letters = letters(reaches.len(), &apart);
    let means: Vec<f64> = reaches.iter().map(|reach| reach.beyond).collect();
    for (row, letters) in order.into_iter().zip(letters) {
        reaches[row].rank = 1 + means.iter().filter(|mean| **mean > means[row]).count();
        reaches[row].letters = letters;
    }
}

/// Every pair of rows, tested and corrected together.
pub(super) fn pairs(reaches: &[AnswerReach]) -> Vec<AnswerPair> {
    let pair = |(a, b): (usize, usize)| {
        let others: BTreeMap<u64, &SeedReach> = reaches[b].seeds.iter().map(|seed| (seed.seed, seed)).collect();
        let common: Vec<(&SeedReach, &SeedReach)> =
            reaches[a].seeds.iter().filter_map(|seed| Some((seed, *others.get(&seed.seed)?))).collect();
        let (x, y): (Vec<f64>, Vec<f64>) = common.iter().map(|(x, y)| (x.beyond, y.beyond)).unzip();
        // of two that reach every length, or none, the difference is not a number and has no sign
        let signs: Vec<f64> = common.iter().map(|(x, y)| x.tokens - y.tokens).collect();
        let are_learned = [a, b].iter().all(|row| reaches[*row].learned >= LEAST_PAIRS);
        let test = paired_t_test(&x, &y);
        let interval = test.as_ref().ok().map(|test| test.interval(1.0 - ALPHA));
        AnswerPair {
            rows: [a, b],
            n: x.len(),
            difference: test.as_ref().ok().map(|test| test.mean_difference),
            difference_low: interval.map(|(low, _)| low),
            difference_high: interval.map(|(_, high)| high),
            p: test.as_ref().ok().map(|test| test.p),
            p_holm: None,
            untestable: test.err().map(|why| why.to_string()),
            signs_p: are_learned.then(|| sign_flip_p(&signs)),
        }
    };
    let all = (0..reaches.len()).flat_map(|a| (a + 1..reaches.len()).map(move |b| (a, b)));
    let mut pairs: Vec<AnswerPair> = all.map(pair).collect();
    let p: Vec<f64> = pairs.iter().filter_map(|pair| pair.p).collect();
    let mut corrected = holm(&p).into_iter();
    for pair in pairs.iter_mut().filter(|pair| pair.p.is_some()) {
        pair.p_holm = corrected.next();
    }
    pairs
}
