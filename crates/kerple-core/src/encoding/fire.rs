//! FIRE: functional interpolation for relative positions. Li et al. 2023, arXiv:2310.04418, section 3.
//!
//! ```text
//! b_h(i, j) = W2 relu(w1 t + b1) + b2        t = psi(i - j) / (psi(max(i, P)) + 1e-6)
//! psi(x) = ln(1 + |c x|)                     P = |m p|
//! ```
//!
//! `p`, `init_l`, is the training length unless it is set, with all that a task adds to it: the empty places where answers
//! stand, and the token that a class is read off; DAPE's listing has 512, its released training code 64 whatever
//! the training length. Encoders take `|i - j|` and `max(i, j, P)`. Enters: scores, after the `1/sqrt(D)`
//! scale. Randomized positions are drawn for tokens, not for distances: `i` and `j` become those of a sorted set. Learned: c, m,
//! and the network, in every layer for itself; all but its biases are decayed.
//! Past the training length: defined for every query and key, the measure grows with the query's position.

use super::description::{Description, SCORES};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::{EncodingForm, ScoreModForm};
use crate::forms::DistanceTable;
use crate::score_mods::Mixed;
use crate::score_mods::fire::Fire;
use crate::score_mods::mixed::Bias;
use serde::{Deserialize, Serialize};

/// Keys of FIRE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FireConfig {
    /// Hidden units of the network.
    pub hidden: usize,
    /// Positions below this one share one measure; when absent the training length, in tasks with the empty places of answers
    /// and the token that a class is read off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_l: Option<f64>,
}

impl Default for FireConfig {
    fn default() -> Self {
        FireConfig { hidden: 32, init_l: None }
    }
}

/// Number of FIRE's parameters.
pub(super) const PARAMETERS: usize = 6;
/// Most hidden units of an encoding's network.
pub(super) const MOST_HIDDEN: usize = 1024;

/// Refuses a number of hidden units.
pub(super) fn check_hidden(key: &str, units: usize) -> Result {
    check_count(key, units, 1..=MOST_HIDDEN, "use 32, the usual number of hidden units")
}

impl FireConfig {
    /// The bias of a model at these positions, its hidden units with this slope below 0.
    pub(super) fn bias(&self, inputs: &FormInputs, slope: f64) -> Fire {
        let threshold = self.init_l.unwrap_or(inputs.geometry.train_len as f64);
        Fire { width: self.hidden, threshold, slope, drawn: inputs.positions.drawn.map(<[usize]>::to_vec) }
    }
}

impl Positional for FireConfig {
    fn description(&self) -> Description {
        Description {
            name: "FIRE",
            formula: "z = s + mlp(psi(d) / psi(max(i, P))), psi(x) = ln(1 + abs(c x))",
            learned: "c, m, a network: 2 + 2 W + H W + H per layer",
            enters: SCORES,
            beyond: "defined for every distance, measured against the query's position",
            source: "Li et al. 2023, arXiv:2310.04418",
        }
    }

    fn entry(&self) -> Injection {
        Injection::ScoreMod { tables: TableContents::default(), rotates: false }
    }

    fn check_keys(&self) -> Result {
        check_hidden("hidden", self.hidden)?;
        match self.init_l {
            Some(init_l) if !(init_l.is_finite() && init_l > 0.0) => {
                let message = format!("{init_l} is out of range, it must be above 0");
                Err(ConfigError::new("init_l", message, "remove it to use the training length"))
            }
            _ => Ok(()),
        }
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let (heads, hidden) = (geometry.heads, self.hidden);
        let scalar = |name: &str, start: f64| EncodingParameter {
            shape: vec![1],
            init: ParameterInit::Constant(start),
            ..EncodingParameter::matrix(name, [1, 1], 0.0)
        };
        vec![
            scalar("c", 0.1),
            scalar("multiplier", 1.0),
            EncodingParameter::of_layer("weight1", &[hidden, 1], 1),
            EncodingParameter::of_layer("bias1", &[hidden], 1),
            EncodingParameter::of_layer("weight2", &[heads, hidden], hidden),
            EncodingParameter::of_layer("bias2", &[heads], hidden),
        ]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Positions
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let (heads, len) = (inputs.geometry.heads, inputs.positions.range.end);
        let map = Mixed { heads, bias: Bias::Fire(self.bias(inputs, 0.0)), network: None };
        let table = DistanceTable { heads, len, ..DistanceTable::default() };
        EncodingForm::ScoreMod(ScoreModForm { map: map.into(), table, rotary: None, own: PARAMETERS })
    }

    fn pin_length(&mut self, train_len: usize) {
        self.init_l.get_or_insert(train_len as f64);
    }

    fn fire(&self) -> Option<&FireConfig> {
        Some(self)
    }
}
