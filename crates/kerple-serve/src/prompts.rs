//! The model and the prompts of a request: text or tokens, one or many, up to the limit that can be
//! served.

use crate::ServeContext;
use crate::api_error::{ApiError, ApiResult};
use crate::list::{self, CappedList, UpTo};
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
pub(crate) struct BorrowedText<'b>(#[serde(borrow)] pub(crate) Cow<'b, str>);

const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of such lists";

/// A string, strings, token ids, or lists of token ids.
pub(crate) fn read(raw: Option<&RawValue>, shared: &ServeContext) -> ApiResult<Vec<Prompt>> {
    let Some(raw) = raw else {
        return Err(ApiError::bad("prompt", format!("`prompt` is missing; it must be {EXPECTED}")));
    };
    let wrong = |_| raw::wrong("prompt", raw, EXPECTED);
    let (len, queue) = (shared.limits.max_model_len, shared.limits.max_queue);
    let ids = UpTo(len, PhantomData::<u32>);
    let mut letters = raw.get().chars().filter(|letter| !letter.is_ascii_whitespace());
    match (letters.next(), letters.next()) {
        (Some('"'), _) => {
            let text = list::read(raw.get(), PhantomData::<BorrowedText>).map_err(wrong)?;
            Ok(vec![of_text(text, shared)?])
        }
        (Some('['), Some('"')) => {
            let texts = list::read(raw.get(), UpTo(queue, PhantomData::<BorrowedText>)).map_err(wrong)?;
            check_count(&texts, queue)?;
            let count = texts.count;
            let prompts = texts.kept.into_iter().map(|text| of_text(text, shared));
            prompts.enumerate().map(|(at, prompt)| prompt.map_err(|error| placed(error, at, count))).collect()
        }
        (Some('['), Some('[')) => {
            let lists = list::read(raw.get(), UpTo(queue, ids)).map_err(wrong)?;
            check_count(&lists, queue)?;
            let count = lists.count;
            let prompts = lists.kept.into_iter().map(|ids| of_tokens(ids, shared));
            prompts.enumerate().map(|(at, prompt)| prompt.map_err(|error| placed(error, at, count))).collect()
        }
        _ => Ok(vec![of_tokens(list::read(raw.get(), ids).map_err(wrong)?, shared)?]),
    }
}

fn check_count<T>(prompts: &CappedList<T>, queue: usize) -> ApiResult<()> {
    match prompts.count {
        count if count > queue => {
            Err(ApiError::bad("prompt", format!("{count} prompts are too many; at most {queue} are allowed at once")))
        }
        _ => Ok(()),
    }
}

fn of_text(BorrowedText(written): BorrowedText, shared: &ServeContext) -> ApiResult<Prompt> {
    let (len, longest) = (shared.limits.max_model_len, shared.names.longest());
    if written.len() > len.saturating_mul(longest) {
        let message = format!(
            "a prompt of {} bytes exceeds the {len} tokens that this server allows, of up to {longest} bytes each",
            written.len()
        );
        return Err(ApiError::bad("prompt", message));
    }
    let tokens = shared.tokenizer.encode(&written);
    let tokens = tokens.map_err(|error| ApiError::bad("prompt", format!("{error}; {}", error.hint())))?;
    if tokens.is_empty() {
        return Err(empty());
    }
    Ok(Prompt { tokens, text: Some(written.into_owned()) })
}

fn of_tokens(CappedList { kept, count }: CappedList<u32>, shared: &ServeContext) -> ApiResult<Prompt> {
    let (vocab, len) = (shared.plan.model.n_logits(), shared.limits.max_model_len);
    if count == 0 {
        return Err(empty());
    }
    if count > len {
        let message = format!("a prompt of {count} tokens exceeds the {len} tokens that this server allows");
        return Err(ApiError::bad("prompt", message));
    }
    match kept.iter().find(|id| **id as usize >= vocab) {
        Some(id) => {
            Err(ApiError::bad("prompt", format!("token {id} is out of range; the model has {vocab}, counted from 0")))
        }
        None => Ok(Prompt { tokens: kept, text: None }),
    }
}

/// An error about one of several prompts.
fn placed(error: ApiError, at: usize, count: usize) -> ApiError {
    match count {
        1 => error,
        _ => ApiError { message: format!("prompt {} of {count}: {}", at + 1, error.message), ..error },
    }
}

fn empty() -> ApiError {
    ApiError::bad("prompt", "a prompt is empty; start it with the token that ends a document, see /tokenizer_info")
}

impl ServeContext {
    /// Refuses the name of another model.
    pub(crate) fn check_model(&self, raw: Option<&RawValue>) -> ApiResult<()> {
        let Some(raw) = raw else { return Ok(()) };
        let asked =
            list::read(raw.get(), PhantomData::<BorrowedText>).map_err(|_| raw::wrong("model", raw, "a string"))?;
        if asked.0 == self.name { Ok(()) } else { Err(ApiError::no_model(&asked.0, &self.name)) }
    }
}
