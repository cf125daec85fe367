//! The end of a language model: final norm, logits, and the loss of each target in nats.

#[cfg(feature = "cube")]
mod gpu;
mod likeliest;

pub use likeliest::{TopK, likeliest};

use super::{Norm, linear, norm};
use crate::array::Array;
#[cfg(feature = "cube")]
use crate::fused::GpuOp;
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step, Target};
use crate::with_element;
use burn::tensor::{Int, Tensor, TensorData, activation};
pub use kerple_core::ops::cross_entropy::LossTargets;
use kerple_core::ops::cross_entropy::{self, LmHeadGradients};

/// What has a kernel for the loss, and for losses that are not differentiated.
const KERNELS: &[Target] = &[Target::Host, Target::Gpu];
/// What has one for the gradients of losses, each by itself.
const OF_EACH: &[Target] = &[Target::Host];

/// The tensors of the head.
#[derive(Clone, Debug)]
pub struct Head {
    /// Before the projection.
    pub norm: Norm,
    /// `[M, V]`; `[V, M]`, the embedding itself, when tied.
    pub weight: Tensor<2>,
    /// Whether the weight is the embedding.
    pub tied: bool,
    /// `[V]`, added to the logits.
    pub bias: Option<Tensor<1>>,
}

/// Logits `[B, L, V]` of `x`, `[B, L, M]`: for few positions and for tests.
pub fn logits(x: Tensor<3>, head: Head) -> Tensor<3> {
    logits_after(norm::composed(x, head.norm.clone()), head, Engine::Composed)
}

/// Those of rows that the norm is behind.
fn logits_after(normed: Tensor<3>, Head { weight, tied, bias, .. }: Head, engine: Engine) -> Tensor<3> {
    linear::shifted(normed, weight, tied, bias, engine)
}

/// Loss in nats of each target, `[B, L]`, given `x` `[B, L, M]`; 0 where it is not scored.
///
/// # Panics
/// When the targets are not `B L` many, or a scored one is not below V.
pub fn losses(x: Tensor<3>, head: Head, targets: LossTargets, engine: Engine) -> Tensor<2> {
    let targets_of = if x.is_autodiff() { OF_EACH } else { KERNELS };
    if engine.has_kernel(targets_of, &x) { fused(x, head, targets, None, engine) } else { composed(x, head, targets) }
}

/// `share` times the sum of [`losses`], `[1]`; the mean for a share of [`mean_share`]. The fused gradients are made with the
/// loss, from one computation of the logits.
///
/// # Panics
/// As [`losses`].
pub fn loss(x: Tensor<3>, head: Head, targets: LossTargets, share: f64, engine: Engine) -> Tensor<1> {
    if engine.has_kernel(KERNELS, &x) {
        return fused(x, head, targets, Some(share), engine);
    }
    composed(x, head, targets).sum() * share
}

/// What each scored target counts in their mean: one over their number; 0 when there are none.
pub fn mean_share(targets: LossTargets) -> f64 {
    let all = targets.ids.len();
    let count = targets.scored.map_or(all, |scored| scored.iter().filter(|scored| **scored).count());
    if count == 0 { 0.0 } else { 1.0 / count as f64 }
}

/// The definition of [`losses`].
pub fn composed(x: Tensor<3>, head: Head, targets: LossTargets) -> Tensor<2> {
    by_parts(x, head, targets, Engine::Composed)
}

/// Norm and logits by this engine, the rest composed.
fn by_parts(x: Tensor<3>, head: Head, targets: LossTargets, engine: Engine) -> Tensor<2> {
    let ([batch, len, _], device) = (x.dims(), x.device());
    let rows = batch * len;
    let logits = logits_after(norm::norm(x, head.norm.clone(), engine), head, engine);
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
    head: Head,
    targets: LossTargets,
    share: Option<f64>,
    engine: Engine,
) -> Tensor<D> {
    let mut inputs = Inputs::default();
    let end = End::add(x, head, targets, &mut inputs);
    inputs.apply(Loss { end, share, engine })
}

/// Where the tensors of a model's end are among an operation's inputs, and its targets.
#[derive(Debug)]
struct End {
    x: usize,
    norm: norm::Places,
    weight: usize,
    tied: bool,
    bias: Option<usize>,
    ids: Vec<u32>,
    scored: Option<Vec<bool>>,
}

impl End {
    fn add(x: Tensor<3>, head: Head, targets: LossTargets, inputs: &mut Inputs) -> End {
        let Head { norm, weight, tied, bias } = head;
        let x = inputs.add(x);
        let norm = norm::Places::add(norm, inputs);
        let (weight, bias) = (inputs.add(weight), inputs.add_some(bias));
        End { x, norm, weight, tied, bias, ids: targets.ids.to_vec(), scored: targets.scored.map(<[bool]>::to_vec) }
    }

    fn head<'a, T: Number>(&self, inputs: &'a [Array]) -> cross_entropy::LmHead<'a, T> {
        let bias = self.bias.map(|bias| inputs[bias].slice());
        cross_entropy::LmHead { norm: self.norm.of(inputs), w: inputs[self.weight].slice(), tied: self.tied, bias }
    }

    fn targets(&self) -> LossTargets<'_> {
        LossTargets { ids: &self.ids, scored: self.scored.as_deref() }
    }
}

/// The losses, or their sum times a share; the gradients of the sum are made in the forward.
#[derive(Debug)]
struct Loss {
    end: End,
    share: Option<f64>,
    /// Of GPUs; the processor has one.
    #[cfg_attr(not(feature = "cube"), expect(dead_code, reason = "there are none"))]
    engine: Engine,
}

impl Loss {
    /// The losses, and the gradients of their sum weighted by `d_nll`.
    fn gradients<T: Number>(&self, inputs: &[Array], d_nll: &[T]) -> (Vec<T>, Vec<Option<Array>>) {
        let end = &self.end;
        let x = inputs[end.x].slice();
        let (nll, gradients) = cross_entropy::forward_backward(end.head(inputs), x, end.targets(), d_nll);
        let LmHeadGradients { d_x, d_gamma, d_beta, d_w, d_bias } = gradients;
        let mut found = Found::new(inputs);
        found.put(end.x, d_x);
        end.norm.put(d_gamma, d_beta, &mut found);
        found.put(end.weight, d_w);
        found.put_some(end.bias, d_bias);
        (nll, found.finish())
    }

    fn forward<T: Number>(&self, inputs: &[Array], tracked: bool) -> Forward {
        let end = &self.end;
        let (nll, saved) = match self.share {
            Some(share) if tracked => {
                let (nll, gradients) = self.gradients(inputs, &vec![T::from_f64(share); end.ids.len()]);
                (nll, Saved::new(gradients))
            }
            _ => {
                let nll = cross_entropy::forward(end.head::<T>(inputs), inputs[end.x].slice(), end.targets());
                (nll, Saved::nothing())
            }
        };
        let output = match self.share {
            Some(share) => {
                let sum: f64 = nll.iter().map(|loss| loss.to_f64()).sum();
                Array::from_vec(vec![T::from_f64(sum * share)], &[1])
            }
            None => Array::from_vec(nll, &inputs[end.x].shape()[..2]),
        };
        Forward { output, saved }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let upstream = step.d_output.slice::<T>();
        if self.share.is_none() {
            return self.gradients(step.inputs, upstream).1;
        }
        let scale = |saved: &Array| {
            if upstream[0] == T::from_f64(1.0) {
                return saved.clone();
            }
            Array::from_vec(saved.slice::<T>().iter().map(|d| *d * upstream[0]).collect(), saved.shape())
        };
        step.saved::<Vec<Option<Array>>>().iter().map(|saved| saved.as_ref().map(scale)).collect()
    }
}

impl Op for Loss {
    fn forward(&self, inputs: &[Array], tracked: bool) -> Forward {
        with_element!(inputs[0], T => Loss::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Loss::backward::<T>(self, step))
    }

    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
