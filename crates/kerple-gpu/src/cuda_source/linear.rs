//! Linear attention without a decay, with gates, and with a table plus a learned sum of
//! exponentials; the features are twice as many as the features per head.

use super::{CudaSource, CudaWriter, HOPPER_SHARED, HOPPER_UNITS, array, optional};
use crate::launch::ELEMENTWISE_UNITS;
use crate::linear::chunk_o::{ChunkRead, PairedRowsCompilationArg};
use crate::linear::decay::{ChunkedDecayInputsCompilationArg, ChunkedTerms};
use crate::linear::{ChunkedDims, ChunkedShape, ChunkedSizesCompilationArg, chunk_h, chunk_o, tile_for};
use cubecl::CompilationError;

/// What decays products.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecayVariant {
    Nothing,
    Gates,
    TableAndTerms,
}

impl CudaWriter {
    pub(super) fn linear(&self, head_dim: usize) -> Result<Vec<CudaSource>, CompilationError> {
        let (features, values) = ((2 * head_dim).min(256), head_dim + 1);
        let dims = ChunkedDims { batch: 1, heads: 1, len: 1, features, values };
        let tile = tile_for(dims, HOPPER_SHARED, HOPPER_UNITS);
        let shape = |terms| ChunkedShape { rows: tile.over(features), values: tile.over(values), terms };
        let one = shape(ChunkedTerms { terms: 1, shapes: 1 });
        let many = shape(ChunkedTerms { terms: 24, shapes: 7 });
        let plain = self.linear_variant("plain", one, DecayVariant::Nothing)?;
        let gated = self.linear_variant("gated", one, DecayVariant::Gates)?;
        let decaying = self.linear_variant("decaying", many, DecayVariant::TableAndTerms)?;
        Ok([plain, gated, decaying].concat())
    }

    fn linear_variant(
        &self,
        name: &str,
        shape: ChunkedShape,
        variant: DecayVariant,
    ) -> Result<Vec<CudaSource>, CompilationError> {
        let (units, a) = (shape.rows.units(), array);
        let decays = variant == DecayVariant::TableAndTerms;
        let decay = |shape| ChunkedDecayInputsCompilationArg {
            constants: a(),
            near: optional(decays),
            gate_cumsum: optional(variant == DecayVariant::Gates),
            sizes: ChunkedSizesCompilationArg {
                heads: (),
                len: (),
                chunks: (),
                near_chunks: (),
                first: (),
                terms: (),
                shapes: (),
            },
            shape,
        };
        let rows = || PairedRowsCompilationArg { queries: a(), keys: a(), values: a() };
        let chunk_h = |s, p, t| chunk_h::chunk_h::ChunkH::new(s, p, t, a(), a(), a(), decay(shape), false);
        let scan_h = |s, p, t| chunk_h::scan_h::ScanH::new(s, p, t, a(), optional(decays), decay(shape), true);
        let chunk_o = |reverse: bool| {
            let shape = if reverse { shape.swapped() } else { shape };
            let read = ChunkRead { reverse, transposed: reverse };
            let (rows, decay) = (rows(), decay(shape));
            move |s, p, t| chunk_o::chunk_o::ChunkO::new(s, p, t, rows, optional(true), a(), decay, read)
        };
        let mut found = vec![
            self.source(&format!("chunk_h_{name}"), units, chunk_h)?,
            self.source(&format!("scan_h_{name}"), ELEMENTWISE_UNITS, scan_h)?,
            self.source(&format!("chunk_o_{name}"), units, chunk_o(false))?,
            self.source(&format!("chunk_o_reverse_{name}"), units, chunk_o(true))?,
        ];
        if decays {
            let weights = |s, p, t| {
                let units = ELEMENTWISE_UNITS;
                chunk_h::bwd_decay_weights::BwdDecayWeights::new(s, p, t, a(), a(), a(), decay(shape), units)
            };
            let near = |s, p, t| chunk_o::bwd_near_table::BwdNearTable::new(s, p, t, rows(), a(), a(), decay(shape));
            found.push(self.source(&format!("bwd_decay_weights_{name}"), ELEMENTWISE_UNITS, weights)?);
            found.push(self.source(&format!("bwd_near_table_{name}"), units, near)?);
        }
        Ok(found)
    }
}
