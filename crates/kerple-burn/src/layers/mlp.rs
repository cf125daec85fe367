//! A feed-forward branch with its parameters.

use super::{LayerInit, Linear, Norm};
use crate::implementation::Impl;
use crate::ops::ResidualBase;
use crate::ops::activation::Activation;
use crate::ops::dropout::{self, Dropout};
use crate::ops::feed_forward::{self, FeedForward};
use crate::plan::{BlockConfig, BlockSizes};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use rand::Rng;

/// A feed-forward branch: norm, up projection with or without a gate, activation, down projection.
#[derive(Module, Debug)]
pub struct Mlp {
    /// Applied to the input.
    pub norm: Norm,
    /// `[M, F]`
    pub up: Linear,
    /// `[M, F]`, where the branch is gated.
    pub gate: Option<Linear>,
    /// `[F, M]`
    pub down: Linear,
    /// Filters of a short convolution of the branch's output, `[M, W]`, start at 0; where the plan has one.
    pub out_conv: Option<Param<Tensor<2>>>,
    #[module(skip)]
    activation: Activation,
}

impl Mlp {
    /// A fresh branch.
    pub fn new(plan: &BlockConfig, sizes: &BlockSizes, init: &mut LayerInit<impl Rng>) -> Mlp {
        let (width, hidden, bias, std) = (sizes.d_model, sizes.d_hidden, plan.mlp_bias, init.std);
        Mlp {
            norm: Norm::new(plan, width, init),
            up: Linear::new([width, hidden], bias, std, init),
            gate: plan.glu.then(|| Linear::new([width, hidden], bias, std, init)),
            down: Linear::new([hidden, width], bias, init.std_out, init),
            out_conv: plan.short_conv.map(|filter| init.zero_matrix([width, filter])),
            activation: plan.activation,
        }
    }

    /// Its tensors and choices, adding to `residual`; `factors` `[B, L, F]` are multiplied with its hidden values.
    pub fn tensors(&self, factors: Option<Tensor<3>>, residual: ResidualBase) -> FeedForward {
        FeedForward {
            norm: self.norm.tensors(),
            up: self.up.tensors(),
            gate: self.gate.as_ref().map(Linear::tensors),
            down: self.down.tensors(),
            activation: self.activation,
            factors,
            residual,
        }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>, residual: ResidualBase, implementation: Impl) -> Tensor<3> {
        feed_forward::feed_forward(x, self.tensors(None, residual), implementation)
    }

    /// The same with hidden values dropped; for a pass that trains.
    pub fn forward_dropping(
        &self,
        x: Tensor<3>,
        dropout: Dropout,
        residual: ResidualBase,
        implementation: Impl,
    ) -> Tensor<3> {
        let [_, hidden] = self.up.weight.dims();
        let factors = dropout::factors(&x, hidden, dropout, implementation);
        feed_forward::feed_forward(x, self.tensors(Some(factors), residual), implementation)
    }
}
