//! Row-wise operations and matrix products of a transformer layer on slices, forward and backward.
//!
//! Everything is row-major and generic over `f32` and `f64`: `f32` is the fast one, `f64` is there for gradient tests.
//! Large calls run on the current rayon pool. Work is cut into pieces whose sizes depend on shapes only, and partial sums
//! are added in index order, so the same inputs give the same bits at any number of threads.
//!
//! Gradients are overwritten unless a function says that it adds.

pub mod activation;
pub mod adam;
pub mod content_rotation;
pub mod cross_entropy;
pub mod embedding;
pub mod feature_gates;
pub mod fourier;
pub mod gate_cumsum;
pub mod gemm;
pub mod heads;
pub mod kept;
pub mod layer_norm;
pub mod linear;
pub mod machine;
pub mod mlp;
pub mod polar;
pub mod rotary;
pub mod short_conv;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::Number;

use crate::tiles::workers::for_each_task;
use std::mem::MaybeUninit;

/// A buffer of zeros, cleared by all threads: one thread alone would take several percent of a training step for it.
pub fn zeros<T: Number>(len: usize) -> Vec<T> {
    /// Values that a task clears.
    const PIECE: usize = 1 << 17;
    let mut values = Vec::new();
    append(&mut values, len, PIECE, 0..len.div_ceil(PIECE), |_, _, _| {});
    values
}

/// Appends `len` values to `to`, a task for each `piece` of them, which clears it just before `set` is to fill it. `set` is
/// given the number of the piece, the piece, and its item of `items`.
fn append<T: Copy + Default + Send, I: Send>(
    to: &mut Vec<T>,
    len: usize,
    piece: usize,
    items: impl ExactSizeIterator<Item = I>,
    set: impl Fn(usize, &mut [T], I) + Sync + Send,
) {
    to.reserve_exact(len);
    let pieces = to.spare_capacity_mut()[..len].chunks_mut(piece);
    assert_eq!(pieces.len(), items.len(), "an item for each piece");
    for_each_task(pieces.zip(items), |i, (piece, item)| {
        piece.fill(MaybeUninit::new(T::default()));
        // SAFETY: all of it has just been written.
        set(i, unsafe { piece.assume_init_mut() }, item);
    });
    // SAFETY: the pieces are all of the `len` values after the last one.
    unsafe { to.set_len(to.len() + len) }
}

/// Rows a task of a row-wise operation takes.
const ROWS_PER_TASK: usize = 64;
