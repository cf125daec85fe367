//! Errors of a plan, with the names of the imported files.

use super::CONFIG;
use kerple_lm::Error;
use kerple_run::ModelFamily;
use std::path::Path;

/// Our names of sizes, and those of `config.json` or of a GPT-NeoX run.
fn sizes(family: ModelFamily, is_hugging_face: bool) -> [(&'static str, &'static str); 7] {
    let theirs = match family {
        _ if !is_hugging_face => [
            "num-layers",
            "num-attention-heads",
            "hidden-size / num-attention-heads",
            "hidden-size",
            "the rows of mlp.dense_h_to_4h.weight",
            "the rows of word_embeddings.weight",
            "seq-length",
        ],
        ModelFamily::Gpt2 => ["n_layer", "n_head", "n_embd / n_head", "n_embd", "n_inner", "vocab_size", "n_positions"],
        ModelFamily::Bloom => {
            ["n_layer", "n_head", "hidden_size / n_head", "hidden_size", "4 * hidden_size", "vocab_size", "seq_length"]
        }
        ModelFamily::Mpt => {
            ["n_layers", "n_heads", "d_model / n_heads", "d_model", "4 * d_model", "vocab_size", "max_seq_len"]
        }
        ModelFamily::GptNeox
        | ModelFamily::Llama
        | ModelFamily::Qwen3
        | ModelFamily::Smollm3
        | ModelFamily::Inkling
        | ModelFamily::Kerple => [
            "num_hidden_layers",
            "num_attention_heads",
            match family {
                ModelFamily::GptNeox => "hidden_size / num_attention_heads",
                _ => "head_dim",
            },
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            if family == ModelFamily::Kerple { "train_len" } else { "max_position_embeddings" },
        ],
    };
    let ours = ["n_layers", "n_heads", "head_dim", "d_model", "d_hidden", "padded_vocab_size", "train_len"];
    std::array::from_fn(|at| (ours[at], theirs[at]))
}

/// The names of three sizes: the rows of the embedding, its width, and the rows of learned
/// positions.
pub fn outline(family: ModelFamily, file: &Path) -> [&'static str; 3] {
    let [.., width, _, rows, positions] = sizes(family, file.ends_with(CONFIG)).map(|(_, theirs)| theirs);
    [rows, width, positions]
}

/// Our names of what is not a size, and theirs.
const OTHERS: [(&str, &str); 9] = [
    ("model.block.norm_eps", "the eps of the norms"),
    ("model.block.n_kv_heads", "num_key_value_heads"),
    ("model.block.clip_qkv", "attn_config.clip_qkv"),
    ("model.block.attn_scale", "attn_config.softmax_scale"),
    ("encoding.base", "the rotary base (rope_theta or rotary_emb_base)"),
    ("encoding.bias_max", "attn_config.alibi_bias_max"),
    ("encoding.width", "the rotated features per head (partial_rotary_factor or rotary_pct)"),
    ("encoding.num_buckets", "rpe-num-buckets"),
    ("encoding.max_distance", "rpe-max-distance"),
];

/// An error of a plan with the keys of the files it was built from; other errors are unchanged.
pub fn with_file_keys(error: Error, family: ModelFamily, file: &Path) -> Error {
    let Error::Config { place, message, .. } = error else { return error };
    let mut name = match OTHERS.iter().find(|(ours, _)| *ours == place) {
        Some((_, theirs)) => (*theirs).to_owned(),
        None => place,
    };
    for (ours, theirs) in sizes(family, file.ends_with(CONFIG)) {
        for table in ["model.", "train."] {
            name = name.replace(&format!("{table}{ours}"), theirs);
        }
    }
    if let Some(key) = name.strip_prefix("encoding.scaling.") {
        name = format!("{key} of the rotary scaling");
    }
    Error::Config {
        place: file.display().to_string(),
        message: format!("{name}: {message}"),
        hint: "docs/interchange.md lists what can be imported of each family".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plan_refuses_has_the_name_that_the_file_has_for_it() {
        let named = |place: &str, family, file: &str| {
            let error = Error::Config { place: place.to_owned(), message: "0 is".to_owned(), hint: String::new() };
            with_file_keys(error, family, Path::new(file)).to_string()
        };
        let config = "m/config.json";
        assert_eq!(named("model.n_layers", ModelFamily::Gpt2, config), "m/config.json: n_layer: 0 is");
        assert_eq!(
            named("model.n_heads * model.head_dim", ModelFamily::Llama, config),
            "m/config.json: num_attention_heads * head_dim: 0 is"
        );
        assert_eq!(named("train.train_len", ModelFamily::Kerple, "run/configs"), "run/configs: seq-length: 0 is");
        assert_eq!(
            named("model.block.n_kv_heads", ModelFamily::Qwen3, config),
            "m/config.json: num_key_value_heads: 0 is"
        );
        assert_eq!(
            named("encoding.scaling.factor", ModelFamily::Llama, config),
            "m/config.json: factor of the rotary scaling: 0 is"
        );
    }
}
