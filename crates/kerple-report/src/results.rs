//! Runs to numbers: every mean, deviation, ratio and test of the report, as plain rows that go unchanged to JSON and CSV.

mod positions;
mod table;
mod training;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::number;
use crate::run::Run;
use crate::statistics::{deviation, mean};

pub(crate) use positions::BINS_AN_OCTAVE;
pub use positions::{PositionBin, PositionCurve};
pub use table::{Evaluation, Score, Setting, Table, Test};
pub use training::{EffectiveLength, RunRow, Speed, State};

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

/// Everything the report says in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Names of the encodings, in the order of tables and legends.
    pub encodings: Vec<String>,
    /// The encoding the others are tested against.
    pub reference: Option<String>,
    /// What is incomplete or odd, in sentences.
    pub notes: Vec<String>,
    /// One per protocol, window, split and training length.
    pub tables: Vec<Table>,
    /// Perplexity by position, where it was recorded.
    pub positions: Vec<PositionCurve>,
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
    /// [`Error::NoRuns`] of no runs; [`Error::UnknownReference`] if no run has the `reference`.
    pub fn of(runs: &[Run], reference: Option<&str>) -> Result<Results> {
        if runs.is_empty() {
            return Err(Error::NoRuns { folders: Vec::new() });
        }
        let counted: Vec<&Run> = runs.iter().filter(|run| run.duplicate_of.is_none()).collect();
        let reference = choose_reference(&counted, reference)?;
        let mut tables = table::tables(&counted, reference.as_deref());
        let encodings = order(&counted, &tables, reference.as_deref());
        for table in &mut tables {
            table.sort(&encodings);
        }
        let mut notes = training::notes(runs);
        notes.extend(tables.iter().flat_map(Table::notes));
        if reference.is_none() && encodings.len() > 1 {
            notes.push(format!(
                "No run has the encoding {USUAL_REFERENCE} and no other was named as reference: nothing is tested."
            ));
        }
        Ok(Results {
            reference,
            notes,
            positions: positions::curves(&counted, &encodings),
            speeds: training::speeds(&counted, &encodings),
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
    let available: BTreeSet<String> =
        runs.iter().flat_map(|run| run.evaluations.iter().map(|row| run.name_of(row))).collect();
    match wanted {
        Some(wanted) if available.contains(wanted) => Ok(Some(wanted.to_owned())),
        Some(wanted) => {
            Err(Error::UnknownReference { wanted: wanted.to_owned(), available: available.into_iter().collect() })
        }
        None if available.contains(USUAL_REFERENCE) => Ok(Some(USUAL_REFERENCE.to_owned())),
        None => {
            let of_kind = runs.iter().filter(|run| run.encoding_kind() == Some(USUAL_REFERENCE));
            let mut names: BTreeSet<String> = of_kind.map(|run| run.name.clone()).collect();
            names.retain(|name| available.contains(name));
            // Two variants of the usual kind: choosing is up to the reader.
            Ok(if names.len() == 1 { names.pop_first() } else { None })
        }
    }
}

/// The reference, then by perplexity at the longest length of the first table, then the rest by name.
fn order(runs: &[&Run], tables: &[Table], reference: Option<&str>) -> Vec<String> {
    let mut names: BTreeSet<String> = runs.iter().map(|run| run.name.clone()).collect();
    names.extend(tables.iter().flat_map(|table| table.scores.iter().map(|score| score.encoding.clone())));
    let last = tables.first().and_then(|table| table.lengths().last().map(|&length| (table, length)));
    let perplexity = |name: &str| {
        let score = last.and_then(|(table, length)| table.score(name, length));
        score.map(|score| score.perplexity).filter(|value| !value.is_nan()).unwrap_or(f64::INFINITY)
    };
    let mut ordered: Vec<String> = names.into_iter().collect();
    ordered.sort_by(|a, b| {
        let first = |name: &str| Some(name) != reference;
        first(a).cmp(&first(b)).then(perplexity(a).total_cmp(&perplexity(b)))
    });
    ordered
}
