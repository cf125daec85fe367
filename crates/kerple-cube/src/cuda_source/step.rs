//! Norms, activations, dropout, AdamW, networks over heads and rounding, which know no width of heads.

use super::{Source, Writer, array};
use crate::activation::{self, Shape};
use crate::attention::EACH;
use crate::{adamw, dropout, norm, over_heads, precision};
use cubecl::CompilationError;
use kerple::maps::network::{Edge, Network, Variant};

impl Writer {
    pub(super) fn step(&self) -> Result<Vec<Source>, CompilationError> {
        let a = array;
        let form = norm::Form { centred: true, shifted: true, units: EACH };
        let forward = |s, p, t| norm::forward::Forward::new(s, p, t, a(), a(), a(), a(), a(), (), (), (), form);
        let backward =
            |s, p, t| norm::backward::Backward::new(s, p, t, a(), a(), a(), a(), a(), a(), a(), (), (), form);
        let gelu = |s, p, t| activation::forward::Forward::new(s, p, t, a(), a(), (), (), (), Shape::Normal);
        let slope = |s, p, t| activation::backward::Backward::new(s, p, t, a(), a(), a(), (), (), (), Shape::Normal);
        let drop = |s, p, t| dropout::drop::Drop::new(s, p, t, a(), a(), a(), (), (), (), ());
        let factors = || adamw::FactorsCompilationArg {
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
        let update = |s, p, t| adamw::update::Update::new(s, p, t, a(), a(), a(), a(), a(), factors(), true, true);
        let squares = |s, p, t| adamw::squares::Squares::new(s, p, t, a(), a(), (), (), EACH);
        let root = |s, p, t| adamw::root::Root::new(s, p, t, a(), a(), (), EACH);
        let round = |s, p, t| precision::round_each::RoundEach::new(s, p, t, a(), a(), 16);
        let network = Network { hidden: 32, variant: Variant::ConcatResidual, kernel: 1, edge: Edge::Open };
        let mixing = over_heads::Form::new(&network, 12, true);
        let mix = |s, p, t| over_heads::forward::Forward::new(s, p, t, a(), a(), a(), a(), (), mixing);
        let unmix =
            |s, p, t| over_heads::backward::Backward::new(s, p, t, a(), a(), a(), a(), a(), a(), a(), (), (), mixing);
        Ok(vec![
            self.source("over_heads", mixing.units, mix)?,
            self.source("over_heads_backward", mixing.units, unmix)?,
            self.source("norm", EACH, forward)?,
            self.source("norm_backward", EACH, backward)?,
            self.source("gelu", EACH, gelu)?,
            self.source("gelu_backward", EACH, slope)?,
            self.source("dropout", EACH, drop)?,
            self.source("update", EACH, update)?,
            self.source("squares", EACH, squares)?,
            self.source("root", EACH, root)?,
            self.source("round", EACH, round)?,
        ])
    }
}
