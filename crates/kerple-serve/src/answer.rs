//! The response to a completion request.

use crate::Shared;
use crate::choice::{Entry, Finish, Piece};
use crate::completion::Completion;
use crate::names::by_id;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::sync::Arc;

/// What all parts of an answer begin with, and what they are told by.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) shared: Arc<Shared>,
    /// How many alternatives are told; `None`: no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Whether tokens are called by their numbers.
    pub(crate) by_id: bool,
    /// Tokens of the prompts.
    pub(crate) prompt_tokens: usize,
    /// Whether a stream ends with the numbers of tokens.
    pub(crate) usage: bool,
}

impl Head {
    /// Of the answer to a request.
    pub(crate) fn new(id: String, created: u64, shared: Arc<Shared>, request: &Completion) -> Head {
        let Completion { logprobs, by_id, usage, .. } = *request;
        let prompt_tokens = request.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        Head { id, created, shared, logprobs, by_id, prompt_tokens, usage }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Told<'a>>,
    /// Absent, or of parts of a stream that ends with it, null.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Told<'a> {
    text: String,
    index: usize,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<Finish>,
}

#[derive(Serialize)]
struct Logprobs<'a> {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f64>>,
    tokens: Vec<Cow<'a, str>>,
    top_logprobs: Option<Vec<Option<Top<'a>>>>,
}

/// Alternatives by name, the likeliest first. Names differ, so all of them come back.
struct Top<'a>(&'a Head, Vec<(u32, f64)>);

impl Serialize for Top<'_> {
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

impl Head {
    /// All pieces as one object, with the numbers of tokens.
    pub(crate) fn answer(&self, pieces: Vec<Piece>) -> String {
        let added = pieces.iter().map(|piece| piece.added).sum();
        let choices = pieces.into_iter().enumerate().map(|(index, piece)| self.told(index, piece)).collect();
        self.written(choices, Some(Some(self.numbers(added))))
    }

    /// A piece as a part of a stream.
    pub(crate) fn part(&self, index: usize, piece: Piece) -> String {
        self.written(vec![self.told(index, piece)], self.usage.then_some(None))
    }

    /// The part that ends a stream with the numbers of tokens, `added` of them new.
    pub(crate) fn end(&self, added: usize) -> String {
        self.written(Vec::new(), Some(Some(self.numbers(added))))
    }

    fn numbers(&self, completion_tokens: usize) -> Usage {
        let prompt_tokens = self.prompt_tokens;
        Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }

    fn written(&self, choices: Vec<Told>, usage: Option<Option<Usage>>) -> String {
        let Head { id, created, shared, .. } = self;
        let answer = Answer { id, object: "text_completion", created: *created, model: &shared.name, choices, usage };
        serde_json::to_string(&answer).expect("answers are finite numbers and text")
    }

    /// What a token is called.
    fn name(&self, token: u32) -> Cow<'_, str> {
        if self.by_id { by_id(token).into() } else { self.shared.names.of(token).into() }
    }

    fn told(&self, index: usize, piece: Piece) -> Told<'_> {
        let Piece { text, entries, finish, .. } = piece;
        let logprobs = self.logprobs.map(|alternatives| {
            let mut all = Logprobs { text_offset: vec![], token_logprobs: vec![], tokens: vec![], top_logprobs: None };
            let mut tops = Vec::new();
            for Entry { token, offset, logprob, top } in entries {
                all.text_offset.push(offset);
                all.token_logprobs.push(logprob);
                all.tokens.push(self.name(token));
                tops.push(top.map(|top| Top(self, top)));
            }
            Logprobs { top_logprobs: (alternatives > 0).then_some(tops), ..all }
        });
        Told { text, index, logprobs, finish_reason: finish }
    }
}

/// Adds what came later to a piece.
pub(crate) fn join(all: &mut Piece, next: Piece) {
    all.text.push_str(&next.text);
    all.entries.extend(next.entries);
    all.added += next.added;
    all.finish = next.finish.or(all.finish);
}
