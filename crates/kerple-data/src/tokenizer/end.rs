//! Chooses the end-of-document token and records why.
//!
//! It is the token that the user names. Otherwise it is the one in the files next to
//! `tokenizer.json`, in the order of [`STATED`]. Otherwise it is the first of [`USUAL`] that the
//! tokenizer marks as special. A usual name without the mark counts only where nothing is marked:
//! in Gemma 3, `</s>` is an HTML tag, and `<eos>` the end of a text.

use super::hugging_face::HuggingFace;
use crate::error::{Error, Result};
use crate::file::{is_file, read_text};
use kerple_run::files::{first_of, printable};
use serde_json::Value;
use std::path::Path;

/// Tokens that end documents in common vocabularies, most telling first.
const USUAL: [&str; 6] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]"];

/// Files that say which token ends a text, and the key that does, by name or by id.
const STATED: [(&str, &str); 4] = [
    ("tokenizer_config.json", "eos_token"),
    ("special_tokens_map.json", "eos_token"),
    ("generation_config.json", "eos_token_id"),
    ("config.json", "eos_token_id"),
];

/// Longer files are not these.
const LONGEST: u64 = 1 << 26;

const HINT: &str = "name the token that ends a document with --eod-token TOKEN";

/// The token that ends a document.
#[derive(Clone, Debug)]
pub(super) struct EndOfDocument {
    pub(super) id: u32,
    /// Whether the tokenizer marks it as special.
    pub(super) special: bool,
    pub(super) because: String,
    pub(super) warnings: Vec<String>,
}

impl EndOfDocument {
    /// The end of a tokenizer that has one of its own, which no text holds.
    pub(super) fn own(id: u32) -> EndOfDocument {
        EndOfDocument { id, special: true, because: "the tokenizer's own".to_owned(), warnings: Vec::new() }
    }

    /// A token that was chosen before.
    pub(super) fn known(inner: &HuggingFace, id: u32) -> EndOfDocument {
        EndOfDocument { id, special: inner.is_special(id), because: "chosen before".to_owned(), warnings: Vec::new() }
    }

    /// The token of this name.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn named(inner: &HuggingFace, path: &Path, name: &str) -> Result<EndOfDocument> {
        let missing = || Error::refused(format!("{}: unknown token `{name}`", path.display()), HINT);
        let id = inner.token(name).ok_or_else(missing)?;
        Ok(EndOfDocument { because: "named by --eod-token".to_owned(), ..EndOfDocument::known(inner, id) })
    }

    /// The token that the files next to a `tokenizer.json` name, or a usual one.
    ///
    /// # Errors
    /// They name a token that the vocabulary does not have, or nothing fits.
    pub(super) fn from_neighbours(inner: &HuggingFace, path: &Path) -> Result<EndOfDocument> {
        let (stated, mut warnings) = stated(inner, path)?;
        let Some(((file, ids), others)) = stated.split_first() else {
            let mut end = EndOfDocument::usual(inner, path)?;
            end.warnings.splice(0..0, warnings);
            return Ok(end);
        };
        let id = *ids.iter().min_by_key(|id| rank(inner, **id)).expect("what is stated is not empty");
        let name = |id: u32| inner.name(id).unwrap_or_else(|| id.to_string());
        for (other, _) in others.iter().filter(|(_, ids)| !ids.contains(&id)) {
            warnings.push(format!(
                "{file} names `{}` as the end of a text, and {other} another token: using the \
                 first; to use the other, pass --eod-token TOKEN",
                name(id)
            ));
        }
        let special = inner.is_special(id);
        if !special {
            warnings.push(format!(
                "{file} names `{}` as the end of a text, but the tokenizer does not mark it as special",
                name(id)
            ));
        }
        let rival =
            USUAL.iter().filter_map(|usual| inner.token(usual)).find(|other| rank(inner, *other) < rank(inner, id));
        if let Some(rival) = rival.filter(|rival| inner.is_special(*rival)) {
            warnings.push(format!(
                "documents end with `{}`, as in {file}; `{1}` could end them too: to use it, pass \
                 --eod-token '{1}'",
                name(id),
                name(rival)
            ));
        }
        Ok(EndOfDocument { id, special, because: format!("{file} names it"), warnings })
    }

    /// The first token of a usual name.
    ///
    /// # Errors
    /// There is none, or it is not marked as special where others are.
    pub(super) fn usual(inner: &HuggingFace, path: &Path) -> Result<EndOfDocument> {
        let found: Vec<(&str, u32)> = USUAL.iter().filter_map(|name| Some((*name, inner.token(name)?))).collect();
        let (special, plain): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, id)| inner.is_special(*id));
        if let Some(((name, id), others)) = special.split_first() {
            let because = "it is the first of the usual names that its special tokens have".to_owned();
            let warnings = others.iter().map(|(other, _)| {
                format!("documents end with `{name}`; `{other}` is special too: to use it, pass --eod-token '{other}'")
            });
            return Ok(EndOfDocument { id: *id, special: true, because, warnings: warnings.collect() });
        }
        let marked = inner.special_names();
        match plain.first() {
            Some((name, id)) if marked.is_empty() => {
                let because = "a usual name; the tokenizer marks no token as special".to_owned();
                let warning = format!("documents end with `{name}`, which the tokenizer does not mark as special");
                Ok(EndOfDocument { id: *id, special: false, because, warnings: vec![warning] })
            }
            Some((name, _)) => {
                let shown = marked.iter().take(8).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ");
                let message = format!(
                    "{}: `{name}` may end documents, but is not among the tokens marked as special, which are {shown}",
                    path.display()
                );
                Err(Error::refused(message, HINT))
            }
            None => {
                let message =
                    format!("{}: none of the tokens {} is in the vocabulary", path.display(), USUAL.join(" "));
                Err(Error::refused(message, HINT))
            }
        }
    }
}

/// Where a token is among the usual ones, special ones first.
fn rank(inner: &HuggingFace, id: u32) -> (bool, usize) {
    let name = inner.name(id).unwrap_or_default();
    (!inner.is_special(id), USUAL.iter().position(|usual| *usual == name).unwrap_or(USUAL.len()))
}

/// Tokens that the files next to a `tokenizer.json` add to it in transformers, and that it does not have.
pub(super) fn unread_tokens(inner: &HuggingFace, path: &Path) -> Result<Option<String>> {
    let read = |name: &str| -> Result<Value> {
        let beside = path.with_file_name(name);
        let there = beside != path && is_file(&beside)?;
        // what is no JSON says nothing of tokens; `stated` names it
        let text = if there { read_text(&beside, LONGEST, HINT).unwrap_or_default() } else { String::new() };
        Ok(serde_json::from_str(&text).unwrap_or_default())
    };
    let (config, added) = (read("tokenizer_config.json")?, read("added_tokens.json")?);
    let decoder = config["added_tokens_decoder"].as_object();
    // the older file is read where the newer one has no such table
    let older = added.as_object().filter(|_| decoder.is_none()).into_iter().flatten().map(|(name, _)| name.as_str());
    let newer = decoder.into_iter().flatten().filter_map(|(_, token)| token["content"].as_str());
    let missing: Vec<String> = newer
        .chain(older)
        .filter(|name| inner.token(name).is_none())
        .map(|name| format!("`{}`", printable(name)))
        .collect();
    Ok((!missing.is_empty()).then(|| {
        format!(
            "the files next to {} add tokens that it does not have and that are text here: {}; `kerple import` of \
             their folder writes a tokenizer.json with them",
            path.display(),
            first_of(&missing, 8, " ")
        )
    }))
}

/// A file and the ids that it says end a text.
type EndStatement = (&'static str, Vec<u32>);

/// What the files beside a `tokenizer.json` say, and what of it was passed over.
fn stated(inner: &HuggingFace, path: &Path) -> Result<(Vec<EndStatement>, Vec<String>)> {
    let (mut found, mut warnings) = (Vec::new(), Vec::new());
    for (file, key) in STATED {
        let beside = path.with_file_name(file);
        if beside == path || !is_file(&beside)? {
            continue;
        }
        let text = read_text(&beside, LONGEST, HINT)?;
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(error) => {
                warnings.push(format!("{}: ignored for the end of a document: {error}", beside.display()));
                continue;
            }
        };
        let value = &value[key];
        if let Some(name) = value.as_str().or_else(|| value["content"].as_str()) {
            let missing = || {
                let message = format!(
                    "{} names `{name}` as the end of a text, but {} has no such token",
                    beside.display(),
                    path.display()
                );
                Error::refused(message, HINT)
            };
            found.push((file, vec![inner.token(name).ok_or_else(missing)?]));
            continue;
        }
        let ids = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let as_id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        // null and -1 stand for none
        let odd = |id: &&Value| as_id(id).is_none() && !id.is_null() && id.as_i64() != Some(-1);
        if let Some(odd) = ids.iter().find(odd) {
            let odd: String = odd.to_string().chars().take(60).collect();
            warnings.push(format!("{file} has {odd} in {key}, which is not an id: it is ignored"));
        }
        let ids: Vec<u32> = ids.iter().filter_map(as_id).collect();
        let (known, unknown): (Vec<u32>, Vec<u32>) = ids.into_iter().partition(|id| inner.name(*id).is_some());
        if !unknown.is_empty() {
            warnings.push(format!(
                "{file} names tokens {unknown:?} as the end of a text, which the tokenizer does not have"
            ));
        }
        if !known.is_empty() {
            found.push((file, known));
        }
    }
    Ok((found, warnings))
}
