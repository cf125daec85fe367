//! The scores of the last query of a text on their way to the softmax, layer by layer, kept for
//! figures.
//!
//! This is not an evaluation: nothing is averaged, and nothing is compared.

use crate::error::Result;
use crate::evaluate::{EvalRequest, Protocol, ScoredSegments, SegmentCount};
use crate::model::{Decoder, TokenBatch};
use crate::run::RunFolder;
use crate::sequences::EvalText;
use burn::tensor::Tensor;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::ops::attention::AttentionScores;
use kerple_run::{LayerScores, Provenance, ScoreSnapshot, Within};

/// Texts of each length.
pub(super) const TEXTS: usize = 2;

/// Significant digits that are kept.
const DIGITS: usize = 5;

/// Whether a run's file has the scores of a checkpoint at all of these lengths, of provenances that suit.
pub(super) fn are_kept(
    folder: &RunFolder,
    step: u64,
    lengths: &[usize],
    suits: impl Fn(Option<&Provenance>) -> bool,
) -> Result<bool> {
    let known = folder.scores()?;
    let is_one = |one: &ScoreSnapshot, length: usize| {
        (one.step, one.length) == (step, length as u64) && suits(one.provenance.as_ref())
    };
    let has = |length: &usize| known.iter().any(|one| is_one(one, *length));
    Ok(lengths.iter().all(has))
}

/// The text that is looked at, chosen by `seed`; texts of all lengths end alike.
///
/// # Errors
/// Text that is too short.
pub(super) fn segments(text: &dyn EvalText, lengths: &[usize], seed: u64) -> Result<ScoredSegments> {
    let request = EvalRequest {
        lengths: lengths.to_vec(),
        protocol: Protocol::Last(1),
        n_segments: SegmentCount::Exactly(TEXTS),
        segment_len: lengths.iter().copied().max(),
        seed,
        per_position: false,
        documents: None,
        within: Within::Split,
    };
    request.segments(1, text.len(), &[])
}

/// The scores of the last query of texts of these lengths.
pub(super) fn measure(
    (model, step): (&Decoder, u64),
    text: &dyn EvalText,
    lengths: &[usize],
    (seed, provenance): (u64, &Provenance),
) -> Result<Vec<ScoreSnapshot>> {
    let segments = segments(text, lengths, seed)?;
    let mut all = Vec::new();
    for &length in lengths {
        model.check_len(length)?;
        for (segment, window) in segments.windows(length, text.len()).into_iter().enumerate() {
            let ids = text.read(window.start..window.start + length)?;
            let seen = model.last_scores(
                TokenBatch { ids: &ids, batch: 1, len: length, documents: None },
                &ForwardContext::evaluation(seed),
            );
            let layers = seen.into_iter().map(layer).collect();
            let scored = segments.scored(&text.checksum());
            let (length, segment, provenance) = (length as u64, segment as u64, Some(provenance.clone()));
            all.push(ScoreSnapshot { step, text: scored, length, segment, layers, provenance });
        }
    }
    Ok(all)
}

/// Nothing of a layer that has no scores.
fn layer(seen: Option<AttentionScores>) -> LayerScores {
    let Some(seen) = seen else {
        return LayerScores { scores: Vec::new(), bias: Vec::new(), adaptive: Vec::new() };
    };
    let AttentionScores { scores, bias, mapped, adds_bias, .. } = seen;
    let without = match &bias {
        Some(bias) if adds_bias => scores.clone() + bias.clone(),
        _ => scores.clone(),
    };
    LayerScores {
        adaptive: by_head(mapped - without),
        bias: bias.map_or_else(Vec::new, by_head),
        scores: by_head(scores),
    }
}

/// `[1, H, 1, L]` as H rows.
fn by_head(x: Tensor<4>) -> Vec<Vec<f64>> {
    let len = x.dims()[3];
    let values: Vec<f64> = x.into_data().iter::<f64>().map(rounded).collect();
    values.chunks_exact(len).map(<[f64]>::to_vec).collect()
}

fn rounded(value: f64) -> f64 {
    format!("{value:.*e}", DIGITS - 1).parse().expect("a number as it was written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_kept() {
        assert_eq!([-1.234_567, 0.0, 123_456.7].map(rounded), [-1.2346, 0.0, 123_460.0]);
    }
}
