//! Selective attention, block by block of queries in their order.
//!
//! ```text
//! forward    of each key F, the sum of S over the queries so far          S_nj = max(z_nj of head 0, 0)
//!            a block, tile by tile of keys: z of all heads, S of head 0, F of each of its rows, z - F
//! backward   F is that after the last query; blocks from the last to the first: F -= sum of S over the block
//!            of each key G, the sum of g over the queries so far          g_ij = sum over heads of dz_ij
//!            dz_nj of head 0 -= G after the queries i > n, or i >= n      where S_nj > 0
//! ```
//!
//! F and G are one number per key, in f64. Blocks of a segment go on side by side: each waits, tile by tile of keys, for the block before
//! it. Sums run query after query, so neither the size of blocks nor the number of threads changes a bit.
//!
//! The backward takes from F what a block has added: nothing of the forward is kept. F after the last query comes from a pass over the
//! first head alone, unless a score modification mixes heads.

use super::table::TableMod;
use super::{RowBlockInputs, RowBlockTile};
use crate::Number;
use crate::attention::segments::{SegmentBlock, SegmentBlocks};
use crate::attention::{
    AttentionDims, AttentionProblem, DocumentSegment, ScoreTable, ScoreTransform, Selection, Selective, Strides,
    ViewMut,
};
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::Sides;
use crate::tiles::workers::{self, Turns};

/// Numbers of all keys that blocks pass on, `[B, K]`.
pub(super) struct PassedOn<'a> {
    sums: ViewMut<'a, f64>,
    /// Where the keys of a segment start in `sums`, and its tiles in `turns`.
    starts: Vec<[usize; 2]>,
    /// Of each tile of each segment: which block may read and change its numbers.
    turns: Turns,
}

/// Which numbers a block changes.
#[derive(Clone, Copy)]
pub(super) struct KeyTile {
    pub(super) segment: usize,
    pub(super) tile: usize,
    /// The number of the block in the order of blocks.
    pub(super) turn: usize,
}

impl<'a> PassedOn<'a> {
    pub(super) fn new<L: Lanes>(inputs: &RowBlockInputs<L::Number>, order: BlockOrder, sums: &'a mut [f64]) -> Self {
        let (problem, size) = (&inputs.problem, sums.len());
        let tiles = problem.offsets(|alone| RowBlockInputs { problem: *alone, ..*inputs }.spans());
        let start = |(number, tile): (usize, usize)| {
            let DocumentSegment { row, first_key, .. } = problem.segment(number);
            [row * problem.dims.keys + first_key, tile]
        };
        PassedOn {
            sums: ViewMut::new(sums, Strides { batch: size, head: size, row: 1 }),
            starts: tiles[..problem.segments()].iter().copied().enumerate().map(start).collect(),
            turns: Turns::from_first(first_turns::<L>(inputs, order, 1).into_iter()),
        }
    }

    pub(super) fn guard(&self) -> impl Drop {
        self.turns.guard()
    }

    /// Calls `change` with the numbers of the keys of a tile, in the order of blocks.
    fn take(&self, of: KeyTile, place: &RowBlockTile, change: impl FnOnce(&mut [f64])) {
        let [first_key, first_tile] = self.starts[of.segment];
        self.turns.take(first_tile + of.tile, of.turn, || {
            // SAFETY: these are the numbers of keys of this segment, and it is this item's turn to change them.
            change(unsafe { self.sums.row(0, 0, first_key + place.first_key, place.keys) });
        });
    }
}

/// In which order the blocks of a segment follow one another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockOrder {
    FirstToLast,
    LastToFirst,
}

impl BlockOrder {
    /// The block with this number in the order of so many.
    pub(super) fn block(self, number: usize, blocks: usize) -> usize {
        match self {
            BlockOrder::FirstToLast => number,
            BlockOrder::LastToFirst => blocks - 1 - number,
        }
    }
}

/// The number of the first block that sees each tile of each of so many heads of each segment. Those that see it are consecutive.
pub(super) fn first_turns<L: Lanes>(inputs: &RowBlockInputs<L::Number>, order: BlockOrder, heads: usize) -> Vec<usize> {
    let mut first = Vec::new();
    for number in 0..inputs.problem.segments() {
        let (alone, start) = (inputs.alone(number), first.len());
        let (spans, blocks) = (alone.spans(), alone.blocks());
        first.resize(start + heads * spans, usize::MAX);
        for turn in (0..blocks).rev() {
            for (tile, _) in alone.parts::<L>(&alone.place::<L>(order.block(turn, blocks))) {
                (0..heads).for_each(|head| first[start + head * spans + tile] = turn);
            }
        }
    }
    first
}

/// What one thread computes in, for a tile.
pub(super) struct SelectionScratch<T> {
    /// S, `[rows, columns]`
    taken: Vec<T>,
    /// F of each row, then G, `[rows, columns]`.
    masked: Vec<T>,
    /// `[columns]`
    sums: Vec<f64>,
}

impl<T: Number> SelectionScratch<T> {
    pub(super) fn new<L: Lanes<Number = T>>(inputs: &RowBlockInputs<T>) -> Option<SelectionScratch<T>> {
        inputs.problem.selection?;
        let columns = inputs.largest().span().next_multiple_of(L::COUNT);
        let [taken, masked] = [(); 2].map(|()| workers::scratch(inputs.rows() * columns));
        Some(SelectionScratch { taken, masked, sums: vec![0.0; columns] })
    }

    /// S of a tile, given the logits of the first head, `[rows, columns]`.
    fn take(&mut self, inputs: &RowBlockInputs<T>, selection: Selection, place: &RowBlockTile, z: &[T]) {
        let RowBlockTile { first_key, rows, columns, .. } = *place;
        let first = usize::from(selection.keeps_first).saturating_sub(first_key);
        for row in 0..rows {
            let query = place.first_query + row;
            let own = inputs.problem.dims.position(query).max(0).cast_unsigned();
            let seen = inputs.problem.visible(0, query);
            let [start, end] = [seen.start, seen.end.min(own)].map(|key| key.saturating_sub(first_key).min(place.keys));
            let (start, end) = (start.max(first), end);
            let taken = &mut self.taken[row * columns..][..columns];
            taken.fill(T::ZERO);
            if start < end {
                let z = &z[row * columns..][start..end];
                taken[start..end].iter_mut().zip(z).for_each(|(to, &z)| *to = if z <= T::ZERO { T::ZERO } else { z });
            }
        }
    }

    /// Takes F off the logits of a tile, `[H, rows, columns]`, and passes it on.
    pub(super) fn mask<L: Lanes<Number = T>>(
        &mut self,
        lanes: L,
        (inputs, passed_on, order): (&RowBlockInputs<T>, &PassedOn, BlockOrder),
        of: KeyTile,
        place: &RowBlockTile,
        scores: &mut [T],
    ) {
        let Some(selection) = inputs.problem.selection else { return };
        let (size, columns) = (place.rows * place.columns, place.columns);
        self.take(inputs, selection, place, &scores[..size]);
        let SelectionScratch { taken, masked, sums } = self;
        let (masked, sums) = (&mut masked[..size], &mut sums[..columns]);
        masked.copy_from_slice(&taken[..size]);
        let inclusive = selection.kind == Selective::Inclusive;
        sums.fill(0.0);
        passed_on.take(of, place, |keys| match order {
            BlockOrder::FirstToLast => {
                sums[..keys.len()].copy_from_slice(keys);
                lanes.run(RunningSums { values: masked, sums, inclusive, order });
                keys.copy_from_slice(&sums[..keys.len()]);
            }
            BlockOrder::LastToFirst => {
                lanes.run(ColumnSums { values: masked, sums });
                keys.iter_mut().zip(&*sums).for_each(|(key, sum)| *key -= sum);
                sums[..keys.len()].copy_from_slice(keys);
            }
        });
        if order == BlockOrder::LastToFirst {
            lanes.run(RunningSums { values: masked, sums, inclusive, order: BlockOrder::FirstToLast });
        }
        for scores in scores.chunks_exact_mut(size) {
            scores.iter_mut().zip(&*masked).for_each(|(z, &masked)| *z -= masked);
        }
    }

    /// Adds to the gradient in the logits of the first head of a tile what comes from later queries, given the gradient in the masked
    /// logits of all heads, `[H, rows, columns]`, and passes G on.
    pub(super) fn backward<L: Lanes<Number = T>>(
        &mut self,
        lanes: L,
        (selection, passed_on): (Selection, &PassedOn),
        of: KeyTile,
        place: &RowBlockTile,
        d_scores: &mut [T],
    ) {
        let (size, columns) = (place.rows * place.columns, place.columns);
        let SelectionScratch { taken, masked: later, sums } = self;
        let (later, sums) = (&mut later[..size], &mut sums[..columns]);
        later.fill(T::ZERO);
        for d_scores in d_scores.chunks_exact(size) {
            later.iter_mut().zip(d_scores).for_each(|(to, &d)| *to += d);
        }
        let inclusive = selection.kind == Selective::Inclusive;
        sums.fill(0.0);
        passed_on.take(of, place, |keys| {
            sums[..keys.len()].copy_from_slice(keys);
            lanes.run(RunningSums { values: later, sums, inclusive, order: BlockOrder::LastToFirst });
            keys.copy_from_slice(&sums[..keys.len()]);
        });
        for ((d, &taken), &later) in d_scores.iter_mut().zip(&*taken).zip(&*later) {
            *d -= if taken == T::ZERO { T::ZERO } else { later };
        }
    }
}

/// Replaces numbers by the sum of those of earlier rows, or of its own row too, `[rows, columns]`; `sums` go on from row to row.
struct RunningSums<'a, R> {
    values: &'a mut [R],
    /// `[columns]`
    sums: &'a mut [f64],
    inclusive: bool,
    order: BlockOrder,
}

impl<R: Number> SimdKernel<R> for RunningSums<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let RunningSums { values, sums, inclusive, order } = self;
        let (columns, rows) = (sums.len(), values.len() / sums.len());
        for number in 0..rows {
            let row = &mut values[order.block(number, rows) * columns..][..columns];
            for (value, sum) in row.iter_mut().zip(&mut *sums) {
                let before = *sum;
                *sum += value.to_f64();
                *value = R::from_f64(if inclusive { *sum } else { before });
            }
        }
    }
}

/// Adds the rows of `[rows, columns]` to `[columns]`.
struct ColumnSums<'a, R> {
    values: &'a [R],
    sums: &'a mut [f64],
}

impl<R: Number> SimdKernel<R> for ColumnSums<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        let ColumnSums { values, sums } = self;
        for row in values.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.to_f64());
        }
    }
}

impl Selection<'_> {
    /// F before the first query, `[B, K]`.
    pub(super) fn sums(&self, AttentionDims { batch, keys, .. }: AttentionDims) -> Vec<f64> {
        self.before.map_or_else(|| vec![0.0; batch * keys], <[f64]>::to_vec)
    }
}

/// F after the last query of every key, `[B, K]`.
pub(super) fn masked_sums<L: Lanes>(lanes: L, inputs: &RowBlockInputs<L::Number>) -> Vec<f64> {
    let first_table = inputs.table.map(TableMod::first_head);
    let inputs = inputs.first_head(first_table.as_ref());
    let Some(selection) = inputs.problem.selection else { return Vec::new() };
    let mut sums = selection.sums(inputs.problem.dims);
    let passed_on = PassedOn::new::<L>(&inputs, BlockOrder::FirstToLast, &mut sums);
    let blocks = SegmentBlocks::new(&inputs.problem, 1, |segment| segment.queries.div_ceil(inputs.rows()));
    let scratch = || {
        let tiles = inputs.tiles::<L>();
        (tiles, inputs.largest().scores::<L>(), SelectionScratch::new::<L>(&inputs))
    };
    workers::for_each(blocks.items(), scratch, |(tiles, scores, selection), item| {
        let _guard = passed_on.guard();
        let SegmentBlock { segment, block, .. } = blocks.consecutive(item);
        let inputs = inputs.alone(segment);
        let place = inputs.place::<L>(block);
        inputs.load_queries(lanes, &place, tiles);
        for (tile, part) in inputs.parts::<L>(&place) {
            let scores = &mut scores[..inputs.problem.dims.heads * part.rows * part.columns];
            inputs.mapped_scores(lanes, &part, tiles, scores);
            if let Some(selection) = selection {
                let of = KeyTile { segment, tile, turn: block };
                selection.mask(lanes, (&inputs, &passed_on, BlockOrder::FirstToLast), of, &part, scores);
            }
        }
    });
    drop(passed_on);
    sums
}

impl<'a, T: Number> RowBlockInputs<'a, T> {
    /// The inputs of the first head alone, whose table is this; those of all heads where a score modification may mix them.
    fn first_head(&self, table: Option<&'a TableMod<'a, T>>) -> RowBlockInputs<'a, T> {
        let scores = match (table, self.problem.scores) {
            (Some(table), _) => ScoreTransform::Mod(table),
            (None, ScoreTransform::Mod(_)) => return *self,
            (None, scores) => scores,
        };
        let dims = AttentionDims { heads: 1, kv_heads: 1, ..self.problem.dims };
        RowBlockInputs { problem: AttentionProblem { dims, scores, ..self.problem }, ..*self }
    }
}

impl<T: Number> AttentionProblem<'_, T> {
    pub(in crate::attention) fn check_selection(&self, Selection { before, .. }: Selection) {
        let AttentionDims { batch, heads, keys, head_dim, value_dim, .. } = self.dims;
        assert!(self.mask.sides() == Sides::OneSided, "selective attention requires causal attention");
        assert!(self.mask.sink_tokens() == 0, "selective attention does not keep first tokens visible");
        assert!(self.normalizer.is_softmax(), "selective attention is for softmax, not {}", self.normalizer.kind());
        assert!(self.intervals.is_none(), "selective attention does not take intervals");
        assert!(heads > 0, "selective attention needs a first head");
        let is_square = head_dim == value_dim;
        assert!(is_square, "selective attention takes value_dim = head_dim, got {value_dim} and {head_dim}");
        let by_distance = match self.scores {
            ScoreTransform::Mod(_) => true,
            ScoreTransform::Path(_) | ScoreTransform::Householder(_) => false,
            ScoreTransform::Table(of) => {
                let ScoreTable { feature_decay, decay_cumsum, gate_cumsum, positions, relative, .. } = of;
                let plain = feature_decay.is_none() && decay_cumsum.is_none() && gate_cumsum.is_none();
                plain && positions.is_none() && relative.is_none()
            }
        };
        assert!(by_distance, "selective attention takes bias and weight by distance or a score modification");
        if let Some(before) = before {
            assert!(self.documents.is_none(), "selective attention of packed documents starts with the documents");
            crate::check_shape!(before, B = batch, K = keys);
        }
    }
}
