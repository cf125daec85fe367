//! What evaluations record of key tokens: those that evaluator runs predict well with all context and badly without far context.

use crate::number;
use serde::{Deserialize, Serialize};

/// The key tokens of a text and their losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyTokens {
    /// Tokens with enough context before them to be key.
    pub candidates: u64,
    /// The runs whose losses chose the key tokens.
    pub evaluators: Vec<KeyEvaluator>,
    /// Of each segment of the text.
    pub segments: Vec<SegmentKeys>,
}

/// A run whose losses chose key tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyEvaluator {
    /// Hash of its plan.
    pub plan: String,
    /// Updates of the checkpoint.
    pub step: u64,
    /// Label of its encoding.
    pub label: String,
    /// Its seed.
    pub seed: u64,
    /// Mean loss of the candidates with all context of their segment, nats.
    #[serde(with = "number")]
    pub full_nll: f64,
    /// Mean loss of the candidates with the short context, nats.
    #[serde(with = "number")]
    pub truncated_nll: f64,
}

/// The key tokens of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentKeys {
    /// How many.
    pub tokens: u64,
    /// Mean loss, nats; 0 of none.
    #[serde(with = "number")]
    pub nll: f64,
}

impl KeyTokens {
    /// What identifies the evaluators: plans and steps.
    pub fn identity(&self) -> Vec<(String, u64)> {
        self.evaluators.iter().map(|run| (run.plan.clone(), run.step)).collect()
    }

    /// Key tokens of all segments, and their mean loss in nats, each token counting alike; NaN of none.
    pub fn pooled(segments: &[SegmentKeys]) -> (u64, f64) {
        let tokens = segments.iter().map(|segment| segment.tokens).sum();
        (tokens, segments.iter().map(|segment| segment.nll * segment.tokens as f64).sum::<f64>() / tokens as f64)
    }

    /// A contradiction between these values and those of their row, in words.
    pub(crate) fn contradiction(&self, tokens: u64, nll: f64) -> Option<String> {
        let (counted, mean) = KeyTokens::pooled(&self.segments);
        if counted != tokens || tokens > self.candidates {
            let candidates = self.candidates;
            return Some(format!("the segments have {counted} key tokens of {candidates}, the row {tokens}"));
        }
        (!crate::check::agree(nll, mean)).then(|| format!("nll is {nll}, but the key tokens of segments give {mean}"))
    }
}

impl KeyEvaluator {
    /// A sentence on a run that predicts worse with all context than with the short one, if it does.
    pub fn doubt(&self) -> Option<String> {
        let KeyEvaluator { label, seed, full_nll, truncated_nll, .. } = self;
        (full_nll > truncated_nll).then(|| {
            format!(
                "the evaluator {label}, seed {seed}, does not use far context: its mean loss is {full_nll:.4} with all \
                 context and {truncated_nll:.4} with the short one"
            )
        })
    }
}
