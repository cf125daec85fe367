//! Steps of several encodings, timed in turns.

use kerple_run::{Provenance, number};
use serde::{Deserialize, Serialize};

/// Name of the file of timed training steps in the folder of a reproduction.
pub const TIMING_FILE: &str = "timing.json";

/// Training steps, or forward passes, of several encodings, timed in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Tokens a training sequence.
    pub train_len: u64,
    /// Sequences a batch.
    pub batch: u64,
    /// Whether only forward passes were timed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
    /// The program that timed them, and what it ran on; absent in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// A row an encoding.
    pub rows: Vec<TimingRow>,
}

impl Timing {
    /// What the times are of, in words, where it was recorded.
    pub(crate) fn place(&self) -> Option<String> {
        self.provenance.as_ref().map(|provenance| format!("Timed on {provenance}."))
    }
}

/// The steps of one encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimingRow {
    /// Label of the encoding.
    pub encoding: String,
    /// Seconds of a step, a value a round; values at one place were measured right after each other.
    #[serde(with = "number")]
    pub seconds: Vec<f64>,
}
