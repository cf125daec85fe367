//! Any kernel of the calculus as an encoding: `encoding = { kind = "kernel", bias = "log(b, a)", weight = "exp(1, r, p)" }`.
//!
//! ```text
//! z = s * weight(d) + bias(d)        weight and bias: expressions of `kernel`, learned values one a head
//! ```
//!
//! Enters: scores, after the `1/sqrt(D)` scale. Past the training length: defined for every d. What the rules of the
//! calculus cannot prove valid is refused unless `unproven = true`; a weight needs no proof, it only scales.

use super::{Init, Parameter, TableGradient};
use crate::forms::{DistanceTable, Sides};
use crate::kernel::expr::Expr;
use crate::kernel::parameter::{self, Keep};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Keys of a kernel encoding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Added to the scaled score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<Expr>,
    /// Multiplies the scaled score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Expr>,
    /// How learned values are kept in their ranges.
    pub keep: Keep,
    /// Accepts a bias that no rule proves conditionally positive definite.
    pub unproven: bool,
}

impl Default for Config {
    fn default() -> Self {
        let bias = Expr::parse("log(b, a)").expect("a valid expression");
        Config { bias: Some(bias), weight: None, keep: Keep::Projection, unproven: false }
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize, Default)]
        #[serde(deny_unknown_fields, default)]
        struct Keys {
            bias: Option<String>,
            weight: Option<String>,
            keep: Keep,
            unproven: bool,
        }
        let keys = Keys::deserialize(deserializer)?;
        if keys.bias.is_none() && keys.weight.is_none() {
            return Ok(Config { keep: keys.keep, unproven: keys.unproven, ..Config::default() });
        }
        let parse = |key: &str, text: Option<String>, unproven: bool| {
            let read = |text: String| if unproven { Expr::parse_unproven(&text) } else { Expr::parse(&text) };
            text.map(read).transpose().map_err(|error| D::Error::custom(format!("`{key}`: {error}")))
        };
        Ok(Config {
            bias: parse("bias", keys.bias, keys.unproven)?,
            weight: parse("weight", keys.weight, true)?,
            keep: keys.keep,
            unproven: keys.unproven,
        })
    }
}

/// One of the two expressions with the place of its values among the encoding's.
struct Part<'a> {
    expr: &'a Expr,
    parameters: Vec<parameter::Parameter>,
    offset: usize,
}

impl Config {
    fn parts(&self) -> [Option<Part<'_>>; 2] {
        let mut offset = 0;
        [&self.bias, &self.weight].map(|expr| {
            expr.as_ref().map(|expr| {
                let parameters = expr.parameters();
                offset += parameters.len();
                Part { expr, offset: offset - parameters.len(), parameters }
            })
        })
    }

    /// Learned tensors, `[heads]` each; a name is prefixed where both expressions have it.
    pub fn parameters(&self, heads: usize) -> Vec<Parameter> {
        let [bias, weight] = self.parts().map(|part| part.map_or_else(Vec::new, |part| part.parameters));
        let shared = |name: &str| bias.iter().any(|p| p.name == name) && weight.iter().any(|p| p.name == name);
        let parameter = |(prefix, own): (&str, &parameter::Parameter)| {
            let raw = |value| self.keep.raw(own, value);
            let (init, low, high) = match (self.keep, own.init) {
                (Keep::Projection, parameter::Init::Fixed(x)) => (Init::Constant(x), own.low, own.high),
                (Keep::Projection, parameter::Init::Uniform { low, high }) => {
                    (Init::Uniform([low, high]), own.low, own.high)
                }
                (Keep::Smooth, parameter::Init::Fixed(x)) => (Init::Constant(raw(x)), f64::NEG_INFINITY, f64::INFINITY),
                (Keep::Smooth, parameter::Init::Uniform { low, high }) => {
                    (Init::Uniform([raw(low), raw(high)]), f64::NEG_INFINITY, f64::INFINITY)
                }
            };
            let name = if shared(&own.name) { format!("{prefix}.{}", own.name) } else { own.name.clone() };
            Parameter { name, shape: vec![heads], init, low, high }
        };
        let biases = bias.iter().map(|own| ("bias", own));
        biases.chain(weight.iter().map(|own| ("weight", own))).map(parameter).collect()
    }

    /// Values of one head of a part, and their derivatives in the raw values.
    fn head(&self, part: &Part, values: &[Vec<f64>], head: usize) -> (Vec<f64>, Vec<f64>) {
        let value = |(at, own): (usize, &parameter::Parameter)| self.keep.value(own, values[part.offset + at][head]);
        part.parameters.iter().enumerate().map(value).unzip()
    }

    /// Bias and weight at distances `0..len`.
    pub fn table(&self, heads: usize, values: &[Vec<f64>], len: usize) -> DistanceTable {
        let rows = |part: Option<Part>| {
            part.map(|part| {
                let row = |head| part.expr.table(&self.head(&part, values, head).0, 1, len);
                (0..heads).flat_map(row).collect::<Vec<f64>>()
            })
        };
        let [bias, weight] = self.parts().map(rows);
        DistanceTable { heads, len, sides: Sides::One, bias, weight }
    }

    /// Gradient in each learned tensor.
    pub fn table_backward(&self, heads: usize, values: &[Vec<f64>], gradient: TableGradient) -> Vec<Vec<f64>> {
        let mut d_values = vec![vec![0.0; heads]; values.len()];
        for (part, d_table) in self.parts().iter().zip([gradient.d_bias, gradient.d_weight]) {
            let (Some(part), Some(d_table)) = (part, d_table) else { continue };
            crate::check_shape!(d_table, H = heads, L = gradient.len);
            for (head, row) in d_table.chunks_exact(gradient.len).enumerate() {
                let (own, slopes) = self.head(part, values, head);
                let mut d_own = vec![0.0; own.len()];
                part.expr.table_backward(&own, 1, gradient.len, row, &mut d_own);
                for (at, (d, slope)) in d_own.iter().zip(slopes).enumerate() {
                    d_values[part.offset + at][head] += d * slope;
                }
            }
        }
        d_values
    }
}
