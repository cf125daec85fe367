//! Features that decay, by distance or by what tokens say, in the forward.

use super::{QUERIES, QueryTile, TiledForwardCall, TiledForwardScratch};
use crate::Number;
use crate::attention::tiled::decay_cumsum::{DecayTile, DecayedRows, HeadDecays};
use crate::cpu::lanes::Lanes;
use crate::tiles::rows::{CopyRows, ScaleRow, Transpose};
use crate::tiles::workers;
use std::ops::Range;

/// What decays by the content are computed in.
pub(super) struct ForwardDecays<R> {
    tile: DecayTile<R>,
    /// `scale * q`, `[QUERIES, width]`
    q: Vec<R>,
    /// Queries times their factors, `[QUERIES, width]`.
    factors: Vec<R>,
}

impl<R: Number> ForwardDecays<R> {
    pub(super) fn new(head_dim: usize, width: usize) -> Self {
        let rows = || workers::scratch(QUERIES * width);
        ForwardDecays { tile: DecayTile::new(head_dim, width), q: rows(), factors: rows() }
    }

    /// Whether some keys of the tile are after some of its queries.
    pub(super) fn is_crossed(&self) -> bool {
        self.tile.is_crossed
    }
}

impl<L: Lanes> TiledForwardCall<'_, L> {
    /// Loads the queries at these positions where features decay by the content, as all keys before them count them.
    pub(super) fn load_decayed_queries(
        &self,
        scratch: &mut TiledForwardScratch<L::Number>,
        head: usize,
        first_query: usize,
        own: Range<usize>,
    ) {
        let (Some(decays), Some(of_head)) = (&mut scratch.decays, HeadDecays::of(&self.of.problem, head)) else {
            return;
        };
        let (head_dim, width) = (self.of.problem.dims.head_dim, scratch.width);
        let (from, stride) = (self.of.q.rows_from(0, head, first_query), self.of.q.strides.row);
        let (rows, factor, to) = (own.len(), self.of.problem.scale, &mut decays.q[..]);
        self.lanes.run(CopyRows { from, stride, rows, head_dim, factor, to, width });
        decays.tile.set(of_head, &own, &(own.start..own.start + 1), own.start);
        self.store_decayed_queries(decays, (of_head, own), &mut scratch.q_transposed, width);
    }

    /// Writes queries times their factors, as columns.
    fn store_decayed_queries(
        &self,
        ForwardDecays { tile, q, factors }: &mut ForwardDecays<L::Number>,
        queries: (HeadDecays, Range<usize>),
        to: &mut [L::Number],
        width: usize,
    ) {
        let (rows, head_dim, factor) = (queries.1.len(), self.of.problem.dims.head_dim, L::Number::ONE);
        tile.query_factors(self.lanes, queries, Some(DecayedRows { from: q, stride: width }), factors);
        self.lanes.run(Transpose { from: factors, stride: width, rows, head_dim, factor, to, width: QUERIES });
    }

    /// Multiplies the queries and keys of a tile by their decays.
    pub(super) fn decay_features(&self, scratch: &mut TiledForwardScratch<L::Number>, tile: &QueryTile) {
        let TiledForwardScratch { q_transposed, q_decayed_transposed, k_decayed, decays, width, .. } = scratch;
        let (from, stride) = (self.of.k.rows_from(0, tile.kv_head, tile.first_key), self.of.k.strides.row);
        if let (Some(decays), Some(of_head)) = (decays, HeadDecays::of(&self.of.problem, tile.head)) {
            let own = self.of.problem.dims.position(tile.first_query).cast_unsigned();
            let (queries, keys) = (own..own + tile.queries, tile.first_key..tile.first_key + tile.keys);
            decays.tile.set(of_head, &queries, &keys, own);
            decays.tile.key_factors(self.lanes, (of_head, keys), Some(DecayedRows { from, stride }), k_decayed);
            if decays.tile.is_crossed {
                self.store_decayed_queries(decays, (of_head, queries), q_decayed_transposed, *width);
            }
            return;
        }
        let Some(feature_decay) = &self.tables.feature_decay else { return };
        let over = feature_decay.over(tile.distance + 1 - tile.keys as isize);
        let rows = q_decayed_transposed.chunks_exact_mut(QUERIES).zip(q_transposed.chunks_exact(QUERIES));
        for ((to, from), factor) in rows.zip(over) {
            self.lanes.run(ScaleRow { to, factor, from });
        }
        let (head_dim, factor) = (self.of.problem.dims.head_dim, L::Number::ONE);
        let (rows, to, width) = (tile.keys, &mut k_decayed[..], *width);
        self.lanes.run(CopyRows { from, stride, rows, head_dim, factor, to, width });
        self.lanes.run(feature_decay.keys(k_decayed, width, tile.keys));
    }

    /// Adds the products of steep features to the scores of a tile.
    pub(super) fn add_steep(&self, scratch: &mut TiledForwardScratch<L::Number>, tile: &QueryTile) {
        let TiledForwardScratch { scores_transposed, decays, width, .. } = scratch;
        let (Some(ForwardDecays { tile: of_tile, q, .. }), Some(of_head)) =
            (decays, HeadDecays::of(&self.of.problem, tile.head))
        else {
            return;
        };
        let own = self.of.problem.dims.position(tile.first_query).cast_unsigned();
        for feature in std::mem::take(&mut of_tile.steep) {
            let k = |key| self.of.k.rows_from(0, tile.kv_head, tile.first_key + key)[feature];
            let (queries, keys) = (own..own + tile.queries, tile.first_key..tile.first_key + tile.keys);
            of_tile.for_each_steep(self.lanes, (of_head, feature), queries, keys, |query, seen, decays| {
                let q = q[query * *width + feature];
                for (key, decay) in seen.zip(decays) {
                    scores_transposed[key * QUERIES + query] += q * k(key) * *decay;
                }
            });
        }
    }
}
