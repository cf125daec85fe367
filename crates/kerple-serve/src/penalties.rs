//! Changes that a request makes to the model's logits before sampling.
//!
//! ```text
//! repetition_penalty r   l / r where l > 0, else l r, of tokens in prompt or completion   Keskar et al. 2019, arXiv:1909.05858
//! frequency_penalty f    l - f n, of a token that the completion has n times              as OpenAI defines it
//! presence_penalty p     l - p, of a token that the completion has                        as OpenAI defines it
//! ```
//!
//! They apply in this order and before the temperature. `min_p` (Nguyen et al. 2024,
//! arXiv:2407.01082) then keeps the tokens whose probability is at least that share of the
//! likeliest one's, at the requested temperature. Log-probabilities in responses are those of the
//! model, without penalties.

use std::collections::BTreeMap;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Penalties {
    pub(crate) repetition: f64,
    pub(crate) frequency: f64,
    pub(crate) presence: f64,
    pub(crate) min_p: f64,
}

impl Penalties {
    /// Changes nothing.
    pub(crate) const NONE: Penalties = Penalties { repetition: 1.0, frequency: 0.0, presence: 0.0, min_p: 0.0 };
}

/// The tokens of a text, as often as penalties count them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenCounts(BTreeMap<u32, usize>);

impl TokenCounts {
    /// The tokens of a prompt: there, and not in the completion.
    pub(crate) fn of_prompt(tokens: &[u32]) -> TokenCounts {
        TokenCounts(tokens.iter().map(|token| (*token, 0)).collect())
    }

    /// Counts a token of the completion.
    pub(crate) fn add(&mut self, token: u32) {
        *self.0.entry(token).or_default() += 1;
    }
}

impl Penalties {
    /// Applies the penalties to logits.
    pub(crate) fn apply(&self, logits: &mut [f64], counts: &TokenCounts) {
        if *self == (Penalties { min_p: self.min_p, ..Penalties::NONE }) {
            return;
        }
        for (token, count) in &counts.0 {
            let Some(logit) = logits.get_mut(*token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            *logit -= self.frequency * *count as f64;
            if *count > 0 {
                *logit -= self.presence;
            }
        }
    }

    /// The least logit that may be drawn, given those of all tokens that may come next.
    pub(crate) fn floor(&self, logits: impl Iterator<Item = f64>, temperature: f64) -> f64 {
        let most = logits.fold(f64::NEG_INFINITY, f64::max);
        if self.min_p > 0.0 { most + temperature * self.min_p.ln() } else { f64::NEG_INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_follow_their_definitions() {
        let mut counts = TokenCounts::of_prompt(&[0, 1, 9]);
        [1, 2, 2].into_iter().for_each(|token| counts.add(token));
        let applied = |penalties: Penalties| {
            let mut logits = [2.0, -2.0, 3.0, 1.0];
            penalties.apply(&mut logits, &counts);
            logits
        };
        let none = Penalties::NONE;
        assert_eq!(applied(none), [2.0, -2.0, 3.0, 1.0]);
        assert_eq!(applied(Penalties { repetition: 2.0, ..none }), [1.0, -4.0, 1.5, 1.0]);
        assert_eq!(applied(Penalties { frequency: 0.5, ..none }), [2.0, -2.5, 2.0, 1.0]);
        assert_eq!(applied(Penalties { presence: 0.5, ..none }), [2.0, -2.5, 2.5, 1.0]);
        assert_eq!(
            applied(Penalties { repetition: 2.0, frequency: -0.5, presence: 0.25, ..none }),
            [1.0, -3.75, 2.25, 1.0]
        );
    }

    #[test]
    fn min_p_is_a_share_of_the_likeliest() {
        // shares 1, 1/2 and 1/4 of the likeliest at temperature 1, of which temperature 2 takes the roots
        let logits = [0.0, 0.5f64.ln(), 0.25f64.ln()];
        let left = |min_p: f64, temperature: f64| {
            let floor = Penalties { min_p, ..Penalties::NONE }.floor(logits.into_iter(), temperature);
            logits.iter().filter(|logit| **logit >= floor).count()
        };
        assert_eq!([left(0.0, 1.0), left(0.4, 1.0), left(0.6, 1.0), left(0.6, 2.0), left(1.0, 1.0)], [3, 2, 1, 2, 1]);
        assert_eq!(left(0.1, 0.0), 1);
    }
}
