//! The `README.md` of an exported folder.

use super::tokens::ExportTokens;
use crate::ModelFamily;
use kerple_lm::plan::Plan;
use std::fmt::Write;

/// How to load the model, what it is, and what it does not do.
pub(super) fn text(family: ModelFamily, plan: &Plan, tokens: &ExportTokens) -> String {
    let own = family == ModelFamily::Kerple;
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
    let longest = match plan.longest(&plan.encoding) {
        Some(longest) => format!("It is defined for {longest} tokens."),
        None => "It is defined for sequences of any length.".to_owned(),
    };
    _ = write!(
        text,
        "\n{longest} `max_position_embeddings` is the training length; lm-evaluation-harness uses \
         it as the longest input unless `max_length` is set:\n\n```sh\nlm_eval --model hf \
         --model_args pretrained=FOLDER{lm},max_length={long} --tasks TASK\n```\n",
        lm = if own { ",trust_remote_code=True" } else { "" },
        long = plan.longest(&plan.encoding).map_or(8 * plan.train_len, |longest| longest.min(8 * plan.train_len)),
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
