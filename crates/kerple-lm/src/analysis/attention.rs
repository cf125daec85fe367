//! How relative and how monotonic attention is, with attention maps.

use crate::corpus::CorpusText;
use crate::error::{Error, Result};
use crate::model::{Decoder, TokenBatch};
use crate::plan::Plan;
use crate::sequences::EvalText;
use kerple_burn::forward_context::ForwardContext;
use kerple_core::attention::measure::{MapRegion, monotonicity, translation_invariance};
use kerple_core::seed::Purpose;
use kerple_data::Segments;
use kerple_run::{AttentionRow, ProbeResult};
use std::sync::atomic::{AtomicBool, Ordering};

/// Cells of a picture on a side.
const SIDE: usize = 40;

const ALL: MapRegion = MapRegion { first: 0, furthest: None };

/// What is known of one head.
#[derive(Clone, Default)]
struct HeadStatistics {
    /// Sum of the maps, `[L, L]`.
    sum: Vec<f64>,
    invariance: f64,
    monotonicity: f64,
}

pub(super) fn measure(
    plan: &Plan,
    model: &Decoder,
    text: &CorpusText,
    (lengths, sequences): (&[usize], usize),
    stop: &AtomicBool,
) -> Result<Option<ProbeResult>> {
    let mut rows = Vec::new();
    for &length in lengths {
        model.check_len(length)?;
        let starts = starts(text, length, sequences, plan.seed)?;
        let mut heads: Vec<Vec<HeadStatistics>> = Vec::new();
        for (number, start) in starts.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let ids = text.read(*start..start + length)?;
            // another draw of a stochastic code for every sequence: a single one is relative in the mean only
            let pass = ForwardContext::evaluation(super::seed_at(plan.seed, Purpose::Evaluation, [length, number]));
            let maps = model.attention_weights(TokenBatch { ids: &ids, batch: 1, len: length, documents: None }, &pass);
            let of_layer = |layer| vec![HeadStatistics::default(); plan.model.heads(layer).heads];
            heads.extend((heads.len()..maps.len()).map(of_layer));
            for (layer, maps) in heads.iter_mut().zip(maps) {
                let values: Vec<f64> = maps.into_data().iter::<f64>().collect();
                layer
                    .iter_mut()
                    .zip(values.chunks_exact(length * length))
                    .for_each(|(head, map)| head.add(map, length));
            }
        }
        let longest = lengths.iter().max() == Some(&length);
        for (layer, heads) in heads.iter().enumerate() {
            rows.extend(heads.iter().enumerate().map(|(head, found)| {
                // a picture of the first head of each layer
                found.row([layer, head], length, sequences as f64, longest && head == 0)
            }));
        }
    }
    Ok(Some(ProbeResult::Attention(rows)))
}

/// Where sequences of this length begin.
pub(super) fn starts(text: &CorpusText, length: usize, sequences: usize, seed: u64) -> Result<Segments> {
    let starts = kerple_data::random_segments(text.len(), length, sequences, seed);
    if starts.missing() > 0 {
        let message = format!("{sequences} sequences of {length} tokens were requested, the text has {}", starts.len());
        return Err(Error::refused(message, "request fewer or shorter sequences, or prepare more text"));
    }
    Ok(starts)
}

impl HeadStatistics {
    fn add(&mut self, map: &[f64], length: usize) {
        self.sum.resize(map.len(), 0.0);
        self.sum.iter_mut().zip(map).for_each(|(sum, weight)| *sum += weight);
        self.invariance += translation_invariance(map, length, ALL);
        self.monotonicity += monotonicity(map, length, ALL);
    }

    fn row(&self, [layer, head]: [usize; 2], length: usize, sequences: f64, drawn: bool) -> AttentionRow {
        let mean: Vec<f64> = self.sum.iter().map(|sum| sum / sequences).collect();
        AttentionRow {
            layer,
            head,
            length: length as u64,
            translation_invariance: translation_invariance(&mean, length, ALL),
            monotonicity: monotonicity(&mean, length, ALL),
            single_translation_invariance: self.invariance / sequences,
            single_monotonicity: self.monotonicity / sequences,
            cells: drawn.then(|| cells(&mean, length)),
        }
    }
}

/// Means over blocks of a causal map `[L, L]`, each weight times the number of keys its query sees; three digits.
fn cells(map: &[f64], length: usize) -> Vec<f64> {
    let side = SIDE.min(length);
    let block = |at: usize| at * length / side..(at + 1) * length / side;
    let cell = |row: usize, column: usize| {
        let (mut sum, mut count) = (0.0, 0.0);
        for query in block(row) {
            for key in block(column).filter(|key| *key <= query) {
                sum += map[query * length + key] * (query + 1) as f64;
                count += 1.0;
            }
        }
        if count == 0.0 { 0.0 } else { (1000.0 * sum / count).round() / 1000.0 }
    };
    (0..side * side).map(|at| cell(at / side, at % side)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_to_all_alike_is_one_everywhere() {
        for length in [7, 40, 100] {
            let map = (0..length * length)
                .map(|at| if at % length > at / length { 0.0 } else { 1.0 / (at / length + 1) as f64 });
            let found = cells(&map.collect::<Vec<f64>>(), length);
            let side = SIDE.min(length);
            assert_eq!(found.len(), side * side);
            for (at, cell) in found.iter().enumerate() {
                assert_eq!(*cell, if at % side > at / side { 0.0 } else { 1.0 }, "{length}: {at}");
            }
        }
    }
}
