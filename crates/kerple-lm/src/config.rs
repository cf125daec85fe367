//! The keys of a run file, as plain data: `plan` resolves and checks them.

use crate::error::{Error, Result};
use crate::layers::LayerConfig;
use crate::renamed;
use crate::schedule::LrSchedule;
use kerple_burn::plan::BlockConfig;
use kerple_core::encoding::Encoding;
use kerple_core::seed::DEFAULT_SEED;
use kerple_core::suggest::with_suggestion;
use kerple_data::tasks::TaskConfig;
use kerple_run::{DocumentMask, StopRule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Every key of a run file with its default, as a run file.
pub const REFERENCE: &str = include_str!("reference.toml");

/// A run file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Controls initial weights, data order and evaluation text.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// What is read.
    #[serde(default)]
    pub data: DataConfig,
    /// How positions enter.
    pub encoding: Encoding,
    /// Sizes.
    #[serde(default)]
    pub model: ModelConfig,
    /// Optimisation.
    #[serde(default)]
    pub train: TrainConfig,
}

fn default_seed() -> u64 {
    DEFAULT_SEED
}

/// `[data]`: a text by its path, or a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// A folder made by `kerple prepare`, or a GPT-NeoX prefix of `.bin` and `.idx` files.
    pub path: PathBuf,
    /// How sequences are cut from the stream of documents.
    pub sampling: SamplingConfig,
    /// Whether the documents in a sequence attend to each other.
    #[serde(skip_serializing_if = "DocumentMask::is_joined")]
    pub documents: DocumentMask,
    /// What is learned instead of a text: the name of a task, or a table of its `kind` and keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskConfig>,
}

impl DataConfig {
    /// The text at this place.
    pub fn text(path: impl Into<PathBuf>) -> DataConfig {
        DataConfig { path: path.into(), ..DataConfig::default() }
    }

    /// Refuses data that is neither a text nor a task, or both.
    ///
    /// # Errors
    /// What is missing; what a task does not read.
    pub fn check(&self) -> Result<()> {
        let is_text = !self.path.as_os_str().is_empty();
        if let Some(task) = &self.task {
            let name = task.name();
            let refuse =
                |key: &str, message: String, hint: &str| Err(Error::config(format!("data.{key}"), message, hint));
            if is_text && !task.reads_files() {
                let message = format!("the task {name} draws its sequences and reads no files");
                return refuse("path", message, "remove data.path (--set data.path=), or remove data.task");
            }
            if self.sampling == SamplingConfig::Megatron {
                let message = format!("megatron is for texts, and the data is the task {name}");
                return refuse("sampling", message, "remove data.sampling, or remove data.task");
            }
            return Ok(());
        }
        if is_text {
            return Ok(());
        }
        Err(Error::Config {
            place: "data".to_owned(),
            message: "`path` is missing or empty, and `task` is not set".to_owned(),
            hint: "set data.path to the folder of a text, or data.task to a task; `kerple describe config` lists the \
                keys"
                .to_owned(),
        })
    }
}

/// How training sequences are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingConfig {
    /// Windows at uniformly drawn places, with replacement.
    #[default]
    Random,
    /// GPT-NeoX's shuffled epochs, sample by sample.
    Megatron,
}

/// `[model]`: a preset, and what differs from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Sizes to start from.
    pub preset: Preset,
    /// Layers.
    pub n_layers: Option<usize>,
    /// Attention heads.
    pub n_heads: Option<usize>,
    /// Features per head.
    pub head_dim: Option<usize>,
    /// Model width; heads times their features when absent.
    pub d_model: Option<usize>,
    /// Inner width of the feed-forward layers; 4 times the model width when absent.
    pub d_hidden: Option<usize>,
    /// The vocabulary is padded to a multiple of this; padded logits take part in the softmax.
    pub pad_vocab_multiple: Option<usize>,
    /// Rows of the embedding, instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padded_vocab_size: Option<usize>,
    /// Rows of the output projection, where they are fewer than those of the embedding: tokens beyond are read and never
    /// predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpadded_vocab_size: Option<usize>,
    /// What a classifier's answer is read off.
    #[serde(skip_serializing_if = "Pooling::is_default")]
    pub pooling: Pooling,
    /// The settings of a block: `[model.block]`, by default the paper's.
    #[serde(skip_serializing_if = "BlockConfig::is_default")]
    pub block: BlockConfig,
    /// Kinds of layers that differ from the others, by their names: `[model.layers.NAME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, LayerConfig>,
}

/// What a classifier's answer is read off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean of the encoder's rows, by one linear layer.
    #[default]
    Mean,
    /// The row of a class token before the sequence, through a hidden layer as wide as the
    /// feed-forward layers and a linear one: the Long Range Arena.
    Cls,
    /// Of a pair of texts: the rows of such tokens, the encoder reading each text by itself, by two hidden layers, the
    /// second half as wide, and a linear one.
    TwoTower,
}

impl Pooling {
    /// Whether it is the default, which is not written down.
    pub fn is_default(&self) -> bool {
        *self == Pooling::default()
    }
}

/// Named model sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preset {
    /// 2 layers, 4 heads of 32: seconds on a laptop.
    #[default]
    #[serde(rename = "tiny")]
    Tiny,
    /// 4 layers, 4 heads of 64.
    #[serde(rename = "small")]
    Small,
    /// The 162M model of the KERPLE paper: 12 layers, 12 heads of 64.
    #[serde(rename = "neox-162m")]
    Neox162m,
}

impl Preset {
    /// `[layers, heads, head_dim]`
    pub fn sizes(self) -> [usize; 3] {
        match self {
            Preset::Tiny => [2, 4, 32],
            Preset::Small => [4, 4, 64],
            Preset::Neox162m => [12, 12, 64],
        }
    }
}

/// `[train]`: the defaults are the paper's recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Tokens a sequence.
    pub train_len: usize,
    /// Sequences an update.
    pub batch_size: usize,
    /// Sequences at once in memory; gradients of the parts of a batch are added. The whole batch when absent.
    pub micro_batch_size: Option<usize>,
    /// Tokens of a sequence at once in memory, where attention is linear: a multiple of 128. Whole sequences when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk_len: Option<usize>,
    /// Updates.
    pub steps: u64,
    /// What ends the training of a task before `steps`; the schedule stays that of `steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<StopRule>,
    /// Updates that the learning-rate schedule covers; `steps` when absent. After them the rate
    /// stays constant, so a finished run is extended with a larger `steps` and this value
    /// unchanged. A schedule of 0 updates neither warms up nor decays.
    pub schedule_steps: Option<u64>,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Floor of the decay.
    pub min_lr: f64,
    /// Share of the steps that warms up.
    pub warmup_ratio: f64,
    /// Shape after warm-up.
    pub lr_schedule: LrSchedule,
    /// Updates from one restart of `cosine_restarts` to the next; all updates when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_cycle_steps: Option<u64>,
    /// Decay rates of Adam's moments.
    pub adam_betas: [f64; 2],
    /// Added to the denominator of Adam's update.
    pub adam_eps: f64,
    /// Decoupled weight decay of matrices, including T5's table and learned positions, as in
    /// GPT-NeoX. Norms, biases and the kernels' parameters are not decayed. Exceptions are FIRE's
    /// `c` and `multiplier` and what DAPE takes from its base, as in its released code, and
    /// encodings with `decayed`.
    pub weight_decay: f64,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    pub grad_clip: f64,
    /// Adam's bias corrections of the first update are those of this step. The original's engine starts at 2.
    pub adam_first_step: u64,
    /// A line in `metrics.jsonl` every so many steps, and at the first, the last and those of a validation.
    pub log_every: u64,
    /// Loss on the validation split, and score of a task, every so many steps; 0 never.
    pub eval_interval: u64,
    /// Sequences of a validation.
    pub eval_sequences: usize,
    /// A checkpoint every so many steps, and at the end.
    pub save_interval: u64,
    /// Checkpoints kept.
    pub keep_last_n: usize,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            train_len: 512,
            batch_size: 32,
            micro_batch_size: None,
            chunk_len: None,
            steps: 50_000,
            until: None,
            schedule_steps: None,
            learning_rate: 6e-4,
            min_lr: 0.0,
            warmup_ratio: 0.01,
            lr_schedule: LrSchedule::Cosine,
            lr_cycle_steps: None,
            adam_betas: [0.9, 0.999],
            adam_eps: 1e-8,
            weight_decay: 0.0,
            grad_clip: 1.0,
            adam_first_step: 1,
            log_every: 10,
            eval_interval: 1000,
            eval_sequences: 10,
            save_interval: 1000,
            keep_last_n: 2,
        }
    }
}

/// What to do about a run file that cannot be read: the new names of its keys, or where all keys are listed.
fn hint(text: &str) -> String {
    let table = toml::from_str::<toml::Table>(text).ok().and_then(|table| serde_json::to_value(table).ok());
    table.and_then(|table| renamed::hint(renamed::RUN_FILE, &table)).unwrap_or_else(|| KEYS_HINT.to_owned())
}

/// A message of serde without names of Rust's types, and with the name that was probably meant.
fn in_words(message: &str) -> String {
    const WORDS: [(&str, &str); 6] = [
        ("expected u64", "expected a whole number of at least 0"),
        ("expected usize", "expected a whole number of at least 0"),
        ("expected u32", "expected a whole number of at least 0"),
        ("expected f64", "expected a number"),
        ("expected path string", "expected a path in quotes"),
        ("expected struct ", "expected a table of "),
    ];
    let message = WORDS.iter().fold(message.to_owned(), |message, (rust, words)| message.replace(rust, words));
    // the type is not a word of the file
    let message = match message.split_once("expected a table of ") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|letter: char| letter.is_alphanumeric() || letter == '_');
            format!("{before}expected a table{rest}")
        }
        None => message,
    };
    with_suggestion(&message)
}

const KEYS_HINT: &str = "`kerple describe config` lists the keys of a run file";

/// Sections of a run file that are no value of their own.
const SECTIONS: [&str; 4] = ["data", "model", "model.block", "train"];

/// Whether it is a whole number that TOML could write if it were smaller.
fn is_too_large(text: &str) -> bool {
    let digits = text.trim();
    digits.len() >= i64::MAX.to_string().len()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
}

/// Refuses an override that removes an earlier one: of the same key, or of a table that the key is in.
fn check_overrides(overrides: &[String]) -> Result<()> {
    let key = |assignment: &str| -> String {
        let key = assignment.split('=').next().unwrap_or_default();
        key.split('.').map(str::trim).collect::<Vec<_>>().join(".")
    };
    for (at, later) in overrides.iter().enumerate() {
        let outer = key(later);
        let is_removed = |earlier: &&String| {
            let inner = key(earlier);
            *earlier != later && (inner == outer || inner.starts_with(&format!("{outer}.")))
        };
        if let Some(earlier) = overrides[..at].iter().find(is_removed) {
            let message = format!("--set {earlier} gives this value too");
            return Err(Error::config(format!("--set {later}"), message, "give each key once"));
        }
    }
    Ok(())
}

/// Most parts of a dotted key. No key of a run file is this deep, and a table is read with a call a level.
const DEEPEST: usize = 8;

/// Parses `key.path=value` and puts it into `table`; the value is TOML, or a bare word.
fn set(table: &mut toml::Table, assignment: &str) -> Result<()> {
    let place = format!("--set {assignment}");
    let fail = |message: String| {
        Error::config(&place, message, "write --set key=value with a key of the run file, e.g. --set train.steps=100")
    };
    let (path, value) = assignment.split_once('=').ok_or_else(|| fail("`=` is missing".to_owned()))?;
    let value = match toml::from_str::<toml::Table>(&format!("value = {value}")) {
        Ok(mut parsed) => parsed.remove("value").filter(|_| parsed.is_empty()),
        Err(_) if is_too_large(value) => {
            return Err(fail(format!("the number is out of range, it must be at most {}", i64::MAX)));
        }
        Err(_) => Some(toml::Value::String(value.to_owned())),
    };
    let value =
        value.ok_or_else(|| fail("the value has several lines; give each key a --set of its own".to_owned()))?;
    if path.split('.').nth(DEEPEST).is_some() {
        let start: String = path.chars().take(40).collect();
        return Err(Error::config(
            format!("--set {start}..."),
            format!("the key has more than {DEEPEST} parts"),
            KEYS_HINT,
        ));
    }
    let mut keys: Vec<&str> = path.split('.').map(str::trim).collect();
    let last = keys.pop().filter(|key| !key.is_empty()).ok_or_else(|| fail("the key is empty".to_owned()))?;
    if value.is_table() && SECTIONS.contains(&path) {
        let message = format!("`{path}` is a section of the file, whose other keys the table would remove");
        return Err(Error::config(place, message, format!("set its keys one by one, e.g. --set {path}.KEY=VALUE")));
    }
    let mut place = table;
    for key in keys {
        let entry = place.entry(key).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        place = entry.as_table_mut().ok_or_else(|| fail(format!("`{key}` is a value, not a table")))?;
    }
    place.insert(last.to_owned(), value);
    Ok(())
}

impl RunConfig {
    /// Reads a run file and applies `key=value` overrides.
    ///
    /// # Errors
    /// A missing or unreadable file, TOML that does not parse, unknown or ill-typed keys.
    pub fn read(file: &Path, overrides: &[String]) -> Result<RunConfig> {
        let text = kerple_run::files::read_text(file).map_err(Error::io(file, "read the run file"))?;
        RunConfig::parse(&text, &file.display().to_string(), overrides)
    }

    /// The same of a file whose encoding something else replaces, so that the file may leave it out.
    ///
    /// # Errors
    /// As [`RunConfig::read`].
    pub fn read_without_encoding(file: &Path, overrides: &[String]) -> Result<RunConfig> {
        let text = kerple_run::files::read_text(file).map_err(Error::io(file, "read the run file"))?;
        RunConfig::parse(&text, &file.display().to_string(), overrides).or_else(|error| {
            // where anything else is wrong, it still is, and the lines of the first error are those of the file
            RunConfig::parse(&format!("encoding = \"none\"\n{text}"), "", overrides).map_err(|_| error)
        })
    }

    /// Parses the text of a run file; `place` names it in errors.
    ///
    /// # Errors
    /// As [`RunConfig::read`].
    pub fn parse(text: &str, place: &str, overrides: &[String]) -> Result<RunConfig> {
        let fail = |error: toml::de::Error| Error::config(place, in_words(error.to_string().trim_end()), hint(text));
        if overrides.is_empty() {
            return toml::from_str(text).map_err(fail);
        }
        check_overrides(overrides)?;
        let file: toml::Table = toml::from_str(text).map_err(fail)?;
        let file_text = text;
        let with = |overrides: &[String]| -> Result<std::result::Result<RunConfig, (String, String)>> {
            let mut table = file.clone();
            overrides.iter().try_for_each(|assignment| set(&mut table, assignment))?;
            let text = toml::to_string(&table).expect("a parsed table can be written");
            Ok(toml::from_str(&text).map_err(|error: toml::de::Error| (error.message().to_owned(), text)))
        };
        // lines of the merged text are not lines of the file, so only the message is passed on
        with(overrides)?.map_err(|(message, text)| {
            if let Some(error) = toml::from_str::<RunConfig>(file_text).err().filter(|error| error.message() == message)
            {
                return fail(error);
            }
            let fails_so = |some: &[String]| matches!(with(some), Ok(Err((other, _))) if other == message);
            // one that fails by itself in the same way is the cause
            let causes = match overrides.iter().find(|one| fails_so(std::slice::from_ref(*one))) {
                Some(one) => one.clone(),
                None => {
                    let without = |at: usize| [&overrides[..at], &overrides[at + 1..]].concat();
                    let needed = (0..overrides.len()).filter(|at| !fails_so(&without(*at)));
                    let needed: Vec<&str> = needed.map(|at| overrides[at].as_str()).collect();
                    if needed.is_empty() { overrides.join(" --set ") } else { needed.join(" --set ") }
                }
            };
            Error::config(format!("{place} with --set {causes}"), in_words(&message), hint(&text))
        })
    }
}
