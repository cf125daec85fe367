//! Exact attention: `softmax(z) v`, where `z` is made of `s = scale * q.k` by distance tables or by a map of all heads.
//!
//! Query `i` of `Q` sits at absolute position `K - Q + i` and sees the keys that its [`Sight`] says, by the distance
//! `d = K - Q + i - j`. A row that sees no key gives zeros. All engines take the same [`Problem`] and strided views, so a
//! packed `[B, L, H, q|k|v, D]` projection needs no transpose.
//!
//! | engine | scores | memory beyond inputs and outputs |
//! |---|---|---|
//! | [`naive`] | all | one row of scores: the definition, loops a student can read |
//! | [`tiled`] | [`Scores::Table`] | O(L), at the speed of the machine |
//!
//! The tiled engine gives the same bits on any number of threads. A value that is not a number reaches every result that depends on it. It may also reach a query that does not see it: a
//! tile multiplies the values it has masked by 0.

pub mod naive;
mod problem;
mod product;
mod rows;
mod softmax;
#[cfg(test)]
mod tests;
pub mod tiled;
mod view;
mod workers;

pub use crate::forms::{Scores, Sight, Table};
pub use problem::{Dims, Gradients, Problem, Saved};
pub use view::{Strides, View, ViewMut};
