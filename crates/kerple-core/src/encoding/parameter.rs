//! Learned tensors of an encoding: shapes, starts, ranges, and how raw numbers become values.

use super::error::{ConfigError, Result};
use super::fox;
use crate::calculus::parameter::Constraint;
use crate::features::scale_gains;
use crate::seed::standard_normal;
use rand::{Rng, RngExt};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// How a learned parameter starts: `0.5` in a run file is a constant, `[0.0, 2.0]` a uniform draw.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ParameterInit {
    /// Every value is this one.
    Constant(f64),
    /// Independent draws from `[low, high)`.
    Uniform([f64; 2]),
    /// Independent draws from a normal distribution with mean 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Independent normal draws around a mean.
    Around {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Gains of SineSPE: N(0, 1) draws, so many a feature, divided by half the root of their norm.
    Gains {
        /// Gains a feature.
        waves: usize,
    },
    /// Of gates by which heads remember so many tokens, see [`fox`].
    Gates {
        /// Of the first head, and of the last.
        spans: [f64; 2],
    },
    /// Independent normal draws around matrices, one after the other, that have a 1 in each column, a step of rows apart.
    StepIdentity {
        /// Rows of a matrix.
        rows: usize,
        /// Columns.
        columns: usize,
        /// Standard deviation.
        std: f64,
    },
    /// A value for each head. No key reads it: kernels have a list of starts, see
    /// [`KernelStart`](super::expression::KernelStart).
    PerHead(Vec<f64>),
}

impl<'de> Deserialize<'de> for ParameterInit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let init = match &value {
            Value::Number(number) => number.as_f64().map(ParameterInit::Constant),
            Value::Array(ends) => match ends.as_slice() {
                [low, high] => low.as_f64().zip(high.as_f64()).map(|(low, high)| ParameterInit::Uniform([low, high])),
                _ => None,
            },
            Value::Object(keys) if keys.len() == 1 => {
                keys.get("std").and_then(Value::as_f64).map(|std| ParameterInit::Normal { std })
            }
            _ => None,
        };
        init.ok_or_else(|| {
            D::Error::custom(format!(
                "an initial value must be a number, a range [low, high] or {{ \
                std = number }}, got {value}"
            ))
        })
    }
}

impl ParameterInit {
    /// Refuses an initial value that is not a number, or cannot give a value in `[low, high]`.
    ///
    /// # Errors
    /// The key, the start and the range.
    pub fn check(&self, key: &str, [low, high]: [f64; 2]) -> Result {
        let hint = format!("set the initial value `{key}` to a number that is {}", range(low, high));
        let refuse = |message: String| Err(ConfigError::new(key, message, hint.clone()));
        match *self {
            ParameterInit::Constant(value) if !(value.is_finite() && (low..=high).contains(&value)) => {
                refuse(format!("{value} is out of range, it must be {}", range(low, high)))
            }
            ParameterInit::Uniform([from, to]) if !(from.is_finite() && to.is_finite() && from <= to) => {
                refuse(format!("[{from}, {to}] is not a range, the first number must not exceed the second"))
            }
            ParameterInit::Uniform([from, to]) if from > high || to < low => {
                refuse(format!("[{from}, {to}] is out of range, allowed values are {}", range(low, high)))
            }
            ParameterInit::Normal { std } if !(std.is_finite() && std >= 0.0) => {
                refuse(format!("std is {std}, it must be at least 0"))
            }
            ParameterInit::Constant(_) | ParameterInit::Uniform(_) | ParameterInit::Normal { .. } => Ok(()),
            ParameterInit::Around { .. } | ParameterInit::Gains { .. } => Ok(()),
            ParameterInit::Gates { .. } | ParameterInit::StepIdentity { .. } | ParameterInit::PerHead(_) => Ok(()),
        }
    }

    fn draw(&self, rng: &mut impl Rng) -> f64 {
        match *self {
            ParameterInit::Constant(value) => value,
            ParameterInit::Uniform([low, high]) => low + (high - low) * rng.random::<f64>(),
            ParameterInit::Normal { std } | ParameterInit::StepIdentity { std, .. } => std * standard_normal(rng),
            ParameterInit::Around { mean, std } => mean + std * standard_normal(rng),
            ParameterInit::Gains { .. } => standard_normal(rng),
            // set by head, in `EncodingParameter::draw`
            ParameterInit::Gates { .. } | ParameterInit::PerHead(_) => 0.0,
        }
    }
}

fn range(low: f64, high: f64) -> String {
    match (low.is_finite(), high.is_finite()) {
        (true, true) => format!("between {low} and {high}"),
        (true, false) => format!("at least {low}"),
        (false, true) => format!("at most {high}"),
        (false, false) => "finite".to_owned(),
    }
}

/// How often a learned tensor exists in a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterShare {
    /// Once: all layers share it.
    #[default]
    Model,
    /// Once a layer.
    Layer,
}

impl ParameterShare {
    /// Of methods whose form enters the model once, or that learn nothing.
    pub const SHARED: &[ParameterShare] = &[ParameterShare::Model];
    /// For methods whose layers share their parameters by default.
    pub const SHARED_OR_OWN: &[ParameterShare] = &[ParameterShare::Model, ParameterShare::Layer];
    /// For methods whose layers have their own parameters by default.
    pub const OWN_OR_SHARED: &[ParameterShare] = &[ParameterShare::Layer, ParameterShare::Model];
}

/// One learned tensor of an encoding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EncodingParameter {
    /// Name within the encoding, e.g. `r1`.
    pub name: String,
    /// `[H]` for kernels, `[num_buckets, H]` for T5, `[positions, M]` for a learned table.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: ParameterInit,
    /// Smallest value used.
    pub low: f64,
    /// Largest value used.
    pub high: f64,
    /// How values stay in `[low, high]`, and so how raw numbers become values.
    pub keep: Constraint,
    /// How often it exists in a model.
    pub share: ParameterShare,
    /// Whether weight decay shrinks it: matrices are decayed; numbers of a kernel are not, but for FIRE's and DAPE's.
    pub decay: bool,
}

impl EncodingParameter {
    /// A matrix of any finite numbers: starts N(0, std^2), is decayed, exists once.
    pub(super) fn matrix(name: &str, shape: [usize; 2], std: f64) -> EncodingParameter {
        EncodingParameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            init: ParameterInit::Normal { std },
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
            keep: Constraint::Projection,
            share: ParameterShare::Model,
            decay: true,
        }
    }

    /// Weights of a network's layer, or its biases, as PyTorch starts both: `U(-1/sqrt(inputs), 1/sqrt(inputs))`. Weights are
    /// decayed.
    pub(super) fn of_layer(name: &str, shape: &[usize], inputs: usize) -> EncodingParameter {
        let end = (inputs as f64).sqrt().recip();
        let init = ParameterInit::Uniform([-end, end]);
        let decay = shape.len() > 1;
        EncodingParameter { shape: shape.to_vec(), init, decay, ..EncodingParameter::matrix(name, [0, 0], 0.0) }
    }

    /// A number a head in `[low, high]`, not decayed.
    pub(super) fn per_head(name: &str, heads: usize, init: ParameterInit, [low, high]: [f64; 2]) -> EncodingParameter {
        EncodingParameter {
            name: name.to_owned(),
            shape: vec![heads],
            init,
            low,
            high,
            keep: Constraint::Projection,
            share: ParameterShare::Model,
            decay: false,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |product, size| product.saturating_mul(*size))
    }

    /// Whether the parameter holds no value at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The constrained value of a raw number, and its derivative in the raw number.
    ///
    /// The clamp to `[low, high]` passes gradients straight through, as the released code does.
    pub fn value(&self, raw: f64) -> (f64, f64) {
        let (value, slope) = self.keep.value([self.low, self.high], raw);
        (value.clamp(self.low, self.high), slope)
    }

    /// Raw numbers outside of this range are brought back after an update: the range itself, or all numbers where a
    /// smooth map keeps values in range.
    pub fn raw_range(&self) -> [f64; 2] {
        match self.keep {
            Constraint::Projection => [self.low, self.high],
            Constraint::Smooth => [f64::NEG_INFINITY, f64::INFINITY],
        }
    }

    /// Raw numbers of initial values: values are drawn, brought into range, then mapped to raw numbers.
    pub(super) fn draw(&self, rng: &mut impl Rng) -> Vec<f64> {
        let mut values: Vec<f64> = (0..self.len()).map(|_| self.init.draw(rng)).collect();
        match &self.init {
            ParameterInit::Gains { waves } => scale_gains(*waves, &mut values),
            ParameterInit::Gates { spans } => values = fox::biases(*spans, self.len()),
            ParameterInit::PerHead(starts) => values.clone_from(starts),
            &ParameterInit::StepIdentity { rows, columns, .. } => {
                let step = rows.div_ceil(columns.max(1));
                for matrix in values.chunks_exact_mut((rows * columns).max(1)) {
                    (0..columns).filter(|column| column * step < rows).for_each(|column| {
                        matrix[column * step * columns + column] += 1.0;
                    });
                }
            }
            _ => {}
        }
        let raw = |value: f64| self.keep.raw([self.low, self.high], value.clamp(self.low, self.high));
        values.into_iter().map(raw).collect()
    }
}
