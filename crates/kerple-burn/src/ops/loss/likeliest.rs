//! The likeliest tokens at every position and the loss of a target, without gradients.

use super::{End, Head, LossTargets, logits};
use crate::array::Array;
use crate::fused::{Engine, Forward, Inputs, Number, Op, Saved, Step, Target};
use crate::with_element;
use burn::tensor::Tensor;
pub use kerple_core::ops::cross_entropy::TopK;
use kerple_core::ops::cross_entropy::{self, top_k_of_row};

/// What has a kernel for it.
const KERNELS: &[Target] = &[Target::Host];

/// The `count` likeliest tokens of each of `B L` rows, given `x` `[B, L, M]`: the fused version holds the logits of a few
/// rows at a time. Rows that are not scored have zeros.
///
/// # Panics
/// When the targets are not `B L` many, or a scored one is not below V.
pub fn likeliest(x: Tensor<3>, head: Head, targets: LossTargets, count: usize, engine: Engine) -> TopK<f64> {
    if !engine.has_kernel(KERNELS, &x) {
        return composed(x, head, targets, count);
    }
    let rows = targets.ids.len();
    let count = count.min(head.weight.dims()[usize::from(!head.tied)]);
    let mut inputs = Inputs::default();
    let end = End::add(x, head, targets, &mut inputs);
    let found: Tensor<2> = inputs.apply(Predictions { end, count });
    let found: Vec<f64> = found.into_data().iter::<f64>().collect();
    let mut all = TopK { target_nll: Vec::with_capacity(rows), ids: Vec::new(), nll: Vec::new() };
    for row in found.chunks_exact(1 + 2 * count) {
        all.target_nll.push(row[0]);
        all.ids.extend(row[1..=count].iter().map(|id| *id as u32));
        all.nll.extend(&row[1 + count..]);
    }
    all
}

/// The definition of [`likeliest`].
pub fn composed(x: Tensor<3>, head: Head, targets: LossTargets, count: usize) -> TopK<f64> {
    let logits = logits(x, head);
    let vocab = logits.dims()[2];
    let logits: Vec<f64> = logits.into_data().iter::<f64>().collect();
    let count = count.min(vocab);
    let mut all = TopK::default();
    for (row, logits) in logits.chunks_exact(vocab).enumerate() {
        let found = match targets.scored.is_none_or(|scored| scored[row]) {
            true => top_k_of_row(logits, Some(targets.ids[row]), count),
            false => TopK { target_nll: vec![0.0], ids: vec![0; count], nll: vec![0.0; count] },
        };
        all.target_nll.extend(found.target_nll);
        all.ids.extend(found.ids);
        all.nll.extend(found.nll);
    }
    all
}

/// A row for each position: the loss of its target, then `count` ids, then their losses. Vocabularies end far below where
/// `f32` no longer holds every whole number.
#[derive(Debug)]
struct Predictions {
    end: End,
    count: usize,
}

impl Predictions {
    fn run<T: Number>(&self, inputs: &[Array]) -> Array {
        let end = &self.end;
        let found = cross_entropy::top_k(end.head::<T>(inputs), inputs[end.x].slice(), end.targets(), self.count);
        let rows = end.ids.len();
        let mut out = Vec::with_capacity(rows * (1 + 2 * self.count));
        for row in 0..rows {
            let top_k_of_row = row * self.count..(row + 1) * self.count;
            out.push(found.target_nll[row]);
            out.extend(found.ids[top_k_of_row.clone()].iter().map(|id| T::from_f64(f64::from(*id))));
            out.extend(&found.nll[top_k_of_row]);
        }
        Array::from_vec(out, &[rows, 1 + 2 * self.count])
    }
}

impl Op for Predictions {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        Forward { output: with_element!(inputs[0], T => Predictions::run::<T>(self, inputs)), saved: Saved::nothing() }
    }

    fn backward(&self, _step: &Step) -> Vec<Option<Array>> {
        panic!("the likeliest tokens have no gradients: train with `losses`")
    }
}
