//! The response to a completion request.

use crate::ServeContext;
use crate::choice::{FinishReason, TextDelta, TokenLogprobs};
use crate::completion::Completion;
use crate::names::by_id;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::sync::Arc;

/// What all chunks of a response share.
#[derive(Clone, Debug)]
pub(crate) struct ResponseContext {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) shared: Arc<ServeContext>,
    /// How many alternatives are returned; `None`: no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Whether tokens are called by their numbers.
    pub(crate) by_id: bool,
    /// Tokens of the prompts.
    pub(crate) prompt_tokens: usize,
    /// Whether a stream ends with the usage.
    pub(crate) usage: bool,
    /// What the request asks for without effect.
    pub(crate) notes: Vec<String>,
}

impl ResponseContext {
    /// The context of the response to `request`.
    pub(crate) fn new(id: String, created: u64, shared: Arc<ServeContext>, request: &Completion) -> ResponseContext {
        let Completion { logprobs, by_id, usage, .. } = *request;
        let prompt_tokens = request.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        ResponseContext { id, created, shared, logprobs, by_id, prompt_tokens, usage, notes: request.notes.clone() }
    }
}

#[derive(Serialize)]
struct CompletionResponse<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ResponseChoice<'a>>,
    /// Absent, or of parts of a stream that ends with it, null.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'a [String],
}

#[derive(Serialize)]
struct ResponseChoice<'a> {
    text: String,
    index: usize,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
struct Logprobs<'a> {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f64>>,
    tokens: Vec<Cow<'a, str>>,
    top_logprobs: Option<Vec<Option<TopLogprobs<'a>>>>,
}

/// Alternatives by name, the likeliest first. Names differ, so all of them come back.
struct TopLogprobs<'a>(&'a ResponseContext, Vec<(u32, f64)>);

impl Serialize for TopLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.1.iter().map(|(token, logprob)| (self.0.name(*token), logprob)))
    }
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl ResponseContext {
    /// The whole response as one object, with the usage.
    pub(crate) fn answer(&self, deltas: Vec<TextDelta>) -> String {
        let added = deltas.iter().map(|delta| delta.added).sum();
        let choices = deltas.into_iter().enumerate().map(|(index, delta)| self.choice(index, delta)).collect();
        self.written(choices, Some(Some(self.numbers(added))), &self.notes)
    }

    /// A chunk of a stream; the first has the notes.
    pub(crate) fn chunk(&self, index: usize, delta: TextDelta, is_first: bool) -> String {
        let notes = if is_first { &self.notes[..] } else { &[] };
        self.written(vec![self.choice(index, delta)], self.usage.then_some(None), notes)
    }

    /// The chunk that ends a stream with the usage; `added` tokens are new.
    pub(crate) fn end(&self, added: usize) -> String {
        self.written(Vec::new(), Some(Some(self.numbers(added))), &[])
    }

    fn numbers(&self, completion_tokens: usize) -> Usage {
        let prompt_tokens = self.prompt_tokens;
        Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }

    fn written(&self, choices: Vec<ResponseChoice>, usage: Option<Option<Usage>>, notes: &[String]) -> String {
        let ResponseContext { id, created, shared, .. } = self;
        let answer = CompletionResponse {
            id,
            object: "text_completion",
            created: *created,
            model: &shared.name,
            choices,
            usage,
            notes,
        };
        serde_json::to_string(&answer).expect("answers are finite numbers and text")
    }

    /// The name of a token in the response.
    fn name(&self, token: u32) -> Cow<'_, str> {
        if self.by_id { by_id(token).into() } else { self.shared.names.of(token).into() }
    }

    fn choice(&self, index: usize, delta: TextDelta) -> ResponseChoice<'_> {
        let TextDelta { text, entries, finish, .. } = delta;
        let logprobs = self.logprobs.map(|alternatives| {
            let mut all = Logprobs { text_offset: vec![], token_logprobs: vec![], tokens: vec![], top_logprobs: None };
            let mut tops = Vec::new();
            for TokenLogprobs { token, offset, logprob, top } in entries {
                all.text_offset.push(offset);
                all.token_logprobs.push(logprob);
                all.tokens.push(self.name(token));
                tops.push(top.map(|top| TopLogprobs(self, top)));
            }
            Logprobs { top_logprobs: (alternatives > 0).then_some(tops), ..all }
        });
        ResponseChoice { text, index, logprobs, finish_reason: finish }
    }
}

/// Appends a later delta.
pub(crate) fn join(all: &mut TextDelta, next: TextDelta) {
    all.text.push_str(&next.text);
    all.entries.extend(next.entries);
    all.added += next.added;
    all.finish = next.finish.or(all.finish);
}
