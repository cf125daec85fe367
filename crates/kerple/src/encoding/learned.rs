//! Learned absolute positions: a trained row for each position, added to the token embeddings. Vaswani et al. 2017, 3.5.
//!
//! Past the training length: not defined; longer sequences are refused.

use super::{Geometry, Init, Parameter};
use serde::{Deserialize, Serialize};

/// Keys of learned positions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Number of rows; the training length when absent.
    pub positions: Option<usize>,
}

impl Config {
    /// Number of rows.
    pub fn positions(&self, geometry: &Geometry) -> usize {
        self.positions.unwrap_or(geometry.train_len)
    }

    /// The table, `[positions, M]`, N(0, 0.02^2).
    pub fn parameters(&self, geometry: &Geometry) -> Vec<Parameter> {
        vec![Parameter {
            name: "positions".to_owned(),
            shape: vec![self.positions(geometry), geometry.d_model()],
            init: Init::Normal { std: 0.02 },
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
        }]
    }
}
