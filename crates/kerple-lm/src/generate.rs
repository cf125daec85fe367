//! Text, token by token, with a cache of keys and values.

use crate::model::{Decoder, Tokens};
use rand::{RngExt, SeedableRng};

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

/// Extends `prompt` by up to `count` tokens below `vocab`, telling each; stops when `tell` returns false.
pub fn generate(
    model: &Decoder,
    prompt: &[u32],
    count: usize,
    vocab: usize,
    draw: &Draw,
    tell: &mut dyn FnMut(u32) -> bool,
) {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(draw.seed);
    let mut cache = model.caches(1);
    let mut next = prompt.to_vec();
    for _ in 0..count {
        let len = next.len();
        let logits = model.extend(Tokens { ids: &next, batch: 1, len }, &mut cache).into_data();
        let logits: Vec<f64> = logits.iter::<f64>().take(vocab).collect();
        let token = choose(&logits, draw, rng.random());
        if !tell(token) {
            break;
        }
        next = vec![token];
    }
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
