//! Checkpoints: weights and moments as safetensors, the rest as JSON; written aside, synced, renamed, checksummed.

use crate::error::{Error, Result};
use crate::learner::{Learner, Part};
use crate::model::Decoder;
use crate::task::LanguageModel;
use kerple_burn::parameters::{self, Named};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const MODEL: &str = "model.safetensors";
const MOMENTS: &str = "optimizer.safetensors";
const STATE: &str = "state.json";

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Updates done.
    pub step: u64,
    /// Training seconds so far, over all sittings.
    pub seconds: f64,
    /// Hash of the plan that was followed.
    pub plan: String,
    /// SHA-256 of the weights file.
    pub model_sha256: String,
    /// SHA-256 of the moments file.
    pub optimizer_sha256: String,
}

/// What a run trains.
pub type Trained = Learner<Decoder, LanguageModel>;

fn write(path: &Path, tensors: &[Named]) -> Result<String> {
    let view = |shape: &[usize], values| {
        TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(values)).expect("shapes fit their values")
    };
    let views = tensors.iter().map(|n| (n.name.as_str(), view(n.array.shape(), n.array.slice::<f32>())));
    let data = safetensors::serialize(views, None).expect("names are distinct");
    fs::write(path, &data).map_err(Error::io(path, "write"))?;
    sync(path)?;
    Ok(hex(&data))
}

fn hex(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(Error::io(path, "sync"))
}

/// Folder of checkpoints of a run.
pub fn folder(run: &Path) -> PathBuf {
    run.join("checkpoints")
}

/// Saves a checkpoint and removes all but the newest `keep`.
///
/// # Errors
/// What the file system refuses; earlier checkpoints are then intact.
pub fn save(run: &Path, keep: usize, state: &State, learner: &Trained) -> Result<PathBuf> {
    let all = folder(run);
    let (aside, place) = (all.join(".partial"), all.join(format!("step-{:08}", state.step)));
    let saved = write_aside(&aside, state, learner);
    if let Err(error) = saved {
        let _ = fs::remove_dir_all(&aside);
        return Err(error);
    }
    if place.exists() {
        fs::remove_dir_all(&place).map_err(Error::io(&place, "replace"))?;
    }
    fs::rename(&aside, &place).map_err(Error::io(&place, "rename to"))?;
    sync(&all)?;
    let mut steps = list(run)?;
    steps.truncate(steps.len().saturating_sub(keep));
    for (_, old) in steps {
        fs::remove_dir_all(&old).map_err(Error::io(&old, "remove"))?;
    }
    Ok(place)
}

fn write_aside(aside: &Path, state: &State, learner: &Trained) -> Result<()> {
    if aside.exists() {
        fs::remove_dir_all(aside).map_err(Error::io(aside, "remove"))?;
    }
    fs::create_dir_all(aside).map_err(Error::io(aside, "create"))?;
    let state = State {
        model_sha256: write(&aside.join(MODEL), &learner.stored(Part::Weights))?,
        optimizer_sha256: write(&aside.join(MOMENTS), &learner.stored(Part::Moments))?,
        ..state.clone()
    };
    let path = aside.join(STATE);
    let text = serde_json::to_string_pretty(&state).expect("a state is plain data");
    fs::write(&path, text).map_err(Error::io(&path, "write"))?;
    sync(&path)?;
    sync(aside)
}

/// Checkpoints of a run, oldest first.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(run: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let all = folder(run);
    if !all.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&all).map_err(Error::io(&all, "list"))?;
    let step = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
        Some((name, path))
    };
    let mut found: Vec<_> = entries.filter_map(|entry| step(entry.ok()?.path())).collect();
    found.sort();
    Ok(found)
}

struct Loaded {
    path: PathBuf,
    data: Vec<u8>,
}

impl Loaded {
    fn read(path: PathBuf, sha256: &str) -> Result<Loaded> {
        let data = fs::read(&path).map_err(Error::io(&path, "read"))?;
        if hex(&data) != sha256 {
            return Err(Error::damaged(
                &path,
                "the checksum does not match",
                "remove this checkpoint's folder to go on from the one before",
            ));
        }
        Ok(Loaded { path, data })
    }

    fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.data)
            .map_err(|error| Error::damaged(&self.path, error.to_string(), "remove this checkpoint's folder"))
    }
}

fn fill(loaded: &Loaded, tensors: &SafeTensors, name: &str, values: &mut [f32]) -> Result<()> {
    let view =
        tensors.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32 && view.data().len() == 4 * values.len());
    let Some(view) = view else {
        let message = format!("there is no tensor `{name}` of {} values", values.len());
        return Err(Error::damaged(&loaded.path, message, "this checkpoint belongs to another model"));
    };
    for (value, four) in values.iter_mut().zip(view.data().as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*four);
    }
    Ok(())
}

/// Reads the state of a checkpoint and refuses one of another plan.
///
/// # Errors
/// A damaged file, or a checkpoint of another plan.
pub fn state(checkpoint: &Path, plan_hash: &str) -> Result<State> {
    let path = checkpoint.join(STATE);
    let text = fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
    let state: State = serde_json::from_str(&text).map_err(|error| {
        Error::damaged(&path, error.to_string(), "remove this checkpoint's folder to go on from the one before")
    })?;
    if state.plan != plan_hash {
        return Err(Error::damaged(
            &path,
            format!("the checkpoint follows plan {}, the run asks for {}", short(&state.plan), short(plan_hash)),
            "use another --out folder, or the run file this folder was started with",
        ));
    }
    Ok(state)
}

fn short(hash: &str) -> &str {
    &hash[..hash.len().min(12)]
}

/// Puts a checkpoint's weights into `model`.
///
/// # Errors
/// A damaged file, or tensors of another model.
pub fn load_model(checkpoint: &Path, state: &State, model: Decoder) -> Result<Decoder> {
    let loaded = Loaded::read(checkpoint.join(MODEL), &state.model_sha256)?;
    let tensors = loaded.tensors()?;
    let (model, filled) = parameters::load(model, |name, values| fill(&loaded, &tensors, name, values));
    filled.map(|()| model)
}

/// Puts a checkpoint's weights and moments into `learner`.
///
/// # Errors
/// A damaged file, or tensors of another model.
pub fn restore(checkpoint: &Path, state: &State, learner: &mut Trained) -> Result<()> {
    for (part, file, sha256) in
        [(Part::Weights, MODEL, &state.model_sha256), (Part::Moments, MOMENTS, &state.optimizer_sha256)]
    {
        let loaded = Loaded::read(checkpoint.join(file), sha256)?;
        let tensors = loaded.tensors()?;
        learner.restore(part, |name, values| fill(&loaded, &tensors, name, values))?;
    }
    Ok(())
}
