//! Queries and keys contracted with a stochastic code before anything else, for all sequences together.

use super::{
    CHUNK, LinearAttentionDims, LinearAttentionGradients, LinearAttentionInputs, LinearAttentionProblem,
    LinearAttentionSaved, RecurrentState, RowKind, StateGradient, Strides, View, ViewMut,
};
use crate::Number;
use crate::cpu::reduce;
use crate::features::contract::{self, CodeFeatureMap, ContractScratch, Packed};
use crate::features::{RowRange, padded};
use crate::ops::zeros;
use crate::tiles::workers::{self, BlockSchedule, Turns};

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
    /// `None` where the first map is no code.
    pub(super) fn new(
        problem: &'a LinearAttentionProblem<'a, T>,
        inputs: LinearAttentionInputs<'a, T>,
        first: usize,
    ) -> Option<Coded<'a, T>> {
        let code = problem.maps.first()?.code()?;
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

    fn blocks(&self) -> usize {
        self.problem.dims.len.div_ceil(CHUNK)
    }

    fn place(&self, side: RowKind, head: usize, block: usize) -> RowRange {
        let row = block * CHUNK;
        RowRange { side, batch: 0, head, first: self.first + row, rows: CHUNK.min(self.problem.dims.len - row) }
    }

    fn rows(&self, side: RowKind, head: usize, row: usize) -> Packed<'a, T> {
        let x = if side == RowKind::Query { self.inputs.q } else { self.inputs.k };
        Packed { data: x.rows_from(0, head, row), batch: x.strides.batch, row: x.strides.row }
    }

    /// The images of queries and keys.
    pub(super) fn forward(&self) -> [Vec<T>; 2] {
        let LinearAttentionDims { batch, heads, .. } = self.problem.dims;
        let (mut images, strides, blocks) = ([self.room(), self.room()], self.strides(), self.blocks());
        let to = images.each_mut().map(|images| ViewMut::new(images, strides));
        let room = || ContractScratch::new(self.code.widths(), batch, false);
        workers::for_each(2 * heads * blocks, room, |room, item| {
            let (side, head, block) = (item / (heads * blocks), item / blocks % heads, item % blocks);
            let (to, side) = (&to[side], [RowKind::Query, RowKind::Key][side]);
            let row = block * CHUNK;
            // SAFETY: the buffer has the rows of all positions, and this item alone writes those of its own.
            let y = |t: usize| unsafe { to.row(0, head, row + t, strides.row) };
            contract::forward(self.code, (self.place(side, head, block), batch), self.rows(side, head, row), room, y);
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
        let (LinearAttentionDims { batch, heads, head_dim, .. }, strides) = (self.problem.dims, self.strides());
        let (blocks, size) = (2 * self.blocks(), self.code.parameters());
        let mut d_parameters = zeros(heads * size);
        let sums = ViewMut::new(&mut d_parameters, Strides { batch: 0, head: size, row: 0 });
        let (schedule, turns) = (BlockSchedule::new(heads, blocks), Turns::new(heads, |_| 0));
        let room = || (ContractScratch::new(self.code.widths(), batch, true), vec![T::ZERO; size]);
        workers::for_each(heads * blocks, room, |(room, own), item| {
            let _guard = turns.guard();
            let (head, block) = schedule.item(item);
            let side = [RowKind::Query, RowKind::Key][block % 2];
            let (row, d_images, d_x) = (block / 2 * CHUNK, &d_images[block % 2], d_x[block % 2]);
            own.fill(T::ZERO);
            contract::backward(
                self.code,
                (self.place(side, head, block / 2), batch),
                self.rows(side, head, row),
                room,
                |t| &d_images[head * strides.head + (row + t) * strides.row..][..strides.row],
                // SAFETY: the view is checked, and this item alone writes the rows of its positions.
                |batch, t, from| unsafe { d_x.row(batch, head, row + t, head_dim) }.copy_from_slice(&from[..head_dim]),
                own,
            );
            // SAFETY: whoever has the turn of a head is alone with its sums.
            turns.take(head, block, || reduce::add(unsafe { sums.row(0, head, 0, size) }, own));
        });
        d_parameters
    }
}
