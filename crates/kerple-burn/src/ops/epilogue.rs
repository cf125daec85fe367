//! The epilogue of a matrix product: `base + act(x + bias)`. On the CPU it is part of fused layers.

#[cfg(feature = "cube")]
mod gpu;

use super::activation::{self, Activation};
use crate::fused::Engine;
use burn::tensor::Tensor;

/// What becomes of a product, each where there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Epilogue {
    /// `[out]`
    pub(super) bias: Option<Tensor<1>>,
    /// Of the product with its bias.
    pub(super) activation: Option<Activation>,
    /// What the result is added to.
    pub(super) base: Option<Tensor<3>>,
}

/// What becomes of `[B, L, out]` products.
pub(super) fn epilogue(x: Tensor<3>, epilogue: Epilogue, engine: Engine) -> Tensor<3> {
    #[cfg(feature = "cube")]
    if engine.has_kernel(&[crate::fused::Target::Gpu], &x) {
        return gpu::epilogue(x, epilogue);
    }
    #[cfg(not(feature = "cube"))]
    let _ = engine;
    composed(x, epilogue)
}

/// The definition.
fn composed(x: Tensor<3>, Epilogue { bias, activation, base }: Epilogue) -> Tensor<3> {
    let y = if let Some(bias) = bias { x + bias.unsqueeze() } else { x };
    let y = if let Some(kind) = activation { activation::composed(y, kind) } else { y };
    if let Some(base) = base { base + y } else { y }
}
