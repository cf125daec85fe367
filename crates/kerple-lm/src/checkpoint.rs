//! Checkpoints: weights and optimizer state as safetensors, the rest as JSON. They are written to a
//! temporary folder, synced, renamed and checksummed.

use crate::error::{Error, Result};
use crate::objective::Objective;
use crate::plan::Plan;
use crate::renamed;
use crate::tensors::{self, PART, TensorFile, TensorSpec, ValueSink};
use crate::train_state::{CheckpointPart, TrainState};
use burn::module::Module;
use kerple_burn::host_array::HostArray;
use kerple_burn::parameters::{self, NamedParameter, ParamGroupOverrides};
use kerple_data::fingerprint;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const MODEL: &str = "model.safetensors";
const MOMENTS: &str = "optimizer.safetensors";
const STATE: &str = renamed::STATE_FILE;

/// A checkpoint in the making, and one that is being removed. Both are this process's: it holds the run's lock.
const ASIDE: &str = ".partial";
const DISCARDED: &str = ".replaced";

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointState {
    /// Updates done.
    pub step: u64,
    /// Training seconds so far, over all sessions.
    pub seconds: f64,
    /// What decides the updates: [`Plan::trajectory_hash`].
    pub trajectory_hash: String,
    /// SHA-256 of the weights file.
    pub model_sha256: String,
    /// SHA-256 of the moments file; empty where there is none, before the first update of a run whose weights were not drawn.
    pub optimizer_sha256: String,
    /// Where the model was, and the type of its numbers; absent in checkpoints that did not say so yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// See `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// SHA-256 of this value as JSON, with this key empty.
    pub sha256: String,
}

impl CheckpointState {
    /// Where a run of this trajectory stands before its first update.
    pub fn start(trajectory: String) -> CheckpointState {
        CheckpointState {
            step: 0,
            seconds: 0.0,
            trajectory_hash: trajectory,
            model_sha256: String::new(),
            optimizer_sha256: String::new(),
            device: None,
            precision: None,
            sha256: String::new(),
        }
    }

    /// The files of a checkpoint and their checksums: weights, and moments where there are some.
    fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [(MODEL, self.model_sha256.as_str()), (MOMENTS, self.optimizer_sha256.as_str())];
        all.into_iter().filter(|(_, sha256)| !sha256.is_empty())
    }

    fn sealed(self) -> CheckpointState {
        CheckpointState { sha256: self.digest(), ..self }
    }

    fn digest(&self) -> String {
        let open = CheckpointState { sha256: String::new(), ..self.clone() };
        fingerprint(&serde_json::to_vec(&open).expect("a state is plain data"))
    }
}

/// An array's values, a part after the other.
pub(crate) fn in_parts(array: &HostArray, take: &mut ValueSink<'_>) -> Result<()> {
    array.slice::<f32>().chunks(PART).try_for_each(|part| take(part.to_vec()))
}

fn write(path: &Path, all: &[NamedParameter]) -> Result<String> {
    let slots: Vec<TensorSpec> =
        all.iter().map(|n| TensorSpec { name: n.name.clone(), shape: n.array.shape().to_vec() }).collect();
    tensors::write(path, &slots, |number, take| in_parts(&all[number].array, take))
}

fn sync(folder: &Path) -> Result<()> {
    kerple_run::files::sync_folder(folder).map_err(Error::io(folder, "sync"))
}

/// Folder of checkpoints of a run.
pub fn folder(run: &Path) -> PathBuf {
    run.join("checkpoints")
}

/// The folder of the checkpoint after so many updates.
pub(crate) fn place(run: &Path, step: u64) -> PathBuf {
    folder(run).join(format!("step-{step:08}"))
}

/// Saves a checkpoint and removes all but the newest `keep`, and any of later steps, which are
/// damaged or belong to an abandoned session.
///
/// At every moment the checkpoint that the run went on from is whole: what is removed is removed after the new one is in its
/// place.
///
/// # Errors
/// What the file system refuses, or a value that is not finite; earlier checkpoints are then intact.
pub fn save<M: Module + ParamGroupOverrides, T: Objective<M>>(
    run: &Path,
    keep: usize,
    state: &CheckpointState,
    train_state: &TrainState<M, T>,
) -> Result<PathBuf> {
    let all = folder(run);
    let (aside, place) = (all.join(ASIDE), place(run, state.step));
    let saved = write_aside(&aside, state, train_state);
    if let Err(error) = saved {
        let _ = fs::remove_dir_all(&aside);
        return Err(error);
    }
    if present(&place)? {
        // only a damaged one can be here: the run went on from an earlier checkpoint
        discard(&place)?;
    }
    fs::rename(&aside, &place).map_err(Error::io(&place, "rename to"))?;
    sync(&all)?;
    list(run)?.iter().filter(|(step, _)| *step > state.step).try_for_each(|(_, later)| discard(later))?;
    tidy(run, keep, state.step)?;
    Ok(place)
}

/// Removes all but the newest `keep` of the checkpoints up to `step`, and what a kill has left of making or removing others.
///
/// # Errors
/// What the file system refuses.
pub fn tidy(run: &Path, keep: usize, step: u64) -> Result<()> {
    let all = folder(run);
    [ASIDE, DISCARDED].iter().try_for_each(|left| remove(&all.join(left)))?;
    let mut steps = list(run)?;
    steps.retain(|(found, _)| *found <= step);
    steps.truncate(steps.len().saturating_sub(keep));
    steps.iter().try_for_each(|(_, old)| discard(old))
}

/// Removes a checkpoint; one that is removed in part is none any more.
fn discard(checkpoint: &Path) -> Result<()> {
    let discarded = checkpoint.with_file_name(DISCARDED);
    remove(&discarded)?;
    fs::rename(checkpoint, &discarded).map_err(Error::io(checkpoint, "remove"))?;
    remove(&discarded)
}

/// Whether something is at `path`. A disk that does not answer is an error: what could not be seen is not absent.
pub(crate) fn present(path: &Path) -> Result<bool> {
    kerple_run::files::is_there(path).map_err(Error::io(path, "look for"))
}

fn remove(path: &Path) -> Result<()> {
    if present(path)? {
        fs::remove_dir_all(path).map_err(Error::io(path, "remove"))?;
    }
    Ok(())
}

/// Refuses values that could not be gone on from.
fn check_finite(step: u64, tensors: &[NamedParameter]) -> Result<()> {
    for NamedParameter { name, array } in tensors {
        if let Some(value) = array.slice::<f32>().iter().find(|value| !value.is_finite()) {
            let hint = "no checkpoint was saved; lower train.learning_rate or train.weight_decay".to_owned();
            return Err(Error::NotFinite { step, what: name.clone(), value: f64::from(*value), hint });
        }
    }
    Ok(())
}

fn write_aside<M: Module + ParamGroupOverrides, T: Objective<M>>(
    aside: &Path,
    state: &CheckpointState,
    train_state: &TrainState<M, T>,
) -> Result<()> {
    remove(aside)?;
    fs::create_dir_all(aside).map_err(Error::io(aside, "create"))?;
    let save = |part: CheckpointPart, file: &str| {
        let tensors = train_state.stored(part);
        check_finite(state.step, &tensors)?;
        write(&aside.join(file), &tensors)
    };
    let state = CheckpointState {
        model_sha256: save(CheckpointPart::Weights, MODEL)?,
        optimizer_sha256: save(CheckpointPart::Moments, MOMENTS)?,
        ..state.clone()
    };
    write_state(aside, state)
}

fn write_state(aside: &Path, state: CheckpointState) -> Result<()> {
    let path = aside.join(STATE);
    let text = serde_json::to_string_pretty(&state.sealed()).expect("a state is plain data");
    kerple_run::files::write_within(&path, text.as_bytes()).map_err(Error::io(&path, "write"))?;
    sync(aside)
}

/// Writes the checkpoint of step 0, without optimizer state, for a run whose weights are not drawn
/// at random, in a folder that has none. `write` puts the weights into a file, and `trajectory` gives
/// the trajectory of a run that is initialised from weights with this SHA-256. Returns the file.
///
/// # Errors
/// The first error of `write` or `trajectory`, and what the file system refuses; there is then no checkpoint.
pub fn create_initial(
    run: &Path,
    write: impl FnOnce(&Path) -> Result<String>,
    trajectory: impl FnOnce(&str) -> Result<String>,
) -> Result<TensorFile> {
    let all = folder(run);
    let (aside, place) = (all.join(ASIDE), all.join(format!("step-{:08}", 0)));
    let make = || {
        remove(&aside)?;
        fs::create_dir_all(&aside).map_err(Error::io(&aside, "create"))?;
        let model_sha256 = write(&aside.join(MODEL))?;
        let state = CheckpointState { model_sha256, ..CheckpointState::start(String::new()) };
        let trajectory_hash = trajectory(&state.model_sha256)?;
        write_state(&aside, CheckpointState { trajectory_hash, ..state })?;
        fs::rename(&aside, &place).map_err(Error::io(&place, "rename to"))
    };
    make().inspect_err(|_| _ = fs::remove_dir_all(&aside))?;
    sync(&all)?;
    TensorFile::open(&place.join(MODEL), AGAIN)
}

/// Checkpoints of a run, oldest first.
///
/// # Errors
/// A folder that cannot be read; two folders of one step.
pub fn list(run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let all = folder(run);
    if !present(&all)? {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&all).map_err(Error::io(&all, "list"))? {
        let path = entry.map_err(Error::io(&all, "list"))?.path();
        found.extend(step_of(&path).map(|step| (step, path)));
    }
    found.sort();
    if let Some([(step, path), (_, other)]) = found.array_windows().find(|[(step, _), (other, _)]| step == other) {
        let message = format!("{} and {} are both of step {step}", path.display(), other.display());
        return Err(Error::refused(message, "keep the folder that belongs to the run, and remove the other"));
    }
    Ok(found)
}

/// The step a checkpoint's folder is named after.
fn step_of(checkpoint: &Path) -> Option<u64> {
    checkpoint.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// What to do about a damaged checkpoint.
const AGAIN: &str = "remove this checkpoint's folder to resume from the previous one";

/// Opens a file whose checksum is what it should be.
fn open(path: &Path, sha256: &str) -> Result<TensorFile> {
    if tensors::sha256(path)? != sha256 {
        return Err(Error::damaged(path, "the checksum does not match", AGAIN));
    }
    TensorFile::open(path, AGAIN)
}

pub(crate) fn fill(file: &TensorFile, name: &str, values: &mut [f32]) -> Result<()> {
    if file.read_f32(name, values)? {
        return Ok(());
    }
    let message = format!("tensor `{name}` with {} values is missing", values.len());
    Err(Error::damaged(
        file.path(),
        message,
        "the checkpoint belongs to another model; use the run \
        folder it was saved in",
    ))
}

/// Reads the state of a checkpoint and refuses one that does not follow a plan.
///
/// # Errors
/// A damaged file, or one of another step than its folder's name, or of another trajectory.
pub fn state(checkpoint: &Path, plan: &Plan) -> Result<CheckpointState> {
    let state = read_state(checkpoint)?;
    let trajectory = plan.trajectory_hash();
    if state.trajectory_hash == trajectory {
        return Ok(state);
    }
    let message = format!(
        "the checkpoint belongs to plan {}, the run to plan {}",
        short(&state.trajectory_hash),
        short(&trajectory)
    );
    let hint = "restore the checkpoint and the run file that belong together";
    Err(Error::refused(format!("{}: {message}", checkpoint.join(STATE).display()), hint))
}

fn read_state(checkpoint: &Path) -> Result<CheckpointState> {
    let path = checkpoint.join(STATE);
    let text = kerple_run::files::read_text(&path).map_err(Error::io(&path, "read"))?;
    let damaged = |message: String| Error::damaged(&path, message, AGAIN);
    let state: CheckpointState = serde_json::from_str(&text).map_err(|error| {
        let content = serde_json::from_str(&text).unwrap_or_default();
        let renamed = renamed::hint(renamed::STATE_FILE, &content);
        Error::damaged(&path, error.to_string(), renamed.as_deref().unwrap_or(AGAIN))
    })?;
    if state.sha256 != state.digest() {
        return Err(damaged("the checksum does not match".to_owned()));
    }
    if Some(state.step) != step_of(checkpoint) {
        return Err(damaged(format!("its step {} does not match the name of its folder", state.step)));
    }
    Ok(state)
}

/// The beginning of a hash, which may be anything that a file held.
fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// Compares all checksums of a checkpoint with its files, and its trajectory with a plan's; returns
/// whether it has optimizer state.
///
/// # Errors
/// What is damaged, or of another trajectory.
pub fn verify(checkpoint: &Path, plan: Option<&Plan>) -> Result<bool> {
    let state = match plan {
        Some(plan) => state(checkpoint, plan)?,
        None => read_state(checkpoint)?,
    };
    for (file, sha256) in state.files() {
        open(&checkpoint.join(file), sha256)?;
    }
    Ok(!state.optimizer_sha256.is_empty())
}

/// What [`newest`] found.
#[derive(Debug)]
pub struct NewestCheckpoint<T> {
    /// The checkpoint.
    pub path: PathBuf,
    /// What was read from it.
    pub value: T,
    /// Damaged checkpoints that were passed over, for the user.
    pub notes: Vec<String>,
}

/// The newest checkpoint that `load` can read. Damaged ones are skipped with a note, or refused if
/// `strict`; `None` where there is no checkpoint at all.
///
/// # Errors
/// The first error, when no checkpoint can be read: a run never silently starts again from nothing.
pub fn newest<T>(
    run: &Path,
    strict: bool,
    mut load: impl FnMut(&Path) -> Result<T>,
) -> Result<Option<NewestCheckpoint<T>>> {
    loop {
        let listed = list(run)?;
        let found = newest_of(&listed, strict, &mut load);
        // a process that trains here may have replaced what was just listed; it does so every many steps, so this ends
        if !matches!(&found, Err(error) if is_damage(error)) || list(run)? == listed {
            return found;
        }
    }
}

fn newest_of<T>(
    listed: &[(u64, PathBuf)],
    strict: bool,
    load: &mut dyn FnMut(&Path) -> Result<T>,
) -> Result<Option<NewestCheckpoint<T>>> {
    let (mut notes, mut first) = (Vec::new(), None);
    for (step, path) in listed.iter().rev() {
        match load(path) {
            Ok(value) => return Ok(Some(NewestCheckpoint { path: path.clone(), value, notes })),
            Err(error) if strict && listed.len() == 1 => return Err(of_the_only(error)),
            Err(error) if strict || !is_damage(&error) => return Err(error),
            Err(error) => {
                notes.push(format!("skipped the checkpoint of step {step}: {error}"));
                first.get_or_insert(error);
            }
        }
    }
    first.map_or(Ok(None), |error| Err(of_the_only(error)))
}

/// The same of a checkpoint beside which there is no whole one.
fn of_the_only(error: Error) -> Error {
    const HINT: &str = "restore the checkpoint from a copy; without one, train again in another --out folder";
    match error {
        Error::Damaged { path, place, message, .. } => Error::Damaged { path, place, message, hint: HINT.to_owned() },
        other => other,
    }
}

/// Whether an error says that a checkpoint is not whole.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::Damaged { .. } => true,
        // absent, or no regular file
        Error::Io { source, .. } => matches!(source.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput),
        _ => false,
    }
}

/// Puts a checkpoint's weights into `model`.
///
/// # Errors
/// A damaged file, or tensors of another model.
pub fn load_model<M: Module>(checkpoint: &Path, state: &CheckpointState, model: M) -> Result<M> {
    let file = open(&checkpoint.join(MODEL), &state.model_sha256)?;
    let (model, filled) = parameters::load(model, |name, values| fill(&file, name, values));
    filled.map(|()| model)
}

/// The weights of a checkpoint, one at a time.
///
/// # Errors
/// A damaged file.
pub fn weights(checkpoint: &Path, state: &CheckpointState) -> Result<TensorFile> {
    open(&checkpoint.join(MODEL), &state.model_sha256)
}

/// Puts a checkpoint's weights and moments into `train_state`, which keeps fresh moments where there are none.
///
/// # Errors
/// A damaged file, or tensors of another model.
pub fn restore<M: Module + ParamGroupOverrides, T: Objective<M>>(
    checkpoint: &Path,
    state: &CheckpointState,
    train_state: &mut TrainState<M, T>,
) -> Result<()> {
    for (part, (file, sha256)) in [CheckpointPart::Weights, CheckpointPart::Moments].into_iter().zip(state.files()) {
        let file = open(&checkpoint.join(file), sha256)?;
        train_state.restore(part, |name, values| fill(&file, name, values))?;
    }
    Ok(())
}
