//! Near keys turned by their positions and far keys by those of groups (Self-Extend), through every engine.

use super::compare;
use super::engines::{GatedEngine, OnEngines, numbers, tensor};
use crate::CaseResult;
use crate::case::{AttentionInputs, Case};
use crate::engines::{cast, to_f64};
use burn::tensor::{DType, Device, Tensor};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::rotated;
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::Number;
use kerple_core::attention::grouped::{self, GroupedGradients, GroupedRows, GroupedSaved};
use kerple_core::attention::{AttentionDims, AttentionProblem, Strides, View, ViewMut};
use kerple_core::encoding::{Encoding, Geometry};
use kerple_core::forms::{GroupedPositions, Rotary};
use serde_json::json;

/// Cosines and sines, `[L, D/2]` each.
type Angles = (Vec<f64>, Vec<f64>);

/// One case.
struct GroupedAttention {
    inputs: AttentionInputs,
    scale: f64,
    encoding: Encoding,
    geometry: Geometry,
}

pub(super) fn run(case: &Case) -> CaseResult {
    let inputs = case.attention()?;
    let scaling = json!({
        "kind": "self_extend", "group_size": case.size_from("group", 1)?,
        "neighbor_window": case.size_from("window", 1)?,
    });
    let keys = json!({ "kind": "rotary", "base": case.number("base")?, "scaling": scaling });
    let encoding: Encoding = serde_json::from_value(keys).map_err(|error| error.to_string())?;
    let AttentionDims { heads, head_dim, keys: len, .. } = inputs.dims;
    let geometry = Geometry::new(heads, head_dim, len);
    let given = GroupedAttention { inputs, scale: case.number("scale")?, encoding, geometry };
    GatedEngine::ALL.into_iter().map(|engine| compare(engine, given.on(engine), case)).collect()
}

/// Rows `[B, H, L, D]` turned by these tables, or back.
fn turn(x: &[f64], (cos, sin): &Angles, width: usize, back: bool) -> Vec<f64> {
    let (half, len) = (width / 2, cos.len() / (width / 2));
    let mut turned = x.to_vec();
    for (at, row) in turned.chunks_exact_mut(width).enumerate() {
        for n in 0..half {
            let angle = at % len * half + n;
            let (cos, sin) = (cos[angle], if back { -sin[angle] } else { sin[angle] });
            let [low, high] = [row[n], row[n + half]];
            (row[n], row[n + half]) = (low * cos - high * sin, high * cos + low * sin);
        }
    }
    turned
}

impl GroupedAttention {
    /// Angles of queries and of keys for near keys, then for far ones, and where those begin.
    fn angles(&self) -> ([[Angles; 2]; 2], usize) {
        let len = self.inputs.dims.keys;
        let rotary: Rotary = self.encoding.rotary(&self.geometry, len).expect("the encoding rotates");
        let grouped: GroupedPositions = rotary.grouped.expect("far keys have positions of groups");
        let near = [rotary.tables(0..len), rotary.tables(0..len)];
        let far =
            [rotary.tables((0..len).map(|i| grouped.of_query(i))), rotary.tables((0..len).map(|j| grouped.of_key(j)))];
        ([near, far], grouped.neighbor_window)
    }
}

impl OnEngines for GroupedAttention {
    type Output = Vec<(String, Vec<f64>)>;

    fn slices<T: Number>(&self, fused: bool) -> Self::Output {
        let AttentionInputs { dims, q, k, v, d_out } = &self.inputs;
        let AttentionDims { heads, queries: len, head_dim, .. } = *dims;
        let ([near, far], window) = self.angles();
        let turned = |angles: &[Angles; 2]| {
            let [of_q, of_k] = angles;
            [turn(q, of_q, head_dim, false), turn(k, of_k, head_dim, false)].map(|x| cast::<T>(&x))
        };
        let [near_rows, far_rows] = [&near, &far].map(turned);
        let [v, d_out] = [v, d_out].map(|x| cast::<T>(x));
        let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
        let view = |data| View { data, strides };
        let [near_rows, far_rows] =
            [&near_rows, &far_rows].map(|rows| rows.each_ref().map(|rows| View { data: &rows[..], strides }));
        let rows = GroupedRows { near: near_rows, far: far_rows, v: view(&v) };
        let problem = AttentionProblem::causal(*dims, T::from_f64(self.scale));
        let room = || vec![T::ZERO; q.len()];
        let (mut out, mut lse) = (room(), vec![T::ZERO; q.len() / head_dim]);
        let forward = if fused { grouped::forward::<T> } else { grouped::naive_forward::<T> };
        forward(&problem, window, rows, ViewMut::new(&mut out, strides), &mut lse);
        let mut d: [Vec<T>; 5] = std::array::from_fn(|_| room());
        let [a, b, c, e, d_v] = d.each_mut().map(|values| ViewMut::new(values, strides));
        let gradients = GroupedGradients { near: [a, b], far: [c, e], d_v, d_sinks: None };
        let saved = GroupedSaved { out: view(&out), lse: &lse, d_out: view(&d_out) };
        let backward = if fused { grouped::backward::<T> } else { grouped::naive_backward::<T> };
        backward(&problem, window, rows, saved, gradients);
        let [near_q, near_k, far_q, far_k, d_v] = d.map(to_f64);
        let sum = |of_near: Vec<f64>, of_far: Vec<f64>, which: usize| -> Vec<f64> {
            let parts = [turn(&of_near, &near[which], head_dim, true), turn(&of_far, &far[which], head_dim, true)];
            parts[0].iter().zip(&parts[1]).map(|(near, far)| near + far).collect()
        };
        let all = [
            ("out", to_f64(out)),
            ("grad_q", sum(near_q, far_q, 0)),
            ("grad_k", sum(near_k, far_k, 1)),
            ("grad_v", d_v),
        ];
        all.map(|(name, values)| (name.to_owned(), values)).to_vec()
    }

    fn burn(&self, implementation: Impl) -> Self::Output {
        let device = Device::flex().autodiff();
        let AttentionInputs { dims, q, k, v, d_out } = &self.inputs;
        let AttentionDims { batch, heads, queries: len, head_dim, .. } = *dims;
        let [q, k, v, d_out] = [q, k, v, d_out].map(|x| tensor(x, [batch, heads, len, head_dim], &device));
        let encoding = PositionalEncoding::new(&self.encoding, &self.geometry, 1, 0, &device);
        let pass = ForwardContext::evaluation(0);
        let context = encoding.attention_context(0, [len, len], (&device, DType::F64), implementation, &pass);
        let out = rotated(q.clone(), k.clone(), v.clone(), self.scale, &context, implementation);
        let gradients = (out.clone() * d_out.detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        let all = [("out", numbers(out)), ("grad_q", of(&q)), ("grad_k", of(&k)), ("grad_v", of(&v))];
        all.map(|(name, values)| (name.to_owned(), values)).to_vec()
    }
}
