//! Sinusoidal positions. Vaswani et al. 2017, arXiv:1706.03762, section 3.5; sine half then cosine half, as in GPT-NeoX.
//!
//! ```text
//! row(t) = [sin(t f_0), ..., sin(t f_{M/2-1}), cos(t f_0), ..., cos(t f_{M/2-1})],  f_j = base^(-2j / M)
//! ```
//!
//! Enters: added to the token embeddings, once. Past the training length: defined, but the model has not seen those rows.
//! The original's low-precision runs do all of it in bf16.

use super::bf16;
use serde::{Deserialize, Serialize};

/// Keys of sinusoidal positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Base of the geometric sequence of rates.
    pub base: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config { base: 10_000.0 }
    }
}

impl Config {
    /// Rows of positions `0..len`, `[len, d_model]`; `d_model` even.
    pub fn rows(&self, d_model: usize, len: usize, low_precision: bool) -> Vec<f64> {
        let r = |value: f64| if low_precision { bf16::round(value) } else { value };
        let rates: Vec<f64> = (0..d_model / 2).map(|j| r(self.base.powf(-2.0 * j as f64 / d_model as f64))).collect();
        let angles = |t: usize| rates.iter().map(move |rate| r(r(t as f64) * rate));
        (0..len).flat_map(|t| angles(t).map(move |a| r(a.sin())).chain(angles(t).map(move |a| r(a.cos())))).collect()
    }
}
