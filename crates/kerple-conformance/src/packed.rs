//! Packed documents: rows of several documents through every engine on slices.
//!
//! Rotations of queries and keys and cumulative gates are computed here, document by document, as a
//! layer computes them.

mod absolute;
mod linear;

use crate::case::{AttentionInputs, Case};
use crate::clocks::engines::{grow, grow_backward};
use crate::engines::{cast, forward_backward, to_f64};
use crate::layer::d_values;
use crate::{CaseComparison, CaseResult, CaseRunner, Checked};
use kerple_core::Number;
use kerple_core::attention::{
    AttentionDims, AttentionProblem, DocumentSegment, Mask, PackedDocuments, ScoreTable, ScoreTransform, Strides,
};
use kerple_core::encoding::{Encoding, EncodingForm, Geometry, ScoreModForm};
use kerple_core::forms::{DistanceTable, Sides, Strided};
use kerple_core::ops::cross_entropy::{self, LmHead, LossTargets};
use kerple_core::ops::gate_cumsum::{self, log_sigmoid};
use kerple_core::ops::heads::ScalableSoftmax;
use kerple_core::ops::layer_norm::{NormParameters, RowNorm};
use kerple_core::precision::Precision;
use kerple_core::score_mods::ScoreModExtent;
use kerple_lm::objective::{NextTokenPrediction, Objective, SequenceBatch};
use serde_json::{Value, json};

/// Cases that no engine on slices covers, by how their names begin.
const NOT_BUILT: [(&str, &str); 1] =
    [("packed/transformer_xl", "what layers add to queries before their product with the keys")];

/// Why a case of this name is not covered, if it is known and is not.
pub fn not_built(name: &str) -> Option<&'static str> {
    NOT_BUILT.into_iter().find(|(own, _)| name == *own).map(|(_, what)| what)
}

/// What runs a case of this name.
pub fn runner(name: &str) -> Option<CaseRunner> {
    let own = name.strip_prefix("packed/")?;
    if linear::NAMES.contains(&own) {
        return Some(linear::run);
    }
    if absolute::NAMES.contains(&own) {
        return Some(absolute::run);
    }
    if own == "training" {
        return Some(training);
    }
    let is_known = method(own, &Value::Null).is_some() || ["varlen", "table_causal", "table_both"].contains(&own);
    is_known.then_some(run)
}

/// What runs a case of cumulative gates of this name whose rows are documents here.
pub fn runner_of_whole_rows(name: &str) -> Option<CaseRunner> {
    match name {
        "rotary/xpos" => Some(xpos),
        "twin/elu" => Some(linear::twin),
        _ => None,
    }
}

/// The keys of a case's encoding, given its numbers, and the names of its parameters in the encoding's order.
fn method(name: &str, sizes: &Value) -> Option<(Value, &'static [&'static str])> {
    let size = |key: &str| sizes[key].clone();
    let kerple = || json!({ "kind": "kerple_log" });
    Some(match name {
        "nope_causal" | "nope_both" => (json!({ "kind": "none" }), &[]),
        "rotary" => (json!({ "kind": "rotary", "base": size("base") }), &[]),
        "xpos" => {
            let [base, gamma, scale_base] = ["base", "gamma", "scale_base"].map(size);
            (json!({ "kind": "xpos", "base": base, "gamma": gamma, "scale_base": scale_base }), &[])
        }
        "kerple_log" | "kerple_log_gqa_padding" | "last_queries" | "fox_both_table" | "ssmax" => {
            (kerple(), &["r1", "r2"])
        }
        "fox" => (json!({ "kind": "none" }), &[]),
        "t5" | "t5_both" => {
            let [buckets, most] = ["buckets", "max_distance"].map(size);
            let keys = json!({ "kind": "t5", "num_buckets": buckets, "max_distance": most, "bidirectional": name == "t5_both" });
            (keys, &["W"])
        }
        "fire" | "fire_both" => {
            let keys = json!({ "kind": "fire", "hidden": size("hidden"), "init_l": size("threshold") });
            (keys, &["c", "m", "w1", "b1", "W2", "b2"])
        }
        "cope" => (json!({ "kind": "cope", "npos_max": size("P") }), &["e"]),
        "shaw" => (json!({ "kind": "shaw", "max_distance": size("K"), "values": true }), &["a", "b"]),
        "dape" | "dape_kernel3" => {
            let keys = json!({ "kind": "dape", "base": kerple(), "kernel": size("kernel"), "hidden": size("hidden") });
            (keys, &["r1", "r2", "W1", "b1", "W2", "b2"])
        }
        _ => return None,
    })
}

/// A case with its documents.
struct PackedCase {
    dims: AttentionDims,
    documents: PackedDocuments,
    /// Whether arrays are `[T, H, D]` instead of `[B, H, L, D]`.
    tokens_first: bool,
    mask: Mask,
    scale: f64,
    encoding: Encoding,
    geometry: Geometry,
    names: &'static [&'static str],
    values: Vec<Vec<f64>>,
    /// Tables that stand in the case, and their length.
    tables: Option<(DistanceTable, usize)>,
    sinks: Option<Vec<f64>>,
    /// Of the growth of queries with the keys they see, `[H]`.
    slopes: Option<Vec<f64>>,
    /// Logits of gates, `[B, H, L]`.
    logits: Option<Vec<f64>>,
    inputs: [Vec<f64>; 4],
    /// Whether neighbouring features turn together, and not those of two halves.
    is_interleaved: bool,
}

fn run(case: &Case) -> CaseResult {
    PackedCase::read(case)?.compare(case)
}

/// Rotations whose products decay, of rows that are one document each: `rotary/xpos` of cumulative gates.
fn xpos(case: &Case) -> CaseResult {
    let AttentionInputs { dims, q, k, v, d_out } = case.attention()?;
    let (keys, _) = method("xpos", case.get("static")).ok_or("a method of this version")?;
    let packed = PackedCase {
        dims,
        documents: whole_rows(dims.batch, dims.keys)?,
        tokens_first: false,
        mask: Mask::Causal { window: None },
        scale: case.number("scale")?,
        encoding: serde_json::from_value(keys).map_err(|error| error.to_string())?,
        geometry: Geometry::new(dims.heads, dims.head_dim, dims.keys),
        names: &[],
        values: Vec::new(),
        tables: None,
        sinks: None,
        slopes: None,
        logits: None,
        inputs: [q, k, v, d_out],
        is_interleaved: true,
    };
    packed.compare(case)
}

/// Rows that are one document each.
fn whole_rows(batch: usize, len: usize) -> Checked<PackedDocuments> {
    PackedDocuments::from_ids(&vec![0; batch * len], batch).map_err(|error| error.to_string())
}

/// The mean loss of scored rows, `[1]`, and its gradient in their logits `[rows, V]`.
///
/// A model's head makes logits of normed rows. Here rows are those of the identity, so that the head's weight is the logits.
fn mean_loss<T: Number>(logits: &[f64], targets: &[u32], scored: &[bool]) -> [Vec<f64>; 2] {
    let rows = targets.len();
    let norm_of_one = (rows as f64).sqrt();
    let x: Vec<T> = (0..rows * rows).map(|at| if at % (rows + 1) == 0 { T::ONE } else { T::ZERO }).collect();
    let (gamma, w) = (vec![T::ONE; rows], cast::<T>(&logits.iter().map(|z| z / norm_of_one).collect::<Vec<f64>>()));
    let norm = NormParameters { kind: RowNorm::Rms, gamma: &gamma, beta: None, epsilon: 0.0 };
    let head = LmHead { norm, w: (&w).into(), tied: false, bias: None, precision: Precision::F32 };
    let targets = LossTargets { ids: targets, scored: Some(scored) };
    let share = scored.iter().filter(|scored| **scored).count().max(1) as f64;
    let d_losses = vec![T::from_f64(1.0 / share); rows];
    let (losses, gradients) = cross_entropy::forward_backward(head, &x, targets, &d_losses);
    let loss = to_f64(losses).iter().sum::<f64>() / share;
    [vec![loss], to_f64(gradients.d_w).iter().map(|d| d / norm_of_one).collect()]
}

/// Which tokens of documents one after another have a target that is scored, and the mean loss.
fn training(case: &Case) -> CaseResult {
    let ([batch, seq_len, vocabulary], logits) = (case.shape("logits")?, case.input("logits")?);
    let [tokens, targets] = ["tokens", "targets"].map(|key| case.input(key));
    let ids = |values: Vec<f64>| values.into_iter().map(|id| id as u32).collect::<Vec<u32>>();
    let (tokens, targets, last) = (ids(tokens?), ids(targets?), case.number("end_of_document")? as u32);
    if [&tokens, &targets]
        .iter()
        .any(|ids| ids.len() != batch * seq_len || ids.iter().any(|id| *id as usize >= vocabulary))
    {
        return Err("tokens and targets do not fit the logits".to_owned());
    }
    let starts = |row: &[u32]| {
        let behind = row.iter().enumerate().filter(|(_, token)| **token == last).map(|(at, _)| at + 1);
        std::iter::once(0).chain(behind).collect::<Vec<usize>>()
    };
    let document_starts = tokens.chunks(seq_len).map(starts).collect();
    let text = kerple_data::TextBatch { tokens, targets, batch, seq_len, document_starts };
    let sequences = SequenceBatch::of_documents(text);
    let documents = sequences.documents.clone().ok_or("documents")?;
    let scored = sequences.scored_tokens().ok_or("scored tokens")?;
    let integers = |values: Vec<usize>| values.into_iter().map(|value| value as f64).collect::<Vec<f64>>();
    let counted = NextTokenPrediction::default().weight(&sequences);
    let found = [
        ("document_ids", documents.document_ids().into_iter().map(|id| id as f64).collect()),
        ("position_ids", integers(documents.position_ids())),
        ("starts", integers(documents.starts())),
        ("scored", scored.iter().map(|scored| f64::from(u8::from(*scored))).collect()),
        ("n_tokens", vec![scored.len() as f64]),
        ("n_scored", vec![counted as f64]),
    ];
    let mut comparisons = Vec::new();
    for (engine, single, [loss, d_logits]) in [
        ("fused f64", false, mean_loss::<f64>(&logits, &sequences.targets, &scored)),
        ("fused f32", true, mean_loss::<f32>(&logits, &sequences.targets, &scored)),
    ] {
        let tolerance = case.tolerance(if single { "if_you_compute_in_f32" } else { "f64_arrays" });
        let mut comparison = CaseComparison::new(engine);
        for (key, got) in found.iter().cloned().chain([("loss", loss), ("grad_logits", d_logits)]) {
            case.compare(&mut comparison, key, &got, tolerance)?;
        }
        comparisons.push(comparison);
    }
    Ok(comparisons)
}

/// What an engine computed: gradients of the encoding's parameters, and the rest by name.
struct PackedOutput {
    values: Vec<Vec<f64>>,
    others: Vec<(&'static str, Vec<f64>)>,
}

impl PackedCase {
    /// Every engine on slices.
    fn compare(&self, case: &Case) -> CaseResult {
        let mut comparisons = Vec::new();
        for (engine, single, fused) in [
            ("naive f64", false, false),
            ("naive f32", true, false),
            ("tiled f64", false, true),
            ("tiled f32", true, true),
        ] {
            let named = if single { self.run::<f32>(fused) } else { self.run::<f64>(fused) };
            let tolerance = case.tolerance(if single { "if_you_compute_in_f32" } else { "f64_arrays" });
            let mut comparison = CaseComparison::new(engine);
            for key in case.keys("expected") {
                let own = key.strip_prefix("grad_").and_then(|name| self.names.iter().position(|own| *own == name));
                let found = match own {
                    Some(at) => named.values.get(at),
                    None => named.others.iter().find(|(name, _)| *name == key).map(|(_, values)| values),
                };
                let got = found.ok_or_else(|| format!("expected.{key} is not a known quantity"))?;
                case.compare(&mut comparison, key, got, tolerance)?;
            }
            comparisons.push(comparison);
        }
        Ok(comparisons)
    }

    fn read(case: &Case) -> Checked<PackedCase> {
        let name = case.id().strip_prefix("packed/").ok_or("a packed case")?;
        let (dims, documents, tokens_first) = sizes(case)?;
        let causal = case.setting("causal").as_bool().ok_or("`causal` is missing")?;
        let window = case.optional_number("window").map(|window| window as usize);
        let mask = if causal { Mask::Causal { window } } else { Mask::Bidirectional { window } };
        let shape = |key: &str, axis: usize| case.array("params", key).ok()?.shape.get(axis).copied();
        let mut settings = case.get("static").clone();
        for (key, found) in [("buckets", shape("W", 0)), ("hidden", shape("w1", 0).or(shape("W1", 0)))] {
            settings[key] = found.into();
        }
        let (keys, names) = method(name, &settings).unwrap_or((json!({ "kind": "none" }), &[]));
        let encoding: Encoding = serde_json::from_value(keys).map_err(|error| error.to_string())?;
        let has = |key: &str| case.keys("params").any(|own| own == key);
        let table = |key: &str| has(key).then(|| case.param(key)).transpose();
        let tables = match (table("bias")?, table("weight")?) {
            (None, None) => None,
            (bias, weight) => {
                let (heads, len, sides) = (dims.heads, case.size("len")?, mask.sides());
                Some((DistanceTable { heads, len, sides, bias, weight }, len))
            }
        };
        let inputs = ["q", "k", "v", "dout"].map(|key| case.input(key));
        let [q, k, v, d_out] = inputs;
        Ok(PackedCase {
            dims,
            documents,
            tokens_first,
            mask,
            scale: case.number("scale")?,
            encoding,
            geometry: Geometry::new(dims.heads, dims.head_dim, dims.keys),
            names,
            values: case.params(names)?,
            tables,
            sinks: table("sigma")?,
            slopes: table("sm")?,
            logits: case.keys("inputs").any(|own| own == "a").then(|| case.input("a")).transpose()?,
            inputs: [q?, k?, v?, d_out?],
            is_interleaved: false,
        })
    }

    fn run<T: Number>(&self, fused: bool) -> PackedOutput {
        let keys = self.dims.keys;
        let [mut q, mut k, v, d_out] = self.inputs.clone();
        let logs = self.logs();
        let growth = self.slopes.as_deref().map(|slopes| ScalableSoftmax { slopes, logs: &logs });
        if let Some(growth) = growth {
            q = grow(&q, growth, self.dims);
        }
        self.rotate(&mut q, true, 1.0);
        self.rotate(&mut k, false, 1.0);
        let form = self.encoding.form(&self.geometry, &self.values, keys);
        let own = self.encoding.constrained(&self.geometry, &self.values);
        let own = match &form {
            EncodingForm::ScoreMod(ScoreModForm { own: count, .. }) => own[own.len() - count..].concat(),
            _ => Vec::new(),
        };
        let (table, len) = match (&self.tables, &form) {
            (Some((table, len)), _) => (table.clone(), *len),
            (None, EncodingForm::Table(table) | EncodingForm::ScoreMod(ScoreModForm { table, .. })) => {
                let is_mirrored = self.mask.sides() == Sides::TwoSided && table.sides == Sides::OneSided;
                (if is_mirrored && table.bias.is_some() { table.mirrored() } else { table.clone() }, keys)
            }
            _ => (DistanceTable::default(), keys),
        };
        let numbers: Vec<T> = cast(&[table.bias.clone().unwrap_or_default(), own].concat());
        let extent = ScoreModExtent { sides: self.mask.sides(), len: keys, scale: self.scale };
        let map = match &form {
            EncodingForm::ScoreMod(form) => Some(form.map.over(&numbers, extent)),
            _ => None,
        };
        let [bias, weight] = [&table.bias, &table.weight].map(|rows| rows.as_deref().map(cast::<T>));
        let rates = self.encoding.rotary(&self.geometry, 0).map(|rotary| match self.is_interleaved {
            true => rotary.decay_rates.iter().flat_map(|rate| [*rate; 2]).collect(),
            false => rotary.decay_rates.repeat(2),
        });
        let clocks = self.clocks();
        let of_distance = ScoreTable {
            bias: bias.as_deref(),
            weight: weight.as_deref(),
            feature_decay: rates.as_deref().filter(|rates| !rates.is_empty()),
            gate_cumsum: clocks.as_deref().map(|values| Strided { values, stride: keys }),
            len,
            ..ScoreTable::PLAIN
        };
        let sinks = self.sinks.as_deref().map(cast::<T>);
        let problem = AttentionProblem {
            dims: self.dims,
            scale: T::from_f64(self.scale),
            normalizer: kerple_core::forms::Normalizer::Softmax,
            selection: None,
            softcap: None,
            sinks: sinks.as_deref(),
            mask: self.mask,
            lengths: None,
            documents: Some(&self.documents),
            intervals: None,
            evicted: 0,
            dropout: None,
            scores: match &map {
                Some(map) => ScoreTransform::Mod(&**map),
                None => ScoreTransform::Table(of_distance),
            },
        };
        let [q, k, v, d_out] = [&q, &k, &v, &d_out].map(|values| cast::<T>(values));
        let found = forward_backward(&problem, self.strides(), [&q, &k, &v, &d_out], numbers.len(), fused);
        let (mut d_q, mut d_k) = (to_f64(found.d_q), to_f64(found.d_k));
        self.rotate(&mut d_q, true, -1.0);
        self.rotate(&mut d_k, false, -1.0);
        let d_slopes = growth.map(|growth| grow_backward(&self.inputs[0], &mut d_q, growth, self.dims));
        let [d_bias, d_weight] = [found.d_bias, found.d_weight].map(|table| table.map(to_f64));
        let values = match found.d_map {
            _ if self.names.is_empty() => Vec::new(),
            Some(d_map) => d_values(&self.encoding, &self.geometry, &self.values, keys, &to_f64(d_map)),
            None => self.d_values_of_table(d_bias.as_deref()),
        };
        let mut others =
            vec![("out", to_f64(found.out)), ("grad_q", d_q), ("grad_k", d_k), ("grad_v", to_f64(found.d_v))];
        others.extend(d_bias.filter(|_| self.tables.is_some()).map(|d_bias| ("grad_bias", d_bias)));
        others.extend(d_weight.filter(|_| self.tables.is_some()).map(|d_weight| ("grad_weight", d_weight)));
        others.extend(found.d_sinks.map(|d_sinks| ("grad_sigma", to_f64(d_sinks))));
        others.extend(d_slopes.map(|d_slopes| ("grad_sm", d_slopes)));
        if let (Some(clocks), Some(d_clocks)) = (clocks, found.d_clocks) {
            others.extend([("c", clocks), ("grad_a", self.clocks_backward(&d_clocks))]);
        }
        PackedOutput { values, others }
    }

    /// The gradient in the values of a table, given that in the bias over the distances of the mask.
    fn d_values_of_table(&self, d_bias: Option<&[f64]>) -> Vec<Vec<f64>> {
        let keys = self.dims.keys;
        let jacobian = self.encoding.table_jacobian(&self.geometry, &self.values, keys);
        let (jacobian, is_mirrored) = match (self.mask.sides(), jacobian.sides) {
            (Sides::OneSided, _) => (jacobian.one_sided(keys), false),
            (Sides::TwoSided, sides) => (jacobian, sides == Sides::OneSided),
        };
        let mut d_values: Vec<Vec<f64>> = self.values.iter().map(|values| vec![0.0; values.len()]).collect();
        if let (Some(jacobian), Some(d_bias)) = (jacobian.bias, d_bias) {
            let folded = is_mirrored.then(|| DistanceTable::mirrored_backward(d_bias, keys));
            jacobian.backward(self.geometry.heads, folded.as_deref().unwrap_or(d_bias), &mut d_values);
        }
        d_values
    }

    /// The logarithm of the number of keys that each token sees, `[B, L]`.
    fn logs(&self) -> Vec<f64> {
        let most = self.mask.window().unwrap_or(self.dims.keys);
        self.documents.position_ids().into_iter().map(|before| ((before + 1).min(most) as f64).ln()).collect()
    }

    /// Of queries and of keys.
    fn strides(&self) -> [Strides; 4] {
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        [(heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries)].map(|(heads, rows)| {
            if self.tokens_first {
                Strides { batch: rows * heads * head_dim, head: head_dim, row: heads * head_dim }
            } else {
                Strides { batch: rows * heads * head_dim, head: rows * head_dim, row: head_dim }
            }
        })
    }

    /// Rotates `[B, H, L, D]` rows by their positions in their documents; `sign = -1` turns back.
    fn rotate(&self, x: &mut [f64], are_queries: bool, sign: f64) {
        let Some(rotary) = self.encoding.rotary(&self.geometry, 0) else { return };
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, .. } = self.dims;
        let (heads, rows) = if are_queries { (heads, queries) } else { (kv_heads, keys) };
        let (positions, half) = (self.documents.position_ids(), rotary.rotated() / 2);
        let (cos, sin) = rotary.tables(0..self.documents.longest_len());
        for (row, x) in x.chunks_exact_mut(head_dim).enumerate() {
            let (batch, token) = (row / (heads * rows), row % rows + keys - rows);
            let at = positions[batch * keys + token] * half;
            for j in 0..half {
                let (c, s) = (cos[at + j], sign * sin[at + j]);
                let (a, b) = if self.is_interleaved { (2 * j, 2 * j + 1) } else { (j, j + half) };
                (x[a], x[b]) = (x[a] * c - x[b] * s, x[b] * c + x[a] * s);
            }
        }
    }

    /// Where the tokens of each head of each document are in `[B, H, L]`.
    fn head_rows(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let AttentionDims { heads, keys: len, .. } = self.dims;
        self.documents.documents().flat_map(move |DocumentSegment { row, first_key, keys, .. }| {
            (row * heads..(row + 1) * heads).map(move |unit| unit * len + first_key..unit * len + first_key + keys)
        })
    }

    /// Running sums of the gates of each document.
    fn clocks(&self) -> Option<Vec<f64>> {
        let gates: Vec<f64> = self.logits.as_ref()?.iter().map(|a| log_sigmoid(*a)).collect();
        let mut clocks = vec![0.0; gates.len()];
        for of in self.head_rows().filter(|of| !of.is_empty()) {
            clocks[of.clone()].copy_from_slice(&gate_cumsum::of_gates(&gates[of.clone()], of.len()));
        }
        Some(clocks)
    }

    /// The gradient in the logits.
    fn clocks_backward(&self, d_clocks: &[f64]) -> Vec<f64> {
        let mut d_logits = vec![0.0; d_clocks.len()];
        for of in self.head_rows().filter(|of| !of.is_empty()) {
            let d_gates: Vec<f64> = gate_cumsum::of_gates_backward(&d_clocks[of.clone()], of.len());
            d_logits[of].copy_from_slice(&d_gates);
        }
        let logits = self.logits.iter().flatten();
        d_logits.iter().zip(logits).map(|(d, a)| d / (1.0 + a.exp())).collect()
    }
}

/// Sizes and documents of a case, and whether its arrays are `[T, H, D]`.
fn sizes(case: &Case) -> Checked<(AttentionDims, PackedDocuments, bool)> {
    let list = |value: &Value| -> Checked<Vec<i64>> {
        let entries = value.as_array().ok_or("cumulative lengths are missing")?;
        entries.iter().map(|entry| entry.as_i64().ok_or_else(|| format!("{entry} is not a length"))).collect()
    };
    if case.setting("cu_seqlens_q").is_array() {
        let ([queries, heads, head_dim], [keys, kv_heads, _]) = (case.shape("q")?, case.shape("k")?);
        let dims = AttentionDims { batch: 1, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim };
        let [of_queries, of_keys] = ["cu_seqlens_q", "cu_seqlens_k"].map(|key| list(case.setting(key)));
        let documents = PackedDocuments::from_cu_seqlens_qk(&of_queries?, &of_keys?, queries, keys);
        return Ok((dims, documents.map_err(|error| error.to_string())?, true));
    }
    let ([batch, heads, queries, head_dim], [_, kv_heads, keys, _]) = (case.shape("q")?, case.shape("k")?);
    Ok((
        AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim: head_dim },
        documents(case, [batch, queries])?,
        false,
    ))
}

/// The documents of a case with so many rows and queries.
fn documents(case: &Case, [batch, queries]: [usize; 2]) -> Checked<PackedDocuments> {
    let ids: Vec<i64> = case.input("document_ids")?.iter().map(|id| *id as i64).collect();
    let documents = PackedDocuments::from_ids(&ids, batch).and_then(|documents| documents.last_queries(queries));
    let documents = documents.map_err(|error| error.to_string())?;
    for (key, found) in [("starts", documents.starts()), ("ends", documents.ends())] {
        let found: Vec<f64> = found.into_iter().map(|token| token as f64).collect();
        if case.input(key)? != found {
            return Err(format!("{key} do not belong to document_ids"));
        }
    }
    Ok(documents)
}
