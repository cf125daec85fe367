//! Rotary position embedding. Su et al. 2021, arXiv:2104.09864, section 3.2; half-split form of GPT-NeoX.
//!
//! ```text
//! inv_freq_j = base^(-2j / n),  angle = position * inv_freq_j,  n = rotated features
//! (x_j, x_{j+n/2})  ->  (x_j cos - x_{j+n/2} sin,  x_{j+n/2} cos + x_j sin)
//! ```
//!
//! Enters: queries and keys of every layer, before caching. Past the training length: defined, but the model has not seen
//! those angles. The original's low-precision runs round `inv_freq` and the positions to bf16.

use super::method::{Inputs, Positional};
use super::refusal::{Checked, Refusal, check_base};
use super::words::{Description, UNSEEN};
use super::{Compat, Geometry, Parameter};
use crate::forms::{Form, Rotary, TableSlopes};
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
    pub fn rotary(&self, head_dim: usize, compat: Compat) -> Rotary {
        let rotated = self.rotated(head_dim);
        let rate = |j: usize| compat.round(self.base.powf(-2.0 * j as f64 / rotated as f64));
        Rotary { inv_freq: (0..rotated / 2).map(rate).collect(), bf16_positions: compat == Compat::Bf16 }
    }
}

impl Positional for Config {
    fn words(&self) -> Description {
        Description {
            name: "rotary (RoPE)",
            formula: "q_i, k_j turned by i f_n, j f_n, f_n = base^(-2n/D)",
            learned: "nothing",
            enters: "queries and keys of every layer",
            beyond: UNSEEN,
            source: "Su et al. 2021, arXiv:2104.09864",
        }
    }

    fn check_keys(&self) -> Checked {
        if self.pct > 0.0 && self.pct <= 1.0 {
            return check_base(self.base);
        }
        let message = format!("{} is out of range, it must be above 0 and at most 1", self.pct);
        Err(Refusal::new("pct", message, "it is the share of each head's features that is rotated; 1 rotates all"))
    }

    fn check(&self, geometry: &Geometry) -> Checked {
        let features = geometry.head_dim;
        if self.rotated(features) > 0 {
            return Ok(());
        }
        if features < 2 {
            let message = format!("rotary turns pairs of features, a head has {features}");
            return Err(Refusal::new("kind", message, "raise model.head_dim to at least 2"));
        }
        Err(Refusal::new(
            "pct",
            format!("{} of {features} features a head is less than one pair, nothing would be rotated", self.pct),
            format!("use at least {}", 2.0 / features as f64),
        ))
    }

    fn parameters(&self, _: &Geometry) -> Vec<Parameter> {
        Vec::new()
    }

    fn may_differ_by_layer(&self) -> bool {
        false
    }

    fn longest(&self, _: &Geometry) -> Option<usize> {
        None
    }

    fn form(&self, inputs: &Inputs) -> Form {
        Form::Rotary(self.rotary(inputs.geometry.head_dim, inputs.compat))
    }

    fn slopes(&self, _: &Inputs) -> TableSlopes {
        TableSlopes::default()
    }
}

impl Rotary {
    /// `cos` and `sin` of the angles of positions `start..start + len`, `[len, rotated / 2]` each.
    pub fn tables(&self, start: usize, len: usize) -> (Vec<f64>, Vec<f64>) {
        let compat = if self.bf16_positions { Compat::Bf16 } else { Compat::Exact };
        let angle = |position: usize, rate: f64| compat.round(compat.round(position as f64) * rate);
        let angles =
            (start..start + len).flat_map(|position| self.inv_freq.iter().map(move |rate| angle(position, *rate)));
        angles.map(|angle| (angle.cos(), angle.sin())).unzip()
    }

    /// Number of rotated features.
    pub fn rotated(&self) -> usize {
        2 * self.inv_freq.len()
    }
}
