//! Normalisation over the last axis: layer norm and RMSNorm.

#[cfg(feature = "cube")]
mod gpu;

use crate::array::Array;
#[cfg(feature = "cube")]
use crate::fused::GpuOp;
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step, Target};
use crate::with_element;
use burn::tensor::Tensor;
pub use kerple_core::ops::layer_norm::RowNorm;
use kerple_core::ops::layer_norm::{self, NormGradients, NormStats};
use kerple_core::ops::zeros;

/// What has a kernel for it.
const KERNELS: &[Target] = &[Target::Host, Target::Gpu];

/// The tensors of a norm and its choices.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Layer norm or root mean square.
    pub kind: RowNorm,
    /// Scale, `[M]`.
    pub gamma: Tensor<1>,
    /// Shift, `[M]`.
    pub beta: Option<Tensor<1>>,
    /// Added to the variance.
    pub epsilon: f64,
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` on `[B, L, M]`, biased variance; the mean counts as 0 for
/// [`RowNorm::Rms`].
pub fn norm(x: Tensor<3>, norm: Norm, engine: Engine) -> Tensor<3> {
    if !engine.has_kernel(KERNELS, &x) {
        return composed(x, norm);
    }
    let mut inputs = Inputs::default();
    let x = inputs.add(x);
    let op = Alone { x, norm: Places::add(norm, &mut inputs) };
    inputs.apply(op)
}

/// The definition.
pub fn composed(x: Tensor<3>, Norm { kind, gamma, beta, epsilon }: Norm) -> Tensor<3> {
    let centred = match kind {
        RowNorm::Layer => x.clone() - x.mean_dim(2),
        RowNorm::Rms => x,
    };
    let variance = centred.clone().powi_scalar(2).mean_dim(2);
    let scaled = centred / (variance + epsilon).sqrt() * gamma.unsqueeze();
    match beta {
        Some(beta) => scaled + beta.unsqueeze(),
        None => scaled,
    }
}

/// Where the tensors of a norm are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) kind: RowNorm,
    pub(super) gamma: usize,
    pub(super) beta: Option<usize>,
    pub(super) epsilon: f64,
}

impl Places {
    pub(super) fn add(norm: Norm, inputs: &mut Inputs) -> Places {
        let Norm { kind, gamma, beta, epsilon } = norm;
        Places { kind, gamma: inputs.add(gamma), beta: inputs.add_some(beta), epsilon }
    }

    pub(super) fn of<T: Number>(self, inputs: &[Array]) -> layer_norm::NormParameters<'_, T> {
        let Places { kind, gamma, beta, epsilon } = self;
        layer_norm::NormParameters {
            kind,
            gamma: inputs[gamma].slice(),
            beta: beta.map(|beta| inputs[beta].slice()),
            epsilon,
        }
    }

    /// The norm's backward: records the gradients in its parameters and returns that in `x`, with `residual` added.
    pub(super) fn backward<T: Number>(
        self,
        x: &[T],
        stats: &NormStats<T>,
        d_y: &[T],
        residual: Option<&[T]>,
        found: &mut Found,
    ) -> Vec<T> {
        let norm = self.of::<T>(found.inputs());
        let (mut d_x, mut d_gamma) = (Vec::new(), zeros(norm.gamma.len()));
        let mut d_beta = norm.beta.map(|beta| zeros(beta.len()));
        let gradients = NormGradients { d_gamma: &mut d_gamma, d_beta: d_beta.as_deref_mut() };
        layer_norm::backward(norm, x, stats, d_y, residual, &mut d_x, gradients);
        self.put(d_gamma, d_beta, found);
        d_x
    }

    /// Records the gradients in the parameters.
    pub(super) fn put<T: Number>(self, d_gamma: Vec<T>, d_beta: Option<Vec<T>>, found: &mut Found) {
        found.put(self.gamma, d_gamma);
        found.put_some(self.beta, d_beta);
    }
}

/// A norm by itself.
#[derive(Debug)]
struct Alone {
    x: usize,
    norm: Places,
}

impl Alone {
    fn forward<T: Number>(&self, inputs: &[Array]) -> Forward {
        let mut y = Vec::new();
        let stats = layer_norm::forward(self.norm.of::<T>(inputs), inputs[self.x].slice(), &mut y);
        Forward { output: Array::from_vec(y, inputs[self.x].shape()), saved: Saved::new(stats) }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let mut found = Found::new(step.inputs);
        let (x, d_y) = (step.inputs[self.x].slice::<T>(), step.d_output.slice());
        let d_x = self.norm.backward(x, step.saved::<NormStats<T>>(), d_y, None, &mut found);
        found.put(self.x, d_x);
        found.finish()
    }
}

impl Op for Alone {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        with_element!(inputs[0], T => Alone::forward::<T>(self, inputs))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Alone::backward::<T>(self, step))
    }
    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
