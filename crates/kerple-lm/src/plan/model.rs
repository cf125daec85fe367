//! The model of a plan: sizes, blocks, tied embeddings, gated linear unit, and the settings of each
//! layer.

use super::OutputHead;
use crate::config::Pooling;
use crate::layers::{AttentionWindow, LayerKind, LayerSettings};
use kerple_burn::plan::{AttentionKind, BlockConfig, ResidualKind};
use kerple_core::encoding::{Encoding, Geometry, Injection};
use kerple_data::tasks::TaskConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Characters of a label that say how layers differ.
const LONGEST_LABEL: usize = 80;

/// Sizes of a decoder, multiplied out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// Layers.
    pub n_layers: usize,
    /// Attention heads, H.
    pub n_heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Model width, M; H * D unless the run file sets it.
    pub d_model: usize,
    /// Inner width of the feed-forward layers.
    pub d_hidden: usize,
    /// Rows of the embedding, V: the tokenizer's vocabulary, padded.
    pub vocab_size: usize,
    /// Rows of the output projection, where they are fewer: tokens beyond are read and never predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpadded_vocab_size: Option<usize>,
    /// What a classifier's answer is read off; not written down where it is the default.
    #[serde(default, skip_serializing_if = "Pooling::is_default")]
    pub pooling: Pooling,
    /// The settings of a block; omitted where they are the default.
    #[serde(default, skip_serializing_if = "BlockConfig::is_default")]
    pub block: BlockConfig,
    /// Kinds of layers that differ from the others, by their names; not written down where all are alike.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, LayerKind>,
}

impl ModelPlan {
    /// Sizes an encoding needs, for training sequences of this many tokens.
    pub(super) fn geometry(&self, train_len: usize) -> Geometry {
        let kv_heads = self.shared_heads().kv_heads;
        Geometry { kv_heads, d_model: self.d_model, ..Geometry::new(self.n_heads, self.head_dim, train_len) }
    }

    /// Logits of a token: rows of the output projection.
    pub fn n_logits(&self) -> usize {
        self.unpadded_vocab_size.unwrap_or(self.vocab_size)
    }

    /// Widths of the input of a class and of the hidden layers after it.
    pub fn read_widths(&self) -> Vec<usize> {
        match self.pooling {
            Pooling::Mean => vec![self.d_model],
            Pooling::Cls => vec![self.d_model, self.d_hidden],
            Pooling::TwoTower => vec![2 * self.d_model, self.d_hidden, (self.d_hidden / 2).max(1)],
        }
    }

    /// Trained values without those of the encoding, of the model that a text or this task is learned with.
    pub fn parameters(&self, task: Option<&TaskConfig>) -> usize {
        let matrices = self.vocab_size * self.d_model + OutputHead::of(task).parameters(self);
        let norms = if self.block.embedding_norm { 2 } else { 1 } * self.block.norm.vectors() * self.d_model;
        let absent = match self.block.residual {
            ResidualKind::PostLn => self.block.norm.vectors() * self.d_model,
            ResidualKind::Sequential | ResidualKind::Parallel | ResidualKind::NormResidual => 0,
        };
        let blocks = (0..self.n_layers).map(|layer| self.layer_sizes(layer).parameters(&self.block_of(layer)));
        blocks.fold(matrices, usize::saturating_add).saturating_add(norms) - absent
    }

    /// Trained values of all encodings of a model with this one.
    pub(super) fn encoding_parameters(&self, encoding: &Encoding, geometry: &Geometry) -> usize {
        let others = self.other_encodings();
        let layers = |other| self.every_layer(encoding).filter(|layer| layer.other == other).count();
        let own = others.iter().enumerate().map(|(index, (name, other))| {
            let geometry = self.kind_geometry(name, geometry);
            other.parameter_count(&geometry, layers(Some(index)))
        });
        own.fold(encoding.parameter_count(geometry, layers(None)), usize::saturating_add)
    }

    /// The kind of a layer, where it differs from the others.
    pub(crate) fn kind(&self, layer: usize) -> Option<(&String, &LayerKind)> {
        self.layers.iter().find(|(_, kind)| kind.at.contains(&layer))
    }

    /// What a layer has, in a model with this encoding.
    pub fn layer<'a>(&'a self, encoding: &'a Encoding, layer: usize) -> LayerSettings<'a> {
        let Encoding { window, sink_tokens, .. } = *encoding;
        let (heads, attn_scale) = (self.heads(layer), self.block.attn_scale);
        let attention = &self.block.attention;
        let shared = LayerSettings { encoding, other: None, window, sink_tokens, attention, heads, attn_scale };
        let Some((name, kind)) = self.kind(layer) else { return shared };
        let own = kind.encoding.as_ref();
        let Encoding { window, sink_tokens, .. } = *own.unwrap_or(encoding);
        let window = kind.window.map_or(window, AttentionWindow::keys);
        // first tokens of the encoding stay visible where the layer has a window too
        let inherited = sink_tokens.filter(|_| window.is_some());
        let named = self.layers.iter().filter(|(_, kind)| kind.encoding.is_some()).position(|(other, _)| other == name);
        LayerSettings {
            encoding: own.unwrap_or(encoding),
            other: named,
            window,
            sink_tokens: kind.sink_tokens.or(inherited),
            attention: kind.attention.as_ref().unwrap_or(shared.attention),
            attn_scale: kind.attn_scale.or(attn_scale),
            ..shared
        }
    }

    /// What every layer has.
    pub fn every_layer<'a>(&'a self, encoding: &'a Encoding) -> impl Iterator<Item = LayerSettings<'a>> {
        (0..self.n_layers).map(move |layer| self.layer(encoding, layer))
    }

    /// What of its attention has no kernel on GPUs and runs there as plain operations, in the model that a text or this task is
    /// learned with; `main` stands where layers name no other. What is linear holds all pairs at once, the rest works some queries
    /// off after others.
    pub fn without_gpu_kernel(&self, main: &Encoding, task: Option<&TaskConfig>) -> Vec<String> {
        let of_encoding = |encoding: &Encoding| match encoding.entry() {
            Injection::ScoreMod { .. } if encoding.is_fire() => None,
            Injection::ScoreMod { .. } => Some(format!("the score map of {}", encoding.label())),
            Injection::FeatureGates { .. } => Some(format!("the gates of features of {}", encoding.label())),
            Injection::ContentRotation { decays: true, .. } => {
                Some(format!("the decaying pairs of {}", encoding.label()))
            }
            Injection::QueryKeyMap { widens: true } => {
                Some(format!("the wide queries and keys of {}", encoding.label()))
            }
            Injection::RelativeBias => Some(format!("the relative bias of {}", encoding.label())),
            Injection::PathBias => Some(format!("the bias over paths of {}", encoding.label())),
            Injection::Householder { .. } => Some(format!("the Householder products of {}", encoding.label())),
            Injection::Gates { .. } => Some(format!("the gates of {}", encoding.label())),
            Injection::Rotation { decays: true } => Some(format!("the decaying products of {}", encoding.label())),
            Injection::Nowhere
            | Injection::Embeddings
            | Injection::Rotation { .. }
            | Injection::ContentRotation { .. }
            | Injection::QueryKeyMap { widens: false }
            | Injection::Scores(_)
            | Injection::Code => None,
        };
        let mut found: Vec<String> = Vec::new();
        for layer in self.every_layer(main) {
            found.extend(layer.sink_tokens.map(|_| format!("the first tokens of {}", layer.windowed().label())));
            let normalizer = self.block.normalizer;
            found.extend((!normalizer.is_softmax()).then(|| format!("the normalizer {}", normalizer.kind())));
            found.extend(self.block.selective_attention.map(|_| "selective attention".to_owned()));
            found.extend(match layer.attention.linear() {
                None if matches!(layer.encoding.entry(), Injection::Gates { kernel: false })
                    && !OutputHead::of(task).is_bidirectional() =>
                {
                    None
                }
                None => of_encoding(layer.encoding),
                Some(_) if matches!(layer.encoding.entry(), Injection::Gates { .. }) => None,
                Some(_) => of_encoding(layer.encoding).map(|what| format!("linear attention with {what}")),
            });
        }
        found.sort();
        found.dedup();
        found
    }

    /// The encodings of kinds that have their own, by the names of the kinds.
    pub fn other_encodings(&self) -> Vec<(String, Encoding)> {
        let own = |(name, kind): (&String, &LayerKind)| Some((name.clone(), kind.encoding.clone()?));
        self.layers.iter().filter_map(own).collect()
    }

    /// Whether every layer keeps a state of fixed size.
    pub fn is_linear(&self) -> bool {
        let linear = |kind: Option<&AttentionKind>| kind.unwrap_or(&self.block.attention).linear().is_some();
        (0..self.n_layers).all(|layer| linear(self.kind(layer).and_then(|(_, kind)| kind.attention.as_ref())))
    }

    /// Short name of the encodings of all layers: that of the model's, and of each kind where it stands and what is other
    /// there. Different layers have different labels; long ones are told apart by 32 bits of a hash.
    pub fn label(&self, encoding: &Encoding) -> String {
        let kinds: String = self.layers.values().map(LayerKind::label).collect();
        if kinds.len() <= LONGEST_LABEL {
            return encoding.label() + &kinds;
        }
        format!("{}-layers.{}", encoding.label(), &kerple_data::fingerprint(kinds.as_bytes())[..8])
    }
}
