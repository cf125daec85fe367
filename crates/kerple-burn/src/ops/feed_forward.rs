//! A feed-forward branch with its norm and its residual: `base + down(act(up(norm(x))))`, gated or not.

use super::activation::Activation;
use super::residual::{Base, Residual};
use super::{Linear, Norm, linear, norm};
use crate::array::Array;
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step, Target};
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::ops::mlp::{self, Hidden, MlpGradients};

/// What has a kernel for it.
const KERNELS: &[Target] = &[Target::Host];

/// The tensors of a feed-forward branch and its choices: M features, F hidden ones.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// Applied to the input.
    pub norm: Norm,
    /// `[M, F]`
    pub up: Linear,
    /// `[M, F]`; its activated values multiply those of `up`.
    pub gate: Option<Linear>,
    /// `[F, M]`
    pub down: Linear,
    /// Of the hidden values, or of the gate's.
    pub activation: Activation,
    /// `[B, L, F]`, multiplied with what goes into `down`: dropout. It gets no gradient.
    pub factors: Option<Tensor<3>>,
    /// What the branch adds to.
    pub residual: Residual,
}

/// The branch on `[B, L, M]`.
pub fn feed_forward(x: Tensor<3>, layer: FeedForward, engine: Engine) -> Tensor<3> {
    if !engine.has_kernel(KERNELS, &x) {
        return by_parts(x, layer, engine);
    }
    let FeedForward { norm, up, gate, down, activation, factors, residual } = layer;
    let mut inputs = Inputs::default();
    let x = inputs.add(x);
    let op = Branch {
        x,
        base: Base::add(residual, &mut inputs),
        norm: norm::Places::add(norm, &mut inputs),
        up: linear::Places::add(up, &mut inputs),
        gate: gate.map(|gate| linear::Places::add(gate, &mut inputs)),
        down: linear::Places::add(down, &mut inputs),
        activation,
        factors: inputs.add_some(factors),
    };
    inputs.apply(op)
}

/// The definition.
pub fn composed(x: Tensor<3>, layer: FeedForward) -> Tensor<3> {
    by_parts(x, layer, Engine::Composed)
}

/// Norm and products, each by this engine.
fn by_parts(x: Tensor<3>, layer: FeedForward, engine: Engine) -> Tensor<3> {
    let FeedForward { norm, up, gate, down, activation, factors, residual } = layer;
    let normed = norm::norm(x.clone(), norm, engine);
    let activated = |layer| linear::activated(normed.clone(), layer, activation, engine);
    let hidden = match gate {
        Some(gate) => activated(gate) * linear::linear(normed.clone(), up, None, engine),
        None => activated(up),
    };
    let hidden = match factors {
        Some(factors) => hidden * factors,
        None => hidden,
    };
    linear::linear(hidden, down, Some(residual.of(x, |_| normed)), engine)
}

#[derive(Debug)]
struct Branch {
    x: usize,
    base: Base,
    norm: norm::Places,
    up: linear::Places,
    gate: Option<linear::Places>,
    down: linear::Places,
    activation: Activation,
    factors: Option<usize>,
}

impl Branch {
    fn mlp<'a, T: Number>(&self, inputs: &'a [Array]) -> mlp::MlpParameters<'a, T> {
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

    fn forward<T: Number>(&self, inputs: &[Array], tracked: bool) -> Forward {
        let (mlp, x) = (self.mlp::<T>(inputs), inputs[self.x].slice());
        let (y, saved) = if tracked {
            let (y, hidden) = mlp::forward_saving(mlp, x);
            (y, Saved::new(hidden))
        } else {
            (mlp::forward(mlp, x), Saved::nothing())
        };
        Forward { output: Array::from_vec(y, inputs[self.x].shape()), saved }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let (inputs, d_y) = (step.inputs, step.d_output);
        let (x, hidden) = (inputs[self.x].slice(), step.saved::<Hidden<T>>());
        let MlpGradients { d_x, d_gamma, d_beta, up, gate, down } =
            mlp::backward(self.mlp(inputs), x, hidden, d_y.slice());
        let mut found = Found::new(inputs);
        found.put(self.x, d_x);
        self.base.put(step, &mut found);
        self.norm.put(d_gamma, d_beta, &mut found);
        self.up.put(up, &mut found);
        if let (Some(place), Some(gate)) = (self.gate, gate) {
            place.put(gate, &mut found);
        }
        self.down.put(down, &mut found);
        found.finish()
    }
}

impl Op for Branch {
    fn forward(&self, inputs: &[Array], tracked: bool) -> Forward {
        with_element!(inputs[0], T => Branch::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Branch::backward::<T>(self, step))
    }
}
