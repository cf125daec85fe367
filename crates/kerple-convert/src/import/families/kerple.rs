//! Kerple's own architecture: plans are restored as they were exported.

use super::ModelShape;
use crate::export;
use crate::import::ModelDescription;
use crate::import::config::{ConfigKeys, SizeLimit};
use kerple_lm::config::{ModelConfig, RunConfig};
use kerple_lm::plan::{DataInfo, NO_TOKENIZER, Plan};
use kerple_lm::{Error, Result, renamed};
use kerple_run::{InitFrom, ModelFamily};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What torch computes with, made of the other keys when the model went out.
const MADE: [&str; 2] = ["forms", "layer_plan"];

pub fn describe(keys: &ConfigKeys) -> Result<ModelDescription> {
    let size = |key: &str, limit: SizeLimit| match keys.value(key) {
        Some(_) => keys.size(&[key], 1, limit).map(Some),
        None => Err(keys.refuse(key, &Value::Null, "the key is missing")),
    };
    let model = ModelConfig {
        n_layers: size("num_hidden_layers", SizeLimit::Layers)?,
        n_heads: size("num_attention_heads", SizeLimit::Width)?,
        head_dim: size("head_dim", SizeLimit::Width)?,
        d_model: size("hidden_size", SizeLimit::Width)?,
        d_hidden: size("intermediate_size", SizeLimit::Width)?,
        padded_vocab_size: size("vocab_size", SizeLimit::Rows)?,
        block: table(keys, "block")?,
        layers: table(keys, "kinds_of_layers")?,
        ..ModelConfig::default()
    };
    let train_len = size("train_len", SizeLimit::Length)?.unwrap_or_default();
    let mut described =
        ModelDescription::new(ModelFamily::Kerple, ModelShape { model, encoding: table(keys, "encoding")?, train_len });
    described.config.seed = table(keys, "seed")?;
    check_made(keys, &described.config)?;
    // for programs that ask how much a model reads; kerple's reads any length
    keys.raw("max_position_embeddings");
    // a choice of who calls the model in torch
    keys.raw("span");
    Ok(described)
}

/// A value as a run file has it.
fn table<T: DeserializeOwned>(keys: &ConfigKeys, key: &str) -> Result<T> {
    let value = keys.raw(key).unwrap_or(&Value::Null);
    T::deserialize(value).map_err(|error| {
        let run_file = match key {
            "block" => json!({ "model": { "block": value } }),
            "kinds_of_layers" => json!({ "model": { "layers": value } }),
            _ => json!({ key: value }),
        };
        let renamed =
            renamed::hint(renamed::RUN_FILE, &run_file).map_or_else(String::new, |names| format!("; {names}"));
        keys.refuse(key, value, &format!("{error}{renamed}"))
    })
}

/// Refuses a folder in which one of the keys was changed and what was made of them was not, or the other way round.
fn check_made(keys: &ConfigKeys, config: &RunConfig) -> Result<()> {
    let facts = DataInfo {
        vocab_size: config.model.padded_vocab_size.unwrap_or_default(),
        tokenizer: NO_TOKENIZER.to_owned(),
        train_tokens: 0,
        content: String::new(),
    };
    let init_from = InitFrom::Imported { family: ModelFamily::Kerple, weights: String::new() };
    let plan = Plan::of_init_from(config, facts, init_from)?;
    let ours = export::config::kerple(&plan).map_err(|why| Error::damaged(keys.path(), why, AGAIN))?.config;
    let given = [MADE[0], MADE[1], "num_key_value_heads", "layer_norm_eps", "tie_word_embeddings"];
    for key in given {
        let value = keys.raw(key).unwrap_or(&Value::Null);
        if without_drawn(value) != ours[key] {
            let why = "it contradicts block, encoding and kinds_of_layers, from which it was computed";
            return Err(keys.refuse(key, value, why));
        }
    }
    Ok(())
}

const AGAIN: &str = "export the run again";

/// The plan of layers before tensors were drawn for them.
fn without_drawn(value: &Value) -> Value {
    let mut value = value.clone();
    for layer in value.as_array_mut().into_iter().flatten() {
        if let Some(drawn) = layer.pointer_mut("/linear/drawn") {
            *drawn = Value::Array(Vec::new());
        }
    }
    value
}
