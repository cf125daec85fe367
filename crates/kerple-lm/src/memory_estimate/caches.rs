//! The memory of a growing sequence: the KV cache of softmax attention, states and draws of linear
//! attention.
//!
//! With `n` tokens so far, `G` key and value heads, `H` heads of `D` features, per layer:
//!
//! ```text
//! softmax      8 G D c, and 8 H c of gates, 8 H D c of those of features, 4 H E c of paths with E features, 8 c of selective attention; c is n as a power of two, 256 at least; of a window and the piece that is read
//!              only; 4 H c for each table of the encoding, over the distances so far
//! linear       the state, the random features and 256 positions of the noise of its code: of fixed size
//! ```

use super::bytes;
use super::positions::{self, ResidentPositions};
use crate::layers::LayerSettings;
use crate::model::MOST_PREFILLED;
use crate::plan::Plan;
use kerple_burn::kv_cache::{INITIAL_CAPACITY, MIN_NOISE_BLOCK};
use kerple_core::encoding::Injection;
use kerple_core::forms::QueryKeyMap;

/// Bytes that one text of so many tokens holds.
pub(super) fn caches(plan: &Plan, length: usize) -> u64 {
    plan.model.every_layer(&plan.encoding).map(|layer| of_layer(plan, &layer, length)).fold(0, u64::saturating_add)
}

fn of_layer(plan: &Plan, layer: &LayerSettings, length: usize) -> u64 {
    let geometry = layer.geometry(&plan.geometry());
    if let Some(linear) = layer.attention.linear() {
        let rows =
            ResidentPositions { sequences: 1, positions: MIN_NOISE_BLOCK.min(length), span: length, training: false };
        return positions::held(layer, linear, &geometry, rows);
    }
    let heads = layer.heads;
    let entry = layer.encoding.entry();
    let plain = !matches!(entry, Injection::ScoreMod { .. } | Injection::Gates { .. } | Injection::Code);
    let kept = match layer.window {
        // they are let go of once they are twice as many as needed
        Some(window) if plain => {
            let twice = window.max(INITIAL_CAPACITY).saturating_mul(2);
            length.min(twice.saturating_add(layer.sink_tokens.unwrap_or(0)).saturating_add(MOST_PREFILLED))
        }
        _ => length,
    };
    let capacity = kept.max(INITIAL_CAPACITY).next_power_of_two();
    let tables = match entry {
        Injection::Scores(tables) => usize::from(tables.bias) + usize::from(tables.weight),
        _ => 0,
    };
    let of_heads = matches!(
        entry,
        Injection::Gates { .. }
            | Injection::FeatureGates { scalar: true, .. }
            | Injection::ContentRotation { scalar: true, .. }
            | Injection::Householder { gates: true }
    );
    let has_features =
        matches!(entry, Injection::FeatureGates { .. } | Injection::ContentRotation { decays: true, .. });
    let of_features = if has_features { heads.head_dim } else { 0 };
    let gates = bytes(&[2, heads.heads, capacity, usize::from(of_heads) + of_features]);
    // angles by content, and mixtures of rates, turn the keys of each query head
    let of_each = matches!(entry, Injection::ContentRotation { .. } | Injection::QueryKeyMap { widens: false });
    let key_heads = if of_each { heads.heads } else { heads.kv_heads };
    // values have room for as many features as wide keys
    let width = match layer.encoding.query_key_map(&geometry) {
        Some(QueryKeyMap::Polar(polar)) => heads.head_dim + polar.rates.len(),
        Some(QueryKeyMap::Fourier(_)) | None => heads.head_dim,
    };
    let masked = if plan.model.block.selective_attention.is_some() { bytes(&[2, capacity]) } else { 0 };
    let paths = layer.encoding.path_features(&geometry).map_or(0, |of| bytes(&[heads.heads, capacity, of.width]));
    let tables = bytes(&[tables, heads.heads, length.next_power_of_two()]);
    [bytes(&[2, key_heads, width, capacity]), gates, paths, masked, tables].into_iter().fold(0, u64::saturating_add)
}
