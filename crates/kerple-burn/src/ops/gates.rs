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
use kerple_core::ops::gate_cumsum;
use kerple_core::ops::gemm::Out;

impl GateProjection {
    /// Gates `[B, H, L]` of normed rows `[B, L, M]`; reference implementation.
    pub(crate) fn gates(&self, rows: &Tensor<3>) -> Tensor<3> {
        let GateProjection { weight, bias } = self.clone();
        let [batch, len, _] = rows.dims();
        let logits = match weight {
            Some(weight) => linear::reference(rows.clone(), super::LinearTensors { weight, bias: Some(bias) }),
            None => bias.clone().unsqueeze::<3>().expand([batch, len, bias.dims()[0]]),
        };
        activation::log_sigmoid(logits).swap_dims(1, 2)
    }
}

/// Where the tensors that make gates are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateProjectionInputs {
    weight: Option<usize>,
    bias: usize,
}

impl GateProjectionInputs {
    pub(super) fn add(gates: &GateProjection, inputs: &mut OpInputs) -> GateProjectionInputs {
        GateProjectionInputs { weight: inputs.add_some(gates.weight.clone()), bias: inputs.add(gates.bias.clone()) }
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
        (logits, d_gate_cumsum): (&[T], &[f64]),
        rows: &[T],
        d_rows: &mut [T],
        [batch, len, width]: [usize; 3],
        found: &mut InputGrads,
    ) {
        let inputs = found.inputs();
        let heads = inputs[self.bias].slice::<T>().len();
        let d_logits = gate_cumsum::of_logits_backward(logits, d_gate_cumsum, [batch, len, heads]);
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
