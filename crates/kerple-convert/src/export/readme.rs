//! The `README.md` of an exported folder.

use super::FamilyConfig;
use super::tokens::ExportTokens;
use crate::ModelFamily;
use kerple_lm::plan::Plan;
use std::fmt::Write;

/// How to load the model, what it is, and what it does not do.
pub(super) fn text(chosen: &FamilyConfig, plan: &Plan, tokens: &ExportTokens) -> String {
    let own = chosen.family == ModelFamily::Kerple;
    let trust = if own { ", trust_remote_code=True" } else { "" };
    let mut text = format!(
        "---\nlibrary_name: transformers\ntags:\n- kerple\n---\n# {label}\n\n\
         A decoder of {parameters} parameters, trained by kerple on sequences of {train_len} tokens.\n\n\
         ```python\nfrom transformers import AutoModelForCausalLM\n\n\
         model = AutoModelForCausalLM.from_pretrained(\"FOLDER\"{trust})\n```\n",
        label = plan.label,
        parameters = plan.parameters,
        train_len = plan.train_len,
    );
    if tokens.has_tokenizer() {
        // transformers reads config.json first, and asks about the code that it names, which the tokenizer does not need
        let refuse = if own { ", trust_remote_code=False" } else { "" };
        let begin = match tokens.names_bos() {
            Some(bos) => format!("Documents begin after `{bos}`."),
            None => "Documents begin after the token that ends them.".to_owned(),
        };
        _ = write!(text, "\n`AutoTokenizer.from_pretrained(\"FOLDER\"{refuse})` is its tokenizer. {begin}\n");
    }
    // rows that the architecture stores or computes, however many tokens the encoding is defined for
    let rows = |key: &str| chosen.config.get(key).and_then(serde_json::Value::as_u64).map(|rows| rows as usize);
    let (length_key, rows) = match chosen.family {
        ModelFamily::Mpt => ("max_seq_len", rows("max_seq_len")),
        ModelFamily::Gpt2 => ("n_positions", rows("n_positions")),
        _ => ("max_position_embeddings", None),
    };
    let longest = rows.or(plan.longest(&plan.encoding));
    let defined = match longest {
        Some(longest) => format!("It is defined for {longest} tokens."),
        None => "It is defined for sequences of any length.".to_owned(),
    };
    let stated = match (chosen.family, rows) {
        (ModelFamily::Mpt, _) => {
            format!(
                "These are `{length_key}`, the training length: longer inputs fail until it is raised, which changes no other result"
            )
        }
        (_, Some(_)) => format!("These are `{length_key}`"),
        _ => format!("`{length_key}` is the training length"),
    };
    _ = write!(
        text,
        "\n{defined} {stated}; lm-evaluation-harness uses it as the longest input unless `max_length` is set:\n\n```sh\n\
         lm_eval --model hf --model_args pretrained=FOLDER{lm},max_length={long} --tasks TASK\n```\n",
        lm = if own { ",trust_remote_code=True" } else { "" },
        long = longest.map_or(8 * plan.train_len, |longest| longest.min(8 * plan.train_len)),
    );
    if own {
        text += "\nThe code next to this file needs only torch. It computes the tables of the \
                 encoding in float64 from float32 parameters, which stay float32 when the model is \
                 loaded in another type. Memory grows with the length, not with its square: queries \
                 are computed in blocks, and on CUDA FlexAttention takes tables over distances. \
                 Static caches are not supported.\n";
    }
    text
}
