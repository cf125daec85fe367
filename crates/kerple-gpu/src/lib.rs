//! GPU kernels in CubeCL, without a tensor framework: exact attention with tables over distances,
//! networks over heads, linear attention with decays, norms, epilogues of matrix products, dropout,
//! AdamW and rounding.
//!
//! Without the feature `kernels` this crate is empty.

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
