//! What a completion is answered with.

use crate::choice::{Entry, Finish, Piece};
use serde::Serialize;
use std::collections::BTreeMap;

/// What all parts of an answer begin with.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// How many alternatives are told; `None`: no log-probabilities.
    pub(crate) logprobs: Option<usize>,
}

#[derive(Serialize)]
struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Told>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct Told {
    text: String,
    index: usize,
    logprobs: Option<Logprobs>,
    finish_reason: Option<Finish>,
}

#[derive(Serialize)]
struct Logprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f64>>,
    tokens: Vec<String>,
    top_logprobs: Option<Vec<Option<BTreeMap<String, f64>>>>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl Head {
    /// Some pieces as one object: a part of a stream, or all with the number of tokens of the prompts.
    pub(crate) fn answer(&self, pieces: Vec<(usize, Piece)>, prompt_tokens: Option<usize>) -> String {
        let completion_tokens = pieces.iter().map(|(_, piece)| piece.added).sum();
        let usage = prompt_tokens.map(|prompt_tokens| Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        });
        let choices = pieces.into_iter().map(|(index, piece)| self.told(index, piece)).collect();
        let Head { id, created, model, .. } = self;
        let answer = Answer { id, object: "text_completion", created: *created, model, choices, usage };
        serde_json::to_string(&answer).expect("answers are finite numbers and text")
    }

    fn told(&self, index: usize, piece: Piece) -> Told {
        let Piece { text, entries, finish, .. } = piece;
        let logprobs = self.logprobs.map(|alternatives| {
            let mut all = Logprobs { text_offset: vec![], token_logprobs: vec![], tokens: vec![], top_logprobs: None };
            let mut tops = Vec::new();
            for Entry { text, offset, logprob, top } in entries {
                all.text_offset.push(offset);
                all.token_logprobs.push(logprob);
                all.tokens.push(text);
                tops.push(top);
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
