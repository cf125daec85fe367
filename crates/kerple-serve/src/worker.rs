//! The thread that owns the model: it reads prompts one by one and extends all completions
//! together.

use crate::ServeContext;
use crate::api_error::ApiError;
use crate::choice::{Choice, TextDelta};
use crate::completion::Completion;
use crate::penalties::TokenCounts;
use axum::http::StatusCode;
use kerple_core::ops::cross_entropy::top_k_of_row;
use kerple_data::MusicRules;
use kerple_lm::generate::Sampler;
use kerple_lm::model::{Decoder, Sequence};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// One prompt of a request.
pub(crate) struct PromptJob {
    pub(crate) request: Arc<Completion>,
    /// Which of its prompts.
    pub(crate) index: usize,
    /// Its place in the queue, free again when it is done, before the answer ends: who has it may ask again at once.
    pub(crate) _place: OwnedSemaphorePermit,
    /// Closed when nobody waits for the answer any more.
    pub(crate) to: UnboundedSender<WorkerMessage>,
}

/// What the model thread sends to the handler of a request.
pub(crate) enum WorkerMessage {
    /// Text of the prompt with this index.
    Delta(usize, TextDelta),
    Failed(ApiError),
}

/// A completion in progress.
struct RunningCompletion<'s> {
    job: PromptJob,
    sequence: Sequence,
    sampler: Sampler,
    counts: TokenCounts,
    /// Which events may come next, for a model of music.
    rules: Option<MusicRules>,
    choice: Choice<'s>,
    /// Of the token that comes next, `[V]`.
    logits: Vec<f32>,
    /// The last token, which the model has not read yet.
    last: u32,
    left: usize,
}

/// Works until no more jobs can come and all are done.
pub(crate) fn work(model: &Decoder, shared: &ServeContext, jobs: &Receiver<PromptJob>) {
    let mut writing: Vec<RunningCompletion> = Vec::new();
    loop {
        // one prompt is read between two steps of the others, so that none of them waits long
        let next = match writing.len() {
            0 => jobs.recv().ok(),
            busy if busy < shared.limits.max_num_seqs => jobs.try_recv().ok(),
            _ => None,
        };
        match next {
            Some(job) => writing.extend(begin(model, shared, job)),
            None if writing.is_empty() => return,
            None => {}
        }
        writing.retain(|one| !one.job.to.is_closed());
        if !writing.is_empty() {
            step(model, shared, &mut writing);
        }
    }
}

/// Reads a prompt and draws the first token; `None` where the text is done then.
fn begin<'s>(model: &Decoder, shared: &'s ServeContext, job: PromptJob) -> Option<RunningCompletion<'s>> {
    if job.to.is_closed() {
        return None;
    }
    let request = job.request.clone();
    let prompt = &request.prompts[job.index];
    let count = request.count;
    // nothing that is computed depends on how long the text may become
    let mut sequence = model.new_sequence(shared.plan.seed);
    let (predicted, logits) = match (request.echo, request.logprobs, count) {
        (true, Some(alternatives), _) => {
            let (found, logits) = model.score_prompt(&prompt.tokens, alternatives, &mut sequence, count > 1);
            (Some(found), logits)
        }
        (_, _, 0) => (None, Vec::new()),
        (_, _, _) => (None, model.decode(&prompt.tokens, &mut sequence)),
    };
    if predicted.as_ref().is_some_and(|found| found.target_nll.iter().any(|nll| nll.is_nan())) {
        send(&job, WorkerMessage::Failed(not_a_number()));
        return None;
    }
    let (choice, piece) = Choice::begin(shared, &request, prompt, predicted.as_ref());
    if count == 0 {
        let piece = piece
            .unwrap_or_else(|| TextDelta { finish: Some(crate::choice::FinishReason::Length), ..TextDelta::default() });
        send(&job, WorkerMessage::Delta(job.index, piece));
        return None;
    }
    if let Some(piece) = piece {
        send(&job, WorkerMessage::Delta(job.index, piece));
    }
    let (sampler, counts) = (Sampler::new(request.draw), TokenCounts::of_prompt(&prompt.tokens));
    let mut rules = shared.tokenizer.music_rules();
    if let Some(rules) = &mut rules {
        prompt.tokens.iter().for_each(|token| rules.take(*token));
    }
    let mut one = RunningCompletion { job, sequence, sampler, counts, rules, choice, logits, last: 0, left: count };
    draw(&mut one, shared).then_some(one)
}

/// Extends every completion by one token and removes those that end.
fn step(model: &Decoder, shared: &ServeContext, writing: &mut Vec<RunningCompletion>) {
    let ids: Vec<u32> = writing.iter().map(|one| one.last).collect();
    let mut sequence: Vec<&mut Sequence> = writing.iter_mut().map(|one| &mut one.sequence).collect();
    let logits = model.decode_batch(&ids, &mut sequence);
    for (one, logits) in writing.iter_mut().zip(logits) {
        one.logits = logits;
    }
    writing.retain_mut(|one| draw(one, shared));
}

/// Samples the next token of a completion and sends it; whether the completion continues.
fn draw(one: &mut RunningCompletion, shared: &ServeContext) -> bool {
    let request = &one.job.request;
    let mut logits: Vec<f64> =
        one.logits.iter().take(shared.plan.data_info.vocab_size).map(|logit| f64::from(*logit)).collect();
    request.penalties.apply(&mut logits, &one.counts);
    let fits = |token: u32| one.rules.as_ref().is_none_or(|rules| rules.allows(token));
    let candidates = logits.iter().zip(0..).filter(|(_, token)| fits(*token)).map(|(logit, _)| *logit);
    let floor = request.penalties.floor(candidates, request.draw.temperature);
    let Ok(token) = one.sampler.next(&logits, &|token| fits(token) && logits[token as usize] >= floor) else {
        send(&one.job, WorkerMessage::Failed(not_a_number()));
        return false;
    };
    one.counts.add(token);
    if let Some(rules) = &mut one.rules {
        rules.take(token);
    }
    let alternatives = request.logprobs.unwrap_or(0);
    let found = top_k_of_row(&one.logits, Some(token), alternatives);
    one.left -= 1;
    one.last = token;
    let piece = one.choice.add(token, &found, one.left == 0);
    let goes_on = piece.finish.is_none();
    send(&one.job, WorkerMessage::Delta(one.job.index, piece)) && goes_on
}

fn not_a_number() -> ApiError {
    ApiError::of(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the model computes NaN or infinite logits; serve an earlier checkpoint",
    )
}

/// Whether the client still waits.
fn send(job: &PromptJob, message: WorkerMessage) -> bool {
    job.to.send(message).is_ok()
}
