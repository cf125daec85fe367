//! Wall: every feature of every head forgets by a gate of its own. flash-linear-attention 0.6.0.
//!
//! ```text
//! a_t = x_t W + b          g = ln sigmoid(a)          P_t = sum over n <= t of g_n          z_ij = scale sum over features f of q_if k_jf e^(P_if - P_jf)
//! ```
//!
//! `x` are the normed rows that queries and keys are made of. The query's own gate counts, the key's does not, so nothing is taken
//! from a token's score with itself. Enters: products of queries and keys, before the scale. Learned, in every layer for itself:
//! `weight` (W, `[M, H D]`), N(0, 0.02^2), and `bias`, from 8, where a feature remembers 2981 tokens; neither is decayed. With
//! `rank` W is the product of `weight_in`, `[M, R]`, and `weight_out`. `g_max` bounds a gate: `g_max (e^(g / g_max) - 1)`,
//! above `-g_max`. `scalar_gate` adds a gate of each head, as FoX has one: `z + c_i - c_j`.
//!
//! Past the training length: defined at every distance. But a key whose features have all decayed keeps score 0 and weight
//! `e^0`: decay is not forgetting, and near keys are diluted as the length grows. `scalar_gate` or a window ends that.

use super::description::Description;
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::FeatureGates;
use serde::{Deserialize, Serialize};

/// The first logit of a gate.
const START: f64 = 8.0;

/// Keys of Wall.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WallConfig {
    /// Rank of the projection that makes the gates; absent: full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// The bound of a gate; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub g_max: Option<f64>,
    /// Whether each head has a gate beside those of its features.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scalar_gate: bool,
}

impl Positional for WallConfig {
    fn description(&self) -> Description {
        Description {
            name: "Wall",
            formula: "z = sum over features f of q_if k_jf e^(P_if - P_jf) / sqrt(D), P = running sum of ln sigmoid(x W + b)",
            learned: "weight, bias: H D (M + 1) per layer; with `rank` R M + R H D + H D; with `scalar_gate` H (M + 1) more",
            enters: "products of queries and keys of every layer",
            beyond: "defined for every distance, but decayed keys keep score 0: near keys are diluted unless `scalar_gate` or a \
                window ends that",
            source: "flash-linear-attention 0.6.0, Wall, 2026",
        }
    }

    fn entry(&self) -> Injection {
        Injection::FeatureGates { scalar: self.scalar_gate }
    }

    fn check_keys(&self) -> Result {
        if let Some(bound) = self.g_max.filter(|bound| !(*bound > 0.0 && bound.is_finite())) {
            let message = format!("{bound} is out of range, it must be above 0");
            return Err(ConfigError::new(
                "g_max",
                message,
                "the released models use 0.86; without the key gates have no bound",
            ));
        }
        self.rank.map_or(Ok(()), |rank| check_count("rank", rank, 1..=1 << 16, "remove it for a full projection"))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let Geometry { heads, head_dim, d_model, .. } = *geometry;
        let most = d_model.min(heads * head_dim);
        match self.rank {
            Some(rank) if rank >= most => {
                let message = format!("{rank} is out of range, it must be below {most}, the full rank");
                Err(ConfigError::new("rank", message, "remove it for a full projection"))
            }
            _ => Ok(()),
        }
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, head_dim, d_model, .. } = *geometry;
        let matrix = |name, shape| EncodingParameter { decay: false, ..EncodingParameter::matrix(name, shape, 0.02) };
        let number = |name, count| {
            EncodingParameter::per_head(name, count, ParameterInit::Constant(START), [f64::NEG_INFINITY, f64::INFINITY])
        };
        let width = heads * head_dim;
        let mut all = match self.rank {
            None => vec![matrix("weight", [d_model, width])],
            Some(rank) => vec![matrix("weight_in", [d_model, rank]), matrix("weight_out", [rank, width])],
        };
        all.push(number("bias", width));
        if self.scalar_gate {
            all.extend([matrix("scalar_weight", [d_model, heads]), number("scalar_bias", heads)]);
        }
        all
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its decays depend on the content")
    }

    fn is_causal_only(&self) -> bool {
        true
    }

    fn form(&self, _: &FormInputs) -> EncodingForm {
        let WallConfig { rank, g_max, scalar_gate } = *self;
        EncodingForm::FeatureGates(FeatureGates { rank, bound: g_max, scalar: scalar_gate, pairs: false })
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry};

    #[test]
    fn a_rank_is_below_that_of_the_projection() {
        let geometry = Geometry { d_model: 40, ..Geometry::new(4, 16, 32) };
        let refused = |rank: usize| {
            let encoding: Encoding = serde_json::from_str(&format!(r#"{{"kind":"wall","rank":{rank}}}"#)).unwrap();
            encoding.check(&geometry).err().map(|error| error.to_string())
        };
        assert_eq!(refused(39), None);
        let error = refused(40).unwrap();
        assert!(error.contains("`rank`: 40 is out of range, it must be below 40, the full rank"), "{error}");
    }
}
