//! Imports models of other programs as runs.
//!
//! ```text
//! folder    config.json -> a plan          layout::entries(family, plan): the tensors of each parameter
//!           *.safetensors -> weights       one tensor at a time, into the checkpoint of step 0
//!           tokenizer.json -> the run's    with the ids of its special tokens
//! ```
//!
//! A setting that changes results and that a plan cannot represent is refused by name and value.
//! Where two files, or two places in one, contradict each other, the import follows transformers
//! 5.23 and notes it. No file is trusted: the shape of every tensor is checked against the
//! configuration before any tensor is read.

mod config;
mod drawn;
mod families;
mod inkling;
mod names;
mod neox;
mod rope;
mod short;
mod tensors;
mod tokens;
mod weights;

use crate::layout;
use config::ConfigKeys;
use inkling::InklingTensors;
use kerple_core::seed::DEFAULT_SEED;
use kerple_data::Tokenizer;
use kerple_lm::config::{DataConfig, RunConfig, TrainConfig};
use kerple_lm::plan::{DataInfo, NO_TOKENIZER, Plan};
use kerple_lm::run::{InitialRun, RunFolder, SpecialTokens};
use kerple_lm::{Error, Result};
use kerple_run::{InitFrom, ModelFamily};
use std::path::{Path, PathBuf};
use tensors::{TensorReader, TransformersFolder};

/// The file that describes a model.
const CONFIG: &str = config::NAME;
/// Makes transformers load weights that are added to others.
const ADAPTER: &str = "adapter_config.json";

/// The options of an import, for what the files leave open.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The end-of-document token, by name.
    pub eod_token: Option<String>,
    /// A `tokenizer.json` in place of the folder's.
    pub tokenizer: Option<PathBuf>,
    /// GPT-NeoX's `pos-emb` of a run, where its files do not state it.
    pub pos_emb: Option<String>,
}

/// A run that was imported from a model.
#[derive(Debug)]
pub struct Imported {
    /// Its plan.
    pub plan: Plan,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// What a configuration says of a model.
#[derive(Debug)]
struct ModelDescription {
    family: ModelFamily,
    /// Sizes, blocks and encoding; nothing of data and training but the length.
    config: RunConfig,
    special: SpecialTokens,
    notes: Vec<String>,
    /// The file of the configuration, or the folder of its files.
    place: PathBuf,
}

impl ModelDescription {
    /// A model of these sizes and positions, trained on sequences of `train_len` tokens.
    fn new(family: ModelFamily, config: families::ModelShape) -> ModelDescription {
        let families::ModelShape { model, encoding, train_len } = config;
        let train = TrainConfig { train_len, batch_size: 1, steps: 0, ..TrainConfig::default() };
        let config = RunConfig { seed: DEFAULT_SEED, data: DataConfig::default(), encoding, model, train };
        let (special, notes, place) = (SpecialTokens::default(), Vec::new(), PathBuf::new());
        ModelDescription { family, config, special, notes, place }
    }

    /// Rows of the embedding.
    fn rows(&self) -> usize {
        self.config.model.padded_vocab_size.expect("families state their rows")
    }

    /// The matrix that limits which tokens are predicted, and its rows.
    fn predicted(&self) -> (&'static str, usize) {
        match self.config.model.unpadded_vocab_size {
            Some(rows) => ("output projection", rows),
            None => ("embedding", self.rows()),
        }
    }
}

/// Imports the model in a folder as the run `out`, as a whole or not at all.
///
/// # Errors
/// A folder without a model; parts that are damaged, inconsistent or not supported, with file, key
/// and value; an existing destination.
pub fn import(folder: &Path, out: &Path, options: &ImportOptions) -> Result<Imported> {
    let Imported { plan, notes } = read(folder, out, options).map_err(|error| short::bounded(error, folder))?;
    Ok(Imported { plan, notes: notes.iter().map(|note| short::note(note)).collect() })
}

fn read(folder: &Path, out: &Path, options: &ImportOptions) -> Result<Imported> {
    if neox::is_run(folder)? {
        return neox::import(folder, out, options);
    }
    if let Some(asked) = &options.pos_emb {
        let message = format!("--pos-emb {asked}: {} is not a GPT-NeoX run", folder.display());
        return Err(Error::refused(message, "leave out the option"));
    }
    if kerple_run::files::is_file(&folder.join(ADAPTER)).unwrap_or(false) {
        let message = format!("{} has {ADAPTER}: transformers adds the adapter to the weights", folder.display());
        let hint =
            "merge it into the weights first, with peft's merge_and_unload, or remove the file to import them alone";
        return Err(Error::refused(message, hint));
    }
    let text = config::read_text(&folder.join(CONFIG), config::DESCRIPTION).map_err(|error| no_model(folder, error))?;
    let path = folder.join(CONFIG);
    let value = config::parse(&path, &text)?;
    let whole = ConfigKeys::new(&path, &value)?;
    let text = families::text_config(&whole)?;
    let keys = text.as_ref().unwrap_or(&whole);
    let mut described = families::describe(keys, text.is_some().then_some(ModelFamily::Inkling))?;
    described.place.clone_from(&path);
    let files = TransformersFolder::open(folder, described.family, keys)?;
    let tensors: Box<dyn TensorReader> = match described.family {
        ModelFamily::Inkling => {
            let rows = [described.rows(), described.predicted().1];
            let tensors = InklingTensors::new(files, families::logits_multiplier(keys)?, rows)?;
            described.notes.extend(tensors.notes());
            Box::new(tensors)
        }
        _ => Box::new(files),
    };
    let tokens = tokens::read(folder, keys, options, &mut described)?;
    if text.is_some() {
        described.notes.extend(whole.notes());
    }
    described.notes.extend(keys.notes());
    assemble(described, tensors.as_ref(), tokens, out)
}

fn no_model(folder: &Path, error: Error) -> Error {
    match kerple_run::files::is_file(&folder.join(CONFIG)) {
        Ok(false) => Error::refused(
            format!("{} contains no model: {CONFIG} is missing", folder.display()),
            "give a Hugging Face transformers folder, or the folder of a GPT-NeoX run, which has a file `latest`",
        ),
        _ => error,
    }
}

/// Makes the run of a description and its tensors.
fn assemble(
    mut described: ModelDescription,
    tensors: &dyn TensorReader,
    tokenizer: Option<Tokenizer>,
    out: &Path,
) -> Result<Imported> {
    let family = described.family;
    weights::check_outline(&described, tensors)?;
    let tie = weights::tie(&mut described, tensors)?;
    let (_, rows) = described.predicted();
    let facts = DataInfo {
        // tokens without a logit are never drawn, and refused where a text has them
        vocab_size: tokenizer.as_ref().map_or(rows, |tokenizer| tokenizer.vocab_size().min(rows)),
        tokenizer: tokenizer.as_ref().map_or(NO_TOKENIZER.to_owned(), |tokenizer| tokenizer.fingerprint().clone()),
        train_tokens: 0,
        content: String::new(),
    };
    let plan = |sha256: &str| {
        let init_from = InitFrom::Imported { family, weights: sha256.to_owned() };
        Plan::of_init_from(&described.config, facts.clone(), init_from)
            .map_err(|error| names::with_file_keys(error, family, &described.place))
    };
    let entries = weights::renamed(layout::entries(family, &plan("")?), family, tie);
    let found = weights::find(family, &entries, tie, tensors)?;
    let made_anew = match family {
        ModelFamily::Kerple => drawn::check(&plan("")?, &entries, &found, tensors)?,
        _ => None,
    };
    let special = described.special.clone();
    let plan = RunFolder::new(out).create(InitialRun {
        weights: &mut |path| weights::write(path, &entries, &found, tensors),
        plan: &plan,
        tokenizer: tokenizer.as_ref(),
        special,
    })?;
    described.notes.extend(made_anew);
    Ok(Imported { plan, notes: described.notes })
}
