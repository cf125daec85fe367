//! The list of methods.

use super::kerple::Family;
use super::{alibi, expression, kerple, learned, rotary, sinusoidal, t5};
use serde::{Deserialize, Serialize};

/// A method without keys of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoKeys {}

/// One positional method and its own keys; `kind` names it in a run file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// No positions at all: the causal mask is the only order (NoPE).
    None(NoKeys),
    /// A trained row for each position.
    Learned(learned::Config),
    /// Sine and cosine rows added to the embeddings.
    Sinusoidal(sinusoidal::Config),
    /// Rotation of queries and keys.
    Rotary(rotary::Config),
    /// A fixed linear bias a head.
    Alibi(alibi::Config),
    /// A learned bias for each bucket of distances.
    T5(t5::Config),
    /// KERPLE, logarithmic kernel.
    KerpleLog(kerple::Log),
    /// KERPLE, power kernel.
    KerplePower(kerple::Power),
    /// KERPLE, power bias times stretched-exponential weight.
    KerpleBiasWeight(kerple::BiasWeight),
    /// KERPLE, stretched-exponential weight only.
    KerpleWeight(kerple::Weight),
    /// KERPLE's power kernel with exponent 1 and fixed ALiBi slopes, clamped to 0.01.
    KerplePowerOriginal(kerple::PowerOriginal),
    /// KERPLE, logarithmic kernel of a power.
    KerpleLog3(kerple::Log3),
    /// Gaussian bias.
    GaussianBias(kerple::GaussianBias),
    /// Stretched-exponential bias.
    StretchedBias(kerple::StretchedBias),
    /// Gaussian weight.
    GaussianWeight(kerple::GaussianWeight),
    /// Stretched-exponential weight, as named in the paper's appendix; the same as [`Method::KerpleWeight`].
    StretchedWeight(kerple::Weight),
    /// Any expression of the kernel calculus.
    Kernel(expression::Config),
}

/// Every kind, in the order of the documentation.
pub const METHODS: [&str; 17] = [
    "none",
    "learned",
    "sinusoidal",
    "rotary",
    "alibi",
    "t5",
    "kerple_log",
    "kerple_power",
    "kerple_bias_weight",
    "kerple_weight",
    "kerple_power_original",
    "kerple_log3",
    "gaussian_bias",
    "stretched_bias",
    "gaussian_weight",
    "stretched_weight",
    "kernel",
];

impl Method {
    /// The method of this kind with its default keys; `None` for an unknown name.
    pub fn named(kind: &str) -> Option<Method> {
        serde_json::from_value(serde_json::json!({ kind: {} })).ok()
    }

    /// Name in run files, tables and folders.
    pub fn kind(&self) -> &'static str {
        match self {
            Method::None(_) => METHODS[0],
            Method::Learned(_) => METHODS[1],
            Method::Sinusoidal(_) => METHODS[2],
            Method::Rotary(_) => METHODS[3],
            Method::Alibi(_) => METHODS[4],
            Method::T5(_) => METHODS[5],
            Method::KerpleLog(_) => METHODS[6],
            Method::KerplePower(_) => METHODS[7],
            Method::KerpleBiasWeight(_) => METHODS[8],
            Method::KerpleWeight(_) => METHODS[9],
            Method::KerplePowerOriginal(_) => METHODS[10],
            Method::KerpleLog3(_) => METHODS[11],
            Method::GaussianBias(_) => METHODS[12],
            Method::StretchedBias(_) => METHODS[13],
            Method::GaussianWeight(_) => METHODS[14],
            Method::StretchedWeight(_) => METHODS[15],
            Method::Kernel(_) => METHODS[16],
        }
    }

    /// The kernels of distance behind a KERPLE-like method.
    pub(super) fn family(&self) -> Option<Family> {
        match self {
            Method::KerpleLog(config) => Some(config.family()),
            Method::KerplePower(config) => Some(config.family()),
            Method::KerpleBiasWeight(config) => Some(config.family()),
            Method::KerpleWeight(config) | Method::StretchedWeight(config) => Some(config.family()),
            Method::KerplePowerOriginal(config) => Some(config.family()),
            Method::KerpleLog3(config) => Some(config.family()),
            Method::GaussianBias(config) => Some(config.family()),
            Method::StretchedBias(config) => Some(config.family()),
            Method::GaussianWeight(config) => Some(config.family()),
            Method::None(_)
            | Method::Learned(_)
            | Method::Sinusoidal(_)
            | Method::Rotary(_)
            | Method::Alibi(_)
            | Method::T5(_)
            | Method::Kernel(_) => None,
        }
    }
}
