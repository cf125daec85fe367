//! What `POST /v1/completions` asks for.

use crate::failure::{Failure, Outcome};
use crate::raw;
use crate::{Limits, Shared};
use kerple_lm::generate::Draw;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Most alternatives of a position.
const MOST_LOGPROBS: usize = 20;
/// Most strings that end a completion, and bytes of one.
const MOST_STOPS: (usize, usize) = (64, 1024);
/// Most log-probabilities of an answer.
const MOST_ENTRIES: usize = 1 << 22;

/// A request that was checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Completion {
    pub(crate) prompts: Vec<Prompt>,
    /// Whether the answer begins with the prompt.
    pub(crate) echo: bool,
    /// How many alternatives of every token are told; `None`: no log-probabilities at all.
    pub(crate) logprobs: Option<usize>,
    /// Most tokens to add.
    pub(crate) count: usize,
    pub(crate) draw: Draw,
    /// Texts before which a completion ends.
    pub(crate) stops: Vec<String>,
    pub(crate) stream: bool,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// At least one.
    pub(crate) tokens: Vec<u32>,
    /// What was written, where it was text.
    pub(crate) text: Option<String>,
}

/// The keys that are read. Others change nothing here and are ignored.
#[derive(Deserialize)]
struct Keys<'b> {
    #[serde(borrow)]
    prompt: Option<&'b RawValue>,
    #[serde(borrow)]
    echo: Option<&'b RawValue>,
    #[serde(borrow)]
    logprobs: Option<&'b RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'b RawValue>,
    #[serde(borrow)]
    temperature: Option<&'b RawValue>,
    #[serde(borrow)]
    top_k: Option<&'b RawValue>,
    #[serde(borrow)]
    top_p: Option<&'b RawValue>,
    #[serde(borrow)]
    seed: Option<&'b RawValue>,
    #[serde(borrow)]
    stop: Option<&'b RawValue>,
    #[serde(borrow)]
    stream: Option<&'b RawValue>,
    #[serde(borrow)]
    n: Option<&'b RawValue>,
    #[serde(borrow)]
    best_of: Option<&'b RawValue>,
    #[serde(borrow)]
    suffix: Option<&'b RawValue>,
    #[serde(borrow)]
    logit_bias: Option<&'b RawValue>,
}

impl Completion {
    /// Reads a body; `seed` is the draws' where none is asked for.
    ///
    /// # Errors
    /// What cannot be served, by key.
    pub(crate) fn read(bytes: &[u8], shared: &Shared, seed: u64) -> Outcome<Completion> {
        let keys: Keys = raw::body(bytes)?;
        refuse_others(&keys)?;
        let logprobs: Option<usize> = match keys.logprobs {
            None => None,
            Some(_) => {
                let expected = format!("a whole number from 0 to {MOST_LOGPROBS}");
                Some(raw::within("logprobs", keys.logprobs, 0, (0, MOST_LOGPROBS), &expected)?)
            }
        };
        let (least, most) = (i128::from(i64::MIN), i128::from(u64::MAX));
        let asked = raw::within("seed", keys.seed, i128::from(seed), (least, most), "a whole number of 64 bits")?;
        let draw = Draw {
            temperature: raw::within("temperature", keys.temperature, 1.0, (0.0, f64::MAX), "a number of at least 0")?,
            // some clients say -1 for all
            top_k: raw::within("top_k", keys.top_k, 0i64, (-1, i64::MAX), "a whole number, 0 for all tokens")?.max(0)
                as usize,
            top_p: raw::within("top_p", keys.top_p, 1.0, (0.0, 1.0), "a number from 0 to 1")?,
            seed: asked as u64,
        };
        let count = raw::value("max_tokens", keys.max_tokens, 16usize, "a whole number of at least 0")?;
        let prompts = prompts(keys.prompt, shared)?;
        let completion = Completion {
            echo: raw::value("echo", keys.echo, false, "true or false")?,
            stream: raw::value("stream", keys.stream, false, "true or false")?,
            stops: stops(keys.stop)?,
            prompts,
            logprobs,
            count,
            draw,
        };
        completion.check_sizes(&shared.limits)?;
        Ok(completion)
    }

    fn check_sizes(&self, limits: &Limits) -> Outcome<()> {
        let Limits { len, queue, .. } = *limits;
        if self.prompts.len() > queue {
            let message = format!("{} prompts were sent, at most {queue} are taken at once", self.prompts.len());
            return Err(Failure::bad("prompt", message));
        }
        let longest = self.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        // the last token drawn takes no position of its own
        if longest.saturating_add(self.count.saturating_sub(1)) > len {
            let message = format!(
                "a prompt of {longest} tokens and a completion of up to {} are more than the {len} tokens that this server \
                 takes; send less, or start it with a larger --max-len where the model is defined for more",
                self.count
            );
            return Err(Failure::bad("prompt", message));
        }
        let alternatives = self.logprobs.map_or(0, |count| count + 1);
        let told = self.prompts.iter().map(|prompt| if self.echo { prompt.tokens.len() } else { 0 } + self.count);
        let entries = told.sum::<usize>().saturating_mul(alternatives);
        if entries > MOST_ENTRIES {
            let message = format!(
                "the answer would hold {entries} log-probabilities, at most {MOST_ENTRIES} are told at once; send fewer \
                 prompts, or ask for fewer alternatives"
            );
            return Err(Failure::bad("logprobs", message));
        }
        Ok(())
    }
}

/// What this server does not do, unless it is asked to do nothing.
fn refuse_others(keys: &Keys) -> Outcome<()> {
    let refuse = |param, why: &str| Err(Failure::bad(param, format!("`{param}`: {why}")));
    let is = |raw: Option<&RawValue>, nothing: &[&str]| raw.is_none_or(|raw| nothing.contains(&raw.get()));
    if !is(keys.n, &["1"]) {
        return refuse("n", "one completion a prompt is written; send the prompt several times, with other seeds");
    }
    if !is(keys.best_of, &["1"]) {
        return refuse("best_of", "one completion a prompt is written, there is none to choose from");
    }
    if !is(keys.suffix, &["\"\""]) {
        return refuse("suffix", "text is only added behind the prompt");
    }
    if !is(keys.logit_bias, &["{}"]) {
        return refuse("logit_bias", "logits are the model's own");
    }
    Ok(())
}

/// A string, strings, token ids, or lists of token ids.
fn prompts(raw: Option<&RawValue>, shared: &Shared) -> Outcome<Vec<Prompt>> {
    const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of such lists";
    let Some(raw) = raw else { return Err(Failure::bad("prompt", format!("`prompt` is missing, it is {EXPECTED}"))) };
    let mut letters = raw.get().chars().filter(|letter| !letter.is_ascii_whitespace());
    let parsed = match (letters.next(), letters.next()) {
        (Some('"'), _) => vec![text(raw::value("prompt", Some(raw), String::new(), EXPECTED)?, shared)?],
        (Some('['), Some('"')) => {
            let texts: Vec<String> = raw::value("prompt", Some(raw), Vec::new(), EXPECTED)?;
            texts.into_iter().map(|written| text(written, shared)).collect::<Outcome<_>>()?
        }
        (Some('['), Some('[')) => {
            let lists: Vec<Vec<u32>> = raw::value("prompt", Some(raw), Vec::new(), EXPECTED)?;
            lists.into_iter().map(|ids| tokens(ids, shared)).collect::<Outcome<_>>()?
        }
        _ => vec![tokens(raw::value("prompt", Some(raw), Vec::new(), EXPECTED)?, shared)?],
    };
    Ok(parsed)
}

fn text(written: String, shared: &Shared) -> Outcome<Prompt> {
    let tokens = shared.tokenizer.encode(&written);
    let tokens = tokens.map_err(|error| Failure::bad("prompt", format!("{error}; {}", error.hint())))?;
    if tokens.is_empty() {
        return Err(empty());
    }
    Ok(Prompt { tokens, text: Some(written) })
}

fn tokens(tokens: Vec<u32>, shared: &Shared) -> Outcome<Prompt> {
    let vocab = shared.plan.model.vocab_size;
    if tokens.is_empty() {
        return Err(empty());
    }
    match tokens.iter().find(|id| **id as usize >= vocab) {
        Some(id) => {
            Err(Failure::bad("prompt", format!("there is no token {id}, the model has {vocab}, counted from 0")))
        }
        None => Ok(Prompt { tokens, text: None }),
    }
}

fn empty() -> Failure {
    Failure::bad("prompt", "a prompt is empty: begin with the token that ends a document, see /tokenizer_info")
}

/// A string or several; empty ones, which would end everything at once, are left out.
fn stops(raw: Option<&RawValue>) -> Outcome<Vec<String>> {
    const EXPECTED: &str = "a string or a list of strings";
    let list = raw.is_some_and(|raw| raw.get().starts_with('['));
    let mut stops: Vec<String> = match list {
        true => raw::value("stop", raw, Vec::new(), EXPECTED)?,
        false => vec![raw::value("stop", raw, String::new(), EXPECTED)?],
    };
    stops.retain(|stop| !stop.is_empty());
    let (most, longest) = MOST_STOPS;
    if stops.len() > most || stops.iter().any(|stop| stop.len() > longest) {
        return Err(Failure::bad("stop", format!("`stop` may hold up to {most} strings of up to {longest} bytes")));
    }
    Ok(stops)
}
