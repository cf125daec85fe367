//! The thread that owns the model: it reads prompts one by one and extends all completions
//! together.

use crate::Shared;
use crate::choice::{Choice, Piece};
use crate::completion::Completion;
use crate::failure::Failure;
use crate::penalties::Counts;
use axum::http::StatusCode;
use kerple_core::ops::cross_entropy::top_k_of_row;
use kerple_lm::generate::Sampler;
use kerple_lm::model::{Decoder, Sequence};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// One prompt of a request.
pub(crate) struct Job {
    pub(crate) request: Arc<Completion>,
    /// Which of its prompts.
    pub(crate) index: usize,
    /// Its place in the queue, free again when it is done, before the answer ends: who has it may ask again at once.
    pub(crate) _place: OwnedSemaphorePermit,
    /// Closed when nobody waits for the answer any more.
    pub(crate) to: UnboundedSender<Told>,
}

/// What a request is told.
pub(crate) enum Told {
    Piece(usize, Piece),
    Failed(Failure),
}

/// A text that is being written.
struct Writing<'s> {
    job: Job,
    sequence: Sequence,
    sampler: Sampler,
    counts: Counts,
    choice: Choice<'s>,
    /// Of the token that comes next, `[V]`.
    logits: Vec<f32>,
    /// The last token, which the model has not read yet.
    last: u32,
    left: usize,
}

/// Works until no more jobs can come and all are done.
pub(crate) fn work(model: &Decoder, shared: &Shared, jobs: &Receiver<Job>) {
    let mut writing: Vec<Writing> = Vec::new();
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
fn begin<'s>(model: &Decoder, shared: &'s Shared, job: Job) -> Option<Writing<'s>> {
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
        tell(&job, Told::Failed(not_a_number()));
        return None;
    }
    let (choice, piece) = Choice::begin(shared, &request, prompt, predicted.as_ref());
    if count == 0 {
        let piece = piece.unwrap_or_else(|| Piece { finish: Some(crate::choice::Finish::Length), ..Piece::default() });
        tell(&job, Told::Piece(job.index, piece));
        return None;
    }
    if let Some(piece) = piece {
        tell(&job, Told::Piece(job.index, piece));
    }
    let (sampler, counts) = (Sampler::new(request.draw), Counts::of_prompt(&prompt.tokens));
    let mut one = Writing { job, sequence, sampler, counts, choice, logits, last: 0, left: count };
    draw(&mut one, shared).then_some(one)
}

/// One token more for each text; those that end leave.
fn step(model: &Decoder, shared: &Shared, writing: &mut Vec<Writing>) {
    let ids: Vec<u32> = writing.iter().map(|one| one.last).collect();
    let mut sequence: Vec<&mut Sequence> = writing.iter_mut().map(|one| &mut one.sequence).collect();
    let logits = model.decode_batch(&ids, &mut sequence);
    for (one, logits) in writing.iter_mut().zip(logits) {
        one.logits = logits;
    }
    writing.retain_mut(|one| draw(one, shared));
}

/// Draws the next token of a text and tells it; whether the text goes on.
fn draw(one: &mut Writing, shared: &Shared) -> bool {
    let request = &one.job.request;
    let mut logits: Vec<f64> =
        one.logits.iter().take(shared.plan.data_info.vocab_size).map(|logit| f64::from(*logit)).collect();
    request.penalties.apply(&mut logits, &one.counts);
    let floor = request.penalties.floor(&logits, request.draw.temperature);
    let Ok(token) = one.sampler.next(&logits, &|token| logits[token as usize] >= floor) else {
        tell(&one.job, Told::Failed(not_a_number()));
        return false;
    };
    one.counts.add(token);
    let alternatives = request.logprobs.unwrap_or(0);
    let found = top_k_of_row(&one.logits, Some(token), alternatives);
    one.left -= 1;
    one.last = token;
    let piece = one.choice.add(token, &found, one.left == 0);
    let goes_on = piece.finish.is_none();
    tell(&one.job, Told::Piece(one.job.index, piece)) && goes_on
}

fn not_a_number() -> Failure {
    Failure::of(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the model computes NaN or infinite logits; serve an earlier checkpoint",
    )
}

/// Whether somebody listens.
fn tell(job: &Job, told: Told) -> bool {
    job.to.send(told).is_ok()
}
