//! Rows of a relative bias that a layer computes from its normed rows, and the factor of both by the position.
//!
//! ```text
//! r = tau x W        q = tau q        tau_i = 1 + alpha ln(max(1, (i + 1) / floor)) at position i
//! ```

use super::{LinearTensors, linear};
use crate::attention_context::{AttentionContext, FromRows, LogLengthFactor, RelativeProjection, RelativeTensors};
use crate::heads::Heads;
use crate::implementation::Impl;
use burn::tensor::{Tensor, TensorData};

/// Factors of the last `len` of `keys` positions, `[1, len, 1, 1]`, like `x`.
fn factors<const D: usize>(log_scale: LogLengthFactor, len: usize, keys: usize, like: &Tensor<D>) -> Tensor<4> {
    let values: Vec<f64> = (keys - len..keys).map(|position| log_scale.at(position)).collect();
    Tensor::from_data(TensorData::new(values, [1, len, 1, 1]), (&like.device(), like.dtype()))
}

impl RelativeProjection {
    /// The relative bias of normed rows `[B, L, M]`, the last of `keys` positions.
    fn tensors(&self, rows: &Tensor<3>, keys: usize, engine: Impl) -> RelativeTensors {
        let ([batch, len, _], [_, columns], [rank, _]) = (rows.dims(), self.weight.dims(), self.profiles.dims());
        let projection = LinearTensors { weight: self.weight.clone(), bias: None };
        let rows = linear::linear(rows.clone(), projection, None, engine).reshape([batch, len, columns / rank, rank]);
        let rows = match self.log_scale {
            Some(log_scale) => rows.clone() * factors(log_scale, len, keys, &rows),
            None => rows,
        };
        RelativeTensors { rows: rows.swap_dims(1, 2), profiles: self.profiles.clone() }
    }
}

/// Packed rows `[B, L, (H + 2 G) D]` of the last of `keys` positions, with queries times their factor.
pub(crate) fn scaled(qkv: Tensor<3>, heads: Heads, context: &AttentionContext, keys: usize) -> Tensor<3> {
    let Some(log_scale) = context.relative.as_ref().and_then(|relative| relative.log_scale) else { return qkv };
    let len = qkv.dims()[1];
    let factors = factors(log_scale, len, keys, &qkv);
    let [q, k, v] = heads.split(qkv);
    heads.join([q * factors, k, v])
}

/// What a layer computes from its normed rows `[B, L, M]`, the last of `keys` positions.
pub(crate) fn from_rows(context: &AttentionContext, normed: &Tensor<3>, keys: usize, engine: Impl) -> FromRows {
    FromRows {
        gates: context.gates.as_ref().map(|gates| gates.gates(normed)),
        relative: context.relative.as_ref().map(|relative| relative.tensors(normed, keys, engine)),
    }
}
