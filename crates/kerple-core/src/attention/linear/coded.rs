//! Queries and keys contracted with a stochastic code before anything else, for all sequences together.

use super::{
    CHUNK, LinearAttentionDims, LinearAttentionGradients, LinearAttentionInputs, LinearAttentionProblem,
    LinearAttentionSaved, RecurrentState, RowKind, StateGradient, Strides, View, ViewMut,
};
use crate::Number;
use crate::attention::segments::SumsByRow;
use crate::cpu::reduce;
use crate::features::contract::{self, CodeFeatureMap, ContractScratch, Packed};
use crate::features::{RowRange, padded};
use crate::ops::zeros;
use crate::tiles::workers::{self, BlockSchedule, Turns};
use std::sync::Mutex;

/// Consecutive positions of some sequences, which share a code.
struct CodedBlock {
    /// The first of the sequences, and how many there are.
    row: usize,
    batch: usize,
    /// First token of a sequence, and its position.
    token: usize,
    start: usize,
    rows: usize,
    /// Whether a document, and whether a row, ends with it.
    ends: [bool; 2],
}

/// The gradient in the parameters of a head's code: of the document so far, and of the documents before it. Without documents
/// all sequences are one.
struct CodeSums<T> {
    own: Vec<T>,
    others: SumsByRow<T>,
}

impl<T: Number> CodeSums<T> {
    fn add(&mut self, part: &[T], [document_ends, row_ends]: [bool; 2]) {
        reduce::add(&mut self.own, part);
        if document_ends {
            self.others.add(0, &self.own, row_ends);
            self.own.fill(T::ZERO);
        }
    }
}

/// A problem whose first map is a code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coded<'a, T> {
    problem: &'a LinearAttentionProblem<'a, T>,
    code: &'a dyn CodeFeatureMap<T>,
    inputs: LinearAttentionInputs<'a, T>,
    /// Position of the first row.
    first: usize,
}

impl<'a, T: Number> Coded<'a, T> {
    /// `None` where the first map is not a code, or there are no sequences to share it.
    pub(super) fn new(
        problem: &'a LinearAttentionProblem<'a, T>,
        inputs: LinearAttentionInputs<'a, T>,
        first: usize,
    ) -> Option<Coded<'a, T>> {
        let code = problem.maps.first()?.code().filter(|_| problem.dims.batch > 0)?;
        Some(Coded { problem, code, inputs, first })
    }

    /// What is left to do with the images.
    pub(super) fn rest(&self) -> LinearAttentionProblem<'a, T> {
        let dims = LinearAttentionDims { head_dim: self.code.widths()[1], ..self.problem.dims };
        LinearAttentionProblem { dims, maps: &self.problem.maps[1..], ..*self.problem }
    }

    /// How images lie: `[H, L, B, padded(R)]`.
    fn strides(&self) -> Strides {
        let (LinearAttentionDims { batch, len, .. }, width) = (self.problem.dims, padded(self.code.widths()[1]));
        Strides { batch: width, head: len * batch * width, row: batch * width }
    }

    /// Zeros for the images of one side.
    fn room(&self) -> Vec<T> {
        zeros(self.problem.dims.heads * self.strides().head)
    }

    /// Images in the place of queries and keys.
    pub(super) fn images<'i>(&self, [q, k]: &'i [Vec<T>; 2]) -> LinearAttentionInputs<'i, T>
    where
        'a: 'i,
    {
        let view = |data| View { data, strides: self.strides() };
        LinearAttentionInputs { q: view(q), k: view(k), v: self.inputs.v }
    }

    /// Sequences of a block.
    fn together(&self) -> usize {
        if self.problem.documents.is_some() { 1 } else { self.problem.dims.batch }
    }

    /// The blocks of all sequences together, or of one document after another, whose positions start again.
    fn blocks(&self) -> Vec<CodedBlock> {
        let LinearAttentionDims { batch, len, .. } = self.problem.dims;
        let mut blocks = Vec::new();
        let mut push = |row: usize, batch: usize, first: usize, keys: usize| {
            let of = |start: usize| {
                let rows = CHUNK.min(keys - start);
                let document_ends = start + rows == keys;
                let ends = [document_ends, document_ends && first + keys == len];
                CodedBlock { row, batch, token: first + start, start, rows, ends }
            };
            blocks.extend((0..keys).step_by(CHUNK).map(of));
        };
        match self.problem.documents {
            None => push(0, batch, 0, len),
            Some(documents) => documents.segments().iter().for_each(|it| push(it.row, 1, it.first_key, it.keys)),
        }
        blocks
    }

    fn place(&self, side: RowKind, head: usize, block: &CodedBlock) -> RowRange {
        RowRange { side, batch: 0, head, first: self.first + block.start, rows: block.rows }
    }

    fn rows(&self, side: RowKind, head: usize, block: &CodedBlock) -> Packed<'a, T> {
        let x = if side == RowKind::Query { self.inputs.q } else { self.inputs.k };
        Packed { data: x.rows_from(block.row, head, block.token), batch: x.strides.batch, row: x.strides.row }
    }

    /// The images of queries and keys.
    pub(super) fn forward(&self) -> [Vec<T>; 2] {
        let heads = self.problem.dims.heads;
        let (mut images, strides, blocks) = ([self.room(), self.room()], self.strides(), self.blocks());
        let to = images.each_mut().map(|images| ViewMut::new(images, strides));
        let room = || ContractScratch::new(self.code, self.together(), false);
        let count = blocks.len();
        workers::for_each(2 * heads * count, room, |room, item| {
            let (side, head, block) = (item / (heads * count), item / count % heads, &blocks[item % count]);
            let (to, side) = (&to[side], [RowKind::Query, RowKind::Key][side]);
            // SAFETY: the buffer has the rows of all positions, and this item alone writes those of its own.
            let y = |t: usize| unsafe { to.row(block.row, head, block.token + t, block.batch * strides.batch) };
            let of = (self.place(side, head, block), block.batch);
            contract::forward(self.code, of, self.rows(side, head, block), room, y);
        });
        images
    }

    /// Every gradient: through the rest to the images, and from there to queries, keys and the code.
    pub(super) fn backward(
        &self,
        saved: LinearAttentionSaved<T>,
        ends: Option<(&RecurrentState<T>, &mut StateGradient<T>)>,
        gradients: LinearAttentionGradients<T>,
    ) {
        let (rest, heads) = (self.rest(), self.problem.dims.heads);
        let images = self.forward();
        let mut d_images = [self.room(), self.room()];
        let LinearAttentionGradients { d_q, d_k, d_v, d_parameters, d_decay, d_gates } = gradients;
        let [own, others] = [self.code.parameters(), rest.parameters()];
        let mut of_rest = vec![T::ZERO; heads * others];
        let [to_q, to_k] = d_images.each_mut().map(|images| ViewMut::new(images, self.strides()));
        let through =
            LinearAttentionGradients { d_q: to_q, d_k: to_k, d_v, d_parameters: &mut of_rest, d_decay, d_gates };
        super::run_backward(&rest, LinearAttentionSaved { inputs: self.images(&images), ..saved }, ends, through);
        drop(images);
        let of_code = self.contract_backward(&d_images, [&d_q, &d_k]);
        for (head, to) in d_parameters.chunks_exact_mut((own + others).max(1)).enumerate() {
            to[..own].copy_from_slice(&of_code[head * own..][..own]);
            to[own..].copy_from_slice(&of_rest[head * others..][..others]);
        }
    }

    /// Writes the gradients in queries and keys, given those in their images; that in the parameters of the code, `[H, P]`.
    fn contract_backward(&self, d_images: &[Vec<T>; 2], d_x: [&ViewMut<T>; 2]) -> Vec<T> {
        let (LinearAttentionDims { heads, head_dim, .. }, strides) = (self.problem.dims, self.strides());
        let (blocks, size) = (self.blocks(), self.code.parameters());
        let count = 2 * blocks.len();
        let sums: Vec<Mutex<CodeSums<T>>> =
            (0..heads).map(|_| Mutex::new(CodeSums { own: zeros(size), others: SumsByRow::new(size) })).collect();
        let (schedule, turns) = (BlockSchedule::new(heads, count), Turns::new(heads, |_| 0));
        let room = || (ContractScratch::new(self.code, self.together(), true), vec![T::ZERO; size]);
        workers::for_each(heads * count, room, |(room, own), item| {
            let _guard = turns.guard();
            let (head, turn) = schedule.item(item);
            let side = [RowKind::Query, RowKind::Key][turn % 2];
            let (block, d_images, d_x) = (&blocks[turn / 2], &d_images[turn % 2], d_x[turn % 2]);
            let first = head * strides.head + block.row * strides.batch;
            own.fill(T::ZERO);
            contract::backward(
                self.code,
                (self.place(side, head, block), block.batch),
                self.rows(side, head, block),
                room,
                |t| &d_images[first + (block.token + t) * strides.row..][..block.batch * strides.batch],
                // SAFETY: the view is checked, and this item alone writes the rows of its positions.
                |batch, t, from| unsafe {
                    d_x.row(block.row + batch, head, block.token + t, head_dim).copy_from_slice(&from[..head_dim]);
                },
                own,
            );
            // keys come after the queries of a block
            let ends = if side == RowKind::Key { block.ends } else { [false; 2] };
            turns.take(head, turn, || sums[head].lock().expect("a turn is one item's").add(own, ends));
        });
        let total = |sums: Mutex<CodeSums<T>>| sums.into_inner().expect("no item panicked").others.total();
        sums.into_iter().flat_map(total).collect()
    }
}
