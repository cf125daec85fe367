//! The tensor names of the families, one table per family.

use crate::ModelFamily;

/// How queries, keys and values are stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum QkvPacking {
    /// One matrix, outputs `[head][q|k|v][D]`.
    HeadsFirst(&'static str),
    /// One matrix, outputs `[q|k|v][head][D]`.
    PartsFirst(&'static str),
    /// A matrix each.
    Apart([&'static str; 3]),
}

/// Names of a family. Those of a layer stand behind `layer`, its number and a dot; linear layers and norms are followed by
/// `.weight` and `.bias`.
#[derive(Clone, Copy, Debug)]
pub(super) struct FamilyNames {
    /// What files saved from the model without its head leave out.
    pub(super) prefix: &'static str,
    pub(super) embedding: &'static str,
    pub(super) embedding_norm: Option<&'static str>,
    /// A learned value of the encoding, its name in place of the braces.
    pub(super) encoding: Option<&'static str>,
    pub(super) layer: &'static str,
    /// Of attention and of the feed-forward branch.
    pub(super) norms: [&'static str; 2],
    pub(super) packing: QkvPacking,
    /// Of queries and keys.
    pub(super) qk_norms: Option<[&'static str; 2]>,
    /// Of the matrix and the profiles of a relative bias, which stand in every layer.
    pub(super) relative: Option<[&'static str; 2]>,
    /// Of short convolutions of keys, of values, of attention and of the feed-forward branch.
    pub(super) convs: Option<[&'static str; 4]>,
    pub(super) out: &'static str,
    pub(super) up: &'static str,
    pub(super) gate: Option<&'static str>,
    pub(super) down: &'static str,
    pub(super) norm: &'static str,
    pub(super) head: &'static str,
    pub(super) head_alias: Option<&'static str>,
    /// Whether matrices are `[out, in]`.
    pub(super) transposed: bool,
}

const GPT_NEOX: FamilyNames = FamilyNames {
    prefix: "gpt_neox.",
    embedding: "gpt_neox.embed_in.weight",
    embedding_norm: None,
    encoding: None,
    layer: "gpt_neox.layers.",
    norms: ["input_layernorm", "post_attention_layernorm"],
    packing: QkvPacking::HeadsFirst("attention.query_key_value"),
    qk_norms: None,
    relative: None,
    convs: None,
    out: "attention.dense",
    up: "mlp.dense_h_to_4h",
    gate: None,
    down: "mlp.dense_4h_to_h",
    norm: "gpt_neox.final_layer_norm",
    head: "embed_out.weight",
    head_alias: Some("lm_head.weight"),
    transposed: true,
};

const GPT2: FamilyNames = FamilyNames {
    prefix: "transformer.",
    embedding: "transformer.wte.weight",
    // the only encoding there is: learned rows
    encoding: Some("transformer.wpe.weight"),
    layer: "transformer.h.",
    norms: ["ln_1", "ln_2"],
    packing: QkvPacking::PartsFirst("attn.c_attn"),
    out: "attn.c_proj",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    norm: "transformer.ln_f",
    head: "lm_head.weight",
    head_alias: None,
    transposed: false,
    ..GPT_NEOX
};

const BLOOM: FamilyNames = FamilyNames {
    prefix: "transformer.",
    embedding: "transformer.word_embeddings.weight",
    embedding_norm: Some("transformer.word_embeddings_layernorm"),
    layer: "transformer.h.",
    packing: QkvPacking::HeadsFirst("self_attention.query_key_value"),
    out: "self_attention.dense",
    norm: "transformer.ln_f",
    head: "lm_head.weight",
    head_alias: None,
    ..GPT_NEOX
};

const MPT: FamilyNames = FamilyNames {
    prefix: "transformer.",
    embedding: "transformer.wte.weight",
    layer: "transformer.blocks.",
    norms: ["norm_1", "norm_2"],
    packing: QkvPacking::PartsFirst("attn.Wqkv"),
    out: "attn.out_proj",
    up: "ffn.up_proj",
    down: "ffn.down_proj",
    norm: "transformer.norm_f",
    head: "lm_head.weight",
    head_alias: None,
    ..GPT_NEOX
};

const LLAMA: FamilyNames = FamilyNames {
    prefix: "model.",
    embedding: "model.embed_tokens.weight",
    layer: "model.layers.",
    packing: QkvPacking::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    qk_norms: Some(["self_attn.q_norm.weight", "self_attn.k_norm.weight"]),
    out: "self_attn.o_proj",
    up: "mlp.up_proj",
    gate: Some("mlp.gate_proj"),
    down: "mlp.down_proj",
    norm: "model.norm",
    head: "lm_head.weight",
    head_alias: None,
    ..GPT_NEOX
};

const INKLING: FamilyNames = FamilyNames {
    embedding_norm: Some("model.embed_tokens.embed_norm"),
    relative: Some(["self_attn.r_proj.weight", "self_attn.rel_logits_proj.proj"]),
    convs: Some([
        "self_attn.k_sconv.conv1d.weight",
        "self_attn.v_sconv.conv1d.weight",
        "attn_sconv.conv1d.weight",
        "mlp_sconv.conv1d.weight",
    ]),
    ..LLAMA
};

const KERPLE: FamilyNames = FamilyNames {
    prefix: "model.",
    embedding: "model.embed_tokens.weight",
    embedding_norm: Some("model.embed_layer_norm"),
    encoding: Some("model.encoding.{}"),
    layer: "model.layers.",
    qk_norms: Some(["attention.q_norm.weight", "attention.k_norm.weight"]),
    gate: Some("mlp.dense_gate"),
    norm: "model.final_layer_norm",
    head: "lm_head.weight",
    head_alias: None,
    ..GPT_NEOX
};

impl FamilyNames {
    pub(super) fn of(family: ModelFamily) -> FamilyNames {
        match family {
            ModelFamily::GptNeox => GPT_NEOX,
            ModelFamily::Gpt2 => GPT2,
            ModelFamily::Bloom => BLOOM,
            ModelFamily::Mpt => MPT,
            ModelFamily::Llama | ModelFamily::Smollm3 | ModelFamily::Qwen3 => LLAMA,
            ModelFamily::Inkling => INKLING,
            ModelFamily::Kerple => KERPLE,
        }
    }
}
