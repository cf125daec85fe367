//! The training loop: resumable to the bit, stoppable at any step, never silent about a number that is not one.

use crate::checkpoint::{self, State};
use crate::error::{Error, Result};
use crate::events::EventFile;
use crate::learner::{self, Learned, Learner, NotFinite, Update};
use crate::model::Decoder;
use crate::plan::Plan;
use crate::task::{self, LanguageModel, Task};
use burn::tensor::Device;
use kerple_burn::parameters;
use kerple_burn::pass::Pass;
use kerple_data::Batch;
use kerple_report::record::{self, Journal, KernelSnapshot, MetricsRow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Where training sequences come from: pure functions, so resuming needs no saved cursor.
pub trait Batches {
    /// The batch of an update, counted from 0.
    ///
    /// # Errors
    /// Text that can no longer be read.
    fn batch(&self, step: u64) -> Result<Batch>;
    /// Sequences to measure the validation loss on, always the same; `None` when there is no text for it.
    fn validation(&self) -> Option<Batch>;
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
struct Trainer<'a> {
    plan: &'a Plan,
    run: &'a Path,
    batches: &'a dyn Batches,
    learner: checkpoint::Trained,
    state: State,
    metrics: Journal<MetricsRow>,
    events: EventFile,
    saved: Option<PathBuf>,
}

/// Trains `plan` in the folder `run` until it is complete or `stop` is set; the same folder again resumes.
///
/// # Errors
/// What cannot be read or written, a checkpoint of another plan, or a number that is not one.
pub fn train(
    plan: &Plan,
    run: &Path,
    batches: &dyn Batches,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome> {
    let mut trainer = Trainer::open(plan, run, batches)?;
    let (started, first) = (Instant::now(), trainer.state.step);
    let mut loss = None;
    let mut fresh = Vec::new();
    while trainer.state.step < plan.steps {
        let clock = Instant::now();
        let (step_loss, norm) = trainer.step()?;
        let seconds = clock.elapsed().as_secs_f64();
        trainer.state.seconds += seconds;
        fresh.push(seconds);
        loss = Some(step_loss);
        let step = trainer.state.step;
        let done = step == plan.steps;
        if step.is_multiple_of(plan.train.log_every) || step == first + 1 || done {
            trainer.log(step_loss, norm, &fresh)?;
            fresh.clear();
        }
        progress(&Progress {
            step,
            steps: plan.steps,
            loss: step_loss,
            tokens_per_second: (plan.train.batch * plan.train_len) as f64 / seconds,
            seconds_left: started.elapsed().as_secs_f64() / (step - first) as f64 * (plan.steps - step) as f64,
        });
        let stopping = stop.load(Ordering::Relaxed);
        if step.is_multiple_of(plan.train.checkpoint_every) || done || stopping {
            trainer.save()?;
        }
        if stopping {
            break;
        }
    }
    let State { step, seconds, .. } = trainer.state;
    Ok(Outcome { step, finished: step == plan.steps, loss, seconds })
}

/// The newest checkpoint of a finished or running run, its model and plan.
///
/// # Errors
/// A folder without a plan or checkpoint, or damaged files.
pub fn load(run: &Path, device: &Device) -> Result<(Plan, State, Decoder)> {
    let plan = read_plan(run)?.ok_or_else(|| {
        let hint = "give the --out folder of `kerple train`";
        Error::refused(format!("{} holds no run: there is no plan.json", run.display()), hint)
    })?;
    let (_, newest) = checkpoint::list(run)?.pop().ok_or_else(|| {
        let hint = "train it first: `kerple train --config FILE --out RUN`";
        Error::refused(format!("{} has no checkpoint yet", run.display()), hint)
    })?;
    let state = checkpoint::state(&newest, &plan.hash)?;
    let model = checkpoint::load_model(&newest, &state, Decoder::new(&plan, device))?;
    Ok((plan, state, model))
}

/// The plan saved in a run folder, if there is one.
///
/// # Errors
/// A plan that cannot be read.
pub fn read_plan(run: &Path) -> Result<Option<Plan>> {
    let path = run.join("plan.json");
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
    let hint = "the file was changed by hand, or written by another version";
    let plan: Plan = serde_json::from_str(&text).map_err(|error| Error::damaged(&path, error.to_string(), hint))?;
    match plan.is_genuine() {
        true => Ok(Some(plan)),
        false => Err(Error::damaged(&path, "the hash does not match the settings", hint)),
    }
}

impl<'a> Trainer<'a> {
    fn open(plan: &'a Plan, run: &'a Path, batches: &'a dyn Batches) -> Result<Trainer<'a>> {
        std::fs::create_dir_all(run).map_err(Error::io(run, "create"))?;
        match read_plan(run)? {
            Some(old) if old.hash != plan.hash => {
                return Err(Error::refused(
                    format!(
                        "{} holds a run of another plan ({} instead of {})",
                        run.display(),
                        &old.hash[..12],
                        &plan.hash[..12]
                    ),
                    "use another --out folder, or the run file this folder was started with",
                ));
            }
            _ => {
                record::write_json(&run.join("plan.json"), plan)?;
            }
        }
        let model = Decoder::new(plan, &crate::device().autodiff());
        let mut learner = Learner::new(model, LanguageModel, learner::settings(plan));
        let mut state = State {
            step: 0,
            seconds: 0.0,
            plan: plan.hash.clone(),
            model_sha256: String::new(),
            optimizer_sha256: String::new(),
        };
        let newest = checkpoint::list(run)?.pop().map(|(_, path)| path);
        if let Some(path) = &newest {
            state = checkpoint::state(path, &plan.hash)?;
            checkpoint::restore(path, &state, &mut learner)?;
        }
        let metrics = reopen_metrics(&run.join("metrics.jsonl"), state.step)?;
        let events = EventFile::create(&run.join("events"), state.step)?;
        let trainer = Trainer { plan, run, batches, learner, state, metrics, events, saved: newest };
        if trainer.state.step == 0 {
            trainer.snapshot_kernels()?;
        }
        Ok(trainer)
    }

    /// One update; returns the loss and the gradient's global norm.
    fn step(&mut self) -> Result<(f64, f64)> {
        let Plan { train, .. } = self.plan;
        let batch = task::Batch::from(self.batches.batch(self.state.step)?);
        let parts = batch.split(train.micro_batch.unwrap_or(train.batch))?;
        let update = Update {
            learning_rate: self.plan.schedule().at(self.state.step),
            adam_step: train.first_adam_step + self.state.step,
        };
        let pass = Pass::training(self.plan.seed, self.state.step);
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

    fn log(&mut self, loss: f64, grad_norm: f64, fresh: &[f64]) -> Result<()> {
        let Plan { train, .. } = self.plan;
        let step = self.state.step;
        let due = train.valid_every > 0 && (step.is_multiple_of(train.valid_every) || step == self.plan.steps);
        let valid_loss = if due { self.validate() } else { None };
        let encoding = &self.learner.model().encoding;
        let names = encoding.encoding().parameters(encoding.geometry()).into_iter().map(|parameter| parameter.name);
        let small = |values: &Vec<f64>| values.len() <= 1024;
        let mut sorted = fresh.to_vec();
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
            encoding: names.zip(encoding.numbers()).filter(|(_, values)| small(values)).collect(),
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

    fn validate(&self) -> Option<f64> {
        let batch = self.batches.validation()?;
        let model = parameters::without_autodiff(self.learner.model());
        let pass = Pass::evaluation(self.plan.seed);
        let mean = self.learner.task().loss(&model, &batch.into(), &pass);
        Some(f64::from(mean.into_scalar::<f32>()))
    }

    fn save(&mut self) -> Result<()> {
        let path = checkpoint::save(self.run, self.plan.train.keep, &self.state, &self.learner)?;
        self.saved = Some(path);
        self.snapshot_kernels()
    }

    /// Adds the learned tables as they are now to `kernels.json`.
    fn snapshot_kernels(&self) -> Result<()> {
        let path = self.run.join("kernels.json");
        let Some(snapshot) = snapshot(self.learner.model(), self.state.step) else { return Ok(()) };
        let mut all: Vec<KernelSnapshot> = if path.exists() { record::read_json(&path)? } else { Vec::new() };
        all.retain(|old| old.step < snapshot.step);
        all.push(snapshot);
        Ok(record::write_json(&path, &all)?)
    }
}

/// Opens the metrics for appending, without rows of steps that the checkpoint has not seen.
fn reopen_metrics(path: &Path, step: u64) -> Result<Journal<MetricsRow>> {
    let mut journal = Journal::open(path)?;
    let rows = record::read_rows::<MetricsRow>(path)?.rows;
    let kept = rows.iter().filter(|row| row.step <= step).count();
    if kept < rows.len() {
        std::fs::remove_file(path).map_err(Error::io(path, "rewrite"))?;
        journal = Journal::open(path)?;
        rows[..kept].iter().try_for_each(|row| journal.push(row))?;
    }
    Ok(journal)
}

/// Distances at which learned kernels are recorded: all up to 64, then about 24 an octave-less decade, to 20480.
fn recorded_distances() -> Vec<u64> {
    let mut distances: Vec<u64> = (0..=64).collect();
    let mut d = 64.0f64;
    while d < 20_480.0 {
        d *= 1.08;
        distances.push((d as u64).min(20_480));
    }
    distances.dedup();
    distances
}

fn snapshot(model: &Decoder, step: u64) -> Option<KernelSnapshot> {
    let distances = recorded_distances();
    let len = 20_481;
    let table = model.encoding.table(len);
    let pick = |rows: &Option<Vec<f64>>| {
        let rows = rows.as_ref()?;
        let row = |row: &[f64]| distances.iter().map(|d| row[*d as usize]).collect::<Vec<_>>();
        Some(rows.chunks(len).map(row).collect::<Vec<_>>())
    };
    let effective = |row: &[f64]| row.iter().position(|value| *value < -2.0).map(|d| d as u64);
    let effective_length = table.bias.iter().flat_map(|rows| rows.chunks(len).map(effective)).collect();
    let (bias, weight) = (pick(&table.bias), pick(&table.weight));
    (bias.is_some() || weight.is_some()).then_some(KernelSnapshot { step, distances, bias, weight, effective_length })
}
