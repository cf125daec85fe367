//! Text, token by token, with a KV cache.

use crate::error::{Error, Result};
use crate::model::Decoder;
use kerple_core::seed::{Purpose, stream};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the likeliest token; higher values flatten the distribution.
    pub temperature: f64,
    /// Only this many likeliest tokens are considered; 0 considers all.
    pub top_k: usize,
    /// Only the likeliest tokens that together have this share are considered; 1 considers all (Holtzman et al. 2020).
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Follows a text as it grows. A closure that takes a token and returns whether to continue allows
/// every token.
pub trait DecodingCallback {
    /// Whether this token may come next.
    fn allows(&self, _token: u32) -> bool {
        true
    }

    /// Takes the next token; false stops.
    fn take(&mut self, token: u32) -> bool;
}

impl<F: FnMut(u32) -> bool> DecodingCallback for F {
    fn take(&mut self, token: u32) -> bool {
        self(token)
    }
}

/// Refuses to extend a prompt of this many tokens by `count` where the model is not defined for as many positions.
///
/// # Errors
/// An empty prompt, or more positions than the encoding has.
pub fn check(model: &Decoder, prompt: usize, count: usize) -> Result<()> {
    if prompt == 0 {
        let hint = "start the prompt with the end-of-document token, as every document does";
        return Err(Error::refused("the prompt has no token to continue from", hint));
    }
    // the last token drawn takes no position of its own
    model.check_len(prompt.saturating_add(count.saturating_sub(1)))
}

/// Extends `prompt` by up to `count` tokens that `follow` allows, giving it each; stops when it returns false. Nothing depends on
/// tokens that are yet to come and nothing is held for them, so `count` may be any number.
///
/// `vocab` is the number of tokens of the tokenizer: rows that only pad the vocabulary are never
/// drawn. The draws are those of [`Purpose::Sampling`], one per token; the encoding draws for each
/// length from the same seed.
///
/// # Errors
/// What [`check`] refuses, logits that are not numbers, and a place where no token is allowed.
pub fn generate(
    model: &Decoder,
    prompt: &[u32],
    count: usize,
    vocab: usize,
    draw: &SamplingParams,
    follow: &mut dyn DecodingCallback,
) -> Result<()> {
    check(model, prompt.len(), count)?;
    let mut sampler = Sampler::new(*draw);
    let mut sequence = model.new_sequence(draw.seed);
    let mut next = prompt.to_vec();
    for _ in 0..count {
        let logits = model.decode(&next, &mut sequence);
        let logits: Vec<f64> = logits.iter().take(vocab).map(|logit| f64::from(*logit)).collect();
        let token = sampler.next(&logits, &|token| follow.allows(token))?;
        if !follow.take(token) {
            break;
        }
        next = vec![token];
    }
    Ok(())
}

/// Draws one token after another.
#[derive(Clone, Debug)]
pub struct Sampler {
    draw: SamplingParams,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// Before the first draw.
    pub fn new(draw: SamplingParams) -> Sampler {
        Sampler { draw, rng: stream(draw.seed, Purpose::Sampling) }
    }

    /// The next token, of those that are allowed.
    ///
    /// # Errors
    /// Logits that are not numbers, and a place where no token is allowed.
    pub fn next(&mut self, logits: &[f64], allows: &dyn Fn(u32) -> bool) -> Result<u32> {
        if let Some(bad) = logits.iter().find(|logit| !logit.is_finite()) {
            let message = format!("a logit of the model is {bad}, so no token can be sampled");
            return Err(Error::refused(message, "sample an earlier checkpoint, or a run whose loss is finite"));
        }
        choose(logits, &self.draw, self.rng.random(), allows).ok_or_else(|| {
            Error::refused("no token is allowed after this prompt", "use another prompt, or allow more tokens")
        })
    }
}

/// A token on its way to being drawn. The larger comes first: the likelier, of equal ones that with the lesser id.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    logit: f64,
    id: u32,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.logit.total_cmp(&other.logit).then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The token whose share of the distribution covers `point` in `[0, 1)`; `None` when no token is allowed.
///
/// Tokens that are not allowed lose their share after the unlikely ones have lost theirs, as if they were drawn again; when
/// none is left, the likeliest that is allowed is taken. Tokens are taken off a heap, in descending order, as far as the
/// point lies: the vocabulary is not sorted.
fn choose(logits: &[f64], draw: &SamplingParams, point: f64, allows: &dyn Fn(u32) -> bool) -> Option<u32> {
    let likeliest = likeliest(logits, allows)?;
    if draw.temperature == 0.0 {
        return Some(likeliest);
    }
    let mut candidates: Vec<Candidate> =
        logits.iter().zip(0..).map(|(logit, id)| Candidate { logit: *logit, id }).collect();
    if (1..candidates.len()).contains(&draw.top_k) {
        candidates.select_nth_unstable_by(draw.top_k - 1, |a, b| b.cmp(a));
        candidates.truncate(draw.top_k);
    }
    let largest = candidates.iter().max()?.logit;
    let weight = |candidate: &Candidate| ((candidate.logit - largest) / draw.temperature).exp();
    let allowed = |candidate: &Candidate| allows(candidate.id);
    let total = |candidates: &[Candidate], keep: &dyn Fn(&Candidate) -> bool| {
        candidates.iter().filter(|candidate| keep(candidate)).map(weight).sum::<f64>()
    };
    if draw.top_p < 1.0 {
        let mut left = draw.top_p * total(&candidates, &|_| true);
        let mut heap = BinaryHeap::from(candidates);
        candidates = Vec::new();
        while let Some(candidate) = heap.pop() {
            candidates.push(candidate);
            left -= weight(&candidate);
            if left <= 0.0 {
                break;
            }
        }
    }
    let mut left = point * total(&candidates, &allowed);
    let mut heap = BinaryHeap::from(candidates);
    while let Some(candidate) = heap.pop() {
        if !allowed(&candidate) {
            continue;
        }
        left -= weight(&candidate);
        if left < 0.0 {
            return Some(candidate.id);
        }
    }
    Some(likeliest)
}

/// The first of the likeliest tokens that are allowed.
fn likeliest(logits: &[f64], allows: &dyn Fn(u32) -> bool) -> Option<u32> {
    let mut best: Option<usize> = None;
    for (id, logit) in logits.iter().enumerate() {
        if best.is_none_or(|best| logit.total_cmp(&logits[best]).is_gt()) && allows(id as u32) {
            best = Some(id);
        }
    }
    best.map(|id| id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// [`choose`] by the definition: everything sorted.
    fn by_sorting(logits: &[f64], draw: &SamplingParams, point: f64, allows: &dyn Fn(u32) -> bool) -> Option<u32> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let likeliest = order.iter().map(|id| *id as u32).find(|id| allows(*id))?;
        if draw.temperature == 0.0 {
            return Some(likeliest);
        }
        if draw.top_k > 0 {
            order.truncate(draw.top_k);
        }
        let weight = |id: usize| ((logits[id] - logits[order[0]]) / draw.temperature).exp();
        let mut weights: Vec<(u32, f64)> = order.iter().map(|id| (*id as u32, weight(*id))).collect();
        if draw.top_p < 1.0 {
            let mut left = draw.top_p * weights.iter().map(|(_, weight)| weight).sum::<f64>();
            let count = weights.iter().take_while(|(_, weight)| {
                let before = left;
                left -= weight;
                before > 0.0
            });
            let count = count.count().max(1);
            weights.truncate(count);
        }
        weights.retain(|(id, _)| allows(*id));
        let mut left = point * weights.iter().map(|(_, weight)| weight).sum::<f64>();
        let covers = |(_, weight): &&(u32, f64)| {
            left -= weight;
            left < 0.0
        };
        Some(weights.iter().find(covers).map_or(likeliest, |(id, _)| *id))
    }

    #[test]
    fn selecting_draws_what_sorting_draws() {
        let mut rng = stream(1, Purpose::Sampling);
        for round in 0..4000 {
            // few values, so that many are equal; or all different
            let few = round % 2 == 0;
            let logit = |byte: u8, value: f64| if few { f64::from(byte % 8) / 4.0 } else { 6.0 * value };
            let logits: Vec<f64> = (0..40).map(|_| logit(rng.random(), rng.random())).collect();
            let banned = rng.random::<u64>() & rng.random::<u64>();
            let allows = |token: u32| banned >> token & 1 == 0;
            let (top_k, point) = (rng.random::<u8>() as usize % 60, rng.random());
            let top_p = [1.0, 0.9, 0.5, 0.0][round / 2 % 4];
            for temperature in [0.0, 0.7] {
                let draw = SamplingParams { temperature, top_k, top_p, seed: 0 };
                assert_eq!(choose(&logits, &draw, point, &allows), by_sorting(&logits, &draw, point, &allows));
            }
        }
    }

    /// Ascending logits would be sorted; a pass looks at each token once.
    #[test]
    fn at_temperature_0_nothing_is_sorted() {
        let (len, asked) = (1 << 20, Cell::new(0));
        let logits: Vec<f64> = (0..len).map(f64::from).collect();
        let draw = SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
        let allows = |_| {
            asked.set(asked.get() + 1);
            true
        };
        assert_eq!(choose(&logits, &draw, 0.5, &allows), Some(len as u32 - 1));
        assert!(asked.get() <= len);
        let descending: Vec<f64> = logits.iter().rev().copied().collect();
        asked.set(0);
        assert_eq!((choose(&descending, &draw, 0.5, &allows), asked.get()), (Some(0), 1));
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0, 2f64.ln(), 5f64.ln()]; // shares 1/8, 2/8, 5/8
        let draw = SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
        let choose = |draw: &SamplingParams, point| super::choose(&logits, draw, point, &|_| true).unwrap();
        assert_eq!(choose(&draw, 0.6), 2);
        assert_eq!(choose(&draw, 0.7), 1);
        assert_eq!(choose(&draw, 0.9), 0);
        assert_eq!(choose(&SamplingParams { temperature: 0.0, ..draw }, 0.9), 2);
        assert_eq!(choose(&SamplingParams { top_k: 2, ..draw }, 0.99), 1);
        assert_eq!(choose(&SamplingParams { top_p: 0.7, ..draw }, 0.99), 1, "two tokens are needed for 7/10");
        assert_eq!(choose(&SamplingParams { top_p: 0.6, ..draw }, 0.99), 2, "one token has 5/8");
    }

    #[test]
    fn what_is_not_allowed_is_never_drawn() {
        let logits = [0.0, 2f64.ln(), 5f64.ln()];
        let draw = SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
        let without = |banned: &[u32], draw: &SamplingParams, point| {
            choose(&logits, draw, point, &|token| !banned.contains(&token))
        };
        // shares 1/3 and 2/3 are left
        assert_eq!([0.6, 0.7].map(|point| without(&[2], &draw, point)), [Some(1), Some(0)]);
        assert_eq!(without(&[2], &SamplingParams { temperature: 0.0, ..draw }, 0.0), Some(1));
        let narrow = SamplingParams { top_p: 0.6, ..draw };
        assert_eq!(without(&[2], &narrow, 0.5), Some(1), "nothing is left of one token");
        assert_eq!(without(&[0, 1, 2], &draw, 0.5), None);
    }
}
