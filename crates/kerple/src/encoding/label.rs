//! Short names of encodings for tables and folders.

use super::scaling::Scaling;
use super::{Clamp, Compat, Encoding, Method, Scale, Scope};
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
        let mut label = self.method.kind().to_owned();
        let own = self.method.keys();
        let defaults = Method::named(self.method.kind()).map(|method| method.keys()).unwrap_or_default();
        for (key, value) in own.iter().filter(|(key, value)| defaults.get(*key) != Some(value)) {
            label += &match value {
                Value::Bool(true) => format!("-{key}"),
                value => format!("-{key}={}", short(value)),
            };
        }
        for key in defaults.keys().filter(|key| !own.contains_key(*key)) {
            label += &format!("-no_{key}");
        }
        if let Some(window) = self.window {
            label += &format!("-window{window}");
        }
        if let Some(most) = self.randomized {
            label += &format!("-randomized{most}");
        }
        for (differs, word) in [
            (self.scale == Scale::Inside, "-inside"),
            (self.compat == Compat::Bf16, "-bf16"),
            (self.clamp == Clamp::WorkingCopy, "-working_copy"),
            (self.decayed, "-decayed"),
            (!self.has_usual_scope(), if self.scope == Scope::Layer { "-layer" } else { "-shared" }),
        ] {
            label += if differs { word } else { "" };
        }
        label
    }
}

impl Scaling {
    /// Its part of a label: `yarn`, `linear.factor4`.
    pub fn label(&self) -> String {
        short(&serde_json::to_value(self).expect("keys are plain data"))
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
            let others = keys.iter().filter(|(key, _)| *key != "kind");
            let others = others.map(|(key, value)| format!("{key}{}", short(value)));
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
    let hash = fnv1a(text);
    format!("{words}.{:08x}", (hash ^ (hash >> 32)) as u32)
}

/// The 64-bit FNV-1a hash: the same on every machine and in every version.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
