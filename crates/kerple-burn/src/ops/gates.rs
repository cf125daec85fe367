//! Gates that a layer computes from its normed rows, and their cumulative sums.
//!
//! ```text
//! a = x W + b          g = ln sigmoid(a)          c = running sums of g, from the first token on
//! ```
//!
//! In fused layers gates are part of the operation that has the rows, and cumulative gates are f64
//! for any type of rows; see [`kerple_core::ops::gate_cumsum`].

use super::linear;
use crate::attention_context::GateProjection;
use crate::custom_op::{FloatElement, InputGrads, OpInputs};
use crate::host_array::HostArray;
use burn::tensor::{Tensor, activation};
use kerple_core::attention::{DocumentSegment, PackedDocuments};
use kerple_core::ops::gate_cumsum::{self, GateMap};
use kerple_core::ops::gemm::Out;
use std::ops::Range;

impl GateProjection {
    /// Gates `[B, H, L]` of normed rows `[B, L, M]`; reference implementation.
    pub(crate) fn gates(&self, rows: &Tensor<3>) -> Tensor<3> {
        let GateProjection { weight, bias, map, .. } = self.clone();
        let [batch, len, _] = rows.dims();
        let logits = match weight {
            Some(weight) => linear::reference(rows.clone(), super::LinearTensors { weight, bias: Some(bias) }),
            None => bias.clone().unsqueeze::<3>().expand([batch, len, bias.dims()[0]]),
        };
        let gates = match map {
            GateMap::LogSigmoid => activation::log_sigmoid(logits),
            GateMap::Sigmoid { min, max } => activation::sigmoid(logits) * (max - min) + min,
            GateMap::Softplus { min } => activation::softplus(logits, 1.0) + min,
            GateMap::Exp => logits.clamp(-GateMap::MOST, GateMap::MOST).exp(),
        };
        gates.swap_dims(1, 2)
    }
}

/// Cumulative gates `[B, H, L]` of logits of gates, `[B, L, H]`: from the first token of a sequence on, or of each document.
pub(super) fn cumsum_of_logits<T: FloatElement>(
    logits: &[T],
    [batch, len, heads]: [usize; 3],
    documents: Option<&PackedDocuments>,
    map: GateMap,
) -> Vec<f64> {
    let Some(documents) = documents else { return gate_cumsum::of_logits(logits, [batch, len, heads], map) };
    let mut all = vec![0.0; logits.len()];
    for document in documents.documents() {
        let DocumentSegment { row, first_key: first, keys, .. } = document;
        let own = gate_cumsum::of_logits(&logits[(row * len + first) * heads..][..keys * heads], [1, keys, heads], map);
        for (head, own) in own.chunks_exact(keys.max(1)).enumerate() {
            all[(row * heads + head) * len + first..][..keys].copy_from_slice(own);
        }
    }
    all
}

/// The gradient of the logits, `[B, L, H]`, given that of the cumulative gates, `[B, H, L]`.
fn cumsum_of_logits_backward<T: FloatElement>(
    logits: &[T],
    d_gate_cumsum: &[f64],
    [batch, len, heads]: [usize; 3],
    documents: Option<&PackedDocuments>,
    map: GateMap,
) -> Vec<T> {
    let Some(documents) = documents else {
        return gate_cumsum::of_logits_backward(logits, d_gate_cumsum, [batch, len, heads], map);
    };
    let mut all = vec![T::ZERO; logits.len()];
    for document in documents.documents() {
        let DocumentSegment { row, first_key: first, keys, .. } = document;
        let own = |head: usize| &d_gate_cumsum[(row * heads + head) * len + first..][..keys];
        let d_cumsum: Vec<f64> = (0..heads).flat_map(own).copied().collect();
        let tokens = (row * len + first) * heads..(row * len + first + keys) * heads;
        let d_logits = gate_cumsum::of_logits_backward(&logits[tokens.clone()], &d_cumsum, [1, keys, heads], map);
        all[tokens].copy_from_slice(&d_logits);
    }
    all
}

/// Cumulative gates of log gates, both `[B, H, L]`, as [`cumsum_of_logits`].
pub(super) fn cumsum_of_gates<T: FloatElement>(
    gates: &[T],
    len: usize,
    documents: Option<&PackedDocuments>,
) -> Vec<f64> {
    let Some(documents) = documents else { return gate_cumsum::of_gates(gates, len) };
    let mut all = vec![0.0; gates.len()];
    for tokens in document_tokens(documents, gates.len() / len.max(1), len) {
        all[tokens.clone()].copy_from_slice(&gate_cumsum::of_gates(&gates[tokens.clone()], tokens.len()));
    }
    all
}

/// The gradient of the gates, given that of their cumulative gates.
pub(super) fn cumsum_of_gates_backward<T: FloatElement>(
    d_gate_cumsum: &[f64],
    len: usize,
    documents: Option<&PackedDocuments>,
) -> Vec<T> {
    let Some(documents) = documents else { return gate_cumsum::of_gates_backward(d_gate_cumsum, len) };
    let mut all = vec![T::ZERO; d_gate_cumsum.len()];
    for tokens in document_tokens(documents, d_gate_cumsum.len() / len.max(1), len) {
        let own = gate_cumsum::of_gates_backward::<T>(&d_gate_cumsum[tokens.clone()], tokens.len());
        all[tokens].copy_from_slice(&own);
    }
    all
}

/// Where each head of each document lies in `[B, H, L]`, of so many rows `B H`.
fn document_tokens(documents: &PackedDocuments, units: usize, len: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let heads = units / documents.rows().max(1);
    documents.documents().flat_map(move |DocumentSegment { row, first_key, keys, .. }| {
        (0..heads).map(move |head| {
            let first = (row * heads + head) * len + first_key;
            first..first + keys
        })
    })
}

/// Where the tensors that make gates are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateProjectionInputs {
    weight: Option<usize>,
    bias: usize,
    pub(super) map: GateMap,
}

impl GateProjectionInputs {
    pub(super) fn add(gates: &GateProjection, inputs: &mut OpInputs) -> GateProjectionInputs {
        let (weight, bias) = (inputs.add_some(gates.weight.clone()), inputs.add(gates.bias.clone()));
        GateProjectionInputs { weight, bias, map: gates.map }
    }

    fn linear<T: FloatElement>(
        self,
        inputs: &[HostArray],
    ) -> Option<kerple_core::ops::linear::LinearParameters<'_, T>> {
        let bias = Some(inputs[self.bias].slice());
        self.weight.map(|weight| kerple_core::ops::linear::LinearParameters { weight: inputs[weight].slice(), bias })
    }

    /// Logits of gates, `[B, L, H]`, of rows `[B, L, width]`.
    pub(super) fn logits<T: FloatElement>(self, inputs: &[HostArray], rows: &[T], width: usize) -> Vec<T> {
        let mut logits = Vec::new();
        match self.linear(inputs) {
            Some(linear) => linear.forward(Out::Append(&mut logits), rows, width),
            None => logits = inputs[self.bias].slice::<T>().repeat(rows.len() / width.max(1)),
        }
        logits
    }

    /// Adds the gradient in the rows, and records those in the parameters, given that in their cumulative sums, `[B, H, L]`.
    pub(super) fn backward<T: FloatElement>(
        self,
        (logits, d_gate_cumsum, documents): (&[T], &[f64], Option<&PackedDocuments>),
        rows: &[T],
        d_rows: &mut [T],
        [batch, len, width]: [usize; 3],
        found: &mut InputGrads,
    ) {
        let inputs = found.inputs();
        let heads = inputs[self.bias].slice::<T>().len();
        let d_logits = cumsum_of_logits_backward(logits, d_gate_cumsum, [batch, len, heads], documents, self.map);
        match (self.linear::<T>(inputs), self.weight) {
            (Some(linear), Some(weight)) => {
                let mut gradients = linear.gradients(width);
                linear.backward(rows, &d_logits, width, &mut gradients);
                gradients.finish(width * heads);
                linear.backward_input(Out::Accumulate(d_rows), &d_logits, width);
                found.put(weight, gradients.d_weight);
                found.put_some(Some(self.bias), gradients.d_bias);
            }
            _ => {
                let mut d_bias = vec![T::ZERO; heads];
                kerple_core::ops::gemm::add_rows(&d_logits, &mut d_bias);
                found.put(self.bias, d_bias);
            }
        }
    }
}
