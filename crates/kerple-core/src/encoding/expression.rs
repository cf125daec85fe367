//! Any kernel of the calculus as an encoding: `encoding = { kind = "kernel", bias = "log(b, a)", weight = "exp(1, a, p)" }`.
//!
//! ```text
//! z = s * weight(d) + bias(d)        weight and bias: expressions of `kernel`, learned values one a head
//! ```
//!
//! Enters: scores, after the `1/sqrt(D)` scale. Past the training length: defined for every d. What the rules of the
//! calculus cannot prove valid is refused unless `unproven = true`; a weight needs no proof, it only scales.

use super::description::{DEFINED, Description, KERPLE, SCORES};
use super::kernels::TableExprs;
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::calculus::expr::Expr;
use crate::calculus::parameter::{self, Constraint};
use crate::encoding::{EncodingForm, TableJacobian};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Keys of a kernel encoding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpressionConfig {
    /// Added to the scaled score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<Expr>,
    /// Multiplies the scaled score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Expr>,
    /// How learned values are kept in their ranges.
    pub keep: Constraint,
    /// Accepts a bias that no rule proves conditionally positive definite.
    pub unproven: bool,
}

impl Default for ExpressionConfig {
    fn default() -> Self {
        let bias = Expr::parse("log(b, a)").expect("a valid expression");
        ExpressionConfig { bias: Some(bias), weight: None, keep: Constraint::Projection, unproven: false }
    }
}

impl<'de> Deserialize<'de> for ExpressionConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize, Default)]
        #[serde(deny_unknown_fields, default)]
        struct ExpressionKeys {
            bias: Option<String>,
            weight: Option<String>,
            keep: Constraint,
            unproven: bool,
        }
        let keys = ExpressionKeys::deserialize(deserializer)?;
        if keys.bias.is_none() && keys.weight.is_none() {
            return Ok(ExpressionConfig { keep: keys.keep, unproven: keys.unproven, ..ExpressionConfig::default() });
        }
        let parse = |key: &str, text: Option<String>, unproven: bool| {
            let read = |text: String| if unproven { Expr::parse_unproven(&text) } else { Expr::parse(&text) };
            text.map(read).transpose().map_err(|error| D::Error::custom(format!("`{key}`: {error}")))
        };
        Ok(ExpressionConfig {
            bias: parse("bias", keys.bias, keys.unproven)?,
            weight: parse("weight", keys.weight, true)?,
            keep: keys.keep,
            unproven: keys.unproven,
        })
    }
}

impl ExpressionConfig {
    fn expressions(&self) -> TableExprs<'_> {
        TableExprs { bias: self.bias.as_ref(), weight: self.weight.as_ref() }
    }

    fn parameter(&self, name: String, heads: usize, own: &parameter::KernelParameter) -> EncodingParameter {
        let init = match own.init {
            parameter::KernelInit::Fixed(x) => ParameterInit::Constant(x),
            parameter::KernelInit::Uniform { low, high } => ParameterInit::Uniform([low, high]),
        };
        EncodingParameter { keep: self.keep, ..EncodingParameter::per_head(&name, heads, init, [own.low, own.high]) }
    }
}

impl Positional for ExpressionConfig {
    fn description(&self) -> Description {
        Description {
            name: "kernel expression",
            formula: "z = s weight(d) + bias(d), any expressions",
            learned: "what the expressions leave open",
            enters: SCORES,
            beyond: DEFINED,
            source: KERPLE,
        }
    }

    fn entry(&self) -> Injection {
        Injection::Scores(self.expressions().has())
    }

    /// Learned tensors, `[heads]` each; a name is prefixed where both expressions have it.
    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let [bias, weight] =
            [&self.bias, &self.weight].map(|expr| expr.as_ref().map_or_else(Vec::new, Expr::parameters));
        let shared = |name: &str| bias.iter().any(|p| p.name == name) && weight.iter().any(|p| p.name == name);
        let biases = bias.iter().map(|own| ("bias", own));
        let parameter = |(prefix, own): (&str, &parameter::KernelParameter)| {
            let name = if shared(&own.name) { format!("{prefix}.{}", own.name) } else { own.name.clone() };
            self.parameter(name, geometry.heads, own)
        };
        biases.chain(weight.iter().map(|own| ("weight", own))).map(parameter).collect()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED_OR_OWN
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        EncodingForm::Table(self.expressions().table(inputs))
    }

    fn jacobian(&self, inputs: &FormInputs) -> TableJacobian {
        self.expressions().jacobian(inputs)
    }

    fn kernels(&self) -> [Option<Expr>; 2] {
        [self.bias.clone(), self.weight.clone()]
    }
}
