//! Exact attention with an online softmax: a few tiles of scores at a time, never `[L, L]`.
//!
//! The forward keeps a running maximum and sum per query and rescales its sums when the maximum
//! grows (Milakov and Gimelshein 2018, arXiv:1805.02867). The backward recomputes the scores from
//! `lse` instead of storing them (Dao et al. 2022, arXiv:2205.14135). Tiles that are fully masked
//! are skipped, and so are those whose weights are 0. Memory beyond inputs and outputs is a few tables of `[H, K]` and `[B, H, Q]` and
//! some tiles per thread.
//!
//! * `forward`, `backward`: the products of a tile, and the softmax between them;
//! * `decode`: split-KV decoding of one query;
//! * `normalizer`: stick-breaking and softpick in place of the softmax;
//! * `table`, `diagonal`: distance tables as tiles read them, and the sums of their gradient;
//! * `relative`: a relative bias per row, as the table of a tile;
//! * `position_kernel`: a kernel of learned positions, likewise;
//! * `gate_cumsum`: cumulative gates; `feature_decay`: features whose products decay with distance; `decay_cumsum`: features
//!   whose products decay by what tokens say;
//! * `pruning`: tiles whose weights are 0;
//! * `interval_mask`: intervals of keys per query, as the table of a tile;
//! * `tiles::product`: the small matrix product of every step; `tiles::workers`: which thread does
//!   what, and why results do not depend on it.

mod backward;
mod blocks;
mod decay_cumsum;
mod decode;
mod diagonal;
mod feature_decay;
mod forward;
mod gate_cumsum;
mod gradient;
mod interval_mask;
mod normalizer;
mod position_kernel;
mod pruning;
mod relative;
mod table;
mod tile;

use super::{AttentionGradients, AttentionProblem, AttentionSaved, View, ViewMut};
use crate::Number;
use crate::cpu::InstructionSet;

pub(super) fn run_forward<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    rows: [View<T>; 3],
    out: ViewMut<T>,
    lse: &mut [T],
) {
    problem.check_forward(rows, &out, lse);
    T::dispatch(set, forward::TiledForward::new(problem, rows, out, lse));
}

pub(super) fn run_backward<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    saved: AttentionSaved<T>,
    gradients: AttentionGradients<T>,
) {
    problem.check_backward(&saved, &gradients);
    T::dispatch(set, backward::TiledBackward { problem, saved, gradients });
}

#[cfg(test)]
mod tests;
