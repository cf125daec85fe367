//! Checkpoints of GPT-NeoX, as the runs of KERPLE wrote them.
//!
//! ```text
//! latest                                     the name of a step's folder
//! STEP/configs/*.yml                         the settings of the run
//! STEP/layer_NN-model_RR-model_states.pt     layer 0: embedding; 2..: blocks; then the last norm and the head; RR: tensor-parallel rank
//! STEP/mp_rank_RR_model_states.pt            arguments of the run; without pipeline stages, all tensors
//! ```
//!
//! Pickles are read, never executed: `pytorch-reader` interprets how tensors are built and treats
//! everything else as an opaque value.

mod keys;
mod merge;
mod settings;
mod stored;

use super::short::short;
use super::tokens;
use super::{ImportOptions, Imported, ModelDescription, assemble};
use kerple_lm::{Error, Result};
use kerple_run::ModelFamily;
use settings::NeoxSettings;
use std::path::{Path, PathBuf};
use stored::NeoxTensors;

/// The file that names the newest step.
const LATEST: &str = "latest";
/// The first rank's facts, in the folder of every step.
const FACTS: &str = "mp_rank_00_model_states.pt";

/// Whether a folder is a GPT-NeoX run, or one of its steps.
///
/// # Errors
/// A disk that does not answer.
pub fn is_run(folder: &Path) -> Result<bool> {
    for name in [LATEST, FACTS] {
        let path = folder.join(name);
        if kerple_run::files::is_there(&path).map_err(Error::io(&path, "look for"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The folder of the step that `latest` names, or of the step itself.
fn step_folder(folder: &Path) -> Result<PathBuf> {
    let latest = folder.join(LATEST);
    if !kerple_run::files::is_there(&latest).map_err(Error::io(&latest, "look for"))? {
        return Ok(folder.to_owned());
    }
    let text = super::config::read_text(&latest, super::config::DESCRIPTION)?;
    let name = text.trim();
    if !super::tensors::is_name(name) {
        let shown: String = name.chars().take(60).collect();
        let message = format!("`{shown}` cannot name a folder next to this file");
        return Err(Error::damaged(&latest, message, "give the folder of the step itself"));
    }
    let step = folder.join(name);
    if kerple_run::files::is_folder(&step).map_err(Error::io(&step, "look for"))? {
        Ok(step)
    } else {
        let message = format!("it names {name}, which does not exist");
        Err(Error::damaged(&latest, message, "give the folder of the step itself"))
    }
}

/// Imports a checkpoint as the run `out`.
///
/// # Errors
/// As [`super::import`].
pub fn import(folder: &Path, out: &Path, options: &ImportOptions) -> Result<Imported> {
    let step = step_folder(folder)?;
    let settings = NeoxSettings::read(&step, options.pos_emb.as_deref())?;
    let stored = NeoxTensors::open(&step, &settings)?;
    let mut described = ModelDescription::new(ModelFamily::Kerple, settings.shape(&stored)?);
    described.place = settings.place().to_owned();
    described.notes = settings.notes(&stored)?;
    let tokenizer = tokens::of_folder(folder, options, &mut described)?;
    assemble(described, &stored, tokenizer, out)
}

/// A refusal of what a file of settings says.
fn refuse(path: &Path, key: &str, value: &str, why: &str) -> Error {
    let (key, value) = (short(key), short(value));
    Error::Config {
        place: path.display().to_string(),
        message: format!("{key} = {value}: {why}"),
        hint: "docs/interchange.md lists what can be imported of GPT-NeoX".to_owned(),
    }
}
