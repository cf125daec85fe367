//! Several encodings and seeds under the same settings, one run after another, resumable.

use crate::config::RunConfig;
use crate::corpus::{Source, Split};
use crate::error::{Error, Result};
use crate::evaluate::{self, Amount, Request, Text};
use crate::host::Host;
use crate::job::{self, Ask, Job, Shard};
use crate::memory::Limit;
use crate::plan::Plan;
use crate::run::RunFolder;
use kerple::encoding::Encoding;
use kerple::encoding::scaling::Scaling;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

pub use crate::job::Event;

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
    /// Other rotary rates that runs which rotate are evaluated with too.
    pub rope_scalings: Vec<Scaling>,
    /// Folder of everything.
    pub out: PathBuf,
    /// Where models are, and the program that runs it.
    pub host: Host,
}

impl Comparison {
    /// Folder of one run.
    pub fn folder(&self, label: &str, seed: u64) -> RunFolder {
        RunFolder::new(self.out.join("runs").join(label).join(format!("seed-{seed}")))
    }

    /// Trains and evaluates what is not done yet of a shard's runs; `false` when `stop` was set before the end.
    ///
    /// Seeds are the outer loop, so that after every round all encodings have the same number of runs.
    ///
    /// # Errors
    /// As [`job::work_off`].
    pub fn run(&self, shard: Shard, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) -> Result<bool> {
        let source = Source::open(&self.config.data)?;
        let plans = self.plans(&source)?;
        let request = match source.task() {
            Some(_) => self.request.clone(),
            None => self.fixed_request(&plans, &source.text(Split::Test)?)?,
        };
        let ask = |rope_scaling| Ask { request: request.clone(), window: None, rope_scaling };
        let asks: Vec<Ask> = [None].into_iter().chain(self.rope_scalings.iter().copied().map(Some)).map(ask).collect();
        let folders: Vec<RunFolder> = plans.iter().map(|plan| self.folder(&plan.label, plan.seed)).collect();
        let jobs: Vec<Job> = plans
            .iter()
            .zip(&folders)
            .map(|(plan, folder)| Job {
                name: &plan.label,
                folder,
                plan,
                source: &source,
                asks: &asks,
                looks: &[],
                probes: &[],
                host: &self.host,
            })
            .collect();
        job::work_off(&jobs, shard, stop, tell)
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
            let plan = Plan::new(&config, source.facts())?;
            if let Some(old) = self.folder(&plan.label, seed).plan()? {
                old.may_become(&plan, 0)?;
            }
            let limit = Limit::here();
            plan.check_training_memory(limit.as_ref())?;
            self.request
                .lengths
                .iter()
                .try_for_each(|length| plan.check_evaluation_memory(plan.sequence_of(*length), limit.as_ref()))?;
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
}
