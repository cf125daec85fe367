//! From runs to numbers: every mean, deviation, ratio and test of the report, as plain rows that
//! are written unchanged to JSON and CSV.

mod answers;
mod group;
mod key_tokens;
mod learning;
mod own_context;
mod positions;
mod reach;
mod table;
mod training;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use self::group::RowSettings;
use crate::error::{Error, Result};
use crate::run::Run;
use crate::statistics::{deviation, mean};
use kerple_run::number;

pub use self::answers::AccuracyByLength;
pub use answers::{AnswerDepths, AnswerMean, AnswerScore, AnswerShortcut, AnswerTable, AnswerTest};
pub use group::{RunGroup, Setting};
pub use key_tokens::{LEAST_KEY_TOKENS, key_interval};
pub use learning::{LearnedCount, LearningOutcome, RunLearning};
pub use own_context::OwnContextScore;
pub(crate) use positions::BINS_AN_OCTAVE;
pub use positions::{PositionBin, PositionCurve};
pub use reach::{AnswerPair, AnswerReach, MeanCurveTokens, SeedReach};
pub use table::{PerplexityScore, PerplexityTable, PerplexityTest, RowName, RunEvaluation, name_text};
pub use training::{EffectiveLength, RunRow, RunState, Speed};

/// The encoding that others are compared with when it is there: the one the KERPLE paper recommends.
pub const USUAL_REFERENCE: &str = "kerple_log";

/// Mean and sample deviation over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation; absent for one value.
    pub deviation: Option<f64>,
}

impl Spread {
    /// Of some values; absent for none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        (!values.is_empty()).then(|| Spread { mean: mean(values), deviation: deviation(values) })
    }
}

/// Places of the lowest of several values by seed, on the mean over the seeds that all of them have: means over different seeds
/// are over different texts. All that are equally low; none where there are fewer than two, or no common seed.
pub fn lowest(values: &[BTreeMap<u64, f64>]) -> Vec<usize> {
    let known: Vec<(usize, &BTreeMap<u64, f64>)> =
        values.iter().enumerate().filter(|(_, values)| !values.is_empty()).collect();
    let in_all = |seed: &u64| known.iter().all(|(_, values)| values.contains_key(seed));
    let common = |values: &BTreeMap<u64, f64>| {
        mean(&values.iter().filter(|(seed, _)| in_all(seed)).map(|(_, value)| *value).collect::<Vec<f64>>())
    };
    let means: Vec<(usize, f64)> = known.iter().map(|(at, values)| (*at, common(values))).collect();
    let finite = means.iter().map(|(_, mean)| *mean).filter(|mean| mean.is_finite());
    let Some(least) = finite.reduce(f64::min).filter(|_| means.len() >= 2) else { return Vec::new() };
    means.iter().filter(|(_, mean)| *mean == least).map(|(at, _)| *at).collect()
}

/// Places of the highest, as [`lowest`] has the others.
pub(crate) fn highest(values: &[BTreeMap<u64, f64>]) -> Vec<usize> {
    let turned = |values: &BTreeMap<u64, f64>| values.iter().map(|(seed, value)| (*seed, -value)).collect();
    lowest(&values.iter().map(turned).collect::<Vec<_>>())
}

/// All numbers of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Names of the encodings, in the order of tables and legends.
    pub encodings: Vec<String>,
    /// The encoding the others are tested against.
    pub reference: Option<String>,
    /// What is incomplete or odd, in sentences.
    pub notes: Vec<String>,
    /// Runs that can be compared: one unless several kinds of training are in the report.
    pub groups: Vec<RunGroup>,
    /// One per group, protocol, split and text.
    pub tables: Vec<PerplexityTable>,
    /// Right answers, one per group, task and part of the data.
    pub answers: Vec<AnswerTable>,
    /// Perplexity by position, where it was recorded.
    pub positions: Vec<PositionCurve>,
    /// When runs learned their task, of those whose plan has a stop rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learning: Vec<RunLearning>,
    /// How many of them learned it, one per group and encoding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<LearnedCount>,
    /// Seconds a training step.
    pub speeds: Vec<Speed>,
    /// Effective length of every head at the last snapshot of every run.
    pub effective_lengths: Vec<EffectiveLength>,
    /// Every run that was found.
    pub runs: Vec<RunRow>,
}

impl Results {
    /// Computes them. `reference` names the encoding to compare with, in place of the usual one.
    ///
    /// # Errors
    /// [`Error::Refused`] of no runs, or if no run has the `reference`.
    pub fn of(runs: &[Run], reference: Option<&str>) -> Result<Results> {
        if runs.is_empty() {
            return Err(crate::run::no_runs::<&std::path::Path>(&[]));
        }
        let counted: Vec<&Run> = runs.iter().filter(|run| run.duplicate_of.is_none()).collect();
        let reference = choose_reference(&counted, reference)?;
        let (groups, groups_note) = group::groups(&counted);
        let settings = RowSettings::of(&counted, &groups);
        let mut tables = table::tables(&counted, &groups, &settings, reference.as_deref());
        let encodings = order(&counted, &tables, reference.as_deref());
        for table in &mut tables {
            table.sort(&encodings);
        }
        let mut notes: Vec<String> = groups_note.into_iter().collect();
        notes.extend(training::notes(runs));
        notes.extend(tables.iter().flat_map(PerplexityTable::notes));
        if reference.is_none() && encodings.len() > 1 && !tables.is_empty() {
            notes.push(untested_note(&counted));
        }
        let learning = learning::runs(&counted, &groups, &encodings);
        let answers = answers::tables(&counted, &groups, &encodings, reference.as_deref());
        notes.extend(answers.iter().flat_map(|table| table.notes.iter().cloned()));
        notes.extend(repeated_tasks_note(&answers));
        Ok(Results {
            answers,
            reference,
            notes,
            positions: positions::curves(&counted, &settings, &encodings),
            learned: learning::counts(&learning),
            learning,
            speeds: training::speeds(&counted, &groups, &encodings),
            groups,
            effective_lengths: training::effective_lengths(&counted, &encodings),
            runs: training::run_rows(runs),
            encodings,
            tables,
        })
    }

    /// Place of an encoding in tables and legends, which is also its colour.
    pub fn place(&self, encoding: &str) -> usize {
        self.encodings.iter().position(|name| name == encoding).unwrap_or(self.encodings.len())
    }
}

/// The named encoding, or else the usual one by name or by kind, where it has been evaluated.
fn choose_reference(runs: &[&Run], wanted: Option<&str>) -> Result<Option<String>> {
    let evaluated = || runs.iter().filter(|run| !run.evaluations.is_empty());
    let available: BTreeSet<&str> = evaluated().map(|run| run.name.as_str()).collect();
    let wanted_or_usual = wanted.unwrap_or(USUAL_REFERENCE);
    if available.contains(wanted_or_usual) {
        return Ok(Some(wanted_or_usual.to_owned()));
    }
    if let Some(wanted) = wanted {
        let list = available.iter().copied().collect::<Vec<_>>().join(", ");
        return Err(Error::Refused {
            message: format!(
                "no evaluated run has the encoding {wanted:?}; the evaluated encodings \
                are {list}"
            ),
            hint: available.first().map_or("evaluate the runs first, with `kerple eval RUN`".into(), |name| {
                format!("use e.g. --reference {name}")
            }),
        });
    }
    let of_kind = evaluated().filter(|run| run.encoding_kind() == Some(USUAL_REFERENCE));
    let names: BTreeSet<&str> = of_kind.map(|run| run.name.as_str()).collect();
    // Two variants of the usual kind: choosing is up to the reader.
    Ok(names.first().filter(|_| names.len() == 1).map(|name| (*name).to_owned()))
}

/// Which tasks have several tables, where that leaves out what tasks have in common.
fn repeated_tasks_note(tables: &[AnswerTable]) -> Option<String> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for table in tables.iter().filter(|table| table.is_of_suite()) {
        *counts.entry((&table.task, &table.text)).or_default() += 1;
    }
    let repeated: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|((task, _), count)| format!("{task} has {count} tables"))
        .collect();
    (counts.len() > 1 && !repeated.is_empty()).then(|| {
        format!(
            "Tables over all tasks are left out, because some tasks have tables of several settings: {}.",
            repeated.join(", ")
        )
    })
}

/// Why there is no reference where none was named.
fn untested_note(runs: &[&Run]) -> String {
    let usual: Vec<&&Run> = runs.iter().filter(|run| run.encoding_kind() == Some(USUAL_REFERENCE)).collect();
    let names: BTreeSet<&str> =
        usual.iter().filter(|run| !run.evaluations.is_empty()).map(|run| run.name.as_str()).collect();
    let nothing = "no other reference was given, so nothing is tested";
    match (names.len(), usual.len()) {
        (0, 0) => format!("No run has the encoding {USUAL_REFERENCE} and {nothing}."),
        (0, _) => format!("No run of {USUAL_REFERENCE} is evaluated and {nothing}."),
        _ => {
            let names = Vec::from_iter(names).join(", ");
            format!("Of several encodings {USUAL_REFERENCE} ({names}) none is the usual reference, and {nothing}.")
        }
    }
}

/// The reference, then by perplexity at the longest length of the first table, then the rest by name.
fn order(runs: &[&Run], tables: &[PerplexityTable], reference: Option<&str>) -> Vec<String> {
    let names = runs.iter().flat_map(|run| {
        run.evaluations.iter().map(|row| run.name_of(row)).chain([run.name.clone()]).collect::<BTreeSet<String>>()
    });
    let names: BTreeSet<String> = names.collect();
    let last = tables.first().and_then(|table| table.lengths().last().map(|&length| (table, length)));
    let perplexity = |name: &str| {
        let score = last.and_then(|(table, length)| table.score((name, None), length));
        score.map(|score| score.perplexity).filter(|value| !value.is_nan()).unwrap_or(f64::INFINITY)
    };
    let mut ordered: Vec<String> = names.into_iter().collect();
    ordered.sort_by(|a, b| {
        let first = |name: &str| Some(name) != reference;
        first(a).cmp(&first(b)).then(perplexity(a).total_cmp(&perplexity(b)))
    });
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_is_so_on_the_seeds_that_all_have() {
        let of = |values: &[(u64, f64)]| values.iter().copied().collect::<BTreeMap<u64, f64>>();
        let short = of(&[(1, 20.0), (2, 21.0), (3, 22.0)]);
        // a lower mean by an easier text of a seed that the other lacks, and higher on those of both
        let long = of(&[(1, 20.5), (2, 21.5), (3, 22.5), (4, 10.0)]);
        assert_eq!(lowest(&[long.clone(), short.clone()]), [1]);
        assert_eq!(highest(&[long.clone(), short.clone()]), [0]);
        assert_eq!(lowest(&[short.clone(), of(&[]), short.clone(), long.clone()]), [0, 2], "all that are equal");
        assert_eq!(lowest(std::slice::from_ref(&long)), [] as [usize; 0], "alone");
        assert_eq!(lowest(&[long, of(&[(9, 1.0)])]), [] as [usize; 0], "no common seed");
        assert_eq!(lowest(&[short, of(&[(1, f64::NAN), (2, 1.0), (3, 1.0)])]), [0]);
    }
}
