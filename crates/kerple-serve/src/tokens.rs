//! Tokenizer endpoints, for clients without one.

use crate::ServeContext;
use crate::api_error::{ApiError, ApiResult};
use crate::list;
use crate::prompts::BorrowedText;
use crate::raw::{self, BodyKeys, Neutral};
use serde::Serialize;
use std::marker::PhantomData;

#[derive(Serialize)]
pub(crate) struct TokenizerInfo {
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
pub(crate) fn info(shared: &ServeContext) -> TokenizerInfo {
    let ServeContext { tokenizer, special, plan, names, .. } = shared;
    let (end, vocab_size) = (tokenizer.end_of_document(), plan.data_info.vocab_size);
    let (bos, pad) = (special.start(tokenizer), special.pad.unwrap_or(end));
    let eos = special.eos.first().copied().unwrap_or(end);
    let name = |id| Some(names.of(id).to_owned());
    TokenizerInfo {
        tokenizer_class: "kerple",
        bos_token: name(bos),
        bos_token_id: bos,
        eos_token: name(eos),
        eos_token_id: eos,
        pad_token: name(pad),
        pad_token_id: pad,
        chat_template: None,
        vocab_size,
        max_model_len: shared.limits.max_model_len,
    }
}

#[derive(Serialize)]
pub(crate) struct TokenizeResponse {
    tokens: Vec<u32>,
    count: usize,
    max_model_len: usize,
}

/// No tokens are added to those of the text.
const NEUTRAL: [Neutral; 1] = [Neutral {
    name: "add_special_tokens",
    values: &["false"],
    why: "names of special tokens in the text encode those tokens, and nothing is added",
}];

/// Text, or bytes, to tokens. Names of special tokens in the text stand for those.
pub(crate) fn tokenize(body: &[u8], shared: &ServeContext) -> ApiResult<TokenizeResponse> {
    let mut keys = BodyKeys::of(body)?;
    shared.check_model(keys.take("model"))?;
    let (prompt, bytes) = (keys.take("prompt"), keys.take("bytes"));
    keys.finish(&NEUTRAL, "prompt or bytes, and model")?;
    let (param, tokens) = match (prompt, bytes) {
        (Some(prompt), None) => {
            let text = list::read(prompt.get(), PhantomData::<BorrowedText>);
            let BorrowedText(text) = text.map_err(|_| raw::wrong("prompt", prompt, "a string"))?;
            ("prompt", shared.tokenizer.encode_with_names(&text))
        }
        (None, Some(_)) => {
            let bytes: Vec<u8> = raw::value("bytes", bytes, Vec::new(), "a list of numbers from 0 to 255")?;
            let tokens = shared.tokenizer.encode_bytes(&bytes);
            if let (Ok(tokens), Err(_)) = (&tokens, std::str::from_utf8(&bytes))
                && shared.names.bytes(&shared.tokenizer, tokens) != bytes
            {
                let message = "no tokens of the tokenizer decode to exactly these bytes; send token ids";
                return Err(ApiError::bad("bytes", message));
            }
            ("bytes", tokens)
        }
        (Some(_), Some(_)) => return Err(ApiError::bad("bytes", "`prompt` and `bytes` exclude each other; send one")),
        (None, None) => return Err(missing("prompt")),
    };
    let tokens = tokens.map_err(|error| ApiError::bad(param, format!("{error}; {}", error.hint())))?;
    Ok(TokenizeResponse { count: tokens.len(), tokens, max_model_len: shared.limits.max_model_len })
}

/// Text, and where that cannot be written as it is, its bytes.
#[derive(Serialize)]
pub(crate) struct DetokenizeResponse {
    prompt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
}

/// Tokens to text, special ones to their names.
pub(crate) fn detokenize(body: &[u8], shared: &ServeContext) -> ApiResult<DetokenizeResponse> {
    let mut keys = BodyKeys::of(body)?;
    shared.check_model(keys.take("model"))?;
    let Some(tokens) = keys.take("tokens") else { return Err(missing("tokens")) };
    keys.finish(&[], "tokens and model")?;
    let tokens: Vec<u32> = raw::value("tokens", Some(tokens), Vec::new(), "a list of token ids")?;
    let vocab = shared.plan.data_info.vocab_size;
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
        let message = format!("token {id} is out of range; the tokenizer has {vocab}, counted from 0");
        return Err(ApiError::bad("tokens", message));
    }
    Ok(match String::from_utf8(shared.names.bytes(&shared.tokenizer, &tokens)) {
        Ok(prompt) => DetokenizeResponse { prompt, bytes: None },
        Err(not_text) => {
            let prompt = String::from_utf8_lossy(not_text.as_bytes()).into_owned();
            DetokenizeResponse { prompt, bytes: Some(not_text.into_bytes()) }
        }
    })
}

fn missing(param: &'static str) -> ApiError {
    ApiError::bad(param, format!("`{param}` is missing"))
}
