//! Rows of a relative bias that a layer computes from its normed rows, and the factor of both by the position.
//!
//! ```text
//! r = tau x W        q = tau q        tau_i = 1 + alpha ln(max(1, (i + 1) / floor)) at position i of its document
//! ```

use super::qk_scaling::RowsBefore;
use super::{LinearTensors, linear};
use crate::attention_context::{AttentionContext, FromRows, LogLengthFactor, RelativeProjection, RelativeTensors};
use crate::heads::Heads;
use crate::implementation::Impl;
use burn::tensor::{Tensor, TensorData};
use kerple_core::attention::PackedDocuments;

/// The rows of a call: the last `len` of `keys` positions, which restart in documents where there are some.
struct Positions<'a> {
    documents: Option<&'a PackedDocuments>,
    len: usize,
    keys: usize,
}

impl Positions<'_> {
    /// The factor of each row, `[1, len, 1, 1]`, or `[B, len, 1, 1]` of documents, like `x`.
    fn factors<const D: usize>(&self, log_scale: LogLengthFactor, like: &Tensor<D>) -> Tensor<4> {
        let positions = match self.documents {
            Some(documents) => documents.position_ids(),
            None => (self.keys - self.len..self.keys).collect(),
        };
        let values: Vec<f64> = positions.into_iter().map(|position| log_scale.at(position)).collect();
        let batch = values.len() / self.len.max(1);
        Tensor::from_data(TensorData::new(values, [batch, self.len, 1, 1]), (&like.device(), like.dtype()))
    }
}

fn positions(context: &AttentionContext, len: usize, keys: usize) -> Positions<'_> {
    Positions { documents: context.mask.documents.as_deref(), len, keys }
}

impl RelativeProjection {
    /// The relative bias of normed rows `[B, L, M]` at these positions.
    fn tensors(&self, rows: &Tensor<3>, at: &Positions, implementation: Impl) -> RelativeTensors {
        let ([batch, len, _], [_, columns], [rank, _]) = (rows.dims(), self.weight.dims(), self.profiles.dims());
        let projection = LinearTensors { weight: self.weight.clone(), bias: None };
        let rows =
            linear::linear(rows.clone(), projection, None, implementation).reshape([batch, len, columns / rank, rank]);
        let rows = match self.log_scale {
            Some(log_scale) => rows.clone() * at.factors(log_scale, &rows),
            None => rows,
        };
        RelativeTensors { rows: rows.swap_dims(1, 2), profiles: self.profiles.clone() }
    }
}

/// Packed rows `[B, L, (H + 2 G) D]` of the last of `keys` positions, with queries times their factor.
pub(crate) fn scaled(qkv: Tensor<3>, heads: Heads, context: &AttentionContext, keys: usize) -> Tensor<3> {
    let Some(log_scale) = context.relative.as_ref().and_then(|relative| relative.log_scale) else { return qkv };
    let factors = positions(context, qkv.dims()[1], keys).factors(log_scale, &qkv);
    let [q, k, v] = heads.split(qkv);
    heads.join([q * factors, k, v])
}

/// What a layer computes from its normed rows `[B, L, M]`, the last of `keys` positions; `before` are rows before them in a cache.
pub(crate) fn from_rows(
    context: &AttentionContext,
    normed: &Tensor<3>,
    keys: usize,
    (implementation, before): (Impl, Option<&mut RowsBefore>),
) -> FromRows {
    let at = positions(context, normed.dims()[1], keys);
    let householder = context.householder.as_ref();
    let gate_factor = householder.map_or(1.0, |of| of.gate_factor);
    let before = before.map(|before| &mut before.directions);
    FromRows {
        gates: context.gates.as_ref().map(|gates| {
            let gates = gates.gates(normed);
            if gate_factor == 1.0 { gates } else { gates * gate_factor }
        }),
        householder: householder.map(|of| of.tensors(normed, &context.mask, (implementation, before))),
        feature_gates: context.feature_gates.as_ref().map(|gates| gates.gates(normed, implementation)),
        relative: context.relative.as_ref().map(|relative| relative.tensors(normed, &at, implementation)),
        path: context.path.as_ref().map(|path| path.tensors(normed, implementation)),
    }
}
