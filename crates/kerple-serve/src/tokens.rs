//! The tokenizer, for clients that have none.

use crate::Shared;
use crate::failure::{Failure, Outcome};
use crate::raw;
use kerple_data::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashMap;

/// Texts of single tokens.
pub(crate) struct Names<'s> {
    tokenizer: &'s Tokenizer,
    special: HashMap<u32, String>,
}

impl<'s> Names<'s> {
    pub(crate) fn new(tokenizer: &'s Tokenizer) -> Names<'s> {
        let special = tokenizer.special_tokens().into_iter().map(|(name, id)| (id, name)).collect();
        Names { tokenizer, special }
    }

    pub(crate) fn tokenizer(&self) -> &'s Tokenizer {
        self.tokenizer
    }

    /// The text of a token; its name where it has no text.
    pub(crate) fn of(&self, token: u32) -> String {
        self.special.get(&token).cloned().unwrap_or_else(|| self.tokenizer.decode(&[token]))
    }

    /// The text of tokens, with names where they have none.
    fn text(&self, tokens: &[u32]) -> String {
        let mut text = String::new();
        for part in tokens.chunk_by(|a, b| !self.special.contains_key(a) && !self.special.contains_key(b)) {
            match self.special.get(&part[0]) {
                Some(name) => text.push_str(name),
                None => text.push_str(&self.tokenizer.decode(part)),
            }
        }
        text
    }
}

#[derive(Serialize)]
pub(crate) struct Info {
    tokenizer_class: &'static str,
    bos_token: Option<String>,
    bos_token_id: u32,
    eos_token: Option<String>,
    eos_token_id: u32,
    pad_token: Option<String>,
    pad_token_id: u32,
    chat_template: Option<String>,
    vocab_size: usize,
    max_model_len: usize,
}

/// What is known of the tokenizer. Where no other token is known to begin a text, the one that ends a document does.
pub(crate) fn info(shared: &Shared) -> Info {
    let Shared { tokenizer, special, plan, .. } = shared;
    let (end, vocab_size) = (tokenizer.end_of_document(), plan.facts.vocab_size);
    let names = Names::new(tokenizer);
    let (bos, pad) = (special.start(tokenizer), special.pad.unwrap_or(end));
    let eos = special.eos.first().copied().unwrap_or(end);
    let name = |id| Some(names.of(id));
    Info {
        tokenizer_class: "kerple",
        bos_token: name(bos),
        bos_token_id: bos,
        eos_token: name(eos),
        eos_token_id: eos,
        pad_token: name(pad),
        pad_token_id: pad,
        chat_template: None,
        vocab_size,
        max_model_len: shared.limits.len,
    }
}

#[derive(Deserialize)]
struct TextKeys<'b> {
    #[serde(borrow)]
    prompt: Option<&'b RawValue>,
}

#[derive(Serialize)]
pub(crate) struct Tokens {
    tokens: Vec<u32>,
    count: usize,
    max_model_len: usize,
}

/// Text to tokens. Names of special tokens in the text stand for those.
pub(crate) fn tokenize(bytes: &[u8], shared: &Shared) -> Outcome<Tokens> {
    let keys: TextKeys = raw::body(bytes)?;
    let text: String = raw::value("prompt", Some(needed(keys.prompt, "prompt")?), String::new(), "a string")?;
    let tokens = shared.tokenizer.encode_with_names(&text);
    let tokens = tokens.map_err(|error| Failure::bad("prompt", format!("{error}; {}", error.hint())))?;
    Ok(Tokens { count: tokens.len(), tokens, max_model_len: shared.limits.len })
}

#[derive(Deserialize)]
struct TokenKeys<'b> {
    #[serde(borrow)]
    tokens: Option<&'b RawValue>,
}

#[derive(Serialize)]
pub(crate) struct Text {
    prompt: String,
}

/// Tokens to text.
pub(crate) fn detokenize(bytes: &[u8], shared: &Shared) -> Outcome<Text> {
    let keys: TokenKeys = raw::body(bytes)?;
    let tokens: Vec<u32> =
        raw::value("tokens", Some(needed(keys.tokens, "tokens")?), Vec::new(), "a list of token ids")?;
    Ok(Text { prompt: Names::new(&shared.tokenizer).text(&tokens) })
}

fn needed<'b>(raw: Option<&'b RawValue>, param: &'static str) -> Outcome<&'b RawValue> {
    raw.ok_or_else(|| Failure::bad(param, format!("`{param}` is missing")))
}
