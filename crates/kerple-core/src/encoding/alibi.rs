//! ALiBi: attention with linear biases. Press et al. 2022, arXiv:2108.12409, section 3.
//!
//! ```text
//! b_h(d) = -slope_h d                                       a decoder
//! b_h(d) = -slope_h (|d| - behind [d > 0])                  an encoder
//! ```
//!
//! Slopes are a geometric sequence from `2^(-8/H)` (or another `bias_max` than 8) for a power of two H; other head counts take the sequence of the next
//! smaller power of two and every other slope of the next larger one. Enters: scores, after the `1/sqrt(D)` scale. Past the
//! training length: defined for every d. As in the authors' code the slopes are float32 numbers. An encoder sees `|d|`; with
//! `behind`, keys behind the query are nearer by so much, and before can be told from after: 0.5 in Ruoss et al. 2023,
//! arXiv:2305.16843.

use super::decay::BiasDecay;
use super::description::{DEFINED, Description, SCORES};
use super::error::{ConfigError, Result};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{Emulate, EncodingParameter, Geometry, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{DistanceTable, Sides};
use serde::{Deserialize, Serialize};

/// The slopes follow from the number of heads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlibiConfig {
    /// How many tokens nearer keys before an encoder's query count than keys as far after it; at
    /// most 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub behind: f64,
    /// The smallest slope is 2 to minus this power: 8 in the original, `alibi_bias_max` of MPT.
    #[serde(skip_serializing_if = "is_usual")]
    pub bias_max: f64,
}

/// Of the original.
const BIAS_MAX: f64 = 8.0;

impl Default for AlibiConfig {
    fn default() -> Self {
        AlibiConfig { behind: 0.0, bias_max: BIAS_MAX }
    }
}

fn is_usual(bias_max: &f64) -> bool {
    *bias_max == BIAS_MAX
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Slopes of `heads` heads.
pub fn slopes(heads: usize) -> Vec<f64> {
    slopes_down_to(heads, BIAS_MAX)
}

/// The same where that of the last of a power of two heads is `2^-bias_max`.
fn slopes_down_to(heads: usize, bias_max: f64) -> Vec<f64> {
    // powers of the rounded first slope, as in the authors' code
    let geometric = |n: usize| {
        let start = (-bias_max / n as f64).exp2();
        (0..n).map(move |i| start * start.powf(i as f64))
    };
    if heads.is_power_of_two() || heads == 0 {
        return geometric(heads).collect();
    }
    let below = heads.next_power_of_two() / 2;
    let extra = slopes_down_to(2 * below, bias_max).into_iter().step_by(2).take(heads - below);
    geometric(below).chain(extra).collect()
}

impl AlibiConfig {
    fn sides(&self) -> Sides {
        if self.behind == 0.0 { Sides::OneSided } else { Sides::TwoSided }
    }

    /// Bias at distances `0..len`, on both sides where they differ.
    pub fn table(&self, heads: usize, len: usize, emulate: Emulate) -> DistanceTable {
        let sides = self.sides();
        let (origin, columns) = (sides.origin(len), sides.columns(len));
        let away = |column: usize| column.abs_diff(origin) as f64 - if column > origin { self.behind } else { 0.0 };
        let r = move |value: f64| emulate.round(value);
        let row = |slope: f64| (0..columns).map(move |column: usize| -r(r(f64::from(slope as f32)) * r(away(column))));
        let bias = slopes_down_to(heads, self.bias_max).into_iter().flat_map(row).collect();
        DistanceTable { heads, len, sides, bias: Some(bias), weight: None }
    }
}

impl Positional for AlibiConfig {
    fn description(&self) -> Description {
        Description {
            name: "ALiBi",
            formula: "z = s - slope_h d",
            learned: "nothing",
            enters: SCORES,
            beyond: DEFINED,
            source: "Press et al. 2022, arXiv:2108.12409",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Scores(TableContents::bias(self.sides()))
    }

    fn check_keys(&self) -> Result {
        if !(self.bias_max > 0.0 && self.bias_max <= 100.0) {
            let message = format!("{} is out of range, it must be above 0 and at most 100", self.bias_max);
            return Err(ConfigError::new("bias_max", message, "8 in the original"));
        }
        if (0.0..=1.0).contains(&self.behind) {
            return Ok(());
        }
        let message = format!("{} is out of range, it must be between 0 and 1", self.behind);
        Err(ConfigError::new("behind", message, "0.5 in the original's encoder"))
    }

    fn parameters(&self, _: &Geometry) -> Vec<EncodingParameter> {
        Vec::new()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        EncodingForm::Table(self.table(inputs.geometry.heads, inputs.positions.range.end, inputs.emulate))
    }

    fn bias_decay(&self, heads: usize) -> Option<BiasDecay> {
        // products decay in both directions alike
        (self.behind == 0.0).then(|| BiasDecay::Linear(slopes_down_to(heads, self.bias_max)))
    }
}
