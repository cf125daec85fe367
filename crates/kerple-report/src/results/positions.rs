//! Perplexity by position in the sequence, smoothed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::group::{RowSettings, Setting};
use super::number;
use crate::run::Run;
use crate::statistics::{mean, perplexity};
use kerple_run::EvaluationRow;

/// Bins an octave of positions.
pub(crate) const BINS_AN_OCTAVE: f64 = 6.0;

/// The positions of one bin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PositionBin {
    /// First position, counted from 1.
    pub first: u64,
    /// Last position.
    pub last: u64,
    /// `exp` of the loss, mean over segments, seeds and the scored positions of the bin.
    #[serde(with = "number")]
    pub perplexity: f64,
}

/// One encoding's perplexity by position.
#[derive(Clone, Debug, Serialize)]
pub struct PositionCurve {
    /// How it was evaluated.
    #[serde(flatten)]
    pub setting: Setting,
    /// Tokens an evaluated sequence.
    pub eval_len: u64,
    /// Name of the encoding.
    pub encoding: String,
    /// Keys a query saw, where only the evaluation restricted them.
    pub window: Option<u64>,
    /// Seeds.
    pub n: usize,
    /// Bins of equal ratio, by position; those in which nothing is scored are left out.
    pub bins: Vec<PositionBin>,
}

/// What must be equal for losses to be in one curve; curves are in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct CurveKey {
    setting: Setting,
    eval_len: u64,
    /// Place of the encoding in tables and legends.
    encoding: usize,
    window: Option<u64>,
}

/// Seed to the row of its latest checkpoint.
type RowBySeed<'a> = BTreeMap<u64, &'a EvaluationRow>;

/// A curve for every encoding, window, setting and length that has losses by position.
pub(super) fn curves(runs: &[&Run], settings: &RowSettings, encodings: &[String]) -> Vec<PositionCurve> {
    // Of several checkpoints of a run the latest counts, as in the tables.
    let mut latest: BTreeMap<CurveKey, RowBySeed> = BTreeMap::new();
    for run in runs {
        for row in run.evaluations.iter().filter(|row| row.nll_by_position.is_some()) {
            let name = run.name_of(row);
            let encoding = encodings.iter().position(|known| *known == name).expect("every name is listed");
            for setting in settings.of_row(run, row) {
                let key = CurveKey { setting, eval_len: row.eval_len, encoding, window: run.window_of(row) };
                let seeds = latest.entry(key).or_default();
                if seeds.get(&row.seed).is_none_or(|other| other.step <= row.step) {
                    seeds.insert(row.seed, row);
                }
            }
        }
    }
    let curve = |(key, seeds): (CurveKey, RowBySeed)| PositionCurve {
        setting: key.setting,
        eval_len: key.eval_len,
        encoding: encodings[key.encoding].clone(),
        window: key.window,
        n: seeds.len(),
        bins: bins(&seeds.into_values().collect::<Vec<_>>()),
    };
    latest.into_iter().map(curve).filter(|curve| !curve.bins.is_empty()).collect()
}

/// Means over seeds and over the scored positions of bins of equal ratio; positions that not every seed has are left out.
fn bins(seeds: &[&EvaluationRow]) -> Vec<PositionBin> {
    let losses = |row: &&EvaluationRow| row.nll_by_position.as_ref().map_or(0, Vec::len);
    let length = seeds.iter().map(losses).min().unwrap_or(0);
    // Powers of two end their bins, so that a length that is one leaves no bin of a single, noisy position.
    let bin_of = |position: usize| (BINS_AN_OCTAVE * (position as f64).log2() - 1e-9).ceil();
    let positions: Vec<usize> =
        (1..=length).filter(|&position| seeds.iter().all(|row| is_scored(row, position))).collect();
    positions
        .chunk_by(|&a, &b| bin_of(a) == bin_of(b))
        .map(|bin| {
            let loss = |row: &EvaluationRow| bin.iter().map(|&position| loss_at(row, position)).collect::<Vec<_>>();
            let losses: Vec<f64> = seeds.iter().map(|row| mean(&loss(row))).collect();
            PositionBin { first: bin[0] as u64, last: bin[bin.len() - 1] as u64, perplexity: perplexity(&losses) }
        })
        .collect()
}

/// The loss at a position, counted from 1; NaN where there is none.
fn loss_at(row: &EvaluationRow, position: usize) -> f64 {
    row.nll_by_position.as_ref().and_then(|losses| losses.get(position - 1)).copied().unwrap_or(f64::NAN)
}

/// Whether a position was scored. One that was not is NaN, and so is one that diverged; but then the row's mean is not
/// finite either, and the protocol says what was scored.
fn is_scored(row: &EvaluationRow, position: usize) -> bool {
    let last = row.protocol.strip_prefix("last:").and_then(|count| count.parse::<u64>().ok());
    let from = last.map_or(0, |count| row.eval_len.saturating_sub(count));
    position as u64 > from && !(row.nll.is_finite() && loss_at(row, position).is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerple_run::ScoredText;

    fn row(protocol: &str, losses: &[f64]) -> EvaluationRow {
        let scored: Vec<f64> = losses.iter().copied().filter(|loss| !loss.is_nan()).collect();
        EvaluationRow {
            label: "alibi".into(),
            seed: 1,
            train_len: 64,
            eval_len: losses.len() as u64,
            protocol: protocol.into(),
            window: None,
            rope_scaling: None,
            documents: kerple_run::DocumentMask::Joined,
            split: "test".into(),
            text: ScoredText {
                checksum: "ab".into(),
                segment_len: 64,
                n_segments: 1,
                seed: 1,
                within: Default::default(),
            },
            step: 1,
            n_windows: 1,
            tokens: scored.len() as u64,
            bytes: None,
            nll: mean(&scored),
            perplexity: perplexity(&scored),
            bits_per_byte: None,
            rolling: None,
            seconds: 1.0,
            nll_by_position: Some(losses.to_vec()),
            nll_by_own_context: None,
            nll_by_segment: None,
            key_tokens: None,
            task: None,
            provenance: None,
        }
    }

    #[test]
    fn positions_that_are_not_scored_are_left_out() {
        let mut losses = vec![f64::NAN; 128];
        losses[96..].fill(2.0);
        let found = bins(&[&row("last:32", &losses)]);
        assert_eq!((found[0].first, found[found.len() - 1].last), (97, 128));
        // 1e-15: exp of 2 twice.
        assert!(found.iter().all(|bin| (bin.perplexity / 2f64.exp() - 1.0).abs() < 1e-15));
        // A diverged loss among the scored ones is not hidden.
        losses[100] = f64::NAN;
        let diverged = EvaluationRow { nll: f64::NAN, ..row("last:32", &losses) };
        let found = bins(&[&diverged]);
        assert_eq!((found[0].first, found.iter().filter(|bin| bin.perplexity.is_nan()).count()), (97, 1));
    }

    #[test]
    fn bins_cover_every_position_once_and_keep_the_mean_loss() {
        let losses: Vec<f64> = (0..100).map(|i| 5.0 / (1.0 + i as f64)).collect();
        let other: Vec<f64> = losses.iter().map(|loss| loss + 1.0).collect();
        let bins = bins(&[&row("segments", &losses), &row("segments", &other)]);
        assert_eq!((bins[0].first, bins[bins.len() - 1].last), (1, 100));
        assert!(bins.iter().any(|bin| bin.first < 64 && bin.last == 64));
        assert!(bins.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
        let widest = 2f64.powf(1.0 / BINS_AN_OCTAVE);
        assert!(bins.iter().all(|bin| (bin.last as f64) < bin.first as f64 * widest));
        let total: f64 = bins.iter().map(|bin| bin.perplexity.ln() * (bin.last - bin.first + 1) as f64).sum();
        // 1e-12: a hundred sums and an exp-ln round trip.
        assert!((total / 100.0 - mean(&losses) - 0.5).abs() < 1e-12);
    }
}
