//! Gates that a layer computes from its normed rows, and their cumulative sums.
//!
//! ```text
//! a = x W + b          g = ln sigmoid(a)          c = running sums of g, from the first token on
//! ```
//!
//! In fused layers gates are part of the operation that has the rows, and cumulative gates are f64
//! for any type of rows; see [`kerple_core::ops::gate_cumsum`].

use super::attention::repeat_heads;
use super::linear;
use crate::attention_context::{FeatureGateProjection, GateProjection};
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{Tensor, activation};
use kerple_core::attention::{DocumentSegment, PackedDocuments};
use kerple_core::ops::feature_gates::{self, FeatureGateMap, FeatureGateRows};
use kerple_core::ops::gate_cumsum::{self, GateMap};
use kerple_core::ops::gemm::Out;
use kerple_core::ops::linear::LinearParameters;
use kerple_core::precision::Precision;
use std::ops::Range;

/// Devices that have a kernel for gates of features.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

impl GateProjection {
    /// Gates `[B, H, L]` of normed rows `[B, L, M]`; reference implementation.
    pub(crate) fn gates(&self, rows: &Tensor<3>) -> Tensor<3> {
        let GateProjection { weight, bias, map, .. } = self.clone();
        let [batch, len, _] = rows.dims();
        let logits = match weight {
            Some(weight) => linear::reference(rows.clone(), super::LinearTensors { weight, bias: Some(bias) }),
            None => bias.clone().unsqueeze::<3>().expand([batch, len, bias.dims()[0]]),
        };
        let gates = match map {
            GateMap::LogSigmoid => activation::log_sigmoid(logits),
            GateMap::Sigmoid { min, max } => activation::sigmoid(logits) * (max - min) + min,
            GateMap::Softplus { min } => activation::softplus(logits, 1.0) + min,
            GateMap::Exp => logits.clamp(-GateMap::MOST, GateMap::MOST).exp(),
        };
        gates.swap_dims(1, 2)
    }
}

impl FeatureGateProjection {
    /// Gates of query heads, `[B, H, L, D]`, of normed rows `[B, L, M]`.
    pub(crate) fn gates(&self, rows: &Tensor<3>, implementation: Impl) -> Tensor<4> {
        let ([batch, len, _], last) = (rows.dims(), self.weights.len() - 1);
        let logits = self.weights.iter().enumerate().fold(rows.clone(), |rows, (at, weight)| {
            let bias = (at == last).then(|| self.bias.clone());
            linear::linear(rows, super::LinearTensors { weight: weight.clone(), bias }, None, implementation)
        });
        let width = if self.pairs { self.head_dim / 2 } else { self.head_dim };
        let heads = self.bias.dims()[0] / width;
        if implementation.has_kernel(KERNELS, &logits) {
            let mut inputs = OpInputs::default();
            inputs.add(logits);
            let (map, repeats) = (self.map.clone(), self.head_dim / width);
            return inputs.apply(FeatureGateOp { map, heads, group: self.group, width, repeats });
        }
        let logits = logits.reshape([batch, len, heads, width]).swap_dims(1, 2);
        let gates = match &self.map {
            FeatureGateMap::LogSigmoid { bound: None } => log_sigmoid(logits),
            FeatureGateMap::LogSigmoid { bound: Some(bound) } => {
                // e^x - 1 = 2 t / (1 - t), t = tanh(x / 2)
                let t = (log_sigmoid(logits) * (0.5 / bound)).tanh();
                t.clone() * (2.0 * bound) / (t * -1.0 + 1.0)
            }
            FeatureGateMap::Sigmoid { rates } => {
                let rates = Tensor::<1>::from_data(rates.as_slice(), (&logits.device(), logits.dtype()));
                activation::sigmoid(logits) * rates.reshape([1, heads, 1, 1]) * -1.0
            }
        };
        let gates = if self.pairs { Tensor::cat(vec![gates.clone(), gates], 3) } else { gates };
        repeat_heads(gates, heads * self.group)
    }
}

/// Logits of gates of features, `[B, L, G W]`.
#[derive(Debug)]
struct FeatureGateOp {
    map: FeatureGateMap,
    heads: usize,
    group: usize,
    width: usize,
    repeats: usize,
}

impl FeatureGateOp {
    fn rows(&self, logits: &HostArray) -> FeatureGateRows<'_> {
        let &[batch, len, _] = logits.shape() else { panic!("expected logits [B, L, G W]") };
        let &FeatureGateOp { ref map, heads, group, width, repeats } = self;
        FeatureGateRows { map, batch, len, heads, group, width, repeats }
    }

    fn forward<T: FloatElement>(&self, logits: &HostArray) -> OpOutput {
        let of = self.rows(logits);
        let gates = feature_gates::forward::<T>(logits.slice(), of);
        let shape = [of.batch, self.heads * self.group, of.len, self.width * self.repeats];
        OpOutput { output: HostArray::from_vec(gates, &shape), saved: SavedForBackward::nothing() }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let (logits, mut found) = (&ctx.inputs[0], InputGrads::new(ctx.inputs));
        found.put(0, feature_gates::backward::<T>(logits.slice(), ctx.d_output.slice(), self.rows(logits)));
        found.finish()
    }
}

impl CustomOp for FeatureGateOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => FeatureGateOp::forward::<T>(self, &inputs[0]))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => FeatureGateOp::backward::<T>(self, ctx))
    }
}

/// Exact to rounding for gates however close to 1, which add up over thousands of tokens.
fn log_sigmoid(logits: Tensor<4>) -> Tensor<4> {
    logits.clone().clamp_max(0.0) - (logits.abs() * -1.0).exp().log1p()
}

/// Cumulative gates `[B, H, L]` of logits of gates, `[B, L, H]`: from the first token of a sequence on, or of each document.
pub(super) fn cumsum_of_logits<T: FloatElement>(
    logits: &[T],
    [batch, len, heads]: [usize; 3],
    documents: Option<&PackedDocuments>,
    map: GateMap,
) -> Vec<f64> {
    let Some(documents) = documents else { return gate_cumsum::of_logits(logits, [batch, len, heads], map) };
    let mut all = vec![0.0; logits.len()];
    for document in documents.documents() {
        let DocumentSegment { row, first_key: first, keys, .. } = document;
        let own = gate_cumsum::of_logits(&logits[(row * len + first) * heads..][..keys * heads], [1, keys, heads], map);
        for (head, own) in own.chunks_exact(keys.max(1)).enumerate() {
            all[(row * heads + head) * len + first..][..keys].copy_from_slice(own);
        }
    }
    all
}

/// The gradient of the logits, `[B, L, H]`, given that of the cumulative gates, `[B, H, L]`.
fn cumsum_of_logits_backward<T: FloatElement>(
    logits: &[T],
    d_gate_cumsum: &[f64],
    [batch, len, heads]: [usize; 3],
    documents: Option<&PackedDocuments>,
    map: GateMap,
) -> Vec<T> {
    let Some(documents) = documents else {
        return gate_cumsum::of_logits_backward(logits, d_gate_cumsum, [batch, len, heads], map);
    };
    let mut all = vec![T::ZERO; logits.len()];
    for document in documents.documents() {
        let DocumentSegment { row, first_key: first, keys, .. } = document;
        let own = |head: usize| &d_gate_cumsum[(row * heads + head) * len + first..][..keys];
        let d_cumsum: Vec<f64> = (0..heads).flat_map(own).copied().collect();
        let tokens = (row * len + first) * heads..(row * len + first + keys) * heads;
        let d_logits = gate_cumsum::of_logits_backward(&logits[tokens.clone()], &d_cumsum, [1, keys, heads], map);
        all[tokens].copy_from_slice(&d_logits);
    }
    all
}

/// Cumulative gates of log gates, both `[B, H, L]`, as [`cumsum_of_logits`].
pub(super) fn cumsum_of_gates<T: FloatElement>(
    gates: &[T],
    len: usize,
    documents: Option<&PackedDocuments>,
) -> Vec<f64> {
    let Some(documents) = documents else { return gate_cumsum::of_gates(gates, len) };
    let mut all = vec![0.0; gates.len()];
    for tokens in document_tokens(documents, gates.len() / len.max(1), len) {
        all[tokens.clone()].copy_from_slice(&gate_cumsum::of_gates(&gates[tokens.clone()], tokens.len()));
    }
    all
}

/// The gradient of the gates, given that of their cumulative gates.
pub(super) fn cumsum_of_gates_backward<T: FloatElement>(
    d_gate_cumsum: &[f64],
    len: usize,
    documents: Option<&PackedDocuments>,
) -> Vec<T> {
    let Some(documents) = documents else { return gate_cumsum::of_gates_backward(d_gate_cumsum, len) };
    let mut all = vec![T::ZERO; d_gate_cumsum.len()];
    for tokens in document_tokens(documents, d_gate_cumsum.len() / len.max(1), len) {
        let own = gate_cumsum::of_gates_backward::<T>(&d_gate_cumsum[tokens.clone()], tokens.len());
        all[tokens].copy_from_slice(&own);
    }
    all
}

/// Cumulative gates of features of their logarithms, both `[B, H, K, D]`: from the first token of a sequence on, or of each document.
pub(super) fn cumsum_of_features<T: FloatElement>(
    gates: &[T],
    [len, head_dim]: [usize; 2],
    documents: Option<&PackedDocuments>,
) -> Vec<f64> {
    let Some(documents) = documents else { return gate_cumsum::of_features(gates, [len, head_dim]) };
    let mut all = vec![0.0; gates.len()];
    for tokens in document_tokens(documents, gates.len() / (len * head_dim).max(1), len) {
        let own = tokens.start * head_dim..tokens.end * head_dim;
        all[own.clone()].copy_from_slice(&gate_cumsum::of_features(&gates[own], [tokens.len(), head_dim]));
    }
    all
}

/// The gradient of the gates of features, given that of their cumulative sums.
pub(super) fn cumsum_of_features_backward<T: FloatElement>(
    d_cumsum: &[f64],
    [len, head_dim]: [usize; 2],
    documents: Option<&PackedDocuments>,
) -> Vec<T> {
    let Some(documents) = documents else { return gate_cumsum::of_features_backward(d_cumsum, [len, head_dim]) };
    let mut all = vec![T::ZERO; d_cumsum.len()];
    for tokens in document_tokens(documents, d_cumsum.len() / (len * head_dim).max(1), len) {
        let own = tokens.start * head_dim..tokens.end * head_dim;
        let found = gate_cumsum::of_features_backward::<T>(&d_cumsum[own.clone()], [tokens.len(), head_dim]);
        all[own].copy_from_slice(&found);
    }
    all
}

/// Where each head of each document lies in `[B, H, L]`, of so many rows `B H`.
fn document_tokens(documents: &PackedDocuments, units: usize, len: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let heads = units / documents.rows().max(1);
    documents.documents().flat_map(move |DocumentSegment { row, first_key, keys, .. }| {
        (0..heads).map(move |head| {
            let first = (row * heads + head) * len + first_key;
            first..first + keys
        })
    })
}

/// Where the tensors that make gates are among an operation's inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateProjectionInputs {
    weight: Option<usize>,
    bias: usize,
    pub(super) map: GateMap,
}

impl GateProjectionInputs {
    pub(super) fn add(gates: &GateProjection, inputs: &mut OpInputs) -> GateProjectionInputs {
        let (weight, bias) = (inputs.add_some(gates.weight.clone()), inputs.add(gates.bias.clone()));
        GateProjectionInputs { weight, bias, map: gates.map }
    }

    fn linear<T: FloatElement>(self, inputs: &[HostArray]) -> Option<LinearParameters<'_, T>> {
        let (bias, precision) = (Some(inputs[self.bias].slice()), Precision::F32);
        self.weight.map(|weight| LinearParameters { weight: inputs[weight].kept(), bias, precision })
    }

    /// Logits of gates, `[B, L, H]`, of rows `[B, L, width]`.
    pub(super) fn logits<T: FloatElement>(self, inputs: &[HostArray], rows: &[T], width: usize) -> Vec<T> {
        let mut logits = Vec::new();
        match self.linear(inputs) {
            Some(linear) => linear.forward(Out::Append(&mut logits), rows, width),
            None => logits = inputs[self.bias].slice::<T>().repeat(rows.len() / width.max(1)),
        }
        logits
    }

    /// Adds the gradient in the rows, and records those in the parameters, given that in their cumulative sums, `[B, H, L]`.
    pub(super) fn backward<T: FloatElement>(
        self,
        (logits, d_gate_cumsum, documents): (&[T], &[f64], Option<&PackedDocuments>),
        rows: &[T],
        d_rows: &mut [T],
        [batch, len, width]: [usize; 3],
        found: &mut InputGrads,
    ) {
        let inputs = found.inputs();
        let heads = inputs[self.bias].slice::<T>().len();
        let d_logits = cumsum_of_logits_backward(logits, d_gate_cumsum, [batch, len, heads], documents, self.map);
        match (self.linear::<T>(inputs), self.weight) {
            (Some(linear), Some(weight)) => {
                let mut gradients = linear.gradients(width);
                linear.backward(rows, &d_logits, width, &mut gradients);
                gradients.finish(width * heads);
                linear.backward_input(Out::Accumulate(d_rows), &d_logits, width);
                found.put(weight, gradients.d_weight);
                found.put_some(Some(self.bias), gradients.d_bias);
            }
            _ => {
                let mut d_bias = vec![T::ZERO; heads];
                kerple_core::ops::gemm::add_rows(&d_logits, &mut d_bias);
                found.put(self.bias, d_bias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, Device, TensorData};

    /// In f32, of gates however close to 1, against f64: values and the gradient in the logits.
    #[test]
    fn gates_of_features_are_exact_however_close_to_1() {
        let device = Device::flex().autodiff();
        let logits = [-90.0, -8.0, -0.5, 0.1, 3.0, 8.0, 15.0, 40.0];
        let one = |values: Vec<f32>, shape| Tensor::<2>::from_data(TensorData::new(values, shape), &device);
        let both = [Impl::Reference, Impl::Kernel];
        for (bound, implementation) in
            [None, Some(0.86), Some(30.0)].into_iter().flat_map(|bound| both.map(|of| (bound, of)))
        {
            // two heads of four features, of a row that is 1
            let weight = one(logits.map(|a| a as f32).to_vec(), [1, 8]).require_grad();
            let bias = Tensor::<1>::zeros([8], &device);
            let map = FeatureGateMap::LogSigmoid { bound };
            let weights = vec![weight.clone()];
            let of = FeatureGateProjection { weights, bias, head_dim: 4, map, pairs: false, group: 1 };
            let gates = of.gates(&Tensor::<3>::ones([1, 1, 1], &device), implementation);
            assert_eq!(gates.dims(), [1, 2, 1, 4]);
            let slopes = weight.grad(&gates.clone().sum().backward()).unwrap();
            let gates: Vec<f64> = gates.into_data().iter::<f64>().collect();
            let slopes: Vec<f64> = slopes.into_data().iter::<f64>().collect();
            for ((a, gate), slope) in logits.iter().zip(gates).zip(slopes) {
                let a = f64::from(*a as f32);
                let free = gate_cumsum::log_sigmoid(a);
                let expected = bound.map_or(free, |bound: f64| bound * (free / bound).exp_m1());
                let expected_slope = bound.map_or(1.0, |bound: f64| (free / bound).exp()) / (1.0 + a.exp());
                // a few roundings of f32, and its exponentials; at its bound a gate is one minus a number close to 1
                assert!((gate - expected).abs() <= 1e-6 * expected.abs(), "{a} {bound:?}: {gate} {expected}");
                let error = (slope - expected_slope).abs();
                assert!(
                    error <= 2e-6 * expected_slope + 1e-7 * f64::from(bound.is_some()),
                    "{a} {bound:?}: {slope} {expected_slope}"
                );
            }
        }
    }

    /// The formula, and its differences: two heads that have gates, each for this many heads of queries.
    #[test]
    fn gates_of_each_map_have_the_gradients_of_their_formula() {
        let rates = vec![0.125, 0.03];
        let maps = [FeatureGateMap::LogSigmoid { bound: Some(0.86) }, FeatureGateMap::Sigmoid { rates: rates.clone() }];
        let device = Device::flex().autodiff();
        let options = (&device, DType::F64);
        let wave = |count: usize, phase: f64| (0..count).map(|at| (0.7 * at as f64 + phase).sin()).collect::<Vec<_>>();
        let calls = maps.iter().flat_map(|map| [(map, 1, false), (map, 3, false), (map, 2, true)]);
        let both = [Impl::Reference, Impl::Kernel];
        for ((map, group, pairs), implementation) in calls.flat_map(|call| both.map(|of| (call, of))) {
            let (width, heads) = (if pairs { 2 } else { 4 }, 2 * group);
            let [rows, weight, bias] = [wave(2 * 5 * 3, 0.1), wave(3 * 2 * width, 0.5), wave(2 * width, 0.9)];
            let run = |rows: &[f64], weight: &[f64], bias: &[f64]| {
                let of = |values: &[f64]| Tensor::<1>::from_data(values, options);
                let (rows, weight, bias) =
                    (of(rows).require_grad(), of(weight).require_grad(), of(bias).require_grad());
                let projection = FeatureGateProjection {
                    weights: vec![weight.clone().reshape([3, 2 * width])],
                    bias: bias.clone(),
                    head_dim: 4,
                    map: map.clone(),
                    pairs,
                    group,
                };
                let gates = projection.gates(&rows.clone().reshape([2, 5, 3]), implementation);
                assert_eq!(gates.dims(), [2, heads, 5, 4]);
                let up = Tensor::<1>::from_data(wave(2 * heads * 5 * 4, 0.3).as_slice(), options);
                let loss = (gates.clone().reshape([-1]) * up).sum();
                let gradients = loss.backward();
                let numbers = |x: Tensor<1>| x.into_data().iter::<f64>().collect::<Vec<_>>();
                let slopes = [rows, weight, bias].map(|x| numbers(x.grad(&gradients).expect("an input")));
                (numbers(loss)[0], slopes, numbers(gates.reshape([-1])))
            };
            let (_, slopes, gates) = run(&rows, &weight, &bias);
            for (at, gate) in gates.iter().enumerate() {
                let (feature, token, head, row) =
                    (at % 4 % width, at / 4 % 5, at / 20 % heads / group, at / 20 / heads);
                let column = head * width + feature;
                let of_row = (0..3).map(|m| rows[(row * 5 + token) * 3 + m] * weight[m * 2 * width + column]);
                let a = bias[column] + of_row.sum::<f64>();
                let expected = match map {
                    FeatureGateMap::LogSigmoid { .. } => 0.86 * (gate_cumsum::log_sigmoid(a) / 0.86).exp_m1(),
                    FeatureGateMap::Sigmoid { rates } => -rates[head] / (1.0 + (-a).exp()),
                };
                assert!((gate - expected).abs() <= 1e-14, "{map:?} {group} {at}: {gate} {expected}");
            }
            let inputs = [rows, weight, bias];
            for (part, at) in (0..3).flat_map(|part| (0..inputs[part].len()).map(move |at| (part, at))) {
                let moved = |by: f64| {
                    let mut moved = inputs.clone();
                    moved[part][at] += by;
                    run(&moved[0], &moved[1], &moved[2]).0
                };
                let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let slope = slopes[part][at];
                // the square of the step, and roundings over it
                assert!((slope - difference).abs() <= 1e-8, "{map:?} {group} {part} {at}: {slope} {difference}");
            }
        }
    }
}
