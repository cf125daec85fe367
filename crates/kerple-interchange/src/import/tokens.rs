//! The tokenizer of a folder and its special tokens.

use super::config::{self, Keys};
use super::{CONFIG, Described, Options};
use kerple_data::Tokenizer;
use kerple_lm::{Error, Result};
use serde_json::Value;
use std::path::Path;

const TOKENIZER: &str = "tokenizer.json";

/// Tokenizers that only their own libraries read.
const OTHERS: [&str; 4] = ["tokenizer.model", "vocab.json", "spiece.model", "vocab.txt"];

/// Reads what is there and puts the special tokens into the description.
///
/// # Errors
/// A tokenizer that cannot be read, has more tokens than the model, or no token that ends a document.
pub fn read(folder: &Path, keys: &Keys, options: &Options, described: &mut Described) -> Result<Option<Tokenizer>> {
    special(folder, keys, described)?;
    beside(folder, options, described)
}

/// The tokenizer of a folder that says nothing else of tokens.
///
/// # Errors
/// As [`read`].
pub fn beside(folder: &Path, options: &Options, described: &mut Described) -> Result<Option<Tokenizer>> {
    let path = options.tokenizer.clone().unwrap_or_else(|| folder.join(TOKENIZER));
    let look = |path: &Path| kerple_files::is_there(path).map_err(Error::io(path, "look for"));
    if options.tokenizer.is_none() && !look(&path)? {
        for other in OTHERS {
            if look(&folder.join(other))? {
                let message = format!("{}: of tokenizers only {TOKENIZER} is read", folder.join(other).display());
                let hint = "convert it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes tokenizer.json";
                return Err(Error::refused(message, hint));
            }
        }
        let note = "there is no tokenizer.json: the run knows its tokens as numbers".to_owned();
        described.notes.push(note);
        return Ok(None);
    }
    let tokenizer = open(folder, &path, options, described)?;
    let (tokens, rows) = (tokenizer.vocab_size(), described.config.model.vocab_rows.unwrap_or(0));
    if tokens > rows {
        let message = format!("it has {tokens} tokens, the model's embedding has {rows} rows");
        return Err(Error::damaged(&path, message, "this tokenizer belongs to another model"));
    }
    Ok(Some(tokenizer))
}

/// The tokenizer with the token that ends a document: the one named, `eos` of the files, or a usual one.
fn open(folder: &Path, path: &Path, options: &Options, described: &mut Described) -> Result<Tokenizer> {
    let definition = config::read_text(path)?;
    if let Some(name) = &options.end_of_document {
        let tokenizer = Tokenizer::from_file(path, Some(name))?;
        return Ok(ended(tokenizer, described));
    }
    // any id will do to look names up
    let plain = Tokenizer::from_definition(path, definition.clone(), Some(0))?;
    let [bos, eos, pad] = names(folder)?.map(|name| name.and_then(|name| plain.token(&name)));
    let special = &mut described.special;
    special.bos = special.bos.or(bos);
    special.pad = special.pad.or(pad);
    if special.eos.is_empty() {
        special.eos.extend(eos);
    }
    let known = special.eos.iter().copied().find(|id| (*id as usize) < plain.vocab_size());
    let tokenizer = match known {
        Some(end) => Tokenizer::from_definition(path, definition, Some(end))?,
        None => Tokenizer::from_file(path, None)?,
    };
    Ok(ended(tokenizer, described))
}

fn ended(tokenizer: Tokenizer, described: &mut Described) -> Tokenizer {
    described.special.end_of_document = Some(tokenizer.end_of_document());
    tokenizer
}

/// Ids of `config.json`, over which those of `generation_config.json` go.
fn special(folder: &Path, keys: &Keys, described: &mut Described) -> Result<()> {
    take(keys, described)?;
    let path = folder.join("generation_config.json");
    if kerple_files::is_there(&path).map_err(Error::io(&path, "look for"))? {
        let value = config::parse(&path, &config::read_text(&path)?)?;
        take(&Keys::new(&path, &value)?, described)?;
    }
    Ok(())
}

fn take(keys: &Keys, described: &mut Described) -> Result<()> {
    let rows = described.config.model.vocab_rows.unwrap_or(0);
    let mut odd = Vec::new();
    let mut ids = |key: &str| -> Result<Vec<u32>> {
        let Some(value) = keys.value(key) else { return Ok(Vec::new()) };
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let id = |value: &Value| value.as_i64().ok_or_else(|| keys.refuse(key, value, "it must be the id of a token"));
        let ids = list.iter().map(id).collect::<Result<Vec<i64>>>()?;
        let (within, beyond): (Vec<i64>, Vec<i64>) = ids.into_iter().partition(|id| (0..rows as i64).contains(id));
        // -1 stands for none in old files
        if beyond.iter().any(|id| *id >= 0) {
            odd.push(format!(
                "{key} of {} is beyond the {rows} rows of the embedding, and left out",
                file_name(keys.path())
            ));
        }
        Ok(within.into_iter().map(|id| id as u32).collect())
    };
    let (bos, eos, pad) = (ids("bos_token_id")?, ids("eos_token_id")?, ids("pad_token_id")?);
    let special = &mut described.special;
    special.bos = bos.first().copied().or(special.bos);
    special.pad = pad.first().copied().or(special.pad);
    if !eos.is_empty() {
        special.eos = eos;
    }
    described.notes.extend(odd);
    Ok(())
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| CONFIG.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Names of bos, eos and pad in the files beside the tokenizer.
fn names(folder: &Path) -> Result<[Option<String>; 3]> {
    let mut found: [Option<String>; 3] = Default::default();
    for file in ["tokenizer_config.json", "special_tokens_map.json"] {
        let path = folder.join(file);
        if !kerple_files::is_there(&path).map_err(Error::io(&path, "look for"))? {
            continue;
        }
        let value = config::parse(&path, &config::read_text(&path)?)?;
        for (name, key) in found.iter_mut().zip(["bos_token", "eos_token", "pad_token"]) {
            let token = value[key].as_str().or(value[key]["content"].as_str());
            if name.is_none() {
                *name = token.map(str::to_owned);
            }
        }
    }
    Ok(found)
}
