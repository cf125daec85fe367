//! Selective RoPE: rotary positions whose angles tokens set. ICLR 2026.
//!
//! ```text
//! u_t = W2 (W1 x'_t)          phi_t = sum over w < 4 of f[:, w] u_(t-3+w)  [+ e^beta]  [* sigmoid(x'_t Wg + bg)]
//! angle_t,n = base^(-2n/D) sum over m <= t of phi_m,n          q_t, k_t turn by angle_t, in pairs (n, n + D/2)
//! ```
//!
//! `x'` are the normed rows that queries and keys are made of, the part of each head divided by its length,
//! `sqrt(|part|^2 + 1e-6)`. Every query head has angles of its own, and turns the key by the same. Enters: queries and keys of
//! every layer, after their norms and before caching. Learned, in every layer for itself, none decayed: `weight_in` (W1), `[M, R]`,
//! `weight_out` (W2), `[R, H D/2]`, `filters` (f), `[H D/2, 4]`, and `angle_bias` (beta), `[H D/2]`. W1 and f start as
//! N(0, 0.02^2), beta as 0. With `bias` W2 starts as 0, so that a model starts as rotary; without it as W1, so that pairs
//! hardly turn. With `gate` heads have `gate_weight` (Wg) and `gate_bias` (bg), from 0.
//!
//! `decay` lets products of a pair decay as those of a feature do in [Wall](super::wall): `decay_weight`, `[M, H D/2]`, and
//! `decay_bias`, from 8. One decay for both features of a pair, since with two the scores of rotated rows would depend on where they
//! are. `scalar_gate` adds the gate of each head.
//!
//! Past the training length: defined at every distance. Angles are sums of what tokens say, so they differ from those of
//! training, and nothing weakens far keys but `decay` with `scalar_gate`, or a window.

use super::description::Description;
use super::error::{ConfigError, Result, check_base, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::scaling::plain_rates;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{AngleIncrements, ContentRotation, FeatureGates};
use crate::ops::feature_gates::FeatureGateMap;
use serde::{Deserialize, Serialize};

/// Of the released code.
const BASE: f64 = 500_000.0;
const RANK: usize = 16;
const WIDTH: usize = 4;
const STD: f64 = 0.02;
/// The first logit of a decay, as of Wall.
const DECAY_START: f64 = 8.0;

/// Keys of Selective RoPE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SelectiveRopeConfig {
    /// Rank of the projection of rows.
    pub rank: usize,
    /// Base of the geometric sequence of rates.
    pub base: f64,
    /// Whether a learned angle is added for every token.
    pub bias: bool,
    /// Whether each head multiplies its angles by a gate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
    /// Whether products of pairs decay too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decay: bool,
    /// Whether each head has a gate as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scalar_gate: bool,
}

impl Default for SelectiveRopeConfig {
    fn default() -> Self {
        SelectiveRopeConfig { rank: RANK, base: BASE, bias: true, gate: false, decay: false, scalar_gate: false }
    }
}

impl Positional for SelectiveRopeConfig {
    fn description(&self) -> Description {
        Description {
            name: "Selective RoPE",
            formula: "q_t, k_t rotated by base^(-2n/D) times the running sum of phi_t = conv(W2 W1 x)_t + e^beta",
            learned: "weight_in, weight_out, filters, angle_bias: R M + (R + 5) H D/2 per layer; with `gate` H (M + 1) more, \
                with `decay` H D/2 (M + 1), with `scalar_gate` H (M + 1)",
            enters: "queries and keys of every layer",
            beyond: "defined for every distance, at angles that training has not seen; near keys are diluted unless `decay` with \
                `scalar_gate` or a window ends that",
            source: "Selective RoPE, ICLR 2026; `decay`: this project",
        }
    }

    fn entry(&self) -> Injection {
        Injection::ContentRotation { decays: self.decay, scalar: self.scalar_gate }
    }

    fn check_keys(&self) -> Result {
        if self.scalar_gate && !self.decay {
            let hint = "also set decay = true, or remove it";
            return Err(ConfigError::new("scalar_gate", "goes with decays, and there are none".to_owned(), hint));
        }
        check_base(self.base)?;
        check_count("rank", self.rank, 1..=1 << 16, "the released models use 16")
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let Geometry { heads, d_model, .. } = *geometry;
        check_pairs("selective_rope", geometry)?;
        if !d_model.is_multiple_of(heads) {
            let message =
                format!("selective_rope norms {heads} parts of a row, but d_model = {d_model} is not a multiple");
            return Err(ConfigError::new("kind", message, "use a number of heads that divides d_model"));
        }
        Ok(())
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, head_dim, d_model, .. } = *geometry;
        let angles = heads * head_dim / 2;
        let matrix =
            |name, shape, std| EncodingParameter { decay: false, ..EncodingParameter::matrix(name, shape, std) };
        let number = |name, count, start| {
            EncodingParameter::per_head(name, count, ParameterInit::Constant(start), [f64::NEG_INFINITY, f64::INFINITY])
        };
        let of_angles = if self.bias { 0.0 } else { STD };
        let mut all = vec![
            matrix("weight_in", [d_model, self.rank], STD),
            matrix("weight_out", [self.rank, angles], of_angles),
            matrix("filters", [angles, WIDTH], STD),
        ];
        all.extend(self.bias.then(|| number("angle_bias", angles, 0.0)));
        if self.gate {
            all.extend([matrix("gate_weight", [d_model, heads], STD), number("gate_bias", heads, 0.0)]);
        }
        if self.decay {
            all.extend([matrix("decay_weight", [d_model, angles], STD), number("decay_bias", angles, DECAY_START)]);
        }
        if self.scalar_gate {
            all.extend([matrix("scalar_weight", [d_model, heads], STD), number("scalar_bias", heads, DECAY_START)]);
        }
        all
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its angles depend on the content")
    }

    fn is_causal_only(&self) -> bool {
        true
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let SelectiveRopeConfig { rank, base, bias, gate, decay, scalar_gate } = *self;
        let increments = AngleIncrements::Projected { rank, width: WIDTH, bias, gate };
        let decay = decay.then_some(FeatureGates {
            heads: inputs.geometry.heads,
            rank: None,
            map: FeatureGateMap::LogSigmoid { bound: None },
            scalar: scalar_gate,
            pairs: true,
            rotary: None,
        });
        EncodingForm::ContentRotation(ContentRotation {
            rates: plain_rates(base, inputs.geometry.head_dim),
            increments,
            decay,
        })
    }
}

/// Refuses heads whose features are not pairs.
pub(super) fn check_pairs(kind: &str, geometry: &Geometry) -> Result {
    if geometry.head_dim.is_multiple_of(2) {
        return Ok(());
    }
    let message = format!("{kind} turns pairs of features, but heads have {}", geometry.head_dim);
    Err(ConfigError::new("kind", message, "use an even number of features per head"))
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry};

    #[test]
    fn heads_are_pairs_of_features_and_parts_of_a_row() {
        let refused = |kind: &str, geometry: Geometry| {
            let encoding: Encoding = serde_json::from_str(&format!(r#"{{"kind":"{kind}"}}"#)).unwrap();
            encoding.check(&geometry).err().map(|error| error.to_string())
        };
        for kind in ["selective_rope", "rotary_positions"] {
            assert_eq!(refused(kind, Geometry::new(4, 6, 32)), None);
            let error = refused(kind, Geometry::new(4, 5, 32)).unwrap();
            assert!(error.contains(&format!("{kind} turns pairs of features, but heads have 5")), "{error}");
        }
        let odd = Geometry { d_model: 30, ..Geometry::new(4, 6, 32) };
        assert_eq!(refused("rotary_positions", odd), None);
        let error = refused("selective_rope", odd).unwrap();
        assert!(error.contains("norms 4 parts of a row, but d_model = 30 is not a multiple"), "{error}");
    }
}
