//! Kernels that do not depend on the head size: norms, epilogues, dropout, AdamW, networks over
//! heads, FIRE's numbers and rounding.

use super::{PIECES, Source, Writer, array};
use crate::attention::{EACH, lines};
use crate::epilogue::{self, Shape};
use crate::{adamw, dropout, norm, over_heads, precision};
use cubecl::CompilationError;
use kerple_core::score_mods::network::{Edge, Network, Variant};

impl Writer {
    pub(super) fn step(&self) -> Result<Vec<Source>, CompilationError> {
        let a = array;
        let form = norm::Form { centred: true, shifted: true, units: EACH };
        let forward = |s, p, t| norm::forward::Forward::new(s, p, t, a(), a(), a(), a(), a(), (), (), (), form);
        let backward =
            |s, p, t| norm::backward::Backward::new(s, p, t, a(), a(), a(), a(), a(), a(), a(), (), (), form);
        let residual = epilogue::Form { bias: true, base: true, shape: None, units: EACH };
        let hidden = epilogue::Form { base: false, shape: Some(Shape::Normal), ..residual };
        let out =
            |form| move |s, p, t| epilogue::forward::Forward::new(s, p, t, a(), a(), a(), a(), (), (), (), (), form);
        let back = |form| {
            move |s, p, t| epilogue::backward::Backward::new(s, p, t, a(), a(), a(), a(), a(), (), (), (), (), form)
        };
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
        let numbers =
            |s, p, t| lines::of_numbers::OfNumbers::new(s, p, t, a(), a(), a(), a(), a(), (), PIECES, PIECES - 1);
        Ok(vec![
            self.source("of_numbers", EACH, numbers)?,
            self.source("over_heads", mixing.units, mix)?,
            self.source("over_heads_backward", mixing.units, unmix)?,
            self.source("norm", EACH, forward)?,
            self.source("norm_backward", EACH, backward)?,
            self.source("gelu", EACH, out(hidden))?,
            self.source("gelu_backward", EACH, back(hidden))?,
            self.source("residual", EACH, out(residual))?,
            self.source("residual_backward", EACH, back(residual))?,
            self.source("dropout", EACH, drop)?,
            self.source("update", EACH, update)?,
            self.source("squares", EACH, squares)?,
            self.source("root", EACH, root)?,
            self.source("round", EACH, round)?,
        ])
    }
}
