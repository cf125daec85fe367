//! `config.json` of kerple's own architecture, and what no architecture says.

use super::{Said, forms};
use crate::Family;
use kerple::encoding::{Compat, Encoding};
use kerple_burn::plan::LinearPlan;
use kerple_lm::error::{Error, Result};
use kerple_lm::plan::Plan;
use serde_json::{Map, Value, json};

/// Every encoding of a model: the model's own, then those of kinds of layers, with their names.
pub(super) fn encodings(plan: &Plan) -> Vec<(Option<String>, Encoding)> {
    let others = plan.model.other_encodings().into_iter().map(|(name, encoding)| (Some(name), encoding));
    std::iter::once((None, plan.encoding.clone())).chain(others).collect()
}

/// Refuses what would be another model in torch.
///
/// # Errors
/// The key and the value.
pub(super) fn check(plan: &Plan) -> Result<()> {
    for (name, encoding) in encodings(plan) {
        let place = name.map_or("encoding".to_owned(), |name| format!("model.layers.{name}.encoding"));
        let refuse = |key: &str, why: &str, hint: &str| Err(Error::refused(format!("{place}.{key}: {why}"), hint));
        if encoding.compat == Compat::Bf16 {
            let why = "\"bf16\" rounds positions as the original's low-precision runs do, and torch's code computes them exactly";
            return refuse("compat", why, "train or import the run with exact positions");
        }
        if encoding.randomized.is_some() {
            let why = "positions are drawn from kerple's own random numbers, which torch's code does not have";
            return refuse("randomized", why, "evaluate the run with kerple, or serve it");
        }
    }
    Ok(())
}

/// `kind` and keys as in a run file.
fn table(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("plans are plain data")
}

/// The model in kerple's own words.
pub(crate) fn kerple(plan: &Plan) -> std::result::Result<Said, String> {
    let (model, block, geometry) = (&plan.model, &plan.model.block, plan.geometry());
    let mut all = Vec::new();
    for (name, encoding) in encodings(plan) {
        let mut form = forms::form(&encoding, &geometry)?;
        form.insert("module".to_owned(), json!(name));
        all.push(form);
    }
    let layers: Vec<Value> = model
        .every_layer(&plan.encoding)
        .enumerate()
        .map(|(number, layer)| {
            let form = layer.other.map_or(0, |other| other + 1);
            let linear = layer.attention.linear().map(|linear| linear_plan(plan, number, linear));
            json!({ "form": form, "window": layer.window, "linear": linear })
        })
        .collect();
    let config = json!({
        "model_type": Family::Kerple.model_type(),
        "architectures": [Family::Kerple.architecture()],
        "auto_map": {
            "AutoConfig": "configuration_kerple.KerpleConfig",
            "AutoModel": "modeling_kerple.KerpleModel",
            "AutoModelForCausalLM": "modeling_kerple.KerpleForCausalLM",
        },
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": block.kv_heads.unwrap_or(model.n_heads),
        "head_dim": model.head_dim,
        "intermediate_size": model.d_hidden,
        "layer_norm_eps": block.norm_eps,
        "max_position_embeddings": plan.train_len,
        "train_len": plan.train_len,
        "tie_word_embeddings": block.tied_head,
        "block": table(block),
        "encoding": table(&plan.encoding),
        "kinds_of_layers": table(&model.layers),
        "seed": plan.seed,
        "forms": all,
        "layer_plan": layers,
    });
    let Value::Object(config) = config else { unreachable!("an object") };
    Ok(Said { family: Family::Kerple, config, notes: notes(plan) })
}

/// What linear attention of a layer is told.
fn linear_plan(plan: &Plan, layer: usize, linear: &LinearPlan) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("features".to_owned(), table(&linear.features));
    all.insert("chunk".to_owned(), kerple::attention::linear::CHUNK.into());
    let code = plan.model.layer(&plan.encoding, layer).encoding.code(&plan.geometry());
    all.insert("gating".to_owned(), table(&code.and_then(|code| code.gating)));
    // what was drawn is listed once it is known
    all.insert("drawn".to_owned(), json!([]));
    all
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    if plan.model.every_layer(&plan.encoding).any(|layer| layer.attention.linear().is_some()) {
        notes.push("linear attention meets every pair of positions in torch: its time is quadratic there".to_owned());
    }
    if plan.model.block.dropout > 0.0 {
        notes.push("dropout is not part of what was written: torch would train the model without it".to_owned());
    }
    notes
}
