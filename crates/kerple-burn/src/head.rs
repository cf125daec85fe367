//! Token embeddings and the loss over the vocabulary as fused CPU operations.

use crate::array::Array;
use crate::fused::{Forward, Input, Number, Op, Saved, Step, apply};
use crate::layers::{EPS, LayerNorm};
use crate::with_element;
use burn::tensor::Tensor;
use kerple::ops::cross_entropy::{self, Gradients, Targets};
use kerple::ops::embedding;
use kerple::ops::layer_norm::Norm;
use kerple::ops::zeros;

/// Inputs: x, gamma, beta, W. The loss of each target, or their mean; the mean's gradients are made in the forward, so the
/// logits are computed once.
#[derive(Debug)]
struct Loss {
    targets: Vec<u32>,
    mean: bool,
}

/// Loss in nats of each target under `softmax(norm(x) W)`, `[B, L]`; or of all in one mean, `[1]`, which trains faster.
pub(crate) fn loss<const D: usize>(
    x: Tensor<3>,
    norm: &LayerNorm,
    weight: Tensor<2>,
    targets: &[u32],
    mean: bool,
) -> Tensor<D> {
    let inputs: Vec<Input> = vec![x.into(), norm.gamma.val().into(), norm.beta.val().into(), weight.into()];
    apply(Loss { targets: targets.to_vec(), mean }, inputs)
}

impl Loss {
    fn head<T: Number>(inputs: &[Array]) -> cross_entropy::Head<'_, T> {
        let norm = Norm { gamma: inputs[1].slice(), beta: inputs[2].slice(), epsilon: EPS };
        cross_entropy::Head { norm, w: inputs[3].slice() }
    }

    fn targets(&self) -> Targets<'_> {
        Targets { ids: &self.targets, scored: None }
    }

    /// The losses, and the gradients of their sum weighted by `d_nll`.
    fn gradients<T: Number>(&self, inputs: &[Array], d_nll: &[T]) -> (Vec<T>, [Vec<T>; 4]) {
        let (nll, gradients) =
            cross_entropy::forward_backward(Loss::head(inputs), inputs[0].slice(), self.targets(), d_nll);
        let Gradients { d_x, d_gamma, d_beta, d_w } = gradients;
        (nll, [d_x, d_gamma, d_beta, d_w])
    }

    fn forward<T: Number>(&self, inputs: &[Array], tracked: bool) -> Forward {
        let count = self.targets.len();
        let shape = |d: [Vec<T>; 4]| d.into_iter().zip(inputs).map(|(d, i)| Array::from_vec(d, i.shape()));
        let (nll, saved) = if tracked && self.mean {
            let (nll, d) = self.gradients(inputs, &vec![T::from_f64(1.0 / count as f64); count]);
            (nll, Saved::new(shape(d).collect::<Vec<Array>>()))
        } else {
            (cross_entropy::forward(Loss::head::<T>(inputs), inputs[0].slice(), self.targets()), Saved::nothing())
        };
        let output = if self.mean {
            let sum: f64 = nll.iter().map(|loss| loss.to_f64()).sum();
            Array::from_vec(vec![T::from_f64(sum / count as f64)], &[1])
        } else {
            Array::from_vec(nll, &inputs[0].shape()[..2])
        };
        Forward { output, saved }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let upstream = step.d_output.slice::<T>();
        if !self.mean {
            let (_, d) = self.gradients(step.inputs, upstream);
            return d.into_iter().zip(step.inputs).map(|(d, i)| Some(Array::from_vec(d, i.shape()))).collect();
        }
        let scale = |saved: &Array| {
            if upstream[0] == T::from_f64(1.0) {
                return saved.clone();
            }
            Array::from_vec(saved.slice::<T>().iter().map(|d| *d * upstream[0]).collect(), saved.shape())
        };
        step.saved::<Vec<Array>>().iter().map(|saved| Some(scale(saved))).collect()
    }
}

impl Op for Loss {
    fn forward(&self, inputs: &[Array], tracked: bool) -> Forward {
        with_element!(inputs[0], T => Loss::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Loss::backward::<T>(self, step))
    }
}

/// Input: the table `[V, M]`. Output: the rows of the tokens, `[B, L, M]`.
#[derive(Debug)]
struct Embed {
    tokens: Vec<u32>,
    shape: [usize; 2],
}

/// Rows of `table` `[V, M]` for `[B, L]` token ids.
pub(crate) fn embed(table: Tensor<2>, tokens: &[u32], shape: [usize; 2]) -> Tensor<3> {
    apply(Embed { tokens: tokens.to_vec(), shape }, vec![table.into()])
}

impl Embed {
    fn forward<T: Number>(&self, table: &Array) -> Array {
        let width = table.shape()[1];
        let mut rows = zeros(self.tokens.len() * width);
        embedding::gather(table.slice::<T>(), &self.tokens, width, &mut rows);
        Array::from_vec(rows, &[self.shape[0], self.shape[1], width])
    }

    fn backward<T: Number>(&self, table: &Array, d_rows: &Array) -> Array {
        let mut d_table = zeros(table.slice::<T>().len());
        embedding::scatter_add(d_rows.slice::<T>(), &self.tokens, table.shape()[1], &mut d_table);
        Array::from_vec(d_table, table.shape())
    }
}

impl Op for Embed {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        let output = with_element!(inputs[0], T => Embed::forward::<T>(self, &inputs[0]));
        Forward { output, saved: Saved::nothing() }
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        vec![Some(with_element!(step.inputs[0], T => Embed::backward::<T>(self, &step.inputs[0], step.d_output)))]
    }
}
