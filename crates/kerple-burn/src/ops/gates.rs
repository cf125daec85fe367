//! Gates that a layer computes from its normed rows, and their cumulative sums.
//!
//! ```text
//! a = x W + b          g = ln sigmoid(a)          c = running sums of g, from the first token on
//! ```
//!
//! In fused layers gates are part of the operation that has the rows, and cumulative gates are f64
//! for any type of rows; see [`kerple_core::ops::gate_cumsum`].

use super::linear;
use crate::array::Array;
use crate::forms::{Clock, Positions};
use crate::fused::{Found, Inputs, Number};
use burn::tensor::{Tensor, activation};
use kerple_core::ops::gate_cumsum;
use kerple_core::ops::gemm::Out;
use std::borrow::Cow;

/// Gates `[B, H, L]` of rows `[B, L, M]`; composed.
fn composed(rows: &Tensor<3>, weight: Option<&Tensor<2>>, bias: &Tensor<1>) -> Tensor<3> {
    let [batch, len, _] = rows.dims();
    let logits = match weight {
        Some(weight) => {
            linear::composed(rows.clone(), super::Linear { weight: weight.clone(), bias: Some(bias.clone()) })
        }
        None => bias.clone().unsqueeze::<3>().expand([batch, len, bias.dims()[0]]),
    };
    activation::log_sigmoid(logits).swap_dims(1, 2)
}

/// The positions of a layer with these normed rows, `[B, L, M]`, whose gates are made of them where a method asks for that;
/// composed.
pub(crate) fn of_rows<'p>(positions: &'p Positions, rows: &Tensor<3>) -> Cow<'p, Positions> {
    let Some(Clock::OfRows { weight, bias }) = &positions.clock else { return Cow::Borrowed(positions) };
    let gates = composed(rows, weight.as_ref(), bias);
    Cow::Owned(Positions { clock: Some(Clock::Gates(gates)), ..positions.clone() })
}

/// Where the tensors that make gates are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    weight: Option<usize>,
    bias: usize,
}

impl Places {
    /// Of positions that ask for gates.
    pub(super) fn add(positions: &Positions, inputs: &mut Inputs) -> Option<Places> {
        let Some(Clock::OfRows { weight, bias }) = &positions.clock else { return None };
        Some(Places { weight: inputs.add_some(weight.clone()), bias: inputs.add(bias.clone()) })
    }

    fn linear<T: Number>(self, inputs: &[Array]) -> Option<kerple_core::ops::linear::LinearParameters<'_, T>> {
        let bias = Some(inputs[self.bias].slice());
        self.weight.map(|weight| kerple_core::ops::linear::LinearParameters { weight: inputs[weight].slice(), bias })
    }

    /// Logits of gates, `[B, L, H]`, of rows `[B, L, width]`.
    pub(super) fn logits<T: Number>(self, inputs: &[Array], rows: &[T], width: usize) -> Vec<T> {
        let mut logits = Vec::new();
        match self.linear(inputs) {
            Some(linear) => linear.forward(Out::Append(&mut logits), rows, width),
            None => logits = inputs[self.bias].slice::<T>().repeat(rows.len() / width.max(1)),
        }
        logits
    }

    /// Adds the gradient in the rows, and records those in the parameters, given that in the clocks, `[B, H, L]`.
    pub(super) fn backward<T: Number>(
        self,
        (logits, d_clocks): (&[T], &[f64]),
        rows: &[T],
        d_rows: &mut [T],
        [batch, len, width]: [usize; 3],
        found: &mut Found,
    ) {
        let inputs = found.inputs();
        let heads = inputs[self.bias].slice::<T>().len();
        let d_logits = gate_cumsum::of_logits_backward(logits, d_clocks, [batch, len, heads]);
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
