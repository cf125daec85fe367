//! Key tokens: how many there are, and how sure their perplexity is within one run.

use crate::statistics::pooled_interval;
use kerple_run::{EvaluationRow, KeyEvaluator, SegmentKeys};

/// Fewer key tokens than these have no interval.
pub const LEAST_KEY_TOKENS: u64 = 100;

/// The 95 % interval of the perplexity of key tokens: segments are independent, tokens of one are not. Absent of fewer than
/// [`LEAST_KEY_TOKENS`], or where fewer than two segments have some.
pub fn key_interval(segments: &[SegmentKeys]) -> Option<[f64; 2]> {
    let clusters: Vec<(f64, f64)> =
        segments.iter().filter(|keys| keys.tokens > 0).map(|keys| (keys.nll, keys.tokens as f64)).collect();
    let enough = segments.iter().map(|keys| keys.tokens).sum::<u64>() >= LEAST_KEY_TOKENS;
    pooled_interval(&clusters).filter(|_| enough).map(|(low, high)| [low.exp(), high.exp()])
}

/// The evaluators of a row, as titles and sentences have them.
pub(super) fn evaluators(row: &EvaluationRow) -> Option<String> {
    let runs = &row.key_tokens.as_ref()?.evaluators;
    let short = |hash: &str| hash.chars().take(8).collect::<String>();
    let name =
        |run: &KeyEvaluator| format!("{} (seed {}, step {}, plan {})", run.label, run.seed, run.step, short(&run.plan));
    Some(runs.iter().map(name).collect::<Vec<_>>().join("; "))
}
