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
    /// Seed of the draws.
    pub seed: u64,
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

/// Extends `prompt` by up to `count` tokens, telling each; stops when `tell` returns false. Nothing is held for tokens that
/// are yet to come, so `count` may be any number.
///
/// `vocab` is the number of tokens that the tokenizer knows: rows that only pad the vocabulary are never drawn. The draws
/// are those of [`Purpose::Sampling`], one a token; what the encoding draws is drawn once for the whole sequence.
///
/// # Errors
/// What [`check`] refuses, and logits that are not numbers.
pub fn generate(
    model: &Decoder,
    prompt: &[u32],
    count: usize,
    vocab: usize,
    draw: &Draw,
    tell: &mut dyn FnMut(u32) -> bool,
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
        let token = choose(&logits, draw, rng.random());
        if !tell(token) {
            break;
        }
        next = vec![token];
    }
    Ok(())
}

/// The token whose share of the distribution covers `point` in `[0, 1)`.
fn choose(logits: &[f64], draw: &Draw, point: f64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    if draw.temperature == 0.0 {
        return order[0] as u32;
    }
    if draw.top_k > 0 {
        order.truncate(draw.top_k);
    }
    let weights: Vec<f64> =
        order.iter().map(|id| ((logits[*id] - logits[order[0]]) / draw.temperature).exp()).collect();
    let mut left = point * weights.iter().sum::<f64>();
    for (id, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *id as u32;
        }
    }
    order[0] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0, 2f64.ln(), 5f64.ln()]; // shares 1/8, 2/8, 5/8
        let draw = Draw { temperature: 1.0, top_k: 0, seed: 0 };
        assert_eq!(choose(&logits, &draw, 0.6), 2);
        assert_eq!(choose(&logits, &draw, 0.7), 1);
        assert_eq!(choose(&logits, &draw, 0.9), 0);
        assert_eq!(choose(&logits, &Draw { temperature: 0.0, ..draw }, 0.9), 2);
        assert_eq!(choose(&logits, &Draw { top_k: 2, ..draw }, 0.99), 1);
    }
}
