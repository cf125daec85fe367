//! The residual that the result of a branch is added to.

use crate::array::Array;
use crate::fused::{Found, Inputs, Number, Step};
use burn::tensor::Tensor;
use kerple_core::ops::mlp;

/// What the result of a branch is added to.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "held for the length of a call")]
pub enum Residual {
    /// The input of the branch.
    Input,
    /// That input after the branch's norm.
    Normed,
    /// Another tensor, `[B, L, M]`; attention branches do without it.
    Beside(Tensor<3>),
}

impl Residual {
    /// The rows of a branch with the input `x`.
    pub(crate) fn of(self, x: Tensor<3>, normed: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        match self {
            Residual::Input => x,
            Residual::Normed => normed(x),
            Residual::Beside(base) => base,
        }
    }
}

/// A [`Residual`] among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base {
    Input,
    Normed,
    At(usize),
}

impl Base {
    pub(super) fn add(residual: Residual, inputs: &mut Inputs) -> Base {
        match residual {
            Residual::Input => Base::Input,
            Residual::Normed => Base::Normed,
            Residual::Beside(base) => Base::At(inputs.add(base)),
        }
    }

    pub(super) fn of<T: Number>(self, inputs: &[Array]) -> mlp::MlpResidual<'_, T> {
        match self {
            Base::Input => mlp::MlpResidual::Input,
            Base::Normed => mlp::MlpResidual::Normed,
            Base::At(base) => mlp::MlpResidual::Beside(inputs[base].slice()),
        }
    }

    /// Records the gradient in rows that are an input of their own: that in the output.
    pub(super) fn put(self, step: &Step, found: &mut Found) {
        if let Base::At(base) = self {
            found.pass(base, step.d_output.clone());
        }
    }
}
