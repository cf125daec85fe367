//! The activations of a feed-forward layer in plain Burn operations.

use burn::tensor::{Tensor, activation};
pub use kerple::ops::activation::Activation;

/// The definition; see [`Activation`] for the formulas. Fused as a part of feed-forward layers.
pub fn composed(x: Tensor<3>, kind: Activation) -> Tensor<3> {
    if let Some([linear, cubic]) = kind.sigmoid_of() {
        let argument = x.clone() * (x.clone().powi_scalar(2) * cubic + linear);
        return x * activation::sigmoid(argument);
    }
    match kind {
        Activation::Relu => activation::relu(x),
        Activation::Relu2 => activation::relu(x).powi_scalar(2),
        _ => activation::gelu(x),
    }
}
