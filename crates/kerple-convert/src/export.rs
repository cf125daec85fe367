//! Exports runs as folders that transformers loads.
//!
//! A model is exported as the first architecture that can represent it: that of its origin, one
//! that transformers has built in, or kerple's own, whose Python code is in the folder with the
//! weights. Nothing is approximated: if an architecture cannot represent a setting, the next one is
//! tried; if none can, the export is refused and names the setting.
//!
//! | file | holds |
//! |---|---|
//! | `config.json`, `generation_config.json` | sizes, choices, special tokens |
//! | `model.safetensors`, or shards and their index | weights, by the table of [`layout`](crate::layout) |
//! | `tokenizer.json`, `tokenizer_config.json` | the tokenizer, under a class that keeps it as it is |
//! | `*_kerple.py` | the model in torch, where the architecture is kerple's |
//! | `README.md` | how to load it, and what it is |

pub(crate) mod config;
pub(crate) mod drawn;
mod forms;
mod inkling;
mod native;
mod readme;
#[cfg(test)]
mod tests;
mod tokens;
mod weights;

use crate::ModelFamily;
use kerple_core::encoding::Method;
use kerple_lm::checkpoint;
use kerple_lm::plan::{LONGEST_SEQUENCE, Plan};
use kerple_lm::run::RunFolder;
use kerple_lm::{Error, Result};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use tokens::ExportTokens;
pub use weights::ExportPrecision;

/// How the name of a folder ends while it is made.
const STATE: &str = "export";

/// The Python code of kerple's own architecture.
const PYTHON: [(&str, &str); 6] = [
    ("configuration_kerple.py", include_str!("export/python/configuration_kerple.py")),
    ("modeling_kerple.py", include_str!("export/python/modeling_kerple.py")),
    ("attention_kerple.py", include_str!("export/python/attention_kerple.py")),
    ("positions_kerple.py", include_str!("export/python/positions_kerple.py")),
    ("content_kerple.py", include_str!("export/python/content_kerple.py")),
    ("drawn_kerple.py", include_str!("export/python/drawn_kerple.py")),
];

/// The options of an export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    /// Type of the stored weights.
    pub precision: ExportPrecision,
    /// Most bytes of a weight file; a larger tensor has its own file.
    pub max_shard_size: u64,
    /// Rows of fixed positions to store, so that a sinusoidal model can be exported as GPT-2.
    pub positions: Option<usize>,
    /// The architecture; if absent, the first that can represent the model.
    pub family: Option<ModelFamily>,
}

impl Default for ExportOptions {
    fn default() -> Self {
        ExportOptions { precision: ExportPrecision::F32, max_shard_size: 50_000_000_000, positions: None, family: None }
    }
}

/// The result of an export.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// The architecture.
    pub family: ModelFamily,
    /// Names of the files.
    pub files: Vec<String>,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Writes the newest checkpoint of a run as a folder that transformers loads, as a whole or not at
/// all.
///
/// # Errors
/// A run of a task, or one without a checkpoint; a setting that no architecture, or not the
/// requested one, can represent, by its key; positions that the export cannot store; an existing
/// destination; errors of the disk.
pub fn export(run: &RunFolder, to: &Path, options: &ExportOptions) -> Result<Exported> {
    let plan = run.existing_plan()?;
    if let Some(task) = &plan.data.task {
        let message = format!("{} contains a run of the task {}", run.path().display(), task.facts().name);
        return Err(Error::refused(message, "give a run that was trained on text"));
    }
    let chosen = family_config(&plan, options)?;
    let found =
        checkpoint::newest(run.path(), false, |path| checkpoint::weights(path, &checkpoint::state(path, &plan)?))?;
    let Some(found) = found else {
        let hint = "train it first: `kerple train --config FILE --out RUN`";
        return Err(Error::refused(format!("{} has no checkpoint yet", run.path().display()), hint));
    };
    let mut notes = [found.notes.clone(), chosen.notes.clone()].concat();
    let tokens = ExportTokens::of(run, &plan, &mut notes)?;
    let folder = ExportFolder::begin(to)?;
    let mut config = chosen.config.clone();
    let file = &found.value;
    let drawn = match chosen.family {
        ModelFamily::Kerple => drawn::tensors(&plan, |name, len| weights::read(file, name, len))?,
        _ => Vec::new(),
    };
    drawn::list(&drawn, &mut config);
    let tensors = weights::ExportTensors::new(chosen.family, &plan, file, drawn, options);
    notes.extend(tensors.beyond_shards(options));
    config.extend(tokens.ids());
    let name = options.precision.torch();
    config.extend([("dtype", name), ("torch_dtype", name)].map(|(key, value)| (key.to_owned(), Value::from(value))));
    let bytes = tensors.write(&folder, options)?;
    folder.write_json("config.json", &Value::Object(config))?;
    folder.write_json("generation_config.json", &Value::Object(tokens.ids()))?;
    tokens.write(&folder, &plan)?;
    if chosen.family == ModelFamily::Kerple {
        PYTHON.iter().try_for_each(|(name, text)| folder.write(name, text.as_bytes()))?;
    }
    folder.write("README.md", readme::text(&chosen, &plan, &tokens).as_bytes())?;
    let files = folder.end()?;
    Ok(Exported { family: chosen.family, files, bytes, notes })
}

/// What an architecture can represent, or the setting that it cannot.
type Representable<T> = std::result::Result<T, String>;

/// A model as the configuration of an architecture.
#[derive(Clone, Debug)]
pub(crate) struct FamilyConfig {
    family: ModelFamily,
    pub(crate) config: Map<String, Value>,
    notes: Vec<String>,
}

/// The plan in the words of the first architecture that has them, with what all architectures have in common.
fn family_config(plan: &Plan, options: &ExportOptions) -> Result<FamilyConfig> {
    let mut chosen = first_family(plan, options)?;
    check_positions(plan, options, chosen.family)?;
    if plan.model.block.dropout > 0.0 {
        chosen.notes.push("the export leaves out dropout, so torch would train the model without it".to_owned());
    }
    Ok(chosen)
}

/// Refuses a number of rows that an export would ignore, and one that no import reads.
fn check_positions(plan: &Plan, options: &ExportOptions, family: ModelFamily) -> Result<()> {
    let Some(rows) = options.positions else { return Ok(()) };
    let encoding = &plan.encoding.method;
    if family != ModelFamily::Gpt2 || !matches!(encoding, Method::Sinusoidal(_)) {
        let (kind, name) = (encoding.kind(), family.model_type());
        let message = format!(
            "--positions {rows}: only sinusoidal encodings have rows to store, in exports as gpt2; this model has the \
             encoding {kind} and its export is {name}"
        );
        return Err(Error::refused(message, "leave out --positions"));
    }
    let most = LONGEST_SEQUENCE as usize;
    if !(1..=most).contains(&rows) {
        let message = format!("--positions {rows}: the number of rows must be between 1 and {most}");
        return Err(Error::refused(message, "give the length of the longest input"));
    }
    Ok(())
}

fn first_family(plan: &Plan, options: &ExportOptions) -> Result<FamilyConfig> {
    let represent = |family: ModelFamily| match family {
        ModelFamily::Kerple => config::kerple(plan),
        _ => native::config(family, plan, options),
    };
    let or_refuse = |family: ModelFamily| {
        represent(family).map_err(|why| {
            let message = format!("{} cannot represent this model: {why}", family.model_type());
            let hint = match family {
                ModelFamily::Kerple => "evaluate the run with kerple, or serve it",
                _ => "leave out --arch to use the first architecture that can",
            };
            Error::refused(message, hint)
        })
    };
    if let Some(family) = options.family {
        return or_refuse(family);
    }
    let init_from = plan.init_from.as_ref().and_then(|init_from| init_from.family());
    let known = init_from.into_iter().filter(|family| *family != ModelFamily::Kerple);
    // a model goes back to where it came from even where transformers computes that architecture in its own way
    let known = known.chain(native::FAMILIES.into_iter().filter(|family| native::is_exact(*family, plan)));
    if let Some(chosen) = known.into_iter().find_map(|family| represent(family).ok()) {
        return Ok(chosen);
    }
    or_refuse(ModelFamily::Kerple)
}

/// A folder in the making, beside the place it is for.
struct ExportFolder {
    aside: PathBuf,
    place: PathBuf,
    parent: PathBuf,
}

impl ExportFolder {
    fn begin(place: &Path) -> Result<ExportFolder> {
        let taken = fs::read_dir(place).is_ok_and(|mut entries| entries.next().is_some());
        if taken || kerple_run::files::is_file(place).map_err(Error::io(place, "look for"))? {
            let message = format!("{} exists and is not empty", place.display());
            return Err(Error::refused(message, "choose another --out folder, or remove this one"));
        }
        let absolute = std::path::absolute(place).map_err(Error::io(place, "look for"))?;
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            let message = format!("{} does not name a folder", place.display());
            return Err(Error::refused(message, "choose another --out folder"));
        };
        fs::create_dir_all(parent).map_err(Error::io(parent, "create"))?;
        for (_, left) in kerple_run::files::abandoned(parent, STATE) {
            _ = fs::remove_dir_all(left);
        }
        let aside = kerple_run::files::aside(parent, name, STATE);
        fs::create_dir_all(&aside).map_err(Error::io(&aside, "create"))?;
        Ok(ExportFolder { aside, place: place.to_owned(), parent: parent.to_owned() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.aside.join(name)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.path(name);
        kerple_run::files::write_within(&path, content).map_err(Error::io(&path, "write"))
    }

    /// Two spaces, keys sorted.
    fn write_json(&self, name: &str, value: &Value) -> Result<()> {
        let text = serde_json::to_string_pretty(value).expect("plain data") + "\n";
        self.write(name, text.as_bytes())
    }

    /// Puts the folder at its place and says what is in it.
    fn end(self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.aside).map_err(Error::io(&self.aside, "list"))? {
            let entry = entry.map_err(Error::io(&self.aside, "list"))?;
            files.push(entry.file_name().to_string_lossy().into_owned());
        }
        files.sort();
        kerple_run::files::sync_folder(&self.aside).map_err(Error::io(&self.aside, "sync"))?;
        fs::rename(&self.aside, &self.place).map_err(Error::io(&self.place, "rename to"))?;
        kerple_run::files::sync_folder(&self.parent).map_err(Error::io(&self.parent, "sync"))?;
        Ok(files)
    }
}

impl Drop for ExportFolder {
    /// What was not put at its place is removed.
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.aside);
    }
}
