//! `config.json` of Inkling with dense feed-forward layers, and the tensors that its files have and a decoder has not.

use super::Representable;
use super::native::{activation, check_encoding, check_shared, need};
use kerple_burn::heads::Heads;
use kerple_burn::plan::{NormKind, ResidualKind};
use kerple_core::encoding::inkling::LogScale;
use kerple_core::encoding::{Method, ParameterShare};
use kerple_lm::layers::LayerSettings;
use kerple_lm::plan::Plan;
use serde_json::{Value, json};

/// What layers with a window have alike, or those without.
#[derive(Clone, Debug, PartialEq)]
struct LayerType {
    heads: Heads,
    window: Option<usize>,
    rank: usize,
    reach: usize,
    log_scale: Option<LogScale>,
}

impl LayerType {
    fn of(layer: &LayerSettings) -> Representable<LayerType> {
        let Method::Inkling(keys) = &layer.encoding.method else {
            return Err(format!("it has no equivalent of the encoding {}", layer.encoding.method.kind()));
        };
        check_encoding(layer.encoding)?;
        need(layer.encoding.share == ParameterShare::Layer, "encoding.share")?;
        need(
            layer.attn_scale == Some((layer.heads.head_dim as f64).recip()),
            "model.block.attn_scale but 1 / head_dim",
        )?;
        if let Some(window) = layer.window {
            need(keys.reach == window, "encoding.reach but the window")?;
            need(keys.log_scale.is_none(), "encoding.log_scale under a window")?;
        }
        if let Some(LogScale { floor, .. }) = keys.log_scale {
            need(floor.fract() == 0.0, "encoding.log_scale.floor but a whole number")?;
        }
        let (rank, reach, log_scale) = (keys.rank, keys.reach, keys.log_scale);
        Ok(LayerType { heads: layer.heads, window: layer.window, rank, reach, log_scale })
    }
}

/// The configuration, or the key that it has no words for.
pub(super) fn config(plan: &Plan) -> Representable<Value> {
    let (model, block) = (&plan.model, &plan.model.block);
    check_shared(plan)?;
    need(block.norm == NormKind::Rms && block.embedding_norm, "the plan's norms (model.block)")?;
    need(block.residual == ResidualKind::Sequential, "model.block.residual")?;
    need(![block.qkv_bias, block.out_bias, block.mlp_bias].contains(&true), "the plan's biases (model.block)")?;
    need(block.glu, "model.block.glu")?;
    need(block.qk_norm, "model.block.qk_norm")?;
    need(!block.scale_attn_by_layer, "model.block.scale_attn_by_layer")?;
    need(block.clip_qkv.is_none(), "model.block.clip_qkv")?;
    need(!block.tie_embeddings, "model.block.tie_embeddings")?;
    need(block.short_conv.is_some(), "blocks without model.block.short_conv")?;
    let layers = model.every_layer(&plan.encoding).map(|layer| LayerType::of(&layer));
    let layers = layers.collect::<Representable<Vec<LayerType>>>()?;
    let of = |slides: bool| layers.iter().filter(move |layer| layer.window.is_some() == slides);
    for slides in [false, true] {
        let mut all = of(slides);
        let first = all.next();
        need(all.all(|other| Some(other) == first), "layers that differ in more than a window (model.layers)")?;
    }
    // where there is none of one type, its keys are read by nobody
    let any = layers.first().ok_or("it has no equivalent of a model without layers")?;
    let [global, sliding] = [false, true].map(|slides| of(slides).next().unwrap_or(any));
    need(global.rank == sliding.rank, "encoding.rank that differs by layer")?;
    let word = |layer: &LayerType| if layer.window.is_some() { "hybrid_sliding" } else { "hybrid" };
    Ok(json!({
        "hidden_size": model.d_model, "num_hidden_layers": model.n_layers, "intermediate_size": model.d_hidden,
        "num_attention_heads": global.heads.heads, "num_key_value_heads": global.heads.kv_heads,
        "head_dim": global.heads.head_dim, "swa_num_attention_heads": sliding.heads.heads,
        "swa_num_key_value_heads": sliding.heads.kv_heads, "swa_head_dim": sliding.heads.head_dim,
        "sliding_window_size": sliding.window.unwrap_or(sliding.reach), "d_rel": global.rank, "rel_extent": global.reach,
        "log_scaling_n_floor": global.log_scale.map(|scale| scale.floor as u64),
        "log_scaling_alpha": global.log_scale.map_or(0.1, |scale| scale.alpha),
        "layer_types": layers.iter().map(word).collect::<Vec<_>>(), "mlp_layer_types": vec!["dense"; model.n_layers],
        "conv_kernel_size": block.short_conv, "rms_norm_eps": block.norm_eps, "hidden_act": activation(block),
        "logits_mup_width_multiplier": 1.0, "unpadded_vocab_size": model.unpadded_vocab_size,
        "max_position_embeddings": plan.train_len, "attention_dropout": 0.0,
    }))
}

/// Names of the scales of feed-forward branches, which are 1.
pub(super) fn scales(plan: &Plan) -> impl Iterator<Item = String> + use<> {
    (0..plan.model.n_layers).map(|layer| format!("model.layers.{layer}.mlp.global_scale"))
}
