//! Operations: functions of tensors, each with a fused version for the CPU and a reference in plain
//! Burn operations.
//!
//! `operation(.., implementation)` runs the fused version where the tensor's device has one and
//! [`Impl::Kernel`](crate::implementation::Impl) is requested, and the reference elsewhere;
//! `reference(..)` is the reference. References keep whole score matrices in memory, the price of
//! being readable and portable. On GPUs the reference of softmax attention runs where no kernel
//! exists, chunked over queries. Tests check that both are equal, in the output and in every
//! gradient. Parameters belong to the modules of [`layers`](crate::layers), which call these
//! operations.

pub mod activation;
pub mod attention;
pub mod attention_layer;
pub mod content_rotation;
pub mod dropout;
pub mod embedding;
mod epilogue;
pub mod feed_forward;
pub(crate) mod gates;
pub(crate) mod grouped_attention;
pub mod householder;
pub mod linear;
pub mod linear_attention;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod path;
pub mod qk_scaling;
pub mod query_key_map;
pub(crate) mod relative;
mod residual;
mod score_mods;
pub mod short_conv;

pub use linear::LinearTensors;
pub use norm::NormTensors;
pub use residual::ResidualBase;
