//! Attention whose features fade by gates of their own (Wall): outputs and every gradient, in every engine.

use super::compare;
use crate::case::Case;
use crate::clocks::engines::{GatedEngine, OnEngines, numbers, tensor};
use crate::engines::{cast, to_f64};
use crate::{CaseResult, Checked};
use burn::tensor::{Device, Tensor};
use kerple_burn::attention_context::{AttentionMask, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::Scoring;
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, Mask, ScoreTable, ScoreTransform,
    Strides, View, ViewMut, naive,
};
use kerple_core::encoding::{Emulate, rotary::RotaryConfig};
use kerple_core::forms::Strided;
use kerple_core::ops::gate_cumsum::{self, log_sigmoid};
use kerple_core::ops::rotary::{Angles, Rotated, Turn, rotate};

/// One layer's attention, with rows as they are multiplied and gates of query heads.
#[derive(Clone)]
pub(super) struct WallLayer {
    pub(super) dims: AttentionDims,
    pub(super) scale: f64,
    pub(super) window: Option<usize>,
    pub(super) lengths: Option<Vec<usize>>,
    pub(super) q: Vec<f64>,
    pub(super) k: Vec<f64>,
    pub(super) v: Vec<f64>,
    pub(super) d_out: Vec<f64>,
    /// Logarithms of gates, `[B, H, K, D]`.
    pub(super) gates: Option<Vec<f64>>,
    /// Those of heads, `[B, H, K]`.
    pub(super) scalar: Option<Vec<f64>>,
    pub(super) sinks: Option<Vec<f64>>,
}

/// Gradients in the inputs of the layer.
pub(super) struct WallOutput {
    pub(super) out: Vec<f64>,
    pub(super) d_q: Vec<f64>,
    pub(super) d_k: Vec<f64>,
    pub(super) d_v: Vec<f64>,
    pub(super) d_gates: Vec<f64>,
    pub(super) d_scalar: Vec<f64>,
    pub(super) d_sinks: Vec<f64>,
}

/// What a case makes its gates of.
struct Logits {
    /// `[B, G, K, D]`; absent where the case has gates themselves.
    of_features: Option<Vec<f64>>,
    of_heads: Option<Vec<f64>>,
    /// Heads that have gates of their own, G.
    heads: usize,
    bound: Option<f64>,
    /// The rows that logits are a projection of, `[B, K, M]`, and the projection, `[H D, M]`.
    projection: Option<[Vec<f64>; 2]>,
    rope_base: Option<f64>,
}

pub(super) fn run(case: &Case) -> CaseResult {
    let (layer, logits) = read(case)?;
    let on = |engine: GatedEngine| {
        compare(case, engine.name(), &logits.gradients(&layer, layer.on(engine)), engine.is_single())
    };
    GatedEngine::ALL.into_iter().map(on).collect()
}

fn read(case: &Case) -> Checked<(WallLayer, Logits)> {
    let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _]) = (case.shape("q")?, case.shape("k")?);
    let dims = AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim };
    let [q, k, v, d_out] = ["q", "k", "v", "dout"].map(|key| case.input(key));
    let has = |name| super::has_parameter(case, name);
    let optional = |name| if has(name) { case.param(name).map(Some) } else { Ok(None) };
    let projection = if has("y") { Some([case.param("y")?, case.param("W")?]) } else { None };
    let of_features = match &projection {
        Some([rows, weight]) => Some(projected(rows, weight, &case.param("b")?, dims)?),
        None => optional("a")?,
    };
    let of_tokens = batch * keys * head_dim;
    let given = if has("g") { case.param("g")? } else { Vec::new() };
    let count = of_features.as_ref().unwrap_or(&given).len();
    let own_heads = count / of_tokens.max(1);
    if !(count == own_heads * of_tokens && [heads, kv_heads].contains(&own_heads) && queries <= keys) {
        return Err("arrays of different sizes".to_owned());
    }
    let (of_heads, bound) = (optional("a_scalar")?, case.optional_number("g_max"));
    let logits = Logits {
        of_features,
        of_heads,
        heads: own_heads,
        bound,
        projection,
        rope_base: case.optional_number("rope_base"),
    };
    let gates: Vec<f64> = match &logits.of_features {
        Some(logits) => logits.iter().map(|a| bounded(log_sigmoid(*a), bound)).collect(),
        None => given,
    };
    let of_head = keys * head_dim;
    let group = heads / own_heads;
    let gates = gates.chunks(of_head).flat_map(|own| own.repeat(group)).collect();
    let scalar = logits.of_heads.as_ref().map(|all| all.iter().map(|a| log_sigmoid(*a)).collect());
    let mut layer = WallLayer {
        dims,
        scale: case.number("scale")?,
        window: case.optional_number("window").map(|window| window as usize),
        lengths: case.lengths(),
        q: q?,
        k: k?,
        v: v?,
        d_out: d_out?,
        gates: Some(gates),
        scalar,
        sinks: optional("sigma")?,
    };
    logits.turn(&mut layer.q, queries, dims, Turn::Forward);
    logits.turn(&mut layer.k, keys, dims, Turn::Forward);
    Ok((layer, logits))
}

fn bounded(gate: f64, bound: Option<f64>) -> f64 {
    bound.map_or(gate, |bound| bound * (gate / bound).exp_m1())
}

/// `rows W' + b` by head, `[B, H, K, D]`.
fn projected(rows: &[f64], weight: &[f64], bias: &[f64], dims: AttentionDims) -> Checked<Vec<f64>> {
    let AttentionDims { batch, heads, keys, head_dim, .. } = dims;
    let width = rows.len() / (batch * keys).max(1);
    if weight.len() != heads * head_dim * width || bias.len() != heads * head_dim {
        return Err("a projection of another size".to_owned());
    }
    let mut logits = vec![0.0; batch * heads * keys * head_dim];
    for (at, to) in logits.iter_mut().enumerate() {
        let (feature, token, unit) = (at % head_dim, at / head_dim % keys, at / head_dim / keys);
        let (row, out) = (unit / heads * keys + token, unit % heads * head_dim + feature);
        let of_row = rows[row * width..][..width].iter().zip(&weight[out * width..][..width]);
        *to = bias[out] + of_row.map(|(x, w)| x * w).sum::<f64>();
    }
    Ok(logits)
}

impl Logits {
    /// Rotates the rows of a case that has rotary positions, `[B, H, rows, D]`, of the last positions.
    fn turn(&self, x: &mut [f64], rows: usize, dims: AttentionDims, turn: Turn) {
        let Some(base) = self.rope_base else { return };
        let (head_dim, units) = (dims.head_dim, x.len() / (rows * dims.head_dim));
        let rotary = RotaryConfig { base, ..RotaryConfig::default() }.rotary(head_dim, Emulate::Exact);
        let (cos, sin) = rotary.tables(dims.keys - rows..dims.keys);
        let strides = Strides { batch: rows * head_dim, head: rows * head_dim, row: head_dim };
        let angles = Angles { cos: &cos, sin: &sin, pairs: head_dim / 2 };
        rotate(x, strides, Rotated { batch: units, len: rows, heads: 1 }, angles, turn);
    }

    /// By the names of expected arrays.
    fn gradients(&self, layer: &WallLayer, found: WallOutput) -> Vec<(&'static str, Vec<f64>)> {
        let AttentionDims { batch, heads, queries, keys, head_dim, .. } = layer.dims;
        let WallOutput { out, mut d_q, mut d_k, d_v, d_gates, d_scalar, d_sinks } = found;
        self.turn(&mut d_q, queries, layer.dims, Turn::Inverse);
        self.turn(&mut d_k, keys, layer.dims, Turn::Inverse);
        let (of_head, group) = (keys * head_dim, heads / self.heads);
        let mut d_own = vec![0.0; batch * self.heads * of_head];
        for (own, heads) in d_own.chunks_mut(of_head).zip(d_gates.chunks(group * of_head)) {
            heads.chunks(of_head).for_each(|head| own.iter_mut().zip(head).for_each(|(to, d)| *to += d));
        }
        let mut all = vec![("out", out), ("grad_q", d_q), ("grad_k", d_k), ("grad_v", d_v), ("grad_sigma", d_sinks)];
        let slope = |a: f64, bound: Option<f64>| {
            let of_bound = bound.map_or(1.0, |bound| (log_sigmoid(a) / bound).exp());
            of_bound / (1.0 + a.exp())
        };
        let through = |logits: &[f64], d: Vec<f64>, bound: Option<f64>| -> Vec<f64> {
            logits.iter().zip(d).map(|(a, d)| d * slope(*a, bound)).collect()
        };
        if let Some(logits) = &self.of_heads {
            all.push(("grad_a_scalar", through(logits, d_scalar, None)));
        }
        let Some(logits) = &self.of_features else {
            all.push(("grad_g", d_own));
            return all;
        };
        let d_logits = through(logits, d_own, self.bound);
        if let Some([rows, weight]) = &self.projection {
            let width = rows.len() / (batch * keys);
            let (mut d_rows, mut d_weight) = (vec![0.0; rows.len()], vec![0.0; weight.len()]);
            let mut d_bias = vec![0.0; heads * head_dim];
            for (at, d) in d_logits.iter().enumerate() {
                let (feature, token, unit) = (at % head_dim, at / head_dim % keys, at / head_dim / keys);
                let (row, out) = (unit / heads * keys + token, unit % heads * head_dim + feature);
                d_bias[out] += d;
                for m in 0..width {
                    d_rows[row * width + m] += d * weight[out * width + m];
                    d_weight[out * width + m] += d * rows[row * width + m];
                }
            }
            all.extend([("grad_y", d_rows), ("grad_W", d_weight), ("grad_b", d_bias)]);
        }
        all.push(("grad_a", d_logits));
        all
    }
}

impl OnEngines for WallLayer {
    type Output = WallOutput;

    fn slices<T: Number>(&self, fused: bool) -> WallOutput {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let dense = |heads: usize, rows: usize| Strides {
            batch: heads * rows * head_dim,
            head: rows * head_dim,
            row: head_dim,
        };
        let (of_q, of_k) = (dense(heads, queries), dense(kv_heads, keys));
        let [q, k, v, d_out] = [&self.q, &self.k, &self.v, &self.d_out].map(|x| cast::<T>(x));
        let sinks = self.sinks.as_deref().map(cast::<T>);
        let decays = self.gates.as_ref().map(|gates| gate_cumsum::of_features(gates, [keys, head_dim]));
        let scalar = self.scalar.as_ref().map(|gates| gate_cumsum::of_gates(gates, keys));
        let scores = ScoreTable {
            decay_cumsum: decays.as_deref().map(|data| View { data, strides: dense(heads, keys) }),
            gate_cumsum: scalar.as_deref().map(|values| Strided { values, stride: keys }),
            ..ScoreTable::PLAIN
        };
        let problem = AttentionProblem {
            mask: Mask::Causal { window: self.window },
            lengths: self.lengths.as_deref(),
            sinks: sinks.as_deref(),
            scores: ScoreTransform::Table(scores),
            ..AttentionProblem::causal(self.dims, T::from_f64(self.scale))
        };
        let room = |values: &[T]| vec![T::ZERO; values.len()];
        let (mut out, mut lse) = (room(&q), vec![T::ZERO; batch * heads * queries]);
        let view = |data, strides| View { data, strides };
        let forward = if fused { attention::forward::<T> } else { naive::forward::<T> };
        forward(&problem, view(&q, of_q), view(&k, of_k), view(&v, of_k), ViewMut::new(&mut out, of_q), &mut lse);
        let [mut d_q, mut d_k, mut d_v] = [&q, &k, &v].map(|x| room(x));
        let mut d_decays = decays.as_ref().map(|sums| vec![0.0; sums.len()]);
        let mut d_scalar = scalar.as_ref().map(|sums| vec![0.0; sums.len()]);
        let mut d_sinks = sinks.as_deref().map(room);
        let gradients = AttentionGradients {
            d_sinks: d_sinks.as_deref_mut(),
            d_gate_cumsum: d_scalar.as_deref_mut(),
            d_decay_cumsum: d_decays.as_deref_mut(),
            ..AttentionGradients::of_rows(
                ViewMut::new(&mut d_q, of_q),
                ViewMut::new(&mut d_k, of_k),
                ViewMut::new(&mut d_v, of_k),
            )
        };
        let (rows, of_out) = ([view(&q, of_q), view(&k, of_k), view(&v, of_k)], view(&out, of_q));
        let [q, k, v] = rows;
        let saved = AttentionSaved { q, k, v, out: of_out, lse: &lse, d_out: view(&d_out, of_q) };
        let backward = if fused { attention::backward::<T> } else { naive::backward::<T> };
        backward(&problem, saved, gradients);
        let d_gates = d_decays.map(|d| gate_cumsum::of_features_backward(&d, [keys, head_dim])).unwrap_or_default();
        WallOutput {
            out: to_f64(out),
            d_q: to_f64(d_q),
            d_k: to_f64(d_k),
            d_v: to_f64(d_v),
            d_gates,
            d_scalar: d_scalar.map(|d| gate_cumsum::of_gates_backward(&d, keys)).unwrap_or_default(),
            d_sinks: d_sinks.map(to_f64).unwrap_or_default(),
        }
    }

    fn burn(&self, implementation: Impl) -> WallOutput {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let device = Device::flex().autodiff();
        let [of_q, of_k] = [[batch, heads, queries, head_dim], [batch, kv_heads, keys, head_dim]];
        let q = tensor(&self.q, of_q, &device);
        let [k, v] = [&self.k, &self.v].map(|values| tensor(values, of_k, &device));
        let of_features = [batch, heads, keys, head_dim];
        let feature_gates = self.gates.as_ref().map(|gates| tensor(gates, of_features, &device));
        let gates = self.scalar.as_ref().map(|gates| tensor(gates, [batch, heads, keys], &device));
        let sinks = self.sinks.as_ref().map(|sinks| tensor(sinks, [heads], &device));
        let context = ScoreContext {
            mask: AttentionMask {
                lengths: self.lengths.clone().map(Into::into),
                ..AttentionMask::from(Mask::Causal { window: self.window })
            },
            gates: gates.clone(),
            feature_gates: feature_gates.clone(),
            ..ScoreContext::default()
        };
        let scoring = Scoring { sinks: sinks.clone(), ..Scoring::from(self.scale) };
        let [own_k, own_v] = [&k, &v].map(Tensor::clone);
        let out = kerple_burn::ops::attention::attention(q.clone(), own_k, own_v, scoring, &context, implementation);
        let gradients = (out.clone() * tensor(&self.d_out, of_q, &device).detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        WallOutput {
            out: numbers(out),
            d_q: of(&q),
            d_k: of(&k),
            d_v: of(&v),
            d_gates: feature_gates.as_ref().map(of).unwrap_or_default(),
            d_scalar: gates.and_then(|gates| gates.grad(&gradients)).map(numbers).unwrap_or_default(),
            d_sinks: sinks.and_then(|sinks| sinks.grad(&gradients)).map(numbers).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::ReferenceFolder;

    fn gates_of(layer: &mut WallLayer) -> &mut Vec<f64> {
        layer.gates.as_mut().expect("cases of Wall have gates")
    }

    /// Its name, and what it does to the inputs of the engine.
    type Mistake = (&'static str, fn(&mut WallLayer));

    const MISTAKES: [Mistake; 7] = [
        ("the key's gate counts and the query's does not", |layer| {
            let of_head = layer.dims.keys * layer.dims.head_dim;
            let head_dim = layer.dims.head_dim;
            gates_of(layer).chunks_mut(of_head).for_each(|head| head.rotate_left(head_dim));
        }),
        ("gates of the first head of a group", |layer| {
            let (of_head, group) = (layer.dims.keys * layer.dims.head_dim, layer.dims.heads / layer.dims.kv_heads);
            let all = gates_of(layer).clone();
            for (h, head) in gates_of(layer).chunks_mut(of_head).enumerate() {
                head.copy_from_slice(&all[h / group * group * of_head..][..of_head]);
            }
        }),
        ("gates cut at -2", |layer| gates_of(layer).iter_mut().for_each(|gate| *gate = gate.max(-2.0))),
        ("no gate of heads", |layer| layer.scalar = None),
        ("no sink", |layer| layer.sinks = None),
        ("a window of one more", |layer| layer.window = layer.window.map(|window| window + 1)),
        ("one gate for all features", |layer| {
            let head_dim = layer.dims.head_dim;
            for token in gates_of(layer).chunks_mut(head_dim) {
                let mean = token.iter().sum::<f64>() / head_dim as f64;
                token.fill(mean);
            }
        }),
    ];

    #[test]
    fn mistakes_are_caught() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/positions2026");
        let folder = ReferenceFolder::open(&path).unwrap();
        let cases: Vec<Case> = Case::all(&folder).filter(|case| case.get("static")["family"] == "wall").collect();
        assert!(!cases.is_empty());
        for (name, mistake) in MISTAKES {
            let caught = cases.iter().any(|case| {
                let (mut layer, _) = read(case).unwrap();
                let out = |layer: &WallLayer| {
                    let found = layer.slices::<f64>(true).out;
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
