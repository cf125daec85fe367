//! A completion in progress: tokens in, pieces of text with log-probabilities out.

use crate::ServeContext;
use crate::completion::Completion;
use crate::prompts::Prompt;
use crate::stop::{FilteredText, StopFilter};
use kerple_core::ops::cross_entropy::TopK;
use kerple_data::StreamDecoder;
use std::collections::VecDeque;
use std::sync::Arc;

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FinishReason {
    /// As many tokens as were asked for.
    Length,
    /// The document ended, or a string came before which to stop.
    Stop,
}

/// The log-probabilities of one token in the response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLogprobs {
    pub(crate) token: u32,
    /// Characters before it.
    pub(crate) offset: usize,
    /// `ln p` of the token; nothing predicts the first of a text.
    pub(crate) logprob: Option<f64>,
    /// The likeliest in its place, the likeliest of all first.
    pub(crate) top: Option<Vec<(u32, f64)>>,
}

/// Text that no stop string can remove any more, with the tokens that begin in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TextDelta {
    pub(crate) text: String,
    pub(crate) entries: Vec<TokenLogprobs>,
    /// Tokens that were added.
    pub(crate) added: usize,
    pub(crate) finish: Option<FinishReason>,
}

/// JSON has no infinity.
const LEAST: f64 = -1e4;

/// One text.
pub(crate) struct Choice<'s> {
    shared: &'s ServeContext,
    request: Arc<Completion>,
    decoder: StreamDecoder<'s>,
    gate: StopFilter,
    /// Tokens whose text is not certain yet.
    waiting: VecDeque<TokenLogprobs>,
    /// Characters decoded, and of them those that are certain.
    decoded: usize,
    certain: usize,
}

impl<'s> Choice<'s> {
    /// The text that goes on from a prompt, and the piece that repeats the prompt where that is asked for, given what the
    /// model predicted along it.
    pub(crate) fn begin(
        shared: &'s ServeContext,
        request: &Arc<Completion>,
        prompt: &Prompt,
        predicted: Option<&TopK<f64>>,
    ) -> (Choice<'s>, Option<TextDelta>) {
        let mut choice = Choice {
            shared,
            request: request.clone(),
            decoder: shared.tokenizer.decoder(),
            gate: StopFilter::new(&request.stops),
            waiting: VecDeque::new(),
            decoded: 0,
            certain: 0,
        };
        let (mut entries, mut whole) = (Vec::new(), String::new());
        for (place, token) in prompt.tokens.iter().enumerate() {
            let (piece, before) = choice.decoder.push_at(*token);
            let offset = choice.decoded + before;
            choice.decoded += piece.chars().count();
            whole += &piece;
            if let Some(found) = predicted {
                entries.push(choice.entry(*token, offset, place.checked_sub(1).map(|row| of_row(found, row))));
            }
        }
        if !request.echo {
            choice.decoded = 0;
            return (choice, None);
        }
        // a character that starts in the prompt and ends in the completion belongs to the completion
        let ends = request.count == 0;
        let text = || if ends { shared.tokenizer.decode(&prompt.tokens) } else { whole };
        let text = prompt.text.clone().unwrap_or_else(text);
        choice.decoded = text.chars().count();
        choice.certain = choice.decoded;
        let finish = ends.then_some(FinishReason::Length);
        (choice, Some(TextDelta { text, entries, added: 0, finish }))
    }

    /// Adds a token; the `last` one ends the text.
    pub(crate) fn add(&mut self, token: u32, found: &TopK<f32>, last: bool) -> TextDelta {
        let (mut text, before) = self.decoder.push_at(token);
        let offset = self.decoded + before;
        let is_end = self.request.ends.contains(&token);
        if last || is_end {
            text += &std::mem::replace(&mut self.decoder, self.shared.tokenizer.decoder()).finish();
        }
        self.decoded += text.chars().count();
        if self.request.logprobs.is_some() {
            let found =
                (f64::from(found.target_nll[0]), found.ids.clone(), found.nll.iter().copied().map(f64::from).collect());
            let entry = self.entry(token, offset, Some(found));
            self.waiting.push_back(entry);
        }
        let (text, finish) = match self.gate.push(&text) {
            FilteredText::Ended(text) => (text, Some(FinishReason::Stop)),
            FilteredText::Open(text) if is_end => (text + &self.gate.finish(), Some(FinishReason::Stop)),
            FilteredText::Open(text) if last => (text + &self.gate.finish(), Some(FinishReason::Length)),
            FilteredText::Open(text) => (text, None),
        };
        self.certain += text.chars().count();
        let all = self.certain == self.decoded;
        let known = self.waiting.iter().take_while(|entry| all || entry.offset < self.certain).count();
        TextDelta { text, entries: self.waiting.drain(..known).collect(), added: 1, finish }
    }

    fn entry(&self, token: u32, offset: usize, found: Option<(f64, Vec<u32>, Vec<f64>)>) -> TokenLogprobs {
        let Some((nll, ids, nlls)) = found else { return TokenLogprobs { token, offset, logprob: None, top: None } };
        let top = ids.into_iter().zip(nlls.into_iter().map(logprob)).collect();
        let top = self.request.logprobs.filter(|count| *count > 0).map(|_| top);
        TokenLogprobs { token, offset, logprob: Some(logprob(nll)), top }
    }
}

fn logprob(nll: f64) -> f64 {
    // not -0
    (0.0 - nll).max(LEAST)
}

/// The loss, the likeliest ids and their losses of one row.
fn of_row(found: &TopK<f64>, row: usize) -> (f64, Vec<u32>, Vec<f64>) {
    let count = found.ids.len() / found.target_nll.len();
    let range = row * count..(row + 1) * count;
    (found.target_nll[row], found.ids[range.clone()].to_vec(), found.nll[range].to_vec())
}
