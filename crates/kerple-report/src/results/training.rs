//! The runs: their progress, their speed, and the effective lengths of their heads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::group::RunGroup;
use super::{Spread, number};
use crate::run::Run;
use crate::statistics::median;
use kerple_run::Numerics;

/// The encoding whose step time the others are given relative to, as in the KERPLE paper's Table 4: it adds no work.
const USUAL_BASELINE: &str = "sinusoidal";

/// How far a run got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// All planned steps are done, or its stop rule was met.
    Finished,
    /// Some are, or it is unknown how many were planned.
    Unfinished,
    /// Nothing was logged or evaluated.
    NotStarted,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct RunRow {
    /// Name in the tables.
    pub encoding: String,
    /// Its seed.
    pub seed: Option<u64>,
    /// Tokens a training sequence.
    pub train_len: Option<u64>,
    /// Optimizer steps done.
    pub steps: u64,
    /// Optimizer steps planned.
    pub planned_steps: Option<u64>,
    /// How far it got.
    pub state: RunState,
    /// Trained parameters.
    pub parameters: Option<u64>,
    /// Seconds of training, summed over resumes.
    #[serde(with = "number")]
    pub training_seconds: Option<f64>,
    /// Seconds of all its evaluations.
    #[serde(with = "number")]
    pub evaluation_seconds: f64,
    /// Hash of its plan.
    pub plan: Option<String>,
    /// The [`RunGroup`] it can be compared in.
    pub group: String,
    /// Known commits of the programs that trained and evaluated it.
    #[serde(serialize_with = "joined")]
    pub programs: BTreeSet<String>,
    /// Processors, threads, instruction sets, devices and precisions it was trained with, where that was recorded.
    #[serde(serialize_with = "joined")]
    pub machines: BTreeSet<String>,
    /// Precisions, kinds of devices and instruction sets it was evaluated in, where that was recorded.
    #[serde(serialize_with = "joined")]
    pub evaluated_in: BTreeSet<String>,
    /// Its folder.
    pub folder: PathBuf,
    /// The run reported in its place.
    pub duplicate_of: Option<PathBuf>,
}

/// Seconds a training step, over seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// The [`RunGroup`] of the runs.
    pub group: String,
    /// Tokens per training sequence, where the plan has them.
    pub train_len: Option<u64>,
    /// Name of the encoding.
    pub encoding: String,
    /// Runs measured.
    pub n: usize,
    /// Mean over runs of the run's median.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Sample deviation over runs.
    #[serde(with = "number")]
    pub seconds_deviation: Option<f64>,
    /// `seconds` over the baseline's.
    #[serde(with = "number")]
    pub relative: f64,
    /// The encoding that is 1.
    pub baseline: String,
}

/// How far one head sees.
#[derive(Clone, Debug, Serialize)]
pub struct EffectiveLength {
    /// The [`RunGroup`] of the run.
    pub group: String,
    /// Name of the encoding.
    pub encoding: String,
    /// Seed of the run.
    pub seed: Option<u64>,
    /// Optimizer steps of the snapshot.
    pub step: u64,
    /// The head, counted from 0.
    pub head: usize,
    /// The least distance whose bias is below -2; absent where there is none.
    pub effective_length: Option<u64>,
}

/// Several words in one cell; none are a cell that is empty.
fn joined<S: Serializer>(words: &BTreeSet<String>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let text = Vec::from_iter(words.iter().map(String::as_str)).join("; ");
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}

pub(super) fn run_rows(runs: &[Run]) -> Vec<RunRow> {
    runs.iter()
        .map(|run| RunRow {
            encoding: run.name.clone(),
            seed: run.seed(),
            train_len: run.train_len(),
            steps: run.steps_done(),
            planned_steps: run.planned_steps(),
            state: state(run),
            parameters: run.parameters(),
            training_seconds: run.training_seconds(),
            evaluation_seconds: run.evaluations.iter().fold(0.0, |sum, row| sum + row.seconds),
            plan: run.plan_hash().map(str::to_owned),
            group: run.conditions.fingerprint(),
            programs: run.programs(),
            machines: run.machines(),
            evaluated_in: run.evaluated_in(),
            folder: run.folder.clone(),
            duplicate_of: run.duplicate_of.clone(),
        })
        .collect()
}

fn state(run: &Run) -> RunState {
    match run.steps_done() {
        0 if run.evaluations.is_empty() => RunState::NotStarted,
        done if run.last_step().is_some_and(|last| done >= last) => RunState::Finished,
        _ => RunState::Unfinished,
    }
}

/// What is odd about the runs, in sentences.
pub(super) fn notes(runs: &[Run]) -> Vec<String> {
    let mut notes = Vec::new();
    for run in runs {
        let folder = run.folder.display();
        match state(run) {
            RunState::Finished => {}
            RunState::NotStarted => notes.push(format!("{folder} contains a plan and no results.")),
            RunState::Unfinished => {
                let planned = run.planned_steps().map_or_else(|| "an unknown number".into(), |steps| steps.to_string());
                notes.push(format!("{folder} is unfinished: {} of {planned} steps.", run.steps_done()));
            }
        }
        if let Some(kept) = &run.duplicate_of {
            notes.push(format!("{folder} has the plan and seed of {} and is not counted.", kept.display()));
        }
        let trained = run.trained_in();
        if trained.len() > 1 {
            let words =
                trained.iter().map(|by| by.as_ref().map_or("what is not recorded".to_owned(), Numerics::to_string));
            let words: Vec<String> = words.collect();
            notes.push(format!(
                "{folder} was trained partly in {}, which round differently.",
                words.join(", partly in ")
            ));
        }
        if run.evaluations.is_empty() && run.steps_done() > 0 {
            notes.push(format!("{folder} has no evaluations."));
        }
        if let Some(waiting) = run.comm_wait_fraction() {
            notes.push(format!(
                "{folder} was trained by several ranks; the first waited during {:.1} % of the time \
                    of its updates.",
                100.0 * waiting
            ));
        }
        notes.extend(run.notes.iter().map(|note| format!("{folder}: {note}.")));
    }
    notes
}

pub(super) fn speeds(runs: &[&Run], groups: &[RunGroup], encodings: &[String]) -> Vec<Speed> {
    groups.iter().flat_map(|group| group_speeds(runs, group, encodings)).collect()
}

fn group_speeds(runs: &[&Run], group: &RunGroup, encodings: &[String]) -> Vec<Speed> {
    let mut measured: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(|run| !run.metrics.is_empty() && run.conditions.fingerprint() == group.id) {
        let seconds: Vec<f64> = run.metrics.iter().map(|row| row.step_seconds).collect();
        let place = encodings.iter().position(|name| *name == run.name).expect("every run's name is listed");
        measured.entry(place).or_default().push(median(&seconds));
    }
    let spreads: Vec<(usize, usize, Spread)> =
        measured.iter().filter_map(|(&place, values)| Some((place, values.len(), Spread::of(values)?))).collect();
    let usual = spreads.iter().find(|(place, ..)| encodings[*place] == USUAL_BASELINE);
    let fastest = spreads.iter().min_by(|a, b| a.2.mean.total_cmp(&b.2.mean));
    let Some(&(baseline, _, unit)) = usual.or(fastest) else { return Vec::new() };
    let row = |&(place, n, spread): &(usize, usize, Spread)| Speed {
        group: group.id.clone(),
        train_len: group.train_len,
        encoding: encodings[place].clone(),
        n,
        seconds: spread.mean,
        seconds_deviation: spread.deviation,
        relative: spread.mean / unit.mean,
        baseline: encodings[baseline].clone(),
    };
    spreads.iter().map(row).collect()
}

pub(super) fn effective_lengths(runs: &[&Run], encodings: &[String]) -> Vec<EffectiveLength> {
    let mut rows: Vec<EffectiveLength> = Vec::new();
    for run in runs {
        let Some(last) = run.kernels.last().filter(|last| last.bias.is_some()) else { continue };
        rows.extend(last.effective_length.iter().enumerate().map(|(head, &effective_length)| EffectiveLength {
            group: run.conditions.fingerprint(),
            encoding: run.name.clone(),
            seed: run.seed(),
            step: last.step,
            head,
            effective_length,
        }));
    }
    rows.sort_by_key(|row| (encodings.iter().position(|name| *name == row.encoding), row.seed, row.head));
    rows
}
