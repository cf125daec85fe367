//! Rows of all heads: scores, map, softmax, values.

use super::{Inputs, Place, ROWS, Tiles};
use crate::Number;
use crate::attention::rows::ScaleRow;
use crate::attention::softmax::Exponentials;
use crate::attention::{Dims, Strides, ViewMut, workers};
use crate::cpu::lanes::{Kernel, Lanes};

/// One call.
pub(super) struct Forward<'a, T> {
    pub(super) inputs: Inputs<'a, T>,
    pub(super) out: ViewMut<'a, T>,
    pub(super) lse: &'a mut [T],
}

/// What one thread computes in.
struct Scratch<T> {
    tiles: Tiles<T>,
    /// Scores, then their exponentials, `[H, rows, columns]`
    scores: Vec<T>,
    /// `[H, rows, width]`
    out: Vec<T>,
    /// One over the sum of exponentials, `[H, rows]`; 0 for a row that sees nothing.
    factors: Vec<T>,
}

impl<T: Number> Kernel<T> for Forward<'_, T> {
    type Output = ();

    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Forward { inputs, out, lse } = self;
        let Dims { batch, heads, queries, .. } = inputs.problem.dims;
        let lse = ViewMut::new(lse, Strides { batch: heads * queries, head: queries, row: 1 });
        let blocks = inputs.blocks();
        let scratch = || {
            let tiles = inputs.tiles::<L>();
            let out = workers::scratch(heads * ROWS * tiles.width);
            Scratch { tiles, scores: inputs.scores::<L>(), out, factors: workers::scratch(heads * ROWS) }
        };
        workers::for_each(batch * blocks, scratch, |scratch, item| {
            // the longest rows of a decoder first
            let place = inputs.place::<L>(item / blocks, blocks - 1 - item % blocks);
            weights(&inputs, lanes, &place, scratch, &lse);
            let Scratch { tiles, scores, out: sums, factors } = scratch;
            inputs.weighted(lanes, &place, scores, inputs.v, T::ONE, &mut tiles.tile, sums);
            for (at, &factor) in factors[..heads * place.rows].iter().enumerate() {
                let (head, query) = (at / place.rows, place.first_query + at % place.rows);
                // SAFETY: `out` is checked, and this item alone writes this row.
                let to = unsafe { out.row(place.batch, head, query, inputs.problem.dims.head_dim) };
                lanes.run(ScaleRow { to, factor, from: &sums[at * tiles.width..] });
            }
        });
    }
}

/// Leaves the exponentials of the mapped scores, and writes `lse` and `factors`.
fn weights<L: Lanes>(
    inputs: &Inputs<L::Number>,
    lanes: L,
    place: &Place,
    scratch: &mut Scratch<L::Number>,
    lse: &ViewMut<L::Number>,
) {
    let Scratch { tiles, scores, factors, .. } = scratch;
    let heads = inputs.problem.dims.heads;
    factors.fill(L::Number::ZERO);
    let scores = &mut scores[..heads * place.rows * place.columns];
    if place.columns > 0 {
        inputs.raw_scores(lanes, place, tiles, scores);
        inputs.map.forward(&inputs.block(place, &tiles.q_of_map), scores);
        inputs.fill_unseen(place, L::Number::NEG_INFINITY, scores);
    }
    for at in 0..heads * place.rows {
        let scores = &mut scores[at * place.columns..][..place.columns];
        let (largest, total) = lanes.run(Exponentials { scores });
        let seen = total != L::Number::ZERO;
        // SAFETY: `lse` is `[B, H, Q]`, and this item alone writes this number.
        let lse = unsafe { lse.row(place.batch, at / place.rows, place.first_query + at % place.rows, 1) };
        lse[0] = if seen { largest + total.ln() } else { L::Number::NEG_INFINITY };
        factors[at] = if seen { L::Number::ONE / total } else { L::Number::ZERO };
    }
}
