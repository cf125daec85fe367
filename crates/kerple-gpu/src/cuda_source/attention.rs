//! Attention without tables; with a learned bias; with bias, weight and padding; with gates; with a
//! softcap; with FIRE's bias; with documents; by matrix units too.

use super::{CudaSource, CudaWriter, HOPPER_SHARED, HOPPER_UNITS, SEGMENTS, array, optional, present};
use crate::attention::bwd_dkv::{self, DkvOutputsCompilationArg};
use crate::attention::bwd_dq::{self, DqOutputsCompilationArg};
use crate::attention::forward;
use crate::attention::inputs::{FlashInputsCompilationArg, FlashSizesCompilationArg};
use crate::attention::piecewise_linear::PiecewiseLinearInputsCompilationArg;
use crate::attention::score_gradients::{UpstreamGradientsCompilationArg, bwd_preprocess};
use crate::attention::score_mods::{ScoreModsCompilationArg, SoftcapCompilationArg};
use crate::attention::split_kv::{self, SplitResultsCompilationArg};
use crate::attention::tile::TileShape;
use crate::launch::ELEMENTWISE_UNITS;
use crate::reduce::sum_rows;
use cubecl::CompilationError;
use kerple_core::precision::Precision;

/// The optional inputs of a call. Tables that are present have gradients.
#[derive(Clone, Copy)]
struct PresentInputs {
    bias: bool,
    weight: bool,
    lengths: bool,
    intervals: bool,
    gates: bool,
    softcap: bool,
    piecewise: bool,
}

const PLAIN: PresentInputs = PresentInputs {
    bias: false,
    weight: false,
    lengths: false,
    intervals: false,
    gates: false,
    softcap: false,
    piecewise: false,
};
const BIAS: PresentInputs = PresentInputs { bias: true, ..PLAIN };
const ALL: PresentInputs = PresentInputs { weight: true, lengths: true, ..BIAS };
const FIRE: PresentInputs = PresentInputs { piecewise: true, ..PLAIN };
const DOCUMENTS: PresentInputs = PresentInputs { weight: true, intervals: true, ..BIAS };

impl PresentInputs {
    fn inputs(self, tile: TileShape) -> FlashInputsCompilationArg {
        let softcap = SoftcapCompilationArg { cap: (), inverse: () };
        let piecewise = PiecewiseLinearInputsCompilationArg {
            values: array(),
            distances: (),
            half: (),
            segments: SEGMENTS,
            sampled: false,
        };
        let score_mods = ScoreModsCompilationArg {
            softcap: present(self.softcap, softcap),
            weight: optional(self.weight),
            bias: optional(self.bias),
            piecewise: present(self.piecewise, piecewise),
            gate_cumsum: optional(self.gates),
        };
        let sizes = FlashSizesCompilationArg {
            heads: (),
            group: (),
            queries: (),
            keys: (),
            lowest: (),
            highest: (),
            columns: (),
            origin: (),
            splits: (),
            scale: (),
        };
        let (lengths, intervals) = (optional(self.lengths), optional(self.intervals));
        FlashInputsCompilationArg { q: array(), k: array(), v: array(), lengths, intervals, score_mods, sizes, tile }
    }
}

impl CudaWriter {
    pub(super) fn attention(&self, head_dim: usize) -> Result<Vec<CudaSource>, CompilationError> {
        let a = array;
        let tile = TileShape::fitting(head_dim, HOPPER_SHARED, HOPPER_UNITS);
        let mut found = Vec::new();
        for (variant, present) in [
            ("plain", PLAIN),
            ("bias", BIAS),
            ("all", ALL),
            ("gates", PresentInputs { gates: true, ..PLAIN }),
            ("cap", PresentInputs { softcap: true, ..PLAIN }),
            ("fire", FIRE),
            ("documents", DOCUMENTS),
            ("documents_fire", PresentInputs { intervals: true, ..FIRE }),
        ] {
            found.extend(self.attention_variant(tile, variant, present)?);
        }
        for (variant, precision, present) in [
            ("bias_tf32", Precision::Tf32, BIAS),
            ("bias_bf16", Precision::Bf16, BIAS),
            ("all_bf16", Precision::Bf16, ALL),
            ("fire_bf16", Precision::Bf16, FIRE),
            ("documents_bf16", Precision::Bf16, DOCUMENTS),
        ] {
            let tile = tile.with_precision(precision, &self.properties);
            let sources = self.attention_variant(tile, variant, present)?;
            let matrices = |name: &str| tile.matrix.is_some() && !name.starts_with("split_kv");
            found.extend(sources.into_iter().map(|source| CudaSource { matrices: matrices(&source.name), ..source }));
        }
        let preprocess = |s, p, t| bwd_preprocess::BwdPreprocess::new(s, p, t, a(), a(), a(), (), tile);
        let sums = |s, p, t| sum_rows::SumRows::new(s, p, t, a(), a(), (), (), (), ());
        let combine = |s, p, t| split_kv::combine::Combine::new(s, p, t, split_results(), a(), a(), (), (), head_dim);
        found.push(self.source("bwd_preprocess", ELEMENTWISE_UNITS, preprocess)?);
        found.push(self.source("sum_rows", ELEMENTWISE_UNITS, sums)?);
        found.push(self.source("combine", ELEMENTWISE_UNITS, combine)?);
        Ok(found)
    }

    /// The kernels that are compiled for each choice of optional inputs.
    fn attention_variant(
        &self,
        tile: TileShape,
        variant: &str,
        present: PresentInputs,
    ) -> Result<Vec<CudaSource>, CompilationError> {
        let (units, a) = (tile.units(), array);
        let inputs = || present.inputs(tile);
        let upstream = || UpstreamGradientsCompilationArg { d_out: a(), lse: a(), delta: a() };
        let forward = |s, p, t| forward::fwd::Fwd::new(s, p, t, inputs(), a(), a(), tile.element());
        let dq = |s, p, t| {
            let (d_bias, d_weight) = (optional(present.bias || present.piecewise), optional(present.weight));
            let outputs = DqOutputsCompilationArg { d_q: a(), d_bias, d_weight };
            bwd_dq::bwd_dq::BwdDq::new(s, p, t, inputs(), upstream(), outputs, tile.element())
        };
        let dkv = |s, p, t| {
            let outputs = DkvOutputsCompilationArg { d_k: a(), d_v: a(), d_gate_cumsum: optional(present.gates) };
            bwd_dkv::bwd_dkv::BwdDkv::new(s, p, t, inputs(), upstream(), outputs, tile.element())
        };
        let split =
            |s, p, t| split_kv::split_kv::SplitKv::new(s, p, t, present.inputs(tile.by_units()), split_results());
        Ok(vec![
            self.source(&format!("fwd_{variant}"), units, forward)?,
            self.source(&format!("bwd_dq_{variant}"), units, dq)?,
            self.source(&format!("bwd_dkv_{variant}"), units, dkv)?,
            self.source(&format!("split_kv_{variant}"), split_kv::UNITS, split)?,
        ])
    }
}

fn split_results() -> SplitResultsCompilationArg {
    SplitResultsCompilationArg { values: array(), row_max: array(), row_sum: array() }
}
