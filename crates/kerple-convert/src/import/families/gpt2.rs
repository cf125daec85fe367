//! GPT-2.

use super::{ModelShape, activation, head_dim};
use crate::import::ModelDescription;
use crate::import::config::{ConfigKeys, SizeLimit};
use kerple_burn::plan::BlockConfig;
use kerple_core::encoding::{Encoding, Method, learned};
use kerple_lm::Result;
use kerple_lm::config::ModelConfig;
use kerple_run::ModelFamily;

pub fn describe(keys: &ConfigKeys) -> Result<ModelDescription> {
    let width = keys.size(&["n_embd", "hidden_size"], 768, SizeLimit::Width)?;
    let heads = keys.size(&["n_head", "num_attention_heads"], 12, SizeLimit::Width)?;
    let head_dim = head_dim(keys, ("n_head", heads), width)?;
    let positions = keys.size(&["n_positions", "max_position_embeddings"], 1024, SizeLimit::Length)?;
    let scaled = keys.flag("scale_attn_weights", true)?;
    let block = BlockConfig {
        norm_eps: keys.number("layer_norm_epsilon", 1e-5)?,
        activation: activation(keys, "activation_function", "gelu_new")?,
        attn_scale: (!scaled).then_some(1.0),
        scale_attn_by_layer: keys.flag("scale_attn_by_inverse_layer_idx", false)?,
        tie_embeddings: keys.flag("tie_word_embeddings", true)?,
        ..BlockConfig::default()
    };
    let model = ModelConfig {
        n_layers: Some(keys.size(&["n_layer", "num_hidden_layers"], 12, SizeLimit::Layers)?),
        n_heads: Some(heads),
        head_dim: Some(head_dim),
        d_model: Some(width),
        d_hidden: Some(keys.size(&["n_inner"], 4 * width, SizeLimit::Width)?),
        padded_vocab_size: Some(keys.size(&["vocab_size"], 50_257, SizeLimit::Rows)?),
        block,
        ..ModelConfig::default()
    };
    let encoding = Encoding::from(Method::Learned(learned::LearnedConfig { positions: Some(positions) }));
    Ok(ModelDescription::new(ModelFamily::Gpt2, ModelShape { model, encoding, train_len: positions }))
}
