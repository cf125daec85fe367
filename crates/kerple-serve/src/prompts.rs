//! The model and the prompts of a request: text or tokens, one or many, up to the limit that can be
//! served.

use crate::Shared;
use crate::failure::{Failure, Outcome};
use crate::list::{self, List, UpTo};
use crate::raw;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::marker::PhantomData;

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// At least one.
    pub(crate) tokens: Vec<u32>,
    /// What was written, where it was text.
    pub(crate) text: Option<String>,
}

/// Text that is copied only where it was written with escapes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Text<'b>(#[serde(borrow)] pub(crate) Cow<'b, str>);

const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of such lists";

/// A string, strings, token ids, or lists of token ids.
pub(crate) fn read(raw: Option<&RawValue>, shared: &Shared) -> Outcome<Vec<Prompt>> {
    let Some(raw) = raw else {
        return Err(Failure::bad("prompt", format!("`prompt` is missing; it must be {EXPECTED}")));
    };
    let wrong = |_| raw::wrong("prompt", raw, EXPECTED);
    let (len, queue) = (shared.limits.max_model_len, shared.limits.max_queue);
    let ids = UpTo(len, PhantomData::<u32>);
    let mut letters = raw.get().chars().filter(|letter| !letter.is_ascii_whitespace());
    match (letters.next(), letters.next()) {
        (Some('"'), _) => {
            let text = list::read(raw.get(), PhantomData::<Text>).map_err(wrong)?;
            Ok(vec![of_text(text, shared)?])
        }
        (Some('['), Some('"')) => {
            let texts = list::read(raw.get(), UpTo(queue, PhantomData::<Text>)).map_err(wrong)?;
            check_count(&texts, queue)?;
            texts.kept.into_iter().map(|text| of_text(text, shared)).collect()
        }
        (Some('['), Some('[')) => {
            let lists = list::read(raw.get(), UpTo(queue, ids)).map_err(wrong)?;
            check_count(&lists, queue)?;
            lists.kept.into_iter().map(|ids| of_tokens(ids, shared)).collect()
        }
        _ => Ok(vec![of_tokens(list::read(raw.get(), ids).map_err(wrong)?, shared)?]),
    }
}

fn check_count<T>(prompts: &List<T>, queue: usize) -> Outcome<()> {
    match prompts.count {
        count if count > queue => {
            Err(Failure::bad("prompt", format!("{count} prompts are too many; at most {queue} are allowed at once")))
        }
        _ => Ok(()),
    }
}

fn of_text(Text(written): Text, shared: &Shared) -> Outcome<Prompt> {
    let (len, longest) = (shared.limits.max_model_len, shared.names.longest());
    if written.len() > len.saturating_mul(longest) {
        let message = format!(
            "a prompt of {} bytes exceeds the {len} tokens that this server allows, of up to {longest} bytes each",
            written.len()
        );
        return Err(Failure::bad("prompt", message));
    }
    let tokens = shared.tokenizer.encode(&written);
    let tokens = tokens.map_err(|error| Failure::bad("prompt", format!("{error}; {}", error.hint())))?;
    if tokens.is_empty() {
        return Err(empty());
    }
    Ok(Prompt { tokens, text: Some(written.into_owned()) })
}

fn of_tokens(List { kept, count }: List<u32>, shared: &Shared) -> Outcome<Prompt> {
    let (vocab, len) = (shared.plan.model.vocab_size, shared.limits.max_model_len);
    if count == 0 {
        return Err(empty());
    }
    if count > len {
        let message = format!("a prompt of {count} tokens exceeds the {len} tokens that this server allows");
        return Err(Failure::bad("prompt", message));
    }
    match kept.iter().find(|id| **id as usize >= vocab) {
        Some(id) => {
            Err(Failure::bad("prompt", format!("token {id} is out of range; the model has {vocab}, counted from 0")))
        }
        None => Ok(Prompt { tokens: kept, text: None }),
    }
}

fn empty() -> Failure {
    Failure::bad("prompt", "a prompt is empty; start it with the token that ends a document, see /tokenizer_info")
}

impl Shared {
    /// Refuses the name of another model.
    pub(crate) fn check_model(&self, raw: Option<&RawValue>) -> Outcome<()> {
        let Some(raw) = raw else { return Ok(()) };
        let asked = list::read(raw.get(), PhantomData::<Text>).map_err(|_| raw::wrong("model", raw, "a string"))?;
        if asked.0 == self.name { Ok(()) } else { Err(Failure::no_model(&asked.0, &self.name)) }
    }
}
