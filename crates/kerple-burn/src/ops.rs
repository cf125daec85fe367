//! Operations: functions of tensors, each fused for the CPU beside its definition in plain Burn operations.
//!
//! `operation(.., engine)` runs the fused version where there is one for the tensor's device and
//! [`Engine::Fused`](crate::fused::Engine) is asked for, and the definition elsewhere; `composed(..)` is the definition.
//! The definitions hold whole score matrices in memory: the price of being readable and portable. On GPUs the definition of softmax
//! attention stands in where there is no kernel, some queries after others. Tests hold the two equal,
//! in the output and in every gradient. Parameters belong to the modules of [`layers`](crate::layers), which call these.

pub mod activation;
pub mod attention;
pub mod attention_layer;
pub mod dropout;
pub mod embedding;
mod epilogue;
pub mod feed_forward;
pub(crate) mod gates;
pub mod linear;
pub mod linear_attention;
pub mod loss;
mod maps;
pub mod norm;
pub mod prepare;
pub mod product;
mod residual;

pub use linear::Linear;
pub use norm::Norm;
pub use residual::Residual;
