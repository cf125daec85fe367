//! Attention with cumulative gates in every engine: on slices and through Burn.

use crate::Checked;
use crate::case::AttentionInputs;
use crate::engines::{cast, forward_backward, to_f64};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::attention_context::{AttentionBias, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, attention};
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionProblem, ScoreTable, ScoreTransform, Strides, View, ViewMut, naive,
};
use kerple_core::forms::{AttnTemperature, DistanceTable, Normalizer, Selection, Selective, StickBreaking, Strided};
use kerple_core::ops::gate_cumsum;
use kerple_core::ops::heads::{self, HeadLayout, ScalableSoftmax};

/// Which version computes, and in what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedEngine {
    /// The definition on slices.
    Naive { single: bool },
    /// Tile by tile.
    Tiled { single: bool },
    /// Through Burn, in double precision.
    Burn(Impl),
}

impl GatedEngine {
    pub const ALL: [GatedEngine; 6] = [
        GatedEngine::Naive { single: false },
        GatedEngine::Naive { single: true },
        GatedEngine::Tiled { single: false },
        GatedEngine::Tiled { single: true },
        GatedEngine::Burn(Impl::Reference),
        GatedEngine::Burn(Impl::Kernel),
    ];

    pub fn name(self) -> &'static str {
        match self {
            GatedEngine::Naive { single: false } => "naive f64",
            GatedEngine::Naive { single: true } => "naive f32",
            GatedEngine::Tiled { single: false } => "tiled f64",
            GatedEngine::Tiled { single: true } => "tiled f32",
            GatedEngine::Burn(Impl::Reference) => "burn reference f64",
            GatedEngine::Burn(Impl::Kernel | Impl::KernelAt(_)) => "burn fused f64",
        }
    }

    pub fn is_single(self) -> bool {
        matches!(self, GatedEngine::Naive { single: true } | GatedEngine::Tiled { single: true })
    }

    pub fn is_of_burn(self) -> bool {
        matches!(self, GatedEngine::Burn(_))
    }
}

/// A layer that every engine computes.
pub trait OnEngines {
    type Output;

    /// By the definition or by the fused engine.
    fn slices<T: Number>(&self, fused: bool) -> Self::Output;

    /// In double precision through Burn's autodiff.
    fn burn(&self, implementation: Impl) -> Self::Output;

    fn on(&self, engine: GatedEngine) -> Self::Output {
        match engine {
            GatedEngine::Naive { single: false } => self.slices::<f64>(false),
            GatedEngine::Naive { single: true } => self.slices::<f32>(false),
            GatedEngine::Tiled { single: false } => self.slices::<f64>(true),
            GatedEngine::Tiled { single: true } => self.slices::<f32>(true),
            GatedEngine::Burn(implementation) => self.burn(implementation),
        }
    }
}

/// One layer's attention.
pub struct GatedAttention {
    pub inputs: AttentionInputs,
    pub scale: f64,
    pub table: DistanceTable,
    /// `[B, H, L]`
    pub gates: Option<Vec<f64>>,
    /// `[H]`
    pub sinks: Option<Vec<f64>>,
    pub normalizer: Normalizer,
    pub selective: Option<Selective>,
    /// Of the growth of queries with the keys they see, `[H]`.
    pub slopes: Option<Vec<f64>>,
    /// A factor of queries by position.
    pub temperature: Option<AttnTemperature>,
}

/// What an engine returns; gradients in what a case has.
pub struct GatedOutput {
    pub out: Vec<f64>,
    pub d_q: Vec<f64>,
    pub d_k: Vec<f64>,
    pub d_v: Vec<f64>,
    pub d_bias: Option<Vec<f64>>,
    pub d_weight: Option<Vec<f64>>,
    pub d_gates: Option<Vec<f64>>,
    pub d_sinks: Option<Vec<f64>>,
    pub d_slopes: Option<Vec<f64>>,
    /// Of stick-breaking attention, `[B, H, L]`.
    pub remainders: Option<Vec<f64>>,
}

impl GatedAttention {
    /// Refuses arrays that do not belong together.
    pub fn check(&self) -> Checked<()> {
        let AttentionDims { batch, heads, keys, head_dim, .. } = self.inputs.dims;
        let (elements, tokens) = (batch * heads * keys * head_dim, batch * heads * keys);
        let of_heads = [&self.sinks, &self.slopes].into_iter().flatten().all(|values| values.len() == heads);
        let like_q =
            [&self.inputs.k, &self.inputs.v, &self.inputs.d_out].into_iter().all(|values| values.len() == elements);
        let gates = self.gates.as_ref().is_none_or(|gates| gates.len() == tokens);
        if of_heads && like_q && gates { Ok(()) } else { Err("arrays of different sizes".to_owned()) }
    }

    pub fn run(&self, engine: GatedEngine) -> GatedOutput {
        let run = |q: &[f64]| match engine {
            GatedEngine::Naive { single: true } => self.slices::<f32>(q, false),
            GatedEngine::Naive { single: false } => self.slices::<f64>(q, false),
            GatedEngine::Tiled { single: true } => self.slices::<f32>(q, true),
            GatedEngine::Tiled { single: false } => self.slices::<f64>(q, true),
            GatedEngine::Burn(implementation) => self.burn(q, implementation),
        };
        if let Some(temperature) = self.temperature {
            let AttentionDims { keys: len, head_dim, .. } = self.inputs.dims;
            let scaled = |x: &[f64]| -> Vec<f64> {
                x.iter().enumerate().map(|(at, x)| x * temperature.at(at / head_dim % len)).collect()
            };
            let found = run(&scaled(&self.inputs.q));
            return GatedOutput { d_q: scaled(&found.d_q), ..found };
        }
        let (slopes, d_q) = (self.slopes.as_deref(), |found: &mut GatedOutput| std::mem::take(&mut found.d_q));
        let (found, grown) = with_growth(&self.inputs.q, slopes, self.inputs.dims, run, d_q);
        match grown {
            Some([d_q, d_slopes]) => GatedOutput { d_q, d_slopes: Some(d_slopes), ..found },
            None => found,
        }
    }

    fn slices<T: Number>(&self, q: &[f64], fused: bool) -> GatedOutput {
        let AttentionDims { heads, keys: len, head_dim, .. } = self.inputs.dims;
        // `[B, L, H, D]`, as a layer's projection has it
        let strides = Strides { batch: len * heads * head_dim, head: head_dim, row: heads * head_dim };
        let [q, k, v, d_out] = [q, &self.inputs.k, &self.inputs.v, &self.inputs.d_out]
            .map(|x| cast::<T>(&turned(x, [heads, len, head_dim])));
        let [bias, weight] = [&self.table.bias, &self.table.weight].map(|table| table.as_deref().map(cast::<T>));
        let (sinks, clocks) =
            (self.sinks.as_deref().map(cast::<T>), self.gates.as_ref().map(|g| gate_cumsum::of_gates(g, len)));
        let table = ScoreTable {
            bias: bias.as_deref(),
            weight: weight.as_deref(),
            gate_cumsum: clocks.as_deref().map(|values| Strided { values, stride: len }),
            len,
            ..ScoreTable::PLAIN
        };
        let plain = AttentionProblem::causal(self.inputs.dims, T::from_f64(self.scale));
        let (sinks, normalizer, scores) = (sinks.as_deref(), self.normalizer, ScoreTransform::Table(table));
        let selection = self.selective.map(Selection::from);
        let problem = AttentionProblem { sinks, normalizer, selection, scores, ..plain };
        let found = forward_backward(&problem, [strides; 4], [&q, &k, &v, &d_out], 0, fused);
        let dense = |x: Vec<T>| turned(&to_f64(x), [len, heads, head_dim]);
        GatedOutput {
            out: dense(found.out),
            d_q: dense(found.d_q),
            d_k: dense(found.d_k),
            d_v: dense(found.d_v),
            d_bias: found.d_bias.map(to_f64),
            d_weight: found.d_weight.map(to_f64),
            d_gates: found.d_clocks.map(|d_clocks| gate_cumsum::of_gates_backward(&d_clocks, len)),
            d_sinks: found.d_sinks.map(to_f64),
            d_slopes: None,
            remainders: self.normalizer.stick_breaking().map(|_| to_f64(found.lse)),
        }
    }

    /// In double precision through Burn's autodiff.
    fn burn(&self, q: &[f64], implementation: Impl) -> GatedOutput {
        let device = Device::flex().autodiff();
        let AttentionDims { batch, heads, keys: len, head_dim, .. } = self.inputs.dims;
        let four = |values: &[f64]| tensor(values, [batch, heads, len, head_dim], &device);
        let [q, k, v, d_out] = [q, &self.inputs.k, &self.inputs.v, &self.inputs.d_out].map(four);
        let gates = self.gates.as_deref().map(|gates| tensor(gates, [batch, heads, len], &device));
        let sinks = self.sinks.as_deref().map(|sinks| tensor(sinks, [heads], &device));
        let two = |table: &Option<Vec<f64>>| table.as_deref().map(|table| tensor(table, [heads, len], &device));
        let (bias, weight) = (two(&self.table.bias), two(&self.table.weight));
        let of_distance = match (&bias, &weight) {
            (None, None) => AttentionBias::None,
            _ => AttentionBias::Table { bias: bias.clone(), weight: weight.clone() },
        };
        let context = ScoreContext { bias: of_distance, gates: gates.clone(), ..ScoreContext::default() };
        let scoring = Scoring { sinks: sinks.clone(), normalizer: self.normalizer, ..Scoring::from(self.scale) };
        let scoring = Scoring { selective: self.selective, ..scoring };
        // what weights without the remainder leave of 1
        let remainders = self.normalizer.stick_breaking().map(|choices| {
            let normalizer = Normalizer::StickBreaking(StickBreaking { remainder: false, ..choices });
            let scoring = Scoring { normalizer, ..Scoring::from(self.scale) };
            let ones = v.clone().detach().ones_like();
            let sums = attention(q.clone(), k.clone(), ones, scoring, &context, implementation);
            numbers(sums.narrow(3, 0, 1)).into_iter().map(|sum| 1.0 - sum).collect()
        });
        let out = attention(q.clone(), k.clone(), v.clone(), scoring, &context, implementation);
        let gradients = (out.clone() * d_out.detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        GatedOutput {
            out: numbers(out),
            d_q: of(&q),
            d_k: of(&k),
            d_v: of(&v),
            d_bias: bias.and_then(|bias| bias.grad(&gradients)).map(numbers),
            d_weight: weight.and_then(|weight| weight.grad(&gradients)).map(numbers),
            d_gates: gates.and_then(|gates| gates.grad(&gradients)).map(numbers),
            d_sinks: sinks.and_then(|sinks| sinks.grad(&gradients)).map(numbers),
            d_slopes: None,
            remainders,
        }
    }
}

/// A leaf of Burn's autodiff in double precision.
pub(crate) fn tensor<const D: usize>(values: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    let data = TensorData::new(values.to_vec(), shape);
    Tensor::<D>::from_data(data, (device, DType::F64)).require_grad()
}

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Rows `[B, L, H, D]`, as a layer's projection has them.
pub(crate) fn layer_rows(dims: AttentionDims) -> HeadLayout {
    let AttentionDims { heads, head_dim, .. } = dims;
    HeadLayout { row: heads * head_dim, start: 0, stride: head_dim, heads, head_dim }
}

/// Queries `[B, H, L, D]` of scalable softmax.
pub(crate) fn grow(q: &[f64], by: ScalableSoftmax<f64>, dims: AttentionDims) -> Vec<f64> {
    let AttentionDims { heads, keys: len, head_dim, .. } = dims;
    let mut grown = turned(q, [heads, len, head_dim]);
    heads::scale(&mut grown, layer_rows(dims), by);
    turned(&grown, [len, heads, head_dim])
}

/// Turns the gradient in the result of [`grow`] into that in `q`; returns that in the slopes.
pub(crate) fn grow_backward(q: &[f64], d_q: &mut Vec<f64>, by: ScalableSoftmax<f64>, dims: AttentionDims) -> Vec<f64> {
    let AttentionDims { heads, keys: len, head_dim, .. } = dims;
    let [q, mut d] = [q, &d_q[..]].map(|x| turned(x, [heads, len, head_dim]));
    let d_slopes = heads::scale_backward(&q, &mut d, layer_rows(dims), by);
    *d_q = turned(&d, [len, heads, head_dim]);
    d_slopes
}

/// What `run` makes of queries, of scalable softmax where there are slopes; then also the gradients in queries, given that in
/// grown ones, and in the slopes.
pub(super) fn with_growth<F>(
    q: &[f64],
    slopes: Option<&[f64]>,
    dims: AttentionDims,
    run: impl FnOnce(&[f64]) -> F,
    d_grown: impl FnOnce(&mut F) -> Vec<f64>,
) -> (F, Option<[Vec<f64>; 2]>) {
    let Some(slopes) = slopes else { return (run(q), None) };
    let logs: Vec<f64> = (1..=dims.keys).map(|keys| (keys as f64).ln()).collect();
    let by = ScalableSoftmax { slopes, logs: &logs };
    let mut found = run(&grow(q, by, dims));
    let mut d_q = d_grown(&mut found);
    let d_slopes = grow_backward(q, &mut d_q, by, dims);
    (found, Some([d_q, d_slopes]))
}

/// `[B, a, b, D]` as `[B, b, a, D]`.
pub(crate) fn turned(x: &[f64], [a, b, head_dim]: [usize; 3]) -> Vec<f64> {
    let row = |index: usize| {
        let (batch, at) = (index / (a * b), index % (a * b));
        &x[(batch * a * b + at % a * b + at / a) * head_dim..][..head_dim]
    };
    (0..x.len() / head_dim.max(1)).flat_map(row).copied().collect()
}

/// Of a query at this position and the keys up to it, with scores that are 0: the output, and the sum of the weights where
/// the query's own is 1.
pub fn last_row(engine: GatedEngine, gates: &[f64], values: &[f64], position: usize) -> [f64; 2] {
    if engine.is_single() {
        row::<f32>(engine, gates, values, position)
    } else {
        row::<f64>(engine, gates, values, position)
    }
}

fn row<T: Number>(engine: GatedEngine, gates: &[f64], values: &[f64], position: usize) -> [f64; 2] {
    let keys = position + 1;
    let dims = AttentionDims { batch: 1, heads: 1, kv_heads: 1, queries: 1, keys, head_dim: 1, value_dim: 1 };
    let clocks = gate_cumsum::of_gates(&gates[..keys], keys);
    let table = ScoreTable { gate_cumsum: Some(Strided { values: &clocks, stride: keys }), ..ScoreTable::PLAIN };
    let problem = AttentionProblem { scores: ScoreTransform::Table(table), ..AttentionProblem::causal(dims, T::ONE) };
    let (q, k, v) = ([T::ZERO], vec![T::ONE; keys], cast::<T>(&values[..keys]));
    let (mut out, mut lse) = ([T::ZERO], [T::ZERO]);
    let strides = Strides { batch: keys, head: keys, row: 1 };
    let view = |data| View { data, strides };
    let forward =
        if matches!(engine, GatedEngine::Naive { .. }) { naive::forward::<T> } else { attention::forward::<T> };
    forward(&problem, view(&q), view(&k), view(&v), ViewMut::new(&mut out, strides), &mut lse);
    [out[0].to_f64(), lse[0].to_f64().exp()]
}
