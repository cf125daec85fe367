//! Layers that differ from the others: named kinds of layers, and the layers that each is assigned
//! to.

use crate::error::{Error, Result};
use kerple_burn::plan::AttentionKind;
use kerple_burn::positional_encoding::LayerEncoding;
use kerple_core::encoding::Encoding;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `[model.layers.NAME]`: where layers of this kind stand, and what they have in place of what all layers have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LayerConfig {
    /// Layers, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Vec<usize>>,
    /// The last of every so many layers instead: of 4, layers 3, 7, 11.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<usize>,
    /// How positions enter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Keys that a query sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<AttentionWindow>,
    /// First tokens that stay visible under the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_tokens: Option<usize>,
    /// Kind of attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionKind>,
}

/// A kind of layers with its places resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerKind {
    /// Layers, counted from 0, rising.
    pub at: Vec<usize>,
    /// How positions enter, with learned values of its own; the model's encoding when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Keys that a query sees; those of the encoding when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<AttentionWindow>,
    /// First tokens that stay visible under the window; those of the encoding when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink_tokens: Option<usize>,
    /// Kind of attention; the block's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionKind>,
}

impl LayerKind {
    /// Where it stands and what is other there, as a part of a label.
    pub(crate) fn label(&self) -> String {
        let at: Vec<String> = self.at.iter().map(usize::to_string).collect();
        let window = self.window.map(|window| match window.keys() {
            Some(keys) => format!("window{keys}"),
            None => "no_window".to_owned(),
        });
        let sink_tokens = self.sink_tokens.map(|sink_tokens| format!("sink_tokens{sink_tokens}"));
        let attention = self.attention.as_ref().map(|attention| match attention.linear() {
            Some(linear) => {
                let keys = serde_json::to_string(linear).expect("a plan is plain data");
                format!("linear.{}", &kerple_data::fingerprint(keys.as_bytes())[..8])
            }
            None => "softmax".to_owned(),
        });
        let encoding = self.encoding.as_ref().map(Encoding::label);
        let what: Vec<String> = [encoding, window, sink_tokens, attention].into_iter().flatten().collect();
        format!("-at{}={}", at.join("."), what.join("."))
    }
}

/// `window = 512`, or `window = "all"` where the other layers have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a window is a number of positions, or \"all\"")]
pub enum AttentionWindow {
    /// So many, the query's own position included.
    Last(usize),
    /// All.
    All(AllKeys),
}

/// The word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllKeys {
    /// Every position.
    All,
}

impl AttentionWindow {
    /// As attention takes it.
    pub(crate) fn keys(self) -> Option<usize> {
        match self {
            AttentionWindow::Last(keys) => Some(keys),
            AttentionWindow::All(_) => None,
        }
    }
}

/// The settings of one layer, whatever its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSettings<'a> {
    /// How positions enter.
    pub encoding: &'a Encoding,
    /// Which of [`ModelPlan::other_encodings`](crate::plan::ModelPlan::other_encodings) that is; `None`: the model's.
    pub other: Option<usize>,
    /// Keys that a query sees; `None`: all.
    pub window: Option<usize>,
    /// First tokens that stay visible under the window; `None`: none.
    pub sink_tokens: Option<usize>,
    /// Kind of attention.
    pub attention: &'a AttentionKind,
}

impl LayerSettings<'_> {
    /// The encoding with the window of this layer.
    pub fn windowed(&self) -> Encoding {
        Encoding { window: self.window, sink_tokens: self.sink_tokens, ..self.encoding.clone() }
    }

    /// The view that the encodings of a model have of it.
    pub fn layer_encoding(&self) -> LayerEncoding {
        let demand = self.attention.linear().and_then(|plan| plan.demand());
        LayerEncoding { other: self.other, window: self.window, sink_tokens: self.sink_tokens, demand }
    }
}

fn refuse<T>(name: &str, key: &str, message: String, hint: &str) -> Result<T> {
    let place = format!("model.layers.{name}{key}");
    Err(Error::Config { place, message, hint: hint.to_owned() })
}

/// The kinds of a run file for a model of so many layers.
///
/// # Errors
/// A kind that stands nowhere, or where another stands, or in which nothing is other.
pub fn resolve(kinds: &BTreeMap<String, LayerConfig>, n_layers: usize) -> Result<BTreeMap<String, LayerKind>> {
    let mut taken: Vec<Option<&str>> = vec![None; n_layers];
    let mut resolved = BTreeMap::new();
    for (name, kind) in kinds {
        check_name(name)?;
        let LayerConfig { encoding, window, sink_tokens, attention, .. } = kind.clone();
        if encoding.is_none() && window.is_none() && sink_tokens.is_none() && attention.is_none() {
            let hint = "set encoding, window, sink_tokens or attention, or remove the kind";
            return refuse(name, "", "the layer kind changes nothing".to_owned(), hint);
        }
        if window == Some(AttentionWindow::Last(0)) {
            let hint = "set window = 1 for the token itself, a larger number, or \"all\"";
            return refuse(name, ".window", "a window of 0 attends to nothing, it must be at least 1".to_owned(), hint);
        }
        if sink_tokens == Some(0) {
            let hint = "4 first tokens suffice in StreamingLLM; remove it to keep those of the encoding";
            return refuse(name, ".sink_tokens", "0 first tokens are none, it must be at least 1".to_owned(), hint);
        }
        let at = places(name, kind, n_layers)?;
        for &layer in &at {
            if let Some(other) = taken[layer].replace(name) {
                let message = format!("layer {layer} is already assigned to kind `{other}`");
                return refuse(name, ".at", message, "assign each layer to one kind");
            }
        }
        resolved.insert(name.clone(), LayerKind { at, encoding, window, sink_tokens, attention });
    }
    Ok(resolved)
}

/// Names of kinds stand in front of the names of learned values, as `layer3` does.
fn check_name(name: &str) -> Result<()> {
    let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
    if is_word && !name.strip_prefix("layer").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit())) {
        return Ok(());
    }
    let hint = "use letters, digits and _, but not a name like layer3; assign layers with `at` or `every`";
    refuse(name, "", "invalid name for a layer kind".to_owned(), hint)
}

/// The layers of a kind, rising.
fn places(name: &str, kind: &LayerConfig, n_layers: usize) -> Result<Vec<usize>> {
    match (&kind.at, kind.every) {
        (Some(at), None) => {
            let mut at = at.clone();
            at.sort_unstable();
            at.dedup();
            match at.last() {
                None => refuse(
                    name,
                    ".at",
                    "the layer kind is not assigned to any layer".to_owned(),
                    "list at least one \
                        layer, or remove the kind",
                ),
                Some(&last) if last >= n_layers => {
                    let message = format!(
                        "layer {last} does not exist, the model has {n_layers} \
                        layers, counted from 0"
                    );
                    refuse(name, ".at", message, "list existing layers, or raise model.n_layers")
                }
                Some(_) => Ok(at),
            }
        }
        (None, Some(every)) if (1..=n_layers).contains(&every) => Ok((every - 1..n_layers).step_by(every).collect()),
        (None, Some(every)) => {
            let message = format!("{every} is out of range, it must be between 1 and the {n_layers} layers");
            refuse(name, ".every", message, "every = 4 assigns layers 3, 7, 11")
        }
        (Some(_), Some(_)) | (None, None) => {
            let message = "it needs exactly one of `at` and `every`".to_owned();
            refuse(name, "", message, "set at = [3, 7], or every = 4")
        }
    }
}
