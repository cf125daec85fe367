//! Packed documents in linear attention: gates, a decay in both directions, and a code of positions.

use super::{sizes, whole_rows};
use crate::case::{AttentionInputs, Case};
use crate::engines::{cast, to_f64};
use crate::{CaseComparison, CaseResult, Checked};
use kerple_core::Number;
use kerple_core::attention::linear::{
    Decay, DecayGradient, DenominatorGuard, LinearAttentionDims, LinearAttentionGradients, LinearAttentionInputs,
    LinearAttentionProblem, LinearAttentionSaved, LinearMask, NEAR, backward, forward, naive,
};
use kerple_core::attention::{AttentionDims, PackedDocuments, Strides, View, ViewMut};
use kerple_core::features::{FeatureMap, NoiseTable, Normals, Pointwise, SineCode, SineShape, Waves};
use kerple_core::ops::gate_cumsum::log_sigmoid;

/// Cases of this file.
pub(super) const NAMES: [&str; 3] = ["linear_gates", "linear_alibi_both", "sine_spe"];

/// Final states, which engines keep in a form of their own.
const STATES: [&str; 2] = ["S", "n"];

/// A case with its documents.
struct PackedLinearCase {
    dims: LinearAttentionDims,
    documents: PackedDocuments,
    reach: LinearMask,
    guard: DenominatorGuard,
    /// `[B, H, L, D]`
    inputs: [Vec<f64>; 4],
    /// Logits of gates, `[B, H, L]`.
    logits: Option<Vec<f64>>,
    /// Slopes of a decay, `[H]`.
    slopes: Option<Vec<f64>>,
    /// Frequencies, offsets and gains of a code `[H, D, K]`, and its noise `[H, D, 2 K, R]`.
    code: Option<([Vec<f64>; 3], Vec<f64>, SineShape)>,
}

pub(super) fn run(case: &Case) -> CaseResult {
    PackedLinearCase::read(case)?.compare(case)
}

/// Gates without a guard, of rows that are one document each: `twin/elu` of cumulative gates.
pub(super) fn twin(case: &Case) -> CaseResult {
    let AttentionInputs { dims: AttentionDims { batch, heads, keys: len, head_dim, .. }, q, k, v, d_out } =
        case.attention()?;
    let packed = PackedLinearCase {
        dims: LinearAttentionDims { batch, heads, len, head_dim, value_dim: head_dim },
        documents: whole_rows(batch, len)?,
        reach: LinearMask::Causal,
        guard: DenominatorGuard::Add(0.0),
        inputs: [q, k, v, d_out],
        logits: Some(case.param("a")?),
        slopes: None,
        code: None,
    };
    packed.compare(case)
}

impl PackedLinearCase {
    /// Every engine on slices.
    fn compare(&self, case: &Case) -> CaseResult {
        let mut comparisons = Vec::new();
        for (engine, single, chunked) in
            [("naive f64", false, false), ("chunked f64", false, true), ("chunked f32", true, true)]
        {
            let named = if single { self.run::<f32>(chunked) } else { self.run::<f64>(chunked) };
            let tolerance = case.tolerance(if single { "if_you_compute_in_f32" } else { "f64_arrays" });
            let mut comparison = CaseComparison::new(engine);
            for key in case.keys("expected").filter(|key| !STATES.contains(key)) {
                let found = named.iter().find(|(name, _)| *name == key);
                let (_, got) = found.ok_or_else(|| format!("expected.{key} is not a known quantity"))?;
                case.compare(&mut comparison, key, got, tolerance)?;
            }
            comparisons.push(comparison);
        }
        Ok(comparisons)
    }

    fn read(case: &Case) -> Checked<PackedLinearCase> {
        let (AttentionDims { batch, heads, keys: len, head_dim, .. }, documents, _) = sizes(case)?;
        let dims = LinearAttentionDims { batch, heads, len, head_dim, value_dim: head_dim };
        let causal = case.setting("causal").as_bool().ok_or("`causal` is missing")?;
        let has = |role: &str, key: &str| case.keys(role).any(|own| own == key);
        let code = match has("params", "Z") {
            false => None,
            true => {
                let [.., doubled, realisations] = case.array("params", "Z")?.shape[..] else {
                    return Err("Z: expected [H, D, 2 K, R]".to_owned());
                };
                let shape = SineShape { heads, head_dim, waves: doubled / 2, realisations };
                Some(([case.param("freqs")?, case.param("offsets")?, case.param("gains")?], case.param("Z")?, shape))
            }
        };
        Ok(PackedLinearCase {
            dims,
            documents,
            reach: if causal { LinearMask::Causal } else { LinearMask::Bidirectional },
            guard: DenominatorGuard::Add(1e-6),
            inputs: [case.input("q")?, case.input("k")?, case.input("v")?, case.input("dout")?],
            logits: has("inputs", "a").then(|| case.input("a")).transpose()?,
            slopes: has("params", "slope").then(|| case.param("slope")).transpose()?,
            code,
        })
    }

    /// `exp(-slope d)` at near distances, `[H, NEAR]`, which reach further than the documents.
    fn near(&self) -> Option<Vec<f64>> {
        let of_head = |slope: &f64| (0..NEAR).map(|d| (-slope * d as f64).exp()).collect::<Vec<f64>>();
        self.slopes.as_ref().map(|slopes| slopes.iter().flat_map(of_head).collect())
    }

    fn run<T: Number>(&self, chunked: bool) -> Vec<(&'static str, Vec<f64>)> {
        let LinearAttentionDims { batch, heads, len, head_dim, .. } = self.dims;
        let sine = self.code.as_ref().map(|([freqs, offsets, gains], noise, shape)| {
            let table = NoiseTable { values: noise.clone(), rows: 2 * shape.waves, width: shape.realisations };
            SineCode::<T>::new(*shape, Waves { freqs, offsets, gains }, &Normals::Table(table), None)
        });
        let elu = Pointwise::Elu { width: self.code.as_ref().map_or(head_dim, |(_, _, shape)| shape.realisations) };
        let mut maps: Vec<&dyn FeatureMap<T>> = sine.iter().map(|sine| sine as &dyn FeatureMap<T>).collect();
        maps.push(&elu);
        let gates = self.logits.as_ref().map(|logits| logits.iter().map(|a| T::from_f64(log_sigmoid(*a))).collect());
        let (gates, near): (Option<Vec<T>>, _) = (gates, self.near().as_deref().map(cast::<T>));
        let decay = near.as_deref().map(|near| Decay { near_len: NEAR, near, terms: 0, rates: &[], weights: &[] });
        let problem = LinearAttentionProblem {
            reach: self.reach,
            documents: Some(&self.documents),
            decay,
            gates: gates.as_deref(),
            guard: self.guard,
            ..LinearAttentionProblem::causal(self.dims, &maps)
        };
        let [q, k, v, d_out] = self.inputs.each_ref().map(|values| cast::<T>(values));
        let strides = Strides { batch: heads * len * head_dim, head: len * head_dim, row: head_dim };
        let view = |data| View { data, strides };
        let inputs = LinearAttentionInputs { q: view(&q), k: view(&k), v: view(&v) };
        let (mut out, mut denominators) = (vec![T::ZERO; q.len()], vec![T::ZERO; batch * heads * len]);
        let run = if chunked { forward::<T> } else { naive::forward::<T> };
        run(&problem, inputs, ViewMut::new(&mut out, strides), &mut denominators);
        let [mut d_q, mut d_k, mut d_v] = [(); 3].map(|()| vec![T::ZERO; q.len()]);
        let mut d_parameters = vec![T::ZERO; heads * problem.parameters()];
        let (mut d_near, mut d_gates) = (near.clone().unwrap_or_default(), gates.clone());
        let d_decay = near.is_some().then_some(DecayGradient { d_near: &mut d_near, d_weights: &mut [] });
        let saved = LinearAttentionSaved { inputs, out: view(&out), denominators: &denominators, d_out: view(&d_out) };
        let gradients = LinearAttentionGradients {
            d_q: ViewMut::new(&mut d_q, strides),
            d_k: ViewMut::new(&mut d_k, strides),
            d_v: ViewMut::new(&mut d_v, strides),
            d_parameters: &mut d_parameters,
            d_decay,
            d_gates: d_gates.as_deref_mut(),
        };
        let run = if chunked { backward::<T> } else { naive::backward::<T> };
        run(&problem, saved, gradients);
        let mut named = vec![("out", out), ("grad_q", d_q), ("grad_k", d_k), ("grad_v", d_v)]
            .into_iter()
            .map(|(name, values)| (name, to_f64(values)))
            .collect::<Vec<_>>();
        if let (Some(logits), Some(d_gates)) = (&self.logits, d_gates) {
            // the derivative of log sigmoid
            let d_logits = to_f64(d_gates).into_iter().zip(logits).map(|(d, a)| d / (1.0 + a.exp()));
            named.push(("grad_a", d_logits.collect()));
        }
        if let Some(near) = self.near() {
            let term = |(d, (near, d_near)): (usize, (&f64, f64))| -(d as f64) * near * d_near;
            let products: Vec<f64> =
                near.iter().zip(to_f64(d_near)).enumerate().map(|(at, pair)| term((at % NEAR, pair))).collect();
            named.push(("grad_slope", products.chunks_exact(NEAR).map(|of_head| of_head.iter().sum()).collect()));
        }
        if let (Some(sine), Some(([freqs, offsets, gains], ..))) = (&sine, &self.code) {
            let found = sine.gradient(Waves { freqs, offsets, gains }, None, &d_parameters);
            let found = [found.freqs, found.offsets, found.gains];
            named.extend(["grad_freqs", "grad_offsets", "grad_gains"].into_iter().zip(found));
        }
        named
    }
}
