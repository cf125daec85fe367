//! GRAPE-AP: an additive bias as a path integral. arXiv:2512.07805.
//!
//! ```text
//! p_t = W y_t                         W [M, H E], y the layer's own normed rows
//! r_n = R(n) p_n / sqrt(mean p_n^2 + eps)       R(n) turns every pair of features by n radians
//! b_ij = sum over n from j + 1 to i of slope_h ln sigmoid(p_i . r_n / E)
//! ```
//!
//! Every token between a key and a query takes something off the key's score, and how much is for the query to say: near 0 for a token
//! whose features are like its own, more for one that is unlike it. At `p = 0` it is ALiBi with slopes times ln 2. Enters:
//! scores, after the scale. `slope_h` are ALiBi's, not learned. Learned: `weight` (W), N(0, 1/4M). eps is the rounding of the type of
//! numbers. Its published form norms queries and keys: `model.block.qk_norm`, with `model.block.norm_eps = 1e-5`.
//!
//! As published only `r` is turned, so that a bias depends on positions and not on distances alone: positions count from the first
//! token of a row or of its document. `relative` (ours) turns `p_i` by `R(i)` too, and a shift of all positions changes nothing.
//!
//! For decoders with softmax attention. Past the training length: defined at every distance, as ALiBi with slopes by content; as
//! published, turned by angles that the model has not seen together with these queries.

use super::description::{Description, SCORES};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterShare, alibi};
use crate::encoding::EncodingForm;
use crate::forms::PathFeatures;
use serde::{Deserialize, Serialize};

/// Keys of GRAPE-AP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrapeApConfig {
    /// Numbers that a row makes for each head, E.
    pub features: usize,
    /// Whether features of queries are turned too, so that only distances matter.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub relative: bool,
}

impl Default for GrapeApConfig {
    fn default() -> Self {
        GrapeApConfig { features: 8, relative: false }
    }
}

/// Most features, far above the published 8.
const MOST_FEATURES: usize = 1024;

impl Positional for GrapeApConfig {
    fn description(&self) -> Description {
        Description {
            name: "GRAPE-AP",
            formula: "z = s + sum over n from j + 1 to i of slope_h ln sigmoid(p_i.r_n / E), p = y W, \
                r_n = p_n normed and turned by -n",
            learned: "weight: M H E per layer",
            enters: SCORES,
            beyond: "defined for every distance: a linear bias whose slopes the content sets; unless `relative`, turned by \
                positions that the model has not seen",
            source: "arXiv:2512.07805, whose models have `model.block.qk_norm`",
        }
    }

    fn entry(&self) -> Injection {
        Injection::PathBias
    }

    fn check_keys(&self) -> Result {
        const HINT: &str = "the published models use 8";
        check_count("features", self.features, 2..=MOST_FEATURES, HINT)?;
        if !self.features.is_multiple_of(2) {
            let message = format!("{} is out of range, it must be even: features are turned in pairs", self.features);
            return Err(ConfigError::new("features", message, HINT));
        }
        Ok(())
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, d_model, .. } = *geometry;
        let std = 0.5 / (d_model as f64).sqrt();
        vec![EncodingParameter::matrix("weight", [d_model, heads * self.features], std)]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        if self.relative {
            Randomized::Positions
        } else {
            Randomized::Never("its bias depends on true positions unless `relative = true`")
        }
    }

    fn is_causal_only(&self) -> bool {
        true
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        // as in ALiBi's code
        let slopes = alibi::slopes(inputs.geometry.heads).into_iter().map(|slope| f64::from(slope as f32)).collect();
        EncodingForm::PathBias(PathFeatures { width: self.features, slopes, relative: self.relative })
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry, ParameterInit};

    #[test]
    fn the_first_features_have_a_deviation_of_one_half_whatever_the_width() {
        let encoding: Encoding = serde_json::from_str(r#"{"kind":"grape_ap","features":4}"#).unwrap();
        let geometry = Geometry { d_model: 400, ..Geometry::new(4, 16, 32) };
        let [weight] = &encoding.parameters(&geometry)[..] else { panic!("one matrix") };
        assert_eq!((&weight.shape[..], &weight.init), (&[400, 16][..], &ParameterInit::Normal { std: 0.025 }));
    }

    #[test]
    fn only_the_relative_form_takes_drawn_positions() {
        let read = |keys: &str| serde_json::from_str::<Encoding>(&format!(r#"{{"kind":"grape_ap"{keys}}}"#));
        let error = read(r#","randomized":64"#).unwrap_err().to_string();
        assert!(error.contains("`grape_ap` cannot be randomized") && error.contains("`relative = true`"), "{error}");
        assert!(read(r#","randomized":64,"relative":true"#).is_ok());
    }
}
