//! Any kernel of the calculus as an encoding: `encoding = { kind = "kernel", bias = "log(b, a)", weight = "exp(1, a, p)" }`.
//!
//! ```text
//! z = s * weight(d) + bias(d)        weight and bias: expressions of `kernel`, learned values one a head
//! ```
//!
//! Enters: scores, after the `1/sqrt(D)` scale. Past the training length: defined for every d. What the rules of the
//! calculus cannot prove valid is refused unless `unproven = true`; a weight needs no proof, it only scales.
//!
//! `start = [1.3, 0.4]` has the initial values of all heads, `start = [[1.3, 0.4], [0.7, 0.1]]` a list for each head. The
//! values are in the order of the learned parameters, those of the bias before those of the weight.

use super::description::{DEFINED, Description, KERPLE, SCORES};
use super::error::{ConfigError, Result};
use super::kernels::TableExprs;
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::calculus::expr::Expr;
use crate::calculus::parameter::{self, Constraint};
use crate::encoding::{EncodingForm, TableJacobian};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Initial values of the learned parameters: those of the bias, then those of the weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum KernelStart {
    /// The values of all heads, `[P]`.
    Shared(Vec<f64>),
    /// The values of each head, `[heads, P]`.
    PerHead(Vec<Vec<f64>>),
}

impl<'de> Deserialize<'de> for KernelStart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fn numbers(list: &[Value]) -> Option<Vec<f64>> {
            list.iter().map(Value::as_f64).collect()
        }
        let value = Value::deserialize(deserializer)?;
        let lists = value.as_array().filter(|list| !list.is_empty());
        let shared = || lists.and_then(|list| numbers(list)).map(KernelStart::Shared);
        let row = |row: &Value| row.as_array().and_then(|list| numbers(list));
        let per_head = || Some(KernelStart::PerHead(lists?.iter().map(row).collect::<Option<Vec<Vec<f64>>>>()?));
        shared().or_else(per_head).ok_or_else(|| {
            let text: String = value.to_string().chars().take(60).collect();
            D::Error::custom(format!(
                "initial values must be a list of numbers for all heads, e.g. [1.3, 0.4], or a list of numbers per head, \
                e.g. [[1.3, 0.4], [0.7, 0.1]], got {text}"
            ))
        })
    }
}

impl KernelStart {
    /// Each list, with the head that it belongs to, or none where it belongs to all.
    fn lists(&self) -> Vec<(Option<usize>, &[f64])> {
        match self {
            KernelStart::Shared(values) => vec![(None, values)],
            KernelStart::PerHead(rows) => rows.iter().enumerate().map(|(head, row)| (Some(head), &row[..])).collect(),
        }
    }

    /// Initial values of one parameter.
    fn init(&self, parameter: usize) -> ParameterInit {
        match self {
            KernelStart::Shared(values) => ParameterInit::Constant(values[parameter]),
            KernelStart::PerHead(rows) => ParameterInit::PerHead(rows.iter().map(|row| row[parameter]).collect()),
        }
    }

    /// Refuses lists that do not have a value in range for each of the learned parameters, by their names.
    fn check(&self, parameters: &[EncodingParameter]) -> Result {
        let refuse = |message: String, hint: String| Err(ConfigError::new(START, message, hint));
        let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        if names.is_empty() {
            let message = "the expressions learn nothing that could start".to_owned();
            return refuse(message, "remove it, or write a name in place of a number, e.g. log(b, a)".to_owned());
        }
        for (head, values) in self.lists() {
            let of_head = head.map_or_else(String::new, |head| format!(" of head {head}"));
            if values.len() != names.len() {
                let message = format!("{} values{of_head} for {} learned parameters", values.len(), names.len());
                return refuse(message, format!("give a value for each of {}, in this order", names.join(", ")));
            }
            for (value, parameter) in values.iter().zip(parameters) {
                let (low, high) = (parameter.low, parameter.high);
                if !(low..=high).contains(value) {
                    let limit =
                        if high.is_finite() { format!("between {low} and {high}") } else { format!("at least {low}") };
                    let message = format!("{}{of_head} is {value}, it must be {limit}", parameter.name);
                    let hint = format!(
                        "use a value in that range, or write the number in the expression in place of {}: it is then not learned",
                        parameter.name
                    );
                    return refuse(message, hint);
                }
            }
        }
        Ok(())
    }
}

const START: &str = "start";

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
    /// Initial values, in place of starts in the expressions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<KernelStart>,
}

impl Default for ExpressionConfig {
    fn default() -> Self {
        let bias = Expr::parse("log(b, a)").expect("a valid expression");
        ExpressionConfig { bias: Some(bias), weight: None, keep: Constraint::Projection, unproven: false, start: None }
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
            start: Option<KernelStart>,
        }
        let keys = ExpressionKeys::deserialize(deserializer)?;
        if keys.bias.is_none() && keys.weight.is_none() {
            let ExpressionKeys { keep, unproven, start, .. } = keys;
            return Ok(ExpressionConfig { keep, unproven, start, ..ExpressionConfig::default() });
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
            start: keys.start,
        })
    }
}

impl ExpressionConfig {
    fn expressions(&self) -> TableExprs<'_> {
        TableExprs { bias: self.bias.as_ref(), weight: self.weight.as_ref() }
    }

    /// The learned parameters, as they start without `start`.
    fn learned(&self, heads: usize) -> Vec<EncodingParameter> {
        let [bias, weight] =
            [&self.bias, &self.weight].map(|expr| expr.as_ref().map_or_else(Vec::new, Expr::parameters));
        let shared = |name: &str| bias.iter().any(|p| p.name == name) && weight.iter().any(|p| p.name == name);
        let biases = bias.iter().map(|own| ("bias", own));
        let parameter = |(prefix, own): (&str, &parameter::KernelParameter)| {
            let name = if shared(&own.name) { format!("{prefix}.{}", own.name) } else { own.name.clone() };
            self.parameter(name, heads, own)
        };
        biases.chain(weight.iter().map(|own| ("weight", own))).map(parameter).collect()
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

    fn check_keys(&self) -> Result {
        let Some(start) = &self.start else { return Ok(()) };
        let written = |expr: &&Expr| expr.to_string().contains('~');
        if let Some(expr) = self.bias.iter().chain(&self.weight).find(written) {
            let message = format!("`{expr}` has starts of its own, written with ~");
            return Err(ConfigError::new(START, message, "write the names alone, e.g. log(b, a), or remove `start`"));
        }
        start.check(&self.learned(1))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let Some(KernelStart::PerHead(rows)) = &self.start else { return Ok(()) };
        if rows.len() == geometry.heads {
            return Ok(());
        }
        let message = format!("{} lists for {} heads", rows.len(), geometry.heads);
        Err(ConfigError::new(START, message, "give a list per head, or one list without inner brackets for all heads"))
    }

    /// Learned tensors, `[heads]` each; a name is prefixed where both expressions have it.
    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let mut learned = self.learned(geometry.heads);
        if let Some(start) = &self.start {
            learned.iter_mut().enumerate().for_each(|(at, parameter)| parameter.init = start.init(at));
        }
        learned
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
