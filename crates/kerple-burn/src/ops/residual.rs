//! The residual that the result of a branch is added to.

use crate::custom_op::{BackwardContext, FloatElement, InputGrads, OpInputs};
use crate::host_array::HostArray;
use burn::tensor::Tensor;
use kerple_core::ops::mlp;

/// What the result of a branch is added to.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "held for the length of a call")]
pub enum ResidualBase {
    /// The input of the branch.
    Input,
    /// That input after the branch's norm.
    Normed,
    /// Another tensor, `[B, L, M]`; attention branches do without it.
    Beside(Tensor<3>),
}

impl ResidualBase {
    /// The rows of a branch with the input `x`.
    pub(crate) fn of(self, x: Tensor<3>, normed: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        match self {
            ResidualBase::Input => x,
            ResidualBase::Normed => normed(x),
            ResidualBase::Beside(base) => base,
        }
    }
}

/// A [`ResidualBase`] among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResidualInput {
    Input,
    Normed,
    At(usize),
}

impl ResidualInput {
    pub(super) fn add(residual: ResidualBase, inputs: &mut OpInputs) -> ResidualInput {
        match residual {
            ResidualBase::Input => ResidualInput::Input,
            ResidualBase::Normed => ResidualInput::Normed,
            ResidualBase::Beside(base) => ResidualInput::At(inputs.add(base)),
        }
    }

    pub(super) fn of<T: FloatElement>(self, inputs: &[HostArray]) -> mlp::MlpResidual<'_, T> {
        match self {
            ResidualInput::Input => mlp::MlpResidual::Input,
            ResidualInput::Normed => mlp::MlpResidual::Normed,
            ResidualInput::At(base) => mlp::MlpResidual::Beside(inputs[base].slice()),
        }
    }

    /// Records the gradient in rows that are an input of their own: that in the output.
    pub(super) fn put(self, ctx: &BackwardContext, found: &mut InputGrads) {
        if let ResidualInput::At(base) = self {
            found.pass(base, ctx.d_output.clone());
        }
    }
}
