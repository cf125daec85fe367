//! Linear layers: `x W + b` over the last axis.

use super::activation::Activation;
use super::epilogue::{Epilogue, epilogue};
use super::product::product;
use crate::array::Array;
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step, Target};
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::ops::gemm::Out;
use kerple_core::ops::linear::{self, LinearGradients};

/// What has a kernel for it.
const KERNELS: &[Target] = &[Target::Host];

/// The tensors of a linear layer.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[in, out]`
    pub weight: Tensor<2>,
    /// `[out]`
    pub bias: Option<Tensor<1>>,
}

/// `x W + b` on `[B, L, in]`, and `base` `[B, L, out]` where there is one: the end of a residual branch.
pub fn linear(x: Tensor<3>, linear: Linear, base: Option<Tensor<3>>, engine: Engine) -> Tensor<3> {
    if !engine.has_kernel(KERNELS, &x) {
        let then = Epilogue { bias: linear.bias, activation: None, base };
        return epilogue(multiplied(x, linear.weight, false, engine), then, engine);
    }
    let mut inputs = Inputs::default();
    let x = inputs.add(x);
    let op = Alone { x, linear: Places::add(linear, &mut inputs), base: inputs.add_some(base) };
    inputs.apply(op)
}

/// `act(x W + b)` by this engine, where no fused operation has the layer among its parts.
pub(super) fn activated(x: Tensor<3>, linear: Linear, activation: Activation, engine: Engine) -> Tensor<3> {
    let then = Epilogue { bias: linear.bias, activation: Some(activation), base: None };
    epilogue(multiplied(x, linear.weight, false, engine), then, engine)
}

/// The definition of [`linear()`] without a base.
pub fn composed(x: Tensor<3>, linear: Linear) -> Tensor<3> {
    shifted(x, linear.weight, false, linear.bias, Engine::Composed)
}

/// `x W + b`, with the matrix `turned` where it is `[out, in]`; the product by this engine.
pub(super) fn shifted(
    x: Tensor<3>,
    weight: Tensor<2>,
    turned: bool,
    bias: Option<Tensor<1>>,
    engine: Engine,
) -> Tensor<3> {
    epilogue(multiplied(x, weight, turned, engine), Epilogue { bias, ..Epilogue::default() }, engine)
}

fn multiplied(x: Tensor<3>, weight: Tensor<2>, turned: bool, engine: Engine) -> Tensor<3> {
    let [batch, len, width] = x.dims();
    let out = weight.dims()[usize::from(!turned)];
    product(x.reshape([batch * len, width]), weight, turned, engine).reshape([batch, len, out])
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

    pub(super) fn of<T: Number>(self, inputs: &[Array]) -> linear::LinearParameters<'_, T> {
        linear::LinearParameters {
            weight: inputs[self.weight].slice(),
            bias: self.bias.map(|bias| inputs[bias].slice()),
        }
    }

    /// Records the gradients in the parameters.
    pub(super) fn put<T: Number>(self, LinearGradients { d_weight, d_bias }: LinearGradients<T>, found: &mut Found) {
        found.put(self.weight, d_weight);
        found.put_some(self.bias, d_bias);
    }
}

/// A layer by itself.
#[derive(Debug)]
struct Alone {
    x: usize,
    linear: Places,
    base: Option<usize>,
}

impl Alone {
    fn forward<T: Number>(&self, inputs: &[Array]) -> Forward {
        let (x, linear) = (&inputs[self.x], self.linear.of::<T>(inputs));
        let &[batch, len, width] = x.shape() else { panic!("x: expected [B, L, in], got {:?}", x.shape()) };
        let mut y = Vec::new();
        match self.base {
            Some(base) => linear.forward_onto(Out::Append(&mut y), x.slice(), width, inputs[base].slice()),
            None => linear.forward(Out::Append(&mut y), x.slice(), width),
        }
        Forward { output: Array::from_vec(y, &[batch, len, linear.outputs(width)]), saved: Saved::nothing() }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let (inputs, d_y) = (step.inputs, step.d_output.slice::<T>());
        let (x, linear, mut found) = (&inputs[self.x], self.linear.of::<T>(inputs), Found::new(inputs));
        let width = x.shape()[2];
        let (mut gradients, mut d_x) = (linear.gradients(width), Vec::new());
        linear.backward(x.slice(), d_y, width, &mut gradients);
        gradients.finish(linear.weight.len());
        linear.backward_input(Out::Append(&mut d_x), d_y, width);
        self.linear.put(gradients, &mut found);
        found.put(self.x, d_x);
        if let Some(base) = self.base {
            found.pass(base, step.d_output.clone());
        }
        found.finish()
    }
}

impl Op for Alone {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        with_element!(inputs[0], T => Alone::forward::<T>(self, inputs))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Alone::backward::<T>(self, step))
    }
}
