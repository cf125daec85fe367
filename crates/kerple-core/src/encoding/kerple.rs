//! KERPLE: kernelized relative positional embedding. Chi et al. 2022, arXiv:2205.09921, sections 4, 5.3 and A.3.
//!
//! ```text
//! b(d), w(d)  functions of the distance d = i - j >= 0 and of learned values r, one set per head, shared by all layers (`share = "layer"`: one set per layer)
//! ```
//!
//! | kind                    | bias b(d)                | weight w(d)        | learned        |
//! |-------------------------|--------------------------|--------------------|----------------|
//! | `kerple_log`            | `-r1 ln(1 + r2 d)`       | 1                  | r1, r2         |
//! | `kerple_power`          | `-r1 d^r2`               | 1                  | r1, r2         |
//! | `kerple_bias_weight`    | `-r1 d^r2`               | `exp(-r3 d^r4)`    | r1, r2, r3, r4 |
//! | `kerple_weight`         | 0                        | `exp(-r1 d^r2)`    | r1, r2         |
//! | `kerple_power_original` | `-max(slope, 0.01) d`    | 1                  |                |
//! | `kerple_log3`           | `-r1 ln(1 + r2 d^r3)`    | 1                  | r1, r2, r3     |
//! | `gaussian_bias`         | `r1 exp(-r2 d^2)`        | 1                  | r1, r2         |
//! | `stretched_bias`        | `r1 exp(-r2 d^r3)`       | 1                  | r1, r2, r3     |
//! | `gaussian_weight`       | 0                        | `exp(-r1 d^2)`     | r1             |
//! | `stretched_weight`      | 0                        | `exp(-r1 d^r2)`    | r1, r2         |
//!
//! Each is an expression of the kernel calculus with names, starts and ranges of its own.
//!
//! Enters: scores, after the `1/sqrt(D)` scale. Past the training length: defined for every d. Amplitudes and rates stay
//! at or above 0.01, exponents in `[0.01, 2]`, as in the released code; the Gaussian biases and the 1-para-weight are only
//! kept positive; where the paper gives no initial values (3-para-log and the Gaussian kinds) they follow by analogy. The released code calls `r1` of the logarithmic kernel `bias_p` and
//! `r2` `bias_a`, but `r1` of the power kernel `bias_a` and `r2` `bias_p`.

use super::decay::{BiasDecay, LearnedDecay};
use super::description::{DEFINED, Description, KERPLE, SCORES};
use super::error::Result;
use super::kernels::TableExprs;
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare, alibi};
use crate::calculus::expr::Expr;
use crate::calculus::parameter::FLOOR;
use crate::encoding::{EncodingForm, TableJacobian};
use crate::forms::Sides;
use serde::{Deserialize, Serialize};

/// Smallest value of the Gaussian kinds, which the paper only wants positive; far above f32's smallest normal number.
const POSITIVE: f64 = 1e-12;
const FREE: f64 = f64::INFINITY;
const EXPONENT_MAX: f64 = 2.0;

/// Starts of amplitudes and exponents, and of rates.
const UP_TO_2: ParameterInit = ParameterInit::Uniform([0.0, 2.0]);
const UP_TO_1: ParameterInit = ParameterInit::Uniform([0.0, 1.0]);

/// Ranges of the released code.
const RATE: [f64; 2] = [FLOOR, FREE];
const EXPONENT: [f64; 2] = [FLOOR, EXPONENT_MAX];
/// Ranges of the Gaussian kinds.
const POSITIVE_RATE: [f64; 2] = [POSITIVE, FREE];
const POSITIVE_EXPONENT: [f64; 2] = [POSITIVE, EXPONENT_MAX];

/// A kernel with a name; its keys are the starts of what it learns.
trait NamedKernel {
    /// Name in the literature, formula, and learned values, for people.
    const DESCRIPTION: [&'static str; 3];
    /// Added to scores: an expression, or nothing.
    const BIAS: Option<&'static str>;
    /// Multiplies scores.
    const WEIGHT: Option<&'static str>;
    /// How linear attention takes its bias.
    const DECAY: Option<LearnedDecay>;
    /// Learned values, in the order of the expressions.
    fn learned(&self) -> Vec<LearnedValue>;
}

/// A learned value of a named kernel, one per head.
struct LearnedValue {
    name: &'static str,
    init: ParameterInit,
    range: [f64; 2],
}

/// The expression behind a constant.
fn expression(text: &str) -> Expr {
    Expr::parse(text).expect("the constants of this file are proven kernels")
}

fn of_kernel([name, formula, learned]: [&'static str; 3]) -> Description {
    Description { name, formula, learned, enters: SCORES, beyond: DEFINED, source: KERPLE }
}

/// Calls `f` with the kernels behind two constants.
fn with_kernels<T>(bias: Option<&str>, weight: Option<&str>, f: impl FnOnce(TableExprs) -> T) -> T {
    let [bias, weight] = [bias, weight].map(|text| text.map(expression));
    f(TableExprs { bias: bias.as_ref(), weight: weight.as_ref() })
}

impl<K: NamedKernel> Positional for K {
    fn description(&self) -> Description {
        of_kernel(K::DESCRIPTION)
    }

    fn entry(&self) -> Injection {
        Injection::Scores(with_kernels(K::BIAS, K::WEIGHT, |kernels| kernels.has()))
    }

    fn check_keys(&self) -> Result {
        self.learned().into_iter().try_for_each(|LearnedValue { name, init, range }| init.check(name, range))
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let parameter =
            |LearnedValue { name, init, range }| EncodingParameter::per_head(name, geometry.heads, init, range);
        self.learned().into_iter().map(parameter).collect()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED_OR_OWN
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        EncodingForm::Table(with_kernels(K::BIAS, K::WEIGHT, |kernels| kernels.table(inputs)))
    }

    fn jacobian(&self, inputs: &FormInputs) -> TableJacobian {
        with_kernels(K::BIAS, K::WEIGHT, |kernels| kernels.jacobian(inputs))
    }

    fn bias_decay(&self, _: usize) -> Option<BiasDecay> {
        K::DECAY.map(BiasDecay::Learned)
    }

    fn kernels(&self) -> [Option<Expr>; 2] {
        [K::BIAS, K::WEIGHT].map(|text| text.map(expression))
    }
}

/// Declares a kernel with its keys: the starts of what it learns, with the range of each.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident $words:expr, $bias:expr, $weight:expr, $decay:expr,
     $($(#[$key_doc:meta])* $key:ident: $start:expr => $range:expr),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$key_doc])* pub $key: ParameterInit),+ }

        impl Default for $name {
            fn default() -> Self {
                $name { $($key: $start),+ }
            }
        }

        impl NamedKernel for $name {
            const DESCRIPTION: [&'static str; 3] = $words;
            const BIAS: Option<&'static str> = $bias;
            const WEIGHT: Option<&'static str> = $weight;
            const DECAY: Option<LearnedDecay> = $decay;

            fn learned(&self) -> Vec<LearnedValue> {
                vec![$(LearnedValue { name: stringify!($key), init: self.$key.clone(), range: $range }),+]
            }
        }
    };
}

kernel! {
    /// `-r1 ln(1 + r2 d)`
    KerpleLog ["KERPLE-log", "z = s - r1 ln(1 + r2 d)", "r1, r2: 2 H"], Some("log(b, a)"), None, Some(LearnedDecay::Log),
    /// Amplitude.
    r1: UP_TO_2 => RATE,
    /// Rate.
    r2: UP_TO_1 => RATE,
}

kernel! {
    /// `-r1 d^r2`
    KerplePower ["KERPLE-power", "z = s - r1 d^r2", "r1, r2: 2 H"], Some("power(a, p)"), None, Some(LearnedDecay::Power),
    /// Amplitude.
    r1: UP_TO_1 => RATE,
    /// Exponent.
    r2: UP_TO_2 => EXPONENT,
}

kernel! {
    /// `-r1 d^r2` and `exp(-r3 d^r4)`
    KerpleBiasWeight
    ["KERPLE bias + weight", "z = s exp(-r3 d^r4) - r1 d^r2", "r1, r2, r3, r4: 4 H"],
    Some("power(a, p)"), Some("exp(1, a, p)"), None,
    /// Amplitude of the bias.
    r1: UP_TO_1 => RATE,
    /// Exponent of the bias.
    r2: UP_TO_2 => EXPONENT,
    /// Rate of the weight.
    r3: UP_TO_1 => RATE,
    /// Exponent of the weight.
    r4: UP_TO_2 => EXPONENT,
}

kernel! {
    /// `exp(-r1 d^r2)`
    KerpleWeight ["KERPLE weight only", "z = s exp(-r1 d^r2)", "r1, r2: 2 H"], None, Some("exp(1, a, p)"), None,
    /// Rate.
    r1: UP_TO_1 => RATE,
    /// Exponent.
    r2: UP_TO_2 => EXPONENT,
}

kernel! {
    /// `-r1 ln(1 + r2 d^r3)`
    KerpleLog3 ["KERPLE 3-para-log", "z = s - r1 ln(1 + r2 d^r3)", "r1, r2, r3: 3 H"], Some("log3(b, a, p)"), None, None,
    /// Amplitude.
    r1: UP_TO_2 => RATE,
    /// Rate.
    r2: UP_TO_1 => RATE,
    /// Exponent.
    r3: UP_TO_2 => EXPONENT,
}

kernel! {
    /// `r1 exp(-r2 d^2)`
    GaussianBias ["Gaussian 2-para-bias", "z = s + r1 exp(-r2 d^2)", "r1, r2: 2 H"], Some("gauss(c, a)"), None, None,
    /// Amplitude.
    r1: UP_TO_2 => POSITIVE_RATE,
    /// Rate.
    r2: UP_TO_1 => POSITIVE_RATE,
}

kernel! {
    /// `r1 exp(-r2 d^r3)`
    StretchedBias
    ["Gaussian 3-para-bias", "z = s + r1 exp(-r2 d^r3)", "r1, r2, r3: 3 H"],
    Some("exp(c, a, p)"), None, None,
    /// Amplitude.
    r1: UP_TO_2 => POSITIVE_RATE,
    /// Rate.
    r2: UP_TO_1 => POSITIVE_RATE,
    /// Exponent.
    r3: UP_TO_2 => POSITIVE_EXPONENT,
}

kernel! {
    /// `exp(-r1 d^2)`
    GaussianWeight ["Gaussian 1-para-weight", "z = s exp(-r1 d^2)", "r1: H"], None, Some("gauss(1, a)"), None,
    /// Rate.
    r1: UP_TO_1 => POSITIVE_RATE,
}

kernel! {
    /// `exp(-r1 d^r2)`
    StretchedWeight ["Gaussian 2-para-weight", "z = s exp(-r1 d^r2)", "r1, r2: 2 H"], None, Some("exp(1, a, p)"), None,
    /// Rate.
    r1: UP_TO_1 => RATE,
    /// Exponent.
    r2: UP_TO_2 => EXPONENT,
}

/// Slopes of [`KerplePowerOriginal`].
fn original_slopes(heads: usize) -> Vec<f64> {
    alibi::slopes(heads).into_iter().map(|slope| slope.max(FLOOR)).collect()
}

/// `-max(slope, 0.01) d` with ALiBi slopes: nothing to set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KerplePowerOriginal {}

impl Positional for KerplePowerOriginal {
    fn description(&self) -> Description {
        of_kernel(["ALiBi inside KERPLE", "z = s - max(slope_h, 0.01) d", "nothing"])
    }

    fn entry(&self) -> Injection {
        Injection::Scores(TableContents::bias(Sides::OneSided))
    }

    fn parameters(&self, _: &Geometry) -> Vec<EncodingParameter> {
        Vec::new()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let slopes = [original_slopes(inputs.geometry.heads)];
        let inputs = FormInputs { values: &slopes, ..inputs.clone() };
        EncodingForm::Table(with_kernels(Some("power(a, 1)"), None, |kernels| kernels.table(&inputs)))
    }

    fn bias_decay(&self, heads: usize) -> Option<BiasDecay> {
        Some(BiasDecay::Linear(original_slopes(heads)))
    }
}
