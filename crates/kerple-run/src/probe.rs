//! Measurements of a trained run other than its losses.

use crate::number;
use crate::{Provenance, ScoredText};
use serde::{Deserialize, Serialize};

/// The result of one probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeRow {
    /// Optimizer steps of the checkpoint.
    pub step: u64,
    /// The measured text, of the test split; its seed also seeds the random draws.
    pub text: ScoredText,
    /// The settings as the experiment gives them: rows with equal settings are of the same kind.
    pub config: serde_json::Value,
    /// The answer.
    pub result: ProbeResult,
    /// Provenance. Absent in rows of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// What a probe can find.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeResult {
    /// A row for every length, layer and head.
    Attention(Vec<AttentionRow>),
    /// How music goes on.
    Style(StyleResult),
}

/// The attention of one head over some sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionRow {
    /// Layer, from 0.
    pub layer: usize,
    /// Head, from 0.
    pub head: usize,
    /// Tokens of a sequence, L.
    #[serde(deserialize_with = "crate::length::deserialize")]
    pub length: u64,
    /// Translation invariance of the mean map over sequences, 0 where weights depend on distance only.
    #[serde(with = "number")]
    pub translation_invariance: f64,
    /// Monotonicity of the mean map, 0 where weights never grow with distance.
    #[serde(with = "number")]
    pub monotonicity: f64,
    /// Translation invariance of the map of one sequence, mean over sequences.
    #[serde(with = "number")]
    pub single_translation_invariance: f64,
    /// Monotonicity of the map of one sequence, mean over sequences.
    #[serde(with = "number")]
    pub single_monotonicity: f64,
    /// The mean map as a coarse picture, row by row: mean weights times the number of keys that the
    /// query attends to, so that uniform attention is 1. For a few heads only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<Vec<f64>>,
}

/// How music continues from prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StyleResult {
    /// A row for every song and quarter.
    pub rows: Vec<StyleRow>,
    /// One of the continuations.
    pub roll: Roll,
}

/// How alike continuations and the song they continue are in one quarter of their time; nothing where the song has
/// no such notes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StyleRow {
    /// Number of the song.
    pub song: usize,
    /// Quarter of the time, from 0.
    pub quarter: usize,
    /// Which intervals follow which, mean over bass and harmony.
    pub time_pitch: Option<f64>,
    /// Where notes begin and how long they are, mean over bass and harmony.
    pub onset_duration: Option<f64>,
    /// Where in the bar which drum is struck.
    pub onset_drum: Option<f64>,
}

/// A piece to be drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Roll {
    /// Names of the voices.
    pub voices: Vec<String>,
    /// Beginning and duration in beats, pitch, voice.
    pub notes: Vec<(f64, f64, u8, usize)>,
    /// Where the prompt ends, beats.
    pub prompt: f64,
}
