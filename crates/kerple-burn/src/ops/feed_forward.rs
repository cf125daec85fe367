//! A feed-forward branch with its norm and its residual: `base + down(act(up(norm(x))))`, gated or not.

use super::activation::Activation;
use super::residual::{ResidualBase, ResidualInput};
use super::{LinearTensors, NormTensors, linear, norm};
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::ops::mlp::{self, Hidden, MlpGradients};

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// The tensors of a feed-forward branch and its choices: M features, F hidden ones.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// Applied to the input.
    pub norm: NormTensors,
    /// `[M, F]`
    pub up: LinearTensors,
    /// `[M, F]`; its activated values multiply those of `up`.
    pub gate: Option<LinearTensors>,
    /// `[F, M]`
    pub down: LinearTensors,
    /// Of the hidden values, or of the gate's.
    pub activation: Activation,
    /// `[B, L, F]`, multiplied with what goes into `down`: dropout. It gets no gradient.
    pub factors: Option<Tensor<3>>,
    /// What the branch adds to.
    pub residual: ResidualBase,
}

/// The branch on `[B, L, M]`.
pub fn feed_forward(x: Tensor<3>, layer: FeedForward, implementation: Impl) -> Tensor<3> {
    if !implementation.has_kernel(KERNELS, &x) {
        return by_parts(x, layer, implementation);
    }
    let FeedForward { norm, up, gate, down, activation, factors, residual } = layer;
    let mut inputs = OpInputs::default();
    let x = inputs.add(x);
    let op = FeedForwardOp {
        x,
        base: ResidualInput::add(residual, &mut inputs),
        norm: norm::NormInputs::add(norm, &mut inputs),
        up: linear::LinearInputs::add(up, implementation, &mut inputs),
        gate: gate.map(|gate| linear::LinearInputs::add(gate, implementation, &mut inputs)),
        down: linear::LinearInputs::add(down, implementation, &mut inputs),
        activation,
        factors: inputs.add_some(factors),
    };
    inputs.apply(op)
}

/// The reference.
pub fn reference(x: Tensor<3>, layer: FeedForward) -> Tensor<3> {
    by_parts(x, layer, Impl::Reference)
}

/// Norm and products, each by this implementation.
fn by_parts(x: Tensor<3>, layer: FeedForward, implementation: Impl) -> Tensor<3> {
    let FeedForward { norm, up, gate, down, activation, factors, residual } = layer;
    let normed = norm::norm(x.clone(), norm, implementation);
    let activated = |layer| linear::activated(normed.clone(), layer, activation, implementation);
    let hidden = match gate {
        Some(gate) => activated(gate) * linear::linear(normed.clone(), up, None, implementation),
        None => activated(up),
    };
    let hidden = match factors {
        Some(factors) => hidden * factors,
        None => hidden,
    };
    linear::linear(hidden, down, Some(residual.of(x, |_| normed)), implementation)
}

#[derive(Debug)]
struct FeedForwardOp {
    x: usize,
    base: ResidualInput,
    norm: norm::NormInputs,
    up: linear::LinearInputs,
    gate: Option<linear::LinearInputs>,
    down: linear::LinearInputs,
    activation: Activation,
    factors: Option<usize>,
}

impl FeedForwardOp {
    fn mlp<'a, T: FloatElement>(&self, inputs: &'a [HostArray]) -> mlp::MlpParameters<'a, T> {
        mlp::MlpParameters {
            norm: self.norm.of(inputs),
            up: self.up.of(inputs),
            gate: self.gate.map(|gate| gate.of(inputs)),
            down: self.down.of(inputs),
            activation: self.activation,
            factors: self.factors.map(|factors| inputs[factors].slice()),
            residual: self.base.of(inputs),
        }
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        let (mlp, x) = (self.mlp::<T>(inputs), inputs[self.x].slice());
        let (y, saved) = if tracked {
            let (y, hidden) = mlp::forward_saving(mlp, x);
            (y, SavedForBackward::new(hidden))
        } else {
            (mlp::forward(mlp, x), SavedForBackward::nothing())
        };
        OpOutput { output: HostArray::from_vec(y, inputs[self.x].shape()), saved }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let (inputs, d_y) = (ctx.inputs, ctx.d_output);
        let (x, hidden) = (inputs[self.x].slice(), ctx.saved::<Hidden<T>>());
        let MlpGradients { d_x, d_gamma, d_beta, up, gate, down } =
            mlp::backward(self.mlp(inputs), x, hidden, d_y.slice());
        let mut found = InputGrads::new(inputs);
        found.put(self.x, d_x);
        self.base.put(ctx, &mut found);
        self.norm.put(d_gamma, d_beta, &mut found);
        self.up.put(up, &mut found);
        if let (Some(place), Some(gate)) = (self.gate, gate) {
            place.put(gate, &mut found);
        }
        self.down.put(down, &mut found);
        found.finish()
    }
}

impl CustomOp for FeedForwardOp {
    fn forward(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => FeedForwardOp::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => FeedForwardOp::backward::<T>(self, ctx))
    }
}
