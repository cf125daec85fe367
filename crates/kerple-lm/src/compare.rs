//! Several encodings and seeds under the same settings, one run after another, resumable.

use crate::config::RunConfig;
use crate::corpus::Source;
use crate::error::Result;
use crate::evaluate::{self, Request, Subject, Text};
use crate::plan::Plan;
use crate::train::{self, Progress};
use kerple::encoding::Encoding;
use kerple_report::record::{self, EvaluationRow, Journal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Settings of every run; encoding and seed are replaced.
    pub config: RunConfig,
    /// Encodings, each trained with every seed.
    pub encodings: Vec<Encoding>,
    /// Number of seeds, counted up from the configuration's.
    pub seeds: u64,
    /// Lengths, protocol and amount of the evaluation; its seed is replaced by the run's.
    pub request: Request,
    /// Folder of everything.
    pub out: PathBuf,
}

/// What happens, as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// A run begins, or goes on from `done` steps.
    Run {
        /// The encoding's label.
        label: &'a str,
        /// The run's seed.
        seed: u64,
        /// Runs before this one.
        index: usize,
        /// Runs in all.
        runs: usize,
    },
    /// A training step is done.
    Step(&'a Progress),
    /// Segments of an evaluation are done.
    Evaluating {
        /// Input length.
        length: usize,
        /// Windows done.
        done: usize,
        /// Windows in all.
        windows: usize,
    },
    /// A row was written.
    Row(&'a EvaluationRow),
}

impl Comparison {
    /// Folder of one run.
    pub fn folder(&self, label: &str, seed: u64) -> PathBuf {
        self.out.join("runs").join(label).join(format!("seed-{seed}"))
    }

    /// Trains and evaluates what is not done yet; `false` when `stop` was set before the end.
    ///
    /// Seeds are the outer loop, so that after every round all encodings have the same number of runs.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn run(&self, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) -> Result<bool> {
        let source = Source::open(&self.config.data)?;
        let plans = self.plans(&source)?;
        for (index, plan) in plans.iter().enumerate() {
            tell(Event::Run { label: &plan.label, seed: plan.seed, index, runs: plans.len() });
            if !self.one(plan, &source, stop, tell)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The plans of all runs; refuses here what would fail after hours of training.
    fn plans(&self, source: &Source) -> Result<Vec<Plan>> {
        let text = source.text(crate::corpus::Split::Test);
        for length in &self.request.lengths {
            self.request.windows(*length, text.len())?;
        }
        let seeds = self.config.seed..self.config.seed + self.seeds;
        let runs = seeds.flat_map(|seed| self.encodings.iter().map(move |encoding| (seed, encoding)));
        runs.map(|(seed, encoding)| {
            let config = RunConfig { seed, encoding: encoding.clone(), ..self.config.clone() };
            Plan::new(&config, source.facts())
        })
        .collect()
    }

    fn one(&self, plan: &Plan, source: &Source, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) -> Result<bool> {
        let folder = self.folder(&plan.label, plan.seed);
        let outcome = train::train(plan, &folder, &source.batches(plan)?, stop, &mut |step| tell(Event::Step(step)))?;
        if !outcome.finished {
            return Ok(false);
        }
        let request = Request { seed: plan.seed, ..self.request.clone() };
        evaluate_run(&folder, &source.text(crate::corpus::Split::Test), &request, stop, tell)?;
        Ok(!stop.load(Ordering::Relaxed))
    }
}

/// Evaluates a run at every length its `evaluation.jsonl` lacks; lengths an encoding is not defined for are left out.
///
/// # Errors
/// A damaged run, or text too short for a length.
pub fn evaluate_run(
    folder: &Path,
    text: &dyn Text,
    request: &Request,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event),
) -> Result<Vec<EvaluationRow>> {
    let (plan, state, model) = train::load(folder, &crate::device())?;
    let path = folder.join("evaluation.jsonl");
    let mut journal = Journal::open(&path)?;
    let known = record::read_rows::<EvaluationRow>(&path)?.rows;
    let protocol = request.protocol.to_string();
    let mut rows = Vec::new();
    for length in request.lengths.iter().copied() {
        let same = |row: &&EvaluationRow| {
            row.length == length as u64
                && row.protocol == protocol
                && row.step == state.step
                && row.seed == request.seed
                && row.split == "test"
                && (row.position_nll.is_some() || !request.positions)
        };
        if model.check_len(length).is_err() || known.iter().any(|row| same(&row)) {
            rows.extend(known.iter().find(same).cloned());
            continue;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let subject = Subject {
            label: &plan.label,
            seed: request.seed,
            train_len: plan.train_len,
            step: state.step,
            window: plan.encoding.window,
            split: "test",
        };
        let row = evaluate::evaluate(&model, &subject, text, request, length, &mut |done, windows| {
            tell(Event::Evaluating { length, done, windows });
        })?;
        journal.push(&row)?;
        tell(Event::Row(&row));
        rows.push(row);
    }
    Ok(rows)
}
