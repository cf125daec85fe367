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

use rayon::prelude::*;
use std::mem::MaybeUninit;

/// A buffer of zeros, cleared by all threads: one thread alone would take several percent of a training step for it.
pub fn zeros<T: Float>(len: usize) -> Vec<T> {
    /// Values that a task clears.
    const PIECE: usize = 1 << 17;
    let mut values = Vec::with_capacity(len);
    values.spare_capacity_mut()[..len].par_chunks_mut(PIECE).for_each(|piece| piece.fill(MaybeUninit::new(T::ZERO)));
    // SAFETY: the first `len` values have just been written.
    unsafe { values.set_len(len) }
    values
}

/// Rows a task of a row-wise operation takes.
const ROWS_PER_TASK: usize = 64;
