//! The training loop: resumable to the bit, stoppable at any step, never silent about a number that is not one.

use crate::checkpoint::{self, Found, State};
use crate::error::{Error, Result};
use crate::events::EventFile;
use crate::host::Host;
use crate::learner::{self, Learned, Learner, NotFinite, Update};
use crate::memory::{Limit, TOKENS_AT_ONCE};
use crate::plan::Plan;
use crate::run::{Lock, RunFolder, seconds_since_1970, snapshot};
use crate::sequences::Batches;
use crate::solver::{self, Planned, Work};
use crate::task::{self, Task};
use burn::tensor::Device;
use kerple_burn::parameters;
use kerple_burn::pass::Pass;
use kerple_records::{Journal, MetricsRow, SittingRow};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A training run and how this sitting works on it.
#[derive(Clone, Copy)]
pub struct Sitting<'a> {
    /// What is trained.
    pub plan: &'a Plan,
    /// Where; what is there already is gone on with.
    pub run: &'a RunFolder,
    /// Where the sequences come from.
    pub batches: &'a dyn Batches,
    /// Set to save after the current step and end.
    pub stop: &'a AtomicBool,
    /// Refuse a damaged checkpoint instead of going on from the one before.
    pub strict: bool,
    /// Where the model is, and what the row of this sitting says; no part of the plan.
    pub host: &'a Host,
}

impl Sitting<'_> {
    /// What the run folder says of it, when it begins with this update.
    fn row(&self, first_step: u64) -> SittingRow {
        let train = &self.plan.train;
        SittingRow {
            first_step,
            maker: self.host.maker.clone(),
            micro_batch: train.micro_batch.unwrap_or(train.batch) as u64,
            began: seconds_since_1970(),
        }
    }
}

/// What happens, as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// Something the user should know.
    Note(String),
    /// A step is done.
    Step(&'a Progress),
}

/// What a progress display is told after every step.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Updates done.
    pub step: u64,
    /// Updates of the whole run.
    pub steps: u64,
    /// Loss of this step, nats per token.
    pub loss: f64,
    /// Training tokens a second, over this step.
    pub tokens_per_second: f64,
    /// Seconds until the end at the pace so far.
    pub seconds_left: f64,
}

/// How a call of [`train`] ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Updates done.
    pub step: u64,
    /// Whether the run is complete; otherwise it was told to stop and has saved.
    pub finished: bool,
    /// Loss of the last step of this sitting, when there was one.
    pub loss: Option<f64>,
    /// Training seconds, over all sittings.
    pub seconds: f64,
}

/// A run being trained.
struct Trainer<'a, M, T> {
    sitting: &'a Sitting<'a>,
    plan: &'a Plan,
    learner: Learner<M, T>,
    state: State,
    metrics: Journal<MetricsRow>,
    events: EventFile,
    /// The last good checkpoint.
    saved: Option<PathBuf>,
    /// Seconds of the steps since the last logged one.
    fresh: Vec<f64>,
    _lock: Lock,
}

/// Trains until the run is complete or told to stop; the same folder again resumes.
///
/// # Errors
/// What cannot be read or written, a folder in use or of another plan, or a number that is not one.
pub fn train(sitting: &Sitting, tell: &mut dyn FnMut(Event)) -> Result<Outcome> {
    solver::work(sitting.plan, Training { sitting, tell })
}

/// Training of whichever model a plan asks for.
struct Training<'a, 'b> {
    sitting: &'a Sitting<'a>,
    tell: &'b mut dyn FnMut(Event),
}

impl Work for Training<'_, '_> {
    type Found = Result<Outcome>;

    fn with<M: Planned, T: Task<M> + Copy>(self, task: T) -> Result<Outcome> {
        train_with::<M, T>(self.sitting, task, self.tell)
    }
}

fn train_with<M: Planned, T: Task<M> + Copy>(
    sitting: &Sitting,
    task: T,
    tell: &mut dyn FnMut(Event),
) -> Result<Outcome> {
    let plan = sitting.plan;
    let mut trainer = Trainer::<M, T>::open(sitting, task, tell)?;
    let (started, first) = (Instant::now(), trainer.state.step);
    let mut loss = None;
    while trainer.state.step < plan.steps {
        let clock = Instant::now();
        let (step_loss, norm) = trainer.step()?;
        let seconds = clock.elapsed().as_secs_f64();
        trainer.state.seconds += seconds;
        trainer.fresh.push(seconds);
        loss = Some(step_loss);
        let step = trainer.state.step;
        trainer.log(step_loss, norm)?;
        tell(Event::Step(&Progress {
            step,
            steps: plan.steps,
            loss: step_loss,
            tokens_per_second: (plan.train.batch * plan.train_len) as f64 / seconds,
            seconds_left: started.elapsed().as_secs_f64() / (step - first) as f64 * (plan.steps - step) as f64,
        }));
        let stopping = sitting.stop.load(Ordering::Relaxed);
        let due = step.is_multiple_of(plan.train.checkpoint_every) || step == plan.steps;
        if due {
            trainer.snapshot_kernels()?;
        }
        if due || stopping {
            trainer.save()?;
        }
        if stopping {
            break;
        }
    }
    if trainer.saved.is_none() && trainer.state.step == plan.steps {
        trainer.save()?;
    }
    let State { step, seconds, .. } = trainer.state;
    Ok(Outcome { step, finished: step == plan.steps, loss, seconds })
}

/// A learner of the plan that has seen nothing.
fn fresh<M: Planned, T: Task<M>>(plan: &Plan, task: T, device: &Device) -> Learner<M, T> {
    Learner::new(M::of(plan, &device.clone().autodiff()), task, learner::settings(plan))
}

impl<'a, M: Planned, T: Task<M> + Copy> Trainer<'a, M, T> {
    /// Takes the folder, checks all that is in it, and only then writes.
    fn open(sitting: &'a Sitting<'a>, task: T, tell: &mut dyn FnMut(Event)) -> Result<Trainer<'a, M, T>> {
        let Sitting { plan, run, batches, strict, host, .. } = *sitting;
        plan.check_training_memory(Limit::here().as_ref())?;
        let lock = run.lock()?;
        let found = checkpoint::newest(run.path(), strict, |path| {
            let state = checkpoint::state(path, plan)?;
            let mut learner = fresh(plan, task, &host.device);
            checkpoint::restore(path, &state, &mut learner)?;
            Ok((learner, state))
        });
        // of two reasons to refuse the plan's is the clearer one
        let done = found.as_ref().ok().and_then(Option::as_ref).map_or(0, |found| found.value.1.step);
        let began = run.plan()?;
        if let Some(old) = &began {
            old.may_become(plan, done)?;
        }
        let (learner, state, saved) = match found? {
            Some(Found { path, value: (learner, state), notes }) => {
                notes.into_iter().for_each(|note| tell(Event::Note(note)));
                (learner, state, Some(path))
            }
            None if plan.origin.is_some() => {
                let message = format!("{} lacks the weights that the run begins with", run.path().display());
                return Err(Error::refused(
                    message,
                    "begin it again in another folder: kerple train --from RUN --out FOLDER",
                ));
            }
            None => (fresh(plan, task, &host.device), State::start(plan.course()), None),
        };
        let notes = [batches.remark().map(str::to_owned), validation_note(plan, batches.validation_rows())];
        notes.into_iter().flatten().for_each(|note| tell(Event::Note(note)));
        let commit = began.map_or_else(|| host.maker.commit.clone(), |old| old.commit);
        run.write_plan(&Plan { commit, ..plan.clone() })?;
        checkpoint::tidy(run.path(), plan.train.keep, state.step)?;
        if state.step < plan.steps {
            run.add_sitting(&sitting.row(state.step + 1))?;
        }
        let metrics = run.reopen_metrics(state.step)?;
        let events = EventFile::create(&run.events(), state.step)?;
        let trainer = Trainer { sitting, plan, learner, state, metrics, events, saved, fresh: Vec::new(), _lock: lock };
        if trainer.state.step == 0 {
            trainer.snapshot_kernels()?;
        }
        Ok(trainer)
    }

    /// One update; returns the loss and the gradient's global norm.
    fn step(&mut self) -> Result<(f64, f64)> {
        let Plan { train, .. } = self.plan;
        let rows = self.learner.rows(train.batch);
        let part = |rows| self.sitting.batches.batch(self.state.step, rows);
        let parts = task::parts(rows.clone(), train.micro_batch.unwrap_or(train.batch))?;
        let parts = parts.into_iter().map(part).collect::<Result<Vec<task::Batch>>>()?;
        let update = Update {
            learning_rate: self.plan.schedule().at(self.state.step),
            adam_step: train.first_adam_step + self.state.step,
        };
        let pass = Pass::training(self.plan.seed, self.state.step).at_row(rows.start);
        let Learned { loss, grad_norm } =
            self.learner.step(&parts, pass, update).map_err(|number| self.not_finite(number))?;
        self.state.step += 1;
        Ok((loss, grad_norm))
    }

    fn not_finite(&self, NotFinite { what, value }: NotFinite) -> Error {
        let hint = match &self.saved {
            Some(path) => format!("the last good checkpoint is {}; lower train.learning_rate", path.display()),
            None => "there is no checkpoint yet; lower train.learning_rate".to_owned(),
        };
        Error::NotFinite { step: self.state.step + 1, what, value, hint }
    }

    /// Writes a row if one is due: which steps have one does not depend on where sittings begin and end.
    fn log(&mut self, loss: f64, grad_norm: f64) -> Result<()> {
        let Plan { train, steps, .. } = self.plan;
        let step = self.state.step;
        let last = step == *steps;
        let validate = train.valid_every > 0 && (step.is_multiple_of(train.valid_every) || last);
        if !(validate || last || step == 1 || step.is_multiple_of(train.log_every)) {
            return Ok(());
        }
        let valid_loss = if validate { self.validate()? } else { None };
        let encoding = self.learner.model().encoding();
        let small = |values: &Vec<f64>| values.len() <= 1024;
        let mut sorted = std::mem::take(&mut self.fresh);
        sorted.sort_by(f64::total_cmp);
        let row = MetricsRow {
            step,
            loss,
            learning_rate: self.plan.schedule().at(step - 1),
            grad_norm,
            tokens: step * (train.batch * train.train_len) as u64,
            seconds: self.state.seconds,
            step_seconds: sorted[sorted.len() / 2],
            valid_loss,
            encoding: encoding.true_values().into_iter().filter(|(_, values)| small(values)).collect(),
        };
        self.metrics.push(&row)?;
        self.events.scalar(step, "loss/train", loss)?;
        self.events.scalar(step, "learning_rate", row.learning_rate)?;
        self.events.scalar(step, "grad_norm", grad_norm)?;
        self.events.scalar(step, "seconds_per_step", row.step_seconds)?;
        if let Some(valid) = valid_loss {
            self.events.scalar(step, "loss/valid", valid)?;
        }
        Ok(())
    }

    /// Mean loss of the validation sequences, a few at a time however many there are.
    fn validate(&self) -> Result<Option<f64>> {
        let batches = self.sitting.batches;
        let rows = batches.validation_rows();
        let at_once = (TOKENS_AT_ONCE / self.plan.sequence_len()).max(1);
        let model = parameters::without_autodiff(self.learner.model());
        let task = self.learner.task();
        let mut sum = 0.0;
        for start in (0..rows).step_by(at_once) {
            let batch = batches.validation(start..rows.min(start + at_once))?;
            sum += task.mean_loss(&model, &batch, &self.plan.evaluation_pass(start)) * batch.rows as f64;
        }
        Ok((rows > 0).then(|| sum / rows as f64))
    }

    /// Saves a checkpoint, after the rows that lead to it are on disk.
    fn save(&mut self) -> Result<()> {
        self.metrics.sync()?;
        let keep = self.plan.train.keep;
        self.saved = Some(checkpoint::save(self.sitting.run.path(), keep, &self.state, &self.learner)?);
        Ok(())
    }

    /// Adds the learned tables as they are now to `kernels.json`.
    fn snapshot_kernels(&self) -> Result<()> {
        let snapshot = snapshot(self.learner.model().encoding(), self.state.step);
        snapshot.map_or(Ok(()), |snapshot| self.sitting.run.add_kernels(snapshot))
    }
}

/// What to say of validation text that is shorter than was asked for.
fn validation_note(plan: &Plan, rows: usize) -> Option<String> {
    let train = &plan.train;
    let (wanted, len) = (train.valid_segments, plan.train_len);
    match rows {
        _ if train.valid_every == 0 || rows >= wanted => None,
        0 => Some(format!("there is no validation loss: the validation split is shorter than a sequence of {len}")),
        _ => Some(format!("the validation loss is over {rows} sequences, the split holds no {wanted} of {len} tokens")),
    }
}
