//! Inkling with dense feed-forward layers: a relative bias per row, short convolutions, and layers with a window whose heads
//! have sizes of their own. The text model by itself, or as `text_config` of the model of text, images and sound.

use super::{ModelShape, activation, check_quantization};
use crate::import::ModelDescription;
use crate::import::config::{ConfigKeys, SizeLimit};
use ::kerple_core::encoding::inkling::{InklingConfig, LogScale, MOST_RANK, MOST_REACH};
use ::kerple_core::encoding::{Encoding, Method};
use kerple_burn::plan::{BlockConfig, NormKind};
use kerple_lm::config::ModelConfig;
use kerple_lm::layers::LayerConfig;
use kerple_lm::{Result, plan};
use kerple_run::ModelFamily;
use serde_json::Value;
use std::collections::BTreeMap;

/// The `model_type` of the model of text, images and sound.
pub const MULTIMODAL: &str = "inkling_mm_model";
const TEXT: &str = "text_config";

/// Widest short convolution, as in plans.
const WIDEST_FILTER: u64 = 64;

/// Why another `model_type` with this name is not imported.
pub fn other_definition(model_type: &str) -> Option<&'static str> {
    matches!(model_type, "inkling2" | "inkling2_text").then_some(
        "Inkling 2 is another definition, which cannot be imported: it clips queries, keys and relative rows, and has a \
         computed sink, an output gate and one more norm",
    )
}

/// The table of the language model in a configuration of text, images and sound; `None`: it is another configuration.
///
/// # Errors
/// Such a configuration without the table, or whose table describes another model.
pub fn text_config<'a>(keys: &ConfigKeys<'a>) -> Result<Option<ConfigKeys<'a>>> {
    if keys.value("model_type").is_none_or(|kind| kind != MULTIMODAL) {
        return Ok(None);
    }
    check_quantization(keys)?;
    // they belong to images, sound and multi-token prediction
    for key in ["audio_config", "vision_config", "image_token_id", "audio_token_id", "image_bos_token_id"] {
        keys.raw(key);
    }
    for key in ["audio_bos_token_id", "mtp_config", "tie_word_embeddings"] {
        keys.raw(key);
    }
    let Some(text) = keys.table(TEXT)? else {
        return Err(keys.refuse(TEXT, &Value::Null, "the language model is not described"));
    };
    let kind = ModelFamily::Inkling.model_type();
    match text.value("model_type") {
        Some(value) if value != kind => Err(text.refuse("model_type", value, &format!("only {kind} can be imported"))),
        _ => Ok(Some(text)),
    }
}

/// Heads of the layers of one kind, and the names of their keys.
struct KindHeads {
    names: [&'static str; 3],
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl KindHeads {
    fn read(keys: &ConfigKeys, names: [&'static str; 3], default_kv_heads: usize) -> Result<KindHeads> {
        let [heads, kv_heads, head_dim] = names;
        Ok(KindHeads {
            names,
            heads: keys.size(&[heads], 64, SizeLimit::Width)?,
            kv_heads: keys.size(&[kv_heads], default_kv_heads, SizeLimit::Width)?,
            head_dim: keys.size(&[head_dim], 128, SizeLimit::Width)?,
        })
    }

    /// Refuses heads that do not fit each other.
    fn check(&self, keys: &ConfigKeys) -> Result<()> {
        let [heads, kv_heads, head_dim] = self.names;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let why = format!("it does not divide {} = {}", keys.name(heads), self.heads);
            return Err(keys.refuse(kv_heads, &Value::from(self.kv_heads), &why));
        }
        if (self.heads * self.head_dim) as f64 > plan::WIDEST {
            let why = format!("with {} = {} heads are wider than {}", keys.name(heads), self.heads, plan::WIDEST);
            return Err(keys.refuse(head_dim, &Value::from(self.head_dim), &why));
        }
        Ok(())
    }

    /// Queries and keys are normed, so scores are divided by `D` and not by its root.
    fn scale(&self) -> f64 {
        (self.head_dim as f64).recip()
    }
}

/// Reads the text model.
///
/// # Errors
/// Sparse layers, and other settings that a plan cannot represent.
pub fn describe(keys: &ConfigKeys) -> Result<ModelDescription> {
    let layers = keys.size(&["num_hidden_layers"], 66, SizeLimit::Layers)?;
    check_dense(keys, layers)?;
    let sliding = sliding_layers(keys, layers)?;
    let vocab_size = keys.size(&["vocab_size"], 201_024, SizeLimit::Rows)?;
    let global = KindHeads::read(keys, ["num_attention_heads", "num_key_value_heads", "head_dim"], 8)?;
    let swa = KindHeads::read(keys, ["swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim"], 16)?;
    let window = keys.size_up_to(&["sliding_window_size", "sliding_window"], 512, MOST_REACH as u64)?;
    let rank = keys.size_up_to(&["d_rel"], 16, MOST_RANK as u64)?;
    let reach = keys.size_up_to(&["rel_extent"], 1024, MOST_REACH as u64)?;
    let all = InklingConfig { rank, reach, log_scale: log_scale(keys)?, ..InklingConfig::default() };
    let near = InklingConfig { reach: window, log_scale: None, ..all.clone() };
    let encodings = [
        Encoding::from(Method::Inkling(all)),
        Encoding { window: Some(window), ..Encoding::from(Method::Inkling(near)) },
    ];
    // sizes of the model are those of its global layers, where it has some
    let all_slide = sliding.len() == layers;
    let ([main, other], [encoding, near]) =
        if all_slide { ([&swa, &swa], encodings) } else { ([&global, &swa], encodings) };
    let encoding = if all_slide { near.clone() } else { encoding };
    main.check(keys)?;
    let mut kinds = BTreeMap::new();
    if !all_slide && !sliding.is_empty() {
        other.check(keys)?;
        kinds.insert("sliding".to_owned(), sliding_kind(sliding, near, [main, other]));
    }
    let block = BlockConfig {
        norm: NormKind::Rms,
        norm_eps: keys.number("rms_norm_eps", 1e-6)?,
        embedding_norm: true,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        n_kv_heads: (main.kv_heads != main.heads).then_some(main.kv_heads),
        activation: activation(keys, "hidden_act", "silu")?,
        glu: true,
        attn_scale: Some(main.scale()),
        qk_norm: true,
        short_conv: Some(filter_width(keys)?),
        ..BlockConfig::default()
    };
    let inner = ["intermediate_size", "dense_intermediate_size"][usize::from(is_renamed(keys))];
    let model = ModelConfig {
        n_layers: Some(layers),
        n_heads: Some(main.heads),
        head_dim: Some(main.head_dim),
        d_model: Some(keys.size(&["hidden_size"], 6144, SizeLimit::Width)?),
        d_hidden: Some(keys.size(&[inner], 24_576, SizeLimit::Width)?),
        padded_vocab_size: Some(vocab_size),
        unpadded_vocab_size: unpadded(keys, vocab_size)?,
        block,
        layers: kinds,
        ..ModelConfig::default()
    };
    let longest = keys.size(&["max_position_embeddings", "model_max_length"], 131_072, SizeLimit::Length)?;
    mark_unused(keys);
    Ok(ModelDescription::new(ModelFamily::Inkling, ModelShape { model, encoding, train_len: longest }))
}

/// What the final norm is divided by: the head reads `norm(x) / multiplier`.
///
/// # Errors
/// A multiplier that is not a number or is 0; two that contradict each other.
pub fn logits_multiplier(keys: &ConfigKeys) -> Result<f64> {
    let [usual, other] = ["logits_mup_width_multiplier", "embedding_multiplier"];
    let found = [keys.optional_number(usual)?, keys.optional_number(other)?];
    if let [Some(usual_value), Some(value)] = found
        && usual_value != value
    {
        return Err(keys.refuse(other, &Value::from(value), &format!("it contradicts {usual} = {usual_value}")));
    }
    let multiplier = found[0].or(found[1]).unwrap_or(24.0);
    if multiplier == 0.0 {
        return Err(keys.refuse(usual, &Value::from(0.0), "hidden states are divided by it, so it must not be 0"));
    }
    Ok(multiplier)
}

/// The kind of the layers that have a window, beside those of the whole model.
fn sliding_kind(at: Vec<usize>, encoding: Encoding, [main, own]: [&KindHeads; 2]) -> LayerConfig {
    let differs = |own: usize, main: usize| (own != main).then_some(own);
    LayerConfig {
        at: Some(at),
        encoding: Some(encoding),
        n_heads: differs(own.heads, main.heads),
        n_kv_heads: (own.kv_heads != main.kv_heads || own.heads != main.heads).then_some(own.kv_heads),
        head_dim: differs(own.head_dim, main.head_dim),
        attn_scale: (own.head_dim != main.head_dim).then_some(own.scale()),
        ..LayerConfig::default()
    }
}

/// Refuses mixtures of experts: all layers are unless the configuration says which are dense.
fn check_dense(keys: &ConfigKeys, layers: usize) -> Result<()> {
    let experts = keys.size(&["n_routed_experts", "num_local_experts"], 256, SizeLimit::Rows)?;
    let (key, types) = ("mlp_layer_types", keys.value("mlp_layer_types"));
    let dense_first = keys.optional_count("dense_mlp_idx")?;
    let sparse: Vec<usize> = match types {
        Some(value) => {
            let is_sparse = |kind: &str| match kind {
                "sparse" => Some(true),
                "dense" => Some(false),
                _ => None,
            };
            let sparse = entries(keys, key, value, layers, is_sparse, "dense or sparse")?;
            let first = sparse.iter().position(|sparse| *sparse).unwrap_or(layers);
            if let Some(said) = dense_first
                && (said.min(layers) != first || sparse[first..].contains(&false))
            {
                return Err(keys.refuse("dense_mlp_idx", &Value::from(said), &format!("it contradicts {key}")));
            }
            (0..layers).filter(|layer| sparse[*layer]).collect()
        }
        None => (dense_first.unwrap_or(0)..layers).collect(),
    };
    let (Some(first), Some(last)) = (sparse.first(), sparse.last()) else { return Ok(()) };
    let (key, value) = match (types, dense_first) {
        (None, Some(said)) => ("dense_mlp_idx", Value::from(said)),
        (types, _) => (key, types.cloned().unwrap_or_default()),
    };
    let which = match sparse.len() {
        1 => format!("layer {first} is a mixture"),
        count if count == last - first + 1 => format!("layers {first} to {last} are mixtures"),
        count => format!("{count} layers from {first} to {last} are mixtures"),
    };
    let why = format!("{which} of {experts} experts, which cannot be imported");
    let hint =
        "import a model whose layers are all dense; kerple.torch.Inkling takes the attention of one layer of any model";
    Err(keys.refuse_with(key, &value, &why, hint))
}

/// What `of` makes of each entry of a list with one word per layer.
fn entries(
    keys: &ConfigKeys,
    key: &str,
    value: &Value,
    layers: usize,
    of: impl Fn(&str) -> Option<bool>,
    words: &str,
) -> Result<Vec<bool>> {
    let refuse = |why: String| keys.refuse(key, value, &why);
    let list = value.as_array().ok_or_else(|| refuse("it must be a list of strings".to_owned()))?;
    if list.len() != layers {
        return Err(refuse(format!("it has {} entries, but the model has {layers} layers", list.len())));
    }
    let one =
        |entry: &Value| entry.as_str().and_then(&of).ok_or_else(|| refuse(format!("its entries must be {words}")));
    list.iter().map(one).collect()
}

/// The layers with a window: those that one of two keys names, or five of six.
fn sliding_layers(keys: &ConfigKeys, layers: usize) -> Result<Vec<usize>> {
    let kind = |kind: &str| match kind {
        "hybrid_sliding" => Some(true),
        "hybrid" => Some(false),
        _ => None,
    };
    let types = match keys.value("layer_types") {
        None => None,
        Some(value) => {
            let slides = entries(keys, "layer_types", value, layers, kind, "hybrid or hybrid_sliding")?;
            Some((0..layers).filter(|layer| slides[*layer]).collect::<Vec<usize>>())
        }
    };
    let Some(value) = keys.value("local_layer_ids") else {
        return Ok(types.unwrap_or_else(|| (0..layers).filter(|layer| !(layer + 1).is_multiple_of(6)).collect()));
    };
    let refuse = |why: &str| keys.refuse("local_layer_ids", value, why);
    let list = value.as_array().ok_or_else(|| refuse("it must be a list of layers"))?;
    let layer = |id: &Value| {
        let id = id.as_u64().filter(|id| *id < layers as u64);
        id.map(|id| id as usize).ok_or_else(|| refuse(&format!("its entries must be layers, from 0 to {}", layers - 1)))
    };
    let mut ids = list.iter().map(layer).collect::<Result<Vec<usize>>>()?;
    ids.sort_unstable();
    ids.dedup();
    match types {
        Some(types) if types != ids => Err(refuse("it contradicts layer_types")),
        _ => Ok(ids),
    }
}

/// How scores of global layers grow with the position.
fn log_scale(keys: &ConfigKeys) -> Result<Option<LogScale>> {
    let alpha = keys.number("log_scaling_alpha", 0.1)?;
    let Some(floor) = keys.optional_number("log_scaling_n_floor")? else { return Ok(None) };
    if floor <= 0.0 {
        let why = "positions are divided by it, so it must be above 0";
        return Err(keys.refuse("log_scaling_n_floor", &Value::from(floor), why));
    }
    if alpha < 0.0 {
        let why = "scores would shrink with the position, it must be at least 0";
        return Err(keys.refuse("log_scaling_alpha", &Value::from(alpha), why));
    }
    // a factor of 1 everywhere
    Ok((alpha > 0.0).then_some(LogScale { floor, alpha }))
}

fn filter_width(keys: &ConfigKeys) -> Result<usize> {
    let names = ["conv_kernel_size", "sconv_kernel_size"];
    let width = keys.size_up_to(&names, 4, WIDEST_FILTER)?;
    if width > 1 {
        return Ok(width);
    }
    let name = names.into_iter().find(|name| keys.value(name).is_some()).unwrap_or(names[0]);
    let why = format!("a convolution over one token cannot be imported, it must be between 2 and {WIDEST_FILTER}");
    Err(keys.refuse(name, &Value::from(width), &why))
}

/// Whether `intermediate_size` is the width of experts, and dense layers have a key of their own.
fn is_renamed(keys: &ConfigKeys) -> bool {
    keys.raw("intermediate_size");
    keys.value("dense_intermediate_size").is_some()
}

/// Tokens that are predicted, where they are fewer than the rows of the embedding.
fn unpadded(keys: &ConfigKeys, vocab_size: usize) -> Result<Option<usize>> {
    let rows = keys.size(&["unpadded_vocab_size"], vocab_size, SizeLimit::Rows)?;
    if rows > vocab_size {
        let why = format!("it is more than {} = {vocab_size}", keys.name("vocab_size"));
        return Err(keys.refuse("unpadded_vocab_size", &Value::from(rows), &why));
    }
    Ok((rows < vocab_size).then_some(rows))
}

/// Keys of experts and of the prediction of several tokens, which dense layers and logits do not read; the head is never tied.
fn mark_unused(keys: &ConfigKeys) {
    for key in "moe_intermediate_size num_experts_per_tok n_shared_experts shared_expert_sink route_scale \
                rms_norm_eps_moe_gate num_mtp_layers chain_hidden_post_norm mtp_hidden_states_first mtp_local_layer_ids \
                number_of_conv_states output_router_logits tie_word_embeddings"
        .split_whitespace()
    {
        keys.raw(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn five_of_six_layers_have_a_window_unless_the_file_lists_them() {
        for (value, expected) in [
            (json!({}), vec![0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12]),
            (json!({ "local_layer_ids": null }), vec![0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12]),
            (json!({ "local_layer_ids": [] }), vec![]),
            (json!({ "local_layer_ids": [12, 3, 3] }), vec![3, 12]),
        ] {
            let keys = ConfigKeys::new(Path::new("config.json"), &value).unwrap();
            assert_eq!(sliding_layers(&keys, 13).unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn an_empty_file_has_the_defaults_of_transformers_whose_layers_are_sparse() {
        let value = json!({});
        let keys = ConfigKeys::new(Path::new("config.json"), &value).unwrap();
        let error = describe(&keys).unwrap_err().to_string();
        assert!(error.contains("mlp_layer_types = null: layers 0 to 65 are mixtures of 256 experts"), "{error}");
        let value = json!({ "dense_mlp_idx": 66 });
        let keys = ConfigKeys::new(Path::new("config.json"), &value).unwrap();
        let described = describe(&keys).unwrap().config;
        let (model, kind) = (&described.model, &described.model.layers["sliding"]);
        assert_eq!((model.n_heads, model.head_dim, model.block.n_kv_heads), (Some(64), Some(128), Some(8)));
        assert_eq!((kind.n_heads, kind.n_kv_heads, kind.head_dim, kind.attn_scale), (None, Some(16), None, None));
        assert_eq!((model.d_model, model.d_hidden, model.unpadded_vocab_size), (Some(6144), Some(24_576), None));
        assert_eq!((described.train.train_len, logits_multiplier(&keys).unwrap()), (131_072, 24.0));
        assert_eq!(described.encoding.label(), "inkling");
    }
}
