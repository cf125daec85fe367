//! FoX: forgetting attention. Lin et al. 2025, arXiv:2503.02130.
//!
//! ```text
//! g_t = ln sigmoid(w_h . y_t + b_h)        c_t = sum over n <= t of g_n        z_ij = s_ij + c_i - c_j
//! ```
//!
//! `y` are the normed rows that queries and keys are made of: every token says how much of what lies before it is
//! forgotten. A key's own gate does not count, the query's does, so nothing is taken from a token's score with itself.
//! Enters: scores, after the `1/sqrt(D)` scale, with the clock of each query head. Learned, in every layer for itself: w,
//! from N(0, 0.02^2), and b, from 0, where a token remembers two others. With `gate = "bias_only"` b alone: a bias
//! `-slope d` whose slopes are learned. Neither is decayed, which would pull gates to what they are without their rows. Past
//! the training length: defined for every distance.
//!
//! With `spans = [first, last]` heads start with memories of their own: without its rows a gate is `-1/T_h`, from
//! `b_h = -ln(expm1(1/T_h))`, where `T_h` are geometric from the first head's tokens to the last's. `gate = "fixed"` is these
//! gates unlearned, which makes it a bias `-d/T_h`.
//!
//! An encoder has `z_ij = s_ij - |c_i - c_j|`. The authors' other parts, norms of queries and keys,
//! an output gate and norm, shifts of tokens, are not positions; the first are `qk_norm` of a
//! block. In a decoder's linear attention products decay by `e^(c_i - c_j)`, which makes it gated
//! linear attention.

use super::decay::BiasDecay;
use super::description::{DEFINED, Description, SCORES};
use super::error::{ConfigError, Result};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{DistanceTable, ForgetGates, Sides};
use crate::ops::gate_cumsum::GateMap;
use serde::{Deserialize, Serialize};

/// Keys of forgetting attention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FoxConfig {
    /// The inputs of the gates.
    #[serde(skip_serializing_if = "FoxGate::is_default")]
    pub gate: FoxGate,
    /// Tokens that the first and the last head remember at the start, the others geometrically between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spans: Option<[f64; 2]>,
}

/// The inputs of the gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoxGate {
    /// The rows of a layer and a bias per head.
    #[default]
    Full,
    /// The bias: all tokens have the same gate.
    BiasOnly,
    /// The bias that follows from `spans`, which is not learned.
    Fixed,
}

/// The longest memory that can be asked for; further tokens are farther than any sequence is long.
pub(super) const LONGEST_SPAN: f64 = 1e9;

/// Tokens that each of `heads` heads remembers.
pub(super) fn memories([first, last]: [f64; 2], heads: usize) -> impl Iterator<Item = f64> {
    let step = (last / first).ln() / heads.saturating_sub(1).max(1) as f64;
    (0..heads).map(move |head| first * (step * head as f64).exp())
}

/// The logits `b_h` whose gates are `ln sigmoid(b_h) = -1/T_h`.
pub fn biases(spans: [f64; 2], heads: usize) -> Vec<f64> {
    memories(spans, heads).map(|tokens| -tokens.recip().exp_m1().ln()).collect()
}

impl FoxGate {
    fn is_default(&self) -> bool {
        *self == FoxGate::default()
    }
}

impl Positional for FoxConfig {
    fn description(&self) -> Description {
        Description {
            name: "FoX",
            formula: "z = s + c_i - c_j, c = running sum of ln sigmoid(w_h.y + b_h)",
            learned: "w, b: H (M + 1) per layer; with `gate = \"bias_only\"` H, with `gate = \
                \"fixed\"` nothing; `spans = [first, last]` initialises heads to remember so many \
                tokens",
            enters: SCORES,
            beyond: DEFINED,
            source: "Lin et al. 2025, arXiv:2503.02130",
        }
    }

    fn entry(&self) -> Injection {
        match self.gate {
            FoxGate::Full | FoxGate::BiasOnly => Injection::Gates { kernel: false },
            FoxGate::Fixed => Injection::Scores(TableContents::bias(Sides::OneSided)),
        }
    }

    fn check_keys(&self) -> Result {
        match self.spans {
            None if self.gate == FoxGate::Fixed => Err(ConfigError::new(
                "spans",
                "is missing, fixed gates need it".to_owned(),
                "set e.g. spans = [2, 512], the tokens that the first and the last head remember",
            )),
            Some([first, last]) if !(first >= 1.0 && first <= last && last <= LONGEST_SPAN) => Err(ConfigError::new(
                "spans",
                format!(
                    "[{first}, {last}] is out of range, it must rise from at least 1 to at most {LONGEST_SPAN:e} tokens"
                ),
                "e.g. [2, 512]",
            )),
            _ => Ok(()),
        }
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, d_model, .. } = *geometry;
        let weight = EncodingParameter { decay: false, ..EncodingParameter::matrix("weight", [d_model, heads], 0.02) };
        let start = self.spans.map_or(ParameterInit::Constant(0.0), |spans| ParameterInit::Gates { spans });
        let bias = EncodingParameter::per_head("bias", heads, start, [f64::NEG_INFINITY, f64::INFINITY]);
        match self.gate {
            FoxGate::Full => vec![weight, bias],
            FoxGate::BiasOnly => vec![bias],
            FoxGate::Fixed => Vec::new(),
        }
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        match self.gate {
            FoxGate::Full | FoxGate::BiasOnly => Randomized::Never("its positions depend on the content"),
            FoxGate::Fixed => Randomized::Distances,
        }
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let (heads, len) = (inputs.geometry.heads, inputs.positions.range.end);
        match (self.gate, self.spans) {
            (FoxGate::Fixed, Some(spans)) => {
                let row = |tokens: f64| (0..len).map(move |d| -inputs.emulate.round(d as f64 / tokens));
                let bias = memories(spans, heads).flat_map(row).collect();
                EncodingForm::Table(DistanceTable {
                    heads,
                    len,
                    sides: Sides::OneSided,
                    bias: Some(bias),
                    weight: None,
                })
            }
            (gate, _) => EncodingForm::Gates(ForgetGates {
                by_row: gate == FoxGate::Full,
                map: GateMap::LogSigmoid,
                kernel: None,
            }),
        }
    }

    fn bias_decay(&self, heads: usize) -> Option<BiasDecay> {
        let spans = self.spans.filter(|_| self.gate == FoxGate::Fixed)?;
        Some(BiasDecay::Linear(memories(spans, heads).map(f64::recip).collect()))
    }
}
