//! The request of `POST /v1/completions`.

use crate::api_error::{ApiError, ApiResult};
use crate::list::{self, UpTo};
use crate::notes::{self, AskedKeys, Unused};
use crate::penalties::Penalties;
use crate::prompts::{self, BorrowedText, Prompt};
use crate::raw::{self, BodyKeys, Neutral};
use crate::{ServeContext, ServerLimits};
use kerple_lm::generate::SamplingParams;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::marker::PhantomData;

/// Most alternatives of a position.
const MOST_LOGPROBS: usize = 20;
/// Most strings, or tokens, that end a completion, and bytes of a string.
const MOST_STOPS: (usize, usize) = (64, 1024);
/// Log-probabilities that an answer may hold however short texts are.
const FEWEST_ENTRIES: usize = 1 << 18;

/// A request that was checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Completion {
    pub(crate) prompts: Vec<Prompt>,
    /// Whether the answer begins with the prompt.
    pub(crate) echo: bool,
    /// How many alternatives of every token are returned; `None`: no log-probabilities at all.
    pub(crate) logprobs: Option<usize>,
    /// Whether tokens are called by their numbers.
    pub(crate) by_id: bool,
    /// Most tokens to add.
    pub(crate) count: usize,
    pub(crate) draw: SamplingParams,
    pub(crate) penalties: Penalties,
    /// Texts before which a completion ends.
    pub(crate) stops: Vec<String>,
    /// Tokens with which it ends.
    pub(crate) ends: Vec<u32>,
    pub(crate) stream: bool,
    /// Whether the last event of a stream has the numbers of tokens.
    pub(crate) usage: bool,
    /// What the request asks for without effect.
    pub(crate) notes: Vec<String>,
}

/// The keys that are read.
const TAKEN: &str = "prompt, model, max_tokens, echo, logprobs, return_tokens_as_token_ids, temperature, top_p, top_k, min_p, \
    frequency_penalty, presence_penalty, repetition_penalty, seed, stop, stop_token_ids, ignore_eos, stream, stream_options \
    and user";

const fn neutral(name: &'static str, values: &'static [&'static str], why: &'static str) -> Neutral {
    Neutral { name, values, why }
}

/// What clients may send, and what is not done unless it asks for nothing.
const NEUTRAL: [Neutral; 20] = [
    neutral("n", &["1"], "it writes one completion per prompt; send the prompt several times, with other seeds"),
    neutral("best_of", &["1"], "it writes one completion per prompt, so there is nothing to choose from"),
    neutral("suffix", &["\"\""], "it adds text only after the prompt"),
    neutral("logit_bias", &["{}"], "it does not change the model's logits"),
    neutral("response_format", &["{\"type\":\"text\"}"], "it does not constrain the format of the text"),
    neutral("guided_json", &[], "it does not constrain the format of the text"),
    neutral("guided_regex", &[], "it does not constrain the format of the text"),
    neutral("guided_choice", &[], "it does not constrain the format of the text"),
    neutral("guided_grammar", &[], "it does not constrain the format of the text"),
    neutral("tools", &["[]"], "it does not support tools"),
    neutral("tool_choice", &["\"none\"", "\"auto\""], "it does not support tools"),
    neutral("min_tokens", &["0"], "a completion may end at once; set `ignore_eos` to continue past the end"),
    neutral("use_beam_search", &["false"], "it samples token by token"),
    neutral("length_penalty", &["1"], "it samples token by token"),
    neutral("include_stop_str_in_output", &["false"], "a completion ends before the stop string"),
    neutral("skip_special_tokens", &["true"], "special tokens have no text"),
    neutral("spaces_between_special_tokens", &["true"], "special tokens have no text"),
    neutral("add_special_tokens", &["false"], "it takes the prompt as is; start it with the tokens it needs"),
    neutral("truncate_prompt_tokens", &[], "it takes the prompt as is; send only the part that counts"),
    neutral("prompt_logprobs", &[], "use `echo` with `logprobs` for those of the prompt"),
];

impl Completion {
    /// Reads a body; `seed` is the draws' where none is asked for.
    ///
    /// # Errors
    /// What cannot be served, by key.
    pub(crate) fn read(bytes: &[u8], shared: &ServeContext, seed: u64) -> ApiResult<Completion> {
        let mut keys = BodyKeys::of(bytes)?;
        let asked = AskedKeys::of(&keys);
        shared.check_model(keys.take("model"))?;
        let flag = |keys: &mut BodyKeys, name| raw::value(name, keys.take(name), false, "true or false");
        let logprobs = match keys.take("logprobs") {
            None => None,
            found => {
                let expected = format!("a whole number from 0 to {MOST_LOGPROBS}");
                Some(raw::within("logprobs", found, 0, (0, MOST_LOGPROBS), &expected)?)
            }
        };
        let stream = flag(&mut keys, "stream")?;
        let ignores_ends = flag(&mut keys, "ignore_eos")?;
        let mut ends = stop_tokens(keys.take("stop_token_ids"), shared)?;
        let ends_anyway = ignores_ends && shared.special.eos.iter().all(|eos| ends.contains(eos));
        ends.extend(shared.special.eos.iter().filter(|_| !ignores_ends));
        let (stops, has_empty_stop) = stops(keys.take("stop"))?;
        let mut completion = Completion {
            echo: flag(&mut keys, "echo")?,
            by_id: flag(&mut keys, "return_tokens_as_token_ids")?,
            usage: usage(keys.take("stream_options"), stream)?,
            stops,
            count: raw::value("max_tokens", keys.take("max_tokens"), 16, "a whole number of at least 0")?,
            draw: draw(&mut keys, seed)?,
            penalties: penalties(&mut keys)?,
            prompts: prompts::read(keys.take("prompt"), shared)?,
            logprobs,
            ends,
            stream,
            notes: Vec::new(),
        };
        // who asks: changes no answer
        raw::value("user", keys.take("user"), BorrowedText("".into()), "a string")?;
        keys.finish(&NEUTRAL, TAKEN)?;
        completion.check_sizes(&shared.limits)?;
        let unused = Unused {
            ignore_eos: ends_anyway,
            token_ids: completion.by_id && completion.logprobs.is_none(),
            empty_stop: has_empty_stop,
            special_stops: shared.names.special_among(&completion.stops),
        };
        completion.notes = notes::without_effect(&asked, completion.count, &completion.draw, unused);
        Ok(completion)
    }

    fn check_sizes(&self, limits: &ServerLimits) -> ApiResult<()> {
        let len = limits.max_model_len;
        let longest = self.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        // the last token drawn takes no position of its own
        if longest.saturating_add(self.count.saturating_sub(1)) > len {
            let message = format!(
                "a prompt of {longest} tokens and a completion of up to {} exceed the {len} tokens \
                 that this server allows; send less, or restart the server with a larger --max-model-len \
                 if the model supports it",
                self.count
            );
            // a completion that is too long for a prompt of one token is to blame whatever the prompt
            let blamed = if self.count > len { "max_tokens" } else { "prompt" };
            return Err(ApiError::bad(blamed, message));
        }
        let alternatives = self.logprobs.map_or(0, |count| count + 1);
        let tokens = self.prompts.iter().map(|prompt| if self.echo { prompt.tokens.len() } else { 0 } + self.count);
        let entries = tokens.sum::<usize>().saturating_mul(alternatives);
        // the log-probabilities of one completion of any length are always returned
        let most = FEWEST_ENTRIES.max((len + 1).saturating_mul(MOST_LOGPROBS + 1));
        if entries > most {
            let message = format!(
                "the answer would contain {entries} log-probabilities; at most {most} are allowed; \
                 send fewer prompts, or ask for fewer alternatives"
            );
            return Err(ApiError::bad("logprobs", message));
        }
        Ok(())
    }
}

fn draw(keys: &mut BodyKeys, seed: u64) -> ApiResult<SamplingParams> {
    let (least, most) = (i128::from(i64::MIN), i128::from(u64::MAX));
    let seed = raw::within("seed", keys.take("seed"), i128::from(seed), (least, most), "a whole number of 64 bits")?;
    // some clients say -1 for all
    let top_k = raw::within("top_k", keys.take("top_k"), 0i64, (-1, i64::MAX), "a whole number, 0 for all tokens")?;
    Ok(SamplingParams {
        temperature: number(keys, "temperature", 1.0, (0.0, f64::MAX), "a number of at least 0")?,
        top_k: top_k.max(0) as usize,
        top_p: number(keys, "top_p", 1.0, (0.0, 1.0), "a number from 0 to 1")?,
        seed: seed as u64,
    })
}

fn penalties(keys: &mut BodyKeys) -> ApiResult<Penalties> {
    let none = Penalties::NONE;
    let range = (-2.0, 2.0);
    Ok(Penalties {
        repetition: number(keys, "repetition_penalty", none.repetition, (1e-3, 1e3), "a number from 0.001 to 1000")?,
        frequency: number(keys, "frequency_penalty", none.frequency, range, "a number from -2 to 2")?,
        presence: number(keys, "presence_penalty", none.presence, range, "a number from -2 to 2")?,
        min_p: number(keys, "min_p", none.min_p, (0.0, 1.0), "a number from 0 to 1")?,
    })
}

fn number(keys: &mut BodyKeys, name: &'static str, absent: f64, range: (f64, f64), expected: &str) -> ApiResult<f64> {
    raw::within(name, keys.take(name), absent, range, expected)
}

/// Whether a stream is to end with the numbers of tokens.
fn usage(raw: Option<&RawValue>, stream: bool) -> ApiResult<bool> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct StreamOptions {
        include_usage: Option<bool>,
    }
    let Some(raw) = raw else { return Ok(false) };
    if !stream {
        return Err(ApiError::bad(
            "stream_options",
            "`stream_options` needs `stream` set to true; set it, or leave `stream_options` out",
        ));
    }
    let absent = StreamOptions { include_usage: None };
    let options = raw::value("stream_options", Some(raw), absent, "an object with `include_usage`, true or false")?;
    Ok(options.include_usage.unwrap_or(false))
}

/// A string or several; empty ones, which would end everything at once, are left out. Whether there were any.
fn stops(raw: Option<&RawValue>) -> ApiResult<(Vec<String>, bool)> {
    const EXPECTED: &str = "a string or a list of strings";
    let Some(raw) = raw else { return Ok((Vec::new(), false)) };
    let wrong = |_| raw::wrong("stop", raw, EXPECTED);
    let (most, longest) = MOST_STOPS;
    let text = PhantomData::<BorrowedText>;
    let (texts, count) = match raw.get().starts_with('[') {
        true => list::read(raw.get(), UpTo(most, text)).map(|texts| (texts.kept, texts.count)).map_err(wrong)?,
        false => (vec![list::read(raw.get(), text).map_err(wrong)?], 1),
    };
    if count > most || texts.iter().any(|BorrowedText(stop)| stop.len() > longest) {
        return Err(ApiError::bad("stop", format!("`stop` may have up to {most} strings of up to {longest} bytes")));
    }
    let (empty, stops): (Vec<String>, Vec<String>) =
        texts.into_iter().map(|BorrowedText(stop)| stop.into_owned()).partition(String::is_empty);
    Ok((stops, !empty.is_empty()))
}

/// Tokens with which a text ends.
fn stop_tokens(raw: Option<&RawValue>, shared: &ServeContext) -> ApiResult<Vec<u32>> {
    let Some(raw) = raw else { return Ok(Vec::new()) };
    let (most, vocab) = (MOST_STOPS.0, shared.plan.model.n_logits());
    let expected = format!("a list of up to {most} token ids below {vocab}");
    let found = list::read(raw.get(), UpTo(most, PhantomData::<u32>));
    match found {
        Ok(ids) if ids.count <= most && ids.kept.iter().all(|id| (*id as usize) < vocab) => Ok(ids.kept),
        _ => Err(raw::wrong("stop_token_ids", raw, &expected)),
    }
}
