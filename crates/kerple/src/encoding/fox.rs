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
//! An encoder has `z_ij = s_ij - |c_i - c_j|`. The authors' other parts, norms of queries and keys, an output gate and norm,
//! shifts of tokens, are no positions; the first are `qk_norm` of a block. In a decoder's linear attention products fade by
//! `e^(c_i - c_j)`, which makes it gated linear attention.

use super::method::{Entry, Inputs, Positional};
use super::randomized::Randomized;
use super::words::{DEFINED, Description, SCORES};
use super::{Geometry, Init, Parameter, Scope};
use crate::encoding::Form;
use crate::forms::Gates;
use serde::{Deserialize, Serialize};

/// Keys of forgetting attention.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What gates are made of.
    #[serde(skip_serializing_if = "Gate::is_default")]
    pub gate: Gate,
}

/// What gates are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// The rows of a layer and a bias a head.
    #[default]
    Full,
    /// The bias: all tokens have the same gate.
    BiasOnly,
}

impl Gate {
    fn is_default(&self) -> bool {
        *self == Gate::default()
    }
}

impl Positional for Config {
    fn words(&self) -> Description {
        Description {
            name: "FoX",
            formula: "z = s + c_i - c_j, c = running sum of ln sigmoid(w_h.y + b_h)",
            learned: "w, b: H (M + 1) a layer; with `gate = \"bias_only\"` H",
            enters: SCORES,
            beyond: DEFINED,
            source: "Lin et al. 2025, arXiv:2503.02130",
        }
    }

    fn entry(&self) -> Entry {
        Entry::Gates
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<Parameter> {
        let Geometry { heads, d_model, .. } = *geometry;
        let weight = Parameter { decay: false, ..Parameter::matrix("weight", [d_model, heads], 0.02) };
        let bias = Parameter::per_head("bias", heads, Init::Constant(0.0), [f64::NEG_INFINITY, f64::INFINITY]);
        match self.gate {
            Gate::Full => vec![weight, bias],
            Gate::BiasOnly => vec![bias],
        }
    }

    fn scopes(&self) -> &'static [Scope] {
        Scope::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its positions follow from the content")
    }

    fn form(&self, _: &Inputs) -> Form {
        Form::Gates(Gates { by_row: self.gate == Gate::Full })
    }
}
