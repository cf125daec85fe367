//! The activations of a feed-forward layer.

use burn::tensor::{Tensor, activation};
pub use kerple_core::ops::activation::Activation;
use kerple_core::ops::activation::Formula;

/// The reference; see [`Activation`] for the formulas.
pub fn reference(x: Tensor<3>, kind: Activation) -> Tensor<3> {
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
