//! Exact attention with tables over distances on GPUs, as CubeCL kernels; no tensor framework.
//!
//! Without the feature `kernels` there is nothing here.

#[cfg(feature = "kernels")]
pub mod attention;

#[cfg(feature = "kernels")]
pub use cubecl;
