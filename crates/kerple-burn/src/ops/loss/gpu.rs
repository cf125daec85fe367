//! The end of a language model on GPUs: the reference, chunked over rows, so logits of a whole
//! batch are never in memory at once. Gradients are computed together with the loss, while the
//! logits of their rows are in memory.

use super::{CrossEntropyOp, LmHeadInputs, LmHeadTensors, LossTargets, by_parts};
use crate::custom_op::{BackwardContext, GpuOp, OpOutput, SavedForBackward, array, like, tensor};
use crate::ops::{NormTensors, norm};
use burn::tensor::{Gradients, Tensor};
use burn_cubecl::tensor::CubeTensor;
use std::ops::Range;

/// Logits held at once, about; 64 MiB in `f32`.
const AT_ONCE: usize = 1 << 24;

/// The head with its tensors as leaves of a tape of its own.
fn as_leaves(head: &LmHeadTensors) -> LmHeadTensors {
    fn leaf<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
        tensor.clone().autodiff().require_grad()
    }
    let norm = NormTensors { gamma: leaf(&head.norm.gamma), beta: head.norm.beta.as_ref().map(leaf), ..head.norm };
    LmHeadTensors { norm, weight: leaf(&head.weight), bias: head.bias.as_ref().map(leaf), ..*head }
}

impl LmHeadInputs {
    fn on_gpu(&self, inputs: &[CubeTensor]) -> LmHeadTensors {
        let one = |place: usize| tensor::<1>(&inputs[place]);
        let norm::NormInputs { kind, gamma, beta, epsilon } = self.norm;
        let norm = NormTensors { kind, gamma: one(gamma), beta: beta.map(one), epsilon };
        LmHeadTensors { norm, weight: tensor(&inputs[self.weight]), tied: self.tied, bias: self.bias.map(one) }
    }

    /// Gradients with their places among the inputs, flat.
    fn gradients(&self, head: &LmHeadTensors, of: &mut Gradients) -> Vec<(usize, Tensor<1>)> {
        let weight = head.weight.grad_remove(of).map(|d| (self.weight, d.reshape([-1])));
        let single = [
            (Some(self.norm.gamma), Some(&head.norm.gamma)),
            (self.norm.beta, head.norm.beta.as_ref()),
            (self.bias, head.bias.as_ref()),
        ];
        let single = single.into_iter().filter_map(|(place, tensor)| Some((place?, tensor?.grad_remove(of)?)));
        weight.into_iter().chain(single).collect()
    }
}

impl CrossEntropyOp {
    /// Rows that are processed at once.
    fn pieces(&self, inputs: &[CubeTensor]) -> impl Iterator<Item = Range<usize>> + use<> {
        let shape = inputs[self.end.weight].meta.shape();
        let (rows, vocab) = (self.end.ids.len(), if self.end.tied { shape[0] } else { shape[1] });
        let step = (AT_ONCE / vocab).max(1);
        (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
    }

    /// Losses of some rows, `[1, rows]`.
    fn piece(&self, x: Tensor<3>, head: &LmHeadTensors, rows: Range<usize>) -> Tensor<2> {
        let LossTargets { ids, scored } = self.end.targets();
        let targets = LossTargets { ids: &ids[rows.clone()], scored: scored.map(|scored| &scored[rows]) };
        by_parts(x, head.clone(), targets, self.end.implementation)
    }
}

impl GpuOp for CrossEntropyOp {
    fn forward(&self, inputs: &[CubeTensor], tracked: bool) -> OpOutput<CubeTensor> {
        let (end, x) = (&self.end, tensor::<3>(&inputs[self.end.x]));
        let [batch, len, width] = x.dims();
        let (x, head) = (x.reshape([1, batch * len, width]), end.on_gpu(inputs));
        let (mut losses, mut d_x, mut sums) = (Vec::new(), Vec::new(), Vec::<(usize, Tensor<1>)>::new());
        for rows in self.pieces(inputs) {
            let x = x.clone().narrow(1, rows.start, rows.len());
            let Some(share) = self.share.filter(|_| tracked) else {
                losses.push(self.piece(x, &head, rows));
                continue;
            };
            let (x, head) = (x.autodiff().require_grad(), as_leaves(&head));
            let loss = self.piece(x.clone(), &head, rows);
            let mut gradients = (loss.clone().sum() * share).backward();
            losses.push(loss.without_autodiff());
            d_x.push(x.grad_remove(&mut gradients).expect("losses depend on their inputs"));
            let found = end.gradients(&head, &mut gradients);
            sums = if sums.is_empty() {
                found
            } else {
                sums.into_iter().zip(found).map(|((place, sum), (_, more))| (place, sum + more)).collect()
            };
        }
        let losses = Tensor::cat(losses, 1);
        let output = match self.share {
            Some(share) => array(losses.sum() * share),
            None => array(losses.reshape([batch, len])),
        };
        if d_x.is_empty() {
            return OpOutput { output, saved: SavedForBackward::nothing() };
        }
        sums.push((end.x, Tensor::cat(d_x, 1).reshape([-1])));
        OpOutput { output, saved: SavedForBackward::new(sums) }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        assert!(self.share.is_some(), "GPUs compute gradients of a sum of losses only");
        let upstream = tensor::<1>(ctx.d_output);
        let mut gradients: Vec<Option<CubeTensor>> = ctx.inputs.iter().map(|_| None).collect();
        for (place, gradient) in ctx.saved::<Vec<(usize, Tensor<1>)>>() {
            let gradient = array(gradient.clone() * upstream.clone());
            gradients[*place] = Some(like(&ctx.inputs[*place], gradient.handle));
        }
        gradients
    }
}
