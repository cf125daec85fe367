//! Exact attention for [score modifications](crate::forms::ScoreMod) and for [biases of paths](crate::forms::PathBias): a block
//! of query rows with all heads at a time, and all keys or, where a modification does not mix keys, a tile of them.
//!
//! ```text
//! forward    s = scale q k^T  [H, rows, columns]  ->  score mod  ->  mask  ->  softmax  ->  times v
//! backward   the same up to the weights p         d_v += p^T d_out         dz = p (d_out v^T - d_out.out)
//!            backward of the score mod: dz -> ds, gradients in q and in its own parameters
//!            d_q = scale ds k         d_k += scale ds^T q
//! ```
//!
//! Blocks add to the `d_k` and `d_v` of each tile, and to the gradient of the modification's
//! parameters, in the order of their rows. So the bits do not depend on the number of threads.
//!
//! # Why an engine of its own, and only for score modifications
//!
//! [`tiled`](super::tiled) computes one head at a time. DAPE's network mixes the scores of all heads
//! of a pair, and its second version those of neighbouring keys too, so all heads of a block of rows
//! must be in memory together: `[H, rows, columns]` per thread, once in the forward and three times
//! in the backward. That is why distance tables do not use this engine: they need one tile of one
//! head. Storing the scores of a whole sequence, as the original implementations do, is quadratic in
//! the length. What a modification depends on ([`ScoreDependency`]) decides the columns. If it mixes
//! keys they are all keys of a row; otherwise they are a tile of keys that fits into the cache, and
//! the softmax continues from tile to tile. Blocks are tall (`ROWS`), because the keys and values
//! of all heads come from beyond the second cache once per block.
//!
//! In the backward, a modification that can go through its softmax itself does so ([`SoftmaxMod`](crate::forms::SoftmaxMod)): DAPE's
//! network then computes its hidden units once, and what it reads of a pair is in the first cache.
//!
//! Selective attention ([`Selection`](crate::forms::Selection)) takes scores of the first head off those of all, so here tables by
//! distance are a score modification too. Its blocks follow one another in the order of queries, see `selection`.
//!
//! A bias of paths mixes no heads, so here the query heads of each key head are an item of work, but it sums from the query leftwards, in both directions of the pass. Here a block goes
//! through its tiles in that order and passes on one number per row; `tiled` goes backwards with keys outside, so that no row's tiles follow
//! one another.

mod backward;
mod forward;
mod path;
mod selection;
mod table;
#[cfg(test)]
mod tests;

use super::dropout::{DropoutFactors, DropoutTile};
use super::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, DocumentSegment, ScoreTransform, View,
    ViewMut, softcap,
};
use crate::Number;
use crate::cpu::InstructionSet;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::{ScoreBlock, ScoreDependency, ScoreMod, ValueMod};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
use crate::tiles::rows::{CopyRows, Dots, Transpose};
use crate::tiles::workers;
use path::PathScratch;
use std::ops::Range;
use table::TableMod;

/// Queries of one block where a tile of keys is handled at a time, and where all of them are.
const ROWS: [usize; 2] = [128, 48];
/// Keys of one tile. Keys and values are turned and copied, and their gradients added to, once for each block, so a tile
/// rather has many rows than many keys.
const KEYS: usize = 64;

pub(super) fn run_forward<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    rows: [View<T>; 3],
    out: ViewMut<T>,
    lse: &mut [T],
) {
    problem.check_forward(rows, &out, lse);
    let table = TableMod::of(problem, [false; 2]);
    let inputs = RowBlockInputs::new(problem, rows, table.as_ref());
    T::dispatch(set, forward::RowBlockForward { inputs, out, lse });
}

pub(super) fn run_backward<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    saved: AttentionSaved<T>,
    gradients: AttentionGradients<T>,
) {
    problem.check_backward(&saved, &gradients);
    let table = TableMod::of(problem, [&gradients.d_bias, &gradients.d_weight].map(Option::is_some));
    let inputs = RowBlockInputs::new(problem, [saved.q, saved.k, saved.v], table.as_ref());
    T::dispatch(set, backward::RowBlockBackward { inputs, saved, gradients });
}

/// F of selective attention after the last query of a problem, for every key, `[B, K]`: what is taken off the scores of a query after
/// it, see [`Selection::before`](crate::forms::Selection).
///
/// # Panics
/// If the problem has no selection, or a slice does not fit its sizes.
pub fn masked_sums<T: Number>(problem: &AttentionProblem<T>, q: View<T>, k: View<T>) -> Vec<f64> {
    T::masked_sums(InstructionSet::current(), problem, [q, k])
}

pub(super) fn run_masked_sums<T: Number>(
    set: InstructionSet,
    problem: &AttentionProblem<T>,
    [q, k]: [View<T>; 2],
) -> Vec<f64> {
    assert!(problem.selection.is_some(), "only selective attention masks keys by their scores");
    problem.check_scores(q, k);
    let table = TableMod::of(problem, [false; 2]);
    T::dispatch(set, MaskedSums { inputs: RowBlockInputs::new(problem, [q, k, k], table.as_ref()) })
}

struct MaskedSums<'a, T> {
    inputs: RowBlockInputs<'a, T>,
}

impl<T: Number> SimdKernel<T> for MaskedSums<'_, T> {
    type Output = Vec<f64>;

    fn run<L: Lanes<Number = T>>(self, lanes: L) -> Vec<f64> {
        selection::masked_sums(lanes, &self.inputs)
    }
}

/// What both directions read.
#[derive(Clone, Copy)]
struct RowBlockInputs<'a, T> {
    problem: AttentionProblem<'a, T>,
    /// Tables of selective attention, which are the score modification of `problem`.
    table: Option<TableMod<'a, T>>,
    q: View<'a, T>,
    k: View<'a, T>,
    v: View<'a, T>,
}

/// Where one block lies, or the part of it over a tile of keys.
#[derive(Clone, Copy)]
struct RowBlockTile {
    first_query: usize,
    rows: usize,
    first_key: usize,
    /// Keys from the first that a row of the block sees to the last; or those of the tile among them.
    keys: usize,
    /// As many, rounded up to whole vectors.
    columns: usize,
}

/// Rows of queries, `[H, rows, width]` with features padded to whole vectors, and a tile of keys or values.
struct RowBlockScratch<T> {
    /// `scale * q`
    q: Vec<T>,
    /// The queries as a map gets them, `[H, rows, D]`.
    q_of_map: Vec<T>,
    /// `[D, KEYS]`
    transposed: Vec<T>,
    /// `[KEYS, width]`
    tile: Vec<T>,
    /// D rounded up to whole vectors.
    width: usize,
    path: Option<PathScratch<T>>,
}

impl<'a, T: Number> RowBlockInputs<'a, T> {
    fn new(
        problem: &AttentionProblem<'a, T>,
        [q, k, v]: [View<'a, T>; 3],
        table: Option<&'a TableMod<'a, T>>,
    ) -> RowBlockInputs<'a, T> {
        let scores = table.map_or(problem.scores, |table| ScoreTransform::Mod(table));
        RowBlockInputs { problem: AttentionProblem { scores, ..*problem }, table: table.copied(), q, k, v }
    }

    /// The score modification, where scores have one.
    fn map(&self) -> Option<&'a dyn ScoreMod<T>> {
        if let ScoreTransform::Mod(map) = self.problem.scores { Some(map) } else { None }
    }

    /// What it adds to values.
    fn values(&self) -> Option<&'a dyn ValueMod<T>> {
        self.map().and_then(|map| map.values())
    }

    /// The inputs of one segment.
    fn alone(&self, number: usize) -> RowBlockInputs<'a, T> {
        let DocumentSegment { row, first_query, first_key, .. } = self.problem.segment(number);
        let [k, v] = [self.k, self.v].map(|view| view.starting_at(row, first_key));
        RowBlockInputs { problem: self.problem.alone(number), q: self.q.starting_at(row, first_query), k, v, ..*self }
    }

    /// Groups of heads that are computed apart, so that the scores of a block stay in the cache: a bias of paths mixes no heads.
    fn units(&self) -> usize {
        if self.problem.path().is_some() { self.problem.dims.kv_heads } else { 1 }
    }

    /// The inputs of one of the [`RowBlockInputs::units`], of a segment.
    fn unit(&self, unit: usize) -> RowBlockInputs<'a, T> {
        if self.units() == 1 {
            return *self;
        }
        let first = self.head_of_unit(unit);
        let (q, [k, v]) = (self.q.starting_at_head(first), [self.k, self.v].map(|view| view.starting_at_head(unit)));
        RowBlockInputs { problem: self.problem.of_kv_head(unit), q, k, v, ..*self }
    }

    /// The first query head of a unit.
    fn head_of_unit(&self, unit: usize) -> usize {
        unit * (self.problem.dims.heads / self.units())
    }

    /// Inputs as large as a unit of the largest document, for scratch.
    fn largest(&self) -> RowBlockInputs<'a, T> {
        RowBlockInputs { problem: self.problem.largest(), ..*self }.unit(0)
    }

    fn tiles<L: Lanes<Number = T>>(&self) -> RowBlockScratch<T> {
        let AttentionDims { heads, head_dim, .. } = self.problem.dims;
        let width = head_dim.next_multiple_of(L::COUNT);
        RowBlockScratch {
            q: workers::scratch(heads * self.rows() * width),
            q_of_map: workers::scratch(heads * self.rows() * head_dim),
            transposed: workers::scratch(head_dim * KEYS),
            tile: workers::scratch(KEYS * width),
            width,
            path: PathScratch::new::<L>(self),
        }
    }

    /// Room for the scores of the largest part.
    fn scores<L: Lanes>(&self) -> Vec<T> {
        let AttentionDims { heads, queries, .. } = self.problem.dims;
        workers::scratch(heads * queries.min(self.rows()) * self.span().next_multiple_of(L::COUNT))
    }

    /// What a score depends on, as far as it decides how many keys are handled at a time.
    fn reach(&self) -> ScoreDependency {
        self.map().map_or(ScoreDependency::Pair, |map| map.reach())
    }

    /// Queries of a block.
    fn rows(&self) -> usize {
        match self.reach() {
            ScoreDependency::Pair => ROWS[0],
            ScoreDependency::Row => ROWS[1],
        }
    }

    /// Keys that are handled at a time: all of them where the map mixes those of a row.
    fn span(&self) -> usize {
        let keys = self.problem.dims.keys;
        match self.reach() {
            ScoreDependency::Row => keys.max(1),
            ScoreDependency::Pair => keys.clamp(1, KEYS),
        }
    }

    /// Tiles of keys of a sequence.
    fn spans(&self) -> usize {
        self.problem.dims.keys.div_ceil(self.span())
    }

    /// The parts of a block, each with the number of its tile: from the left, or of a path from the queries.
    fn parts<L: Lanes>(&self, whole: &RowBlockTile) -> impl Iterator<Item = (usize, RowBlockTile)> + use<L, T> {
        let (whole, span, from_queries) = (*whole, self.span(), self.problem.path().is_some());
        let end = whole.first_key + whole.keys;
        let tiles = if whole.keys == 0 { 0..0 } else { whole.first_key / span..end.div_ceil(span) };
        let (first, count) = (tiles.start, tiles.len());
        (0..count).map(move |number| {
            let tile = first + if from_queries { count - 1 - number } else { number };
            let first_key = whole.first_key.max(tile * span);
            let keys = end.min((tile + 1) * span) - first_key;
            (tile, RowBlockTile { first_key, keys, columns: keys.next_multiple_of(L::COUNT), ..whole })
        })
    }

    /// Blocks of a sequence.
    fn blocks(&self) -> usize {
        self.problem.dims.queries.div_ceil(self.rows())
    }

    fn place<L: Lanes>(&self, block: usize) -> RowBlockTile {
        let first_query = block * self.rows();
        let rows = (self.problem.dims.queries - first_query).min(self.rows());
        let first_key = self.problem.visible(0, first_query).start;
        let last = first_query + rows - 1;
        let end = match self.problem.path() {
            // a path crosses the padding between a query and what it sees
            Some(_) if self.problem.length(0) > 0 => self.problem.dims.position(last).cast_unsigned() + 1,
            _ => self.problem.visible(0, last).end,
        };
        let keys = end - first_key;
        RowBlockTile { first_query, rows, first_key, keys, columns: keys.next_multiple_of(L::COUNT) }
    }

    /// The same for a map.
    fn block<'q>(&self, place: &RowBlockTile, q_of_map: &'q [T]) -> ScoreBlock<'q, T> {
        let AttentionDims { heads, head_dim, .. } = self.problem.dims;
        ScoreBlock {
            batch: 0,
            heads,
            rows: place.rows,
            columns: place.columns,
            first_position: self.problem.dims.position(place.first_query),
            first_key: place.first_key,
            keys: self.problem.length(0),
            mask: self.problem.mask,
            q: &q_of_map[..heads * place.rows * head_dim],
        }
    }

    /// The rows that see one of `count` keys from the `first` of a place on: consecutive ones.
    fn rows_that_see(&self, place: &RowBlockTile, first: usize, count: usize) -> Range<usize> {
        let visible = |row: usize| self.problem.visible(0, place.first_query + row);
        let first = place.first_key + first;
        let start = first_row(place.rows, |row| visible(row).end > first);
        start..first_row(place.rows, |row| visible(row).start >= first + count).max(start)
    }

    /// Fills what the rows do not see.
    fn fill_unseen(&self, place: &RowBlockTile, value: T, scores: &mut [T]) {
        let [first, last] = [0, place.rows - 1].map(|row| self.problem.visible(0, place.first_query + row));
        let is_whole = place.keys == place.columns;
        if is_whole && last.start <= place.first_key && first.end >= place.first_key + place.keys {
            return;
        }
        let visible = |row| {
            let keys = self.problem.visible(0, place.first_query + row);
            let [start, end] = [keys.start, keys.end].map(|key| key.saturating_sub(place.first_key).min(place.keys));
            start..end
        };
        for head in scores.chunks_exact_mut(place.rows * place.columns) {
            for (row, scores) in head.chunks_exact_mut(place.columns).enumerate() {
                let visible = visible(row);
                scores[visible.end..].fill(value);
                scores[..visible.start].fill(value);
            }
        }
    }

    /// Draws the factors of a part's weights.
    fn load_dropout(&self, place: &RowBlockTile, dropout: &mut DropoutFactors<T>) {
        let RowBlockTile { first_query, rows, first_key, keys, columns } = *place;
        for head in 0..self.problem.dims.heads {
            let strides = [columns, 1];
            let tile = DropoutTile { head, first_query, queries: rows, first_key, keys, strides };
            dropout.load_at(&self.problem, tile, head * rows * columns);
        }
    }

    /// Loads the queries of a block.
    fn load_queries<L: Lanes<Number = T>>(&self, lanes: L, place: &RowBlockTile, tiles: &mut RowBlockScratch<T>) {
        let head_dim = self.problem.dims.head_dim;
        let RowBlockScratch { q, q_of_map, width, .. } = tiles;
        for (to, factor, width) in [(q, self.problem.scale, *width), (q_of_map, T::ONE, head_dim)] {
            self.load_rows(lanes, place, self.q, factor, to, width);
        }
    }

    /// The scores that the map gets, `[H, rows, columns]`, of loaded queries.
    fn raw_scores<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        place: &RowBlockTile,
        tiles: &mut RowBlockScratch<T>,
        scores: &mut [T],
    ) {
        let AttentionDims { heads, head_dim, .. } = self.problem.dims;
        let RowBlockScratch { q, transposed, width, .. } = tiles;
        if place.rows > 1 {
            let keys_transposed = &mut transposed[..];
            self.products(
                lanes,
                place,
                RowKeyProduct { rows: q, width: *width, keys: self.k, keys_transposed, out: scores },
            );
        } else {
            // a single row is a matter of reading the keys once
            let group = heads / self.problem.dims.kv_heads;
            for (head, to) in scores.chunks_exact_mut(place.columns).enumerate() {
                let k = self.k.rows_from(0, head / group, place.first_key);
                let (q, stride, to) = (&q[head * *width..][..head_dim], self.k.strides.row, &mut to[..place.keys]);
                lanes.run(Dots { q, k, stride, to });
            }
        }
        if let Some(cap) = self.problem.softcap {
            softcap::apply(scores, cap);
        }
        self.fill_unseen(place, T::ZERO, scores);
    }

    /// The same as the map changes them.
    fn mapped_scores<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        place: &RowBlockTile,
        tiles: &mut RowBlockScratch<T>,
        scores: &mut [T],
    ) {
        self.raw_scores(lanes, place, tiles, scores);
        if let Some(map) = self.map() {
            map.forward(&self.block(place, &tiles.q_of_map), scores);
        }
    }

    /// Copies the block's rows of all heads to `[H, rows, width]`.
    fn load_rows<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        place: &RowBlockTile,
        view: View<T>,
        factor: T,
        to: &mut [T],
        width: usize,
    ) {
        let head_dim = self.problem.dims.head_dim;
        for head in 0..self.problem.dims.heads {
            let from = view.rows_from(0, head, place.first_query);
            let (stride, rows, to) = (view.strides.row, place.rows, &mut to[head * place.rows * width..]);
            lanes.run(CopyRows { from, stride, rows, head_dim, factor, to, width });
        }
    }

    /// Writes the products of the block's rows with a tile's keys or values; rows that see nothing of a tile are left out.
    fn products<L: Lanes<Number = T>>(&self, lanes: L, place: &RowBlockTile, product: RowKeyProduct<T>) {
        let RowKeyProduct { rows, width, keys, keys_transposed, out } = product;
        let AttentionDims { heads, kv_heads, head_dim, .. } = self.problem.dims;
        for (kv_head, first, count) in tiles(kv_heads, place.keys) {
            lanes.run(Transpose {
                from: keys.rows_from(0, kv_head, place.first_key + first),
                stride: keys.strides.row,
                rows: count,
                head_dim,
                factor: T::ONE,
                to: keys_transposed,
                width: KEYS,
            });
            let see = self.rows_that_see(place, first, count);
            if see.is_empty() {
                continue;
            }
            for head in kv_head * (heads / kv_heads)..(kv_head + 1) * (heads / kv_heads) {
                let row = head * place.rows + see.start;
                lanes.run(SmallGemm {
                    rows: see.len(),
                    inner: head_dim,
                    columns: count.next_multiple_of(L::COUNT),
                    a: StridedMatrix::row_major(&rows[row * width..], width),
                    b: keys_transposed,
                    b_stride: KEYS,
                    c: &mut out[row * place.columns + first..],
                    c_stride: place.columns,
                    store: StoreMode::Overwrite,
                });
            }
        }
    }

    /// Adds the weighted sum of a tile's keys or values to the block's rows; rows that see nothing of a tile have no weights
    /// there and are left out.
    fn add_weighted<L: Lanes<Number = T>>(&self, lanes: L, place: &RowBlockTile, sum: WeightedSum<T>) {
        let WeightedSum { weights, keys, keys_copied, rescale, out } = sum;
        let AttentionDims { heads, kv_heads, head_dim, .. } = self.problem.dims;
        let width = head_dim.next_multiple_of(L::COUNT);
        for (kv_head, first, count) in tiles(kv_heads, place.keys) {
            let from = keys.rows_from(0, kv_head, place.first_key + first);
            let stride = keys.strides.row;
            // rows that follow each other in whole vectors are as good as copies; others may meet in few lines of the cache
            let b = if stride == width && head_dim == width {
                from
            } else {
                lanes.run(CopyRows { from, stride, rows: count, head_dim, factor: T::ONE, to: keys_copied, width });
                &*keys_copied
            };
            let see = self.rows_that_see(place, first, count);
            if see.is_empty() {
                continue;
            }
            for head in kv_head * (heads / kv_heads)..(kv_head + 1) * (heads / kv_heads) {
                let row = head * place.rows + see.start;
                lanes.run(SmallGemm {
                    rows: see.len(),
                    inner: count,
                    columns: width,
                    a: StridedMatrix::row_major(&weights[row * place.columns + first..], place.columns),
                    b,
                    b_stride: width,
                    c: &mut out[row * width..],
                    c_stride: width,
                    store: match rescale {
                        Some(rescale) if first == 0 => StoreMode::Rescale(&rescale[row..]),
                        _ => StoreMode::Accumulate,
                    },
                });
            }
        }
    }
}

/// `out[h, i, j] = rows[h, i].keys[j]`
struct RowKeyProduct<'a, T> {
    /// Queries or gradients of outputs, `[H, rows, width]`.
    rows: &'a [T],
    width: usize,
    /// Keys, or values.
    keys: View<'a, T>,
    /// Scratch for a tile of them, `[D, KEYS]`.
    keys_transposed: &'a mut [T],
    /// `[H, rows, columns]`
    out: &'a mut [T],
}

/// `out[h, i] = rescale[h, i] out[h, i] + sum over j of weights[h, i, j] keys[j]`
struct WeightedSum<'a, T> {
    /// `[H, rows, columns]`
    weights: &'a [T],
    /// Keys, or values.
    keys: View<'a, T>,
    /// Scratch for a tile of them, `[KEYS, width]`.
    keys_copied: &'a mut [T],
    /// `[H, rows]`; `None` rescales nothing.
    rescale: Option<&'a [T]>,
    /// `[H, rows, width]`
    out: &'a mut [T],
}

/// The first of so many rows of which something holds that holds from some row on.
fn first_row(rows: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = (low + high) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// Key head, first key and number of keys of each tile.
fn tiles(kv_heads: usize, keys: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..kv_heads)
        .flat_map(move |head| (0..keys).step_by(KEYS).map(move |first| (head, first, (keys - first).min(KEYS))))
}
