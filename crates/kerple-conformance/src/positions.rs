//! Positional methods of 2026. The second part of a case's id, such as `positions/bam/plain`, is its family.

mod grape_ap;
mod inkling;
mod inkling_layer;
mod inkling_model;
mod query_key_map;
mod rotation;
mod sink_tokens;
mod wall;

use crate::case::{AttentionInputs, Case};
use crate::clocks::engines::{layer_rows, turned};
use crate::layer::ReferenceLayer;
use crate::{CaseComparison, CaseResult, CaseRunner, Checked, attention, clocks};
use kerple_core::attention::AttentionDims;
use kerple_core::encoding::Encoding;
use kerple_core::ops::heads::{self, HeadNorm};
use serde_json::json;

/// What runs a case of this name.
pub fn runner(name: &str) -> Option<CaseRunner> {
    match name.strip_prefix("positions/")?.split('/').next()? {
        "rotary" => Some(attention::run),
        "bam" => Some(bam),
        "plain" => Some(plain),
        "wall" => Some(wall::run),
        "selective" | "joint" => Some(rotation::run),
        "grape_ap" => Some(grape_ap::run),
        "inkling" if name.starts_with("positions/inkling/layer_") => Some(inkling_layer::run),
        "inkling" if name.starts_with("positions/inkling/model_") => Some(inkling_model::run),
        "inkling" if name == "positions/inkling/bias" => Some(inkling::bias),
        "inkling" => Some(inkling::attention),
        "pope" | "fope" => Some(query_key_map::run),
        _ => None,
    }
}

/// What runs a case of this name of cumulative gates that are positions of a rotation.
pub fn runner_of_learned_positions(name: &str) -> Option<CaseRunner> {
    (name == "rotary/clocked").then_some(rotation::run as CaseRunner)
}

/// What an engine returned against what the case expects, by name.
fn compare(case: &Case, engine: &str, found: &[(&str, Vec<f64>)], single: bool) -> Checked<CaseComparison> {
    let mut comparison = CaseComparison::new(engine);
    let tolerance = case.tolerance(if single { "if_you_compute_in_f32" } else { "f64_arrays" });
    for key in case.keys("expected") {
        let got = found.iter().find(|(name, _)| *name == key);
        let (_, got) = got.ok_or_else(|| format!("expected.{key} is not a known quantity"))?;
        case.compare(&mut comparison, key, got, tolerance)?;
    }
    Ok(comparison)
}

fn has_parameter(case: &Case, name: &str) -> bool {
    case.keys("params").any(|own| own == name)
}

/// With scalable softmax or without.
fn bam(case: &Case) -> CaseResult {
    if has_parameter(case, "sm") { clocks::run(case) } else { attention::run(case) }
}

/// What layers do without an encoding of their own.
fn plain(case: &Case) -> CaseResult {
    match () {
        () if case.setting("keep_first").is_number() => sink_tokens::run(case),
        () if has_parameter(case, "q_weight") => normed(case),
        () => clocks::run(case),
    }
}

/// Norms of the heads of queries and keys, then a rotation.
fn normed(case: &Case) -> CaseResult {
    let AttentionInputs { dims, q, k, v, d_out } = case.attention()?;
    let AttentionDims { heads, keys: len, head_dim, .. } = dims;
    let (names, epsilon) = (["q_weight", "k_weight"], case.number("rms_eps")?);
    let [of_q, of_k] = <[Vec<f64>; 2]>::try_from(case.params(&names)?).map_err(|_| "two norms")?;
    if [&of_q, &of_k].iter().any(|weight| weight.len() != head_dim) {
        return Err("a norm has another width than heads".to_owned());
    }
    let (rows, place) = (|x: &[f64]| turned(x, [heads, len, head_dim]), layer_rows(dims));
    let dense = |x: &[f64]| turned(x, [len, heads, head_dim]);
    let norm = |x: &[f64], gamma: &[f64]| {
        let mut normed = rows(x);
        heads::norm(&mut normed, place, HeadNorm { gamma, epsilon });
        dense(&normed)
    };
    let norm_backward = |x: &[f64], d: &mut Vec<f64>, gamma: &[f64]| {
        let mut d_rows = rows(d);
        let d_gamma = heads::norm_backward(&rows(x), &mut d_rows, place, HeadNorm { gamma, epsilon });
        *d = dense(&d_rows);
        d_gamma
    };
    let keys = json!({ "kind": "rotary", "base": case.number("rope_base")? });
    let encoding: Encoding = serde_json::from_value(keys).map_err(|error| error.to_string())?;
    let inputs = AttentionInputs { dims, q: norm(&q, &of_q), k: norm(&k, &of_k), v, d_out };
    let layer = ReferenceLayer::new(encoding, inputs, names.to_vec());
    let mut comparisons = Vec::new();
    for mut found in layer.on_every_engine() {
        let output = &mut found.output;
        output.d_values = vec![norm_backward(&q, &mut output.d_q, &of_q), norm_backward(&k, &mut output.d_k, &of_k)];
        let tolerance = case.tolerance(if found.single { "if_you_compute_in_f32" } else { "f64_arrays" });
        comparisons.push(layer.compare(&found, case, |_, _| tolerance)?);
    }
    Ok(comparisons)
}
