//! Several encodings and seeds with the same settings, one run after another, resumable.

use crate::config::RunConfig;
use crate::corpus::{DataSource, Split};
use crate::error::{Error, Result};
use crate::evaluate::{self, EvalEvent, EvalRequest, SegmentCount};
use crate::layers::LayerConfig;
use crate::plan::Plan;
use crate::run::RunFolder;
use crate::runtime::Runtime;
use crate::sequences::EvalText;
use crate::sweep::{self, EvalSpec, Shard, SweepJob};
use kerple_core::encoding::Encoding;
use kerple_core::encoding::scaling::RopeScaling;
use kerple_data::machine::MemoryLimit;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

pub use crate::sweep::SweepEvent;

/// Kind of the layers in which encodings are compared.
pub const EXCHANGED: &str = "exchanged";

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Settings of every run; encoding and seed are replaced.
    pub config: RunConfig,
    /// Encodings, each trained with every seed.
    pub encodings: Vec<Encoding>,
    /// Layers in which they stand, counted from 0, the other layers keeping the configuration's encoding; `None`: all.
    pub layers: Option<Vec<usize>>,
    /// Number of seeds, counted up from the configuration's.
    pub seeds: u64,
    /// Lengths, protocol and amount of the evaluation; its seed is replaced by the run's. Lengths that an encoding is
    /// not defined for are left out.
    pub request: EvalRequest,
    /// Other rotary rates that runs which rotate are evaluated with too.
    pub rope_scalings: Vec<RopeScaling>,
    /// Folder of everything.
    pub out: PathBuf,
    /// Folder of the runs, within it.
    pub runs: PathBuf,
    /// Where models are, and the program that runs it.
    pub runtime: Runtime,
}

impl Comparison {
    /// Folder of one run.
    pub fn folder(&self, label: &str, seed: u64) -> RunFolder {
        RunFolder::new(self.runs.join(label).join(format!("seed-{seed}")))
    }

    /// Trains and evaluates what is not done yet of a shard's runs; `false` when `stop` was set before the end.
    ///
    /// Seeds are the outer loop, so that after every round all encodings have the same number of runs.
    ///
    /// # Errors
    /// As [`sweep::run_all`].
    pub fn run(&self, shard: Shard, stop: &AtomicBool, tell: &mut dyn FnMut(SweepEvent)) -> Result<bool> {
        self.with_jobs(self.runtime.limit(), stop, |jobs| {
            self.left_out(jobs).into_iter().for_each(|note| tell(SweepEvent::Evaluation(EvalEvent::Note(note))));
            sweep::run_all(jobs, (shard, &self.runtime.ranks), stop, tell)
        })
    }

    /// What to say of lengths that encodings are not defined for.
    fn left_out(&self, jobs: &[SweepJob]) -> Vec<String> {
        let note = |job: &SweepJob| {
            let served = evaluate::served(job.plan, &job.plan.encoding, &self.request.lengths);
            let left = self.request.lengths.iter().filter(|length| !served.contains(length));
            let left: Vec<String> = left.map(usize::to_string).collect();
            let lengths = left.join(", ");
            (!left.is_empty())
                .then(|| format!("{} is not defined for lengths of {lengths}, which are left out", job.name))
        };
        jobs.iter().filter(|job| job.plan.seed == self.config.seed).filter_map(note).collect()
    }

    /// Refuses what [`Comparison::run`] refuses before its first run.
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, stop: &AtomicBool) -> Result<()> {
        self.with_jobs(self.runtime.limit(), stop, |jobs| jobs.iter().try_for_each(SweepJob::check))
    }

    /// [`Comparison::check`] for runs on other machines, whose memory is not known here.
    ///
    /// # Errors
    /// As there.
    pub fn check_for_elsewhere(&self, stop: &AtomicBool) -> Result<()> {
        self.with_jobs(None, stop, |jobs| jobs.iter().try_for_each(SweepJob::check))
    }

    /// Works on the jobs, after their plans were checked against a limit of memory.
    fn with_jobs<T>(
        &self,
        limit: Option<MemoryLimit>,
        stop: &AtomicBool,
        work: impl FnOnce(&[SweepJob]) -> Result<T>,
    ) -> Result<T> {
        let alone = self.runtime.alone();
        let source = DataSource::open_until(&self.config.data, stop)?;
        let plans = self.plans(&source, limit.as_ref())?;
        let request = match source.task() {
            Some(_) => self.request.clone(),
            None => self.fixed_request(&plans, &source.text(Split::Test)?)?,
        };
        let spec = |rope_scaling| EvalSpec {
            request: request.clone(),
            split: Split::Test,
            task: None,
            window: None,
            rope_scaling,
            evaluators: Vec::new(),
        };
        let evals: Vec<EvalSpec> =
            [None].into_iter().chain(self.rope_scalings.iter().copied().map(Some)).map(spec).collect();
        let folders: Vec<RunFolder> = plans.iter().map(|plan| self.folder(&plan.label, plan.seed)).collect();
        let jobs: Vec<SweepJob> = plans
            .iter()
            .zip(&folders)
            .map(|(plan, folder)| SweepJob {
                name: &plan.label,
                folder,
                plan,
                source: &source,
                evals: &evals,
                probes: &[],
                runtime: &alone,
            })
            .collect();
        work(&jobs)
    }

    /// The plans of all runs; refuses here what would fail after hours of training.
    fn plans(&self, source: &DataSource, limit: Option<&MemoryLimit>) -> Result<Vec<Plan>> {
        let Some(end) = self.config.seed.checked_add(self.seeds) else {
            let message = format!("{} seeds from {} on exceed the largest seed", self.seeds, self.config.seed);
            return Err(Error::refused(message, "choose a smaller seed"));
        };
        let runs = (self.config.seed..end).flat_map(|seed| self.encodings.iter().map(move |encoding| (seed, encoding)));
        runs.map(|(seed, encoding)| {
            let config = self.config_of(seed, encoding);
            let plan = Plan::new(&config, source.facts())?;
            if let Some(old) = self.folder(&plan.label, seed).plan()? {
                old.check_resume(&plan, 0)?;
            }
            plan.check_training_memory(limit, self.runtime.kept_precision())?;
            self.request
                .lengths
                .iter()
                .try_for_each(|length| plan.check_evaluation_memory(plan.sequence_of(*length), limit))?;
            Ok(plan)
        })
        .collect()
    }

    /// The settings with an encoding, in all layers or in those that are compared.
    fn config_of(&self, seed: u64, encoding: &Encoding) -> RunConfig {
        let mut config = RunConfig { seed, ..self.config.clone() };
        match &self.layers {
            None => config.encoding = encoding.clone(),
            Some(_) if *encoding == config.encoding => {}
            Some(at) => {
                let exchanged =
                    LayerConfig { at: Some(at.clone()), encoding: Some(encoding.clone()), ..LayerConfig::default() };
                config.model.layers.insert(EXCHANGED.to_owned(), exchanged);
            }
        }
        config
    }

    /// The request with its segment length fixed, so that all runs of a seed are scored on the same text whatever was evaluated in
    /// some of them before.
    fn fixed_request(&self, plans: &[Plan], text: &dyn EvalText) -> Result<EvalRequest> {
        let mut rows = Vec::new();
        for plan in plans {
            rows.extend(self.folder(&plan.label, plan.seed).evaluations()?);
        }
        let earlier = evaluate::earlier_segments(&rows, text, self.request.protocol);
        let segments = self.request.place(self.config.train.train_len, text, &earlier)?;
        let n_segments = SegmentCount::Exactly(segments.n_segments());
        Ok(EvalRequest { segment_len: Some(segments.segment_len()), n_segments, ..self.request.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Protocol;
    use crate::plan::DataInfo;

    #[test]
    fn encodings_are_exchanged_in_the_layers_that_are_named() {
        let text = "data.path = \"nowhere\"\nencoding.kind = \"rotary\"\nmodel.n_layers = 3";
        let [alibi, rotary] = ["alibi", "rotary"].map(|kind| serde_json::from_value::<Encoding>(kind.into()).unwrap());
        let (lengths, protocol, n_segments) = (vec![16], Protocol::Segments, SegmentCount::UpTo(1));
        let comparison = Comparison {
            config: RunConfig::parse(text, "test", &[]).unwrap(),
            encodings: Vec::new(),
            layers: Some(vec![1]),
            seeds: 1,
            request: EvalRequest {
                lengths,
                protocol,
                n_segments,
                segment_len: None,
                seed: 0,
                per_position: false,
                documents: None,
                within: Default::default(),
            },
            rope_scalings: Vec::new(),
            out: PathBuf::new(),
            runs: PathBuf::new(),
            runtime: Runtime::cpu(None),
        };
        let facts = DataInfo { vocab_size: 9, tokenizer: String::new(), train_tokens: 1 << 20, content: String::new() };
        let label = |encoding: &Encoding| Plan::new(&comparison.config_of(1, encoding), facts.clone()).unwrap().label;
        assert_eq!([label(&alibi), label(&rotary)], ["rotary-at1=alibi", "rotary"]);
        let everywhere = Comparison { layers: None, ..comparison.clone() };
        assert_eq!(everywhere.config_of(1, &alibi).encoding, alibi);
    }
}
