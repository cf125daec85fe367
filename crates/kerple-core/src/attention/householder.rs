//! Exact attention with [Householder products](crate::forms::HouseholderPath), tile by tile of keys from the query to the left.
//!
//! ```text
//! of every tile b of keys, once      k~_j = H_e .. H_(j+1) k_j, e its last token         M_b = H_e .. H_s, s its first
//! of a block of queries              its own tile       s_ij = scale q_i^T H_i .. H_(j+1) k_j         q~_i = (H_i .. H_s)^T q_i
//! from there to the left             s = scale q~ k~_b^T          q~ becomes q~ M_b
//! ```
//!
//! Products inside of a tile are matrix products: with W the directions of its tokens, b their strengths, B the part of `W W^T` and C
//! that of `W K^T` below the diagonal, and A that of `Q W^T` on and below it,
//!
//! ```text
//! (I + B diag(b)) U = W           (I + B diag(b)) V = C           Y = diag(b) U           Z = diag(b) V
//! H_i .. H_s = I - sum over n <= i of w_n y_n^T          q~ = Q - A Y          s = Q K^T - A Z          k~ = K - Z^T W
//! ```
//!
//! Backwards a block keeps `q~` at the border of each tile and the gradient in its scores, goes through its tiles once more from the
//! left, and adds to the gradients in `k~` and `M` of each tile in the order of blocks. Then every tile goes back through its own
//! products. So the bits do not depend on the number of threads. No product grows where strengths are within 0 and 2.
//!
//! [`rewrite_keys`] is for KV caches, whose keys every new token changes.
//!
//! Memory is linear in the length: per key head and token 4 rows of about D numbers in the forward and 4 more in the backward, and
//! the scores of a block of queries for each thread.

mod backward;
mod block;
mod forward;
mod rewrite;
#[cfg(test)]
mod tests;
mod tile;
mod tile_backward;

use super::{
    AttentionGradients, AttentionProblem, AttentionSaved, DocumentSegment, HouseholderPath, ScoreTransform, View,
    ViewMut,
};
use crate::Number;
use crate::cpu::InstructionSet;
use crate::cpu::lanes::Lanes;
use crate::tiles::workers;
use std::ops::Range;
use tile::{TileLayout, TileTokens};

pub use rewrite::rewrite_keys;
pub(super) use rewrite::run_rewrite;

/// Tokens of a tile of keys and of a block of queries.
pub const TILE: usize = 64;

pub(super) fn run_forward<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    rows: [View<T>; 3],
    out: ViewMut<T>,
    lse: &mut [T],
) {
    problem.check_forward(rows, &out, lse);
    let inputs = HouseholderInputs::new(problem, rows);
    T::dispatch(set, forward::HouseholderForward { inputs, out, lse });
}

pub(super) fn run_backward<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    saved: AttentionSaved<T>,
    gradients: AttentionGradients<T>,
) {
    problem.check_backward(&saved, &gradients);
    let inputs = HouseholderInputs::new(problem, [saved.q, saved.k, saved.v]);
    T::dispatch(set, backward::HouseholderBackward { inputs, saved, gradients });
}

/// Tokens in a row whose products change what is before them.
#[derive(Clone, Copy, Debug)]
pub struct HouseholderProducts<'a, T> {
    /// Sequences, B.
    pub batch: usize,
    /// Key heads, G.
    pub kv_heads: usize,
    /// L
    pub tokens: usize,
    /// D
    pub head_dim: usize,
    /// w, `[B, G, L, D]`
    pub directions: &'a [T],
    /// beta, `[B, G, L]`
    pub strengths: &'a [T],
}

/// What both directions read.
#[derive(Clone, Copy)]
struct HouseholderInputs<'a, T> {
    problem: AttentionProblem<'a, T>,
    path: HouseholderPath<'a, T>,
    q: View<'a, T>,
    k: View<'a, T>,
    v: View<'a, T>,
}

impl<'a, T: Number> HouseholderInputs<'a, T> {
    fn new(problem: &AttentionProblem<'a, T>, [q, k, v]: [View<'a, T>; 3]) -> HouseholderInputs<'a, T> {
        let ScoreTransform::Householder(path) = problem.scores else {
            panic!("the scores are not by Householder products")
        };
        HouseholderInputs { problem: *problem, path, q, k, v }
    }

    /// The inputs of one segment.
    fn alone(&self, number: usize) -> HouseholderInputs<'a, T> {
        let DocumentSegment { row, first_query, first_key, .. } = self.problem.segment(number);
        let [k, v] = [self.k, self.v].map(|view| view.starting_at(row, first_key));
        HouseholderInputs::new(&self.problem.alone(number), [self.q.starting_at(row, first_query), k, v])
    }

    /// Tiles of keys of one segment.
    fn tiles(&self) -> usize {
        self.problem.dims.keys.div_ceil(TILE)
    }

    /// The tokens of a tile of one segment.
    fn tokens(&self, tile: usize) -> Range<usize> {
        tile * TILE..self.problem.dims.keys.min((tile + 1) * TILE)
    }

    fn layout<L: Lanes<Number = T>>(&self) -> TileLayout {
        TileLayout::new::<L>(self.problem.dims.head_dim)
    }
}

/// What the tiles of all key heads of all segments are for queries after them.
struct PreparedTiles<T> {
    layout: TileLayout,
    /// Where the tiles of a segment start: those of its key heads, one head after another.
    starts: Vec<usize>,
    values: Vec<T>,
}

impl<T: Number> PreparedTiles<T> {
    fn new<L: Lanes<Number = T>>(lanes: L, inputs: &HouseholderInputs<T>) -> PreparedTiles<T> {
        let (layout, kv_heads) = (inputs.layout::<L>(), inputs.problem.dims.kv_heads);
        let starts = inputs.problem.offsets(|alone| kv_heads * alone.dims.keys.div_ceil(TILE));
        let count = starts[starts.len() - 1];
        let mut values = workers::scratch(count * layout.prepared());
        let places = tile_places(&starts, inputs);
        workers::for_each_task(values.chunks_mut(layout.prepared().max(1)), |number, values| {
            let [segment, kv_head, tile] = places[number];
            let mut tokens = TileTokens::new(layout);
            tokens.load(lanes, &inputs.alone(segment), kv_head, tile);
            tokens.prepare(lanes, values);
        });
        PreparedTiles { layout, starts, values }
    }

    /// The number of a tile among those of all.
    fn number(&self, [segment, kv_head, tile]: [usize; 3], tiles: usize) -> usize {
        self.starts[segment] + kv_head * tiles + tile
    }

    fn of(&self, number: usize) -> tile::PreparedTile<'_, T> {
        self.layout.split(&self.values[number * self.layout.prepared()..][..self.layout.prepared()])
    }
}

/// Segment, key head and number of each tile.
fn tile_places<T: Number>(starts: &[usize], inputs: &HouseholderInputs<T>) -> Vec<[usize; 3]> {
    let of_segment = |segment: usize| {
        let tiles = (starts[segment + 1] - starts[segment]) / inputs.problem.dims.kv_heads;
        (0..starts[segment + 1] - starts[segment]).map(move |at| [segment, at / tiles, at % tiles])
    };
    (0..inputs.problem.segments()).flat_map(of_segment).collect()
}
