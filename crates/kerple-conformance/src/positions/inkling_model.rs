//! Whole models of Inkling: imported from a folder of a case's configuration and weights, then logits and greedy tokens.

use crate::case::Case;
use crate::{CaseComparison, CaseResult, Checked};
use kerple_convert::import::{ImportOptions, import};
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::generate::{self, SamplingParams};
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::run::RunFolder;
use kerple_lm::tensors::{self, TensorSpec};
use serde_json::{Value, json};
use std::path::Path;

/// Tokens of the prompt that greedy decoding begins with.
const PROMPT: usize = 5;

pub(super) fn run(case: &Case) -> CaseResult {
    let mut comparison = CaseComparison::new("imported f32");
    let aside = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (folder, out) = (aside.path().join("model"), aside.path().join("run"));
    write(case, &folder)?;
    import(&folder, &out, &ImportOptions::default()).map_err(|error| error.to_string())?;
    let loaded = RunFolder::new(&out).load(&kerple_lm::device(), true).map_err(|error| error.to_string())?;
    compare(case, &loaded.model, &mut comparison)?;
    Ok(vec![comparison])
}

/// Writes the folder that transformers would have saved.
fn write(case: &Case, folder: &Path) -> Checked<()> {
    let failed = |error: std::io::Error| error.to_string();
    std::fs::create_dir(folder).map_err(failed)?;
    let mut config = case.setting("config").clone();
    if !config.is_object() {
        return Err("static.config is not a configuration".to_owned());
    }
    config["model_type"] = json!("inkling_text");
    std::fs::write(folder.join("config.json"), config.to_string()).map_err(failed)?;
    let mut slots = Vec::new();
    let mut all: Vec<Vec<f32>> = Vec::new();
    for name in case.keys("params") {
        let array = case.array("params", name)?;
        slots.push(TensorSpec { name: name.to_owned(), shape: array.shape });
        // stored in single precision
        all.push(array.values.into_iter().map(|value| value as f32).collect());
    }
    let written = tensors::write(&folder.join("model.safetensors"), &slots, |number, take| take(all[number].clone()));
    written.map(|_| ()).map_err(|error| error.to_string())
}

fn compare(case: &Case, model: &Decoder, comparison: &mut CaseComparison) -> Checked<()> {
    let rows: Vec<Vec<u32>> = serde_json::from_value(case.setting("ids").clone()).map_err(|error| error.to_string())?;
    let (len, most) = (rows.first().map_or(0, Vec::len), model.trunk.embedding.dims()[0]);
    let is_odd = |row: &Vec<u32>| row.len() != len || row.iter().any(|id| *id as usize >= most);
    if len <= PROMPT || rows.iter().any(is_odd) {
        return Err(format!("static.ids are not sequences of more than {PROMPT} tokens below {most}"));
    }
    let pass = ForwardContext::evaluation(0);
    let tokens = TokenBatch { ids: &rows.concat(), batch: rows.len(), len, documents: None };
    let logits: Vec<f64> = model.logits(tokens, &pass).into_data().iter::<f64>().collect();
    case.compare(comparison, "logits", &logits, case.tolerance("if_you_compute_in_f32"))?;
    let greedy: Vec<Value> = case.setting("greedy_after_5_of_row_0").as_array().cloned().unwrap_or_default();
    let draw = SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
    let mut found = Vec::new();
    let mut take = |token: u32| {
        found.push(Value::from(token));
        true
    };
    generate::generate(model, &rows[0][..PROMPT], greedy.len(), most, &draw, &mut take)
        .map_err(|error| error.to_string())?;
    comparison.equal("greedy tokens", found, greedy);
    Ok(())
}
