//! Attention without tables; with a learned bias; with bias, weight and padding; with gates; with a
//! softcap; with FIRE's bias; each by matrix units too.

use super::{HOPPER, PIECES, Source, Writer, array};
use crate::attention::tile::{Has, SizesCompilationArg, Tile};
use crate::attention::{EACH, decode, diagonals, forward, keys, queries};
use cubecl::CompilationError;
use kerple_core::precision::Precision;

impl Writer {
    pub(super) fn attention(&self, head_dim: usize) -> Result<Vec<Source>, CompilationError> {
        let ((shared, units), a) = (HOPPER, array);
        let tile = Tile::fitting(head_dim, shared, units);
        let nothing = Has {
            bias: false,
            weight: false,
            lengths: false,
            clocks: false,
            cap: false,
            lines: 0,
            drawn: false,
            bias_gradient: false,
            weight_gradient: false,
        };
        let gates = Has { clocks: true, ..nothing };
        let cap = Has { cap: true, ..nothing };
        let bias = Has { bias: true, bias_gradient: true, ..nothing };
        let all = Has { weight: true, lengths: true, weight_gradient: true, ..bias };
        let fire = Has { lines: PIECES, bias_gradient: true, ..nothing };
        let mut found = Vec::new();
        for (what, has) in
            [("plain", nothing), ("bias", bias), ("all", all), ("gates", gates), ("cap", cap), ("fire", fire)]
        {
            found.extend(self.of_choice(tile, what, has)?);
        }
        for (what, precision, has) in [
            ("bias_tf32", Precision::Tf32, bias),
            ("bias_bf16", Precision::Bf16, bias),
            ("all_bf16", Precision::Bf16, all),
            ("fire_bf16", Precision::Bf16, fire),
        ] {
            let tile = tile.with_precision(precision, &self.properties);
            let matrices = tile.matrix.is_some();
            let sources = self.of_choice(tile, what, has)?;
            found.extend(
                sources
                    .into_iter()
                    .map(|source| Source { matrices: matrices && !source.name.starts_with("of_spans"), ..source }),
            );
        }
        let products = |s, p, t| queries::row_products::RowProducts::new(s, p, t, a(), a(), a(), (), tile);
        let sums = |s, p, t| diagonals::add_up::AddUp::new(s, p, t, a(), a(), (), (), (), ());
        let rows = |s, p, t| decode::of_rows::OfRows::new(s, p, t, a(), a(), a(), a(), a(), (), (), head_dim);
        found.push(self.source("row_products", EACH, products)?);
        found.push(self.source("add_up", EACH, sums)?);
        found.push(self.source("of_rows", EACH, rows)?);
        Ok(found)
    }

    /// The kernels that are written anew for every choice of optional arrays.
    fn of_choice(&self, tile: Tile, what: &str, has: Has) -> Result<Vec<Source>, CompilationError> {
        let (units, a) = (tile.units(), array);
        let sizes = || SizesCompilationArg {
            heads: (),
            group: (),
            queries: (),
            keys: (),
            lowest: (),
            highest: (),
            columns: (),
            origin: (),
            slots: (),
            half: (),
            cap: (),
            by_cap: (),
            scale: (),
        };
        let forward = |s, p, t| {
            forward::attend::Attend::new(
                s,
                p,
                t,
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                sizes(),
                tile,
                has,
                tile.element(),
            )
        };
        let queries = |s, p, t| {
            let all = [(); 13].map(|()| a());
            let [q, k, v, bias, weight, lengths, clocks, d_out, lse, delta, d_q, d_bias, d_weight] = all;
            queries::of_queries::OfQueries::new(
                s,
                p,
                t,
                q,
                k,
                v,
                bias,
                weight,
                lengths,
                clocks,
                d_out,
                lse,
                delta,
                d_q,
                d_bias,
                d_weight,
                sizes(),
                tile,
                has,
                tile.element(),
            )
        };
        let keys = |s, p, t| {
            let all = [(); 13].map(|()| a());
            let [q, k, v, bias, weight, lengths, clocks, d_out, lse, delta, d_k, d_v, d_clocks] = all;
            keys::of_keys::OfKeys::new(
                s,
                p,
                t,
                q,
                k,
                v,
                bias,
                weight,
                lengths,
                clocks,
                d_out,
                lse,
                delta,
                d_k,
                d_v,
                d_clocks,
                sizes(),
                tile,
                has,
                tile.element(),
            )
        };
        let spans = |s, p, t| {
            decode::of_spans::OfSpans::new(
                s,
                p,
                t,
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                a(),
                sizes(),
                tile.by_units(),
                has,
            )
        };
        Ok(vec![
            self.source(&format!("attend_{what}"), units, forward)?,
            self.source(&format!("of_queries_{what}"), units, queries)?,
            self.source(&format!("of_keys_{what}"), units, keys)?,
            self.source(&format!("of_spans_{what}"), decode::UNITS, spans)?,
        ])
    }
}
