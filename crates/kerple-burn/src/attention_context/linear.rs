//! What positions contribute to linear attention: a stochastic code of queries and keys, or a decay with distance.

use crate::chunk::Chunk;
use crate::forward_context::ForwardContext;
use burn::tensor::{DType, Tensor};
use std::sync::Arc;

/// What linear attention takes besides its rows, mask and gates.
#[derive(Clone, Debug)]
pub struct LinearContext {
    /// A stochastic code of queries and keys.
    pub code: Option<Arc<StochasticCode>>,
    /// The decay of products with distance.
    pub decay: Option<Arc<DecayTensors>>,
    /// Codes and random features are drawn from this.
    pub pass: ForwardContext,
    /// The place of the rows in longer sequences, where they are a chunk of those.
    pub chunk: Option<Chunk>,
}

impl Default for LinearContext {
    fn default() -> Self {
        LinearContext { code: None, decay: None, pass: ForwardContext::evaluation(0), chunk: None }
    }
}

/// A stochastic code with what it learns.
#[derive(Clone, Debug)]
pub struct StochasticCode {
    /// Which code.
    pub plan: kerple_core::forms::CodeForm,
    /// The encoding's parameters, flattened, in their order.
    pub values: Vec<Tensor<1>>,
}

impl StochasticCode {
    /// All parameters, one after another.
    pub(crate) fn joined(&self, dtype: DType) -> Tensor<1> {
        let all = Tensor::cat(self.values.clone(), 0);
        if all.dtype() == dtype { all } else { all.cast(dtype) }
    }

    /// The numbers of each parameter, of those of all.
    pub(crate) fn split(&self, joined: &[f64]) -> Vec<Vec<f64>> {
        let mut rest = joined;
        let part = |values: &Tensor<1>| {
            let (part, more) = rest.split_at(values.dims()[0]);
            rest = more;
            part.to_vec()
        };
        self.values.iter().map(part).collect()
    }
}

/// A decay of linear attention, see [`kerple_core::attention::linear::Decay`].
#[derive(Clone, Debug)]
pub struct DecayTensors {
    /// At short distances, `[H, met]`.
    pub near: Tensor<2>,
    /// At all others; `None`: nothing is left of them.
    pub beyond: Option<ExponentialTensors>,
}

/// A sum of decaying exponentials.
#[derive(Clone, Debug)]
pub struct ExponentialTensors {
    /// `[H, K]`
    pub weights: Tensor<2>,
    /// `[H, K]`
    pub rates: Arc<[f64]>,
}
