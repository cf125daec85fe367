//! Steps between the projection of queries, keys and values and their rotation: keys, perhaps values too, that are mixed with
//! those before them, a norm per head, and queries that are scaled by the number of keys they attend to.
//!
//! ```text
//! k, v = x_t + sum_{w<W} f[c, w] x_{t-W+1+w}      short convolutions, see [`short_conv`](super::short_conv)
//! k_t  = (1 - m) k_t + m k_{t-1}                  m = sigmoid(key_shift[g]), k_{-1} = 0: a key shift
//! q, k = gamma x / sqrt(mean(x^2) + epsilon)      over the D features of a head (Henry et al. 2020, arXiv:2010.04245)
//! q    = slope[h] ln(n) q                         n visible keys: scalable softmax (Nakanishi 2025, arXiv:2501.19399)
//! q    = tau_i q                                  at position i of a document, see [`AttnTemperature`]
//! ```

use super::content_rotation::AnglesBefore;
use super::short_conv;
use crate::attention_context::AttentionMask;
use crate::custom_op::{FloatElement, InputGrads, OpInputs};
use crate::heads::Heads;
use crate::host_array::HostArray;
use crate::implementation::Impl;
use burn::tensor::{Bool, Tensor, TensorData, activation};
use kerple_core::forms::AttnTemperature;
use kerple_core::ops::heads::{self, HeadLayout, HeadNorm, ScalableSoftmax, TokenShift};
use kerple_core::ops::short_conv::{self as core_conv, ShortConv};
use std::borrow::Cow;

/// What is done, and its tensors.
#[derive(Clone, Debug, Default)]
pub struct QkScaling {
    /// Short convolutions of keys and of values: filters `[G D, W]` each, where there are any; not with a key shift.
    pub convs: Option<[Tensor<2>; 2]>,
    /// The key shift: logits of the share of the key before, `[G]`, where there is one.
    pub key_shift: Option<Tensor<1>>,
    /// Scales of the norms of queries and of keys, `[D]` each, where they have norms.
    pub norms: Option<[Tensor<1>; 2]>,
    /// Added to the mean square.
    pub epsilon: f64,
    /// ScalableSoftmax: the factor of the logarithm of the number of visible keys, `[H]`, if there
    /// is one.
    pub ssmax: Option<Tensor<1>>,
    /// A factor of queries that grows with their position, where there is one.
    pub temperature: Option<AttnTemperature>,
}

impl QkScaling {
    /// Whether nothing is done.
    pub fn is_nothing(&self) -> bool {
        let Self { convs, key_shift, norms, epsilon: _, ssmax, temperature } = self;
        convs.is_none() && key_shift.is_none() && norms.is_none() && ssmax.is_none() && temperature.is_none()
    }
}

/// Rows of the last positions, which are mixed into those of the next ones.
#[derive(Clone, Debug, Default)]
pub struct RowsBefore {
    /// The last key as it was projected, `[B, 1, G, D]`, where a layer has a key shift.
    pub key: Option<Tensor<4>>,
    /// The last projected keys and values, `[B, W - 1, G D]`, and outputs of both branches, `[B, W - 1, M]`, where a layer has
    /// short convolutions.
    pub convolved: [Option<Tensor<3>>; 4],
    /// Where a layer turns queries and keys by its rows.
    pub angles: AnglesBefore,
    /// The last projected rows of the directions of Householder products, `[B, W - 1, G D]`, where a layer has them.
    pub directions: Option<Tensor<3>>,
}

/// Of `[B, L]` or `[L]` rows whether they begin a sequence, or a document of one.
fn begins(mask: &AttentionMask, len: usize) -> Vec<bool> {
    match &mask.documents {
        Some(documents) => documents.position_ids().into_iter().map(|position| position == 0).collect(),
        None => (0..len).map(|row| row == 0).collect(),
    }
}

/// The factors of queries, `[L]` or `[B, L]`, the last `len` of `keys` positions.
fn factors(temperature: AttnTemperature, mask: &AttentionMask, [len, keys]: [usize; 2]) -> Vec<f64> {
    match &mask.documents {
        Some(documents) => documents.position_ids().into_iter().map(|position| temperature.at(position)).collect(),
        None => (keys - len..keys).map(|position| temperature.at(position)).collect(),
    }
}

/// Keys `[B, L, G, D]` before each of these, which begin sequences or follow on the key `[B, 1, G, D]` of a cache.
fn keys_before(keys: &Tensor<4>, before: Option<&Tensor<4>>, mask: &AttentionMask) -> Tensor<4> {
    let [batch, len, heads, head_dim] = keys.dims();
    let first = match before {
        Some(key) => key.clone(),
        None => Tensor::zeros([batch, 1, heads, head_dim], (&keys.device(), keys.dtype())),
    };
    let shifted = match len {
        1 => first,
        _ => Tensor::cat(vec![first, keys.clone().narrow(1, 0, len - 1)], 1),
    };
    if mask.documents.is_none() {
        return shifted;
    }
    let begins = Tensor::<4, Bool>::from_data(TensorData::new(begins(mask, len), [batch, len, 1, 1]), &keys.device());
    shifted.mask_fill(begins.expand([batch, len, heads, head_dim]), 0.0)
}

/// Packed rows `[B, L, (H + 2 G) D]` of the last of `keys` positions, made ready to be rotated: the reference, but for
/// convolutions, which are of this implementation where nothing is cached. `before` are projected rows of positions before these,
/// where a cache has them; the last ones of these take their place.
pub fn by_parts(
    qkv: Tensor<3>,
    scaling: &QkScaling,
    heads: Heads,
    mask: &AttentionMask,
    keys: usize,
    (implementation, mut before): (Impl, Option<&mut RowsBefore>),
) -> Tensor<3> {
    if scaling.is_nothing() {
        return qkv;
    }
    let [mut q, mut k, mut v] = heads.split(qkv);
    if let Some(filters) = &scaling.convs {
        for (at, (x, filters)) in [&mut k, &mut v].into_iter().zip(filters).enumerate() {
            let [batch, len, groups, width] = x.dims();
            let rows = x.clone().reshape([batch, len, groups * width]);
            let rows = match before.as_deref_mut() {
                Some(before) => short_conv::reference(rows, filters, mask, Some(&mut before.convolved[at])),
                None => short_conv::short_conv(rows, filters.clone(), mask, implementation),
            };
            *x = rows.reshape([batch, len, groups, width]);
        }
    }
    if let Some(logits) = &scaling.key_shift {
        let share = activation::sigmoid(logits.clone()).reshape([1, 1, heads.kv_heads, 1]);
        let projected = k;
        let earlier = keys_before(&projected, before.as_deref().and_then(|before| before.key.as_ref()), mask);
        k = projected.clone() * (share.clone().neg() + 1.0) + earlier * share;
        if let Some(before) = before {
            let last = projected.dims()[1] - 1;
            before.key = Some(projected.narrow(1, last, 1));
        }
    }
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
    if let Some(temperature) = scaling.temperature {
        let len = q.dims()[1];
        let factors = factors(temperature, mask, [len, keys]);
        let shape = [factors.len() / len.max(1), len, 1, 1];
        q = q.clone() * Tensor::<4>::from_data(TensorData::new(factors, shape), (&q.device(), q.dtype()));
    }
    heads.join([q, k, v])
}

/// Where the tensors are among an operation's inputs.
#[derive(Clone, Debug)]
pub(super) struct QkScalingInputs {
    /// Filters of keys and of values, and the tokens of its sequence before each row; empty without them.
    convs: Option<[usize; 2]>,
    positions: Vec<usize>,
    key_shift: Option<usize>,
    /// Whether rows begin a sequence; empty without a key shift.
    is_first: Vec<bool>,
    norms: Option<[usize; 2]>,
    epsilon: f64,
    ssmax: Option<usize>,
    logs: Vec<f64>,
    /// Of the temperature; empty without one.
    factors: Vec<f64>,
}

impl QkScalingInputs {
    /// Of a branch over `len` positions.
    pub(super) fn add(scaling: QkScaling, mask: &AttentionMask, len: usize, inputs: &mut OpInputs) -> QkScalingInputs {
        let QkScaling { convs, key_shift, norms, epsilon, ssmax, temperature } = scaling;
        let factors = temperature.map_or(Vec::new(), |temperature| factors(temperature, mask, [len, len]));
        let positions = if convs.is_some() { short_conv::positions(mask, len) } else { Vec::new() };
        let is_first = if key_shift.is_some() { begins(mask, len) } else { Vec::new() };
        let logs = if ssmax.is_some() { mask.log_counts([len, len]) } else { Vec::new() };
        let convs = convs.map(|filters| filters.map(|filters| inputs.add(filters)));
        let norms = norms.map(|norms| norms.map(|gamma| inputs.add(gamma)));
        let (key_shift, ssmax) = (inputs.add_some(key_shift), inputs.add_some(ssmax));
        QkScalingInputs { convs, positions, key_shift, is_first, norms, epsilon, ssmax, logs, factors }
    }

    pub(super) fn is_nothing(&self) -> bool {
        let Self { convs, key_shift, norms, ssmax, factors, .. } = self;
        convs.is_none() && key_shift.is_none() && norms.is_none() && ssmax.is_none() && factors.is_empty()
    }

    /// Prepares packed rows in place.
    pub(super) fn forward<T: FloatElement>(&self, inputs: &[HostArray], heads: Heads, qkv: &mut [T]) {
        self.mix(inputs, heads, qkv);
        for (place, norm) in self.of_norms(inputs, heads) {
            heads::norm(qkv, place, norm);
        }
        let logs = self.logs::<T>();
        if let Some((_, ssmax)) = self.ssmax(inputs, &logs) {
            heads::scale(qkv, of_queries(heads), ssmax);
        }
        self.scale_by_factors(heads, qkv);
    }

    /// Multiplies queries, or their gradient, by the factors of the temperature.
    fn scale_by_factors<T: FloatElement>(&self, heads: Heads, qkv: &mut [T]) {
        if !self.factors.is_empty() {
            let factors: Vec<T> = self.factors.iter().map(|factor| T::from_f64(*factor)).collect();
            let slopes = vec![T::from_f64(1.0); heads.heads];
            heads::scale(qkv, of_queries(heads), ScalableSoftmax { slopes: &slopes, logs: &factors });
        }
    }

    /// Turns the gradient in prepared rows into that in `raw` ones; records those of the parameters.
    pub(super) fn backward<T: FloatElement>(&self, raw: &[T], heads: Heads, d_qkv: &mut [T], found: &mut InputGrads) {
        self.scale_by_factors(heads, d_qkv);
        let (inputs, logs) = (found.inputs(), self.logs::<T>());
        let mut mixed = Cow::from(raw);
        let mixes = self.key_shift.is_some() || self.convs.is_some();
        if mixes && (self.norms.is_some() || self.ssmax.is_some()) {
            self.mix(inputs, heads, mixed.to_mut());
        }
        if let Some((place, ssmax)) = self.ssmax(inputs, &logs) {
            let mut normed = mixed.to_vec();
            for (place, norm) in self.of_norms(inputs, heads) {
                heads::norm(&mut normed, place, norm);
            }
            found.put(place, heads::scale_backward(&normed, d_qkv, of_queries(heads), ssmax));
        }
        for ((place, norm), gamma) in self.of_norms(inputs, heads).zip(self.norms.into_iter().flatten()) {
            found.put(gamma, heads::norm_backward(&mixed, d_qkv, place, norm));
        }
        if let Some(place) = self.key_shift {
            let shares = self.shares::<T>(inputs);
            let by = TokenShift { shares: &shares, is_first: &self.is_first };
            let d_shares = heads::shift_backward(raw, d_qkv, of_keys(heads), by);
            let of_logit = |(d, share): (T, &T)| d * *share * (T::ONE - *share);
            found.put(place, d_shares.into_iter().zip(&shares).map(of_logit).collect::<Vec<T>>());
        }
        for ((place, conv), filters) in self.of_convs(inputs, heads).zip(self.convs.into_iter().flatten()) {
            found.put(filters, core_conv::backward(raw, d_qkv, place, conv));
        }
    }

    /// Mixes rows with those before them.
    fn mix<T: FloatElement>(&self, inputs: &[HostArray], heads: Heads, qkv: &mut [T]) {
        for (place, conv) in self.of_convs(inputs, heads) {
            core_conv::forward(qkv, place, conv);
        }
        if self.key_shift.is_some() {
            let shares = self.shares::<T>(inputs);
            heads::shift(qkv, of_keys(heads), TokenShift { shares: &shares, is_first: &self.is_first });
        }
    }

    /// The share that a key takes of the key before; empty without a key shift.
    fn shares<T: FloatElement>(&self, inputs: &[HostArray]) -> Vec<T> {
        let logits = self.key_shift.map_or(&[][..], |place| inputs[place].slice::<T>());
        logits.iter().map(|logit| T::from_f64(1.0 / (1.0 + (-logit.to_f64()).exp()))).collect()
    }

    fn logs<T: FloatElement>(&self) -> Vec<T> {
        self.logs.iter().map(|log| T::from_f64(*log)).collect()
    }

    /// The convolutions of keys and values, and where those lie.
    fn of_convs<'a, T: FloatElement>(
        &'a self,
        inputs: &'a [HostArray],
        heads: Heads,
    ) -> impl Iterator<Item = (HeadLayout, ShortConv<'a, T>)> {
        [of_keys(heads), of_values(heads)].into_iter().zip(self.convs.into_iter().flatten()).map(|(place, at)| {
            let (filters, width) = (inputs[at].slice(), inputs[at].shape()[1]);
            (place, ShortConv { filters, width, positions: &self.positions })
        })
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

pub(super) fn of_queries(heads: Heads) -> HeadLayout {
    let ([start, ..], strides) = heads.layout(1);
    HeadLayout { row: heads.packed(), start, stride: strides.head, heads: heads.heads, head_dim: heads.head_dim }
}

pub(super) fn of_keys(heads: Heads) -> HeadLayout {
    let ([_, start, _], strides) = heads.layout(1);
    HeadLayout { row: heads.packed(), start, stride: strides.head, heads: heads.kv_heads, head_dim: heads.head_dim }
}

pub(super) fn of_values(heads: Heads) -> HeadLayout {
    let ([.., start], strides) = heads.layout(1);
    HeadLayout { row: heads.packed(), start, stride: strides.head, heads: heads.kv_heads, head_dim: heads.head_dim }
}
