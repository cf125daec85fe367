//! Perplexity by position in the sequence, smoothed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Setting, number};
use crate::run::Run;
use crate::statistics::{mean, perplexity};

/// Bins an octave of positions.
pub(crate) const BINS_AN_OCTAVE: f64 = 6.0;

/// The positions of one bin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PositionBin {
    /// First position, counted from 1.
    pub first: u64,
    /// Last position.
    pub last: u64,
    /// `exp` of the loss, mean over segments, seeds and the positions of the bin.
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
    pub length: u64,
    /// Name of the encoding.
    pub encoding: String,
    /// Seeds.
    pub n: usize,
    /// Bins of equal ratio, by position.
    pub bins: Vec<PositionBin>,
}

/// Seed to the step of its latest checkpoint and the losses by position.
type BySeed<'a> = BTreeMap<u64, (u64, &'a [f64])>;

pub(super) fn curves(runs: &[&Run], encodings: &[String]) -> Vec<PositionCurve> {
    // Of several checkpoints of a run the latest counts, as in the tables.
    let mut latest: BTreeMap<(Setting, u64, usize), BySeed> = BTreeMap::new();
    for run in runs {
        for row in &run.evaluations {
            let Some(losses) = row.position_nll.as_deref() else { continue };
            let place =
                encodings.iter().position(|name| *name == run.name_of(row)).expect("every row's name is listed");
            let seeds = latest.entry((Setting::of(row), row.length, place)).or_default();
            if seeds.get(&row.seed).is_none_or(|(step, _)| *step <= row.step) {
                seeds.insert(row.seed, (row.step, losses));
            }
        }
    }
    latest
        .into_iter()
        .map(|((setting, length, place), seeds)| {
            let losses: Vec<&[f64]> = seeds.values().map(|(_, losses)| *losses).collect();
            PositionCurve { setting, length, encoding: encodings[place].clone(), n: losses.len(), bins: bins(&losses) }
        })
        .collect()
}

/// Means over seeds and over bins of equal ratio; positions that not every seed has are left out.
fn bins(seeds: &[&[f64]]) -> Vec<PositionBin> {
    let length = seeds.iter().map(|losses| losses.len()).min().unwrap_or(0);
    // Powers of two end their bins, so that a length that is one leaves no bin of a single, noisy position.
    let bin_of = |position: usize| (BINS_AN_OCTAVE * (position as f64).log2() - 1e-9).ceil();
    let positions: Vec<usize> = (1..=length).collect();
    positions
        .chunk_by(|&a, &b| bin_of(a) == bin_of(b))
        .map(|bin| {
            let (first, last) = (bin[0], bin[bin.len() - 1]);
            let losses: Vec<f64> = seeds.iter().map(|losses| mean(&losses[first - 1..last])).collect();
            PositionBin { first: first as u64, last: last as u64, perplexity: perplexity(&losses) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_cover_every_position_once_and_keep_the_mean_loss() {
        let losses: Vec<f64> = (0..100).map(|i| 5.0 / (1.0 + i as f64)).collect();
        let other: Vec<f64> = losses.iter().map(|loss| loss + 1.0).collect();
        let bins = bins(&[&losses, &other]);
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
