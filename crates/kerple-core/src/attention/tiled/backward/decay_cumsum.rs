//! Features that decay by what tokens say, in the backward: what a tile reads and adds is counted from a number of its own.

use super::segment::{TiledBackwardCall, TiledBackwardScratch};
use super::{KEYS, QUERIES};
use crate::Number;
use crate::attention::tiled::decay_cumsum::{DecayTile, HeadDecays, Multiply};
use crate::attention::tiled::interval_mask::take_stray_rows;
use crate::attention::tiled::tile::KeyTile;
use crate::cpu::lanes::Lanes;
use crate::tiles::rows::{AddRow, Transpose};
use crate::tiles::workers;
use std::ops::Range;

/// What one thread computes them in. All but the factors of queries are `[KEYS, width]`.
pub(super) struct BackwardDecays<R> {
    tile: DecayTile<R>,
    /// `scale * k`
    keys: Vec<R>,
    key_factors: Vec<R>,
    /// Whether the keys are as a tile counts them, and what was added to `d_k` since is.
    is_counted: bool,
    /// `[QUERIES, width]`
    query_factors: Vec<R>,
    /// The gradient in the keys by one head, and by all heads so far.
    d_k_of_head: Vec<R>,
    d_k: Vec<R>,
    /// Keys of the block.
    count: usize,
    width: usize,
}

impl<R: Number> BackwardDecays<R> {
    pub(super) fn new(head_dim: usize, width: usize) -> Self {
        let rows = || workers::scratch(KEYS * width);
        BackwardDecays {
            tile: DecayTile::new(head_dim, width),
            keys: rows(),
            key_factors: rows(),
            is_counted: false,
            query_factors: workers::scratch(QUERIES * width),
            d_k_of_head: rows(),
            d_k: rows(),
            count: 0,
            width,
        }
    }

    /// Begins a block of so many keys.
    pub(super) fn begin(&mut self, keys: &[R], count: usize) {
        self.keys.copy_from_slice(keys);
        self.count = count;
        self.d_k.fill(R::ZERO);
        self.d_k_of_head.fill(R::ZERO);
    }

    /// The gradient in the block's keys.
    pub(super) fn store(&self, to: &mut [R]) {
        to.copy_from_slice(&self.d_k);
    }

    /// Moves what tiles have added to `d_k` over, which is counted as their keys are.
    fn flush<L: Lanes<Number = R>>(&mut self, lanes: L, d_k: &mut [R]) {
        if std::mem::take(&mut self.is_counted) {
            let numbers = self.count * self.width;
            lanes.run(Multiply { to: &mut d_k[..numbers], by: &self.key_factors });
            lanes.run(AddRow { to: &mut self.d_k_of_head[..numbers], from: d_k });
            d_k.fill(R::ZERO);
        }
    }
}

impl<L: Lanes> TiledBackwardCall<'_, L> {
    /// The positions of a tile's queries, and its keys.
    fn tokens(&self, tile: &KeyTile) -> [Range<usize>; 2] {
        let own = self.problem.dims.position(tile.first_query);
        let [own, first_key] = [own, own - tile.distance].map(isize::cast_unsigned);
        [own..own + tile.queries, first_key..first_key + tile.keys]
    }

    /// Multiplies the queries and keys of a tile by their decays.
    pub(super) fn decay_by_content(&self, scratch: &mut TiledBackwardScratch<L::Number>, tile: &KeyTile) {
        let Some(of_head) = HeadDecays::of(&self.problem, tile.head) else { return };
        let [queries, keys] = self.tokens(tile);
        let TiledBackwardScratch { decays: Some(decays), q, d_k, keys: of_keys, keys_transposed, .. } = scratch else {
            return;
        };
        let width = decays.width;
        let was_crossed = decays.tile.is_crossed;
        decays.tile.set(of_head, &queries, &keys, keys.end - 1);
        if was_crossed || decays.tile.is_crossed || !decays.is_counted {
            decays.flush(self.lanes, d_k);
            decays.tile.key_factors(self.lanes, (of_head, keys), None, &mut decays.key_factors);
            of_keys.copy_from_slice(&decays.keys);
            self.lanes.run(Multiply { to: &mut of_keys[..tile.keys * width], by: &decays.key_factors });
            let (rows, head_dim, factor) = (tile.keys, self.problem.dims.head_dim, L::Number::ONE);
            let (from, to) = (&of_keys[..], &mut keys_transposed[..]);
            self.lanes.run(Transpose { from, stride: width, rows, head_dim, factor, to, width: KEYS });
            decays.is_counted = true;
            if scratch.mask.is_some() {
                scratch.stray_keys = take_stray_rows(of_keys, width, rows);
            }
        }
        decays.tile.query_factors(self.lanes, (of_head, queries), None, &mut decays.query_factors);
        self.lanes.run(Multiply { to: &mut q[..tile.queries * width], by: &decays.query_factors });
    }

    /// Adds the products of steep features to the scores of a tile.
    pub(super) fn add_steep_scores(&self, scratch: &mut TiledBackwardScratch<L::Number>, tile: &KeyTile) {
        let Some(of_head) = HeadDecays::of(&self.problem, tile.head) else { return };
        let [queries, keys] = self.tokens(tile);
        let TiledBackwardScratch { decays: Some(decays), weights, .. } = scratch else { return };
        let (width, all_keys) = (decays.width, &decays.keys);
        for feature in decays.tile.steep.clone() {
            let (queries, keys) = (queries.clone(), keys.clone());
            decays.tile.for_each_steep(self.lanes, (of_head, feature), queries, keys, |query, seen, decays| {
                let q = self.saved.q.row(0, tile.head, tile.first_query + query, feature + 1)[feature];
                for (key, decay) in seen.zip(decays) {
                    weights[query * KEYS + key] += q * all_keys[key * width + feature] * *decay;
                }
            });
        }
    }

    /// Makes the gradient in queries that in those before their decays, and adds what steep features bring to both gradients.
    pub(super) fn decay_d_q(&self, scratch: &mut TiledBackwardScratch<L::Number>, tile: &KeyTile) {
        let Some(of_head) = HeadDecays::of(&self.problem, tile.head) else { return };
        let [queries, keys] = self.tokens(tile);
        let TiledBackwardScratch { decays: Some(decays), d_q, d_scores, .. } = scratch else { return };
        let width = decays.width;
        self.lanes.run(Multiply { to: &mut d_q[..tile.queries * width], by: &decays.query_factors });
        let BackwardDecays { tile: of_tile, keys: all_keys, d_k_of_head, .. } = decays;
        for feature in of_tile.steep.clone() {
            let (queries, keys) = (queries.clone(), keys.clone());
            of_tile.for_each_steep(self.lanes, (of_head, feature), queries, keys, |query, seen, decays| {
                let q = self.saved.q.row(0, tile.head, tile.first_query + query, feature + 1)[feature];
                let d_q = &mut d_q[query * width + feature];
                for (key, decay) in seen.zip(decays) {
                    let d_product = d_scores[query * KEYS + key] * *decay;
                    *d_q += d_product * all_keys[key * width + feature];
                    d_k_of_head[key * width + feature] += d_product * q;
                }
            });
        }
    }

    /// Adds one head's gradient in a block of keys, and takes it from that in their cumulative decays.
    pub(super) fn end_decays(
        &self,
        scratch: &mut TiledBackwardScratch<L::Number>,
        head: usize,
        first_key: usize,
        keys: usize,
    ) {
        let TiledBackwardScratch { decays: Some(decays), d_k, .. } = scratch else { return };
        decays.flush(self.lanes, d_k);
        let BackwardDecays { keys: all_keys, d_k_of_head, d_k, width, .. } = decays;
        self.lanes.run(AddRow { to: &mut *d_k, from: d_k_of_head });
        if let Some(to) = &self.d_decay_cumsum {
            let head_dim = self.problem.dims.head_dim;
            for (key, (k, d)) in
                all_keys.chunks_exact(*width).zip(d_k_of_head.chunks_exact(*width)).take(keys).enumerate()
            {
                // SAFETY: the view is `[B, H, K, D]`, and this item alone writes this key of it.
                let to = unsafe { to.row(0, head, first_key + key, head_dim) };
                to.iter_mut().zip(k).zip(d).for_each(|((to, k), d)| *to -= k.to_f64() * d.to_f64());
            }
        }
        d_k_of_head.fill(L::Number::ZERO);
    }
}
