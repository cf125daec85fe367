//! GPT-NeoX and Pythia.

use super::{ModelShape, activation, head_dim};
use crate::import::ModelDescription;
use crate::import::config::{ConfigKeys, SizeLimit};
use crate::import::rope;
use kerple_burn::plan::{BlockConfig, ResidualKind};
use kerple_lm::Result;
use kerple_lm::config::ModelConfig;
use kerple_run::ModelFamily;

pub fn describe(keys: &ConfigKeys) -> Result<ModelDescription> {
    let width = keys.size(&["hidden_size"], 6144, SizeLimit::Width)?;
    let heads = keys.size(&["num_attention_heads"], 64, SizeLimit::Width)?;
    let head_dim = head_dim(keys, ("num_attention_heads", heads), width)?;
    let longest = keys.size(&["max_position_embeddings"], 2048, SizeLimit::Length)?;
    let bias = keys.flag("attention_bias", true)?;
    let residual =
        if keys.flag("use_parallel_residual", true)? { ResidualKind::Parallel } else { ResidualKind::Sequential };
    let block = BlockConfig {
        residual,
        norm_eps: keys.number("layer_norm_eps", 1e-5)?,
        qkv_bias: bias,
        out_bias: bias,
        activation: activation(keys, "hidden_act", "gelu")?,
        tie_embeddings: keys.flag("tie_word_embeddings", false)?,
        ..BlockConfig::default()
    };
    let turns = rope::RopeDefaults {
        base: 10_000.0,
        share: 0.25,
        keys: ["rotary_emb_base", "rotary_pct"],
        partial: true,
        head_dim,
        longest,
    };
    let model = ModelConfig {
        n_layers: Some(keys.size(&["num_hidden_layers"], 44, SizeLimit::Layers)?),
        n_heads: Some(heads),
        head_dim: Some(head_dim),
        d_model: Some(width),
        d_hidden: Some(keys.size(&["intermediate_size"], 24_576, SizeLimit::Width)?),
        padded_vocab_size: Some(keys.size(&["vocab_size"], 50_432, SizeLimit::Rows)?),
        block,
        ..ModelConfig::default()
    };
    let shape = ModelShape { model, encoding: rope::read(keys, &turns)?, train_len: longest };
    Ok(ModelDescription::new(ModelFamily::GptNeox, shape))
}
