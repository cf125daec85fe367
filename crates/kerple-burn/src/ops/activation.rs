//! The activations of a feed-forward layer. On the processor they are a part of fused layers.

#[cfg(feature = "cube")]
mod gpu;

#[cfg(feature = "cube")]
use crate::fused::GpuOp;
use crate::fused::{Engine, Inputs, Op, Target};
use burn::tensor::{Tensor, activation};
pub use kerple::ops::activation::Activation;
use kerple::ops::activation::Formula;

/// What has a kernel for an activation by itself.
const KERNELS: &[Target] = &[Target::Gpu];

/// Of every value, see [`Activation`] for the formulas.
pub fn activation(x: Tensor<3>, kind: Activation, engine: Engine) -> Tensor<3> {
    if !engine.has_kernel(KERNELS, &x) {
        return composed(x, kind);
    }
    let mut inputs = Inputs::default();
    inputs.add(x);
    inputs.apply(Alone(kind))
}

/// An activation by itself.
#[derive(Debug)]
struct Alone(#[cfg_attr(not(feature = "cube"), allow(dead_code, reason = "only GPUs are asked"))] Activation);

impl Op for Alone {
    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

/// The definition; see [`Activation`] for the formulas.
pub fn composed(x: Tensor<3>, kind: Activation) -> Tensor<3> {
    match kind.formula() {
        Formula::Normal => activation::gelu(x),
        Formula::Sigmoid([linear, cubic]) => {
            let argument = x.clone() * (x.clone().powi_scalar(2) * cubic + linear);
            x * activation::sigmoid(argument)
        }
        Formula::Ramp => activation::relu(x),
        Formula::Square => activation::relu(x).powi_scalar(2),
    }
}
