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
//! above `-g_max`. `scalar_gate` adds a gate of each head, as FoX has one: `z + c_i - c_j`. With `gate_heads = "kv"` each head of
//! keys has gates, which the query heads that read it share.
//!
//! With `gate = "bounded"` (ours) `g = -rate_h sigmoid(a)`: no token makes a feature forget faster than its head's rate, at most 1/8.
//! W and b start from 0, where every token has half the rate and head h remembers `2 / rate_h` tokens, geometrically over heads from
//! the first to the last of `spans`, 16 and twice the training length.
//!
//! `order = "rope_then_channel_decay"` turns queries and keys as rotary does, of this `base`, before their products decay. Both
//! features of a pair decay by gates of their own, so scores depend on where a pair of tokens is and not on contents and distance
//! alone. A rotation that keeps that has one decay per pair: `selective_rope` with `decay`.
//!
//! Past the training length: defined at every distance. But a key whose features have all decayed keeps score 0 and weight
//! `e^0`: decay is not forgetting, and near keys are diluted as the length grows. `scalar_gate` or a window ends that.

use super::description::Description;
use super::error::{ConfigError, Result, check_base, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::rotary::RotaryConfig;
use super::selective_rope::check_pairs;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare, fox};
use crate::encoding::EncodingForm;
use crate::forms::FeatureGates;
use crate::ops::feature_gates::FeatureGateMap;
use serde::{Deserialize, Serialize};

/// The first logit of a gate.
const START: f64 = 8.0;
const STD: f64 = 0.02;
/// Tokens that a head with bounded gates remembers at least: its features lose at most 1/8 per token, so that those of a tile of
/// attention are all computed together.
const SHORTEST_SPAN: f64 = 16.0;

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
    /// What a gate is of its logit.
    #[serde(skip_serializing_if = "is_default")]
    pub gate: WallGate,
    /// Tokens that the first and the last head remember at the start, the others geometrically between them, with bounded gates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spans: Option<[f64; 2]>,
    /// The heads that have gates.
    #[serde(skip_serializing_if = "is_default")]
    pub gate_heads: GateHeads,
    /// A rotation before the decay; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<DecayOrder>,
    /// Base of the rates of that rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<f64>,
}

/// What a gate is of its logit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WallGate {
    /// `ln sigmoid(a)`
    #[default]
    LogSigmoid,
    /// `-rate_h sigmoid(a)`
    Bounded,
}

/// The heads that have gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateHeads {
    /// Those of queries.
    #[default]
    Query,
    /// Those of keys and values; their query heads share them.
    Kv,
}

/// The order of a rotation by position and a decay per feature, whose result depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayOrder {
    /// Queries and keys are rotated first.
    RopeThenChannelDecay,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl WallConfig {
    /// Heads that have gates.
    fn gate_heads(&self, geometry: &Geometry) -> usize {
        match self.gate_heads {
            GateHeads::Query => geometry.heads,
            GateHeads::Kv => geometry.kv_heads,
        }
    }

    fn spans(&self, train_len: usize) -> [f64; 2] {
        self.spans.unwrap_or([SHORTEST_SPAN, SHORTEST_SPAN.max(2.0 * train_len as f64)])
    }
}

impl Positional for WallConfig {
    fn description(&self) -> Description {
        Description {
            name: "Wall",
            formula: "z = sum over features f of q_if k_jf e^(P_if - P_jf) / sqrt(D), P = running sum of ln sigmoid(x W + b), or of \
                -rate_h sigmoid(x W + b)",
            learned: "weight, bias: H D (M + 1) per layer; with `rank` R M + R H D + H D; with `scalar_gate` H (M + 1) more; with \
                `gate_heads = \"kv\"` KV heads in place of H",
            enters: "products of queries and keys of every layer",
            beyond: "defined for every distance, but decayed keys keep score 0: near keys are diluted unless `scalar_gate` or a \
                window ends that; with `order` it is not relative: scores depend on where tokens are",
            source: "flash-linear-attention 0.6.0, Wall, 2026",
        }
    }

    fn entry(&self) -> Injection {
        Injection::FeatureGates { scalar: self.scalar_gate, rotates: self.order.is_some() }
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
        let bounded = self.gate == WallGate::Bounded;
        if self.g_max.is_some() && bounded {
            let message = "bounds a logarithm, and gates with `gate = \"bounded\"` are none".to_owned();
            return Err(ConfigError::new("g_max", message, "remove it; `spans` sets how strong those gates can be"));
        }
        match self.spans {
            Some(_) if !bounded => {
                let message = "is for gates with `gate = \"bounded\"` only".to_owned();
                return Err(ConfigError::new("spans", message, "also set gate = \"bounded\", or remove it"));
            }
            Some([first, last]) if !(first >= SHORTEST_SPAN && first <= last && last <= fox::LONGEST_SPAN) => {
                let most = fox::LONGEST_SPAN;
                let message = format!(
                    "[{first}, {last}] is out of range, it must rise from at least {SHORTEST_SPAN} to at most {most:e} tokens"
                );
                return Err(ConfigError::new("spans", message, "e.g. [16, 1024]"));
            }
            _ => {}
        }
        match (self.order, self.base) {
            (None, Some(_)) => {
                let message = "is the base of a rotation, and there is none".to_owned();
                let hint = "also set order = \"rope_then_channel_decay\", or remove it";
                return Err(ConfigError::new("base", message, hint));
            }
            (_, base) => base.map_or(Ok(()), check_base)?,
        }
        self.rank.map_or(Ok(()), |rank| check_count("rank", rank, 1..=1 << 16, "remove it for a full projection"))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let Geometry { head_dim, d_model, .. } = *geometry;
        if self.order.is_some() {
            check_pairs("wall with `order`", geometry)?;
        }
        let most = d_model.min(self.gate_heads(geometry) * head_dim);
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
        let matrix =
            |name, shape, std| EncodingParameter { decay: false, ..EncodingParameter::matrix(name, shape, std) };
        let number = |name, count, start| {
            EncodingParameter::per_head(name, count, ParameterInit::Constant(start), [f64::NEG_INFINITY, f64::INFINITY])
        };
        let width = self.gate_heads(geometry) * head_dim;
        // the last matrix and the bias
        let (std, start) = if self.gate == WallGate::Bounded { (0.0, 0.0) } else { (STD, START) };
        let mut all = match self.rank {
            None => vec![matrix("weight", [d_model, width], std)],
            Some(rank) => vec![matrix("weight_in", [d_model, rank], STD), matrix("weight_out", [rank, width], std)],
        };
        all.push(number("bias", width, start));
        if self.scalar_gate {
            all.extend([matrix("scalar_weight", [d_model, heads], STD), number("scalar_bias", heads, START)]);
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

    fn pin_length(&mut self, train_len: usize) {
        if self.gate == WallGate::Bounded {
            self.spans = Some(self.spans(train_len));
        }
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let Geometry { head_dim, train_len, .. } = *inputs.geometry;
        let heads = self.gate_heads(inputs.geometry);
        let map = match self.gate {
            WallGate::LogSigmoid => FeatureGateMap::LogSigmoid { bound: self.g_max },
            WallGate::Bounded => FeatureGateMap::Sigmoid {
                rates: fox::memories(self.spans(train_len), heads).map(|tokens| 2.0 / tokens).collect(),
            },
        };
        let rotary = self.order.map(|DecayOrder::RopeThenChannelDecay| {
            let keys = RotaryConfig::default();
            RotaryConfig { base: self.base.unwrap_or(keys.base), ..keys }.rotary(head_dim, inputs.emulate)
        });
        let WallConfig { rank, scalar_gate, .. } = *self;
        EncodingForm::FeatureGates(FeatureGates { heads, rank, map, scalar: scalar_gate, pairs: false, rotary })
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry};
    use crate::ops::feature_gates::FeatureGateMap;

    #[test]
    fn gates_with_a_bound_start_as_a_constant_decay() {
        let encoding: Encoding = serde_json::from_str(r#"{"kind":"wall","gate":"bounded","gate_heads":"kv"}"#).unwrap();
        let geometry = Geometry { kv_heads: 3, ..Geometry::new(6, 16, 128) };
        let gates = encoding.feature_gates(&geometry).unwrap();
        let FeatureGateMap::Sigmoid { rates } = gates.map else { panic!("{gates:?}") };
        assert_eq!((gates.heads, rates.len()), (3, 3));
        for (rate, tokens) in rates.iter().zip([16.0, 64.0, 256.0]) {
            assert!((rate * tokens - 2.0).abs() < 1e-14, "{rates:?}");
        }
        let parameters = encoding.parameters(&geometry);
        assert_eq!(parameters.iter().map(|p| &p.shape[..]).collect::<Vec<_>>(), [&[96, 48][..], &[48]]);
        assert!(encoding.initial(&geometry, 7).concat().iter().all(|value| *value == 0.0));
        let pinned = encoding.pinned(128);
        assert_eq!(pinned.feature_gates(&Geometry { train_len: 32, ..geometry }), encoding.feature_gates(&geometry));
    }

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
