//! Attention with Householder products (PaTH), with gates (PaTH-FoX) and without: outputs and every gradient, in every engine.

use super::compare;
use super::engines::{GatedEngine, OnEngines, numbers, tensor};
use crate::case::{AttentionInputs, Case};
use crate::engines::{cast, to_f64};
use crate::{CaseResult, Checked};
use burn::tensor::{Device, Tensor};
use kerple_burn::attention_context::{HouseholderTensors, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, HouseholderGradients, HouseholderPath,
    ScoreTransform, Strides, View, ViewMut, naive,
};
use kerple_core::forms::Strided;
use kerple_core::ops::gate_cumsum;

/// One layer's attention, with directions of any length.
struct PathLayer {
    inputs: AttentionInputs,
    scale: f64,
    /// `[B, H, L, D]`
    w: Vec<f64>,
    /// `[B, H, L]`
    beta: Vec<f64>,
    /// Gates `[B, H, L]`, and what they are multiplied by.
    gates: Option<(Vec<f64>, f64)>,
}

/// By the names of expected arrays.
type PathOutput = Vec<(String, Vec<f64>)>;

pub(super) fn run(case: &Case) -> CaseResult {
    let layer = PathLayer::read(case)?;
    let on = |engine: GatedEngine| {
        let mut comparison = compare(engine, layer.on(engine), case)?;
        // the tiled engine does not take them
        comparison.engine = comparison.engine.replace("tiled", "householder");
        Ok(comparison)
    };
    GatedEngine::ALL.into_iter().map(on).collect()
}

impl PathLayer {
    fn read(case: &Case) -> Checked<PathLayer> {
        let (inputs, scale) = (case.attention()?, case.number("scale")?);
        let gates = case.keys("params").any(|key| key == "g").then(|| case.param("g")).transpose()?;
        let factor = match (&gates, case.setting("gate_scale").as_str()) {
            (None, _) | (Some(_), Some("outside")) => 1.0,
            (Some(_), Some("inside")) => scale,
            (Some(_), other) => return Err(format!("gate_scale is {other:?}")),
        };
        let (w, beta) = (case.param("w")?, case.param("beta")?);
        let AttentionDims { batch, heads, keys, head_dim, .. } = inputs.dims;
        let tokens = batch * heads * keys;
        let rows = [&inputs.q, &inputs.k, &inputs.v, &inputs.d_out, &w];
        let fits = rows.iter().all(|rows| rows.len() == tokens * head_dim) && beta.len() == tokens;
        if !fits || gates.as_ref().is_some_and(|gates| gates.len() != tokens) {
            return Err("arrays of different sizes".to_owned());
        }
        Ok(PathLayer { inputs, scale, w, beta, gates: gates.map(|gates| (gates, factor)) })
    }

    /// Directions of length 1.
    fn directions(&self) -> Vec<f64> {
        let normed = |w: &[f64]| {
            let root = w.iter().map(|x| x * x).sum::<f64>().sqrt();
            w.iter().map(|x| x / root).collect::<Vec<f64>>()
        };
        self.w.chunks(self.inputs.dims.head_dim).flat_map(normed).collect()
    }

    /// The gradient in w, given that in directions.
    fn directions_backward(&self, d: &[f64]) -> Vec<f64> {
        let width = self.inputs.dims.head_dim;
        let of_row = |(w, d): (&[f64], &[f64])| {
            let root = w.iter().map(|x| x * x).sum::<f64>().sqrt();
            let along = w.iter().zip(d).map(|(w, d)| w * d).sum::<f64>() / (root * root);
            w.iter().zip(d).map(|(w, d)| (d - w * along) / root).collect::<Vec<f64>>()
        };
        self.w.chunks(width).zip(d.chunks(width)).flat_map(of_row).collect()
    }

    fn scaled_gates(&self) -> Option<Vec<f64>> {
        let (gates, factor) = self.gates.as_ref()?;
        Some(gates.iter().map(|gate| factor * gate).collect())
    }

    fn named(
        &self,
        [out, d_q, d_k, d_v, d_directions, d_beta]: [Vec<f64>; 6],
        d_gates: Option<Vec<f64>>,
    ) -> PathOutput {
        let d_w = self.directions_backward(&d_directions);
        let all =
            [("out", out), ("grad_q", d_q), ("grad_k", d_k), ("grad_v", d_v), ("grad_w", d_w), ("grad_beta", d_beta)];
        let factor = self.gates.as_ref().map_or(1.0, |(_, factor)| *factor);
        let d_gates = d_gates.map(|d_gates| ("grad_g", d_gates.into_iter().map(|d| factor * d).collect()));
        all.into_iter().chain(d_gates).map(|(name, values)| (name.to_owned(), values)).collect()
    }
}

impl OnEngines for PathLayer {
    type Output = PathOutput;

    fn slices<T: Number>(&self, fused: bool) -> PathOutput {
        let AttentionInputs { dims, q, k, v, d_out } = &self.inputs;
        let AttentionDims { batch, heads, keys, head_dim, .. } = *dims;
        let dense = |width: usize| Strides { batch: heads * keys * width, head: keys * width, row: width };
        let (of_rows, of_tokens) = (dense(head_dim), dense(1));
        let [q, k, v, d_out] = [q, k, v, d_out].map(|x| cast::<T>(x));
        let [directions, strengths] = [&self.directions(), &self.beta].map(|x| cast::<T>(x));
        let cumsum = self.scaled_gates().map(|gates| gate_cumsum::of_gates(&gates, keys));
        let view = |data, strides| View { data, strides };
        let path = HouseholderPath {
            directions: view(&directions, of_rows),
            strengths: view(&strengths, of_tokens),
            gate_cumsum: cumsum.as_deref().map(|values| Strided { values, stride: keys }),
        };
        let scores = ScoreTransform::Householder(path);
        let problem = AttentionProblem { scores, ..AttentionProblem::causal(*dims, T::from_f64(self.scale)) };
        let room = |values: &[T]| vec![T::ZERO; values.len()];
        let (mut out, mut lse) = (room(&q), vec![T::ZERO; batch * heads * keys]);
        let forward = if fused { attention::forward::<T> } else { naive::forward::<T> };
        let [q, k, v, d_out] = [&q, &k, &v, &d_out].map(|x| view(x, of_rows));
        forward(&problem, q, k, v, ViewMut::new(&mut out, of_rows), &mut lse);
        let [mut d_q, mut d_k, mut d_v, mut d_directions] = [(); 4].map(|()| room(q.data));
        let (mut d_strengths, mut d_cumsum) = (room(&strengths), cumsum.as_ref().map(|sums| vec![0.0; sums.len()]));
        let gradients = AttentionGradients {
            d_q: ViewMut::new(&mut d_q, of_rows),
            d_k: ViewMut::new(&mut d_k, of_rows),
            d_v: ViewMut::new(&mut d_v, of_rows),
            d_bias: None,
            d_weight: None,
            d_score_mod: None,
            d_sinks: None,
            d_gate_cumsum: d_cumsum.as_deref_mut(),
            d_decay_cumsum: None,
            d_positions: None,
            d_relative: None,
            d_path: None,
            d_householder: Some(HouseholderGradients {
                d_directions: ViewMut::new(&mut d_directions, of_rows),
                d_strengths: ViewMut::new(&mut d_strengths, of_tokens),
            }),
        };
        let saved = AttentionSaved { q, k, v, out: view(&out, of_rows), lse: &lse, d_out };
        let backward = if fused { attention::backward::<T> } else { naive::backward::<T> };
        backward(&problem, saved, gradients);
        let d_gates = d_cumsum.map(|d| gate_cumsum::of_gates_backward::<f64>(&d, keys));
        self.named([out, d_q, d_k, d_v, d_directions, d_strengths].map(to_f64), d_gates)
    }

    fn burn(&self, implementation: Impl) -> PathOutput {
        let AttentionInputs { dims, q, k, v, d_out } = &self.inputs;
        let AttentionDims { batch, heads, keys, head_dim, .. } = *dims;
        let (device, shape) = (Device::flex().autodiff(), [batch, heads, keys, head_dim]);
        let [q, k, v, directions] = [q, k, v, &self.directions()].map(|values| tensor(values, shape, &device));
        let strengths = tensor(&self.beta, [batch, heads, keys, 1], &device);
        let gates = self.scaled_gates().map(|gates| tensor(&gates, [batch, heads, keys], &device));
        let products = HouseholderTensors { directions: directions.clone(), strengths: strengths.clone() };
        let context = ScoreContext { gates: gates.clone(), householder: Some(products), ..ScoreContext::default() };
        let [own_q, own_k, own_v] = [&q, &k, &v].map(Tensor::clone);
        let out = kerple_burn::ops::attention::attention(own_q, own_k, own_v, self.scale, &context, implementation);
        let gradients = (out.clone() * tensor(d_out, shape, &device).detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        let d_gates = gates.map(|gates| gates.grad(&gradients).map(numbers).unwrap_or_default());
        self.named([numbers(out), of(&q), of(&k), of(&v), of(&directions), of(&strengths)], d_gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::ReferenceFolder;

    /// Its name, and what it does to the inputs of the engine.
    type Mistake = (&'static str, fn(&mut PathLayer));

    const MISTAKES: [Mistake; 4] = [
        ("gates inside that are outside, or outside that are inside", |layer| {
            let scale = layer.scale;
            if let Some((_, factor)) = &mut layer.gates {
                *factor = if *factor == 1.0 { scale } else { 1.0 };
            }
        }),
        ("the key's own token, and not the query's", |layer| {
            let width = layer.inputs.dims.head_dim;
            layer.w.rotate_left(width);
            layer.beta.rotate_left(1);
        }),
        ("strengths up to 1", |layer| layer.beta.iter_mut().for_each(|beta| *beta /= 2.0)),
        ("no gates", |layer| layer.gates = None),
    ];

    #[test]
    fn mistakes_are_caught() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/clocks");
        let folder = ReferenceFolder::open(&path).unwrap();
        let cases: Vec<Case> = Case::all(&folder).filter(|case| case.id().starts_with("path/")).collect();
        assert_eq!(cases.len(), 3);
        for (name, mistake) in MISTAKES {
            let caught = cases.iter().any(|case| {
                let mut layer = PathLayer::read(case).unwrap();
                let out = |layer: &PathLayer| {
                    let found = layer.slices::<f64>(true).swap_remove(0).1;
                    let expected = case.expected("out").unwrap();
                    found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
                };
                assert!(out(&layer) < 1e-9, "{}", case.id());
                mistake(&mut layer);
                out(&layer) > 1e-6
            });
            assert!(caught, "{name}");
        }
    }
}
