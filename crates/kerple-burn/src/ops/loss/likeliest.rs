//! The likeliest tokens at every position and the loss of a target, without gradients.

use super::{LmHeadInputs, LmHeadTensors, LossTargets, logits};
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::Tensor;
pub use kerple_core::ops::cross_entropy::TopK;
use kerple_core::ops::cross_entropy::{self, top_k_of_row};

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// The `count` likeliest tokens of each of `B L` rows, given `x` `[B, L, M]`: the fused version holds the logits of a few
/// rows at a time. Rows that are not scored have zeros.
///
/// # Panics
/// When the targets are not `B L` many, or a scored one is not below V.
pub fn likeliest(
    x: Tensor<3>,
    head: LmHeadTensors,
    targets: LossTargets,
    count: usize,
    implementation: Impl,
) -> TopK<f64> {
    if !implementation.has_kernel(KERNELS, &x) {
        return reference(x, head, targets, count);
    }
    let rows = targets.ids.len();
    let count = count.min(head.weight.dims()[usize::from(!head.tied)]);
    let mut inputs = OpInputs::default();
    let end = LmHeadInputs::add(x, head, targets, implementation, &mut inputs);
    let found: Tensor<2> = inputs.apply(LikeliestOp { end, count });
    let found: Vec<f64> = found.into_data().iter::<f64>().collect();
    let mut all = TopK { target_nll: Vec::with_capacity(rows), ids: Vec::new(), nll: Vec::new() };
    for row in found.chunks_exact(1 + 2 * count) {
        all.target_nll.push(row[0]);
        all.ids.extend(row[1..=count].iter().map(|id| *id as u32));
        all.nll.extend(&row[1 + count..]);
    }
    all
}

/// The reference of [`likeliest`].
pub fn reference(x: Tensor<3>, head: LmHeadTensors, targets: LossTargets, count: usize) -> TopK<f64> {
    let logits = logits(x, head, Impl::Reference);
    let vocab = logits.dims()[2];
    let logits: Vec<f64> = logits.into_data().iter::<f64>().collect();
    let count = count.min(vocab);
    let mut all = TopK::default();
    for (row, logits) in logits.chunks_exact(vocab).enumerate() {
        let found = if targets.scored.is_none_or(|scored| scored[row]) {
            top_k_of_row(logits, Some(targets.ids[row]), count)
        } else {
            TopK { target_nll: vec![0.0], ids: vec![0; count], nll: vec![0.0; count] }
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
struct LikeliestOp {
    end: LmHeadInputs,
    count: usize,
}

impl LikeliestOp {
    fn run<T: FloatElement>(&self, inputs: &[HostArray]) -> HostArray {
        let end = &self.end;
        let found = cross_entropy::top_k(end.head::<T>(inputs), inputs[end.x].slice(), end.targets(), self.count);
        let rows = end.ids.len();
        let mut out = Vec::with_capacity(rows * (1 + 2 * self.count));
        for row in 0..rows {
            let of_row = row * self.count..(row + 1) * self.count;
            out.push(found.target_nll[row]);
            out.extend(found.ids[of_row.clone()].iter().map(|id| T::from_f64(f64::from(*id))));
            out.extend(&found.nll[of_row]);
        }
        HostArray::from_vec(out, &[rows, 1 + 2 * self.count])
    }
}

impl CustomOp for LikeliestOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        OpOutput {
            output: with_element!(inputs[0], T => LikeliestOp::run::<T>(self, inputs)),
            saved: SavedForBackward::nothing(),
        }
    }

    fn backward(&self, _step: &BackwardContext) -> Vec<Option<HostArray>> {
        panic!("the likeliest tokens have no gradients: train with `losses`")
    }
}
