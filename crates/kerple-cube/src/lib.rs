//! Exact attention with tables over distances, and linear attention with decays, on GPUs as CubeCL kernels; no tensor framework.
//!
//! Without the feature `kernels` there is nothing here.

#[cfg(feature = "kernels")]
pub mod attention;
#[cfg(feature = "cuda-source")]
pub mod cuda_source;
#[cfg(feature = "kernels")]
pub mod linear;

#[cfg(feature = "kernels")]
pub use cubecl;
