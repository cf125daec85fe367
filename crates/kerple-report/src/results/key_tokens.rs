//! Key tokens: how many there are, and how sure their perplexity is within one run.

use super::number;
use crate::statistics::pooled_interval;
use kerple_run::{EvaluationRow, SegmentKeys};
use serde::Serialize;

/// Fewer key tokens than these have no interval.
pub const LEAST_KEY_TOKENS: u64 = 100;

/// Key tokens of a run's evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyTokenScore {
    /// Tokens with enough context before them to be key.
    pub candidates: u64,
    /// Ends of the 95 % interval of the perplexity, from the segments of the text; absent of fewer than [`LEAST_KEY_TOKENS`].
    #[serde(with = "number")]
    pub perplexity_low: Option<f64>,
    /// See `perplexity_low`.
    #[serde(with = "number")]
    pub perplexity_high: Option<f64>,
}

impl KeyTokenScore {
    pub(super) fn of(row: &EvaluationRow) -> Option<KeyTokenScore> {
        let keys = row.key_tokens.as_ref()?;
        let [perplexity_low, perplexity_high] = match key_interval(&keys.segments) {
            Some(ends) => ends.map(Some),
            None => [None; 2],
        };
        Some(KeyTokenScore { candidates: keys.candidates, perplexity_low, perplexity_high })
    }
}

/// The 95 % interval of the perplexity of key tokens: segments are independent, tokens of one are not. Absent of fewer than
/// [`LEAST_KEY_TOKENS`], or where fewer than two segments have some.
pub fn key_interval(segments: &[SegmentKeys]) -> Option<[f64; 2]> {
    let clusters: Vec<(f64, f64)> =
        segments.iter().filter(|keys| keys.tokens > 0).map(|keys| (keys.nll, keys.tokens as f64)).collect();
    let enough = segments.iter().map(|keys| keys.tokens).sum::<u64>() >= LEAST_KEY_TOKENS;
    pooled_interval(&clusters).filter(|_| enough).map(|(low, high)| [low.exp(), high.exp()])
}

/// The evaluators of a row, as titles and sentences have them.
pub(super) fn evaluators(row: &EvaluationRow) -> Vec<String> {
    let runs = row.key_tokens.iter().flat_map(|keys| &keys.evaluators);
    let short = |hash: &str| hash.chars().take(8).collect::<String>();
    runs.map(|run| format!("{} (seed {}, step {}, plan {})", run.label, run.seed, run.step, short(&run.plan))).collect()
}
