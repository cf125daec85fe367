//! LLaMA and families with its layout: SmolLM3, which has layers without rotation, and Qwen3, which
//! normalises queries and keys.

use super::{ModelShape, activation};
use crate::import::ModelDescription;
use crate::import::config::{ConfigKeys, SizeLimit};
use crate::import::rope;
use kerple_burn::plan::{BlockConfig, NormKind};
use kerple_lm::Result;
use kerple_lm::config::ModelConfig;
use kerple_lm::layers::{AttentionWindow, LayerConfig};
use kerple_run::ModelFamily;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a family takes where its configuration is silent.
struct LlamaDefaults {
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    /// Key heads where the key is absent; `null` means as many as query heads.
    kv_heads: Option<usize>,
    /// Features of a head; the width over the heads when absent.
    head_dim: Option<usize>,
    rows: usize,
    base: f64,
    longest: usize,
    tied: bool,
}

const LLAMA: LlamaDefaults = LlamaDefaults {
    width: 4096,
    inner: 11_008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    rows: 32_000,
    base: 10_000.0,
    longest: 2048,
    tied: false,
};

fn defaults(family: ModelFamily) -> LlamaDefaults {
    match family {
        ModelFamily::Smollm3 => LlamaDefaults {
            width: 2048,
            layers: 36,
            heads: 16,
            kv_heads: Some(4),
            rows: 128_256,
            base: 2_000_000.0,
            longest: 32_768,
            tied: true,
            ..LLAMA
        },
        ModelFamily::Qwen3 => LlamaDefaults {
            inner: 22_016,
            kv_heads: Some(32),
            head_dim: Some(128),
            rows: 151_936,
            longest: 32_768,
            ..LLAMA
        },
        _ => LLAMA,
    }
}

pub fn describe(keys: &ConfigKeys, family: ModelFamily) -> Result<ModelDescription> {
    let known = defaults(family);
    let width = keys.size(&["hidden_size"], known.width, SizeLimit::Width)?;
    let layers = keys.size(&["num_hidden_layers"], known.layers, SizeLimit::Layers)?;
    let heads = keys.size(&["num_attention_heads"], known.heads, SizeLimit::Width)?;
    let kv_heads = kv_heads(keys, heads, &known)?;
    let head_dim = head_dim(keys, family, width / heads, &known)?;
    let longest = keys.size(&["max_position_embeddings"], known.longest, SizeLimit::Length)?;
    let bias = keys.flag("attention_bias", false)?;
    let block = BlockConfig {
        norm: NormKind::Rms,
        norm_eps: keys.number("rms_norm_eps", 1e-6)?,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: family != ModelFamily::Qwen3 && keys.flag("mlp_bias", false)?,
        n_kv_heads: (kv_heads != heads).then_some(kv_heads),
        activation: activation(keys, "hidden_act", "silu")?,
        glu: true,
        qk_norm: family == ModelFamily::Qwen3,
        tie_embeddings: keys.flag("tie_word_embeddings", known.tied)?,
        ..BlockConfig::default()
    };
    let turns = rope::RopeDefaults {
        base: known.base,
        share: 1.0,
        keys: ["rope_theta", "partial_rotary_factor"],
        partial: false,
        head_dim,
        longest,
    };
    let rotary = rope::read(keys, &turns)?;
    let (unrotated, windowed) = kinds(keys, family, layers)?;
    let all_unrotated = unrotated.iter().all(|unrotated| *unrotated);
    let model = ModelConfig {
        n_layers: Some(layers),
        n_heads: Some(heads),
        head_dim: Some(head_dim),
        d_model: Some(width),
        d_hidden: Some(keys.size(&["intermediate_size"], known.inner, SizeLimit::Width)?),
        padded_vocab_size: Some(keys.size(&["vocab_size"], known.rows, SizeLimit::Rows)?),
        block,
        layers: named(&unrotated, &windowed, all_unrotated),
        ..ModelConfig::default()
    };
    let encoding = if all_unrotated { rope::none() } else { rotary };
    let mut described = ModelDescription::new(family, ModelShape { model, encoding, train_len: longest });
    described.notes.extend(remark(&unrotated));
    Ok(described)
}

fn kv_heads(keys: &ConfigKeys, heads: usize, known: &LlamaDefaults) -> Result<usize> {
    let absent = if keys.raw("num_key_value_heads").is_some() { None } else { known.kv_heads };
    let found = keys.size(&["num_key_value_heads"], absent.unwrap_or(heads), SizeLimit::Width)?;
    if heads.is_multiple_of(found) {
        Ok(found)
    } else {
        let why = format!("it does not divide the {heads} query heads");
        Err(keys.refuse("num_key_value_heads", &Value::from(found), &why))
    }
}

fn head_dim(keys: &ConfigKeys, family: ModelFamily, share: usize, known: &LlamaDefaults) -> Result<usize> {
    if let (Some(Value::Null), ModelFamily::Smollm3 | ModelFamily::Qwen3) = (keys.raw("head_dim"), family) {
        return Err(keys.refuse("head_dim", &Value::Null, "this family needs a number; otherwise leave out the key"));
    }
    let found = keys.size(&["head_dim"], known.head_dim.unwrap_or(share), SizeLimit::Width)?;
    if found.is_multiple_of(2) && found > 0 {
        Ok(found)
    } else {
        Err(keys.refuse(
            "head_dim",
            &Value::from(found),
            "it must be even and at least 2, because rotary rotates features in pairs",
        ))
    }
}

/// Which layers do not rotate, and the window of each that has one.
fn kinds(keys: &ConfigKeys, family: ModelFamily, layers: usize) -> Result<(Vec<bool>, Vec<Option<usize>>)> {
    let unrotated = match family {
        ModelFamily::Smollm3 => unrotated(keys, layers)?,
        _ => {
            // no class of these reads it
            if let Some(value) = keys.value("no_rope_layers")
                && value.as_array().is_none_or(|list| list.iter().any(|entry| entry.as_u64() != Some(1)))
            {
                return Err(keys.refuse("no_rope_layers", value, "this family rotates in every layer"));
            }
            vec![false; layers]
        }
    };
    let windows = match family {
        ModelFamily::Llama => {
            for key in ["sliding_window", "layer_types"] {
                if let Some(value) = keys.value(key).filter(|value| !is_all_full(value)) {
                    return Err(keys.refuse(key, value, "this family does not support windows"));
                }
            }
            vec![None; layers]
        }
        _ => windows(keys, family, &unrotated)?,
    };
    Ok((unrotated, windows))
}

fn is_all_full(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|list| list.iter().all(|kind| matches!(kind.as_str(), Some("full_attention" | "attention"))))
}

/// `no_rope_layers`: 1 rotates and 0 does not; or by the interval every so many layers the last does not.
fn unrotated(keys: &ConfigKeys, layers: usize) -> Result<Vec<bool>> {
    let interval = keys.value("no_rope_layer_interval");
    let Some(value) = keys.value("no_rope_layers") else {
        let every = interval.map_or(Some(4), Value::as_u64).filter(|every| *every > 0);
        let every = every.ok_or_else(|| {
            keys.refuse(
                "no_rope_layer_interval",
                interval.unwrap_or(&Value::Null),
                "it must be a whole number of at least 1",
            )
        })?;
        return Ok((1..=layers as u64).map(|layer| layer % every == 0).collect());
    };
    let refuse = |why: &str| keys.refuse("no_rope_layers", value, why);
    let list = value.as_array().ok_or_else(|| refuse("it must be a list of 0 and 1"))?;
    if list.len() < layers {
        return Err(refuse(&format!("it has {} entries, but the model has {layers} layers", list.len())));
    }
    let entry = |entry: &Value| match entry.as_u64() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(refuse("its entries must be 0 (does not rotate) or 1 (rotates)")),
    };
    // what is beyond the last layer is nobody's
    list[..layers].iter().map(entry).collect()
}

/// The window of each layer that has one, itself included.
fn windows(keys: &ConfigKeys, family: ModelFamily, unrotated: &[bool]) -> Result<Vec<Option<usize>>> {
    let layers = unrotated.len();
    let used = keys.flag("use_sliding_window", false)?;
    // absent is 4096 for Qwen3, and null is none
    let absent = keys.raw("sliding_window").is_none() && family == ModelFamily::Qwen3;
    let own = keys.raw("sliding_window").filter(|value| !value.is_null());
    let window = || match own {
        None if absent => Ok(4096),
        Some(value) if value.as_u64().is_some_and(|keys| (1..=1 << 28).contains(&keys)) => {
            Ok(value.as_u64().unwrap_or_default() as usize)
        }
        other => Err(keys.refuse(
            "sliding_window",
            other.unwrap_or(&Value::Null),
            "layers with a window need one of at least 1",
        )),
    };
    let first = match family {
        ModelFamily::Qwen3 => keys.optional_count("max_window_layers")?.unwrap_or(28),
        _ => 0,
    };
    if let Some(value) = keys.value("layer_types") {
        let refuse = |why: &str| keys.refuse("layer_types", value, why);
        let list = value.as_array().ok_or_else(|| refuse("it must be a list of strings"))?;
        if list.len() != layers {
            return Err(refuse(&format!("it has {} entries, but the model has {layers} layers", list.len())));
        }
        let kind = |kind: &Value| match kind.as_str() {
            Some("full_attention" | "attention") => Ok(None),
            Some("sliding_attention") if !used => {
                Err(refuse("use_sliding_window is false, so layers cannot have windows"))
            }
            Some("sliding_attention") => window().map(Some),
            _ => Err(refuse("its entries must be full_attention or sliding_attention")),
        };
        return list.iter().map(kind).collect();
    }
    if !used || (own.is_none() && !absent) {
        return Ok(vec![None; layers]);
    }
    let has = |layer: usize| if family == ModelFamily::Qwen3 { layer >= first } else { unrotated[layer] };
    (0..layers).map(|layer| if has(layer) { window().map(Some) } else { Ok(None) }).collect()
}

/// The kinds of layers that differ from the model's.
fn named(unrotated: &[bool], windows: &[Option<usize>], all_unrotated: bool) -> BTreeMap<String, LayerConfig> {
    let mut kinds: BTreeMap<String, LayerConfig> = BTreeMap::new();
    for (layer, (unrotated, window)) in unrotated.iter().zip(windows).enumerate() {
        let still = *unrotated && !all_unrotated;
        let name = match (still, window) {
            (false, None) => continue,
            (true, None) => "unrotated",
            (false, Some(_)) => "windowed",
            (true, Some(_)) => "unrotated_windowed",
        };
        let kind = kinds.entry(name.to_owned()).or_insert_with(|| LayerConfig {
            at: Some(Vec::new()),
            encoding: still.then(rope::none),
            window: window.map(AttentionWindow::Last),
            ..LayerConfig::default()
        });
        kind.at.as_mut().expect("it was made with one").push(layer);
    }
    kinds
}

/// Says which layers do not rotate.
fn remark(unrotated: &[bool]) -> Option<String> {
    let still: Vec<String> =
        unrotated.iter().enumerate().filter(|(_, still)| **still).map(|(layer, _)| layer.to_string()).collect();
    if still.is_empty() {
        return None;
    }
    let odd = if 2 * still.len() > unrotated.len() {
        "; these are more than half: in no_rope_layers, 1 means that a layer rotates"
    } else {
        ""
    };
    Some(format!("layers without rotation: {}{odd}", still.join(", ")))
}
