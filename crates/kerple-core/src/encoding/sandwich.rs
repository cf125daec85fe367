//! Sandwich: the product of two sinusoidal positions as a bias. Chi et al. 2022, arXiv:2212.10356, section 5.
//!
//! ```text
//! b_h(d) = H / (8 h) (sum over k < F/2 of cos(d / 10000^(2k/F)) - F/2)        h = 1 .. H
//! ```
//!
//! The product of the sinusoidal rows of two positions depends on their distance alone. `F` is a setting of its own, 128 in
//! the paper, whatever the width of the model; heads divide it by `8 h / H`, as the paper's listing does. Its value at
//! distance 0 is taken off, which no softmax notices. Enters: scores, after the `1/sqrt(D)` scale. Learned: nothing. Past the
//! training length: defined for every distance, falling roughly as a logarithm.

use super::description::{DEFINED, Description, SCORES};
use super::error::{ConfigError, Result, check_base};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{Emulate, EncodingParameter, Geometry, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{DistanceTable, Sides};
use serde::{Deserialize, Serialize};

/// Keys of a sandwich bias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandwichConfig {
    /// F: features of the sinusoidal rows, even.
    pub features: usize,
    /// Base of their rates.
    pub base: f64,
}

impl Default for SandwichConfig {
    fn default() -> Self {
        SandwichConfig { features: 128, base: 10_000.0 }
    }
}

/// Most features.
const MOST: usize = 1 << 16;

impl SandwichConfig {
    /// Bias at distances `0..len`.
    pub fn table(&self, heads: usize, len: usize, emulate: Emulate) -> DistanceTable {
        let r = |value: f64| emulate.round(value);
        let rate = |k: usize| r(self.base.powf(-2.0 * k as f64 / self.features as f64));
        let rates: Vec<f64> = (0..self.features / 2).map(rate).collect();
        // cos x - 1 without its cancellation
        let fallen = |angle: f64| -2.0 * (0.5 * angle).sin().powi(2);
        let sum = |d: usize| r(rates.iter().map(|rate| fallen(r(r(d as f64) * rate))).sum::<f64>());
        let sums: Vec<f64> = (0..len).map(sum).collect();
        let row = |head: usize| sums.iter().map(move |sum| r(sum * heads as f64 / (8.0 * (head + 1) as f64)));
        let bias = (0..heads).flat_map(row).collect();
        DistanceTable { heads, len, sides: Sides::OneSided, bias: Some(bias), weight: None }
    }
}

impl Positional for SandwichConfig {
    fn description(&self) -> Description {
        Description {
            name: "Sandwich",
            formula: "z = s + H/(8h) (sum_k cos(d / 10000^(2k/F)) - F/2), k = 0 .. F/2 - 1, h = 1 .. H",
            learned: "nothing",
            enters: SCORES,
            beyond: DEFINED,
            source: "Chi et al. 2022, arXiv:2212.10356",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Scores(TableContents::bias(Sides::OneSided))
    }

    fn check_keys(&self) -> Result {
        if !(2..=MOST).contains(&self.features) || !self.features.is_multiple_of(2) {
            let message = format!("{} is out of range, it must be even and between 2 and {MOST}", self.features);
            return Err(ConfigError::new("features", message, "use e.g. 128, as in the paper"));
        }
        check_base(self.base)
    }

    fn parameters(&self, _: &Geometry) -> Vec<EncodingParameter> {
        Vec::new()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        EncodingForm::Table(self.table(inputs.geometry.heads, inputs.positions.range.end, inputs.emulate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_is_the_product_of_two_rows() {
        let (heads, len) = (12, 600);
        let table = SandwichConfig::default().table(heads, len, Emulate::Exact).bias.unwrap();
        let row = |t: usize| {
            let angles = (0..64).map(move |k| t as f64 / 10_000f64.powf(2.0 * f64::from(k) / 128.0));
            angles.clone().map(f64::sin).chain(angles.map(f64::cos)).collect::<Vec<f64>>()
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (i, j) in [(0, 0), (5, 4), (100, 0), (599, 37), (599, 0)] {
            let product = dot(&row(i), &row(j));
            for head in 0..heads {
                // the listing: sandwich / (np.arange(1, heads + 1) * 8 / heads)
                let want = (product - 64.0) / ((head + 1) as f64 * 8.0 / 12.0);
                // sums of 128 products of size 1
                assert!((table[head * len + i - j] - want).abs() < 1e-12, "{head} {i} {j}");
            }
        }
    }

    #[test]
    fn nearest_is_highest_and_far_distances_are_finite() {
        let table = SandwichConfig::default().table(4, 1_000_004, Emulate::Exact).bias.unwrap();
        for row in table.chunks(1_000_004) {
            assert_eq!(row[0], 0.0);
            assert!(row[1..].iter().all(|bias| bias.is_finite() && *bias < 0.0));
            assert!(row[2] < row[1] && row[64] < row[16] && row[1024] < row[128]);
        }
        assert_eq!(table[9], 4.0 * table[3 * 1_000_004 + 9], "the fourth head divides by four times as much");
    }
}
