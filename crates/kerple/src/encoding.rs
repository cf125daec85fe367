//! Positional methods: which parameters they learn and which form they hand over.
//!
//! [`Encoding`] is what a run file's `[encoding]` table says: a [`Method`] and the choices every method shares.
//! One file a method, or a family of methods that differ only in a formula; nothing about a method lives elsewhere but
//! its variant in [`Method`].

pub mod alibi;
pub mod expression;
pub mod kerple;
pub mod learned;
pub mod rotary;
pub mod sinusoidal;
pub mod t5;

mod bf16;
mod config;
mod describe;
mod method;

pub use config::{Clamp, Compat, Encoding, Scale};
pub use describe::Description;
pub use method::{METHODS, Method, NoKeys};

use crate::forms::{Absolute, DistanceTable, Rotary};
use crate::seed::{Purpose, stream_at};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Sizes of the model an encoding serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Attention heads, H.
    pub heads: usize,
    /// Features a head, D.
    pub head_dim: usize,
    /// Length of the training sequences, in tokens.
    pub train_len: usize,
}

impl Geometry {
    /// Model width, M = H * D.
    pub fn d_model(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// How a learned parameter starts: `0.5` in a run file is a constant, `[0.0, 2.0]` a uniform draw.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Init {
    /// Every value is this one.
    Constant(f64),
    /// Independent draws from `[low, high)`.
    Uniform([f64; 2]),
    /// Independent draws from a normal distribution with mean 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
}

/// One learned tensor of an encoding, shared by all layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Name within the encoding, e.g. `r1`.
    pub name: String,
    /// `[H]` for kernels, `[num_buckets, H]` for T5, `[positions, M]` for a learned table.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Smallest value used; smaller ones are clamped.
    pub low: f64,
    /// Largest value used.
    pub high: f64,
}

impl Parameter {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the parameter holds no value at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn draw(&self, rng: &mut impl rand::Rng) -> Vec<f64> {
        (0..self.len())
            .map(|_| match self.init {
                Init::Constant(value) => value,
                Init::Uniform([low, high]) => low + (high - low) * rng.random::<f64>(),
                Init::Normal { std } => std * standard_normal(rng),
            })
            .map(|value| value.clamp(self.low, self.high))
            .collect()
    }
}

/// A draw from N(0, 1) by the Box-Muller transform.
pub fn standard_normal(rng: &mut impl rand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// Gradients of the loss in a [`DistanceTable`], `[H, L]` each; `None` where the engine computed none.
#[derive(Clone, Copy, Debug)]
pub struct TableGradient<'a> {
    /// Columns of the tables.
    pub len: usize,
    /// Gradient in the bias.
    pub d_bias: Option<&'a [f64]>,
    /// Gradient in the weight.
    pub d_weight: Option<&'a [f64]>,
}

impl Encoding {
    /// The learned tensors, in the order every other function takes them. Empty for fixed methods.
    pub fn parameters(&self, geometry: &Geometry) -> Vec<Parameter> {
        match &self.method {
            Method::Learned(config) => config.parameters(geometry),
            Method::T5(config) => config.parameters(geometry),
            Method::Kernel(config) => config.parameters(geometry.heads),
            method => method.family().map_or_else(Vec::new, |family| family.parameters(geometry.heads)),
        }
    }

    /// Initial values of [`Encoding::parameters`], each drawn from a stream of its own of `seed`.
    pub fn initial(&self, geometry: &Geometry, seed: u64) -> Vec<Vec<f64>> {
        let parameters = self.parameters(geometry);
        let draw = |(place, parameter): (usize, &Parameter)| {
            parameter.draw(&mut stream_at(seed, Purpose::Encoding, [place as u64, 0]))
        };
        parameters.iter().enumerate().map(draw).collect()
    }

    /// The values attention uses: `values` clamped to each parameter's range.
    pub fn clamped(&self, geometry: &Geometry, values: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let clamp = |(parameter, values): (&Parameter, &Vec<f64>)| {
            values.iter().map(|value| value.clamp(parameter.low, parameter.high)).collect()
        };
        self.parameters(geometry).iter().zip(values).map(clamp).collect()
    }

    /// Bias and weight at distances `0..len`; neutral for methods that enter elsewhere.
    ///
    /// With [`Scale::Inside`] the bias is divided by `sqrt(D)`, as Chi et al. 2022, Eq. 1 reads literally.
    pub fn table(&self, geometry: &Geometry, values: &[Vec<f64>], len: usize) -> DistanceTable {
        let values = self.clamped(geometry, values);
        let bf16 = self.compat == Compat::Bf16;
        let mut table = match &self.method {
            Method::Alibi(config) => config.table(geometry.heads, len, bf16),
            Method::T5(config) => config.table(geometry, &values, len, bf16),
            Method::Kernel(config) => config.table(geometry.heads, &values, len),
            method => method
                .family()
                .map_or_else(DistanceTable::default, |family| family.table(geometry.heads, &values, len, bf16)),
        };
        (table.heads, table.len) = (geometry.heads, len);
        if let (Scale::Inside, Some(bias)) = (self.scale, &mut table.bias) {
            let factor = (geometry.head_dim as f64).sqrt().recip();
            bias.iter_mut().for_each(|value| *value *= factor);
        }
        table
    }

    /// Gradient of the loss in the parameters, given its gradient in the table; one vector a parameter.
    ///
    /// The clamp passes gradients straight through, so this is the formula's gradient at the clamped values.
    pub fn table_backward(&self, geometry: &Geometry, values: &[Vec<f64>], gradient: TableGradient) -> Vec<Vec<f64>> {
        let values = self.clamped(geometry, values);
        let scaled;
        let mut gradient = gradient;
        if let (Scale::Inside, Some(d_bias)) = (self.scale, gradient.d_bias) {
            let factor = (geometry.head_dim as f64).sqrt().recip();
            scaled = d_bias.iter().map(|value| value * factor).collect::<Vec<_>>();
            gradient.d_bias = Some(&scaled);
        }
        match &self.method {
            Method::T5(config) => vec![config.table_backward(geometry, gradient)],
            Method::Kernel(config) => config.table_backward(geometry.heads, &values, gradient),
            method => {
                method.family().map_or_else(Vec::new, |family| family.table_backward(geometry.heads, &values, gradient))
            }
        }
    }

    /// Rotation of queries and keys, for rotary methods.
    pub fn rotary(&self, geometry: &Geometry) -> Option<Rotary> {
        match &self.method {
            Method::Rotary(config) => Some(config.rotary(geometry.head_dim, self.compat == Compat::Bf16)),
            _ => None,
        }
    }

    /// What is added to the embeddings of positions `0..len`, for absolute methods.
    pub fn absolute(&self, geometry: &Geometry, len: usize) -> Option<Absolute> {
        match &self.method {
            Method::Sinusoidal(config) => {
                Some(Absolute::Fixed(config.rows(geometry.d_model(), len, self.compat == Compat::Bf16)))
            }
            Method::Learned(config) => Some(Absolute::Learned { positions: config.positions(geometry) }),
            _ => None,
        }
    }

    /// The longest sequence the method is defined for, in tokens; `None` when it is defined for all.
    pub fn longest(&self, geometry: &Geometry) -> Option<usize> {
        match &self.method {
            Method::Learned(config) => Some(config.positions(geometry)),
            _ => None,
        }
    }

    /// Learned values beyond those of the model without positions.
    pub fn parameter_count(&self, geometry: &Geometry) -> usize {
        self.parameters(geometry).iter().map(Parameter::len).sum()
    }
}

#[cfg(test)]
mod tests;
