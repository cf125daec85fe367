//! BLOOM.

use super::{ModelShape, head_dim};
use crate::import::ModelDescription;
use crate::import::config::{ConfigKeys, SizeLimit};
use kerple_burn::ops::activation::Activation;
use kerple_burn::plan::{BlockConfig, ResidualKind};
use kerple_core::encoding::{Encoding, Method, alibi};
use kerple_lm::Result;
use kerple_lm::config::ModelConfig;
use kerple_run::ModelFamily;

pub fn describe(keys: &ConfigKeys) -> Result<ModelDescription> {
    let width = keys.size(&["hidden_size", "n_embed"], 64, SizeLimit::Width)?;
    let heads = keys.size(&["n_head", "num_attention_heads"], 8, SizeLimit::Width)?;
    let head_dim = head_dim(keys, ("n_head", heads), width)?;
    let residual = if keys.flag("apply_residual_connection_post_layernorm", false)? {
        ResidualKind::NormResidual
    } else {
        ResidualKind::Sequential
    };
    let block = BlockConfig {
        residual,
        norm_eps: keys.number("layer_norm_epsilon", 1e-5)?,
        embedding_norm: true,
        activation: Activation::GeluTanh,
        tie_embeddings: keys.flag("tie_word_embeddings", true)?,
        ..BlockConfig::default()
    };
    let inner = keys.size(&["n_inner"], 4 * width, SizeLimit::Width)?;
    if inner != 4 * width {
        return Err(keys.refuse("n_inner", &inner.into(), "this family has 4 times the width"));
    }
    let model = ModelConfig {
        n_layers: Some(keys.size(&["n_layer", "num_hidden_layers"], 2, SizeLimit::Layers)?),
        n_heads: Some(heads),
        head_dim: Some(head_dim),
        d_model: Some(width),
        d_hidden: Some(inner),
        padded_vocab_size: Some(keys.size(&["vocab_size"], 250_880, SizeLimit::Rows)?),
        block,
        ..ModelConfig::default()
    };
    let encoding = Encoding::from(Method::Alibi(alibi::AlibiConfig::default()));
    // no limit; what it was trained at is rarely said
    let train_len = keys.size(&["seq_length"], 2048, SizeLimit::Length)?;
    Ok(ModelDescription::new(ModelFamily::Bloom, ModelShape { model, encoding, train_len }))
}
