//! Steps between the projection of queries and keys and their rotation: a norm per head, and
//! queries that are scaled by the number of keys they attend to.
//!
//! ```text
//! q, k = gamma x / sqrt(mean(x^2) + epsilon)      over the D features of a head (Henry et al. 2020, arXiv:2010.04245)
//! q    = slope[h] ln(n) q                         n visible keys: scalable softmax (Nakanishi 2025, arXiv:2501.19399)
//! ```

use crate::attention_context::AttentionMask;
use crate::custom_op::{FloatElement, InputGrads, OpInputs};
use crate::heads::Heads;
use crate::host_array::HostArray;
use burn::tensor::{Tensor, TensorData};
use kerple_core::ops::heads::{self, HeadLayout, HeadNorm, ScalableSoftmax};

/// What is done, and its tensors.
#[derive(Clone, Debug, Default)]
pub struct QkScaling {
    /// Scales of the norms of queries and of keys, `[D]` each, where they have norms.
    pub norms: Option<[Tensor<1>; 2]>,
    /// Added to the mean square.
    pub epsilon: f64,
    /// ScalableSoftmax: the factor of the logarithm of the number of visible keys, `[H]`, if there
    /// is one.
    pub ssmax: Option<Tensor<1>>,
}

impl QkScaling {
    /// Whether nothing is done.
    pub fn is_nothing(&self) -> bool {
        self.norms.is_none() && self.ssmax.is_none()
    }
}

/// Packed rows `[B, L, (H + 2 G) D]` of the last of `keys` positions, made ready to be rotated; reference implementation.
pub fn reference(qkv: Tensor<3>, scaling: &QkScaling, heads: Heads, mask: &AttentionMask, keys: usize) -> Tensor<3> {
    if scaling.is_nothing() {
        return qkv;
    }
    let [mut q, mut k, v] = heads.split(qkv);
    if let Some([of_queries, of_keys]) = &scaling.norms {
        let normed = |x: Tensor<4>, gamma: &Tensor<1>| {
            let square = x.clone().powi_scalar(2).mean_dim(3);
            x / (square + scaling.epsilon).sqrt() * gamma.clone().unsqueeze::<4>()
        };
        (q, k) = (normed(q, of_queries), normed(k, of_keys));
    }
    if let Some(ssmax) = &scaling.ssmax {
        let [_, len, count, _] = q.dims();
        let logs = mask.log_counts([len, keys]);
        let shape = [logs.len() / len.max(1), len, 1, 1];
        let logs = Tensor::<4>::from_data(TensorData::new(logs, shape), (&q.device(), q.dtype()));
        q = q * logs * ssmax.clone().reshape([1, 1, count, 1]);
    }
    heads.join([q, k, v])
}

/// Where the tensors are among an operation's inputs.
#[derive(Clone, Debug)]
pub(super) struct QkScalingInputs {
    norms: Option<[usize; 2]>,
    epsilon: f64,
    ssmax: Option<usize>,
    logs: Vec<f64>,
}

impl QkScalingInputs {
    /// Of a branch over `len` positions.
    pub(super) fn add(scaling: QkScaling, mask: &AttentionMask, len: usize, inputs: &mut OpInputs) -> QkScalingInputs {
        let QkScaling { norms, epsilon, ssmax } = scaling;
        let logs = if ssmax.is_some() { mask.log_counts([len, len]) } else { Vec::new() };
        let norms = norms.map(|norms| norms.map(|gamma| inputs.add(gamma)));
        QkScalingInputs { norms, epsilon, ssmax: inputs.add_some(ssmax), logs }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.norms.is_none() && self.ssmax.is_none()
    }

    /// Prepares packed rows in place.
    pub(super) fn forward<T: FloatElement>(&self, inputs: &[HostArray], heads: Heads, qkv: &mut [T]) {
        for (place, norm) in self.of_norms(inputs, heads) {
            heads::norm(qkv, place, norm);
        }
        let logs = self.logs::<T>();
        if let Some((_, ssmax)) = self.ssmax(inputs, &logs) {
            heads::scale(qkv, of_queries(heads), ssmax);
        }
    }

    /// Turns the gradient in prepared rows into that in `raw` ones; records those of the parameters.
    pub(super) fn backward<T: FloatElement>(&self, raw: &[T], heads: Heads, d_qkv: &mut [T], found: &mut InputGrads) {
        let (inputs, logs) = (found.inputs(), self.logs::<T>());
        if let Some((place, ssmax)) = self.ssmax(inputs, &logs) {
            let mut normed = raw.to_vec();
            for (place, norm) in self.of_norms(inputs, heads) {
                heads::norm(&mut normed, place, norm);
            }
            found.put(place, heads::scale_backward(&normed, d_qkv, of_queries(heads), ssmax));
        }
        for ((place, norm), gamma) in self.of_norms(inputs, heads).zip(self.norms.into_iter().flatten()) {
            found.put(gamma, heads::norm_backward(raw, d_qkv, place, norm));
        }
    }

    fn logs<T: FloatElement>(&self) -> Vec<T> {
        self.logs.iter().map(|log| T::from_f64(*log)).collect()
    }

    /// The norms of queries and keys, and where those lie.
    fn of_norms<'a, T: FloatElement>(
        &self,
        inputs: &'a [HostArray],
        heads: Heads,
    ) -> impl Iterator<Item = (HeadLayout, HeadNorm<'a, T>)> + use<'a, T> {
        let epsilon = self.epsilon;
        let places = [of_queries(heads), of_keys(heads)];
        let gammas = self.norms.into_iter().flatten();
        places
            .into_iter()
            .zip(gammas)
            .map(move |(place, gamma)| (place, HeadNorm { gamma: inputs[gamma].slice(), epsilon }))
    }

    fn ssmax<'a, T: FloatElement>(
        &self,
        inputs: &'a [HostArray],
        logs: &'a [T],
    ) -> Option<(usize, ScalableSoftmax<'a, T>)> {
        self.ssmax.map(|place| (place, ScalableSoftmax { slopes: inputs[place].slice(), logs }))
    }
}

fn of_queries(heads: Heads) -> HeadLayout {
    let ([start, ..], strides) = heads.layout(1);
    HeadLayout { row: heads.packed(), start, stride: strides.head, heads: heads.heads, head_dim: heads.head_dim }
}

fn of_keys(heads: Heads) -> HeadLayout {
    let ([_, start, _], strides) = heads.layout(1);
    HeadLayout { row: heads.packed(), start, stride: strides.head, heads: heads.kv_heads, head_dim: heads.head_dim }
}
