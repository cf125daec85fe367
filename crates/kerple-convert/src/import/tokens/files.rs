//! Reads the files next to a `tokenizer.json`, which extend it, as transformers 5.23 does.
//!
//! ```text
//! tokenizer_config.json      names of special tokens; added_tokens_decoder: tokens and their kinds, which override tokenizer.json's
//! special_tokens_map.json    without added_tokens_decoder: names, which override those of tokenizer_config.json
//! added_tokens.json          likewise: tokens with their ids
//! ```
//!
//! A token missing in `tokenizer.json` gets its id in the vocabulary, or the next free one,
//! whatever these files state.

use crate::import::config;
use crate::import::short::{listed, short};
use kerple_lm::{Error, Result};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";
const DECODER: &str = "added_tokens_decoder";

/// Keys that name one special token each.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"];
/// Keys that name more of them.
const EXTRA: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];
/// What kind of token one is, besides its text and its id.
const KINDS: [&str; 5] = ["special", "lstrip", "rstrip", "single_word", "normalized"];

type JsonMap = Map<String, Value>;

/// The files that exist.
pub struct TokenizerFiles {
    folder: PathBuf,
    config: JsonMap,
    map: JsonMap,
    added: JsonMap,
}

/// A token that these files want.
struct WantedToken {
    token: JsonMap,
    /// The id that they give it.
    id: Option<u64>,
}

/// Whether a class of transformers keeps `tokenizer.json` as it is.
fn is_neutral(class: &str) -> bool {
    matches!(class, "PreTrainedTokenizerFast" | "PreTrainedTokenizer" | "TokenizersBackend")
}

fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// A token as `tokenizer.json` writes it, without its id.
fn token(value: &Value, special: bool) -> Option<JsonMap> {
    let text = content(value)?;
    let special = value["special"].as_bool().unwrap_or(special);
    let mut token = JsonMap::from_iter([("content".to_owned(), text.into()), ("special".to_owned(), special.into())]);
    for key in ["single_word", "lstrip", "rstrip"] {
        token.insert(key.to_owned(), value[key].as_bool().unwrap_or(false).into());
    }
    token.insert("normalized".to_owned(), value["normalized"].as_bool().unwrap_or(!special).into());
    Some(token)
}

impl TokenizerFiles {
    /// The files of a folder.
    ///
    /// # Errors
    /// Files that cannot be read, or do not contain JSON objects.
    pub fn of(folder: &Path) -> Result<TokenizerFiles> {
        let read = |name: &str| -> Result<JsonMap> {
            let path = folder.join(name);
            if !kerple_run::files::is_there(&path).map_err(Error::io(&path, "look for"))? {
                return Ok(JsonMap::new());
            }
            match config::parse(&path, &config::read_text(&path, config::DESCRIPTION)?)? {
                Value::Object(object) => Ok(object),
                _ => Err(Error::damaged(&path, "not a JSON object", "copy the file again")),
            }
        };
        Ok(TokenizerFiles { folder: folder.to_owned(), config: read(CONFIG)?, map: read(MAP)?, added: read(ADDED)? })
    }

    /// Whether they are all absent or empty.
    pub fn is_empty(&self) -> bool {
        self.config.is_empty() && self.map.is_empty() && self.added.is_empty()
    }

    fn decoder(&self) -> Option<&JsonMap> {
        self.config.get(DECODER).and_then(Value::as_object)
    }

    /// What a key of special tokens says, and in which file.
    fn said(&self, key: &str) -> Option<(&Value, &'static str)> {
        let in_map = self.map.get(key).filter(|_| self.decoder().is_none()).map(|value| (value, MAP));
        in_map.or_else(|| self.config.get(key).map(|value| (value, CONFIG))).filter(|(value, _)| !value.is_null())
    }

    /// The name of a special token, and the file that gives it.
    pub fn name(&self, key: &str) -> Option<(&str, &'static str)> {
        self.said(key).and_then(|(value, file)| Some((content(value)?, file)))
    }

    /// Special tokens that have no name of their own, and those of other keys that end as names do.
    fn extra(&self) -> Vec<JsonMap> {
        let mut found = Vec::new();
        for key in EXTRA {
            let Some((value, _)) = self.said(key) else { continue };
            let list = value.as_array().map(|list| list.iter().collect::<Vec<_>>());
            let table = value.as_object().map(|table| table.values().collect());
            found.extend(list.or(table).into_iter().flatten().filter_map(|value| token(value, true)));
            // the former is read where it holds anything
            if !found.is_empty() {
                break;
            }
        }
        let others = self.config.iter().filter(|(key, _)| key.ends_with("_token") && !NAMED.contains(&key.as_str()));
        found.extend(others.filter(|(_, value)| value.is_string()).filter_map(|(_, value)| token(value, true)));
        found
    }

    /// All tokens that the files want, in the order in which they are added.
    fn wanted(&self, own: &HashMap<String, u64>) -> Result<Vec<WantedToken>> {
        let named = NAMED.iter().filter_map(|key| self.said(key)).filter_map(|(value, _)| token(value, true));
        let rest: Vec<JsonMap> = named.chain(self.extra()).collect();
        let is_special = |text: &str| rest.iter().any(|token| token["content"] == text);
        let mut found: Vec<WantedToken> = match self.decoder() {
            Some(decoder) => decoder.iter().map(|(id, value)| self.numbered(id, value)).collect::<Result<_>>()?,
            None => {
                let ids: Vec<u64> = own.values().copied().collect();
                let tokens = self.added.iter().filter_map(|(text, id)| Some((text, id.as_u64()?)));
                let free = tokens.filter(|(text, id)| own.contains_key(*text) || !ids.contains(id));
                free.filter_map(|(text, id)| {
                    Some(WantedToken { token: token(&text.as_str().into(), is_special(text))?, id: Some(id) })
                })
                .collect()
            }
        };
        found.sort_by_key(|wanted| wanted.id);
        found.extend(rest.iter().cloned().map(|token| WantedToken { token, id: None }));
        for wanted in &mut found {
            if NAMED.iter().any(|key| self.name(key).is_some_and(|(name, _)| wanted.token["content"] == name)) {
                wanted.token.insert("special".to_owned(), true.into());
            }
        }
        Ok(found)
    }

    fn numbered(&self, id: &str, value: &Value) -> Result<WantedToken> {
        let read = id.parse::<u32>().ok().zip(token(value, false));
        let (id, token) = read.ok_or_else(|| {
            let message =
                format!("{DECODER}.{} = {}: it must be a token with an id", short(id), short(&value.to_string()));
            Error::damaged(&self.folder.join(CONFIG), message, "copy the file again")
        })?;
        Ok(WantedToken { token, id: Some(id.into()) })
    }

    /// The definition of a tokenizer extended by these files; `None` where they add nothing.
    ///
    /// # Errors
    /// A list of tokens that cannot be read.
    pub fn added_to(&self, path: &Path, definition: &str, notes: &mut Vec<String>) -> Result<Option<String>> {
        let damaged =
            |error: serde_json::Error| Error::damaged(path, format!("not a tokenizer: {error}"), "copy the file again");
        let mut parts: BTreeMap<String, Box<RawValue>> = serde_json::from_str(definition).map_err(damaged)?;
        let listed = parts.get("added_tokens").map_or("[]", |raw| raw.get());
        let mut all: Vec<JsonMap> = serde_json::from_str(listed).map_err(damaged)?;
        let mut own: HashMap<String, u64> = all
            .iter()
            .filter_map(|token| Some((token.get("content")?.as_str()?.to_owned(), token.get("id")?.as_u64()?)))
            .collect();
        self.remark(&own, notes);
        let mut changes = DefinitionChanges::default();
        let mut vocabulary: Option<HashMap<String, u64>> = None;
        for WantedToken { token, id } in self.wanted(&own)? {
            let text = token["content"].as_str().unwrap_or_default().to_owned();
            let found = match own.get(&text) {
                Some(known) => {
                    let exact = id.is_some() && self.decoder().is_some();
                    changes.kind(&mut all, &token, exact);
                    *known
                }
                None => {
                    let words = vocabulary.get_or_insert_with(|| words(parts.get("model").map_or("", |raw| raw.get())));
                    let largest = own.values().max().copied();
                    let next = largest.map_or(words.len() as u64, |largest| (largest + 1).max(words.len() as u64));
                    let taken = words.get(&text).copied().unwrap_or(next);
                    let mut token = token;
                    token.insert("id".to_owned(), taken.into());
                    changes.added.push(format!("{text} ({taken})"));
                    all.push(token);
                    own.insert(text.clone(), taken);
                    taken
                }
            };
            if let Some(said) = id.filter(|said| *said != found) {
                changes.moved.push(format!("{text}: {said} becomes {found}"));
            }
        }
        if !changes.tell(notes) {
            return Ok(None);
        }
        let list = serde_json::to_string(&json!(all)).map_err(damaged)?;
        parts.insert("added_tokens".to_owned(), RawValue::from_string(list).map_err(damaged)?);
        Ok(Some(serde_json::to_string(&parts).map_err(damaged)? + "\n"))
    }

    /// Says where transformers makes another tokenizer than `tokenizer.json` defines: its classes of families put their own
    /// normalizer and pre-tokenizer in place of those of the file.
    pub fn remark_on_class(&self, notes: &mut Vec<String>) {
        let class = self.config.get("tokenizer_class").and_then(Value::as_str).filter(|class| !is_neutral(class));
        if let Some(class) = class {
            let spaces = self.config.get("add_prefix_space").and_then(Value::as_bool);
            let spaces = spaces.map_or_else(String::new, |spaces| format!(" with add_prefix_space = {spaces}"));
            notes.push(format!(
                "texts become tokens as tokenizer.json defines; transformers 5 splits them as its class `{}` does{spaces}, \
                 which gives other tokens where the two differ",
                short(class)
            ));
        }
        if self.config.get("split_special_tokens") == Some(&Value::Bool(true)) {
            notes.push(format!(
                "split_special_tokens of {CONFIG} is ignored: names of special tokens in prompts are these tokens"
            ));
        }
    }

    /// Says which of two files is taken.
    fn remark(&self, own: &HashMap<String, u64>, notes: &mut Vec<String>) {
        let (taken, other) = if self.decoder().is_some() { (CONFIG, MAP) } else { (MAP, CONFIG) };
        for key in NAMED {
            let [one, two] = [&self.config, &self.map].map(|file| file.get(key).and_then(content));
            if let (Some(one), Some(two)) = (one, two)
                && one != two
            {
                notes.push(format!(
                    "{key} is `{}` in {CONFIG} but `{}` in {MAP}: using {taken} and not {other}, as transformers does",
                    short(one),
                    short(two)
                ));
            }
        }
        let Some(decoder) = self.decoder() else {
            let taken = |id: &Value, text: &String| own.iter().find(|(name, own)| id == **own && *name != text);
            let odd: Vec<String> = self
                .added
                .iter()
                .filter(|(text, id)| taken(id, text).is_some() && !own.contains_key(*text))
                .map(|(text, _)| text.clone())
                .collect();
            if !odd.is_empty() {
                notes.push(format!(
                    "ids of {ADDED} belong to other tokens of tokenizer.json, which are used: {}",
                    listed(&odd, 20)
                ));
            }
            return;
        };
        let known =
            |text: &String| own.contains_key(text) || decoder.values().any(|value| content(value) == Some(text));
        let unread: Vec<String> = self.added.keys().filter(|text| !known(text)).cloned().collect();
        if !unread.is_empty() {
            let list = listed(&unread, 20);
            notes.push(format!("{ADDED} is ignored because {CONFIG} has {DECODER}, as in transformers: {list}"));
        }
    }
}

/// What of a definition is changed.
#[derive(Default)]
struct DefinitionChanges {
    added: Vec<String>,
    kinds: Vec<String>,
    moved: Vec<String>,
}

impl DefinitionChanges {
    /// Gives a token of the list the kind that was said, or only makes it special.
    fn kind(&mut self, all: &mut [JsonMap], said: &JsonMap, exact: bool) {
        let Some(own) = all.iter_mut().find(|token| token.get("content") == said.get("content")) else { return };
        let mut changed = false;
        for key in KINDS.into_iter().filter(|key| exact || *key == "special" && said["special"] == true) {
            if own.get(key) != said.get(key) {
                own.insert(key.to_owned(), said[key].clone());
                changed = true;
            }
        }
        if changed {
            self.kinds.push(said["content"].as_str().unwrap_or_default().to_owned());
        }
    }

    /// Says what was changed, and whether anything was.
    fn tell(self, notes: &mut Vec<String>) -> bool {
        let DefinitionChanges { added, kinds, moved } = self;
        for (what, names) in [
            ("added the tokens of the files next to tokenizer.json to it", &added),
            ("used the kinds that the files next to tokenizer.json give these tokens", &kinds),
            ("replaced ids of the files next to tokenizer.json by the tokens' own", &moved),
        ] {
            if !names.is_empty() {
                notes.push(format!("{what}, as transformers does: {}", listed(names, 20)));
            }
        }
        !added.is_empty() || !kinds.is_empty()
    }
}

/// The words of a model and their ids.
fn words(model: &str) -> HashMap<String, u64> {
    let model: Value = serde_json::from_str(model).unwrap_or_default();
    let table = model["vocab"].as_object().into_iter().flatten();
    let list = model["vocab"].as_array().into_iter().flatten().enumerate();
    let of_list = list.filter_map(|(id, entry)| Some((entry[0].as_str()?.to_owned(), id as u64)));
    table.filter_map(|(word, id)| Some((word.clone(), id.as_u64()?))).chain(of_list).collect()
}
