//! MPT, as its authors compute it.

use super::{ModelShape, head_dim};
use crate::import::ModelDescription;
use crate::import::config::{ConfigKeys, SizeLimit};
use kerple_burn::plan::{BlockConfig, NormKind};
use kerple_core::encoding::{Encoding, Method, alibi};
use kerple_lm::Result;
use kerple_lm::config::ModelConfig;
use kerple_run::ModelFamily;
use serde_json::{Value, json};

/// Biases by distance of transformers, whatever the configuration says.
const USUAL_BIAS_MAX: f64 = 8.0;

pub fn describe(keys: &ConfigKeys) -> Result<ModelDescription> {
    let width = keys.size(&["d_model", "hidden_size"], 2048, SizeLimit::Width)?;
    let heads = keys.size(&["n_heads", "num_attention_heads"], 16, SizeLimit::Width)?;
    let head_dim = head_dim(keys, ("n_heads", heads), width)?;
    let expansion = keys.number("expansion_ratio", 4.0)?;
    if expansion != 4.0 {
        return Err(keys.refuse("expansion_ratio", &Value::from(expansion), "only 4 can be imported"));
    }
    keys.expect("no_bias", &[json!(true)])?;
    keys.expect("logit_scale", &[])?;
    keys.expect("norm_type", &[json!("low_precision_layernorm"), json!("layernorm")])?;
    keys.expect("fc_type", &[json!("torch")])?;
    if let Some(inner) = keys.table("ffn_config")? {
        inner.expect("ffn_type", &[json!("mptmlp")])?;
        inner.notes().into_iter().for_each(|note| keys.remark(note));
    }
    let mut block = BlockConfig {
        norm: NormKind::LayerNoBias,
        norm_eps: keys.number("layer_norm_epsilon", 1e-5)?,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        tie_embeddings: keys.flag("tie_word_embeddings", true)?,
        ..BlockConfig::default()
    };
    let mut bias_max = USUAL_BIAS_MAX;
    if let Some(attention) = keys.table("attn_config")? {
        attention.expect("attn_type", &[json!("multihead_attention")])?;
        attention.expect("alibi", &[json!(true)])?;
        for key in ["qk_ln", "qk_gn", "prefix_lm", "rope"] {
            attention.expect(key, &[json!(false)])?;
        }
        attention.expect("sliding_window_size", &[json!(-1)])?;
        attention.expect("attn_logit_softcapping", &[])?;
        bias_max = attention.number("alibi_bias_max", USUAL_BIAS_MAX)?;
        block.clip_qkv = attention.optional_number("clip_qkv")?.filter(|limit| *limit != 0.0);
        block.attn_scale = attention.optional_number("softmax_scale")?;
        attention.notes().into_iter().for_each(|note| keys.remark(note));
    }
    let model = ModelConfig {
        n_layers: Some(keys.size(&["n_layers", "num_hidden_layers"], 24, SizeLimit::Layers)?),
        n_heads: Some(heads),
        head_dim: Some(head_dim),
        d_model: Some(width),
        d_hidden: Some(4 * width),
        padded_vocab_size: Some(keys.size(&["vocab_size"], 50_368, SizeLimit::Rows)?),
        block,
        ..ModelConfig::default()
    };
    let encoding = Encoding::from(Method::Alibi(alibi::AlibiConfig { bias_max, ..alibi::AlibiConfig::default() }));
    let train_len = keys.size(&["max_seq_len"], 2048, SizeLimit::Length)?;
    let mut described = ModelDescription::new(ModelFamily::Mpt, ModelShape { model, encoding, train_len });
    if bias_max != USUAL_BIAS_MAX {
        described.notes.push(format!(
            "alibi_bias_max is {bias_max}: using it, as its authors do; transformers computes with {USUAL_BIAS_MAX}"
        ));
    }
    Ok(described)
}
