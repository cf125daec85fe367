//! The training loop: bitwise resumable, stoppable at any step, and it reports every NaN and
//! infinity.
//!
//! Every rank reads, computes and makes the same updates; the first rank writes. Ranks agree on
//! what can fail on one of them before all continue: see [`crate::ranks`].

use crate::architecture::{self, FromPlan, ModelVisitor};
use crate::checkpoint::{self, CheckpointState, NewestCheckpoint};
use crate::config::{DataConfig, TrainConfig};
use crate::error::{Error, Result};
use crate::events::EventFile;
use crate::memory_estimate::TOKENS_AT_ONCE;
use crate::objective::{self, Objective};
use crate::plan::{self, Plan};
use crate::ranks::Ranks;
use crate::run::{RunFolder, RunLock, seconds_since_1970, snapshot};
use crate::runtime::Runtime;
use crate::sequences::BatchSource;
use crate::train_state::{self, AdamWStep, NonFiniteValue, StepMetrics, TrainState};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::parameters;
use kerple_run::{Journal, LearnedAt, MetricsRow, SessionRow};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A training run and the settings of this session.
#[derive(Clone, Copy)]
pub struct TrainSession<'a> {
    /// What is trained.
    pub plan: &'a Plan,
    /// The run folder; an existing run in it is resumed.
    pub run: &'a RunFolder,
    /// Where the sequences come from.
    pub batches: &'a dyn BatchSource,
    /// Set to save after the current step and end.
    pub stop: &'a AtomicBool,
    /// Refuse a damaged checkpoint instead of going on from the one before.
    pub strict: bool,
    /// The device of the model, and the provenance for this session's row; not part of the plan.
    pub runtime: &'a Runtime,
}

impl TrainSession<'_> {
    /// The row of the run folder for a session that starts with this update.
    fn row(&self, first_step: u64, micro_batch: usize) -> SessionRow {
        SessionRow {
            first_step,
            provenance: self.runtime.provenance.clone(),
            micro_batch_size: micro_batch as u64,
            world_size: self.runtime.ranks.world_size() as u64,
            started_at: seconds_since_1970(),
        }
    }
}

/// What happens, as it happens.
#[derive(Debug)]
pub enum TrainEvent<'a> {
    /// Something the user should know.
    Note(String),
    /// A step is done.
    Step(&'a TrainProgress),
}

/// The values that a progress display receives after every step.
#[derive(Clone, Debug)]
pub struct TrainProgress {
    /// Updates done.
    pub step: u64,
    /// Updates of the whole run, unless its stop rule ends it before.
    pub steps: u64,
    /// Loss of the last step whose loss was read, nats per token: of this one, where that waits for nothing.
    pub loss: f64,
    /// Training tokens a second, over this step.
    pub tokens_per_second: f64,
    /// Seconds until the end at the pace so far.
    pub seconds_left: f64,
}

/// How a call of [`train`] ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOutcome {
    /// Updates done.
    pub step: u64,
    /// Whether the run is complete; otherwise it was stopped and is saved.
    pub finished: bool,
    /// The validations by which the stop rule was met, where it was.
    pub learned_at: Option<LearnedAt>,
    /// Loss of the last step of this session, when there was one.
    pub loss: Option<f64>,
    /// Training seconds, over all sessions.
    pub seconds: f64,
}

/// A run being trained.
struct TrainLoop<'a, M, T> {
    session: &'a TrainSession<'a>,
    plan: &'a Plan,
    ranks: &'a Ranks,
    train_state: TrainState<M, T>,
    state: CheckpointState,
    /// Sequences at once in memory.
    micro_batch: usize,
    /// Of the rank that writes.
    writer: Option<RunWriter>,
    /// The last good checkpoint.
    saved: Option<PathBuf>,
    /// Update and score of every validation that the stop rule counts.
    scores: Vec<(u64, f64)>,
    /// What the last update did of those that were read.
    learned: Option<StepMetrics>,
    /// Seconds of the steps since the last logged one.
    fresh: Vec<f64>,
    /// Seconds of these that this rank waited for others.
    waited: f64,
}

/// What a validation measures.
#[derive(Clone, Copy)]
struct Validation {
    /// Mean loss, nats per scored target.
    loss: f64,
    /// Share of the counted answers of a task that were right.
    score: Option<f64>,
}

/// What is open while a run is written.
struct RunWriter {
    metrics: Journal<MetricsRow>,
    events: EventFile,
}

/// What a rank reads of a run before it trains.
struct ResumePoint<M, T> {
    train_state: TrainState<M, T>,
    state: CheckpointState,
    saved: Option<PathBuf>,
    /// Update and score of every validation so far, where a stop rule counts them.
    scores: Vec<(u64, f64)>,
    /// The commit that began the run, where it was begun.
    commit: Option<Option<String>>,
    notes: Vec<String>,
}

/// Trains until the run is complete or stopped; the same folder resumes it.
///
/// # Errors
/// What cannot be read or written, a folder in use or of another plan, or a number that is not one.
pub fn train(session: &TrainSession, tell: &mut dyn FnMut(TrainEvent)) -> Result<TrainOutcome> {
    architecture::visit(session.plan, TrainVisitor { session, tell })
}

/// Training of whichever model a plan asks for.
struct TrainVisitor<'a, 'b> {
    session: &'a TrainSession<'a>,
    tell: &'b mut dyn FnMut(TrainEvent),
}

impl ModelVisitor for TrainVisitor<'_, '_> {
    type Output = Result<TrainOutcome>;

    fn visit<M: FromPlan, T: Objective<M> + Copy>(self, objective: T) -> Result<TrainOutcome> {
        train_with::<M, T>(self.session, objective, self.tell)
    }
}

fn train_with<M: FromPlan, T: Objective<M> + Copy>(
    session: &TrainSession,
    objective: T,
    tell: &mut dyn FnMut(TrainEvent),
) -> Result<TrainOutcome> {
    let (plan, ranks) = (session.plan, &session.runtime.ranks);
    let (mut trainer, _lock) = TrainLoop::<M, T>::open(session, objective, tell)?;
    let (started, first) = (Instant::now(), trainer.state.step);
    while trainer.state.step < trainer.last_step() {
        let (clock, waited) = (Instant::now(), ranks.waited());
        trainer.step()?;
        let seconds = clock.elapsed().as_secs_f64();
        trainer.state.seconds += seconds;
        trainer.fresh.push(seconds);
        trainer.waited += (ranks.waited() - waited).as_secs_f64();
        let step = trainer.state.step;
        let logged = trainer.log();
        tell(TrainEvent::Step(&TrainProgress {
            step,
            steps: plan.steps,
            loss: trainer.learned.map_or(f64::NAN, |learned| learned.loss),
            tokens_per_second: (plan.train.batch_size * plan.train_len) as f64 / seconds,
            seconds_left: started.elapsed().as_secs_f64() / (step - first) as f64 * (plan.steps - step) as f64,
        }));
        let stopping = ranks.share(logged.map(|()| session.stop.load(Ordering::Relaxed)))?.contains(&true);
        let due = step.is_multiple_of(plan.train.save_interval) || step == trainer.last_step();
        if due || stopping {
            trainer.save(due)?;
        }
        if stopping {
            break;
        }
    }
    let CheckpointState { step, seconds, .. } = trainer.state;
    let finished = step == trainer.last_step();
    if trainer.saved.is_none() && finished {
        trainer.save(false)?;
    }
    let learned_at = plan.training_end().learned(&trainer.scores);
    Ok(TrainOutcome { step, finished, learned_at, loss: trainer.learned.map(|learned| learned.loss), seconds })
}

/// What to say of a run that lost its checkpoints, or rows of the updates up to one.
fn lost_note(run: &RunFolder, plan: &Plan, step: Option<u64>) -> Result<Option<String>> {
    let Some(step) = step else {
        // before the first checkpoint there is none to lose
        let first = plan.train.save_interval.min(plan.steps);
        let logged = run.last_logged_step()?.filter(|logged| *logged >= first);
        return Ok(logged.map(|logged| {
            format!(
                "the folder has no checkpoint: training starts at step 1, and replaces the rows up to step {logged}"
            )
        }));
    };
    let missing = run.first_step_without_row(plan, step)?;
    Ok(missing.map(|missing| format!("metrics.jsonl has no row of step {missing}, which was trained; reports lack it")))
}

/// What of a plan a finished run does not take over.
pub(crate) fn kept_note(kept: &Plan, asked: &Plan) -> Option<String> {
    let ignored = plan::of_training(kept, asked);
    (!ignored.is_empty())
        .then(|| format!("the run is finished and stays as it was trained; ignored: {}", plan::line(&ignored)))
}

/// What to say of a run whose updates so far were made in another precision.
fn precision_note(state: &CheckpointState, is_finished: bool, here: &str) -> Option<String> {
    let before = state.precision.as_deref().filter(|before| state.step > 0 && *before != here)?;
    Some(match is_finished {
        true => format!("the run is finished and stays as it was trained, in {before}; ignored: --precision {here}"),
        false => format!(
            "the updates up to {} were made in {before}, the next ones are made in {here}; reports keep such a run apart",
            state.step
        ),
    })
}

/// A train_state of the plan that has seen nothing.
fn fresh<M: FromPlan, T: Objective<M>>(plan: &Plan, objective: T, runtime: &Runtime) -> TrainState<M, T> {
    let mut model = M::of(plan, &runtime.device.clone().autodiff());
    model.compute_with(runtime.implementation);
    TrainState::new(model, objective, train_state::settings(plan))
}

impl<'a, M: FromPlan, T: Objective<M> + Copy> TrainLoop<'a, M, T> {
    /// Takes the folder, checks all that is in it on every rank, and only then writes.
    fn open(
        session: &'a TrainSession<'a>,
        objective: T,
        tell: &mut dyn FnMut(TrainEvent),
    ) -> Result<(TrainLoop<'a, M, T>, Option<RunLock>)> {
        let TrainSession { plan, run, batches, runtime, .. } = *session;
        let ranks = &runtime.ranks;
        let micro_batch = ranks.agree(micro_batch(plan, runtime))?;
        let lock = ranks.first(|| run.lock())?;
        let begun = ranks.agree(ResumePoint::read(session, objective))?;
        let ResumePoint { train_state, mut state, saved, scores, commit, notes } = begun;
        expect_same_run(session, &state, &scores)?;
        if plan.train.until.is_some() && batches.validation_rows() == 0 {
            let hint = "remove train.until, or use data with a validation split";
            return Err(Error::refused("train.until has no score: the validation split is empty", hint));
        }
        let asked = plan.train.micro_batch_size.unwrap_or(plan.train.batch_size);
        let parts = (micro_batch != asked).then(|| parts_note(asked, micro_batch, ranks));
        let validation = validation_note(plan, batches.validation_rows());
        let is_finished = state.step >= plan.training_end().last_step(&scores);
        let kept = if is_finished { run.plan()?.and_then(|kept| kept_note(&kept, plan)) } else { None };
        let precision = precision_note(&state, is_finished, &runtime.provenance.precision);
        let remarks = [parts, batches.remark().map(str::to_owned), validation, kept, precision];
        notes.into_iter().chain(remarks.into_iter().flatten()).for_each(|note| tell(TrainEvent::Note(note)));
        let train_state = train_state.with_ranks(ranks.clone());
        state.device = Some(runtime.provenance.device.clone());
        state.precision = Some(runtime.provenance.precision.clone());
        let (writer, fresh, waited) = (None, Vec::new(), 0.0);
        let learned = None;
        let mut trainer = TrainLoop {
            session,
            plan,
            ranks,
            train_state,
            state,
            micro_batch,
            writer,
            saved,
            scores,
            learned,
            fresh,
            waited,
        };
        let commit = commit.unwrap_or_else(|| runtime.provenance.commit.clone());
        trainer.writer = ranks.first(|| trainer.claim(commit))?;
        Ok((trainer, lock))
    }

    /// Records the start of this session, and opens the files that it appends to.
    fn claim(&self, commit: Option<String>) -> Result<RunWriter> {
        let (plan, run, step) = (self.plan, self.session.run, self.state.step);
        // before the plan, whose intervals are those of this session: `verify` expects rows at them since the last one began
        if step < self.last_step() {
            run.add_session(&self.session.row(step + 1, self.micro_batch))?;
        }
        // the plan of a finished run stays the one that it was trained with; only its text may have moved
        let kept = if step < self.last_step() { None } else { run.plan()? };
        run.write_plan(&match kept {
            Some(kept) => Plan { data: DataConfig { path: plan.data.path.clone(), ..kept.data }, ..kept },
            None => Plan { commit, ..plan.clone() },
        })?;
        if let Some(tokenizer) = self.session.batches.tokenizer() {
            run.keep_tokenizer(plan, tokenizer)?;
        }
        checkpoint::tidy(run.path(), plan.train.keep_last_n, step)?;
        let metrics = run.reopen_metrics(step)?;
        let events = EventFile::create(&run.events(), step)?;
        if step == 0 {
            self.snapshot_kernels()?;
        }
        Ok(RunWriter { metrics, events })
    }

    /// This rank's parts of the batch of the update after `step` others, and its pass.
    fn parts(&self, step: u64) -> Result<(Vec<objective::SequenceBatch>, ForwardContext)> {
        let rows = self.ranks.rows(self.plan.train.batch_size, self.micro_batch);
        let read = rows.into_iter().map(|rows| self.session.batches.batch(step, rows));
        let parts = self.ranks.agree(read.collect::<Result<Vec<objective::SequenceBatch>>>())?;
        Ok((parts, ForwardContext::training(self.plan.seed, step)))
    }

    /// One update. What it did is read at once where that waits for nothing, and otherwise when it is logged or saved.
    fn step(&mut self) -> Result<()> {
        let step = self.state.step;
        let (parts, pass) = self.parts(step)?;
        let learning_rate = self.plan.schedule().rate(step)?;
        let update = AdamWStep { learning_rate, adam_step: self.plan.train.adam_first_step + step };
        self.train_state.advance(&parts, pass, update);
        self.state.step += 1;
        let asked = self.is_logged() || self.learned.is_none();
        if asked || self.session.runtime.reads_freely { self.read() } else { Ok(()) }
    }

    /// Reads what was not read yet, and refuses to go on from numbers that are none.
    fn read(&mut self) -> Result<()> {
        let all = self.train_state.read();
        if let Some(at) = all.iter().position(|learned| !learned.is_finite()) {
            let before = self.state.step - (all.len() - at) as u64;
            let (parts, pass) = self.parts(before)?;
            let found = self.train_state.explain_nonfinite(&parts, pass, all[at]);
            // all ranks have the same sums, so this is on all or on none
            return self.ranks.agree(Err(self.not_finite(before + 1, found)));
        }
        self.learned = all.last().copied().or(self.learned);
        Ok(())
    }

    fn not_finite(&self, step: u64, NonFiniteValue { what, value }: NonFiniteValue) -> Error {
        let hint = match &self.saved {
            Some(path) => format!("lower train.learning_rate; the last good checkpoint is {}", path.display()),
            None => "lower train.learning_rate; no checkpoint was saved yet".to_owned(),
        };
        Error::NotFinite { step, what, value, hint }
    }

    /// The update at which the run is complete, given its validations so far.
    fn last_step(&self) -> u64 {
        self.plan.training_end().last_step(&self.scores)
    }

    /// Whether the last update is followed by a validation.
    fn is_validated(&self) -> bool {
        let (step, Plan { train, steps, .. }) = (self.state.step, self.plan);
        train.eval_interval > 0 && (step.is_multiple_of(train.eval_interval) || step == *steps)
    }

    /// Whether the last update has a row: which steps have one does not depend on where sessions begin and end.
    fn is_logged(&self) -> bool {
        let (step, Plan { train, steps, .. }) = (self.state.step, self.plan);
        self.is_validated() || step == *steps || step == 1 || step.is_multiple_of(train.log_every)
    }

    /// Writes a row if one is due.
    fn log(&mut self) -> Result<()> {
        let (Plan { train, .. }, step) = (self.plan, self.state.step);
        let Some(StepMetrics { loss, grad_norm, scored }) = self.learned.filter(|_| self.is_logged()) else {
            return Ok(());
        };
        let found = if self.is_validated() { self.validate()? } else { None };
        let val_score = found.and_then(|found| found.score);
        // every rank ends after the same update, not only the one that writes
        self.scores.extend(val_score.map(|score| (step, score)));
        let (mut sorted, waited) = (std::mem::take(&mut self.fresh), std::mem::take(&mut self.waited));
        let comm_wait_fraction = (self.ranks.world_size() > 1).then(|| (waited / sorted.iter().sum::<f64>()).min(1.0));
        sorted.sort_by(f64::total_cmp);
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let encoding = self.train_state.model().encoding();
        let small = |values: &Vec<f64>| values.len() <= 1024;
        let row = MetricsRow {
            step,
            loss,
            learning_rate: self.plan.schedule().at(step - 1),
            grad_norm,
            tokens: step * (train.batch_size * train.train_len) as u64,
            seconds: self.state.seconds,
            step_seconds: sorted[sorted.len() / 2],
            comm_wait_fraction,
            scored: (!self.plan.data.documents.is_joined()).then_some(scored),
            val_loss: found.map(|found| found.loss),
            val_score,
            encoding_params: encoding.constrained().into_iter().filter(|(_, values)| small(values)).collect(),
        };
        writer.push(&row)
    }

    /// Mean loss and score of the validation sequences, a few at a time however many there are.
    fn validate(&self) -> Result<Option<Validation>> {
        let batches = self.session.batches;
        let rows = batches.validation_rows();
        let at_once = (TOKENS_AT_ONCE / self.plan.sequence_len()).max(1);
        let model = parameters::without_autodiff(self.train_state.model());
        let objective = self.train_state.objective();
        let sum = |part: usize| {
            let start = part * at_once;
            let batch = batches.validation(start..rows.min(start + at_once))?;
            let mean = objective.mean_loss(&model, &batch, &self.plan.evaluation_pass(start));
            // sequences of separate documents have different numbers of scored targets
            let weight = if batch.documents.is_some() { objective.weight(&batch) } else { batch.rows };
            let answers = self.plan.data.task.is_some().then(|| {
                let scores = objective.score(&model, &batch, &self.plan.evaluation_pass(start));
                scores.answers(&batch)
            });
            Ok(((mean * weight as f64).to_bits(), weight, answers.unwrap_or_default()))
        };
        let sums = self.ranks.in_turns(rows.div_ceil(at_once), sum)?;
        let weight: usize = sums.iter().map(|(_, weight, _)| weight).sum();
        let sum = || sums.iter().map(|(sum, _, _)| f64::from_bits(*sum)).sum::<f64>();
        let (right, counted) =
            sums.iter().fold((0, 0), |(right, counted), (_, _, part)| (right + part.0, counted + part.1));
        let score = (counted > 0).then(|| right as f64 / counted as f64);
        Ok((weight > 0).then(|| Validation { loss: sum() / weight as f64, score }))
    }

    /// Saves a checkpoint, after the rows that lead to it are on disk, and the learned tables where they are due.
    fn save(&mut self, kernels: bool) -> Result<()> {
        self.read()?;
        self.expect_same_weights()?;
        let saved = self.ranks.first(|| {
            if kernels {
                self.snapshot_kernels()?;
            }
            self.writer.as_ref().map_or(Ok(()), RunWriter::sync)?;
            checkpoint::save(self.session.run.path(), self.plan.train.keep_last_n, &self.state, &self.train_state)
        })?;
        let place = || checkpoint::place(self.session.run.path(), self.state.step);
        self.saved = Some(saved.unwrap_or_else(place));
        Ok(())
    }

    /// Refuses to save what ranks differ in: each makes every update by itself, and only one is saved.
    fn expect_same_weights(&self) -> Result<()> {
        if self.ranks.world_size() == 1 {
            return Ok(());
        }
        let weights = self.train_state.stored(train_state::CheckpointPart::Weights);
        let sum = weights
            .iter()
            .fold(0, |sum, named| crc32c::crc32c_append(sum, bytemuck::cast_slice(named.array.slice::<f32>())));
        let name = format!("after update {}, weights with the checksum", self.state.step);
        let hint = "exclude that machine: its CPU, memory or libraries compute other values; this \
            state was not saved";
        self.ranks.expect_same(&[(&name, format!("{sum:08x}"))], hint)
    }

    /// Adds the learned tables as they are now to `kernels.json`.
    fn snapshot_kernels(&self) -> Result<()> {
        let snapshot = snapshot(self.train_state.model().encoding(), self.state.step);
        snapshot.map_or(Ok(()), |snapshot| self.session.run.add_kernels(snapshot))
    }
}

impl<M: FromPlan, T: Objective<M> + Copy> ResumePoint<M, T> {
    /// Reads what is in the folder; writes nothing.
    fn read(session: &TrainSession, objective: T) -> Result<ResumePoint<M, T>> {
        let TrainSession { plan, run, strict, runtime, .. } = *session;
        let found = checkpoint::newest(run.path(), strict, |path| {
            let state = checkpoint::state(path, plan)?;
            let mut train_state = fresh(plan, objective, runtime);
            checkpoint::restore(path, &state, &mut train_state)?;
            Ok((train_state, state))
        });
        // of two reasons to refuse the plan's is the clearer one
        let done = match &found {
            Ok(found) => found.as_ref().map_or(0, |found| found.value.1.step),
            Err(_) => checkpoint::list(run.path())?.into_iter().map(|(step, _)| step).max().unwrap_or(0),
        };
        let old = run.plan()?;
        if let Some(old) = &old {
            old.check_resume(plan, done)?;
        }
        // rows after the checkpoint are of updates that are made again
        let mut scores = if plan.train.until.is_some() { run.validation_scores()? } else { Vec::new() };
        scores.retain(|(step, _)| *step <= done);
        let found = found?;
        plan.check_scores(&scores, done)?;
        let lost = match &old {
            Some(old) => lost_note(run, old, found.as_ref().map(|found| found.value.1.step))?,
            None => None,
        };
        let commit = old.map(|old| old.commit);
        Ok(match found {
            Some(NewestCheckpoint { path, value: (train_state, state), notes }) => {
                let notes = notes.into_iter().chain(lost).collect();
                ResumePoint { train_state, state, saved: Some(path), scores, commit, notes }
            }
            None if plan.init_from.is_some() => {
                let message = format!("{} lacks the weights that the run is initialised from", run.path().display());
                let hint = "initialise it again in another folder: kerple train --init-from RUN --out FOLDER";
                return Err(Error::refused(message, hint));
            }
            None => {
                let (train_state, state) =
                    (fresh(plan, objective, runtime), CheckpointState::start(plan.trajectory_hash()));
                ResumePoint { train_state, state, saved: None, scores, commit, notes: Vec::from_iter(lost) }
            }
        })
    }
}

impl RunWriter {
    fn push(&mut self, row: &MetricsRow) -> Result<()> {
        self.metrics.push(row)?;
        self.events.metrics(row)
    }

    fn sync(&self) -> Result<()> {
        self.metrics.sync()
    }
}

/// Sequences at once, after what cannot be trained here is refused.
fn micro_batch(plan: &Plan, runtime: &Runtime) -> Result<usize> {
    let train = &plan.train;
    let rows = runtime.ranks.micro_batch(train.batch_size, train.micro_batch_size.unwrap_or(train.batch_size))?;
    let in_parts = Plan { train: TrainConfig { micro_batch_size: Some(rows), ..train.clone() }, ..plan.clone() };
    in_parts.check_training_memory(runtime.limit().as_ref(), runtime.kept_precision())?;
    Ok(rows)
}

/// Refuses ranks that would not make the same updates.
fn expect_same_run(session: &TrainSession, state: &CheckpointState, scores: &[(u64, f64)]) -> Result<()> {
    let Runtime { provenance, ranks, .. } = session.runtime;
    let facts = [
        ("plan", session.plan.hash.clone()),
        ("data", session.plan.data_info.content.clone()),
        ("a checkpoint of step", state.step.to_string()),
        ("a checkpoint with weights", state.model_sha256.clone()),
        ("a checkpoint with optimizer state", state.optimizer_sha256.clone()),
        ("validation scores", format!("{scores:?}")),
        ("a program of commit", provenance.commit.clone().unwrap_or_default()),
        ("instruction set", provenance.simd.clone()),
        ("precision", provenance.precision.clone()),
    ];
    let hint = "start all ranks with the same run file, data, run folder and program, on CPUs with the same \
            instruction set";
    ranks.expect_same(&facts, hint)
}

/// What to say of parts that are smaller than was asked for.
fn parts_note(asked: usize, micro_batch: usize, ranks: &Ranks) -> String {
    format!(
        "micro-batches of {micro_batch} sequences instead of {asked}, so that all {} ranks have \
            equally many; one process with train.micro_batch_size={micro_batch} gives bitwise the same \
            results",
        ranks.world_size()
    )
}

/// What to say of validation text that is shorter than was asked for.
fn validation_note(plan: &Plan, rows: usize) -> Option<String> {
    let train = &plan.train;
    let (wanted, len) = (train.eval_sequences, plan.train_len);
    match rows {
        _ if train.eval_interval == 0 || rows >= wanted => None,
        0 => Some(format!(
            "no validation loss: the validation split is shorter than one sequence of \
            {len} tokens"
        )),
        _ => Some(format!(
            "the validation loss uses {rows} sequences, the split has fewer than \
            {wanted} of {len} tokens"
        )),
    }
}
