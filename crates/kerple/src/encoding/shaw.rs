//! Relative position representations. Shaw et al. 2018, arXiv:1803.02155, section 3, those of the keys.
//!
//! ```text
//! z = q_i . (k_j + a[clip(i - j, -K, K)]) / sqrt(D)        a [2 K + 1, D]
//! ```
//!
//! All heads share the vectors. Those that the paper adds to values as well are left out: they are no change of scores, and
//! the paper finds that they bring nothing (its Table 3). Enters: scores. Learned: a, in every layer for itself, decayed; a
//! decoder uses the upper half. Past the training length: defined for every distance, all from K on share a vector.

use super::method::{Inputs, Positional};
use super::randomized::Randomized;
use super::refusal::{Checked, Refusal};
use super::words::{Description, SCORES};
use super::{Geometry, Parameter, Scope};
use crate::forms::{DistanceTable, Form, MapForm, TableSlopes};
use crate::maps::relative::{Relative, Source};
use serde::{Deserialize, Serialize};

/// Keys of relative position representations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// K: distances beyond share its vector.
    pub max_distance: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { max_distance: 16 }
    }
}

/// Most distances with a vector of their own.
const MOST: usize = 1 << 20;

impl Positional for Config {
    fn words(&self) -> Description {
        Description {
            name: "Shaw et al.",
            formula: "z = q.(k + a[clip(d, -K, K)]) / sqrt(D)",
            learned: "a: (2 K + 1) D a layer",
            enters: SCORES,
            beyond: "defined: all distances from max_distance on share a vector",
            source: "Shaw et al. 2018, arXiv:1803.02155",
        }
    }

    fn check_keys(&self) -> Checked {
        if (1..=MOST).contains(&self.max_distance) {
            return Ok(());
        }
        let message = format!("{} is out of range, it must be between 1 and {MOST}", self.max_distance);
        Err(Refusal::new("max_distance", message, "the paper has 16"))
    }

    fn check(&self, _: &Geometry) -> Checked {
        Ok(())
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<Parameter> {
        vec![Parameter::matrix("keys", [2 * self.max_distance + 1, geometry.head_dim], 0.02)]
    }

    fn scopes(&self) -> &'static [Scope] {
        Scope::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn longest(&self, _: &Geometry) -> Option<usize> {
        None
    }

    fn form(&self, inputs: &Inputs) -> Form {
        let (Geometry { heads, head_dim, .. }, places) = (*inputs.geometry, &inputs.places);
        let lags = places.drawn.map(<[usize]>::to_vec);
        let map = Relative { heads, head_dim, source: Source::Learned { reach: self.max_distance }, lags }.into();
        let table = DistanceTable { heads, len: places.range.end, ..DistanceTable::default() };
        Form::Map(MapForm { map, table, rotary: None, own: 1 })
    }

    fn slopes(&self, _: &Inputs) -> TableSlopes {
        TableSlopes::default()
    }
}
