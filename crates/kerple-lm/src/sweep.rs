//! A sweep of runs, one after another: each is trained and evaluated, and skipped once it is done.
//!
//! Jobs are numbered in a fixed order, so a [`Shard`] on another machine takes its own jobs and no
//! two shards write to one folder. Copying folders together merges their results.

mod evaluators;

pub use evaluators::EvaluatorRun;
use evaluators::KeyChoice;

use crate::analysis::Analysis;
use crate::architecture::Model;
use crate::config::DataConfig;
use crate::corpus::{DataSource, Split};
use crate::error::{Error, Result};
use crate::evaluate::{self, EvalCheckpoint, EvalRequest, EvalRun, Protocol, Reuse};
use crate::memory_estimate::MemoryEstimate;
use crate::model::Decoder;
use crate::plan::Plan;
use crate::ranks::Ranks;
use crate::run::{RunFolder, TrainedModel};
use crate::runtime::Runtime;
use crate::tasks;
use crate::train::{self, TrainSession};
use kerple_core::encoding::Encoding;
use kerple_core::encoding::scaling::RopeScaling;
use kerple_data::tasks::TaskConfig;
use kerple_run::{EvaluationRow, Numerics};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

/// A run, and what is evaluated of it.
#[derive(Clone, Copy)]
pub struct SweepJob<'a> {
    /// What people call it.
    pub name: &'a str,
    /// Where it is kept.
    pub folder: &'a RunFolder,
    /// What is trained.
    pub plan: &'a Plan,
    /// The text.
    pub source: &'a DataSource,
    /// What is evaluated, in this order.
    pub evals: &'a [EvalSpec],
    /// What else is measured, after that.
    pub probes: &'a [Analysis],
    /// Where the model is, and what rows say of it; a job is one process's.
    pub runtime: &'a Runtime,
}

/// An evaluation of a trained run.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalSpec {
    /// Which text, at which lengths: `segment_len` is set, so that all runs of a seed are scored on the same text whatever was
    /// evaluated of some of them before. Lengths that the encoding is not defined for are left out.
    pub request: EvalRequest,
    /// The part of the data that is scored.
    pub split: Split,
    /// Another task than that of the run, with its vocabulary and its kind of answers.
    pub task: Option<TaskConfig>,
    /// Keys a query may see, where that is not what the run was trained with; asked only of runs whose layers see alike far.
    pub window: Option<usize>,
    /// Other rotary rates than the run was trained with; asked only of runs that rotate.
    pub rope_scaling: Option<RopeScaling>,
    /// Runs of the sweep that choose the key tokens of [`Protocol::Key`].
    pub evaluators: Vec<EvaluatorRun>,
}

impl EvalSpec {
    /// What a run of this plan is evaluated with; `None` where this is not asked of it.
    fn encoding(&self, plan: &Plan) -> Option<Encoding> {
        let trained = &plan.encoding;
        let scaled = match self.rope_scaling {
            Some(scaling) => trained.with_rope_scaling(scaling).ok()?,
            None => trained.clone(),
        };
        let has_own_windows = plan.model.every_layer(trained).any(|layer| layer.window != trained.window);
        if self.window.is_some() && has_own_windows {
            return None;
        }
        Some(scaled.with_window(self.window.or(scaled.window)))
    }
}

/// One of several processes that share the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

/// What happens, as it happens.
#[derive(Debug)]
pub enum SweepEvent<'a> {
    /// A run begins, or goes on.
    Run {
        /// What people call it.
        name: &'a str,
        /// Its seed.
        seed: u64,
        /// Runs before this one.
        index: usize,
        /// Runs in all, those of other shards included.
        runs: usize,
        /// What training it takes.
        memory: MemoryEstimate,
    },
    /// A run produced what is not a number; the others go on.
    Diverged {
        /// What people call it.
        name: &'a str,
        /// Its seed.
        seed: u64,
        /// What happened.
        error: &'a Error,
    },
    /// What training does.
    Training(train::TrainEvent<'a>),
    /// What an evaluation does.
    Evaluation(evaluate::EvalEvent<'a>),
}

impl Shard {
    /// The only process.
    pub const WHOLE: Shard = Shard { index: 0, count: 1 };

    /// Whether a job, by its number, is this process's.
    pub fn takes(self, job: usize) -> bool {
        job % self.count == self.index
    }

    /// How many of so many jobs are this process's.
    pub fn count_of(self, jobs: usize) -> usize {
        (0..jobs).filter(|job| self.takes(*job)).count()
    }

    /// What of it is a rank's: all shards' ranks together are as many shards.
    fn of(self, ranks: &Ranks) -> Shard {
        Shard { index: self.index + self.count * ranks.rank(), count: self.count * ranks.world_size() }
    }

    /// Whether this process is to do what is done once.
    pub fn is_first(self) -> bool {
        self.index == 0
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Shard> {
        let hint = "write I/N with I counted from 0, e.g. 0/4 to 3/4";
        let parsed = text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match parsed {
            Some((index, count)) if index < count => Ok(Shard { index, count }),
            Some((index, count)) => Err(Error::refused(
                format!("shard {index}/{count} is out of range, shards are 0 to {}", count.max(1) - 1),
                hint,
            )),
            None => Err(Error::refused(format!("`{text}` is not a shard"), hint)),
        }
    }
}

/// Works off the jobs of a shard, shared by ranks, each of which does whole jobs; `false` when `stop` was set before the end, or
/// that of another rank.
///
/// # Errors
/// The first error of a job. A run whose numbers stop being numbers does not keep the others from being trained: its error
/// is returned at the end.
pub fn run_all(
    jobs: &[SweepJob],
    (shard, ranks): (Shard, &Ranks),
    stop: &AtomicBool,
    tell: &mut dyn FnMut(SweepEvent),
) -> Result<bool> {
    let own = shard.of(ranks);
    let check = || jobs.iter().enumerate().filter(|(index, _)| own.takes(*index)).try_for_each(|(_, job)| job.check());
    ranks.agree(check())?;
    let done = ranks.run_independently(stop, |hear| {
        run_own(jobs, own, stop, &mut |event| {
            hear();
            tell(event);
        })
    })?;
    Ok(!done.contains(&false))
}

/// How far a job got.
enum JobEnd {
    Done,
    Stopped,
    /// It is trained, but another run is not that chooses its key tokens; in words.
    Waiting(String),
}

fn run_own(jobs: &[SweepJob], shard: Shard, stop: &AtomicBool, tell: &mut dyn FnMut(SweepEvent)) -> Result<bool> {
    let (mut lost, mut elsewhere, mut said) = (None, BTreeMap::new(), BTreeSet::new());
    let mut work = |due: &[usize], tell: &mut dyn FnMut(SweepEvent)| -> Result<Option<Vec<(usize, String)>>> {
        let mut waiting = Vec::new();
        for &index in due {
            let job = &jobs[index];
            let (name, seed, runs) = (job.name, job.plan.seed, jobs.len());
            let micro_batch = job.plan.train.micro_batch_size.unwrap_or(job.plan.train.batch_size);
            let memory = job.plan.training_memory(micro_batch, job.runtime.kept_precision());
            tell(SweepEvent::Run { name, seed, index, runs, memory });
            for key in job.plan.keys_without_effect().into_iter().filter(|key| said.insert(key.clone())) {
                tell(SweepEvent::Training(train::TrainEvent::Note(format!("no effect: {key}"))));
            }
            match job.train_and_evaluate(stop, &mut elsewhere, tell) {
                Ok(JobEnd::Done) => {}
                Ok(JobEnd::Stopped) => return Ok(None),
                Ok(JobEnd::Waiting(reason)) => waiting.push((index, reason)),
                Err(error @ Error::NotFinite { .. }) => {
                    tell(SweepEvent::Diverged { name, seed, error: &error });
                    lost = lost.take().or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(waiting))
    };
    let own: Vec<usize> = (0..jobs.len()).filter(|index| shard.takes(*index)).collect();
    let Some(waiting) = work(&own, tell)? else { return Ok(false) };
    // the runs that choose key tokens may come later, or from another shard in the meantime
    let waiting: Vec<usize> = waiting.into_iter().map(|(index, _)| index).collect();
    let Some(waiting) = work(&waiting, tell)? else { return Ok(false) };
    for (by, runs) in elsewhere {
        let note = format!(
            "{runs} of the runs count as done because of rows that were computed \
            {by}; pages state their provenance"
        );
        tell(SweepEvent::Evaluation(evaluate::EvalEvent::Note(note)));
    }
    let waits = waiting.into_iter().next().map(|(index, reason)| jobs[index].still_waits(&reason));
    lost.or(waits).map_or(Ok(true), Err)
}

impl SweepJob<'_> {
    /// Refuses evaluations that the data cannot serve, before anything is trained for them.
    ///
    /// # Errors
    /// What cannot be served.
    pub(crate) fn check(&self) -> Result<()> {
        for spec in self.evals {
            let Some((encoding, request)) = self.served(spec) else { continue };
            self.plan.check_evaluated(&encoding)?;
            let other = self.other_source(spec)?;
            match other.as_ref().unwrap_or(self.source).task() {
                Some(task) => {
                    evaluate::check_task(request.documents, request.within)?;
                    request.answers(spec.split, task).check(task)?;
                }
                None => {
                    let text = self.source.text(spec.split)?;
                    let segments = request.place(self.plan.train_len, &text, &[])?;
                    self.check_evaluators(spec, segments.segment_len())?;
                }
            }
        }
        Ok(())
    }

    /// Trains and evaluates what is not done yet. `elsewhere` counts the runs that are done by rows of another program or machine, by
    /// what made those.
    fn train_and_evaluate(
        &self,
        stop: &AtomicBool,
        elsewhere: &mut BTreeMap<String, usize>,
        tell: &mut dyn FnMut(SweepEvent),
    ) -> Result<JobEnd> {
        let SweepJob { plan, folder, source, runtime, .. } = *self;
        if let Some(note) = self.trained_otherwise()? {
            tell(SweepEvent::Training(train::TrainEvent::Note(note)));
        }
        if let Some((rows, provenances)) = self.is_done()? {
            if let Some(note) = folder.plan()?.and_then(|kept| train::kept_note(&kept, plan)) {
                tell(SweepEvent::Training(train::TrainEvent::Note(note)));
            }
            rows.iter().for_each(|row| tell(SweepEvent::Evaluation(evaluate::EvalEvent::Row { row, fresh: false })));
            provenances.into_iter().for_each(|by| *elsewhere.entry(by).or_default() += 1);
            return Ok(JobEnd::Done);
        }
        let batches = source.batches(plan)?;
        let session = TrainSession { plan, run: folder, batches: &batches, stop, strict: false, runtime };
        if !train::train(&session, &mut |event| tell(SweepEvent::Training(event)))?.finished {
            return Ok(JobEnd::Stopped);
        }
        let mut trained = folder.load_any(&runtime.device, false)?;
        trained.model.compute_with(runtime.implementation);
        let (learned, mut waiting) = (trained.model.encoding().clone(), None);
        for spec in self.evals {
            let Some((encoding, request)) = self.served(spec) else { continue };
            *trained.model.encoding_mut() = learned.evaluated_as(encoding);
            match self.evaluate((spec, &request), &trained, stop, tell)? {
                JobEnd::Done => {}
                JobEnd::Stopped => return Ok(JobEnd::Stopped),
                end @ JobEnd::Waiting(_) => waiting = Some(end),
            }
        }
        *trained.model.encoding_mut() = learned;
        if let Some(model) = trained.model.decoder().filter(|_| source.task().is_none())
            && !self.probe((&trained.plan, model), stop)?
        {
            return Ok(JobEnd::Stopped);
        }
        Ok(waiting.unwrap_or(JobEnd::Done))
    }

    /// Evaluates what is not done yet of a spec, with the encoding that the model has.
    fn evaluate(
        &self,
        (spec, request): (&EvalSpec, &EvalRequest),
        trained: &TrainedModel<Box<dyn Model>>,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(SweepEvent),
    ) -> Result<JobEnd> {
        let SweepJob { folder, runtime, .. } = *self;
        let TrainedModel { plan, state, model, .. } = trained;
        let other = self.other_source(spec)?;
        let source = other.as_ref().unwrap_or(self.source);
        let (special, known) = (folder.special_tokens()?, folder.evaluations()?);
        let scored = match request.protocol {
            Protocol::Key(rule) => match self.choose_keys((spec, request), (trained, rule), stop, tell)? {
                KeyChoice::Chosen(scored) => scored,
                KeyChoice::Ended(end) => return Ok(end),
            },
            _ => evaluate::of_source(source, spec.split, (plan, &special), request, &known)?,
        };
        let checkpoint = EvalCheckpoint { plan, step: state.step, model: &**model };
        let evaluation = EvalRun::new(folder, checkpoint, &*scored, runtime)?.reusing(Reuse::AnyMachine);
        let finished = evaluation.run(stop, &mut |event| tell(SweepEvent::Evaluation(event)))?;
        Ok(if finished { JobEnd::Done } else { JobEnd::Stopped })
    }

    /// Measures what is not done yet; `false` when `stop` was set before the end.
    fn probe(&self, trained: (&Plan, &Decoder), stop: &AtomicBool) -> Result<bool> {
        for probe in self.probes {
            if probe.is_done(self.folder, self.plan, self.source, &self.runtime.provenance)? {
                continue;
            }
            if !probe.run(self.folder, trained, self.source, &self.runtime.provenance, stop)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What to say of a run whose updates were made in another precision, or on another kind of device, than is asked for now.
    fn trained_otherwise(&self) -> Result<Option<String>> {
        let sessions = self.folder.sessions()?;
        let here = self.runtime.provenance.numerics();
        let counted = kerple_run::sessions_up_to(&sessions, self.plan.steps).into_iter();
        let others: BTreeSet<Numerics> =
            counted.map(|row| row.provenance.numerics()).filter(|other| other.chosen() != here.chosen()).collect();
        let words = Vec::from_iter(others.iter().map(Numerics::to_string)).join(" and ");
        Ok((!others.is_empty()).then(|| {
            format!(
                "this run was trained in {words}, this session computes in {here}; reports keep \
                such runs separate"
            )
        }))
    }

    /// Every row, where all are there already, and what made those that neither this program nor this machine did. Rows say of which
    /// plan's last step they are, so no checkpoint is needed: rows that were copied together from several machines count. Rows
    /// of another precision or kind of device do not.
    fn is_done(&self) -> Result<Option<(Vec<EvaluationRow>, BTreeSet<String>)>> {
        let Some(rows) = self.rows()? else { return Ok(None) };
        for probe in self.probes {
            if !probe.is_done(self.folder, self.plan, self.source, &self.runtime.provenance)? {
                return Ok(None);
            }
        }
        let provenance = &self.runtime.provenance;
        let others = rows.iter().filter_map(|row| evaluate::provenance_difference(row, provenance)).collect();
        Ok((self.probes.len() + rows.len() > 0).then_some((rows, others)))
    }

    /// The rows of all evaluations, one after the other with their lengths in order; `None` while one is missing.
    ///
    /// # Errors
    /// Files of the run that cannot be read, or data that can no longer be read.
    pub fn rows(&self) -> Result<Option<Vec<EvaluationRow>>> {
        if self.folder.plan()?.is_none_or(|old| old.hash != self.plan.hash) {
            return Ok(None);
        }
        let rows = self.folder.evaluations()?;
        let (special, last_step) = (self.folder.special_tokens()?, self.folder.last_step(self.plan)?);
        let mut found = Vec::new();
        for spec in self.evals {
            let Some((encoding, request)) = self.served(spec) else { continue };
            let other = self.other_source(spec)?;
            let scored = match request.protocol {
                Protocol::Key(_) => self.key_rows(spec, &request, &special)?,
                _ => {
                    let source = other.as_ref().unwrap_or(self.source);
                    evaluate::of_source(source, spec.split, (self.plan, &special), &request, &[])?
                }
            };
            let reuse = (&self.runtime.provenance, Reuse::AnyMachine);
            for row in evaluate::known(&rows, (last_step, &encoding), &*scored, reuse) {
                let Some(row) = row else { return Ok(None) };
                found.push(row.clone());
            }
        }
        Ok(Some(found))
    }

    /// The sequences of another task, where the run is evaluated on one.
    fn other_source(&self, spec: &EvalSpec) -> Result<Option<DataSource>> {
        let Some(task) = &spec.task else { return Ok(None) };
        let Some(trained) = &self.plan.data.task else {
            let hint = "evaluate runs of texts without `task`";
            return Err(Error::refused("an evaluation on a task: the run was trained on a text", hint));
        };
        tasks::check_same_answers(trained, task)?;
        Ok(Some(DataSource::open(&DataConfig { task: Some(task.clone()), ..self.plan.data.clone() })?))
    }

    /// What is asked of this run: the encoding, and the request of the run's seed at the lengths that is defined for;
    /// `None` when nothing is.
    fn served(&self, spec: &EvalSpec) -> Option<(Encoding, EvalRequest)> {
        let encoding = spec.encoding(self.plan)?;
        let task = spec.task.as_ref().or(self.plan.data.task.as_ref());
        let lengths = evaluate::served_on(task, self.plan, &encoding, &spec.request.lengths);
        let request = EvalRequest { seed: self.plan.seed, lengths, ..spec.request.clone() };
        (!request.lengths.is_empty()).then_some((encoding, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::threads;
    use std::rc::Rc;

    #[test]
    fn every_job_has_one_shard() {
        let shards: Vec<Shard> = (0..4).map(|index| format!("{index}/4").parse().unwrap()).collect();
        for job in 0..30 {
            assert_eq!(shards.iter().filter(|shard| shard.takes(job)).count(), 1, "job {job}");
        }
        assert!((0..30).all(|job| Shard::WHOLE.takes(job)));
        assert_eq!(shards[3].to_string(), "3/4");
        let ranks = threads::group(3).into_iter().map(|rank| Ranks::of(Rc::new(rank))).collect::<Vec<_>>();
        let parts: Vec<Shard> = shards.iter().flat_map(|shard| ranks.iter().map(|ranks| shard.of(ranks))).collect();
        for job in 0..30 {
            assert_eq!(parts.iter().filter(|shard| shard.takes(job)).count(), 1, "job {job}");
            let shard = parts.iter().position(|shard| shard.takes(job)).unwrap() / 3;
            assert!(shards[shard].takes(job), "job {job} stays in its shard");
        }
    }

    #[test]
    fn shards_are_counted_from_zero() {
        for (text, part) in
            [("4/4", "0 to 3"), ("0/0", "shard 0/0"), ("1", "is not a shard"), ("-1/2", "is not a shard")]
        {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
            assert!(error.hint().contains("0/4"), "{text}");
        }
    }
}
