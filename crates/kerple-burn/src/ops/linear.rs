//! Linear layers: `x W + b` over the last axis. Fused as parts of larger operations, composed by itself.

use crate::array::Array;
use crate::fused::{Found, Inputs, Number};
use burn::tensor::Tensor;
use kerple::ops::linear::{self, LinearGradients};

/// The tensors of a linear layer.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[in, out]`
    pub weight: Tensor<2>,
    /// `[out]`
    pub bias: Option<Tensor<1>>,
}

/// `x W + b` on `[B, L, in]`.
pub fn composed(x: Tensor<3>, Linear { weight, bias }: Linear) -> Tensor<3> {
    let [batch, len, width] = x.dims();
    let [_, out] = weight.dims();
    let y = x.reshape([batch * len, width]).matmul(weight).reshape([batch, len, out]);
    match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    }
}

/// Where the tensors of a linear layer are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    weight: usize,
    bias: Option<usize>,
}

impl Places {
    pub(super) fn add(linear: Linear, inputs: &mut Inputs) -> Places {
        Places { weight: inputs.add(linear.weight), bias: inputs.add_some(linear.bias) }
    }

    pub(super) fn of<T: Number>(self, inputs: &[Array]) -> linear::Linear<'_, T> {
        linear::Linear { weight: inputs[self.weight].slice(), bias: self.bias.map(|bias| inputs[bias].slice()) }
    }

    /// Records the gradients in the parameters.
    pub(super) fn put<T: Number>(self, LinearGradients { d_weight, d_bias }: LinearGradients<T>, found: &mut Found) {
        found.put(self.weight, d_weight);
        found.put_some(self.bias, d_bias);
    }
}
