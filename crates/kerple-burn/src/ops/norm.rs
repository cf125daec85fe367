//! Normalisation over the last axis: layer norm and RMSNorm.

#[cfg(feature = "cube")]
mod gpu;

#[cfg(feature = "cube")]
use crate::custom_op::GpuOp;
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::Tensor;
pub use kerple_core::ops::layer_norm::RowNorm;
use kerple_core::ops::layer_norm::{self, NormGradients, NormStats};
use kerple_core::ops::zeros;

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu, DeviceKind::Gpu];

/// The tensors of a norm and its choices.
#[derive(Clone, Debug)]
pub struct NormTensors {
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
pub fn norm(x: Tensor<3>, norm: NormTensors, implementation: Impl) -> Tensor<3> {
    if !implementation.has_kernel(KERNELS, &x) {
        return reference(x, norm);
    }
    let mut inputs = OpInputs::default();
    let x = inputs.add(x);
    let op = NormOp { x, norm: NormInputs::add(norm, &mut inputs) };
    inputs.apply(op)
}

/// The reference.
pub fn reference(x: Tensor<3>, NormTensors { kind, gamma, beta, epsilon }: NormTensors) -> Tensor<3> {
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
pub(super) struct NormInputs {
    pub(super) kind: RowNorm,
    pub(super) gamma: usize,
    pub(super) beta: Option<usize>,
    pub(super) epsilon: f64,
}

impl NormInputs {
    pub(super) fn add(norm: NormTensors, inputs: &mut OpInputs) -> NormInputs {
        let NormTensors { kind, gamma, beta, epsilon } = norm;
        NormInputs { kind, gamma: inputs.add(gamma), beta: inputs.add_some(beta), epsilon }
    }

    pub(super) fn of<T: FloatElement>(self, inputs: &[HostArray]) -> layer_norm::NormParameters<'_, T> {
        let NormInputs { kind, gamma, beta, epsilon } = self;
        layer_norm::NormParameters {
            kind,
            gamma: inputs[gamma].slice(),
            beta: beta.map(|beta| inputs[beta].slice()),
            epsilon,
        }
    }

    /// The norm's backward: records the gradients in its parameters and returns that in `x`, with `residual` added.
    pub(super) fn backward<T: FloatElement>(
        self,
        x: &[T],
        stats: &NormStats<T>,
        d_y: &[T],
        residual: Option<&[T]>,
        found: &mut InputGrads,
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
    pub(super) fn put<T: FloatElement>(self, d_gamma: Vec<T>, d_beta: Option<Vec<T>>, found: &mut InputGrads) {
        found.put(self.gamma, d_gamma);
        found.put_some(self.beta, d_beta);
    }
}

/// A norm by itself.
#[derive(Debug)]
struct NormOp {
    x: usize,
    norm: NormInputs,
}

impl NormOp {
    fn forward<T: FloatElement>(&self, inputs: &[HostArray]) -> OpOutput {
        let mut y = Vec::new();
        let stats = layer_norm::forward(self.norm.of::<T>(inputs), inputs[self.x].slice(), &mut y);
        OpOutput { output: HostArray::from_vec(y, inputs[self.x].shape()), saved: SavedForBackward::new(stats) }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let mut found = InputGrads::new(ctx.inputs);
        let (x, d_y) = (ctx.inputs[self.x].slice::<T>(), ctx.d_output.slice());
        let d_x = self.norm.backward(x, ctx.saved::<NormStats<T>>(), d_y, None, &mut found);
        found.put(self.x, d_x);
        found.finish()
    }
}

impl CustomOp for NormOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => NormOp::forward::<T>(self, inputs))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => NormOp::backward::<T>(self, ctx))
    }
    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}
