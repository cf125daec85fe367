//! GPT-NeoX and Pythia.

use super::{Shape, activation, head_dim};
use crate::import::Described;
use crate::import::config::{Keys, Limit};
use crate::import::rope;
use kerple_burn::plan::{BlockConfig, ResidualKind};
use kerple_lm::Result;
use kerple_lm::config::ModelConfig;
use kerple_run::ModelFamily;

pub fn describe(keys: &Keys) -> Result<Described> {
    let width = keys.size(&["hidden_size"], 6144, Limit::Width)?;
    let heads = keys.size(&["num_attention_heads"], 64, Limit::Width)?;
    let head_dim = head_dim(keys, ("num_attention_heads", heads), width)?;
    let longest = keys.size(&["max_position_embeddings"], 2048, Limit::Length)?;
    let bias = keys.flag("attention_bias", true)?;
    let residual = match keys.flag("use_parallel_residual", true)? {
        true => ResidualKind::Parallel,
        false => ResidualKind::Sequential,
    };
    let block = BlockConfig {
        residual,
        norm_eps: keys.number("layer_norm_eps", 1e-5)?,
        qkv_bias: bias,
        out_bias: bias,
        activation: activation(keys, "hidden_act", "gelu")?,
        tie_embeddings: keys.flag("tie_word_embeddings", false)?,
        ..BlockConfig::default()
    };
    let turns = rope::Family {
        base: 10_000.0,
        share: 0.25,
        keys: ["rotary_emb_base", "rotary_pct"],
        partial: true,
        head_dim,
        longest,
    };
    let model = ModelConfig {
        n_layers: Some(keys.size(&["num_hidden_layers"], 44, Limit::Layers)?),
        n_heads: Some(heads),
        head_dim: Some(head_dim),
        d_model: Some(width),
        d_hidden: Some(keys.size(&["intermediate_size"], 24_576, Limit::Width)?),
        padded_vocab_size: Some(keys.size(&["vocab_size"], 50_432, Limit::Rows)?),
        block,
        ..ModelConfig::default()
    };
    let shape = Shape { model, encoding: rope::read(keys, &turns)?, train_len: longest };
    Ok(Described::new(ModelFamily::GptNeox, shape))
}
