//! A norm with its parameters.

use super::Init;
use crate::fused::Engine;
use crate::ops;
use crate::ops::norm::Kind;
use crate::plan::{BlockPlan, NormKind};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

/// Normalisation over the model width.
#[derive(Module, Debug)]
pub struct Norm {
    /// Scale, `[M]`, starts at 1.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[M]`, starts at 0.
    pub beta: Option<Param<Tensor<1>>>,
    #[module(skip)]
    kind: Kind,
    epsilon: f64,
}

impl Norm {
    /// A fresh norm of this width.
    pub fn new<R>(plan: &BlockPlan, width: usize, init: &Init<R>) -> Norm {
        let (kind, shifts) = match plan.norm {
            NormKind::Layer => (Kind::Layer, true),
            NormKind::LayerWithoutShift => (Kind::Layer, false),
            NormKind::Rms => (Kind::Rms, false),
        };
        Norm {
            gamma: init.tensor(vec![1.0; width], [width]),
            beta: shifts.then(|| init.tensor(vec![0.0; width], [width])),
            kind,
            epsilon: plan.norm_eps,
        }
    }

    /// Its tensors.
    pub fn tensors(&self) -> ops::Norm {
        let beta = self.beta.as_ref().map(Param::val);
        ops::Norm { kind: self.kind, gamma: self.gamma.val(), beta, epsilon: self.epsilon }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>, engine: Engine) -> Tensor<3> {
        ops::norm::norm(x, self.tensors(), engine)
    }
}
