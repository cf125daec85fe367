//! Several encodings and seeds under the same settings, one run after another, resumable.

use crate::config::RunConfig;
use crate::corpus::{Source, Split};
use crate::error::{Error, Result};
use crate::evaluate::{self, Amount, Evaluation, Request, Text};
use crate::memory::{Limit, Memory};
use crate::plan::Plan;
use crate::run::{RunFolder, Trained};
use crate::train::{self, Sitting};
use kerple::encoding::Encoding;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Settings of every run; encoding and seed are replaced.
    pub config: RunConfig,
    /// Encodings, each trained with every seed.
    pub encodings: Vec<Encoding>,
    /// Number of seeds, counted up from the configuration's.
    pub seeds: u64,
    /// Lengths, protocol and amount of the evaluation; its seed is replaced by the run's. Lengths that an encoding is
    /// not defined for are left out.
    pub request: Request,
    /// Folder of everything.
    pub out: PathBuf,
    /// The program that runs it, for the plans.
    pub commit: Option<String>,
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
        /// What training it takes.
        memory: Memory,
    },
    /// What training does.
    Training(train::Event<'a>),
    /// What an evaluation does.
    Evaluation(evaluate::Event<'a>),
}

impl Comparison {
    /// Folder of one run.
    pub fn folder(&self, label: &str, seed: u64) -> RunFolder {
        RunFolder::new(self.out.join("runs").join(label).join(format!("seed-{seed}")))
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
        let request = self.fixed_request(&plans, &source.text(Split::Test))?;
        for (index, plan) in plans.iter().enumerate() {
            let memory = plan.training_memory(plan.train.micro_batch.unwrap_or(plan.train.batch));
            tell(Event::Run { label: &plan.label, seed: plan.seed, index, runs: plans.len(), memory });
            if !self.one(plan, &source, &request, stop, tell)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The plans of all runs; refuses here what would fail after hours of training.
    fn plans(&self, source: &Source) -> Result<Vec<Plan>> {
        let Some(end) = self.config.seed.checked_add(self.seeds) else {
            let message = format!("{} seeds from {} on are more than there are", self.seeds, self.config.seed);
            return Err(Error::refused(message, "choose a smaller seed"));
        };
        let runs = (self.config.seed..end).flat_map(|seed| self.encodings.iter().map(move |encoding| (seed, encoding)));
        runs.map(|(seed, encoding)| {
            let config = RunConfig { seed, encoding: encoding.clone(), ..self.config.clone() };
            let plan = Plan { commit: self.commit.clone(), ..Plan::new(&config, source.facts())? };
            if let Some(old) = self.folder(&plan.label, seed).plan()? {
                old.may_become(&plan, 0)?;
            }
            let limit = Limit::here();
            plan.check_training_memory(limit.as_ref())?;
            self.request.lengths.iter().try_for_each(|length| plan.check_evaluation_memory(*length, limit.as_ref()))?;
            Ok(plan)
        })
        .collect()
    }

    /// The request with its span fixed, so that all runs of a seed are scored on the same text whatever was evaluated in
    /// some of them before.
    fn fixed_request(&self, plans: &[Plan], text: &dyn Text) -> Result<Request> {
        let mut rows = Vec::new();
        for plan in plans {
            rows.extend(self.folder(&plan.label, plan.seed).evaluations()?);
        }
        let earlier = evaluate::earlier_extents(&rows, text, self.request.protocol);
        let extent = self.request.extent(self.config.train.train_len, text.len(), &earlier)?;
        let segments = Amount::Exactly(extent.segments());
        Ok(Request { span: Some(extent.span()), segments, ..self.request.clone() })
    }

    fn one(
        &self,
        plan: &Plan,
        source: &Source,
        request: &Request,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(Event),
    ) -> Result<bool> {
        let run = self.folder(&plan.label, plan.seed);
        let batches = source.batches(plan)?;
        let sitting = Sitting { plan, run: &run, batches: &batches, stop, strict: false };
        if !train::train(&sitting, &mut |event| tell(Event::Training(event)))?.finished {
            return Ok(false);
        }
        let Trained { plan, state, model, .. } = run.load(&crate::device(), false)?;
        let lengths = request.lengths.iter().copied().filter(|length| model.check_len(*length).is_ok()).collect();
        let request = Request { seed: plan.seed, lengths, ..request.clone() };
        if request.lengths.is_empty() {
            return Ok(true);
        }
        let text = source.text(Split::Test);
        let evaluation = Evaluation::new(&run, (&plan, state.step, &model), &text, &request)?;
        evaluation.run(stop, &mut |event| tell(Event::Evaluation(event)))
    }
}
