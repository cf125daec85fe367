//! The epilogue of a matrix product: `base + act(x + bias)`. On the CPU it is part of fused layers.

#[cfg(feature = "cube")]
mod gpu;

use super::activation::{self, Activation};
use crate::implementation::Impl;
use burn::tensor::Tensor;

/// What becomes of a product, each where there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct EpilogueTensors {
    /// `[out]`
    pub(super) bias: Option<Tensor<1>>,
    /// Of the product with its bias.
    pub(super) activation: Option<Activation>,
    /// What the result is added to.
    pub(super) base: Option<Tensor<3>>,
}

/// What becomes of `[B, L, out]` products.
pub(super) fn epilogue(x: Tensor<3>, epilogue: EpilogueTensors, implementation: Impl) -> Tensor<3> {
    #[cfg(feature = "cube")]
    if implementation.has_kernel(&[crate::implementation::DeviceKind::Gpu], &x) {
        return gpu::epilogue(x, epilogue);
    }
    #[cfg(not(feature = "cube"))]
    let _ = implementation;
    reference(x, epilogue)
}

/// The reference.
fn reference(x: Tensor<3>, EpilogueTensors { bias, activation, base }: EpilogueTensors) -> Tensor<3> {
    let y = if let Some(bias) = bias { x + bias.unsqueeze() } else { x };
    let y = if let Some(kind) = activation { activation::reference(y, kind) } else { y };
    if let Some(base) = base { base + y } else { y }
}
