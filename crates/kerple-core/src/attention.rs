//! Exact attention: `softmax(z) v`, where `z` is computed from `s = scale * q.k` by distance tables
//! or by a score modification of all heads. With distance tables, another [`Normalizer`] may take the
//! place of the softmax.
//!
//! Query `i` of `Q` is at absolute position `K - Q + i` and attends to the keys that its attention
//! mask ([`Mask`]) allows, by the distance `d = K - Q + i - j`. A row without visible keys gives
//! zeros. All engines take the same [`AttentionProblem`] and strided views, so a packed
//! `[B, L, H, q|k|v, D]` projection needs no transpose. They support a softcap, an attention
//! sink and dropout of attention weights.
//!
//! To learn how it works, read [`simple`] first: one head, one distance table, sixty lines.
//!
//! | engine | scores | memory beyond inputs and outputs |
//! |---|---|---|
//! | [`naive`] | all | one row of scores: the complete reference in plain loops |
//! | [`tiled`] | [`ScoreTransform::Table`] | O(L), at the speed of the machine |
//! | [`row_block`] | [`ScoreTransform::Mod`] | O(K) for each of a block of rows and each head |
//! | [`row_block`] | [`ScoreTransform::Path`] | O(L) |
//! | [`row_block`] | [`Selection`] with tables by distance | O(L) |
//! | [`householder`] | [`ScoreTransform::Householder`] | O(L) |
//!
//! [`grouped`] joins two calls of [`tiled`], of near and of far keys (Self-Extend).
//!
//! [`forward`] and [`backward`] choose between the last three, whose results are bitwise equal at any
//! number of threads. A NaN reaches every result that depends on it. It may also reach a query that
//! does not attend to it: a tile multiplies the values it has masked by 0.
//!
//! The last three and [`linear`] are compiled in this crate, for `f32` and `f64`: their speed does not depend on how a caller
//! is compiled. [`naive`] is compiled with its caller.
//!
//! [`linear`] is a different attention: features instead of a softmax, in time linear in the
//! length.

mod compiled;
mod documents;
mod dropout;
pub mod grouped;
pub mod householder;
mod intervals;
pub mod linear;
pub mod measure;
pub mod naive;
mod problem;
pub mod row_block;
mod segments;
pub mod simple;
mod sinks;
mod softcap;
#[cfg(test)]
mod tests;
pub mod tiled;

pub use crate::forms::{
    HouseholderPath, LearnedPositions, Mask, Normalizer, PathBias, PositionKernel, RelativeBias, ScoreTable,
    ScoreTransform, Selection, Selective, StickBreaking,
};
pub use crate::tiles::{Strides, View, ViewMut};
pub(crate) use compiled::CompiledEngines;
pub use documents::{DocumentSegment, PackedDocuments, PackingError};
pub use dropout::AttentionDropout;
pub use intervals::{IntervalError, KeyInterval};
pub use problem::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, HouseholderGradients, MAX_FEATURE_DECAY,
    PathGradients, PositionGradients, RelativeGradients,
};
pub use row_block::masked_sums;

use crate::Number;
use crate::cpu::InstructionSet;

/// Writes `out` and, for the backward, `lse` (`[B, H, Q]`, minus infinity for a fully masked row), with
/// the engine for the problem's scores.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`.
pub fn forward<T: Number>(
    problem: &AttentionProblem<T>,
    q: View<T>,
    k: View<T>,
    v: View<T>,
    out: ViewMut<T>,
    lse: &mut [T],
) {
    forward_with(InstructionSet::current(), problem, [q, k, v], out, lse);
}

/// [`forward()`] with a chosen instruction set; one that the CPU lacks falls back to [`InstructionSet::Portable`].
pub fn forward_with<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    rows: [View<T>; 3],
    out: ViewMut<T>,
    lse: &mut [T],
) {
    T::attention_forward(set, problem, rows, out, lse);
}

/// Writes every gradient of [`forward()`], given its results and the gradient of `out`.
///
/// # Panics
/// If a slice does not fit the sizes of `problem`, or two gradients share an element.
pub fn backward<T: Number>(problem: &AttentionProblem<T>, saved: AttentionSaved<T>, gradients: AttentionGradients<T>) {
    backward_with(InstructionSet::current(), problem, saved, gradients);
}

/// [`backward()`] with a chosen instruction set, as in [`forward_with`].
pub fn backward_with<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    saved: AttentionSaved<T>,
    gradients: AttentionGradients<T>,
) {
    T::attention_backward(set, problem, saved, gradients);
}
