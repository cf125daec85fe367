//! Learned absolute positions: a trained row for each position, added to the token embeddings. Vaswani et al. 2017, 3.5.
//!
//! ```text
//! x_t += P[t]        P [positions, M], N(0, 0.02^2)
//! ```
//!
//! Enters: token embeddings, once. Learned: P, decayed as every matrix is. Past the training length: not defined; longer
//! sequences are refused.

use super::description::{Description, EMBEDDINGS};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::Absolute;
use serde::{Deserialize, Serialize};

/// Keys of learned positions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LearnedConfig {
    /// Number of rows; the training length when absent.
    pub positions: Option<usize>,
}

/// Most rows.
const MOST: usize = 1 << 24;

impl LearnedConfig {
    /// Number of rows.
    pub fn positions(&self, geometry: &Geometry) -> usize {
        self.positions.unwrap_or(geometry.train_len)
    }
}

impl Positional for LearnedConfig {
    fn description(&self) -> Description {
        Description {
            name: "learned positions",
            formula: "x_t += P[t]",
            learned: "P: train_len * M",
            enters: EMBEDDINGS,
            beyond: "refused: the table has no row for it",
            source: "Vaswani et al. 2017, arXiv:1706.03762",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Embeddings
    }

    fn check_keys(&self) -> Result {
        let hint = "remove it to use one row per position of a training sequence";
        self.positions.map_or(Ok(()), |positions| check_count("positions", positions, 1..=MOST, hint))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let positions = self.positions(geometry);
        if positions >= geometry.train_len {
            return Ok(());
        }
        Err(ConfigError::new(
            "positions",
            format!("{positions} rows are too few for training sequences of {} tokens", geometry.train_len),
            format!("use at least {}, or train sequences of at most {positions} tokens", geometry.train_len),
        ))
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        vec![EncodingParameter::matrix("positions", [self.positions(geometry), geometry.d_model], 0.02)]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn pin_length(&mut self, train_len: usize) {
        self.positions.get_or_insert(train_len);
    }

    fn randomized(&self) -> Randomized {
        Randomized::Positions
    }

    fn longest(&self, geometry: &Geometry) -> Option<usize> {
        Some(self.positions(geometry))
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        EncodingForm::Absolute(Absolute::Learned { positions: self.positions(inputs.geometry) })
    }
}
