//! `config.json` of kerple's own architecture.

use super::forms::{self, object};
use super::native::{need, need_plain_heads};
use super::{FamilyConfig, Representable};
use crate::ModelFamily;
use kerple_burn::forward_context::{ForwardContext, POSITIONS};
use kerple_burn::ops::linear_attention::LinearAttentionSettings;
use kerple_burn::plan::{BlockConfig, LinearAttentionConfig};
use kerple_core::encoding::{Encoding, Randomized};
use kerple_core::forms::{CodeForm, CodeKind, Normalizer};
use kerple_lm::plan::Plan;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

/// Every encoding of a model: the model's own, then those of kinds of layers, with their names.
pub(super) fn encodings(plan: &Plan) -> Vec<(Option<String>, Encoding)> {
    let others = plan.model.other_encodings().into_iter().map(|(name, encoding)| (Some(name), encoding));
    std::iter::once((None, plan.encoding.clone())).chain(others).collect()
}

/// `kind` and keys as in a run file.
fn table(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("plans are plain data")
}

/// The model in kerple's own words.
pub(crate) fn kerple(plan: &Plan) -> Representable<FamilyConfig> {
    need_plain_heads(plan)?;
    let (model, block, geometry) = (&plan.model, &plan.model.block, plan.geometry());
    check_block(block)?;
    let mut all = Vec::new();
    for (name, encoding) in encodings(plan) {
        let mut form = forms::form(&encoding, &geometry)?;
        form.insert("module".to_owned(), json!(name));
        if let Some(drawn) = drawn(plan, &encoding) {
            form.insert("drawn".to_owned(), drawn);
        }
        all.push(form);
    }
    let layers: Vec<Value> = model
        .every_layer(&plan.encoding)
        .enumerate()
        .map(|(number, layer)| {
            let form = layer.other.map_or(0, |other| other + 1);
            let linear = layer.attention.linear().map(|linear| linear_plan(plan, number, linear));
            json!({
                "form": form, "window": layer.window, "sink_tokens": layer.sink_tokens,
                "normalizer": normalizer(block.normalizer), "linear": linear,
            })
        })
        .collect();
    let config = json!({
        "model_type": ModelFamily::Kerple.model_type(),
        "architectures": [ModelFamily::Kerple.architecture()],
        "auto_map": {
            "AutoConfig": "configuration_kerple.KerpleConfig",
            "AutoModel": "modeling_kerple.KerpleModel",
            "AutoModelForCausalLM": "modeling_kerple.KerpleForCausalLM",
        },
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": block.n_kv_heads.unwrap_or(model.n_heads),
        "head_dim": model.head_dim,
        "intermediate_size": model.d_hidden,
        "layer_norm_eps": block.norm_eps,
        "max_position_embeddings": plan.train_len,
        "train_len": plan.train_len,
        "tie_word_embeddings": block.tie_embeddings,
        "block": table(block),
        "encoding": table(&plan.encoding),
        "kinds_of_layers": table(&model.layers),
        "seed": plan.seed,
        "forms": all,
        "layer_plan": layers,
    });
    let Value::Object(config) = config else { unreachable!("an object") };
    Ok(FamilyConfig { family: ModelFamily::Kerple, config, notes: notes(plan) })
}

/// Every key of a block is one that the Python code reads, that an export drops with a note, or that is refused here.
fn check_block(block: &BlockConfig) -> Representable<()> {
    let BlockConfig {
        norm: _,
        norm_eps: _,
        embedding_norm: _,
        residual: _,
        qkv_bias: _,
        out_bias: _,
        mlp_bias: _,
        n_kv_heads: _,
        activation: _,
        glu: _,
        attn_scale: _,
        scale_attn_by_layer: _,
        qk_norm: _,
        short_conv,
        key_shift: _,
        ssmax: _,
        attn_temperature: _,
        normalizer: _,
        selective_attention,
        sink: _,
        attn_softcap: _,
        clip_qkv: _,
        tie_embeddings: _,
        lm_head_bias: _,
        attention: _,
        scale_embeddings: _,
        init: _,
        dropout: _,
        embedding_dropout: _,
        hidden_dropout: _,
    } = block;
    need(short_conv.is_none(), "model.block.short_conv")?;
    need(selective_attention.is_none(), "model.block.selective_attention")
}

/// A normaliser other than softmax, with all its choices.
fn normalizer(normalizer: Normalizer) -> Option<Value> {
    let choices = match normalizer {
        Normalizer::Softmax => return None,
        Normalizer::Softpick => json!({}),
        Normalizer::StickBreaking(choices) => table(&choices),
    };
    let mut all = object(choices);
    all.insert("kind".to_owned(), normalizer.kind().into());
    Some(Value::Object(all))
}

/// What stands in the place of positions or of distances: how many it is drawn from, and the streams it is drawn from in
/// evaluation, that of the embeddings and behind it those of the layers.
fn drawn(plan: &Plan, encoding: &Encoding) -> Option<Value> {
    let what = match encoding.method.positional().randomized() {
        Randomized::Positions => "positions",
        Randomized::Distances => "distances",
        Randomized::Never(_) => return None,
    };
    let stream = stream(&ForwardContext::evaluation(plan.seed).shared_noise(POSITIONS));
    encoding.randomized.map(|most| json!({ "what": what, "most": most, "stream": stream }))
}

/// The name of a stream of random numbers: the words of its key, and its number.
fn stream(rng: &ChaCha8Rng) -> Value {
    let key: Vec<u32> = rng.get_seed().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    json!({ "key": key, "number": rng.get_stream() })
}

/// What linear attention of a layer is told.
fn linear_plan(plan: &Plan, layer: usize, linear: &LinearAttentionConfig) -> Map<String, Value> {
    let mut all = Map::new();
    all.insert("feature_map".to_owned(), table(&linear.feature_map));
    all.insert("chunk".to_owned(), kerple_core::attention::linear::CHUNK.into());
    let code = plan.model.layer(&plan.encoding, layer).encoding.code(&plan.geometry());
    all.insert("gating".to_owned(), table(&code.as_ref().and_then(|code| code.gating)));
    if let Some(code) = &code {
        all.extend(filtered(plan, &LinearAttentionSettings { plan: linear.clone(), layer }, code));
    }
    // what was drawn is listed once it is known
    all.insert("drawn".to_owned(), json!([]));
    all
}

/// The noise that a layer's code filters, which is too long to be a tensor.
fn filtered(plan: &Plan, linear: &LinearAttentionSettings, code: &CodeForm) -> Option<(String, Value)> {
    let CodeKind::Conv(shape) = &code.kind else { return None };
    let [of_code, _] = linear.noise(code, &ForwardContext::evaluation(plan.seed));
    let (taps, size, width) = (&shape.taps, &shape.size, shape.realisations);
    let noise = json!({ "kernel_size": taps, "size": size, "num_realizations": width, "stream": stream(&of_code) });
    Some(("noise".to_owned(), noise))
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    if plan.model.every_layer(&plan.encoding).any(|layer| layer.attention.linear().is_some()) {
        notes.push(
            "linear attention computes every pair of positions in torch, so its time is quadratic there".to_owned(),
        );
    }
    notes
}
