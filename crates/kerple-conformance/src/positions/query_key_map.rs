//! Queries and keys that are mapped by position with learned numbers (PoPE, FoPE): outputs and every gradient, in every engine. The
//! map of a case's arrays is that of layers, through Burn's autodiff.

use super::compare;
use crate::case::Case;
use crate::clocks::engines::{GatedEngine, OnEngines, numbers, tensor};
use crate::engines::{cast, forward_backward, to_f64};
use crate::{CaseComparison, CaseResult, Checked};
use burn::tensor::{DType, Device, Tensor};
use kerple_burn::attention_context::{QueryKeyMapTensors, RotaryTables, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::attention;
use kerple_burn::ops::query_key_map::turned;
use kerple_core::Number;
use kerple_core::attention::{AttentionDims, AttentionProblem, Strides};
use kerple_core::forms::{FourierMap, PolarMap, QueryKeyMap};
use std::sync::Arc;

/// Attention over mapped queries and keys, `[B, H, L, D]` each.
struct MappedLayer {
    dims: AttentionDims,
    scale: f64,
    rows: [Vec<f64>; 3],
    d_out: Vec<f64>,
}

/// The output, and the gradients in mapped queries, mapped keys and values.
struct MappedOutput {
    out: Vec<f64>,
    gradients: [Vec<f64>; 3],
}

/// The arrays of a case.
struct MapInputs {
    map: QueryKeyMap,
    /// The names of what it learns.
    names: &'static [&'static str],
    dims: AttentionDims,
    scale: f64,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_out: Vec<f64>,
}

pub(super) fn run(case: &Case) -> CaseResult {
    let inputs = MapInputs::read(case)?;
    GatedEngine::ALL.into_iter().map(|engine| inputs.on(case, engine)).collect()
}

impl MapInputs {
    fn read(case: &Case) -> Checked<MapInputs> {
        let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _]) = (case.shape("q")?, case.shape("k")?);
        if !(kv_heads > 0 && heads.is_multiple_of(kv_heads) && queries <= keys) {
            return Err("arrays of different sizes".to_owned());
        }
        let [q, k, v, d_out] = ["q", "k", "v", "dout"].map(|key| case.input(key));
        let rates = |count: usize, base: f64| (0..count).map(|n| base.powf(-(n as f64) / count as f64)).collect();
        let (map, names): (_, &[&str]) = match case.setting("family").as_str() {
            Some("pope") => {
                let rates = rates(case.size_from("rotated", 1)?, case.number("base")?);
                let clamp = case.setting("clamp").as_bool().unwrap_or(false);
                (QueryKeyMap::Polar(PolarMap { rates, clamp }), &["delta"])
            }
            Some("fope") if heads == kv_heads => {
                let rates = case.array("static", "frequencies")?.values;
                let &[_, _, mixed] = case.array("params", "C")?.shape.as_slice() else {
                    return Err("C is not [H, F, O]".to_owned());
                };
                let zero_pad = match case.array("static", "pad")?.values[..] {
                    [1.0, 0.0] => true,
                    [1.0, 1.0] => false,
                    _ => return Err("other pairs turn by something else".to_owned()),
                };
                (QueryKeyMap::Fourier(FourierMap { rates, mixed, zero_pad }), &["C", "S"])
            }
            _ => return Err("the family of the case is unknown".to_owned()),
        };
        let dims = AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim };
        Ok(MapInputs { map, names, dims, scale: case.number("scale")?, q: q?, k: k?, v: v?, d_out: d_out? })
    }

    fn on(&self, case: &Case, engine: GatedEngine) -> Checked<CaseComparison> {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let device = Device::flex().autodiff();
        let four = |values: &[f64], heads: usize, rows: usize| tensor(values, [batch, heads, rows, head_dim], &device);
        let (q, k) = (four(&self.q, heads, queries), four(&self.k, kv_heads, keys));
        let learned: Vec<Vec<f64>> = case.params(self.names)?;
        let values: Vec<Tensor<1>> = learned.iter().map(|own| tensor(own, [own.len()], &device)).collect();
        // queries are the last rows of as many as there are keys
        let before = Tensor::zeros([batch, heads, keys - queries, head_dim], (&device, DType::F64));
        let all = Tensor::cat(vec![before, q.clone()], 2).swap_dims(1, 2);
        let [mapped_q, mapped_k] = self.mapped([all, k.clone().swap_dims(1, 2)], &values);
        let mapped_q = mapped_q.swap_dims(1, 2).narrow(2, keys - queries, queries);
        let mapped_k = mapped_k.swap_dims(1, 2);
        let dims = AttentionDims { head_dim: mapped_q.dims()[3], ..self.dims };
        let rows = [numbers(mapped_q.clone()), numbers(mapped_k.clone()), self.v.clone()];
        let layer = MappedLayer { dims, scale: self.scale, rows, d_out: self.d_out.clone() };
        let MappedOutput { out, gradients: [d_q, d_k, d_v] } = layer.on(engine);
        let through = |x: Tensor<4>, d: &[f64]| (x.clone() * tensor(d, x.dims(), &device).detach()).sum();
        let found = (through(mapped_q, &d_q) + through(mapped_k, &d_k)).backward();
        let of = |x: &Tensor<4>| x.grad(&found).map(numbers).unwrap_or_default();
        let mut named = vec![
            ("out".to_owned(), out),
            ("grad_q".to_owned(), of(&q)),
            ("grad_k".to_owned(), of(&k)),
            ("grad_v".to_owned(), d_v),
        ];
        named.extend(
            self.names
                .iter()
                .zip(&values)
                .map(|(name, own)| (format!("grad_{name}"), own.grad(&found).map(numbers).unwrap_or_default())),
        );
        let named: Vec<(&str, Vec<f64>)> = named.iter().map(|(name, values)| (name.as_str(), values.clone())).collect();
        compare(case, engine.name(), &named, engine.is_single())
    }

    /// Queries and keys `[B, L, H, D]` at positions 0 to L, mapped.
    fn mapped(&self, rows: [Tensor<4>; 2], values: &[Tensor<1>]) -> [Tensor<4>; 2] {
        let (cos, sin) = self.map.angles().tables(0..self.dims.keys);
        let (QueryKeyMap::Polar(PolarMap { rates, .. }) | QueryKeyMap::Fourier(FourierMap { rates, .. })) = &self.map;
        let angles = RotaryTables::new(rates.len(), cos, sin);
        let tensors = QueryKeyMapTensors { kind: Arc::new(self.map.clone()), values: values.to_vec(), angles };
        match &self.map {
            QueryKeyMap::Polar(polar) => tensors.polar(polar, rows),
            QueryKeyMap::Fourier(fourier) => {
                let [cos, sin] = tensors.mixed(fourier, self.dims.head_dim / 2);
                rows.map(|x| turned(x, [&cos, &sin]))
            }
        }
    }
}

impl OnEngines for MappedLayer {
    type Output = MappedOutput;

    fn slices<T: Number>(&self, fused: bool) -> MappedOutput {
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, value_dim, .. } = self.dims;
        let dense = |heads: usize, rows: usize, width: usize| Strides {
            batch: heads * rows * width,
            head: rows * width,
            row: width,
        };
        let strides = [
            dense(heads, queries, head_dim),
            dense(kv_heads, keys, head_dim),
            dense(kv_heads, keys, value_dim),
            dense(heads, queries, value_dim),
        ];
        let [q, k, v] = self.rows.each_ref().map(|x| cast::<T>(x));
        let problem = AttentionProblem::causal(self.dims, T::from_f64(self.scale));
        let found = forward_backward(&problem, strides, [&q, &k, &v, &cast(&self.d_out)], 0, fused);
        MappedOutput { out: to_f64(found.out), gradients: [found.d_q, found.d_k, found.d_v].map(to_f64) }
    }

    fn burn(&self, implementation: Impl) -> MappedOutput {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim } = self.dims;
        let device = Device::flex().autodiff();
        let shapes =
            [[batch, heads, queries, head_dim], [batch, kv_heads, keys, head_dim], [batch, kv_heads, keys, value_dim]];
        let [q, k, v] = [0, 1, 2].map(|part| tensor(&self.rows[part], shapes[part], &device));
        let d_out = tensor(&self.d_out, [batch, heads, queries, value_dim], &device).detach();
        let context = ScoreContext::default();
        let out = attention(q.clone(), k.clone(), v.clone(), self.scale, &context, implementation);
        let found = (out.clone() * d_out).sum().backward();
        let gradients = [&q, &k, &v].map(|x| x.grad(&found).map(numbers).unwrap_or_default());
        MappedOutput { out: numbers(out), gradients }
    }
}
