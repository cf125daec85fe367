//! The end of a language model: final norm, logits, and the loss of each target in nats.

#[cfg(feature = "cube")]
mod gpu;
mod likeliest;

pub use likeliest::{TopK, likeliest};

use super::{NormTensors, linear, norm};
#[cfg(feature = "cube")]
use crate::custom_op::GpuOp;
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{Int, Tensor, TensorData, activation};
pub use kerple_core::ops::cross_entropy::LossTargets;
use kerple_core::ops::cross_entropy::{self, LmHeadGradients};

/// What has a kernel for the loss, and for losses that are not differentiated.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu, DeviceKind::Gpu];
/// What has one for the gradients of losses, each by itself, and for logits without gradients.
const OF_EACH: &[DeviceKind] = &[DeviceKind::Cpu];

/// The tensors of the head.
#[derive(Clone, Debug)]
pub struct LmHeadTensors {
    /// Before the projection.
    pub norm: NormTensors,
    /// `[M, V]`; `[V, M]`, the embedding itself, when tied. May be held as `bf16` where nothing is trained.
    pub weight: Tensor<2>,
    /// Whether the weight is the embedding.
    pub tied: bool,
    /// `[V]`, added to the logits.
    pub bias: Option<Tensor<1>>,
}

/// Logits `[B, L, V]` of `x`, `[B, L, M]`: for few positions and for tests.
pub fn logits(x: Tensor<3>, head: LmHeadTensors, implementation: Impl) -> Tensor<3> {
    if x.is_autodiff() || !implementation.has_kernel(OF_EACH, &x) {
        return logits_after(norm::reference(x, head.norm.clone()), head, Impl::Reference);
    }
    let mut inputs = OpInputs::default();
    let end = LmHeadInputs::add(x, head, LossTargets { ids: &[], scored: None }, implementation, &mut inputs);
    inputs.apply(LogitsOp { end })
}

/// Those of rows that the norm is behind.
fn logits_after(
    normed: Tensor<3>,
    LmHeadTensors { weight, tied, bias, .. }: LmHeadTensors,
    implementation: Impl,
) -> Tensor<3> {
    linear::shifted(normed, weight, tied, bias, implementation)
}

/// Loss in nats of each target, `[B, L]`, given `x` `[B, L, M]`; 0 where it is not scored.
///
/// # Panics
/// When the targets are not `B L` many, or a scored one is not below V.
pub fn losses(x: Tensor<3>, head: LmHeadTensors, targets: LossTargets, implementation: Impl) -> Tensor<2> {
    let targets_of = if x.is_autodiff() { OF_EACH } else { KERNELS };
    if implementation.has_kernel(targets_of, &x) {
        fused(x, head, targets, None, implementation)
    } else {
        reference(x, head, targets)
    }
}

/// `share` times the sum of [`losses`], `[1]`; the mean for a share of [`mean_share`]. The fused gradients are made with the
/// loss, from one computation of the logits.
///
/// # Panics
/// As [`losses`].
pub fn loss(x: Tensor<3>, head: LmHeadTensors, targets: LossTargets, share: f64, implementation: Impl) -> Tensor<1> {
    if implementation.has_kernel(KERNELS, &x) {
        return fused(x, head, targets, Some(share), implementation);
    }
    reference(x, head, targets).sum() * share
}

/// What each scored target counts in their mean: one over their number; 0 when there are none.
pub fn mean_share(targets: LossTargets) -> f64 {
    let all = targets.ids.len();
    let count = targets.scored.map_or(all, |scored| scored.iter().filter(|scored| **scored).count());
    if count == 0 { 0.0 } else { 1.0 / count as f64 }
}

/// The reference of [`losses`].
pub fn reference(x: Tensor<3>, head: LmHeadTensors, targets: LossTargets) -> Tensor<2> {
    by_parts(x, head, targets, Impl::Reference)
}

/// Norm and logits by this implementation, the rest by the reference.
fn by_parts(x: Tensor<3>, head: LmHeadTensors, targets: LossTargets, implementation: Impl) -> Tensor<2> {
    let ([batch, len, _], device) = (x.dims(), x.device());
    let rows = batch * len;
    let logits = logits_after(norm::norm(x, head.norm.clone(), implementation), head, implementation);
    let vocab = logits.dims()[2];
    let log_probabilities = activation::log_softmax(logits.reshape([rows, vocab]), 1);
    let is_scored = |row: usize| targets.scored.is_none_or(|scored| scored[row]);
    // a target that is not scored may be anything; some row has to be looked up
    let id = |(row, id): (usize, &u32)| if is_scored(row) { i64::from(*id) } else { 0 };
    let index: Vec<i64> = targets.ids.iter().enumerate().map(id).collect();
    let index = Tensor::<2, Int>::from_data(TensorData::new(index, [rows, 1]), &device);
    let losses = -log_probabilities.gather(1, index).reshape([batch, len]);
    match targets.scored {
        None => losses,
        Some(scored) => {
            let hidden: Vec<bool> = scored.iter().map(|scored| !scored).collect();
            losses.mask_fill(Tensor::from_data(TensorData::new(hidden, [batch, len]), &device), 0.0)
        }
    }
}

fn fused<const D: usize>(
    x: Tensor<3>,
    head: LmHeadTensors,
    targets: LossTargets,
    share: Option<f64>,
    implementation: Impl,
) -> Tensor<D> {
    let mut inputs = OpInputs::default();
    let end = LmHeadInputs::add(x, head, targets, implementation, &mut inputs);
    inputs.apply(CrossEntropyOp { end, share })
}

/// Where the tensors of a model's end are among an operation's inputs, and its targets.
#[derive(Debug)]
struct LmHeadInputs {
    x: usize,
    norm: norm::NormInputs,
    weight: usize,
    tied: bool,
    bias: Option<usize>,
    ids: Vec<u32>,
    scored: Option<Vec<bool>>,
    implementation: Impl,
}

impl LmHeadInputs {
    fn add(
        x: Tensor<3>,
        head: LmHeadTensors,
        targets: LossTargets,
        implementation: Impl,
        inputs: &mut OpInputs,
    ) -> LmHeadInputs {
        let LmHeadTensors { norm, weight, tied, bias } = head;
        let x = inputs.add(x);
        let norm = norm::NormInputs::add(norm, inputs);
        let (weight, bias) = (inputs.add(weight), inputs.add_some(bias));
        LmHeadInputs {
            x,
            norm,
            weight,
            tied,
            bias,
            ids: targets.ids.to_vec(),
            scored: targets.scored.map(<[bool]>::to_vec),
            implementation,
        }
    }

    fn head<'a, T: FloatElement>(&self, inputs: &'a [HostArray]) -> cross_entropy::LmHead<'a, T> {
        cross_entropy::LmHead {
            norm: self.norm.of(inputs),
            w: inputs[self.weight].kept(),
            tied: self.tied,
            bias: self.bias.map(|bias| inputs[bias].slice()),
            precision: self.implementation.precision(),
        }
    }

    fn targets(&self) -> LossTargets<'_> {
        LossTargets { ids: &self.ids, scored: self.scored.as_deref() }
    }
}

/// Logits, of no targets.
#[derive(Debug)]
struct LogitsOp {
    end: LmHeadInputs,
}

impl LogitsOp {
    fn run<T: FloatElement>(&self, inputs: &[HostArray]) -> HostArray {
        let x = &inputs[self.end.x];
        let logits = cross_entropy::logits(self.end.head::<T>(inputs), x.slice());
        let (batch, len) = (x.shape()[0], x.shape()[1]);
        let vocab = logits.len() / (batch * len).max(1);
        HostArray::from_vec(logits, &[batch, len, vocab])
    }
}

impl CustomOp for LogitsOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        let output = with_element!(inputs[self.end.x], T => self.run::<T>(inputs));
        OpOutput { output, saved: SavedForBackward::nothing() }
    }

    fn backward(&self, _step: &BackwardContext) -> Vec<Option<HostArray>> {
        panic!("logits alone have no gradients: train with `losses`")
    }
}

/// The losses, or their sum times a share; the gradients of the sum are made in the forward.
#[derive(Debug)]
struct CrossEntropyOp {
    end: LmHeadInputs,
    share: Option<f64>,
}

impl CrossEntropyOp {
    /// The losses, and the gradients of their sum weighted by `d_nll`.
    fn gradients<T: FloatElement>(&self, inputs: &[HostArray], d_nll: &[T]) -> (Vec<T>, Vec<Option<HostArray>>) {
        let end = &self.end;
        let x = inputs[end.x].slice();
        let (nll, gradients) = cross_entropy::forward_backward(end.head(inputs), x, end.targets(), d_nll);
        let LmHeadGradients { d_x, d_gamma, d_beta, d_w, d_bias } = gradients;
        let mut found = InputGrads::new(inputs);
        found.put(end.x, d_x);
        end.norm.put(d_gamma, d_beta, &mut found);
        found.put(end.weight, d_w);
        found.put_some(end.bias, d_bias);
        (nll, found.finish())
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        let end = &self.end;
        let (nll, saved) = match self.share {
            Some(share) if tracked => {
                let (nll, gradients) = self.gradients(inputs, &vec![T::from_f64(share); end.ids.len()]);
                (nll, SavedForBackward::new(gradients))
            }
            _ => {
                let nll = cross_entropy::forward(end.head::<T>(inputs), inputs[end.x].slice(), end.targets());
                (nll, SavedForBackward::nothing())
            }
        };
        let output = match self.share {
            Some(share) => {
                let sum: f64 = nll.iter().map(|loss| loss.to_f64()).sum();
                HostArray::from_vec(vec![T::from_f64(sum * share)], &[1])
            }
            None => HostArray::from_vec(nll, &inputs[end.x].shape()[..2]),
        };
        OpOutput { output, saved }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let upstream = ctx.d_output.slice::<T>();
        if self.share.is_none() {
            return self.gradients(ctx.inputs, upstream).1;
        }
        let scale = |saved: &HostArray| {
            if upstream[0] == T::from_f64(1.0) {
                return saved.clone();
            }
            HostArray::from_vec(saved.slice::<T>().iter().map(|d| *d * upstream[0]).collect(), saved.shape())
        };
        ctx.saved::<Vec<Option<HostArray>>>().iter().map(|saved| saved.as_ref().map(scale)).collect()
    }
}

impl CustomOp for CrossEntropyOp {
    fn forward(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => CrossEntropyOp::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => CrossEntropyOp::backward::<T>(self, ctx))
    }

    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
