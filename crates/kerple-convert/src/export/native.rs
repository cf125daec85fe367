//! `config.json` for architectures that transformers has built in.
//!
//! Each architecture represents what it can and refuses the first key it cannot, so that the next
//! one is tried.

use super::config::encodings;
use super::forms::width;
use super::{ExportOptions, FamilyConfig, Representable, inkling};
use crate::ModelFamily;
use kerple_burn::ops::activation::Activation;
use kerple_burn::plan::{AttentionKind, BlockConfig, NormKind, ResidualKind, SinkKind};
use kerple_core::encoding::scaling::{DynamicNtk, Llama3, RopeScaling, RopeStretch, Yarn, YarnRamp};
use kerple_core::encoding::{BiasScale, Emulate, Encoding, Method, rotary};
use kerple_lm::plan::Plan;
use serde_json::{Map, Value, json};

/// In the order in which they are tried.
pub(super) const FAMILIES: [ModelFamily; 8] = [
    ModelFamily::GptNeox,
    ModelFamily::Gpt2,
    ModelFamily::Llama,
    ModelFamily::Qwen3,
    ModelFamily::Smollm3,
    ModelFamily::Inkling,
    ModelFamily::Bloom,
    ModelFamily::Mpt,
];

/// The configuration of a family, or the key that it has no words for.
pub(super) fn config(family: ModelFamily, plan: &Plan, options: &ExportOptions) -> Representable<FamilyConfig> {
    let (own, notes) = match family {
        ModelFamily::GptNeox => (gpt_neox(plan)?, Vec::new()),
        ModelFamily::Gpt2 => (gpt2(plan, options)?, Vec::new()),
        ModelFamily::Llama | ModelFamily::Qwen3 | ModelFamily::Smollm3 => (llama(family, plan)?, Vec::new()),
        ModelFamily::Inkling => (inkling::config(plan)?, Vec::new()),
        ModelFamily::Bloom => (bloom(plan)?, Vec::new()),
        ModelFamily::Mpt => mpt(plan)?,
        ModelFamily::Kerple => return Err("it is kerple's own architecture".to_owned()),
    };
    let Value::Object(mut config) = own else { unreachable!("an object") };
    config.extend([
        ("model_type".to_owned(), json!(family.model_type())),
        ("architectures".to_owned(), json!([family.architecture()])),
        ("vocab_size".to_owned(), json!(plan.model.vocab_size)),
        ("tie_word_embeddings".to_owned(), json!(plan.model.block.tie_embeddings)),
    ]);
    Ok(FamilyConfig { family, config, notes })
}

/// Refuses where `same` does not hold.
pub(super) fn need(same: bool, what: &str) -> Representable<()> {
    if same { Ok(()) } else { Err(format!("it has no equivalent of {what}")) }
}

/// What no family but Inkling has.
fn check(plan: &Plan) -> Representable<()> {
    check_shared(plan)?;
    need_plain_heads(plan)?;
    need(plan.model.block.short_conv.is_none(), "model.block.short_conv")?;
    encodings(plan).iter().try_for_each(|(_, encoding)| check_encoding(encoding))
}

/// Layers whose heads are those of the model, and as many logits as rows of the embedding.
pub(super) fn need_plain_heads(plan: &Plan) -> Representable<()> {
    need(plan.model.unpadded_vocab_size.is_none(), "model.unpadded_vocab_size")?;
    plan.model.own_heads_key().map_or(Ok(()), |key| need(false, &key))
}

/// What none of the families has.
pub(super) fn check_shared(plan: &Plan) -> Representable<()> {
    let BlockConfig { key_shift, ssmax, attn_temperature, sink, attn_softcap, lm_head_bias, scale_embeddings, .. } =
        plan.model.block;
    need(plan.model.block.normalizer.is_softmax(), "model.block.normalizer")?;
    need(plan.model.block.selective_attention.is_none(), "model.block.selective_attention")?;
    need(!key_shift, "model.block.key_shift")?;
    need(ssmax.is_none(), "model.block.ssmax")?;
    need(attn_temperature.is_none(), "model.block.attn_temperature")?;
    need(sink == SinkKind::None, "model.block.sink")?;
    need(attn_softcap.is_none(), "model.block.attn_softcap")?;
    need(!lm_head_bias, "model.block.lm_head_bias")?;
    need(!scale_embeddings, "model.block.scale_embeddings")?;
    need_no_sink_tokens(plan)?;
    let softmax = |layer: usize| *plan.model.layer(&plan.encoding, layer).attention == AttentionKind::Softmax;
    need((0..plan.model.n_layers).all(softmax), "model.block.attention")
}

/// The same of an encoding.
pub(super) fn check_encoding(encoding: &Encoding) -> Representable<()> {
    need(encoding.scale == BiasScale::After, "encoding.scale")?;
    need(encoding.emulate == Emulate::Exact, "encoding.emulate")?;
    need(encoding.randomized.is_none(), "encoding.randomized")?;
    need(encoding.distance_cap.is_none(), "encoding.distance_cap")?;
    need(encoding.reach.is_none(), "encoding.reach")
}

/// First tokens that stay visible under a window, of the encoding or of a kind of layers.
fn need_no_sink_tokens(plan: &Plan) -> Representable<()> {
    need(plan.encoding.sink_tokens.is_none(), "encoding.sink_tokens")?;
    let all = plan.model.every_layer(&plan.encoding);
    need(all.map(|layer| layer.sink_tokens).all(|sink_tokens| sink_tokens.is_none()), "model.layers.*.sink_tokens")
}

/// The choices that older families have no key for: as many key heads as query heads, as wide as the model together, and all
/// layers alike.
fn check_plain(plan: &Plan) -> Representable<()> {
    let (model, block) = (&plan.model, &plan.model.block);
    check(plan)?;
    need(block.n_kv_heads.is_none_or(|heads| heads == model.n_heads), "model.block.n_kv_heads")?;
    need(model.n_heads * model.head_dim == model.d_model, "model.d_model")?;
    need(!block.glu, "model.block.glu")?;
    need(!block.qk_norm, "model.block.qk_norm")?;
    need(model.layers.is_empty(), "model.layers")?;
    need(plan.encoding.window.is_none(), "encoding.window")
}

fn check_scores(block: &BlockConfig) -> Representable<()> {
    need(block.attn_scale.is_none(), "model.block.attn_scale")?;
    need(!block.scale_attn_by_layer, "model.block.scale_attn_by_layer")?;
    need(block.clip_qkv.is_none(), "model.block.clip_qkv")
}

fn check_biases(block: &BlockConfig, have: bool) -> Representable<()> {
    let all = [block.qkv_bias, block.out_bias, block.mlp_bias];
    need(all == [have; 3], "the plan's biases (model.block)")
}

/// What transformers calls an activation.
pub(super) fn activation(block: &BlockConfig) -> &'static str {
    match block.activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
        Activation::Silu => "silu",
        Activation::QuickGelu => "quick_gelu",
        Activation::Relu => "relu",
        Activation::Relu2 => "relu2",
    }
}

/// Rotary keys, for new readers and for old ones.
struct RopeKeys {
    parameters: Map<String, Value>,
    /// Of old readers: what is not the default.
    scaling: Value,
    base: f64,
    /// Length that a dynamic base grows from.
    length: usize,
}

/// The rotation as a dictionary of parameters; `partial` is the share of features that are rotated.
fn rope(keys: &rotary::RotaryConfig, plan: &Plan, partial: Option<f64>) -> Representable<RopeKeys> {
    for (key, is_set) in [("keep", keys.keep.is_some()), ("frequencies", keys.frequencies.is_some())] {
        need(!is_set, &format!("encoding.{key}"))?;
    }
    let (mut length, train_len) = (plan.train_len, plan.train_len);
    let scaling = match keys.scaling {
        None => json!({ "rope_type": "default" }),
        Some(RopeScaling::Linear(RopeStretch { factor: Some(factor), .. })) => {
            json!({ "rope_type": "linear", "factor": factor })
        }
        Some(RopeScaling::Dynamic(DynamicNtk { factor, original_len })) => {
            // transformers raises the base to n / (n - 2) for n features
            need(
                width(keys, &plan.geometry()) > 2,
                "encoding.scaling = dynamic of 2 features, where transformers fails",
            )?;
            length = original_len.unwrap_or(train_len);
            json!({ "rope_type": "dynamic", "factor": factor })
        }
        Some(RopeScaling::Yarn(yarn)) => yarn_keys(yarn, train_len)?,
        Some(RopeScaling::Llama3(Llama3 { factor, low_freq_factor, high_freq_factor, original_len })) => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_len.unwrap_or(train_len),
        }),
        Some(other) => return Err(format!("it has no equivalent of encoding.scaling = {}", other.label())),
    };
    let mut parameters = scaling.as_object().cloned().unwrap_or_default();
    parameters.insert("rope_theta".to_owned(), json!(keys.base));
    if let Some(partial) = partial {
        parameters.insert("partial_rotary_factor".to_owned(), json!(partial));
    }
    let scaling = if keys.scaling.is_some() { scaling } else { Value::Null };
    Ok(RopeKeys { parameters, scaling, base: keys.base, length })
}

fn yarn_keys(yarn: Yarn, train_len: usize) -> Representable<Value> {
    let Yarn { factor, original_len, beta_fast, beta_slow, ramp, attention_factor, truncate } = yarn;
    let (Some(factor), YarnRamp::Index) = (factor, ramp) else {
        return Err("it has no equivalent of encoding.scaling = yarn whose factor follows the length \
                    or whose ramp counts turns"
            .to_owned());
    };
    Ok(json!({
        "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original_len.unwrap_or(train_len),
        "beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate,
        "attention_factor": attention_factor.unwrap_or(0.1 * factor.ln() + 1.0),
    }))
}

/// A share of `features` of which `width` are left by truncation.
fn share(width: usize, features: usize) -> f64 {
    let share = width as f64 / features as f64;
    if (features as f64 * share) as usize == width { share } else { share.next_up() }
}

fn gpt_neox(plan: &Plan) -> Representable<Value> {
    let (model, block) = (&plan.model, &plan.model.block);
    check_plain(plan)?;
    check_scores(block)?;
    need(block.norm == NormKind::Layer && !block.embedding_norm, "the plan's norms (model.block)")?;
    need(block.mlp_bias && block.qkv_bias == block.out_bias, "the plan's biases (model.block)")?;
    let parallel = match block.residual {
        ResidualKind::Sequential => false,
        ResidualKind::Parallel => true,
        ResidualKind::NormResidual | ResidualKind::PostLn => {
            return need(false, "model.block.residual").map(|()| Value::Null);
        }
    };
    let (keys, partial) = match &plan.encoding.method {
        Method::Rotary(keys) => (keys.clone(), share(width(keys, &plan.geometry()), model.head_dim)),
        Method::None(_) => (rotary::RotaryConfig::default(), 0.0),
        other => return Err(format!("it has no equivalent of the encoding {}", other.kind())),
    };
    let rope = rope(&keys, plan, Some(partial))?;
    Ok(json!({
        "hidden_size": model.d_model, "num_hidden_layers": model.n_layers, "num_attention_heads": model.n_heads,
        "intermediate_size": model.d_hidden, "hidden_act": activation(block), "layer_norm_eps": block.norm_eps,
        "use_parallel_residual": parallel, "attention_bias": block.qkv_bias, "max_position_embeddings": rope.length,
        "rotary_pct": partial, "rotary_emb_base": rope.base, "rope_scaling": rope.scaling, "rope_parameters": rope.parameters,
        "attention_dropout": 0.0, "hidden_dropout": 0.0,
    }))
}

fn gpt2(plan: &Plan, options: &ExportOptions) -> Representable<Value> {
    let (model, block) = (&plan.model, &plan.model.block);
    check_plain(plan)?;
    check_biases(block, true)?;
    need(block.norm == NormKind::Layer && !block.embedding_norm, "the plan's norms (model.block)")?;
    need(block.residual == ResidualKind::Sequential, "model.block.residual")?;
    need(block.clip_qkv.is_none(), "model.block.clip_qkv")?;
    let scaled = match block.attn_scale {
        None => true,
        Some(1.0) => false,
        Some(other) => return Err(format!("it has no equivalent of model.block.attn_scale = {other}")),
    };
    let rows = match (&plan.encoding.method, options.positions) {
        (Method::Learned(_), _) => plan.encoding.longest(&plan.geometry()),
        (Method::Sinusoidal(_), Some(rows)) => Some(rows),
        (Method::Sinusoidal(_), None) => {
            return Err("it stores sinusoidal encodings as rows; give their number with --positions".to_owned());
        }
        (other, _) => return Err(format!("it has no equivalent of the encoding {}", other.kind())),
    };
    Ok(json!({
        "n_embd": model.d_model, "n_layer": model.n_layers, "n_head": model.n_heads, "n_inner": model.d_hidden,
        "n_positions": rows, "activation_function": activation(block), "layer_norm_epsilon": block.norm_eps,
        "scale_attn_weights": scaled, "scale_attn_by_inverse_layer_idx": block.scale_attn_by_layer,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    }))
}

/// The slopes of ALiBi's encoder are other ones.
fn alibi(encoding: &Encoding) -> Representable<f64> {
    match &encoding.method {
        Method::Alibi(keys) if keys.behind == 0.0 => Ok(keys.bias_max),
        other => Err(format!("it has no equivalent of the encoding {}", other.kind())),
    }
}

fn bloom(plan: &Plan) -> Representable<Value> {
    let (model, block) = (&plan.model, &plan.model.block);
    check_plain(plan)?;
    check_scores(block)?;
    check_biases(block, true)?;
    need(block.norm == NormKind::Layer && block.embedding_norm, "the plan's norms (model.block)")?;
    need(block.activation == Activation::GeluTanh, "model.block.activation")?;
    need(model.d_hidden == 4 * model.d_model, "model.d_hidden")?;
    let normed = match block.residual {
        ResidualKind::Sequential => false,
        ResidualKind::NormResidual => true,
        ResidualKind::Parallel | ResidualKind::PostLn => {
            return need(false, "model.block.residual").map(|()| Value::Null);
        }
    };
    need(alibi(&plan.encoding)? == 8.0, "encoding.bias_max")?;
    Ok(json!({
        "hidden_size": model.d_model, "n_layer": model.n_layers, "n_head": model.n_heads,
        "layer_norm_epsilon": block.norm_eps, "apply_residual_connection_post_layernorm": normed,
        "attention_dropout": 0.0, "hidden_dropout": 0.0,
    }))
}

/// The `alibi_bias_max` that transformers computes MPT with.
const USUAL_BIAS_MAX: f64 = 8.0;

/// Whether transformers computes what a configuration of this architecture states.
pub(super) fn is_exact(family: ModelFamily, plan: &Plan) -> bool {
    family != ModelFamily::Mpt || alibi(&plan.encoding).is_ok_and(|bias_max| bias_max == USUAL_BIAS_MAX)
}

fn mpt(plan: &Plan) -> Representable<(Value, Vec<String>)> {
    let (model, block) = (&plan.model, &plan.model.block);
    check_plain(plan)?;
    check_biases(block, false)?;
    need(block.norm == NormKind::LayerNoBias && !block.embedding_norm, "the plan's norms (model.block)")?;
    need(block.residual == ResidualKind::Sequential, "model.block.residual")?;
    need(block.activation == Activation::Gelu, "model.block.activation")?;
    need(!block.scale_attn_by_layer, "model.block.scale_attn_by_layer")?;
    need(model.d_hidden == 4 * model.d_model, "model.d_hidden")?;
    let bias_max = alibi(&plan.encoding)?;
    let most = plan.train_len;
    let mut notes = vec![format!(
        "transformers computes MPT for inputs of up to max_seq_len = {most} tokens; to evaluate longer ones there, raise it \
         in config.json, which changes no other result, or export with --arch kerple"
    )];
    if bias_max != USUAL_BIAS_MAX {
        notes.push(format!(
            "transformers computes MPT with alibi_bias_max {USUAL_BIAS_MAX} whatever the file states; this model has \
             {bias_max}"
        ));
    }
    let config = json!({
        "d_model": model.d_model, "n_layers": model.n_layers, "n_heads": model.n_heads, "max_seq_len": plan.train_len,
        "expansion_ratio": 4, "layer_norm_epsilon": block.norm_eps, "no_bias": true, "learned_pos_emb": false,
        "attn_config": {
            "alibi": true, "alibi_bias_max": if bias_max.fract() == 0.0 { json!(bias_max as u64) } else { json!(bias_max) },
            "attn_type": "multihead_attention", "clip_qkv": block.clip_qkv, "softmax_scale": block.attn_scale,
            "prefix_lm": false, "qk_ln": false,
        },
    });
    Ok((config, notes))
}

/// What may differ between the layers of LLaMA and its relatives.
struct LlamaLayer {
    rotates: bool,
    window: Option<usize>,
}

/// The rotation that all layers share, and the kind of each.
fn layers(plan: &Plan) -> Representable<(rotary::RotaryConfig, Vec<LlamaLayer>)> {
    let (mut keys, mut all) = (None, Vec::new());
    for layer in plan.model.every_layer(&plan.encoding) {
        let rotates = match &layer.encoding.method {
            Method::Rotary(own) => {
                need(*keys.get_or_insert_with(|| own.clone()) == *own, "rotary settings that differ by layer")?;
                true
            }
            Method::None(_) => false,
            other => return Err(format!("it has no equivalent of the encoding {}", other.kind())),
        };
        all.push(LlamaLayer { rotates, window: layer.window });
    }
    Ok((keys.unwrap_or_default(), all))
}

fn llama(family: ModelFamily, plan: &Plan) -> Representable<Value> {
    let (model, block) = (&plan.model, &plan.model.block);
    check(plan)?;
    check_scores(block)?;
    need(block.norm == NormKind::Rms && !block.embedding_norm, "the plan's norms (model.block)")?;
    need(block.residual == ResidualKind::Sequential, "model.block.residual")?;
    need(block.glu, "model.block.glu")?;
    need(block.qkv_bias == block.out_bias, "the plan's biases (model.block)")?;
    need(block.qk_norm == (family == ModelFamily::Qwen3), "model.block.qk_norm")?;
    let (keys, layers) = layers(plan)?;
    need(width(&keys, &plan.geometry()) == model.head_dim, "encoding.pct")?;
    let rotates = layers.iter().all(|layer| layer.rotates);
    let windowed = layers.iter().any(|layer| layer.window.is_some());
    need(rotates || family == ModelFamily::Smollm3, "layers without rotation")?;
    need(!windowed || family != ModelFamily::Llama, "windows")?;
    need(!block.mlp_bias || family != ModelFamily::Qwen3, "model.block.mlp_bias")?;
    let rope = rope(&keys, plan, None)?;
    let mut config = json!({
        "hidden_size": model.d_model, "num_hidden_layers": model.n_layers, "num_attention_heads": model.n_heads,
        "num_key_value_heads": block.n_kv_heads.unwrap_or(model.n_heads), "head_dim": model.head_dim,
        "intermediate_size": model.d_hidden, "hidden_act": activation(block), "rms_norm_eps": block.norm_eps,
        "attention_bias": block.qkv_bias, "max_position_embeddings": rope.length, "rope_theta": rope.base,
        "rope_scaling": rope.scaling, "rope_parameters": rope.parameters, "attention_dropout": 0.0,
    });
    if family != ModelFamily::Qwen3 {
        config["mlp_bias"] = block.mlp_bias.into();
    }
    if family != ModelFamily::Llama {
        let windows: Vec<usize> = layers.iter().filter_map(|layer| layer.window).collect();
        need(windows.windows(2).all(|pair| pair[0] == pair[1]), "windows of different sizes")?;
        let kind = |layer: &LlamaLayer| if layer.window.is_some() { "sliding_attention" } else { "full_attention" };
        config["layer_types"] = layers.iter().map(kind).collect();
        config["use_sliding_window"] = windowed.into();
        config["sliding_window"] = windows.first().copied().into();
    }
    if family == ModelFamily::Smollm3 {
        config["no_rope_layers"] = layers.iter().map(|layer| u8::from(layer.rotates)).collect();
    }
    Ok(config)
}
