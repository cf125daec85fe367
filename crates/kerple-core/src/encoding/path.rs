//! PaTH attention: position encoding by accumulated Householder transformations. Yang et al. 2025, arXiv:2505.16381.
//!
//! ```text
//! H_t = I - beta_t w_t w_t'        s_ij = q_i' H_i H_(i-1) .. H_(j+1) k_j / sqrt(D)
//! w_t = u_t / |u_t|        u = silu(conv(y W1 W2))        beta_t = 2 sigmoid(y_t W3 + b)
//! ```
//!
//! `y` are the normed rows that queries and keys are made of. Every token takes away the part of each earlier key along a
//! direction of its own, or turns it around: at strength 1 all of it goes, from there to 2 it comes back with the other sign. The
//! query's own token counts, the key's does not. Directions and strengths belong to key heads. Enters: products of queries and keys.
//!
//! Learned, in every layer for itself, none decayed: `weight_in` (W1), `[M, R]`, `weight_out` (W2), `[R, G D]`, `filters` of the causal
//! convolution over `conv` tokens, `[G D, conv]`, `strength_weight` (W3), `[M, G]`, `strength_bias` (b), `[G]`. Matrices start as N(0,
//! 0.02^2), filters as PyTorch starts them, b as 0, at which a token takes about all of its direction away.
//!
//! `gate` adds the gates of [FoX](super::fox) (PaTH-FoX): `gate_weight`, `[M, H]`, and `gate_bias`, `[H]`, which start as FoX's. Their sums
//! are added after the scale; with `gate_scale = "inside"` before it, as in the authors' kernels, so that they are sqrt(D) times weaker.
//!
//! For decoders with softmax attention. Past the training length: defined at every distance. Far keys are hardly like what
//! they were, and only gates or a window take their weight away.

use super::description::{DEFINED, Description};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare, inside};
use crate::encoding::EncodingForm;
use crate::forms::HouseholderMap;
use serde::{Deserialize, Serialize};

const RANK: usize = 32;
const WIDTH: usize = 3;
const STD: f64 = 0.02;

/// Keys of PaTH.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathConfig {
    /// Rank of the projection that makes directions.
    pub rank: usize,
    /// Tokens of the convolution that follows, the token itself included.
    pub conv: usize,
    /// Whether heads have gates too, as FoX has them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
    /// Whether these enter after the scale of scores or before it: `outside` or `inside`.
    #[serde(skip_serializing_if = "GateScale::is_default")]
    pub gate_scale: GateScale,
}

/// Where the sums of gates enter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateScale {
    /// `q.k / sqrt(D) + c_i - c_j`, as in FoX.
    #[default]
    Outside,
    /// `(q.k + c_i - c_j) / sqrt(D)`
    Inside,
}

impl GateScale {
    fn is_default(&self) -> bool {
        *self == GateScale::default()
    }
}

impl Default for PathConfig {
    fn default() -> Self {
        PathConfig { rank: RANK, conv: WIDTH, gate: false, gate_scale: GateScale::Outside }
    }
}

impl Positional for PathConfig {
    fn description(&self) -> Description {
        Description {
            name: "PaTH",
            formula: "s = q_i.H_i .. H_(j+1) k_j / sqrt(D), H_t = I - beta_t w_t w_t', w = silu(conv(y W1 W2)) normed, \
                beta = 2 sigmoid(y W3 + b); with gate z = s + c_i - c_j as FoX",
            learned: "weight_in, weight_out, filters, strength_weight, strength_bias: R M + (R + conv) G D + G (M + 1) per \
                layer; with `gate` H (M + 1) more",
            enters: "products of queries and keys of every layer",
            beyond: DEFINED,
            source: "Yang et al. 2025, arXiv:2505.16381",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Householder { gates: self.gate }
    }

    fn check_keys(&self) -> Result {
        if !self.gate && self.gate_scale != GateScale::Outside {
            let hint = "also set gate = true, or remove it";
            return Err(ConfigError::new("gate_scale", "has no effect without gates".to_owned(), hint));
        }
        check_count("conv", self.conv, 1..=64, "the published models use 3")?;
        check_count("rank", self.rank, 1..=1 << 16, "the published models use 32")
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, kv_heads, head_dim, d_model, .. } = *geometry;
        let features = kv_heads * head_dim;
        let matrix = |name, shape| EncodingParameter { decay: false, ..EncodingParameter::matrix(name, shape, STD) };
        let zeros = |name, count| {
            EncodingParameter::per_head(name, count, ParameterInit::Constant(0.0), [f64::NEG_INFINITY, f64::INFINITY])
        };
        let filters = EncodingParameter::of_layer("filters", &[features, self.conv], self.conv);
        let mut all = vec![
            matrix("weight_in", [d_model, self.rank]),
            matrix("weight_out", [self.rank, features]),
            EncodingParameter { decay: false, ..filters },
            matrix("strength_weight", [d_model, kv_heads]),
            zeros("strength_bias", kv_heads),
        ];
        if self.gate {
            all.extend([matrix("gate_weight", [d_model, heads]), zeros("gate_bias", heads)]);
        }
        all
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
        let factor = match self.gate_scale {
            GateScale::Outside => 1.0,
            GateScale::Inside => inside(inputs.geometry),
        };
        EncodingForm::Householder(HouseholderMap {
            rank: self.rank,
            width: self.conv,
            gate_factor: self.gate.then_some(factor),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry};

    #[test]
    fn directions_and_strengths_belong_to_key_heads_and_gates_to_query_heads() {
        let encoding: Encoding = serde_json::from_str(r#"{"kind":"path","rank":5,"gate":true}"#).unwrap();
        let geometry = Geometry { kv_heads: 2, d_model: 24, ..Geometry::new(4, 8, 32) };
        let shapes: Vec<Vec<usize>> = encoding.parameters(&geometry).into_iter().map(|one| one.shape).collect();
        assert_eq!(shapes, [vec![24, 5], vec![5, 16], vec![16, 3], vec![24, 2], vec![2], vec![24, 4], vec![4]]);
    }

    #[test]
    fn gates_inside_are_divided_by_the_root_of_the_head_dimension() {
        let factor = |keys: &str| {
            let encoding: Encoding = serde_json::from_str(&format!(r#"{{"kind":"path"{keys}}}"#)).unwrap();
            encoding.householder(&Geometry::new(2, 16, 32)).unwrap().gate_factor
        };
        assert_eq!(factor(""), None);
        assert_eq!(factor(r#","gate":true"#), Some(1.0));
        assert_eq!(factor(r#","gate":true,"gate_scale":"inside""#), Some(0.25));
    }
}
