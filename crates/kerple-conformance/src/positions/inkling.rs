//! Attention with a relative bias per row (Inkling): outputs and every gradient, in every engine.

use super::compare;
use crate::case::Case;
use crate::clocks::engines::{GatedEngine, OnEngines, numbers, tensor};
use crate::engines::{cast, to_f64};
use crate::{CaseResult, Checked};
use burn::tensor::{DType, Device, Tensor};
use kerple_burn::attention_context::{AttentionMask, RelativeTensors, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, seen};
use kerple_core::Number;
use kerple_core::attention::{
    self, AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, Mask, RelativeBias, RelativeGradients,
    ScoreTable, ScoreTransform, Strides, View, ViewMut, naive,
};

/// One layer's attention. The log-length factor multiplies queries and rows before it, and their gradients after it.
#[derive(Clone)]
struct InklingLayer {
    dims: AttentionDims,
    scale: f64,
    window: Option<usize>,
    lengths: Option<Vec<usize>>,
    rank: usize,
    reach: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    d_out: Vec<f64>,
    rows: Vec<f64>,
    profiles: Vec<f64>,
    /// The log-length factor of each query, on queries and on rows.
    factors: [Vec<f64>; 2],
}

/// What an engine returns, by the names of expected arrays.
type InklingOutput = [(&'static str, Vec<f64>); 6];

/// Attention with a relative bias per row: outputs and gradients.
pub(super) fn attention(case: &Case) -> CaseResult {
    let layer = InklingLayer::read(case)?;
    let on = |engine: GatedEngine| compare(case, engine.name(), &layer.on(engine), engine.is_single());
    GatedEngine::ALL.into_iter().map(on).collect()
}

/// The bias alone: what the reference adds to scores of queries that are 0. Keys after a query have none.
pub(super) fn bias(case: &Case) -> CaseResult {
    let [batch, heads, queries, rank] = case.shape("r")?;
    let profiles = case.array("params", "P")?;
    let (&[own, reach], [_, _, _, keys]) = (profiles.shape.as_slice(), case.shape::<4>("dbias")?) else {
        return Err("P is not a matrix".to_owned());
    };
    if own != rank || queries > keys {
        return Err("arrays of different sizes".to_owned());
    }
    let device = Device::flex().autodiff();
    let rows = tensor(&case.input("r")?, [batch, heads, queries, rank], &device);
    let profiles = tensor(&profiles.values, [rank, reach], &device);
    let zeros = |rows: usize| Tensor::<4>::zeros([batch, heads, rows, 1], (&device, DType::F64));
    let relative = Some(RelativeTensors { rows: rows.clone(), profiles: profiles.clone() });
    let context = ScoreContext { relative, ..ScoreContext::default() };
    let found = seen(zeros(queries), zeros(keys), &Scoring::from(1.0), &context).mapped;
    let is_seen = |at: usize| if at % keys <= keys - queries + at / keys % queries { 1.0 } else { 0.0 };
    let of_seen: Vec<f64> = (0..batch * heads * queries * keys).map(is_seen).collect();
    let bias = found * tensor::<4>(&of_seen, [batch, heads, queries, keys], &device).detach();
    let d_bias = tensor::<4>(&case.input("dbias")?, bias.dims(), &device).detach();
    let gradients = (bias.clone() * d_bias).sum().backward();
    let named = [
        ("bias", numbers(bias)),
        ("grad_r", rows.grad(&gradients).map(numbers).unwrap_or_default()),
        ("grad_P", profiles.grad(&gradients).map(numbers).unwrap_or_default()),
    ];
    Ok(vec![compare(case, "burn reference f64", &named, false)?])
}

/// `1 + alpha ln(max(1, (i + 1) / floor))` at position i.
fn log_length_factor(position: usize, floor: f64, alpha: f64) -> f64 {
    1.0 + alpha * ((position + 1) as f64 / floor).max(1.0).ln()
}

impl InklingLayer {
    fn read(case: &Case) -> Checked<InklingLayer> {
        let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _]) = (case.shape("q")?, case.shape("k")?);
        let dims = AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim };
        let [q, k, v, d_out, rows] = ["q", "k", "v", "dout", "r"].map(|key| case.input(key));
        let profiles = case.array("params", "P")?;
        let &[rank, reach] = profiles.shape.as_slice() else { return Err("P is not a matrix".to_owned()) };
        let factor = |row: usize| match (case.optional_number("log_scale_floor"), case.number("log_scale_alpha")) {
            (Some(floor), Ok(alpha)) => log_length_factor(keys - queries + row, floor, alpha),
            _ => 1.0,
        };
        let factors: Vec<f64> = (0..queries.min(keys)).map(factor).collect();
        let layer = InklingLayer {
            dims,
            scale: case.number("scale")?,
            window: case.optional_number("window").map(|window| window as usize),
            lengths: case.lengths(),
            rank,
            reach,
            q: q?,
            k: k?,
            v: v?,
            d_out: d_out?,
            rows: rows?,
            profiles: profiles.values,
            factors: [factors.clone(), factors],
        };
        let sizes = [(&layer.v, layer.k.len()), (&layer.d_out, layer.q.len())];
        let fits = sizes.into_iter().all(|(values, len)| values.len() == len) && queries <= keys;
        let of_rows = layer.rows.len() == batch * heads * queries * rank;
        if fits && of_rows { Ok(layer) } else { Err("arrays of different sizes".to_owned()) }
    }

    /// Rows of queries times their factor.
    fn scaled(&self, values: &[f64], width: usize, factors: &[f64]) -> Vec<f64> {
        let of_row = |(row, values): (usize, &[f64])| {
            let factor = factors[row % self.dims.queries];
            values.iter().map(|value| value * factor).collect::<Vec<_>>()
        };
        values.chunks_exact(width).enumerate().flat_map(of_row).collect()
    }
}

impl OnEngines for InklingLayer {
    type Output = InklingOutput;

    fn slices<T: Number>(&self, fused: bool) -> InklingOutput {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let dense = |heads: usize, rows: usize, width: usize| Strides {
            batch: heads * rows * width,
            head: rows * width,
            row: width,
        };
        let (of_q, of_k) = (dense(heads, queries, head_dim), dense(kv_heads, keys, head_dim));
        let of_rows = dense(heads, queries, self.rank);
        let [k, v, d_out, profiles] = [&self.k, &self.v, &self.d_out, &self.profiles].map(|x| cast::<T>(x));
        let q = cast::<T>(&self.scaled(&self.q, head_dim, &self.factors[0]));
        let rows = cast::<T>(&self.scaled(&self.rows, self.rank, &self.factors[1]));
        let relative = RelativeBias {
            rows: View { data: &rows, strides: of_rows },
            profiles: &profiles,
            rank: self.rank,
            reach: self.reach,
        };
        let problem = AttentionProblem {
            mask: Mask::Causal { window: self.window },
            lengths: self.lengths.as_deref(),
            scores: ScoreTransform::Table(ScoreTable { relative: Some(relative), ..ScoreTable::PLAIN }),
            ..AttentionProblem::causal(self.dims, T::from_f64(self.scale))
        };
        let room = |values: &[T]| vec![T::ZERO; values.len()];
        let (mut out, mut lse) = (room(&q), vec![T::ZERO; batch * heads * queries]);
        let view = |data, strides| View { data, strides };
        let forward = if fused { attention::forward::<T> } else { naive::forward::<T> };
        forward(&problem, view(&q, of_q), view(&k, of_k), view(&v, of_k), ViewMut::new(&mut out, of_q), &mut lse);
        let [mut d_q, mut d_k, mut d_v, mut d_rows, mut d_profiles] = [&q, &k, &v, &rows, &profiles].map(|x| room(x));
        let gradients = AttentionGradients {
            d_relative: Some(RelativeGradients {
                d_rows: ViewMut::new(&mut d_rows, of_rows),
                d_profiles: &mut d_profiles,
            }),
            ..AttentionGradients::of_rows(
                ViewMut::new(&mut d_q, of_q),
                ViewMut::new(&mut d_k, of_k),
                ViewMut::new(&mut d_v, of_k),
            )
        };
        let saved = AttentionSaved {
            q: view(&q, of_q),
            k: view(&k, of_k),
            v: view(&v, of_k),
            out: view(&out, of_q),
            lse: &lse,
            d_out: view(&d_out, of_q),
        };
        let backward = if fused { attention::backward::<T> } else { naive::backward::<T> };
        backward(&problem, saved, gradients);
        [
            ("out", to_f64(out)),
            ("grad_q", self.scaled(&to_f64(d_q), head_dim, &self.factors[0])),
            ("grad_k", to_f64(d_k)),
            ("grad_v", to_f64(d_v)),
            ("grad_r", self.scaled(&to_f64(d_rows), self.rank, &self.factors[1])),
            ("grad_P", to_f64(d_profiles)),
        ]
    }

    fn burn(&self, implementation: Impl) -> InklingOutput {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let device = Device::flex().autodiff();
        let [of_q, of_k] = [[batch, heads, queries, head_dim], [batch, kv_heads, keys, head_dim]];
        let q = tensor(&self.scaled(&self.q, head_dim, &self.factors[0]), of_q, &device);
        let [k, v] = [&self.k, &self.v].map(|values| tensor(values, of_k, &device));
        let of_rows = [batch, heads, queries, self.rank];
        let rows = tensor(&self.scaled(&self.rows, self.rank, &self.factors[1]), of_rows, &device);
        let profiles = tensor(&self.profiles, [self.rank, self.reach], &device);
        let pattern = Mask::Causal { window: self.window };
        let mask = AttentionMask { pattern, lengths: self.lengths.clone().map(Into::into), documents: None };
        let relative = Some(RelativeTensors { rows: rows.clone(), profiles: profiles.clone() });
        let context = ScoreContext { mask, relative, ..ScoreContext::default() };
        let out = kerple_burn::ops::attention::attention(
            q.clone(),
            k.clone(),
            v.clone(),
            self.scale,
            &context,
            implementation,
        );
        let gradients = (out.clone() * tensor(&self.d_out, of_q, &device).detach()).sum().backward();
        let of = |x: &Tensor<4>| x.grad(&gradients).map(numbers).unwrap_or_default();
        [
            ("out", numbers(out)),
            ("grad_q", self.scaled(&of(&q), head_dim, &self.factors[0])),
            ("grad_k", of(&k)),
            ("grad_v", of(&v)),
            ("grad_r", self.scaled(&of(&rows), self.rank, &self.factors[1])),
            ("grad_P", profiles.grad(&gradients).map(numbers).unwrap_or_default()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::ReferenceFolder;

    /// Its name, and what it does to the inputs of the engine.
    type Mistake = (&'static str, fn(&mut InklingLayer));

    /// Mistakes of implementations in use.
    const MISTAKES: [Mistake; 12] = [
        ("a reach one less", |layer| layer.shorten(1)),
        ("the last column shared beyond the reach", |layer| {
            let (from, to) = (layer.reach, layer.dims.keys.max(layer.reach));
            let all = std::mem::take(&mut layer.profiles);
            layer.profiles = all.chunks(from).flat_map(|row| (0..to).map(|d| row[d.min(from - 1)])).collect();
            layer.reach = to;
        }),
        ("distances off by one", |layer| {
            let reach = layer.reach;
            layer.profiles.chunks_mut(reach).for_each(|row| row.rotate_right(1));
        }),
        ("no bias in a band of distances", |layer| {
            let reach = layer.reach;
            layer.profiles.chunks_mut(reach).for_each(|row| row[reach / 2..reach / 2 + 1].fill(0.0));
        }),
        ("no factor on the bias", |layer| layer.factors[1].fill(1.0)),
        ("no factor on queries", |layer| layer.factors[0].fill(1.0)),
        ("factors of i instead of i + 1", |layer| {
            for factors in &mut layer.factors {
                let next = factors.clone();
                factors[1..].copy_from_slice(&next[..next.len() - 1]);
            }
        }),
        ("rows of the first head of a group", |layer| {
            let (head, group) = (layer.dims.queries * layer.rank, layer.dims.heads / layer.dims.kv_heads);
            let all = layer.rows.clone();
            for (h, rows) in layer.rows.chunks_mut(head).enumerate() {
                rows.copy_from_slice(&all[h / group * group * head..][..head]);
            }
        }),
        ("a window of one more", |layer| layer.window = layer.window.map(|window| window + 1)),
        ("no padding", |layer| layer.lengths = None),
        ("the scale of other models", |layer| layer.scale = (layer.dims.head_dim as f64).sqrt().recip()),
        ("a factor in the forward only", |layer| {
            // the gradients of rows are those of rows times their factor
            let width = layer.rank;
            layer.rows = layer.scaled(&layer.rows.clone(), width, &layer.factors[1].clone());
            layer.factors[1].fill(1.0);
        }),
    ];

    impl InklingLayer {
        fn shorten(&mut self, by: usize) {
            let (from, to) = (self.reach, self.reach - by);
            self.profiles = self.profiles.chunks(from).flat_map(|row| row[..to].to_vec()).collect();
            self.reach = to;
        }
    }

    fn cases(folder: &ReferenceFolder) -> Vec<Case<'_>> {
        Case::all(folder).filter(|case| case.get("static")["family"] == "inkling").collect()
    }

    #[test]
    fn mistakes_are_caught() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference/positions2026");
        let folder = ReferenceFolder::open(&path).unwrap();
        let passes = |case: &Case, layer: &InklingLayer| {
            let comparison = compare(case, "tiled f64", &layer.slices::<f64>(true), false).unwrap();
            comparison.verdict(case.id()).passed
        };
        for (name, mistake) in MISTAKES {
            let caught = cases(&folder).iter().any(|case| {
                let mut layer = InklingLayer::read(case).unwrap();
                assert!(passes(case, &layer), "{}", case.id());
                mistake(&mut layer);
                !passes(case, &layer)
            });
            assert!(caught, "{name}");
        }
    }
}
