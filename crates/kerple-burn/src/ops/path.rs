//! Features of a bias over paths that a layer computes from its normed rows.
//!
//! ```text
//! p = x W        r_n = R(n) p_n / sqrt(mean p_n^2 + eps)        where relative, p_i becomes R(i) p_i
//! ```
//!
//! eps is the rounding of the type of numbers, as in the published form.

use super::{LinearTensors, attention, linear};
use crate::attention_context::{PathProjection, PathTensors, RotaryTables};
use crate::implementation::Impl;
use burn::tensor::{DType, Tensor};

impl PathProjection {
    /// The features of normed rows `[B, L, M]` as queries and as keys.
    pub(crate) fn tensors(&self, rows: &Tensor<3>, implementation: Impl) -> PathTensors {
        let ([batch, len, _], [_, columns], heads) = (rows.dims(), self.weight.dims(), self.slopes.len());
        let projection = LinearTensors { weight: self.weight.clone(), bias: None };
        let p = linear::linear(rows.clone(), projection, None, implementation);
        let p = p.reshape([batch, len, heads, columns / heads]).swap_dims(1, 2);
        let epsilon = if p.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let keys = turned(p.clone(), &self.turn, epsilon);
        let queries = if self.relative { attention::rotate(p, Some(&self.turn)) } else { p };
        PathTensors { queries, keys, slopes: self.slopes.clone() }
    }
}

/// Features `[B, H, L, E]` normed and turned.
pub fn turned(p: Tensor<4>, turn: &RotaryTables, epsilon: f64) -> Tensor<4> {
    let root = ((p.clone() * p.clone()).mean_dim(3) + epsilon).sqrt();
    attention::rotate(p / root, Some(turn))
}
