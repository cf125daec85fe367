//! What a request asks for without effect, which the response names under `notes`.

use crate::raw::BodyKeys;
use kerple_lm::generate::SamplingParams;

/// Keys that decide which token comes next where one is drawn, each with the values by which it asks for nothing.
const DRAWING: [(&str, &[&str]); 5] =
    [("temperature", &["1"]), ("top_k", &["0", "-1"]), ("top_p", &["1"]), ("min_p", &["0"]), ("seed", &[])];

/// Further keys of the tokens that are added.
const ADDING: [(&str, &[&str]); 6] = [
    ("frequency_penalty", &["0"]),
    ("presence_penalty", &["0"]),
    ("repetition_penalty", &["1"]),
    ("stop", &["[]", "\"\""]),
    ("stop_token_ids", &["[]"]),
    ("ignore_eos", &["false"]),
];

/// The keys of a request that ask for something, with their values as they were written.
pub(crate) struct AskedKeys {
    drawing: Vec<(&'static str, String)>,
    adding: Vec<(&'static str, String)>,
}

impl AskedKeys {
    pub(crate) fn of(keys: &BodyKeys) -> AskedKeys {
        let asked = |known: &[(&'static str, &[&str])]| {
            known.iter().filter_map(|(name, nothing)| Some((*name, keys.asked(name, nothing)?))).collect()
        };
        AskedKeys { drawing: asked(&DRAWING), adding: asked(&ADDING) }
    }
}

/// What else has no effect.
pub(crate) struct Unused {
    /// `ignore_eos`, since `stop_token_ids` has all tokens that it is for.
    pub(crate) ignore_eos: bool,
    /// `return_tokens_as_token_ids`, since no tokens are returned.
    pub(crate) token_ids: bool,
    /// An empty string in `stop`.
    pub(crate) empty_stop: bool,
    /// Names and ids of special tokens in `stop`, which looks at text.
    pub(crate) special_stops: Vec<(String, u32)>,
}

/// Notes on keys without effect, where so many tokens are drawn in this way.
pub(crate) fn without_effect(asked: &AskedKeys, count: usize, draw: &SamplingParams, unused: Unused) -> Vec<String> {
    let mut notes = Vec::new();
    if count == 0 {
        notes.extend(note("with `max_tokens` 0", asked.drawing.iter().chain(&asked.adding)));
    } else {
        let likeliest =
            [("temperature", draw.temperature == 0.0), ("top_k", draw.top_k == 1), ("top_p", draw.top_p == 0.0)];
        if let Some((name, _)) = likeliest.into_iter().find(|(_, is_likeliest)| *is_likeliest) {
            let others = asked.drawing.iter().filter(|(other, _)| *other != name);
            let value = if name == "top_k" { 1 } else { 0 };
            notes.extend(note(&format!("with `{name}` {value}"), others));
        }
        if unused.ignore_eos {
            let ignored = asked.adding.iter().filter(|(name, _)| *name == "ignore_eos");
            notes.extend(note("with these `stop_token_ids`", ignored));
        }
    }
    if unused.token_ids {
        notes.push("no effect without `logprobs`: `return_tokens_as_token_ids` true".to_owned());
    }
    if unused.empty_stop {
        notes.push("no effect: an empty string in `stop`".to_owned());
    }
    for (name, id) in unused.special_stops {
        notes.push(format!(
            "`stop` {name:?}: the special token of this name has no text; `stop_token_ids` [{id}] ends there"
        ));
    }
    notes
}

fn note<'a>(why: &str, keys: impl Iterator<Item = &'a (&'static str, String)>) -> Option<String> {
    let keys: Vec<String> = keys.map(|(name, value)| format!("`{name}` {value}")).collect();
    (!keys.is_empty()).then(|| format!("no effect {why}: {}", keys.join(", ")))
}
