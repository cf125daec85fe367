//! Row-wise operations and matrix products of a transformer layer on slices, forward and backward.
//!
//! Everything is row-major and generic over `f32` and `f64`: `f32` is the fast one, `f64` is there for gradient tests.
//! Large calls run on the current rayon pool. Work is cut into pieces whose sizes depend on shapes only, and partial sums
//! are added in index order, so the same inputs give the same bits at any number of threads.
//!
//! Gradients are overwritten unless a function says that it adds.

pub mod adam;
pub mod cross_entropy;
pub mod dispatch;
pub mod embedding;
pub mod gelu;
pub mod gemm;
mod lanes;
pub mod layer_norm;
pub mod math;
pub mod mlp;
pub mod rotary;
#[cfg(test)]
mod testing;

pub use math::Float;

/// Rows a task of a row-wise operation takes.
const ROWS_PER_TASK: usize = 64;
