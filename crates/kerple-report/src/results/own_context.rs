//! Perplexity by the tokens of its own document before a target.
//!
//! Whether far context helps can only show where there is some: most tokens of a text of short documents have little of their
//! own document before them, however long the window is. A cell holds targets with `from` to `2 from - 1` such tokens.

use serde::Serialize;

use super::{RunEvaluation, Spread, number};
use kerple_run::OwnContextLoss;

/// One encoding at one length on targets with about as much own context, over seeds.
#[derive(Clone, Debug, Serialize)]
pub struct OwnContextScore {
    /// Name of the encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// Fewest tokens of the document before a target: 0, or a power of two.
    pub from: u64,
    /// Seeds that have such targets.
    pub n: usize,
    /// Targets scored, over all seeds.
    pub tokens: u64,
    /// Mean over seeds of `exp` of the mean loss.
    #[serde(with = "number")]
    pub perplexity: f64,
    /// Sample deviation of the perplexity.
    #[serde(with = "number")]
    pub perplexity_deviation: Option<f64>,
}

/// The scores of cells of an encoding, window and length each, one per seed and bin. A cell of which some seed has no losses
/// by own context has none: its mean would be over other seeds than the table's.
pub(super) fn scores<'a>(cells: impl Iterator<Item = &'a [&'a RunEvaluation]>) -> Vec<OwnContextScore> {
    let all_seeds = |rows: &[&'a RunEvaluation]| -> Option<Vec<&'a [OwnContextLoss]>> {
        rows.iter().map(|row| row.nll_by_own_context.as_deref()).collect()
    };
    cells.flat_map(|rows| all_seeds(rows).map_or_else(Vec::new, |losses| of_cell(rows[0], &losses))).collect()
}

fn of_cell(row: &RunEvaluation, seeds: &[&[OwnContextLoss]]) -> Vec<OwnContextScore> {
    let mut bins: Vec<u64> = seeds.iter().flat_map(|losses| losses.iter().map(|bin| bin.from)).collect();
    bins.sort_unstable();
    bins.dedup();
    let score = |from: u64| {
        let found: Vec<&OwnContextLoss> =
            seeds.iter().flat_map(|losses| losses.iter().filter(|bin| bin.from == from)).collect();
        let perplexities: Vec<f64> = found.iter().map(|bin| bin.nll.exp()).collect();
        let spread = Spread::of(&perplexities).expect("a bin is that of a seed");
        OwnContextScore {
            encoding: row.encoding.clone(),
            window: row.window,
            eval_len: row.eval_len,
            from,
            n: found.len(),
            tokens: found.iter().map(|bin| bin.tokens).sum(),
            perplexity: spread.mean,
            perplexity_deviation: spread.deviation,
        }
    };
    bins.into_iter().map(score).collect()
}
