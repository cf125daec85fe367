//! Absolute positions that restart in every document: rows are added to hidden states, of which one layer computes queries, keys and
//! values. Through Burn, as models do it.

use super::documents;
use crate::case::Case;
use crate::clocks::engines::{GatedEngine, numbers, tensor};
use crate::{CaseComparison, CaseResult};
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use kerple_burn::attention_context::{AttentionMask, Mask, ScoreContext};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::ops::attention::{Scoring, attention};
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry};
use serde_json::json;
use std::sync::Arc;

/// The names of its cases.
pub(super) const NAMES: [&str; 2] = ["sinusoidal", "learned"];

pub(super) fn run(case: &Case) -> CaseResult {
    let ([batch, heads, len, head_dim], [_, _, width]) = (case.shape("dout")?, case.shape("x")?);
    let documents = Arc::new(documents(case, [batch, len])?);
    let is_learned = case.keys("params").any(|name| name == "rows");
    let keys = if is_learned {
        json!({ "kind": "learned", "positions": case.array("params", "rows")?.shape[0] })
    } else {
        json!({ "kind": "sinusoidal" })
    };
    if case.optional_number("base").is_some_and(|base| base != 1e4) {
        return Err("sinusoidal positions have the base 10000".to_owned());
    }
    let encoding: Encoding = serde_json::from_value(keys).map_err(|error| error.to_string())?;
    let geometry = Geometry { d_model: width, ..Geometry::new(heads, head_dim, documents.longest_len()) };
    encoding.check(&geometry).map_err(|error| error.to_string())?;
    let (x, d_out) = (case.input("x")?, case.input("dout")?);
    let matrices = ["Wq", "Wk", "Wv"].map(|name| case.param(name));
    let [wq, wk, wv] = matrices;
    let matrices = [wq?, wk?, wv?];
    let rows = if is_learned { case.param("rows")? } else { Vec::new() };
    let scale = case.number("scale")?;
    let mut comparisons = Vec::new();
    for engine in GatedEngine::ALL {
        let GatedEngine::Burn(implementation) = engine else { continue };
        let device = Device::flex().autodiff();
        let mut positions = PositionalEncoding::new(&encoding, &geometry, 1, 0, &device);
        if let Some(table) = positions.values.first_mut() {
            *table = Param::from_tensor(tensor(&rows, [rows.len()], &device));
        }
        let x = tensor(&x, [batch, len, width], &device);
        let weights = matrices.each_ref().map(|values| tensor(values, [heads * head_dim, width], &device));
        let pass = ForwardContext::evaluation(0);
        let added = positions.absolute_of_documents(&documents, (&device, DType::F64), &pass);
        let hidden = x.clone() + added.ok_or("no rows of positions")?;
        let [q, k, v] = weights.each_ref().map(|weight| {
            let projected = hidden.clone().matmul(weight.clone().transpose().unsqueeze::<3>());
            projected.reshape([batch, len, heads, head_dim]).swap_dims(1, 2)
        });
        let mask = AttentionMask { documents: Some(documents.clone()), ..AttentionMask::from(Mask::CAUSAL) };
        let context = ScoreContext { mask, ..ScoreContext::default() };
        let out = attention(q, k, v, Scoring::from(scale), &context, implementation);
        let shape = [batch, heads, len, head_dim];
        let gradients = (out.clone() * tensor(&d_out, shape, &device).detach()).sum().backward();
        let of_weight = |weight: &Tensor<2>| weight.grad(&gradients).map(numbers).unwrap_or_default();
        let of_rows = positions.values.first().and_then(|table| table.val().grad(&gradients)).map(numbers);
        let found = [
            ("out", numbers(out)),
            ("grad_x", x.grad(&gradients).map(numbers).unwrap_or_default()),
            ("grad_Wq", of_weight(&weights[0])),
            ("grad_Wk", of_weight(&weights[1])),
            ("grad_Wv", of_weight(&weights[2])),
            ("grad_rows", of_rows.unwrap_or_default()),
        ];
        let mut comparison = CaseComparison::new(engine.name());
        for key in case.keys("expected") {
            let got =
                found.iter().find(|(name, _)| *name == key).ok_or_else(|| format!("expected.{key} is unknown"))?;
            case.compare(&mut comparison, key, &got.1, case.tolerance("f64_arrays"))?;
        }
        comparisons.push(comparison);
    }
    Ok(comparisons)
}
