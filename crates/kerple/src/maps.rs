//! Score maps as plain data, and the code that computes with them.
//!
//! A method that changes the scores of all heads together describes what it does by a [`Map`]. With the numbers it learns,
//! one array of them, a map becomes a [`ScoreMap`] that attention engines call ([`Map::over`]); `kerple-burn` makes the same
//! of plain tensor operations, its definition. The array holds, one after another: a bias `[H, C]` and a weight `[H, C]` by
//! distance where the method hands over such tables, then the method's own parameters in their order.

mod bias;
mod chunk;
pub mod convolved;
pub mod fire;
pub mod mixed;
pub mod network;

use crate::Number;
use crate::forms::{ScoreMap, Sides};
pub use mixed::Mixed;

/// What a method does to the scores of all heads.
#[derive(Clone, Debug, PartialEq)]
pub enum Map {
    /// A bias, and perhaps a network over heads: FIRE, DAPE.
    Mixed(Mixed),
}

/// What the arrays of a call reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The sides of the tables.
    pub sides: Sides,
    /// Positions of queries and keys are below this number.
    pub len: usize,
}

impl Map {
    /// The map with these numbers.
    ///
    /// # Panics
    /// If there are not as many as the map takes.
    pub fn over<'a, T: Number>(&'a self, values: &'a [T], extent: Extent) -> Box<dyn ScoreMap<T> + 'a> {
        match self {
            Map::Mixed(mixed) => match &mixed.network {
                Some(network) if network.kernel > 1 => Box::new(convolved::Over::new(mixed, network, values, extent)),
                _ => Box::new(mixed.over(values, extent)),
            },
        }
    }
}

#[cfg(test)]
mod tests;
