//! Exact attention with tables over distances, networks over heads, linear attention with decays, norms, what becomes of products,
//! dropout, AdamW and rounding on GPUs, as CubeCL kernels; no tensor framework.
//!
//! Without the feature `kernels` there is nothing here.

#[cfg(feature = "kernels")]
pub mod adamw;
#[cfg(feature = "kernels")]
pub mod attention;
#[cfg(feature = "cuda-source")]
pub mod cuda_source;
#[cfg(feature = "kernels")]
pub mod dropout;
#[cfg(feature = "kernels")]
pub mod epilogue;
#[cfg(feature = "kernels")]
pub mod linear;
#[cfg(feature = "kernels")]
pub mod norm;
#[cfg(feature = "kernels")]
pub mod over_heads;
#[cfg(feature = "kernels")]
pub mod precision;
#[cfg(feature = "kernels")]
mod total;

#[cfg(feature = "kernels")]
pub use cubecl;
