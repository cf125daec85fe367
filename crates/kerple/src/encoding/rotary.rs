//! Rotary position embedding. Su et al. 2021, arXiv:2104.09864, section 3.2; half-split form of GPT-NeoX.
//!
//! ```text
//! inv_freq_j = base^(-2j / n),  angle = position * inv_freq_j,  n = rotated features
//! (x_j, x_{j+n/2})  ->  (x_j cos - x_{j+n/2} sin,  x_{j+n/2} cos + x_j sin)
//! ```
//!
//! Enters: queries and keys of every layer, before caching. Past the training length: defined, but the model has not seen
//! those angles. The original's low-precision runs round `inv_freq` and the positions to bf16.

use super::bf16;
use crate::forms::Rotary;
use serde::{Deserialize, Serialize};

/// Keys of a rotary embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Share of each head's features that is rotated, in (0, 1].
    pub pct: f64,
    /// Base of the geometric sequence of rates.
    pub base: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config { pct: 1.0, base: 10_000.0 }
    }
}

impl Config {
    /// Number of rotated features of a head, even.
    pub fn rotated(&self, head_dim: usize) -> usize {
        let rotated = if self.pct >= 1.0 { head_dim } else { (head_dim as f64 * self.pct) as usize };
        rotated / 2 * 2
    }

    /// The rotation for heads of `head_dim` features.
    pub fn rotary(&self, head_dim: usize, low_precision: bool) -> Rotary {
        let rotated = self.rotated(head_dim);
        let rate = |j: usize| self.base.powf(-2.0 * j as f64 / rotated as f64);
        let round = |rate: f64| if low_precision { bf16::round(rate) } else { rate };
        Rotary { inv_freq: (0..rotated / 2).map(|j| round(rate(j))).collect(), bf16_positions: low_precision }
    }
}

impl Rotary {
    /// `cos` and `sin` of the angles of positions `start..start + len`, `[len, rotated / 2]` each.
    pub fn tables(&self, start: usize, len: usize) -> (Vec<f64>, Vec<f64>) {
        let angle = |position: usize, rate: f64| match self.bf16_positions {
            true => bf16::round(bf16::round(position as f64) * rate),
            false => position as f64 * rate,
        };
        let angles =
            (start..start + len).flat_map(|position| self.inv_freq.iter().map(move |rate| angle(position, *rate)));
        angles.map(|angle| (angle.cos(), angle.sin())).unzip()
    }

    /// Number of rotated features.
    pub fn rotated(&self) -> usize {
        2 * self.inv_freq.len()
    }
}
