//! Score modifications as plain data, and the code that computes with them.
//!
//! A method that changes the scores of all heads together describes its score modification by a
//! [`Map`]. With its learned parameters in one array, a map becomes a [`ScoreMap`] that attention
//! engines call ([`Map::over`]); `kerple-burn` has the reference in plain tensor operations. The
//! array contains, one after another: a bias `[H, C]` and a weight `[H, C]` by distance where the
//! method has such tables, then what [`Map::numbers`] computes from the method's own parameters:
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
use crate::forms::{ScoreMap, Sides};
pub use cope::Cope;
pub use mixed::Mixed;
pub use relative::Relative;

/// What a method does to the scores of all heads.
#[derive(Clone, Debug, PartialEq)]
pub enum Map {
    /// A bias, and perhaps a network over heads: FIRE, DAPE.
    Mixed(Mixed),
    /// Products of queries with vectors of relative position: Transformer-XL, Shaw et al.
    Relative(Relative),
    /// Positions that gates count: CoPE.
    Cope(Cope),
}

/// The inputs of a score modification about a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// The sides of the tables.
    pub sides: Sides,
    /// Positions of queries and keys are below this number.
    pub len: usize,
    /// Factor on `q.k`.
    pub scale: f64,
}

impl Map {
    /// The map with these numbers.
    ///
    /// # Panics
    /// If there are not as many as the map takes.
    pub fn over<'a, T: Number>(&'a self, values: &'a [T], extent: Extent) -> Box<dyn ScoreMap<T> + 'a> {
        match self {
            Map::Mixed(mixed) => match &mixed.network {
                Some(network) if network.kernel > 1 => {
                    Box::new(convolved::ConvolvedMap::new(mixed, network, values, extent))
                }
                _ => Box::new(mixed.over(values, extent)),
            },
            Map::Relative(relative) => Box::new(relative.over(values, extent)),
            Map::Cope(cope) => Box::new(cope.over(values)),
        }
    }

    /// The numbers of [`Map::over`] that are computed from a method's own parameters, given those
    /// one after another.
    pub fn numbers(&self, own: &[f64], extent: Extent) -> Vec<f64> {
        match self {
            Map::Relative(relative) => relative.numbers(own, extent),
            Map::Mixed(_) | Map::Cope(_) => own.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
