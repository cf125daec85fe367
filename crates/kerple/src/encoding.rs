//! Positional methods: which parameters they learn and which form they hand over.
//!
//! [`Encoding`] is what a run file's `[encoding]` table says: a [`Method`] and the choices every method shares.
//! One file a method, or a family of methods that differ only in a formula, each with its keys, checks, words, parameters,
//! form and derivatives: what [`Positional`] asks for. Nothing about a method lives elsewhere but its line in [`Method`].

pub mod alibi;
pub mod expression;
pub mod kerple;
pub mod learned;
pub mod none;
pub mod rotary;
pub mod sinusoidal;
pub mod t5;

mod config;
mod finite;
mod kernels;
mod label;
mod method;
mod parameter;
mod refusal;
mod words;

pub use crate::compat::Compat;
pub use config::{Clamp, Encoding, Scale};
pub use method::{Inputs, METHODS, Method, Positional};
pub use parameter::{Init, Parameter, Scope, standard_normal};
pub use refusal::{Checked, Refusal};
pub use words::Description;

use crate::forms::{Absolute, DistanceTable, Form, Rotary, Slopes, TableSlopes};
use crate::seed::{Purpose, stream_at};
use serde::{Deserialize, Serialize};
use std::ops::Range;

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

/// What is learned exists as *stored* numbers, which an optimizer changes, and *true values*, which formulas use: the
/// stored number itself, clamped to its range, or what a smooth map makes of it. Functions here take stored numbers.
impl Encoding {
    /// The learned tensors, in the order every other function takes them. Empty for fixed methods.
    pub fn parameters(&self, geometry: &Geometry) -> Vec<Parameter> {
        let own = self.method.positional().parameters(geometry);
        own.into_iter().map(|parameter| Parameter { scope: self.scope, ..parameter }).collect()
    }

    /// Initial stored numbers of [`Encoding::parameters`], of the first layer where each layer has its own.
    pub fn initial(&self, geometry: &Geometry, seed: u64) -> Vec<Vec<f64>> {
        self.initial_in_layer(geometry, seed, 0)
    }

    /// Initial stored numbers of one layer; parameters that layers share are the same in all of them.
    ///
    /// Every parameter of every layer has a random stream of its own.
    pub fn initial_in_layer(&self, geometry: &Geometry, seed: u64, layer: usize) -> Vec<Vec<f64>> {
        let draw = |(index, parameter): (usize, Parameter)| {
            let layer = if parameter.scope == Scope::Layer { layer } else { 0 };
            parameter.draw(&mut stream_at(seed, Purpose::Encoding, [index as u64, layer as u64]))
        };
        self.parameters(geometry).into_iter().enumerate().map(draw).collect()
    }

    /// True values of stored numbers: what formulas use, and what reports show.
    pub fn true_values(&self, geometry: &Geometry, stored: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let value = |(parameter, stored): (Parameter, &Vec<f64>)| {
            stored.iter().map(|number| parameter.value(*number).0).collect()
        };
        self.parameters(geometry).into_iter().zip(stored).map(value).collect()
    }

    /// What enters the model in a pass over these positions; tables cover distances `0..positions.end`.
    ///
    /// With [`Scale::Inside`] the bias is divided by `sqrt(D)`, as Chi et al. 2022, Eq. 1 reads literally.
    pub fn form(&self, geometry: &Geometry, stored: &[Vec<f64>], positions: Range<usize>) -> Form {
        let values = self.true_values(geometry, stored);
        let inputs = Inputs { geometry, values: &values, positions, compat: self.compat };
        let mut form = self.method.positional().form(&inputs);
        if let (Scale::Inside, Form::Table(DistanceTable { bias: Some(bias), .. })) = (self.scale, &mut form) {
            bias.iter_mut().for_each(|value| *value *= inside(geometry));
        }
        form
    }

    /// Derivatives of the form's tables in the stored numbers.
    ///
    /// The clamp passes gradients straight through, so these are the formula's derivatives at the clamped values.
    pub fn table_slopes(&self, geometry: &Geometry, stored: &[Vec<f64>], len: usize) -> TableSlopes {
        let values = self.true_values(geometry, stored);
        let inputs = Inputs { geometry, values: &values, positions: 0..len, compat: self.compat };
        let mut slopes = self.method.positional().slopes(&inputs);
        let parameters = self.parameters(geometry);
        for part in [&mut slopes.bias, &mut slopes.weight].into_iter().flatten() {
            let Slopes::PerHead(own) = part else { continue }; // matrices are stored as they are
            for (index, rows) in own {
                for (row, stored) in rows.chunks_mut(len.max(1)).zip(&stored[*index]) {
                    let (_, slope) = parameters[*index].value(*stored);
                    if slope != 1.0 {
                        row.iter_mut().for_each(|value| *value *= slope);
                    }
                }
            }
        }
        if let (Scale::Inside, Some(bias)) = (self.scale, &mut slopes.bias) {
            bias.scale(inside(geometry));
        }
        slopes
    }

    /// Bias and weight at distances `0..len`; neutral for methods that enter elsewhere.
    pub fn table(&self, geometry: &Geometry, stored: &[Vec<f64>], len: usize) -> DistanceTable {
        match self.form(geometry, stored, 0..len) {
            Form::Table(table) => table,
            Form::Nothing | Form::Absolute(_) | Form::Rotary(_) => {
                DistanceTable { heads: geometry.heads, len, ..DistanceTable::default() }
            }
        }
    }

    /// Gradient of the loss in the stored numbers, given its gradient in the tables; one vector a parameter.
    pub fn table_backward(&self, geometry: &Geometry, stored: &[Vec<f64>], gradient: TableGradient) -> Vec<Vec<f64>> {
        let slopes = self.table_slopes(geometry, stored, gradient.len);
        let mut d_stored: Vec<Vec<f64>> = stored.iter().map(|values| vec![0.0; values.len()]).collect();
        for (slopes, d_table) in [(slopes.bias, gradient.d_bias), (slopes.weight, gradient.d_weight)] {
            if let (Some(slopes), Some(d_table)) = (slopes, d_table) {
                crate::check_shape!(d_table, H = geometry.heads, L = gradient.len);
                slopes.backward(geometry.heads, d_table, &mut d_stored);
            }
        }
        d_stored
    }

    /// Rotation of queries and keys, for rotary methods.
    pub fn rotary(&self, geometry: &Geometry) -> Option<Rotary> {
        match self.form(geometry, &self.zeros(geometry), 0..0) {
            Form::Rotary(rotary) => Some(rotary),
            Form::Nothing | Form::Absolute(_) | Form::Table(_) => None,
        }
    }

    /// What is added to the embeddings of these positions, for absolute methods.
    pub fn absolute(&self, geometry: &Geometry, positions: Range<usize>) -> Option<Absolute> {
        match self.form(geometry, &self.zeros(geometry), positions) {
            Form::Absolute(rows) => Some(rows),
            Form::Nothing | Form::Rotary(_) | Form::Table(_) => None,
        }
    }

    fn zeros(&self, geometry: &Geometry) -> Vec<Vec<f64>> {
        self.parameters(geometry).iter().map(|parameter| vec![0.0; parameter.len()]).collect()
    }

    /// The longest sequence the method is defined for, in tokens; `None` when it is defined for all.
    pub fn longest(&self, geometry: &Geometry) -> Option<usize> {
        self.method.positional().longest(geometry)
    }

    /// Learned values beyond those of a model of this many layers without positions.
    pub fn parameter_count(&self, geometry: &Geometry, layers: usize) -> usize {
        let times = |parameter: &Parameter| if parameter.scope == Scope::Layer { layers } else { 1 };
        let count = |parameter: &Parameter| parameter.len().saturating_mul(times(parameter));
        self.parameters(geometry).iter().map(count).fold(0, usize::saturating_add)
    }
}

fn inside(geometry: &Geometry) -> f64 {
    (geometry.head_dim as f64).sqrt().recip()
}

#[cfg(test)]
mod tests;
