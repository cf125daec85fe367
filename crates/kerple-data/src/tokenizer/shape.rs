//! The properties of a `tokenizer.json` that decide where texts may be cut and what is lost.

use serde::Deserialize;
use serde_json::Value;

/// The parts of a definition that matter here; vocabularies are passed over.
#[derive(Deserialize)]
pub(super) struct TokenizerDefinition {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    model: DefinitionModel,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Default, Deserialize)]
struct DefinitionModel {
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<u32>,
}

/// How GPT-4, Llama 3 and their heirs split words, with up to three digits or one together.
const DIGITS: [&str; 2] = [r"\p{N}{1,3}", r"\p{N}"];

/// The expressions in use before and after the digits.
const SPLITS: [(&str, &str); 2] = [
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|", r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    (
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        ),
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// The expressions known to split at every [`gap`](super::pieces::gap).
pub(super) fn known_splits() -> impl Iterator<Item = String> {
    SPLITS.iter().flat_map(|(words, rest)| DIGITS.iter().map(move |digits| format!("{words}{digits}{rest}")))
}

impl TokenizerDefinition {
    pub(super) fn of(definition: &str) -> serde_json::Result<TokenizerDefinition> {
        serde_json::from_str(definition)
    }

    /// What the definition does to texts and preparing them leaves out; `end` is the token that ends a document.
    pub(super) fn left_out(&self, end: &str) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(most) = self.truncation["max_length"].as_u64() {
            notes.push(format!("the tokenizer's truncation to {most} tokens is ignored: documents stay whole"));
        }
        if !self.padding.is_null() {
            notes.push("the tokenizer's padding is ignored: documents are not padded".to_owned());
        }
        let added = steps(&self.post_processor, "processors").into_iter().flat_map(tokens_added);
        let added: Vec<String> = added.filter(|token| *token != end).map(|token| format!("`{token}`")).collect();
        if !added.is_empty() {
            let added = added.join(" ");
            notes
                .push(format!("the tokenizer's post_processor adds {added} to a text; documents are prepared without"));
        }
        notes
    }

    /// The share of merges that the model is told to leave out at random.
    pub(super) fn dropout(&self) -> Option<f64> {
        self.model.dropout.filter(|dropout| *dropout > 0.0)
    }

    /// The token for what the vocabulary does not have.
    pub(super) fn unknown(&self, id: impl Fn(&str) -> Option<u32>) -> Option<u32> {
        self.model.unk_id.or_else(|| id(self.model.unk_token.as_deref()?))
    }

    /// Whether no token reaches across a [`gap`](super::pieces::gap), so that texts may be cut there.
    ///
    /// True only of what is known: pre-tokenizers of GPT-2, GPT-4 and their heirs, Unicode normalisation (which does not
    /// look across a letter and a space), and added tokens that do not look beyond themselves.
    pub(super) fn splits_at_gaps(&self) -> bool {
        let words = match steps(&self.pre_tokenizer, "pretokenizers").as_slice() {
            [bytes] => is_byte_level(bytes) && bytes["use_regex"] != Value::Bool(false),
            [split, bytes] => is_known_split(split) && is_byte_level(bytes),
            _ => false,
        };
        let forms = ["NFC", "NFD", "NFKC", "NFKD"];
        let plain = |step: &&Value| forms.iter().any(|form| step["type"] == *form);
        let normalizer = steps(&self.normalizer, "normalizers");
        let added = |token: &AddedToken| {
            // normalisation may make a space of what is none in the name, such as U+00A0
            let becomes_other = token.normalized && !token.content.is_ascii() && !normalizer.is_empty();
            let looks_beyond = token.single_word || token.lstrip || token.rstrip;
            // names of special tokens are text here
            token.special || !(looks_beyond || becomes_other || reaches_across(&token.content))
        };
        words && normalizer.iter().all(plain) && self.added_tokens.iter().all(added)
    }
}

/// Whether a token holds both sides of what could be a gap.
fn reaches_across(token: &str) -> bool {
    token.as_bytes().windows(2).any(|pair| match pair {
        [b'\n', next] => !(next.is_ascii_whitespace() || *next == b'/'),
        [letter, b' '] => letter.is_ascii_alphabetic(),
        _ => false,
    })
}

/// One step, the steps of a sequence, or none.
fn steps<'v>(part: &'v Value, name: &str) -> Vec<&'v Value> {
    match part {
        Value::Null => Vec::new(),
        part if part["type"] == "Sequence" => part[name].as_array().into_iter().flatten().collect(),
        part => vec![part],
    }
}

/// Names of the tokens that a step adds to a single text.
fn tokens_added(step: &Value) -> Vec<&str> {
    match step["type"].as_str() {
        Some("TemplateProcessing") => {
            let single = step["single"].as_array().into_iter().flatten();
            single.filter_map(|piece| piece["SpecialToken"]["id"].as_str()).collect()
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            [&step["cls"][0], &step["sep"][0]].into_iter().filter_map(Value::as_str).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a step writes bytes as letters and adds nothing.
fn is_byte_level(step: &Value) -> bool {
    step["type"] == "ByteLevel" && step["add_prefix_space"] == Value::Bool(false)
}

/// Whether a step keeps everything and splits it as known.
fn is_known_split(step: &Value) -> bool {
    let kept = match step["behavior"].as_str() {
        Some("Isolated") => step["invert"] == Value::Bool(false),
        Some("Removed") => step["invert"] == Value::Bool(true),
        _ => false,
    };
    let pattern = step["pattern"]["Regex"].as_str().unwrap_or_default();
    step["type"] == "Split" && kept && known_splits().any(|known| known == pattern)
}

/// The definition of the same tokenizer without chance.
pub(super) fn without_dropout(definition: &str) -> String {
    let mut value: Value = serde_json::from_str(definition).unwrap_or_default();
    if let Some(dropout) = value.pointer_mut("/model/dropout") {
        *dropout = Value::Null;
    }
    value.to_string()
}
