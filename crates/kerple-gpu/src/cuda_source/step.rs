//! Kernels that do not depend on the head size: norms, epilogues, dropout, AdamW, MLPs over heads,
//! the gradient of FIRE's parameters and rounding.

use super::{CudaSource, CudaWriter, SEGMENTS, array, optional};
use crate::attention::piecewise_linear::{FireGradientInputsCompilationArg, fire_gradient};
use crate::epilogue::{self, ActivationKind, EpilogueInputsCompilationArg, EpilogueOutputsCompilationArg};
use crate::head_mlp::{self, HeadMlpInputsCompilationArg, HeadMlpOutputsCompilationArg, HeadMlpShape};
use crate::launch::ELEMENTWISE_UNITS;
use crate::norm::{self, FusedNormInputsCompilationArg, FusedNormOutputsCompilationArg};
use crate::{adamw, dropout, precision};
use cubecl::CompilationError;
use kerple_core::score_mods::network::{Edge, Network, Variant};

impl CudaWriter {
    pub(super) fn step(&self) -> Result<Vec<CudaSource>, CompilationError> {
        let all = [self.norms()?, self.epilogues()?, self.adamw()?, self.head_mlps()?].concat();
        let (a, units) = (array, ELEMENTWISE_UNITS);
        let drop = |s, p, t| dropout::drop::Drop::new(s, p, t, a(), a(), a(), (), (), (), ());
        let round = |s, p, t| precision::round_elements::RoundElements::new(s, p, t, a(), a(), 16);
        Ok([all, vec![self.source("dropout", units, drop)?, self.source("round", units, round)?]].concat())
    }

    fn norms(&self) -> Result<Vec<CudaSource>, CompilationError> {
        let (a, units) = (array, ELEMENTWISE_UNITS);
        let inputs = || FusedNormInputsCompilationArg {
            x: a(),
            gamma: a(),
            beta: optional(true),
            rows: (),
            width: (),
            epsilon: (),
            centred: true,
            units,
        };
        let outputs = || FusedNormOutputsCompilationArg { d_x: a(), d_gamma: a(), d_beta: optional(true) };
        let forward = |s, p, t| norm::norm_fwd::NormFwd::new(s, p, t, inputs(), a(), a());
        let backward = |s, p, t| norm::norm_bwd::NormBwd::new(s, p, t, inputs(), a(), a(), outputs());
        Ok(vec![self.source("norm", units, forward)?, self.source("norm_backward", units, backward)?])
    }

    /// A bias with GELU, and a bias with a residual.
    fn epilogues(&self) -> Result<Vec<CudaSource>, CompilationError> {
        let (a, units) = (array, ELEMENTWISE_UNITS);
        let mut found = Vec::new();
        for (name, kind) in [("gelu", Some(ActivationKind::Normal)), ("residual", None)] {
            let inputs = |bias| EpilogueInputsCompilationArg {
                bias: optional(bias),
                width: (),
                sigmoid: epilogue::SigmoidCoefficientsCompilationArg { linear: (), cubic: () },
                kind,
            };
            let active = kind.is_some();
            let outputs = || EpilogueOutputsCompilationArg { d_x: optional(active), d_bias: optional(true) };
            let forward = |s, p, t| {
                epilogue::epilogue_fwd::EpilogueFwd::new(s, p, t, a(), optional(!active), a(), (), inputs(true))
            };
            let backward = |s, p, t| {
                let x = optional(active);
                epilogue::epilogue_bwd::EpilogueBwd::new(s, p, t, x, a(), outputs(), (), inputs(active), units)
            };
            found.push(self.source(name, units, forward)?);
            found.push(self.source(&format!("{name}_backward"), units, backward)?);
        }
        Ok(found)
    }

    fn adamw(&self) -> Result<Vec<CudaSource>, CompilationError> {
        let (a, units) = (array, ELEMENTWISE_UNITS);
        let state = || adamw::AdamwStateCompilationArg { values: a(), first: a(), second: a() };
        let factors = || adamw::AdamwFactorsCompilationArg {
            len: (),
            keep: (),
            mean_rate: (),
            square_keep: (),
            square_rate: (),
            step_size: (),
            square_correction: (),
            epsilon: (),
            limit: (),
            low: (),
            high: (),
        };
        let update = |s, p, t| adamw::adamw_update::AdamwUpdate::new(s, p, t, state(), a(), a(), factors(), true, true);
        let squares = |s, p, t| adamw::sum_squares::SumSquares::new(s, p, t, a(), a(), (), (), units);
        let root = |s, p, t| adamw::root_of_sum::RootOfSum::new(s, p, t, a(), a(), (), units);
        Ok(vec![
            self.source("adamw_update", units, update)?,
            self.source("sum_squares", units, squares)?,
            self.source("root_of_sum", units, root)?,
        ])
    }

    /// DAPE's MLP over heads, and the gradient of FIRE's parameters.
    fn head_mlps(&self) -> Result<Vec<CudaSource>, CompilationError> {
        let a = array;
        let network = Network { hidden: 32, variant: Variant::ConcatResidual, kernel: 1, edge: Edge::Open };
        let shape = HeadMlpShape::new(&network, 12, true);
        let inputs =
            || HeadMlpInputsCompilationArg { scores: a(), bias: optional(true), parameters: a(), pairs: (), shape };
        let outputs = || HeadMlpOutputsCompilationArg { d_scores: a(), d_bias: optional(true), d_parameters: a() };
        let fire = || FireGradientInputsCompilationArg {
            sums: a(),
            values: a(),
            factors: a(),
            parameters: a(),
            heads: (),
            segments: SEGMENTS,
            width: SEGMENTS - 1,
        };
        let forward = |s, p, t| head_mlp::head_mlp_fwd::HeadMlpFwd::new(s, p, t, inputs(), a());
        let backward = |s, p, t| head_mlp::head_mlp_bwd::HeadMlpBwd::new(s, p, t, inputs(), a(), outputs(), ());
        let fire_gradient = |s, p, t| fire_gradient::FireGradient::new(s, p, t, fire(), a());
        Ok(vec![
            self.source("head_mlp", shape.units, forward)?,
            self.source("head_mlp_backward", shape.units, backward)?,
            self.source("fire_gradient", ELEMENTWISE_UNITS, fire_gradient)?,
        ])
    }
}
