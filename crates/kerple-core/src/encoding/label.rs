//! Short names of encodings for tables and folders.

use super::scaling::RopeScaling;
use super::{BiasScale, Clamp, Emulate, Encoding, Method, ParameterShare};
use serde_json::Value;

/// Longest readable part of a text in a label, in characters.
const MOST: usize = 32;

impl Encoding {
    /// Short name for tables and folders: the kind, and what differs from the defaults.
    ///
    /// Letters, digits and `._=-` only. Equal encodings have equal labels; different ones have
    /// different labels. (Texts with other characters, such as kernel expressions, are
    /// distinguished by 32 bits of a hash.)
    pub fn label(&self) -> String {
        let kind = self.method.kind();
        let mut label = kind.to_owned();
        let own = self.method.keys();
        let defaults = Method::named(kind).map(|method| method.keys()).unwrap_or_default();
        for (word, value) in by_word(kind, own.iter().filter(|(key, value)| defaults.get(*key) != Some(value))) {
            label += &match value {
                Value::Bool(true) => format!("-{word}"),
                // numbers of every head are too many for a name
                Value::Array(_) if word == "start" => format!("-start.{}", hash(&value.to_string())),
                value => format!("-{word}={}", short(value)),
            };
        }
        for (word, _) in by_word(kind, defaults.iter().filter(|(key, _)| !own.contains_key(*key))) {
            label += &format!("-no_{word}");
        }
        if let Some(window) = self.window {
            label += &format!("-window{window}");
        }
        if let Some(sink_tokens) = self.sink_tokens {
            label += &format!("-sink_tokens{sink_tokens}");
        }
        if let Some(reach) = self.reach {
            label += &format!("-reach{reach}");
        }
        if let Some(cap) = self.distance_cap {
            label += &format!("-distance_cap{cap}");
        }
        if let Some(most) = self.randomized {
            label += &format!("-randomized{most}");
        }
        for (differs, word) in [
            (self.scale == BiasScale::Inside, "-inside"),
            (self.emulate == Emulate::Bf16, "-bf16"),
            (self.clamp == Clamp::ForwardOnly, "-working_copy"),
            (self.decayed, "-decayed"),
            (!self.has_usual_share(), if self.share == ParameterShare::Layer { "-layer" } else { "-shared" }),
        ] {
            label += if differs { word } else { "" };
        }
        label
    }
}

impl RopeScaling {
    /// Its part of a label: `yarn`, `linear.factor4`.
    pub fn label(&self) -> String {
        short(&serde_json::to_value(self).expect("keys are plain data"))
    }
}

/// Keys of a kind by the words that labels have for them, in the order of these.
fn by_word<'a>(kind: &str, keys: impl Iterator<Item = (&'a String, &'a Value)>) -> Vec<(&'a str, &'a Value)> {
    let mut words: Vec<(&str, &Value)> = keys.map(|(key, value)| (word(kind, key), value)).collect();
    words.sort_by_key(|(word, _)| *word);
    words
}

/// The word that labels have for a key. Folders and rows of results are known by their labels, so these keep their words when keys
/// get others.
fn word<'a>(kind: &str, key: &'a str) -> &'a str {
    match (kind, key) {
        ("fire", "hidden") => "width",
        ("fire", "init_l") => "threshold",
        ("cope", "npos_max") => "positions",
        ("sine_spe", "num_sines") => "waves",
        ("sine_spe" | "conv_spe", "num_realizations") => "realisations",
        ("conv_spe", "kernel_size") => "taps",
        _ => key,
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => {
            let text = number.to_string();
            text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
        }
        Value::String(text) => readable(text),
        Value::Array(list) => list.iter().map(short).collect::<Vec<_>>().join(".."),
        Value::Object(keys) => {
            let kind = keys.get("kind").map(short);
            let others = by_word(kind.as_deref().unwrap_or_default(), keys.iter().filter(|(key, _)| *key != "kind"));
            let others = others.into_iter().map(|(word, value)| format!("{word}{}", short(value)));
            kind.into_iter().chain(others).collect::<Vec<_>>().join(".")
        }
    }
}

/// A text without characters that file names do not take; one that had some, or is long, is followed by its hash.
fn readable(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
    if text.len() <= MOST && text.chars().all(safe) {
        return text.to_owned();
    }
    let words: Vec<&str> = text.split(|c| !safe(c)).filter(|word| !word.is_empty()).collect();
    let words: String = words.join("_").chars().take(MOST).collect();
    format!("{words}.{}", hash(text))
}

/// 32 bits of a hash, in hexadecimal digits.
fn hash(text: &str) -> String {
    let hash = fnv1a(text);
    format!("{:08x}", (hash ^ (hash >> 32)) as u32)
}

/// The 64-bit FNV-1a hash: the same on every machine and in every version.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
