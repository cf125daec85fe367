//! The memory of positions: draws, rows and tables of the encoding, codes, features and states of
//! linear attention.
//!
//! With `n` positions at once of `s` in a sequence, `R` realisations, `M` features, `K` terms of a decay, `p` learned tensors:
//!
//! ```text
//! draws        8 s a layer, where positions are drawn
//! tables       H s (8 + 8 p in training), of both sides in encoders, once or a layer; made of 8 H (2 + p) numbers a distance up
//!              to the largest that can be drawn
//! gates        4 B n H a layer, and 16 B n H, where tokens make them
//! rows         rotations 8 n D, additions 12 n M
//! codes        noise: 8 W R H D a layer for W sinusoids, twice that in training and for more than two sequences; 4 R H D
//!              (n + taps) for filters, as far as it is held, by all layers where a text is read in pieces and by one layer
//!              otherwise, and 12 R taps per thread; images of queries and keys, 8 n H R, in training with their gradients
//! features     a projection, 12 R max(R, M) and as much again three times while it is made; rows of a chunk a thread
//! states       4 H ((K + 8) M (D + 1) + 256 (M + D)) a sequence and layer: one a thread, one a piece
//! ```

use super::bytes;
use crate::layers::LayerSettings;
use crate::model::MOST_STATES;
use crate::plan::Plan;
use kerple_burn::ops::linear_attention::MAX_NOISE_VALUES;
use kerple_burn::plan::{FeatureKind, LinearAttentionConfig};
use kerple_core::attention::householder::TILE as HOUSEHOLDER_TILE;
use kerple_core::attention::linear::{CHUNK, NEAR};
use kerple_core::calculus::exponentials::RateGrid;
use kerple_core::encoding::{Geometry, Injection, ParameterShare};
use kerple_core::features::ConvShape;
use kerple_core::forms::{CodeForm, CodeKind, QueryKeyMap};

/// What is in memory at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResidentPositions {
    /// Sequences.
    pub sequences: usize,
    /// Positions of each.
    pub positions: usize,
    /// Positions of a whole sequence.
    pub span: usize,
    /// Whether a backward follows.
    pub training: bool,
}

/// Bytes that the positions of a plan's model take.
pub(super) fn positions(plan: &Plan, rows: ResidentPositions) -> u64 {
    let mut kinds: Vec<(LayerSettings, usize)> = Vec::new();
    for layer in plan.model.every_layer(&plan.encoding) {
        match kinds.iter_mut().find(|(known, _)| *known == layer) {
            Some((_, layers)) => *layers += 1,
            None => kinds.push((layer, 1)),
        }
    }
    let (geometry, sides) = (plan.geometry(), 1 + usize::from(plan.head().is_bidirectional()));
    let of_kind = |(layer, layers): &(LayerSettings, usize)| {
        let geometry = layer.geometry(&geometry);
        let encoding = encoding((layer, *layers), &geometry, (rows, sides));
        let linear = layer.attention.linear();
        encoding.saturating_add(linear.map_or(0, |linear| attention((layer, *layers), linear, &geometry, rows)))
    };
    kinds.iter().map(of_kind).fold(0, u64::saturating_add)
}

/// Draws, rows and tables of so many layers.
fn encoding(
    (layer, layers): (&LayerSettings, usize),
    geometry: &Geometry,
    (rows, sides): (ResidentPositions, usize),
) -> u64 {
    let LayerSettings { encoding, attention, .. } = *layer;
    let randomized = encoding.randomized;
    let Geometry { heads, head_dim, d_model, .. } = *geometry;
    let parameters = encoding.parameters(geometry);
    let has_own = parameters.iter().any(|parameter| parameter.share == ParameterShare::Layer);
    let sets = if has_own || randomized.is_some() { layers } else { 1 };
    let draws = randomized.map_or(0, |_| bytes(&[2, rows.span, layers]));
    let held = match encoding.entry() {
        Injection::Nowhere | Injection::Code => 0,
        Injection::Embeddings => bytes(&[3, rows.positions, d_model]),
        Injection::Rotation { .. } => bytes(&[2, rows.positions, head_dim, sets]),
        // of every layer, whose rows differ: logits, and cumulative gates and their gradient while it is at work, of positions by row too
        Injection::Gates { kernel } => {
            let kept = if rows.training { layers + 4 + 2 * usize::from(kernel) } else { 4 };
            bytes(&[kept, rows.sequences, rows.positions, heads])
        }
        // of every layer, whose rows differ: logits and gates; while it is at work their gradients, and cumulative gates and their
        // gradient, twice as wide; and the rotation of positions
        Injection::FeatureGates { rotates, .. } => {
            let kept = if rows.training { 2 * layers + 6 } else { 4 };
            let of_gates = bytes(&[kept, rows.sequences, rows.positions, heads, head_dim]);
            of_gates.saturating_add(if rotates { bytes(&[2, rows.positions, head_dim, sets]) } else { 0 })
        }
        // of every layer, whose rows differ: projected and convolved increments, cosines and sines, and gradients; while it is at work
        // turns and their gradient, twice as wide. Decays as above
        Injection::ContentRotation { decays, .. } => {
            let [kept, of_decay] = if rows.training { [3 * layers + 5, 2 * layers + 6] } else { [8, 4] };
            let of_pairs = bytes(&[kept, rows.sequences, rows.positions, heads, head_dim.div_ceil(2)]);
            let of_decay = if decays { of_decay } else { 0 };
            of_pairs.saturating_add(bytes(&[of_decay, rows.sequences, rows.positions, heads, head_dim]))
        }
        // of every layer: mapped queries and keys, and values with the same room; and their gradients
        Injection::QueryKeyMap { .. } => {
            let map = encoding.query_key_map(geometry).expect("a method that maps queries and keys");
            let width = if let QueryKeyMap::Polar(polar) = map { head_dim + polar.rates.len() } else { head_dim };
            let kept = if rows.training { 3 * layers + 6 } else { 3 };
            bytes(&[kept, rows.sequences, rows.positions, heads, width])
        }
        // of every layer, whose rows differ: rows and their gradient
        Injection::RelativeBias => {
            let rank = encoding.row_profiles(geometry).map_or(0, |profiles| profiles.rank);
            let kept = if rows.training { 2 * layers + 4 } else { 4 };
            bytes(&[kept, rows.sequences, rows.positions, heads, rank])
        }
        // of every layer, whose rows differ: features, normed, turned, what they are turned by and from, and gradients
        Injection::PathBias => {
            let width = encoding.path_features(geometry).map_or(0, |features| features.width);
            let kept = if rows.training { 6 * layers + 8 } else { 8 };
            bytes(&[kept, rows.sequences, rows.positions, heads, width])
        }
        // of every layer, whose rows differ: directions as they are projected, convolved, their squares and roots, and gradients; gates as
        // above. While it is at work what is kept of tiles of T tokens, for a key head and token 2 D + T + D D / T numbers, and their gradient
        // in the backward, where a thread has queries and scores of T rows at every tile
        Injection::Householder { gates } => {
            let kv_heads = geometry.kv_heads;
            let [kept, of_tiles, of_gates] =
                if rows.training { [10 * layers + 8, 2, 3 * layers + 4] } else { [10, 1, 4] };
            let of_tile = 2 * head_dim + HOUSEHOLDER_TILE + (head_dim * head_dim).div_ceil(HOUSEHOLDER_TILE);
            let of = |kept, heads, width| bytes(&[kept, rows.sequences, rows.positions, heads, width]);
            let threads = if rows.training { rayon::current_num_threads() } else { 0 };
            let held = [
                of(kept, kv_heads, head_dim),
                of(of_tiles, kv_heads, of_tile),
                of(of_gates, heads, usize::from(gates)),
                bytes(&[threads, rows.positions, head_dim + HOUSEHOLDER_TILE]),
            ];
            held.into_iter().fold(0, u64::saturating_add)
        }
        // as decays they end at a few chunks
        Injection::Scores(_) | Injection::ScoreMod { .. } if attention.linear().is_some() => {
            bytes(&[4, heads, NEAR, sets])
        }
        Injection::Scores(_) | Injection::ScoreMod { .. } => {
            let slopes = if rows.training { parameters.len() } else { 0 };
            let kept = bytes(&[2 + 2 * slopes, heads, sides, rows.span, sets]);
            kept.saturating_add(bytes(&[2 * (2 + slopes), heads, sides, randomized.unwrap_or(rows.span)]))
        }
    };
    draws.saturating_add(held)
}

/// Codes, features and states of linear attention in so many layers.
fn attention(
    (layer, layers): (&LayerSettings, usize),
    linear: &LinearAttentionConfig,
    geometry: &Geometry,
    rows: ResidentPositions,
) -> u64 {
    let Geometry { heads, head_dim, .. } = *geometry;
    let code = layer.encoding.code(geometry);
    let codes = code.as_ref().map_or(0, |code| {
        let width = code.realisations();
        let images = bytes(&[if rows.training { 4 } else { 2 }, rows.sequences, rows.positions, heads, width]);
        images.saturating_add(noise(&code.kind, layers, rows))
    });
    let state = state(layer, linear, geometry);
    let features = linear.width(code.as_ref().map_or(head_dim, CodeForm::realisations));
    let a_thread = state.saturating_mul(3).saturating_add(bytes(&[8, NEAR, features + head_dim]));
    let threads = a_thread.saturating_mul(rayon::current_num_threads() as u64);
    let kept = state.saturating_mul(states(rows)).saturating_mul((rows.sequences * heads * layers) as u64);
    let projection = projection((layer, layers), linear, geometry);
    [projection, threads, kept].into_iter().fold(codes, u64::saturating_add)
}

/// What a text that grows holds in a layer of linear attention: its state, and what was drawn for it.
pub(super) fn held(
    layer: &LayerSettings,
    linear: &LinearAttentionConfig,
    geometry: &Geometry,
    rows: ResidentPositions,
) -> u64 {
    let states = state(layer, linear, geometry).saturating_mul(geometry.heads as u64);
    let noise = layer.encoding.code(geometry).map_or(0, |code| held_noise(&code.kind, 1, rows.positions));
    [noise, projection((layer, 1), linear, geometry)].into_iter().fold(states, u64::saturating_add)
}

/// Random directions of so many layers, and what is there while they are made.
fn projection((layer, layers): (&LayerSettings, usize), linear: &LinearAttentionConfig, geometry: &Geometry) -> u64 {
    let width = layer.encoding.code(geometry).as_ref().map_or(geometry.head_dim, CodeForm::realisations);
    let features = linear.width(width);
    match linear.feature_map {
        FeatureKind::Relu | FeatureKind::Elu => 0,
        FeatureKind::Favor | FeatureKind::FavorJax | FeatureKind::ReluRf => {
            bytes(&[3, width, features, layers]).saturating_add(bytes(&[6, width, width.max(features)]))
        }
    }
}

/// The sums of one head.
fn state(layer: &LayerSettings, linear: &LinearAttentionConfig, geometry: &Geometry) -> u64 {
    let Geometry { head_dim, .. } = *geometry;
    let features = linear.width(layer.encoding.code(geometry).as_ref().map_or(head_dim, CodeForm::realisations));
    let fades = layer.encoding.has_approximate_decay();
    let terms = linear.demand().filter(|_| fades).map_or(2, |demand| RateGrid::log(&demand).rates().len() + 8);
    let sums = bytes(&[terms, features, head_dim + 1]);
    sums.saturating_add(bytes(&[if fades { NEAR } else { CHUNK }, features + head_dim]))
}

/// Noise of so many layers, and of threads that draw it where it is not held.
fn noise(kind: &CodeKind, layers: usize, rows: ResidentPositions) -> u64 {
    let a_thread = match kind {
        CodeKind::Sine(_) => 0,
        CodeKind::Conv(shape) => bytes(&[3, taps(shape).saturating_add(CHUNK), shape.realisations]),
    };
    // layers that take a sequence in pieces hold theirs until the next piece, others let go of it
    let in_pieces = !rows.training && rows.positions < rows.span;
    let held = match kind {
        // in two orders, of which generation needs one
        CodeKind::Sine(_) if rows.training || rows.sequences > 2 => held_noise(kind, 2 * layers, rows.positions),
        CodeKind::Sine(_) => held_noise(kind, layers, rows.positions),
        CodeKind::Conv(_) => held_noise(kind, if in_pieces { layers } else { 1 }, rows.positions),
    };
    held.saturating_add(a_thread.saturating_mul(rayon::current_num_threads() as u64))
}

/// Noise that so many layers hold for these positions.
fn held_noise(kind: &CodeKind, layers: usize, positions: usize) -> u64 {
    match kind {
        CodeKind::Sine(shape) => bytes(&[2, shape.waves, shape.realisations, shape.heads, shape.head_dim, layers]),
        CodeKind::Conv(shape) => {
            let reach = positions.saturating_add(taps(shape));
            let a_layer = bytes(&[reach, shape.realisations, shape.heads, shape.head_dim]);
            // more than that is drawn for every use
            if a_layer > bytes(&[MAX_NOISE_VALUES]) { 0 } else { a_layer.saturating_mul(layers as u64) }
        }
    }
}

fn taps(shape: &ConvShape) -> usize {
    shape.taps.iter().fold(1usize, |product, taps| product.saturating_mul(*taps))
}

/// States of a sequence that are kept in a layer: none where it is worked off at once, one before every piece of a stretch of
/// at most [`MOST_STATES`], and what later pieces leave.
fn states(rows: ResidentPositions) -> u64 {
    let pieces = rows.span.div_ceil(rows.positions.max(1));
    match (pieces, rows.training) {
        (0 | 1, _) => 0,
        (_, false) => 1,
        (pieces, true) => {
            let stretches = (0..).map(|depth| pieces / MOST_STATES.pow(depth)).take_while(|left| *left > 0);
            1 + stretches.map(|left| left.min(MOST_STATES) as u64).sum::<u64>()
        }
    }
}
