//! Text, token by token, with a cache of keys and values.

use crate::error::{Error, Result};
use crate::model::{Decoder, Tokens};
use kerple::seed::{Purpose, stream};
use kerple_burn::pass::Pass;
use rand::RngExt;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 takes the likeliest token; higher values flatten the distribution.
    pub temperature: f64,
    /// Only this many likeliest tokens are considered; 0 considers all.
    pub top_k: usize,
    /// Only the likeliest tokens that together have this share are considered; 1 considers all (Holtzman et al. 2020).
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Follows a text as it grows. A closure that takes a token and says whether to go on allows every token.
pub trait Follow {
    /// Whether a token may come next.
    fn allows(&self, _token: u32) -> bool {
        true
    }

    /// Takes the next token; false stops.
    fn take(&mut self, token: u32) -> bool;
}

impl<F: FnMut(u32) -> bool> Follow for F {
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
        let hint = "begin with the end-of-document token, as every document does";
        return Err(Error::refused("there is no token to go on from", hint));
    }
    // the last token drawn takes no position of its own
    model.check_len(prompt.saturating_add(count.saturating_sub(1)))
}

/// Extends `prompt` by up to `count` tokens that `follow` allows, giving it each; stops when it returns false. Nothing is held for tokens that
/// are yet to come, so `count` may be any number.
///
/// `vocab` is the number of tokens that the tokenizer knows: rows that only pad the vocabulary are never drawn. The draws
/// are those of [`Purpose::Sampling`], one a token; what the encoding draws is drawn once for the whole sequence.
///
/// # Errors
/// What [`check`] refuses, logits that are not numbers, and a place where no token is allowed.
pub fn generate(
    model: &Decoder,
    prompt: &[u32],
    count: usize,
    vocab: usize,
    draw: &Draw,
    follow: &mut dyn Follow,
) -> Result<()> {
    check(model, prompt.len(), count)?;
    let mut rng = stream(draw.seed, Purpose::Sampling);
    let mut cache = model.memories(1);
    // the last token drawn takes no position of its own
    let pass = Pass::evaluation(draw.seed).over(prompt.len().saturating_add(count.saturating_sub(1)));
    let mut next = prompt.to_vec();
    for _ in 0..count {
        let tokens = Tokens { ids: &next, batch: 1, len: next.len() };
        let logits = model.extend(tokens, &mut cache, &pass).into_data();
        let logits: Vec<f64> = logits.iter::<f64>().take(vocab).collect();
        if let Some(bad) = logits.iter().find(|logit| !logit.is_finite()) {
            let message = format!("a logit of the model is {bad}: there is nothing to draw from");
            return Err(Error::refused(message, "sample an earlier checkpoint, or a run whose loss is finite"));
        }
        let token = choose(&logits, draw, rng.random(), &|token| follow.allows(token));
        let token = token.ok_or_else(|| {
            Error::refused("no token is allowed to come next", "begin with another prompt, or allow more tokens")
        })?;
        if !follow.take(token) {
            break;
        }
        next = vec![token];
    }
    Ok(())
}

/// The token whose share of the distribution covers `point` in `[0, 1)`; `None` when no token is allowed.
///
/// Tokens that are not allowed lose their share after the unlikely ones have lost theirs, as if they were drawn again; when
/// none is left, the likeliest that is allowed is taken.
fn choose(logits: &[f64], draw: &Draw, point: f64, allows: &dyn Fn(u32) -> bool) -> Option<u32> {
    let likeliest = likeliest(logits, allows)?;
    if draw.temperature == 0.0 {
        return Some(likeliest);
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    let descending = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    if (1..order.len()).contains(&draw.top_k) {
        order.select_nth_unstable_by(draw.top_k - 1, descending);
        order.truncate(draw.top_k);
    }
    order.sort_unstable_by(descending);
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
    for (id, weight) in &weights {
        left -= weight;
        if left < 0.0 {
            return Some(*id);
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

    /// As [`choose`] was before it selected: everything sorted.
    fn by_sorting(logits: &[f64], draw: &Draw, point: f64, allows: &dyn Fn(u32) -> bool) -> Option<u32> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let likeliest = order.iter().map(|id| *id as u32).find(|id| allows(*id))?;
        if draw.temperature == 0.0 {
            return Some(likeliest);
        }
        order.truncate(draw.top_k);
        let weight = |id: usize| ((logits[id] - logits[order[0]]) / draw.temperature).exp();
        let allowed: Vec<usize> = order.iter().copied().filter(|id| allows(*id as u32)).collect();
        let mut left = point * allowed.iter().map(|id| weight(*id)).sum::<f64>();
        let covers = |id: &&usize| {
            left -= weight(**id);
            left < 0.0
        };
        Some(allowed.iter().find(covers).map_or(likeliest, |id| *id as u32))
    }

    #[test]
    fn selecting_draws_what_sorting_draws() {
        let mut rng = stream(1, Purpose::Sampling);
        for _ in 0..2000 {
            // few values, so that many are equal
            let logits: Vec<f64> = (0..40).map(|_| f64::from(rng.random::<u8>() % 8) / 4.0).collect();
            let banned = rng.random::<u64>() & rng.random::<u64>();
            let allows = |token: u32| banned >> token & 1 == 0;
            let (top_k, point) = (1 + rng.random::<u8>() as usize % 60, rng.random());
            for temperature in [0.0, 0.7] {
                let draw = Draw { temperature, top_k, top_p: 1.0, seed: 0 };
                assert_eq!(choose(&logits, &draw, point, &allows), by_sorting(&logits, &draw, point, &allows));
            }
        }
    }

    /// Ascending logits would be sorted; a pass looks at each token once.
    #[test]
    fn at_temperature_0_nothing_is_sorted() {
        let (len, asked) = (1 << 20, Cell::new(0));
        let logits: Vec<f64> = (0..len).map(f64::from).collect();
        let draw = Draw { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
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
        let draw = Draw { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
        let choose = |draw: &Draw, point| super::choose(&logits, draw, point, &|_| true).unwrap();
        assert_eq!(choose(&draw, 0.6), 2);
        assert_eq!(choose(&draw, 0.7), 1);
        assert_eq!(choose(&draw, 0.9), 0);
        assert_eq!(choose(&Draw { temperature: 0.0, ..draw }, 0.9), 2);
        assert_eq!(choose(&Draw { top_k: 2, ..draw }, 0.99), 1);
        assert_eq!(choose(&Draw { top_p: 0.7, ..draw }, 0.99), 1, "two tokens are needed for 7/10");
        assert_eq!(choose(&Draw { top_p: 0.6, ..draw }, 0.99), 2, "one token has 5/8");
    }

    #[test]
    fn what_is_not_allowed_is_never_drawn() {
        let logits = [0.0, 2f64.ln(), 5f64.ln()];
        let draw = Draw { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 };
        let without =
            |banned: &[u32], draw: &Draw, point| choose(&logits, draw, point, &|token| !banned.contains(&token));
        // shares 1/3 and 2/3 are left
        assert_eq!([0.6, 0.7].map(|point| without(&[2], &draw, point)), [Some(1), Some(0)]);
        assert_eq!(without(&[2], &Draw { temperature: 0.0, ..draw }, 0.0), Some(1));
        let narrow = Draw { top_p: 0.6, ..draw };
        assert_eq!(without(&[2], &narrow, 0.5), Some(1), "nothing is left of one token");
        assert_eq!(without(&[0, 1, 2], &draw, 0.5), None);
    }
}
