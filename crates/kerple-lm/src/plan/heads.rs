//! Heads of each layer: those of the model, or those of a kind of layers that has its own.

use super::{ModelPlan, WIDEST};
use crate::error::{Error, Result};
use crate::layers::LayerKind;
use kerple_burn::heads::Heads;
use kerple_burn::plan::{BlockConfig, BlockSizes};
use kerple_core::encoding::{Encoding, Geometry, Injection};

impl ModelPlan {
    /// The heads of layers without their own.
    pub fn shared_heads(&self) -> Heads {
        self.heads_of(None)
    }

    /// The heads of a layer.
    pub fn heads(&self, layer: usize) -> Heads {
        self.heads_of(self.kind(layer).map(|(_, kind)| kind))
    }

    fn heads_of(&self, kind: Option<&LayerKind>) -> Heads {
        let own = |of: fn(&LayerKind) -> Option<usize>| kind.and_then(of);
        let heads = own(|kind| kind.n_heads).unwrap_or(self.n_heads);
        let kv_heads = own(|kind| kind.n_kv_heads).or(self.block.n_kv_heads).unwrap_or(heads);
        Heads::square(heads, kv_heads, own(|kind| kind.head_dim).unwrap_or(self.head_dim))
    }

    /// Sizes of the block of a layer.
    pub fn layer_sizes(&self, layer: usize) -> BlockSizes {
        let Heads { heads, head_dim, .. } = self.heads(layer);
        BlockSizes { d_model: self.d_model, n_heads: heads, head_dim, d_hidden: self.d_hidden }
    }

    /// The block of a layer.
    pub fn block_of(&self, layer: usize) -> BlockConfig {
        let shared = self.block.clone();
        let Some((_, kind)) = self.kind(layer) else { return shared };
        BlockConfig {
            attention: kind.attention.clone().unwrap_or(shared.attention),
            n_kv_heads: kind.n_kv_heads.or(shared.n_kv_heads),
            attn_scale: kind.attn_scale.or(shared.attn_scale),
            ..shared
        }
    }

    /// Sizes that the encoding of the kind of layers with this name needs, where `geometry` are those of the model's.
    ///
    /// # Panics
    /// When there is no such kind.
    pub fn kind_geometry(&self, name: &str, geometry: &Geometry) -> Geometry {
        let Heads { heads, kv_heads, head_dim, .. } = self.heads_of(Some(&self.layers[name]));
        Geometry { heads, kv_heads, head_dim, ..*geometry }
    }

    /// The first key of a kind of layers that gives them heads or a scale of their own, as a run file has it.
    pub fn own_heads_key(&self) -> Option<String> {
        self.layers.iter().find_map(|(name, kind)| Some(format!("model.layers.{name}.{}", kind.own_heads_key()?)))
    }
}

/// Refuses heads of the model, or of a kind of layers, that do not fit each other or an encoding that these layers share with
/// others.
pub(super) fn check_heads(encoding: &Encoding, model: &ModelPlan) -> Result<()> {
    let refuse =
        |place: String, message: String, hint: &str| Err(Error::Config { place, message, hint: hint.to_owned() });
    let Heads { heads, kv_heads, .. } = model.shared_heads();
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let message = format!("{kv_heads} does not divide model.n_heads = {heads}");
        return refuse("model.block.n_kv_heads".to_owned(), message, "choose a divisor of model.n_heads");
    }
    for (name, kind) in &model.layers {
        let place = |key: &str| format!("model.layers.{name}.{key}");
        let Heads { heads, kv_heads, head_dim, .. } = model.heads_of(Some(kind));
        let hint = "remove it to use the model's value";
        for (key, own) in [("n_heads", kind.n_heads), ("n_kv_heads", kind.n_kv_heads), ("head_dim", kind.head_dim)] {
            super::check::check(&place(key), own.unwrap_or(1) as f64, 1.0..=WIDEST, hint)?;
        }
        let width = (heads * head_dim) as f64;
        super::check::check(&format!("n_heads * head_dim of model.layers.{name}"), width, 1.0..=WIDEST, hint)?;
        if !heads.is_multiple_of(kv_heads) {
            let (key, message) = match kind.n_kv_heads {
                Some(_) => {
                    ("n_kv_heads", format!("{kv_heads} does not divide the {heads} query heads of these layers"))
                }
                None => ("n_heads", format!("{heads} is not a multiple of model.block.n_kv_heads = {kv_heads}")),
            };
            return refuse(place(key), message, "set n_kv_heads of this kind to a divisor of its query heads");
        }
        let finite = -f64::MAX..=f64::MAX;
        super::check::check(&place("attn_scale"), kind.attn_scale.unwrap_or(1.0), finite, hint)?;
        if let (Some(own), Some(scale), None) = (kind.head_dim, model.block.attn_scale, kind.attn_scale)
            && own != model.head_dim
        {
            let message = format!(
                "model.block.attn_scale = {scale} was chosen for model.head_dim = {}, these layers have {own}",
                model.head_dim
            );
            return refuse(place("head_dim"), message, "set attn_scale of this kind too");
        }
        let differs = (heads, head_dim) != (model.n_heads, model.head_dim);
        let by_head = !matches!(encoding.entry(), Injection::Nowhere | Injection::Embeddings);
        if differs && by_head && kind.encoding.is_none() {
            let key = if heads == model.n_heads { "head_dim" } else { "n_heads" };
            let message = format!(
                "the model's encoding {} serves heads of one size, {} of {} features",
                encoding.label(),
                model.n_heads,
                model.head_dim
            );
            return refuse(place(key), message, "give this kind an encoding of its own");
        }
        let of_model = model.shared_heads().kv_heads;
        let by_key_head = matches!(encoding.entry(), Injection::Householder { .. });
        if kv_heads != of_model && by_key_head && kind.encoding.is_none() {
            let message =
                format!("the model's encoding {} serves {of_model} key heads in every layer", encoding.label());
            return refuse(place("n_kv_heads"), message, "give this kind an encoding of its own");
        }
    }
    Ok(())
}
