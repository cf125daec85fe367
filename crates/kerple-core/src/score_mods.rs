//! Score modifications as plain data, and the code that computes with them.
//!
//! A method that changes the scores of all heads together describes its score modification by a
//! [`ScoreModSpec`]. With its learned parameters in one array, a map becomes a [`ScoreMod`] that attention
//! engines call ([`ScoreModSpec::over`]); `kerple-burn` has the reference in plain tensor operations. The
//! array contains, one after another: a bias `[H, C]` and a weight `[H, C]` by distance where the
//! method has such tables, then what [`ScoreModSpec::numbers`] computes from the method's own parameters:
//! for most maps the parameters themselves, in their order.

mod bias;
mod chunk;
pub mod convolved;
pub mod cope;
pub mod fire;
pub mod mixed;
pub mod network;
pub mod relative;

use crate::Number;
use crate::forms::{ScoreMod, Sides};
pub use cope::Cope;
pub use mixed::Mixed;
pub use relative::Relative;

/// What a method does to the scores of all heads.
#[derive(Clone, Debug, PartialEq)]
pub enum ScoreModSpec {
    /// A bias, and perhaps a network over heads: FIRE, DAPE.
    Mixed(Mixed),
    /// Products of queries with vectors of relative position: Transformer-XL, Shaw et al.
    Relative(Relative),
    /// Positions that gates count: CoPE.
    Cope(Cope),
}

/// The inputs of a score modification about a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreModExtent {
    /// The sides of the tables.
    pub sides: Sides,
    /// Positions of queries and keys are below this number.
    pub len: usize,
    /// Factor on `q.k`.
    pub scale: f64,
}

impl ScoreModSpec {
    /// The map with these numbers.
    ///
    /// # Panics
    /// If there are not as many as the map takes.
    pub fn over<'a, T: Number>(&'a self, values: &'a [T], extent: ScoreModExtent) -> Box<dyn ScoreMod<T> + 'a> {
        T::score_mod(self, values, extent)
    }

    /// The numbers of [`ScoreModSpec::over`] that are computed from a method's own parameters, given those
    /// one after another.
    pub fn numbers(&self, own: &[f64], extent: ScoreModExtent) -> Vec<f64> {
        match self {
            ScoreModSpec::Relative(relative) => relative.numbers(own, extent),
            ScoreModSpec::Mixed(_) | ScoreModSpec::Cope(_) => own.to_vec(),
        }
    }
}

/// [`ScoreModSpec::over`], for a type's compiled engines.
pub(crate) fn boxed<'a, T: Number>(
    spec: &'a ScoreModSpec,
    values: &'a [T],
    extent: ScoreModExtent,
) -> Box<dyn ScoreMod<T> + 'a> {
    match spec {
        ScoreModSpec::Mixed(mixed) => match &mixed.network {
            Some(network) if network.kernel > 1 => {
                Box::new(convolved::ConvolvedMod::new(mixed, network, values, extent))
            }
            _ => Box::new(mixed.over(values, extent)),
        },
        ScoreModSpec::Relative(relative) => Box::new(relative.over(values, extent)),
        ScoreModSpec::Cope(cope) => Box::new(cope.over(values)),
    }
}

#[cfg(test)]
mod tests;
