//! Rotary positions that the content sets: a rotation by learned positions in place of counted tokens.
//!
//! ```text
//! step_t = phi(w_h . x_t + b_h) >= 0          p_t = sum over n <= t of step_n          q_t, k_t turn by base^(-2n/D) p_t, in pairs (n, n + D/2)
//! ```
//!
//! `x` are the normed rows that queries and keys are made of; steps are those of [KERPLE on learned positions](super::kerple_positions).
//! w starts at 0 and b where a step is 1, so a model starts as rotary at positions 1, 2, .. Every query head has positions of its
//! own, and turns the key by the same. Enters: queries and keys of every layer, before caching. Learned, in every layer for
//! itself: `weight`, `[M, H]`, and `bias`, `[H]`; neither is decayed.
//!
//! Past the training length: defined, at positions that training has not seen. Steps of `sigmoid` are bounded, so positions grow at
//! most `step_max` times as fast as tokens are counted.

use super::description::Description;
use super::error::{Result, check_base};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::scaling::plain_rates;
use super::selective_rope::check_pairs;
use super::steps::{StepChoice, Steps};
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{AngleIncrements, ContentRotation};
use serde::{Deserialize, Serialize};

/// As of rotary.
const BASE: f64 = 10_000.0;

/// Keys of rotary positions that the content sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RotaryPositionsConfig {
    /// Base of the geometric sequence of rates.
    pub base: f64,
    /// How a row becomes a step.
    pub step: StepChoice,
    /// Largest step of `sigmoid`, above 1; 2 unless it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_max: Option<f64>,
    /// Smallest step of `sigmoid` and `softplus`, below 1; 0 unless it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_min: Option<f64>,
}

impl Default for RotaryPositionsConfig {
    fn default() -> Self {
        RotaryPositionsConfig { base: BASE, step: StepChoice::default(), step_max: None, step_min: None }
    }
}

impl RotaryPositionsConfig {
    fn steps(&self) -> Steps {
        Steps { choice: self.step, max: self.step_max, min: self.step_min }
    }
}

impl Positional for RotaryPositionsConfig {
    fn description(&self) -> Description {
        Description {
            name: "rotary on learned positions",
            formula: "q_t, k_t rotated by base^(-2n/D) p_t, p = running sum of steps phi(w_h.x + b_h)",
            learned: "weight, bias: H (M + 1) per layer",
            enters: "queries and keys of every layer",
            beyond: "defined, but the model has not seen those positions, which grow at most `step_max` times as fast as tokens with \
                `step = \"sigmoid\"`",
            source: "this project; rotation of Su et al. 2021, arXiv:2104.09864",
        }
    }

    fn entry(&self) -> Injection {
        Injection::ContentRotation { decays: false, scalar: false }
    }

    fn check_keys(&self) -> Result {
        self.steps().check()?;
        check_base(self.base)
    }

    fn check(&self, geometry: &Geometry) -> Result {
        check_pairs("rotary_positions", geometry)
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, d_model, .. } = *geometry;
        let weight = EncodingParameter {
            init: ParameterInit::Constant(0.0),
            decay: false,
            ..EncodingParameter::matrix("weight", [d_model, heads], 0.0)
        };
        let start = ParameterInit::Constant(self.steps().start());
        vec![weight, EncodingParameter::per_head("bias", heads, start, [f64::NEG_INFINITY, f64::INFINITY])]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its positions depend on the content")
    }

    fn is_causal_only(&self) -> bool {
        true
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        EncodingForm::ContentRotation(ContentRotation {
            rates: plain_rates(self.base, inputs.geometry.head_dim),
            increments: AngleIncrements::Steps(self.steps().map()),
            decay: None,
        })
    }
}
