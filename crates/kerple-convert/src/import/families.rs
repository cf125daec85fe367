//! Reads the configurations of the families, each with its own defaults.

mod bloom;
mod gpt2;
mod gpt_neox;
mod inkling;
mod kerple;
mod llama;
mod mpt;

use super::ModelDescription;
use super::config::ConfigKeys;
use super::short::short;
use ::kerple_core::encoding::Encoding;
use kerple_burn::ops::activation::Activation;
use kerple_lm::Result;
use kerple_lm::config::ModelConfig;
use kerple_run::ModelFamily;
use serde_json::Value;

/// The model that a configuration describes.
#[derive(Debug)]
pub struct ModelShape {
    /// Sizes and blocks; every size is given.
    pub model: ModelConfig,
    /// How positions enter.
    pub encoding: Encoding,
    /// Tokens of a training sequence, where known.
    pub train_len: usize,
}

pub use inkling::{logits_multiplier, text_config};

/// Reads a configuration of a `known` family, or by its `model_type`, or by its class where it has none.
///
/// # Errors
/// An unknown family, and settings of a family that cannot be imported.
pub fn describe(keys: &ConfigKeys, known: Option<ModelFamily>) -> Result<ModelDescription> {
    let family = known.map_or_else(|| family(keys), Ok)?;
    check_quantization(keys)?;
    // of two descriptions transformers takes parts of each
    for key in ["text_config", "decoder", "generator"] {
        if let Some(value) = keys.value(key) {
            return Err(keys.refuse(
                key,
                value,
                "the model is described in two places; only a description at the top level can be imported",
            ));
        }
    }
    keys.expect("is_encoder_decoder", &[Value::Bool(false)])?;
    // with false, transformers lets tokens attend to later ones, in every family
    keys.expect("is_causal", &[Value::Bool(true)])?;
    keys.expect("add_cross_attention", &[Value::Bool(false)])?;
    keys.expect("pruned_heads", &[serde_json::json!({})])?;
    remark_on_code(keys, family);
    match family {
        ModelFamily::GptNeox => gpt_neox::describe(keys),
        ModelFamily::Gpt2 => gpt2::describe(keys),
        ModelFamily::Bloom => bloom::describe(keys),
        ModelFamily::Mpt => mpt::describe(keys),
        ModelFamily::Llama | ModelFamily::Smollm3 | ModelFamily::Qwen3 => llama::describe(keys, family),
        ModelFamily::Inkling => inkling::describe(keys),
        ModelFamily::Kerple => kerple::describe(keys),
    }
}

/// Says where a configuration names Python code for the model, which is not read.
fn remark_on_code(keys: &ConfigKeys, family: ModelFamily) {
    let code = keys.value("auto_map").and_then(|map| map.get("AutoModelForCausalLM").or_else(|| map.get("AutoModel")));
    if let (Some(code), true) = (code, family != ModelFamily::Kerple) {
        keys.remark(format!(
            "auto_map names code for the model, {}, which is not read: it is imported as {}, which transformers \
             computes without trust_remote_code",
            short(&code.to_string()),
            family.model_type()
        ));
    }
}

fn check_quantization(keys: &ConfigKeys) -> Result<()> {
    for key in ["quantization_config", "compression_config"] {
        if let Some(value) = keys.value(key) {
            return Err(keys.refuse(key, value, "quantized weights cannot be imported"));
        }
    }
    Ok(())
}

fn family(keys: &ConfigKeys) -> Result<ModelFamily> {
    let architecture = keys.value("architectures").and_then(|list| list.get(0));
    let (key, value, found) = match (keys.value("model_type"), architecture) {
        (Some(value), _) => {
            ("model_type", value, ModelFamily::ALL.into_iter().find(|family| value == family.model_type()))
        }
        (None, Some(value)) => {
            ("architectures", value, ModelFamily::ALL.into_iter().find(|family| value == family.architecture()))
        }
        (None, None) => {
            return Err(keys.refuse("model_type", &Value::Null, "the file does not state its architecture"));
        }
    };
    if let (Some(found), Some(said)) = (found, architecture.and_then(Value::as_str))
        && said != found.architecture()
        && key == "model_type"
    {
        let (said, kind) = (short(said), found.model_type());
        keys.remark(format!(
            "architectures is {said} but model_type is {kind}: using model_type, as transformers does"
        ));
    }
    found.ok_or_else(|| {
        if let Some(why) = value.as_str().and_then(inkling::other_definition) {
            return keys.refuse(key, value, why);
        }
        let known = ModelFamily::ALL.iter().map(|family| family.model_type()).chain([inkling::MULTIMODAL]);
        keys.refuse(key, value, &format!("only these can be imported: {}", known.collect::<Vec<_>>().join(", ")))
    })
}

/// The activation that a key names.
fn activation(keys: &ConfigKeys, key: &str, default: &'static str) -> Result<Activation> {
    let word = keys.word(key, default)?;
    Ok(match word {
        "gelu" | "gelu_python" => Activation::Gelu,
        // the constants of gelu_fast differ by less than an f32 does
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_accurate" | "gelu_fast" => Activation::GeluTanh,
        "silu" | "swish" => Activation::Silu,
        "quick_gelu" => Activation::QuickGelu,
        "relu" => Activation::Relu,
        "relu2" => Activation::Relu2,
        other => {
            let known = "use gelu, gelu_new, gelu_fast, silu, quick_gelu, relu or relu2";
            return Err(keys.refuse(key, &Value::from(other), known));
        }
    })
}

/// Features of a head, where heads share the width of the model.
fn head_dim(keys: &ConfigKeys, heads: (&str, usize), width: usize) -> Result<usize> {
    match width % heads.1 {
        0 => Ok(width / heads.1),
        _ => Err(keys.refuse(heads.0, &Value::from(heads.1), &format!("it does not divide the width of {width}"))),
    }
}
