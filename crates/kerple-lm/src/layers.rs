//! Layers that differ from the others: named kinds of layers, and the layers that each is assigned
//! to.

use crate::error::{Error, Result};
use kerple_burn::heads::Heads;
use kerple_burn::plan::AttentionKind;
use kerple_burn::positional_encoding::LayerEncoding;
use kerple_core::encoding::{Encoding, Geometry};
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
    /// Query heads; `model.n_heads` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_heads: Option<usize>,
    /// Key and value heads, a divisor of the query heads; `model.block.n_kv_heads` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_kv_heads: Option<usize>,
    /// Features per head; `model.head_dim` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Factor on `q.k`; `model.block.attn_scale` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attn_scale: Option<f64>,
}

/// A kind of layers with its places resolved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Query heads; the model's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_heads: Option<usize>,
    /// Key and value heads; the block's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_kv_heads: Option<usize>,
    /// Features per head; the model's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Factor on `q.k`; the block's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attn_scale: Option<f64>,
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
        let size = |name: &str, own: Option<usize>| own.map(|own| format!("{name}{own}"));
        let heads = [size("heads", self.n_heads), size("kv_heads", self.n_kv_heads), size("head_dim", self.head_dim)];
        let scale = self.attn_scale.map(|scale| format!("attn_scale{scale}"));
        let what = [encoding, window, sink_tokens, attention].into_iter().chain(heads).chain([scale]);
        format!("-at{}={}", at.join("."), what.flatten().collect::<Vec<String>>().join("."))
    }

    /// The kind as a run file has it.
    pub(crate) fn config(&self) -> LayerConfig {
        let LayerKind { at, encoding, window, sink_tokens, attention, .. } = self.clone();
        let LayerKind { n_heads, n_kv_heads, head_dim, attn_scale, .. } = *self;
        let (at, every) = (Some(at), None);
        LayerConfig { at, every, encoding, window, sink_tokens, attention, n_heads, n_kv_heads, head_dim, attn_scale }
    }

    /// The first key of those that give its layers heads or a scale of their own.
    pub(crate) fn own_heads_key(&self) -> Option<&'static str> {
        let LayerKind { n_heads, n_kv_heads, head_dim, attn_scale, .. } = self;
        let keys = [("n_heads", n_heads.is_some()), ("n_kv_heads", n_kv_heads.is_some())];
        let keys = keys.into_iter().chain([("head_dim", head_dim.is_some()), ("attn_scale", attn_scale.is_some())]);
        keys.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
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
    /// Query heads, key and value heads, and their features.
    pub heads: Heads,
    /// Factor on `q.k`, where it is not `1 / sqrt(D)`.
    pub attn_scale: Option<f64>,
}

impl LayerSettings<'_> {
    /// The encoding with the window of this layer.
    pub fn windowed(&self) -> Encoding {
        Encoding { window: self.window, sink_tokens: self.sink_tokens, ..self.encoding.clone() }
    }

    /// Sizes that its encoding needs, where `geometry` are those of the model.
    pub fn geometry(&self, geometry: &Geometry) -> Geometry {
        let Heads { heads, kv_heads, head_dim, .. } = self.heads;
        Geometry { heads, kv_heads, head_dim, ..*geometry }
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
        let LayerConfig { at: _, every: _, encoding, window, sink_tokens, attention, .. } = kind.clone();
        let LayerConfig { n_heads, n_kv_heads, head_dim, attn_scale, .. } = *kind;
        let at = places(name, kind, n_layers)?;
        let kind =
            LayerKind { at, encoding, window, sink_tokens, attention, n_heads, n_kv_heads, head_dim, attn_scale };
        if kind == (LayerKind { at: kind.at.clone(), ..LayerKind::default() }) {
            let hint = "set encoding, window, sink_tokens, attention, n_heads, n_kv_heads, head_dim or attn_scale, or \
                remove the kind";
            return refuse(name, "", "the layer kind changes nothing".to_owned(), hint);
        }
        if kind.window == Some(AttentionWindow::Last(0)) {
            let hint = "set window = 1 for the token itself, a larger number, or \"all\"";
            return refuse(name, ".window", "a window of 0 attends to nothing, it must be at least 1".to_owned(), hint);
        }
        if kind.sink_tokens == Some(0) {
            let hint = "4 first tokens suffice in StreamingLLM; remove it to keep those of the encoding";
            return refuse(name, ".sink_tokens", "0 first tokens are none, it must be at least 1".to_owned(), hint);
        }
        for &layer in &kind.at {
            if let Some(other) = taken[layer].replace(name) {
                let message = format!("layer {layer} is already assigned to kind `{other}`");
                return refuse(name, ".at", message, "assign each layer to one kind");
            }
        }
        resolved.insert(name.clone(), kind);
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
            if let Some(twice) = at.windows(2).find(|pair| pair[0] == pair[1]) {
                let message = format!("layer {} is listed twice", twice[0]);
                return refuse(name, ".at", message, "list each layer once");
            }
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
