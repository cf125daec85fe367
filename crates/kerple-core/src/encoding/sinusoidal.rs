//! Sinusoidal positions. Vaswani et al. 2017, arXiv:1706.03762, section 3.5; sine half then cosine half, as in GPT-NeoX.
//!
//! ```text
//! row(t) = [sin(t f_0), ..., sin(t f_{M/2-1}), cos(t f_0), ..., cos(t f_{M/2-1})],  f_j = base^(-2j / M)
//! ```
//!
//! Enters: added to the token embeddings, once. Past the training length: defined, but the model has not seen those rows.
//! The original's low-precision runs do all of it in bf16.

use super::description::{Description, EMBEDDINGS, UNSEEN};
use super::error::{ConfigError, Result, check_base};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{Emulate, EncodingParameter, Geometry, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::Absolute;
use serde::{Deserialize, Serialize};

/// Keys of sinusoidal positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SinusoidalConfig {
    /// Base of the geometric sequence of rates.
    pub base: f64,
}

impl Default for SinusoidalConfig {
    fn default() -> Self {
        SinusoidalConfig { base: 10_000.0 }
    }
}

impl SinusoidalConfig {
    /// Rows of these positions, `[L, d_model]`; `d_model` even.
    pub fn rows(&self, d_model: usize, positions: impl Iterator<Item = usize>, emulate: Emulate) -> Vec<f64> {
        let r = |value: f64| emulate.round(value);
        let rates: Vec<f64> = (0..d_model / 2).map(|j| r(self.base.powf(-2.0 * j as f64 / d_model as f64))).collect();
        let angles = |t: usize| rates.iter().map(move |rate| r(r(t as f64) * rate));
        positions.flat_map(|t| angles(t).map(move |a| r(a.sin())).chain(angles(t).map(move |a| r(a.cos())))).collect()
    }
}

impl Positional for SinusoidalConfig {
    fn description(&self) -> Description {
        Description {
            name: "sinusoidal",
            formula: "x_t += [sin(t f_j), cos(t f_j)], f_j = base^(-2j/M)",
            learned: "nothing",
            enters: EMBEDDINGS,
            beyond: UNSEEN,
            source: "Vaswani et al. 2017, arXiv:1706.03762",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Embeddings
    }

    fn check_keys(&self) -> Result {
        check_base(self.base)
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let width = geometry.d_model;
        if width.is_multiple_of(2) {
            return Ok(());
        }
        let message = format!("sinusoidal rows need an even model width, got {width}");
        Err(ConfigError::new("kind", message, "change model.d_model, or model.n_heads and model.head_dim"))
    }

    fn parameters(&self, _: &Geometry) -> Vec<EncodingParameter> {
        Vec::new()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Positions
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let rows = self.rows(inputs.geometry.d_model, inputs.positions.iter(), inputs.emulate);
        EncodingForm::Absolute(Absolute::Fixed(rows))
    }
}
