//! Linear layers: `x W + b` over the last axis.

use super::activation::Activation;
use super::epilogue::{EpilogueTensors, epilogue};
use super::matmul::product;
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::ops::gemm::Out;
use kerple_core::ops::linear::{self, LinearGradients};
use kerple_core::precision::Precision;

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// The tensors of a linear layer.
#[derive(Clone, Debug)]
pub struct LinearTensors {
    /// `[in, out]`; may be held as `bf16` where nothing is trained.
    pub weight: Tensor<2>,
    /// `[out]`
    pub bias: Option<Tensor<1>>,
}

/// `x W + b` on `[B, L, in]`, and `base` `[B, L, out]` where there is one: the end of a residual branch.
pub fn linear(x: Tensor<3>, linear: LinearTensors, base: Option<Tensor<3>>, implementation: Impl) -> Tensor<3> {
    if !implementation.has_kernel(KERNELS, &x) {
        let then = EpilogueTensors { bias: linear.bias, activation: None, base };
        return epilogue(multiplied(x, linear.weight, false, implementation), then, implementation);
    }
    let mut inputs = OpInputs::default();
    let x = inputs.add(x);
    let op =
        LinearOp { x, linear: LinearInputs::add(linear, implementation, &mut inputs), base: inputs.add_some(base) };
    inputs.apply(op)
}

/// `act(x W + b)`, where no fused operation includes the layer.
pub(super) fn activated(
    x: Tensor<3>,
    linear: LinearTensors,
    activation: Activation,
    implementation: Impl,
) -> Tensor<3> {
    let then = EpilogueTensors { bias: linear.bias, activation: Some(activation), base: None };
    epilogue(multiplied(x, linear.weight, false, implementation), then, implementation)
}

/// The reference of [`linear()`] without a base.
pub fn reference(x: Tensor<3>, linear: LinearTensors) -> Tensor<3> {
    shifted(x, linear.weight, false, linear.bias, Impl::Reference)
}

/// `x W + b`, with the matrix `turned` where it is `[out, in]`; the product by this implementation.
pub(super) fn shifted(
    x: Tensor<3>,
    weight: Tensor<2>,
    turned: bool,
    bias: Option<Tensor<1>>,
    implementation: Impl,
) -> Tensor<3> {
    epilogue(
        multiplied(x, weight, turned, implementation),
        EpilogueTensors { bias, ..EpilogueTensors::default() },
        implementation,
    )
}

fn multiplied(x: Tensor<3>, weight: Tensor<2>, turned: bool, implementation: Impl) -> Tensor<3> {
    let [batch, len, width] = x.dims();
    let out = weight.dims()[usize::from(!turned)];
    product(x.reshape([batch * len, width]), weight, turned, implementation).reshape([batch, len, out])
}

/// Where the tensors of a linear layer are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearInputs {
    weight: usize,
    bias: Option<usize>,
    precision: Precision,
}

impl LinearInputs {
    pub(super) fn add(linear: LinearTensors, implementation: Impl, inputs: &mut OpInputs) -> LinearInputs {
        let LinearTensors { weight, bias } = linear;
        let (weight, bias) = (inputs.add(weight), inputs.add_some(bias));
        LinearInputs { weight, bias, precision: implementation.precision() }
    }

    pub(super) fn of<T: FloatElement>(self, inputs: &[HostArray]) -> linear::LinearParameters<'_, T> {
        linear::LinearParameters {
            weight: inputs[self.weight].kept(),
            bias: self.bias.map(|bias| inputs[bias].slice()),
            precision: self.precision,
        }
    }

    /// What its products multiply.
    pub(super) fn precision(self) -> Precision {
        self.precision
    }

    /// Records the gradients in the parameters.
    pub(super) fn put<T: FloatElement>(
        self,
        LinearGradients { d_weight, d_bias }: LinearGradients<T>,
        found: &mut InputGrads,
    ) {
        found.put(self.weight, d_weight);
        found.put_some(self.bias, d_bias);
    }
}

/// A layer by itself.
#[derive(Debug)]
struct LinearOp {
    x: usize,
    linear: LinearInputs,
    base: Option<usize>,
}

impl LinearOp {
    fn forward<T: FloatElement>(&self, inputs: &[HostArray]) -> OpOutput {
        let (x, linear) = (&inputs[self.x], self.linear.of::<T>(inputs));
        let &[batch, len, width] = x.shape() else { panic!("x: expected [B, L, in], got {:?}", x.shape()) };
        let mut y = Vec::new();
        match self.base {
            Some(base) => linear.forward_onto(Out::Append(&mut y), x.slice(), width, inputs[base].slice()),
            None => linear.forward(Out::Append(&mut y), x.slice(), width),
        }
        OpOutput {
            output: HostArray::from_vec(y, &[batch, len, linear.outputs(width)]),
            saved: SavedForBackward::nothing(),
        }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let (inputs, d_y) = (ctx.inputs, ctx.d_output.slice::<T>());
        let (x, linear, mut found) = (&inputs[self.x], self.linear.of::<T>(inputs), InputGrads::new(inputs));
        let width = x.shape()[2];
        let (mut gradients, mut d_x) = (linear.gradients(width), Vec::new());
        linear.backward(x.slice(), d_y, width, &mut gradients);
        gradients.finish(linear.weight.len());
        linear.backward_input(Out::Append(&mut d_x), d_y, width);
        self.linear.put(gradients, &mut found);
        found.put(self.x, d_x);
        if let Some(base) = self.base {
            found.pass(base, ctx.d_output.clone());
        }
        found.finish()
    }
}

impl CustomOp for LinearOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => LinearOp::forward::<T>(self, inputs))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => LinearOp::backward::<T>(self, ctx))
    }
}
