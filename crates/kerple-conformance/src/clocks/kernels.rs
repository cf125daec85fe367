//! Kernels of learned positions: steps as they stand or made of logits, through every engine; and one query after another.

use super::engines::{GatedEngine, numbers, tensor, with_growth};
use super::{compare, normalizer};
use crate::case::{AttentionInputs, Case};
use crate::engines::{cast, forward_backward, to_f64};
use crate::{CaseComparison, CaseResult, Checked};
use burn::tensor::{Device, Tensor};
use kerple_burn::attention_context::{AttentionMask, KernelTensors, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, attention};
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionProblem, LearnedPositions, Mask, PositionKernel, ScoreTable, ScoreTransform, Strides,
    View, ViewMut, naive,
};
use kerple_core::forms::{Normalizer, Strided};
use kerple_core::ops::gate_cumsum::{self, GateMap};
use serde_json::json;

/// Attention of slices.
type ForwardPass = fn(&AttentionProblem<f64>, View<f64>, View<f64>, View<f64>, ViewMut<f64>, &mut [f64]);

/// One case.
struct PositionedAttention {
    inputs: AttentionInputs,
    scale: f64,
    mask: Mask,
    normalizer: Normalizer,
    kernel: PositionKernel,
    /// Of each parameter, `[H]` or `[H, M]`.
    names: &'static [&'static str],
    /// `[H, P]`
    parameters: Vec<f64>,
    /// `[B, H, L]`
    steps: Vec<f64>,
    /// Forget gates beside them, `[B, H, L]`.
    gates: Option<Vec<f64>>,
    /// Of the growth of queries with the keys they see, `[H]`.
    slopes: Option<Vec<f64>>,
}

/// By how a case is named: the kernel and the names of its parameters.
fn kernel(case: &Case) -> Checked<(PositionKernel, &'static [&'static str])> {
    Ok(match case.id().trim_start_matches("kclock/") {
        "power_small" | "power_large" => (PositionKernel::Power, &["r1", "p"]),
        "log3" => (PositionKernel::Log3, &["r1", "r2", "p"]),
        "spline" => {
            let knots = case.setting("knots").as_array().ok_or("static.knots is not a list")?;
            let doubles = (1..).zip(knots).all(|(m, knot)| knot.as_f64() == Some(PositionKernel::knot(m)));
            if !doubles {
                return Err(format!("knots {knots:?} do not double from 1"));
            }
            (PositionKernel::Spline { knots: knots.len() }, &["a0", "am"])
        }
        "table_uniform" => {
            let (grid, entries) = (case.number("grid")?, case.size_from("entries", 2)?);
            if grid.log2().fract() != 0.0 {
                return Err(format!("a grid of {grid} is not a power of 2"));
            }
            (PositionKernel::Table { entries, grid_exponent: grid.log2() as i32 }, &["tab"])
        }
        _ => (PositionKernel::Log, &["r1", "r2"]),
    })
}

/// Those of a kernel, `[H, P]`.
fn parameters(case: &Case, names: &[&str], heads: usize) -> Checked<Vec<f64>> {
    let columns = names.iter().map(|name| case.param(name)).collect::<Checked<Vec<Vec<f64>>>>()?;
    let of_head = |head: usize| {
        columns.iter().flat_map(move |column| column[head * column.len() / heads..][..column.len() / heads].to_vec())
    };
    Ok((0..heads).flat_map(of_head).collect())
}

/// Causal; with the window and the first tokens of a case that has them.
fn mask(case: &Case) -> Checked<Mask> {
    match case.optional_number("window") {
        Some(_) => Ok(Mask::causal(Some(case.size_from("window", 1)?), case.size("sinks")?)),
        None => Ok(Mask::CAUSAL),
    }
}

/// How logits become steps; nothing where steps stand as they are.
fn map(case: &Case) -> Checked<Option<GateMap>> {
    Ok(match case.id().trim_start_matches("kclock/") {
        "log_sigmoid" => Some(GateMap::Sigmoid { min: 0.0, max: case.number("step_max")? }),
        "log_softplus" => Some(GateMap::Softplus { min: case.number("step_min")? }),
        "log_exp" => Some(GateMap::Exp),
        _ => None,
    })
}

/// What an engine returns: output, gradients in queries, keys and values, in steps, in gates beside them and in parameters.
struct PositionedOutput {
    rows: [Vec<f64>; 4],
    d_steps: Vec<f64>,
    d_gates: Option<Vec<f64>>,
    d_parameters: Vec<f64>,
    d_slopes: Option<Vec<f64>>,
}

pub fn run(case: &Case) -> CaseResult {
    let inputs = case.attention()?;
    let AttentionDims { batch, heads, keys: len, .. } = inputs.dims;
    let (kernel, names) = kernel(case)?;
    let map = map(case)?;
    let steps = match (map, case.id()) {
        (Some(map), _) => case.param("a")?.iter().map(|a| map.value(*a)).collect(),
        (None, "kclock/step_one") => vec![1.0; batch * heads * len],
        (None, _) => case.param("steps")?,
    };
    let gates = match case.id() {
        "kclock/log_plus_fox" => Some(case.param("a")?),
        _ => None,
    };
    let parameters = parameters(case, names, heads)?;
    if steps.len() != batch * heads * len || parameters.len() != heads * kernel.parameters() {
        return Err("arrays of different sizes".to_owned());
    }
    let given = PositionedAttention {
        inputs,
        scale: case.number("scale")?,
        mask: mask(case)?,
        normalizer: normalizer(case)?,
        kernel,
        names,
        parameters,
        steps,
        gates: gates.as_ref().map(|a| a.iter().map(|a| gate_cumsum::log_sigmoid(*a)).collect()),
        slopes: case.keys("params").any(|key| key == "sm").then(|| case.param("sm")).transpose()?,
    };
    let mut comparisons = Vec::new();
    for engine in GatedEngine::ALL.into_iter().filter(|engine| given.gates.is_none() || !engine.is_of_burn()) {
        let found = given.run(engine);
        let mut named = given.named(&found, heads);
        match (map, &gates, found.d_gates) {
            (Some(map), _, _) => {
                let (logits, sizes) = (case.param("a")?, [batch * heads, len, 1]);
                let d_x = in_positions(&found.d_steps, len);
                named.push(("grad_a".to_owned(), gate_cumsum::of_logits_backward(&logits, &d_x, sizes, map)));
            }
            (None, Some(a), Some(d_gates)) => {
                let d_a = a.iter().zip(d_gates).map(|(a, d)| d / (1.0 + a.exp())).collect();
                named.extend([("grad_a".to_owned(), d_a), ("grad_steps".to_owned(), found.d_steps)]);
            }
            _ => named.push(("grad_steps".to_owned(), found.d_steps)),
        }
        named.extend(found.d_slopes.map(|d_slopes| ("grad_sm".to_owned(), d_slopes)));
        comparisons.push(compare(engine, named, case)?);
    }
    Ok(comparisons)
}

/// A first part of the rows, then one query after another: each is the last row of the keys up to it.
pub fn decode(case: &Case) -> CaseResult {
    let input = |key: &str| case.folder.array(&json!({ "file": "inputs.safetensors", "key": key }));
    let (q, k, v) = (input("q")?, input("k")?.values, input("v")?.values);
    let &[batch, heads, len, head_dim] = &q.shape[..] else { return Err("q: expected [B, H, L, D]".to_owned()) };
    let (kernel, names) = kernel(case)?;
    let parameters = parameters(case, names, heads)?;
    let gates: Vec<f64> = case.param("a")?.iter().map(|a| gate_cumsum::log_sigmoid(*a)).collect();
    let steps = case.param("steps")?;
    let same = [k.len(), v.len(), gates.len() * head_dim, steps.len() * head_dim].iter().all(|n| *n == q.values.len());
    if !same || parameters.len() != heads * kernel.parameters() {
        return Err("arrays of different sizes".to_owned());
    }
    let [clocks, x] = [&gates, &steps].map(|terms| gate_cumsum::of_gates(terms, len));
    let prefill = case.size("prefill")?.min(len);
    let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
    let of_rows = |values| Strided { values, stride: len };
    let table = ScoreTable {
        positions: Some(LearnedPositions { positions: of_rows(&x[..]), kernel, parameters: &parameters }),
        gate_cumsum: Some(of_rows(&clocks[..])),
        ..ScoreTable::PLAIN
    };
    let mut comparisons = Vec::new();
    for (engine, forward) in [("naive f64", naive::forward as ForwardPass), ("tiled f64", attention::forward)] {
        let mut out = vec![0.0; q.values.len()];
        for rows in std::iter::once(0..prefill).chain((prefill..len).map(|row| row..row + 1)) {
            let dims = AttentionDims {
                batch,
                heads,
                kv_heads: heads,
                queries: rows.len(),
                keys: rows.end,
                head_dim,
                value_dim: head_dim,
            };
            let plain = AttentionProblem::causal(dims, case.number("scale")?);
            let problem = AttentionProblem { scores: ScoreTransform::Table(table), ..plain };
            let (first, mut lse) = (rows.start * head_dim, vec![0.0; batch * heads * rows.len()]);
            let view = |data| View { data, strides };
            let to = ViewMut::new(&mut out[first..], strides);
            forward(&problem, view(&q.values[first..]), view(&k), view(&v), to, &mut lse);
        }
        comparisons.push(CaseComparison::new(engine));
        let comparison = comparisons.last_mut().expect("just pushed");
        case.compare(comparison, "out", &out, case.tolerance(""))?;
    }
    Ok(comparisons)
}

/// The gradient in running sums, given that in their terms.
fn in_positions(d_steps: &[f64], len: usize) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let next = row.iter().skip(1).copied().chain([0.0]).collect::<Vec<f64>>();
        row.iter().zip(next).map(|(d, next)| d - next).collect::<Vec<f64>>()
    };
    d_steps.chunks(len.max(1)).flat_map(of_row).collect()
}

impl PositionedAttention {
    fn run(&self, engine: GatedEngine) -> PositionedOutput {
        let run = |q: &[f64]| match engine {
            GatedEngine::Naive { single: true } => self.slices::<f32>(q, false),
            GatedEngine::Naive { single: false } => self.slices::<f64>(q, false),
            GatedEngine::Tiled { single: true } => self.slices::<f32>(q, true),
            GatedEngine::Tiled { single: false } => self.slices::<f64>(q, true),
            GatedEngine::Burn(implementation) => self.burn(q, implementation),
        };
        let (slopes, d_q) = (self.slopes.as_deref(), |found: &mut PositionedOutput| std::mem::take(&mut found.rows[1]));
        let (mut found, grown) = with_growth(&self.inputs.q, slopes, self.inputs.dims, run, d_q);
        if let Some([d_q, d_slopes]) = grown {
            (found.rows[1], found.d_slopes) = (d_q, Some(d_slopes));
        }
        found
    }

    /// What an engine returned, by name.
    fn named(&self, found: &PositionedOutput, heads: usize) -> Vec<(String, Vec<f64>)> {
        let rows = ["out", "grad_q", "grad_k", "grad_v"].into_iter().zip(&found.rows);
        let mut named: Vec<(String, Vec<f64>)> = rows.map(|(name, values)| (name.to_owned(), values.clone())).collect();
        let (count, mut first) = (self.kernel.parameters(), 0);
        for (at, name) in self.names.iter().enumerate() {
            let width = if at + 1 == self.names.len() { count - first } else { 1 };
            let own = |head: usize| &found.d_parameters[head * count + first..][..width];
            named.push((format!("grad_{name}"), (0..heads).flat_map(own).copied().collect()));
            first += width;
        }
        named.push(("x".to_owned(), gate_cumsum::of_gates(&self.steps, self.inputs.dims.keys)));
        named
    }

    fn slices<T: Number>(&self, q: &[f64], fused: bool) -> PositionedOutput {
        let AttentionDims { heads, keys: len, head_dim, .. } = self.inputs.dims;
        let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
        let AttentionInputs { k, v, d_out, .. } = &self.inputs;
        let rows = [q, k, v, d_out].map(cast::<T>);
        let sums = |gates: &Vec<f64>| gate_cumsum::of_gates(gates, len);
        let (x, clocks) = (sums(&self.steps), self.gates.as_ref().map(sums));
        let positions = Strided { values: &x[..], stride: len };
        let table = ScoreTable {
            positions: Some(LearnedPositions { positions, kernel: self.kernel, parameters: &self.parameters }),
            gate_cumsum: clocks.as_deref().map(|values| Strided { values, stride: len }),
            ..ScoreTable::PLAIN
        };
        let plain = AttentionProblem::causal(self.inputs.dims, T::from_f64(self.scale));
        let (mask, normalizer, scores) = (self.mask, self.normalizer, ScoreTransform::Table(table));
        let problem = AttentionProblem { mask, normalizer, scores, ..plain };
        let found = forward_backward(&problem, [strides; 4], rows.each_ref().map(|x| &x[..]), 0, fused);
        let [d_positions, d_parameters] = found.d_positions.expect("the problem has learned positions");
        PositionedOutput {
            rows: [found.out, found.d_q, found.d_k, found.d_v].map(to_f64),
            d_steps: gate_cumsum::of_gates_backward(&d_positions, len),
            d_gates: found.d_clocks.map(|d_clocks| gate_cumsum::of_gates_backward(&d_clocks, len)),
            d_parameters,
            d_slopes: None,
        }
    }

    fn burn(&self, q: &[f64], implementation: Impl) -> PositionedOutput {
        let device = Device::flex().autodiff();
        let AttentionDims { batch, heads, keys: len, head_dim, .. } = self.inputs.dims;
        let AttentionInputs { k, v, d_out, .. } = &self.inputs;
        let [q, k, v, d_out] = [q, k, v, d_out].map(|x| tensor(x, [batch, heads, len, head_dim], &device));
        let steps = tensor(&self.steps, [batch, heads, len], &device);
        let parameters = tensor(&self.parameters, [heads, self.kernel.parameters()], &device);
        let kernel = Some(KernelTensors { kernel: self.kernel, parameters: parameters.clone() });
        let mask = AttentionMask::from(self.mask);
        let context = ScoreContext { mask, gates: Some(steps.clone()), kernel, ..ScoreContext::default() };
        let scoring = Scoring { normalizer: self.normalizer, ..Scoring::from(self.scale) };
        let out = attention(q.clone(), k.clone(), v.clone(), scoring, &context, implementation);
        let gradients = (out.clone() * d_out.detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        PositionedOutput {
            rows: [numbers(out), of(&q), of(&k), of(&v)],
            d_steps: steps.grad(&gradients).map(numbers).unwrap_or_default(),
            d_gates: None,
            d_parameters: parameters.grad(&gradients).map(numbers).unwrap_or_default(),
            d_slopes: None,
        }
    }
}
