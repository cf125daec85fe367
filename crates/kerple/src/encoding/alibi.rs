//! ALiBi: attention with linear biases. Press et al. 2022, arXiv:2108.12409, section 3.
//!
//! ```text
//! b_h(d) = -slope_h d
//! ```
//!
//! Slopes are a geometric sequence from `2^(-8/H)` for a power of two H; other head counts take the sequence of the next
//! smaller power of two and every other slope of the next larger one. Enters: scores, after the `1/sqrt(D)` scale. Past the
//! training length: defined for every d. As in the authors' code the slopes are float32 numbers.

use super::method::{Inputs, Positional};
use super::randomized::Randomized;
use super::refusal::Checked;
use super::words::{DEFINED, Description, SCORES};
use super::{Compat, Geometry, Parameter, Scope};
use crate::forms::{DistanceTable, Form, Sides, TableSlopes};
use serde::{Deserialize, Serialize};

/// Nothing to set: the slopes follow from the number of heads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {}

/// Slopes of `heads` heads.
pub fn slopes(heads: usize) -> Vec<f64> {
    // powers of the rounded first slope, as in the authors' code
    let geometric = |n: usize| {
        let start = (-8.0 / n as f64).exp2();
        (0..n).map(move |i| start * start.powf(i as f64))
    };
    if heads.is_power_of_two() {
        return geometric(heads).collect();
    }
    let below = heads.next_power_of_two() / 2;
    let extra = slopes(2 * below).into_iter().step_by(2).take(heads - below);
    geometric(below).chain(extra).collect()
}

impl Config {
    /// Bias at distances `0..len`.
    pub fn table(&self, heads: usize, len: usize, compat: Compat) -> DistanceTable {
        let r = move |value: f64| compat.round(value);
        let row = |slope: f64| (0..len).map(move |d| -r(r(f64::from(slope as f32)) * r(d as f64)));
        let bias = slopes(heads).into_iter().flat_map(row).collect();
        DistanceTable { heads, len, sides: Sides::One, bias: Some(bias), weight: None }
    }
}

impl Positional for Config {
    fn words(&self) -> Description {
        Description {
            name: "ALiBi",
            formula: "z = s - slope_h d",
            learned: "nothing",
            enters: SCORES,
            beyond: DEFINED,
            source: "Press et al. 2022, arXiv:2108.12409",
        }
    }

    fn check_keys(&self) -> Checked {
        Ok(())
    }

    fn check(&self, _: &Geometry) -> Checked {
        Ok(())
    }

    fn parameters(&self, _: &Geometry) -> Vec<Parameter> {
        Vec::new()
    }

    fn scopes(&self) -> &'static [Scope] {
        Scope::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn longest(&self, _: &Geometry) -> Option<usize> {
        None
    }

    fn form(&self, inputs: &Inputs) -> Form {
        Form::Table(self.table(inputs.geometry.heads, inputs.places.range.end, inputs.compat))
    }

    fn slopes(&self, _: &Inputs) -> TableSlopes {
        TableSlopes::default()
    }
}
