//! PoPE: queries and keys as lengths and angles, the lengths by content and the angles by position. Gopalakrishnan et al. 2025,
//! arXiv:2509.10534.
//!
//! ```text
//! z_ij = scale * sum over n < R of softplus(q_in) softplus(k_jn) cos((j - i) f_n + delta_n)  +  scale * sum over n >= R of q_in k_jn
//! f_n = base^(-n/R)
//! ```
//!
//! R features are polar, all unless `width` is given; others are multiplied as they are. Enters: queries and keys of every layer,
//! after their norms and before caching, as rows `softplus(x) (cos, sin)` of `D + R` features; values keep their D. Learned, in every
//! layer for itself and not decayed: `delta`, `[H, R]`, of query heads, from 0. Since all lengths are positive, a model starts with
//! scores that are largest at distance 0.
//!
//! The released code clamps delta to [-2 pi, 0], where its start is on the border and may not train. `clamp_delta` does so for its models;
//! on the border the gradient passes.
//!
//! Past the training length: defined at every distance, at angles that training has not seen.

use super::description::Description;
use super::error::{ConfigError, Result, check_base, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{PolarMap, QueryKeyMap};
use serde::{Deserialize, Serialize};

/// As of rotary.
const BASE: f64 = 10_000.0;
const WIDTH: &str = "remove it to make all features polar";

/// Keys of PoPE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PopeConfig {
    /// Base of the geometric sequence of rates.
    pub base: f64,
    /// Polar features of a head, R: the first ones; all unless it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Whether delta is clamped to [-2 pi, 0].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub clamp_delta: bool,
}

impl Default for PopeConfig {
    fn default() -> Self {
        PopeConfig { base: BASE, width: None, clamp_delta: false }
    }
}

impl Positional for PopeConfig {
    fn description(&self) -> Description {
        Description {
            name: "PoPE",
            formula: "s = sum over n of softplus(q_n) softplus(k_n) cos((j - i) f_n + delta_n) / sqrt(D), f_n = base^(-n/D)",
            learned: "delta: H D per layer",
            enters: "queries and keys of every layer",
            beyond: "defined for every distance, but the model has not seen those angles",
            source: "Gopalakrishnan et al. 2025, arXiv:2509.10534",
        }
    }

    fn entry(&self) -> Injection {
        Injection::QueryKeyMap { widens: true }
    }

    fn check_keys(&self) -> Result {
        check_base(self.base)?;
        self.width.map_or(Ok(()), |width| check_count("width", width, 1..=1 << 16, WIDTH))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let features = geometry.head_dim;
        match self.width.filter(|width| *width > features) {
            None => Ok(()),
            Some(width) => {
                Err(ConfigError::new("width", format!("{width} polar features, but heads have {features}"), WIDTH))
            }
        }
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let shape = [geometry.heads, self.width.unwrap_or(geometry.head_dim)];
        let init = ParameterInit::Constant(0.0);
        vec![EncodingParameter { init, decay: false, ..EncodingParameter::matrix("delta", shape, 0.0) }]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Positions
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let width = self.width.unwrap_or(inputs.geometry.head_dim);
        let rates = (0..width).map(|n| self.base.powf(-(n as f64) / width as f64)).collect();
        EncodingForm::QueryKeyMap(QueryKeyMap::Polar(PolarMap { rates, clamp: self.clamp_delta }))
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry};

    #[test]
    fn polar_features_are_some_of_a_head() {
        let check = |keys: &str| {
            let encoding: Encoding = serde_json::from_str(&format!(r#"{{"kind":"pope"{keys}}}"#)).unwrap();
            encoding.check(&Geometry::new(2, 8, 32)).err().map(|error| error.line())
        };
        assert_eq!([check(""), check(r#","width":8"#), check(r#","width":3"#)], [None, None, None]);
        let error = check(r#","width":9"#).unwrap();
        assert!(error.contains("9 polar features, but heads have 8") && error.contains("remove it"), "{error}");
    }
}
