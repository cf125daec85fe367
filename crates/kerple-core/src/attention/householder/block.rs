//! A block of queries, those at the positions of one tile, and its scores with one tile of keys.

use super::tile::{PreparedTile, TileLayout, TileTokens};
use super::{HouseholderInputs, TILE};
use crate::Number;
use crate::attention::dropout::{DropoutFactors, DropoutTile};
use crate::attention::{View, softcap};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{CopyRows, Transpose};

/// Queries at the positions of one tile of a segment.
#[derive(Clone, Copy)]
pub(super) struct QueryBlock<'a, L: Lanes> {
    pub(super) lanes: L,
    /// Of the segment alone.
    pub(super) inputs: &'a HouseholderInputs<'a, L::Number>,
    pub(super) layout: TileLayout,
    /// Which tile.
    pub(super) tile: usize,
    /// The first tile with keys that they see.
    pub(super) first_tile: usize,
    pub(super) first_query: usize,
    pub(super) rows: usize,
    /// Tokens of the tile before the first query's.
    before: usize,
}

impl<T: Number> HouseholderInputs<'_, T> {
    /// The tile of the first block of a segment.
    pub(super) fn first_block(&self) -> usize {
        (self.problem.dims.keys - self.problem.dims.queries) / TILE
    }

    /// A block of a segment, and whether its queries see anything.
    pub(super) fn block<L: Lanes<Number = T>>(&self, lanes: L, tile: usize) -> (QueryBlock<'_, L>, bool) {
        let offset = self.problem.dims.keys - self.problem.dims.queries;
        let tokens = self.tokens(tile);
        let first = tokens.start.max(offset);
        let (first_query, rows) = (first - offset, tokens.end - first);
        let seen = self.problem.hull(first_query..first_query + rows);
        let first_tile = (seen.start / TILE).min(tile);
        let (layout, before) = (self.layout::<L>(), first - tokens.start);
        (QueryBlock { lanes, inputs: self, layout, tile, first_tile, first_query, rows, before }, !seen.is_empty())
    }
}

impl<L: Lanes> QueryBlock<'_, L> {
    /// Keys of a tile.
    pub(super) fn keys(&self, tile: usize) -> usize {
        self.inputs.tokens(tile).len()
    }

    /// Copies one head's rows, `[rows, width]`.
    pub(super) fn load(&self, view: View<L::Number>, head: usize, factor: L::Number, to: &mut [L::Number]) {
        let TileLayout { head_dim, width } = self.layout;
        let (from, stride) = (view.rows_from(0, head, self.first_query), view.strides.row);
        self.lanes.run(CopyRows { from, stride, rows: self.rows, head_dim, factor, to, width });
    }

    /// Copies the values of a tile, `[TILE, width]`.
    pub(super) fn load_values(&self, kv_head: usize, tile: usize, to: &mut [L::Number]) {
        let (TileLayout { head_dim, width }, v) = (self.layout, self.inputs.v);
        let (from, stride, rows) = (v.rows_from(0, kv_head, tile * TILE), v.strides.row, self.keys(tile));
        self.lanes.run(CopyRows { from, stride, rows, head_dim, factor: L::Number::ONE, to, width });
    }

    /// The same transposed, `[D, TILE]`.
    pub(super) fn load_values_transposed(&self, kv_head: usize, tile: usize, to: &mut [L::Number]) {
        let (TileLayout { head_dim, .. }, v) = (self.layout, self.inputs.v);
        let (from, stride, rows) = (v.rows_from(0, kv_head, tile * TILE), v.strides.row, self.keys(tile));
        self.lanes.run(Transpose { from, stride, rows, head_dim, factor: L::Number::ONE, to, width: TILE });
    }

    /// `[rows, inner] [inner, columns]`, the first factor in rows of `stride`.
    pub(super) fn product(
        &self,
        (a, stride): (&[L::Number], usize),
        (b, inner, columns): (&[L::Number], usize, usize),
        c: &mut [L::Number],
        store: StoreMode<L::Number>,
    ) {
        self.lanes.run(SmallGemm {
            rows: self.rows,
            inner,
            columns,
            a: StridedMatrix::row_major(a, stride),
            b,
            b_stride: columns,
            c,
            c_stride: columns,
            store,
        });
    }

    /// `a^T b` of `[rows, outer]`, in rows of `stride`, and `[rows, columns]`.
    pub(super) fn sum_over_rows(
        &self,
        (a, outer, stride): (&[L::Number], usize, usize),
        (b, columns): (&[L::Number], usize),
        c: &mut [L::Number],
        store: StoreMode<L::Number>,
    ) {
        self.lanes.run(SmallGemm {
            rows: outer,
            inner: self.rows,
            columns,
            a: StridedMatrix::transposed(a, stride),
            b,
            b_stride: columns,
            c,
            c_stride: columns,
            store,
        });
    }

    /// A, of queries `[rows, width]`.
    pub(super) fn overlaps(&self, tokens: &TileTokens<L::Number>, q: &[L::Number], to: &mut [L::Number]) {
        let TileLayout { head_dim, width } = self.layout;
        self.product((q, width), (&tokens.w_transposed, head_dim, TILE), to, StoreMode::Overwrite);
        self.keep_up_to_own(to);
    }

    /// Sets what is after each query's own token to 0.
    pub(super) fn keep_up_to_own(&self, values: &mut [L::Number]) {
        for (row, values) in values.chunks_exact_mut(TILE).take(self.rows).enumerate() {
            values[self.before + row + 1..].fill(L::Number::ZERO);
        }
    }

    /// Products with the keys of its own tile.
    pub(super) fn own_products(
        &self,
        tokens: &TileTokens<L::Number>,
        tile: &PreparedTile<L::Number>,
        [q, a]: [&[L::Number]; 2],
        to: &mut [L::Number],
    ) {
        let TileLayout { head_dim, width } = self.layout;
        self.product((q, width), (&tokens.k_transposed, head_dim, TILE), to, StoreMode::Overwrite);
        self.product((a, TILE), (tile.z, TILE, TILE), to, StoreMode::Accumulate);
    }

    /// `q~` where the own tile begins.
    pub(super) fn leave(&self, tile: &PreparedTile<L::Number>, [q, a]: [&[L::Number]; 2], to: &mut [L::Number]) {
        let width = self.layout.width;
        self.product((a, TILE), (tile.y, TILE, width), to, StoreMode::AddTo(q, width));
    }

    /// Products of `q~` with the keys of an earlier tile.
    pub(super) fn products(&self, tile: &PreparedTile<L::Number>, q: &[L::Number], to: &mut [L::Number]) {
        let TileLayout { head_dim, width } = self.layout;
        self.product((q, width), (tile.keys, head_dim, TILE), to, StoreMode::Overwrite);
    }

    /// `q~` where an earlier tile begins.
    pub(super) fn pass(&self, tile: &PreparedTile<L::Number>, q: &[L::Number], to: &mut [L::Number]) {
        let TileLayout { head_dim, width } = self.layout;
        self.product((q, width), (tile.transport, head_dim, width), to, StoreMode::Overwrite);
    }

    /// From products with the keys of a tile to what the softmax gets; copies the capped scores where there is a cap.
    pub(super) fn finish(
        &self,
        (head, tile): (usize, usize),
        scores: &mut [L::Number],
        capped: Option<&mut [L::Number]>,
    ) {
        let problem = &self.inputs.problem;
        if let Some(cap) = problem.softcap {
            softcap::apply(scores, cap);
            if let Some(capped) = capped {
                capped.copy_from_slice(scores);
            }
        }
        if let Some(sums) = problem.gate_cumsum(0, head) {
            let own = &sums[self.tile * TILE + self.before..];
            self.lanes.run(AddGates { scores, queries: own, keys: &sums[tile * TILE..][..self.keys(tile)] });
        }
        self.fill_unseen(tile, L::Number::NEG_INFINITY, scores);
    }

    /// Fills what the rows do not see of a tile.
    pub(super) fn fill_unseen(&self, tile: usize, value: L::Number, scores: &mut [L::Number]) {
        let visible = |row: usize| {
            let seen = self.inputs.problem.visible(0, self.first_query + row);
            let [start, end] = [seen.start, seen.end].map(|key| key.saturating_sub(tile * TILE).min(TILE));
            start..end
        };
        if visible(0) == (0..TILE) && visible(self.rows - 1) == (0..TILE) {
            return;
        }
        for (row, scores) in scores.chunks_exact_mut(TILE).enumerate() {
            let seen = visible(row);
            scores[seen.end..].fill(value);
            scores[..seen.start.min(seen.end)].fill(value);
        }
    }

    /// Draws the factors of the weights of a tile.
    pub(super) fn load_dropout(&self, head: usize, tile: usize, factors: &mut DropoutFactors<L::Number>) {
        let drawn = DropoutTile {
            head,
            first_query: self.first_query,
            queries: self.rows,
            first_key: tile * TILE,
            keys: self.keys(tile),
            strides: [TILE, 1],
        };
        factors.load(&self.inputs.problem, drawn);
    }
}

/// Adds the differences of cumulative gates to scores `[rows, TILE]`. They are taken in f64, pair by pair: a few operations next to
/// the products of a pair.
struct AddGates<'a, R> {
    scores: &'a mut [R],
    queries: &'a [f64],
    keys: &'a [f64],
}

impl<R: Number> SimdKernel<R> for AddGates<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        for (scores, query) in self.scores.chunks_exact_mut(TILE).zip(self.queries) {
            scores.iter_mut().zip(self.keys).for_each(|(score, key)| *score += R::from_f64(query - key));
        }
    }
}
