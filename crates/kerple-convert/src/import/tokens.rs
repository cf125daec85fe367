//! The tokenizer of a folder and its special tokens.

mod files;

use super::config::{self, ConfigKeys};
use super::short::short;
use super::{ImportOptions, ModelDescription};
use files::TokenizerFiles;
use kerple_data::Tokenizer;
use kerple_lm::{Error, Result};
use serde_json::Value;
use std::path::Path;

const TOKENIZER: &str = "tokenizer.json";
/// What goes before `config.json` where tokens are generated.
const GENERATION: &str = "generation_config.json";

/// Tokenizers that only their own libraries read.
const OTHERS: [&str; 4] = ["tokenizer.model", "vocab.json", "spiece.model", "vocab.txt"];

/// Reads the tokenizer, if any, and adds the special tokens to the description.
///
/// # Errors
/// A tokenizer that cannot be read, or has no end-of-document token.
pub fn read(
    folder: &Path,
    keys: &ConfigKeys,
    options: &ImportOptions,
    described: &mut ModelDescription,
) -> Result<Option<Tokenizer>> {
    special(folder, keys, described)?;
    of_folder(folder, options, described)
}

/// The tokenizer of a folder without other information on tokens.
///
/// # Errors
/// As [`read`].
pub fn of_folder(
    folder: &Path,
    options: &ImportOptions,
    described: &mut ModelDescription,
) -> Result<Option<Tokenizer>> {
    let path = options.tokenizer.clone().unwrap_or_else(|| folder.join(TOKENIZER));
    let look = |path: &Path| kerple_run::files::is_there(path).map_err(Error::io(path, "look for"));
    if options.tokenizer.is_none() && !look(&path)? {
        if let Some(token) = &options.eod_token {
            let message = format!("--eod-token {}: {} is missing, which names tokens", short(token), path.display());
            return Err(Error::refused(message, "add --tokenizer FILE, or leave out --eod-token"));
        }
        for other in OTHERS {
            if look(&folder.join(other))? {
                let message = format!("{}: of tokenizers, only {TOKENIZER} is supported", folder.join(other).display());
                let hint = "convert it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes tokenizer.json";
                return Err(Error::refused(message, hint));
            }
        }
        let note = "tokenizer.json is missing: the run has token ids only".to_owned();
        described.notes.push(note);
        return Ok(None);
    }
    let tokenizer = open(folder, &path, options, described)?;
    let (tokens, (matrix, rows)) = (tokenizer.vocab_size(), described.predicted());
    if tokens > rows {
        described.notes.push(format!(
            "{} has {tokens} tokens, but the {matrix} has {rows} rows: texts with the other tokens \
             are refused, and the model never generates them",
            path.display()
        ));
    }
    Ok(Some(tokenizer))
}

/// The tokenizer with the token that ends a document: the one named, `eos` of the files, or a usual one.
fn open(folder: &Path, path: &Path, options: &ImportOptions, described: &mut ModelDescription) -> Result<Tokenizer> {
    let mut definition = config::read_text(path, config::TOKENIZER)?;
    // any id will do to look names up
    let mut plain = Tokenizer::from_definition(path, definition.clone(), Some(0))?;
    let own = TokenizerFiles::of(path.parent().unwrap_or(folder))?;
    let files = if own.is_empty() { TokenizerFiles::of(folder)? } else { own };
    if let Some(merged) = files.added_to(path, &definition, &mut described.notes)? {
        plain = Tokenizer::from_definition(path, merged.clone(), Some(0))?;
        definition = merged;
    }
    files.remark_on_class(&mut described.notes);
    let mut names = SpecialTokenNames { tokenizer: &plain, files: &files, path, described };
    names.check_ids();
    names.take()?;
    let end = match &options.eod_token {
        Some(name) => Some(plain.token(name).ok_or_else(|| {
            let message = format!("{}: unknown token `{}`", path.display(), short(name));
            Error::refused(message, "name the token that ends a document with --eod-token TOKEN")
        })?),
        None => described.special.eos.first().copied(),
    };
    if let ([first, _, ..], None) = (&described.special.eos[..], &options.eod_token) {
        let (name, ids) = (short(&plain.name(*first).unwrap_or_default()), &described.special.eos);
        described.notes.push(format!(
            "generation stops at each of eos_token_id {ids:?}; documents end with the first, `{name}` ({first}); \
             --eod-token TOKEN names another"
        ));
    }
    let tokenizer = Tokenizer::from_definition(path, definition, end)?;
    let (end, (matrix, rows)) = (tokenizer.end_of_document(), described.predicted());
    if end as usize >= rows {
        let name = tokenizer.name(end).unwrap_or_default();
        let message = format!(
            "{}: documents end with token {end} `{}`, but the model's {matrix} has {rows} rows",
            path.display(),
            short(&name)
        );
        return Err(Error::refused(message, "name another token with --eod-token TOKEN"));
    }
    described.special.end_of_document = Some(end);
    Ok(tokenizer)
}

/// What a tokenizer and the files beside it make of special tokens.
struct SpecialTokenNames<'a> {
    tokenizer: &'a Tokenizer,
    files: &'a TokenizerFiles,
    path: &'a Path,
    described: &'a mut ModelDescription,
}

impl SpecialTokenNames<'_> {
    /// Leaves out ids that are no tokens: they have no text, and are not generated.
    fn check_ids(&mut self) {
        let special = &mut self.described.special;
        let mut odd = Vec::new();
        let mut is_token = |key: &str, id: u32| {
            let known = self.tokenizer.name(id).is_some() || self.tokenizer.is_music();
            if !known {
                odd.push(format!("{key} {id} is not in the vocabulary of {}: ignored", self.path.display()));
            }
            known
        };
        special.bos = special.bos.filter(|id| is_token("bos_token_id", *id));
        special.eos.retain(|id| is_token("eos_token_id", *id));
        special.pad = special.pad.filter(|id| is_token("pad_token_id", *id));
        self.described.notes.extend(odd);
    }

    /// The id of a special token that the files name, where the model has it.
    fn id(&mut self, key: &str) -> Option<u32> {
        let (name, file) = self.files.name(key)?;
        let rows = self.described.rows();
        let why = match self.tokenizer.token(name) {
            Some(id) if (id as usize) < rows => return Some(id),
            Some(id) => format!("it is token {id}, but the embedding has {rows} rows"),
            None => format!("{} has no such token", self.path.display()),
        };
        self.described.notes.push(format!("{key} `{}` of {file} is ignored: {why}", short(name)));
        None
    }

    /// Takes the names: generation goes by the ids of the model's files, and what stands in front of a text by the tokenizer's.
    fn take(&mut self) -> Result<()> {
        let [bos, eos, pad, unknown] = ["bos_token", "eos_token", "pad_token", "unk_token"].map(|key| self.id(key));
        let ModelDescription { special, notes, .. } = &mut *self.described;
        special.unknown = unknown;
        special.pad = special.pad.or(pad);
        let named = |id: u32| short(&self.tokenizer.name(id).unwrap_or_default());
        if let Some(eos) = eos.filter(|eos| !special.eos.contains(eos)) {
            if special.eos.is_empty() {
                special.eos.push(eos);
            } else {
                let (name, ids) = (named(eos), &special.eos);
                notes.push(format!(
                    "eos_token of the tokenizer is `{name}` ({eos}), but eos_token_id is {ids:?}: \
                     generation stops at the latter, as in transformers"
                ));
            }
        }
        // a tokenizer without bos begins texts with its eos
        let start = bos.or(eos).filter(|_| bos.is_some() || self.files.name("bos_token").is_none());
        match (start, special.bos) {
            (Some(start), Some(known)) if start != known => {
                special.start = Some(start);
                notes.push(format!(
                    "texts begin with `{}` ({start}) of the tokenizer, as in lm-evaluation-harness, and not with bos_token_id {known}",
                    named(start)
                ));
            }
            (Some(start), None) if bos.is_some() => special.bos = Some(start),
            (Some(start), None) => special.start = Some(start),
            _ => {}
        }
        Ok(())
    }
}

/// Ids of `config.json`, over which those of `generation_config.json` go.
fn special(folder: &Path, keys: &ConfigKeys, described: &mut ModelDescription) -> Result<()> {
    let path = folder.join(GENERATION);
    let there = kerple_run::files::is_there(&path).map_err(Error::io(&path, "look for"))?;
    let value = if there {
        config::parse(&path, &config::read_text(&path, config::DESCRIPTION)?)?
    } else {
        Value::Object(serde_json::Map::new())
    };
    let generation = ConfigKeys::new(&path, &value)?;
    // transformers takes the settings of config.json where the other file is missing
    let (of, file) = if there { (&generation, GENERATION) } else { (keys, config::NAME) };
    let asks = |(key, nothing): &(&str, Value)| {
        let value = of.value(key).filter(|value| !config::is_same(value, nothing))?;
        Some(format!("{key} = {}", short(&value.to_string())))
    };
    let sampling: Vec<String> = sampling().iter().filter_map(asks).collect();
    if !sampling.is_empty() {
        let sampling = sampling.join(", ");
        keys.remark(format!("the import leaves out how {file} samples, {sampling}; use options of `kerple sample`"));
    }
    let rows = described.rows();
    let [bos, eos, pad] = ["bos_token_id", "eos_token_id", "pad_token_id"].map(|key| {
        let [own, over] = [keys, &generation].map(|keys| ids(keys, key));
        let (own, over) = (own?, over?);
        match (&own, &over) {
            (Some(own), Some(over)) if own != over => keys.remark(format!(
                "{key} is {own:?} in config.json but {over:?} in {GENERATION}: using the latter, as transformers does"
            )),
            (Some(own), None) if there && key == "eos_token_id" => keys.remark(format!(
                "{GENERATION} has no {key}: using {own:?} of config.json, where transformers would not stop"
            )),
            _ => {}
        }
        let (within, beyond): (Vec<i64>, Vec<i64>) =
            over.or(own).into_iter().flatten().partition(|id| (0..rows as i64).contains(id));
        // -1 stands for none in old files
        if beyond.iter().any(|id| *id != -1) {
            keys.remark(format!("{key} {beyond:?} exceeds the {rows} rows of the embedding: ignored"));
        }
        Ok::<_, Error>(within.into_iter().map(|id| id as u32).collect::<Vec<u32>>())
    });
    let special = &mut described.special;
    (special.bos, special.eos, special.pad) = (bos?.first().copied(), eos?, pad?.first().copied());
    Ok(())
}

/// Settings of generation other than its tokens, each with the value that transformers has without it.
fn sampling() -> [(&'static str, Value); 33] {
    let none = Value::Null;
    [
        ("do_sample", false.into()),
        ("temperature", 1.into()),
        ("top_k", 50.into()),
        ("top_p", 1.into()),
        ("top_h", none.clone()),
        ("min_p", none.clone()),
        ("typical_p", 1.into()),
        ("epsilon_cutoff", 0.into()),
        ("eta_cutoff", 0.into()),
        ("repetition_penalty", 1.into()),
        ("encoder_repetition_penalty", 1.into()),
        ("no_repeat_ngram_size", 0.into()),
        ("encoder_no_repeat_ngram_size", 0.into()),
        ("num_beams", 1.into()),
        ("num_beam_groups", 1.into()),
        ("length_penalty", 1.into()),
        ("diversity_penalty", 0.into()),
        ("exponential_decay_length_penalty", none.clone()),
        ("penalty_alpha", none.clone()),
        ("guidance_scale", none.clone()),
        ("sequence_bias", none.clone()),
        ("renormalize_logits", false.into()),
        ("bad_words_ids", none.clone()),
        ("suppress_tokens", none.clone()),
        ("begin_suppress_tokens", none.clone()),
        ("forced_bos_token_id", none.clone()),
        ("forced_eos_token_id", none.clone()),
        ("stop_strings", none.clone()),
        ("max_length", 20.into()),
        ("max_new_tokens", none.clone()),
        ("min_length", 0.into()),
        ("min_new_tokens", none.clone()),
        ("watermarking_config", none),
    ]
}

/// The ids that a key says.
fn ids(keys: &ConfigKeys, key: &str) -> Result<Option<Vec<i64>>> {
    /// Tokens that end a text.
    const MOST: usize = 1000;
    let Some(value) = keys.value(key) else { return Ok(None) };
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let most = if key == "eos_token_id" { MOST } else { 1 };
    if list.len() > most {
        return Err(keys.refuse(key, value, &format!("it must be one token id, or a list of at most {most}")));
    }
    let id = |id: &Value| id.as_i64().ok_or_else(|| keys.refuse(key, value, "it must be one token id"));
    list.iter().map(id).collect::<Result<Vec<i64>>>().map(Some)
}
