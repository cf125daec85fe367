//! T5's relative bias. Raffel et al. 2020, arXiv:1910.10683, section 2.1; buckets and scale as in GPT-NeoX.
//!
//! ```text
//! b_h(d) = sqrt(D) W[bucket(d), h]
//! ```
//!
//! Half the buckets hold one distance each, the other half grow logarithmically up to `max_distance`, beyond which all
//! distances share the last bucket. An encoder of T5's own gives keys ahead of the query buckets of their own, half of all
//! (`bidirectional`); without it an encoder's bias is that of the absolute distance. Enters: scores, after the `1/sqrt(D)` scale; T5 itself uses neither scale. Learned: W,
//! decayed as every matrix is.
//! Past the training length: defined for every d, constant from `max_distance` on.

use super::description::{Description, SCORES};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterShare};
use crate::encoding::{EncodingForm, Jacobian, TableJacobian};
use crate::forms::{DistanceTable, Sides};
use serde::{Deserialize, Serialize};

/// Keys of a T5 bias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct T5Config {
    /// Number of buckets, even and at least 2.
    pub num_buckets: usize,
    /// Distances from here on share the last bucket; more than the buckets of one distance each.
    pub max_distance: usize,
    /// Whether keys ahead of the query have one half of the buckets, as in T5's encoder.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bidirectional: bool,
}

impl Default for T5Config {
    fn default() -> Self {
        T5Config { num_buckets: 32, max_distance: 128, bidirectional: false }
    }
}

/// Most buckets.
const MOST_BUCKETS: usize = 1 << 16;

/// Bucket of a key at `distance = i - j` before the query.
///
/// The logarithm, the division and the product are float32, in this order, as in the original.
/// `causal = false` halves the buckets and gives the upper half to keys after the query (`distance < 0`).
pub fn bucket(distance: i64, num_buckets: usize, max_distance: usize, causal: bool) -> usize {
    let (buckets, offset, n) = if causal {
        (num_buckets, 0, distance.max(0) as usize)
    } else {
        (num_buckets / 2, if distance < 0 { num_buckets / 2 } else { 0 }, distance.unsigned_abs() as usize)
    };
    let exact = buckets / 2;
    if n < exact {
        return offset + n;
    }
    let ratio = (max_distance as f64 / exact as f64).ln() as f32;
    let log = (n as f32 / exact as f32).ln() / ratio * (buckets - exact) as f32;
    offset + (exact + log as usize).min(buckets - 1)
}

impl T5Config {
    fn sides(&self) -> Sides {
        if self.bidirectional { Sides::TwoSided } else { Sides::OneSided }
    }

    /// The bucket of each column of a table over `len` distances.
    fn rows(&self, len: usize) -> Vec<usize> {
        let origin = self.sides().origin(len) as i64;
        let bucket = |column| bucket(column as i64 - origin, self.num_buckets, self.max_distance, !self.bidirectional);
        (0..self.sides().columns(len)).map(bucket).collect()
    }
}

fn factor(geometry: &Geometry) -> f64 {
    (geometry.head_dim as f64).sqrt()
}

impl Positional for T5Config {
    fn description(&self) -> Description {
        Description {
            name: "T5 bias",
            formula: "z = s + sqrt(D) W[bucket(d), h]",
            learned: "W: num_buckets * H",
            enters: SCORES,
            beyond: "defined: all distances from max_distance on share one value",
            source: "Raffel et al. 2020, arXiv:1910.10683",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Scores(TableContents::bias(self.sides()))
    }

    fn check_keys(&self) -> Result {
        let T5Config { num_buckets, max_distance, bidirectional } = *self;
        let parts = if bidirectional { 4 } else { 2 };
        if num_buckets < parts || num_buckets % parts > 0 {
            let wanted = if bidirectional { "a multiple of 4" } else { "even and at least 2" };
            let message = format!("{num_buckets} is out of range, it must be {wanted}");
            return Err(ConfigError::new("num_buckets", message, "use e.g. 32, as in the original"));
        }
        check_count("num_buckets", num_buckets, parts..=MOST_BUCKETS, "use e.g. 32, as in the original")?;
        if max_distance <= num_buckets / parts {
            let message = format!("{max_distance} must exceed num_buckets / {parts} = {}", num_buckets / parts);
            return Err(ConfigError::new(
                "max_distance",
                message,
                "raise max_distance: half of the \
                buckets hold one distance each",
            ));
        }
        Ok(())
    }

    /// `W`, `[num_buckets, H]`, Xavier-normal.
    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let std = (2.0 / (self.num_buckets as f64 + geometry.heads as f64)).sqrt();
        vec![EncodingParameter::matrix("weight", [self.num_buckets, geometry.heads], std)]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED_OR_OWN
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let (heads, len, factor) = (inputs.geometry.heads, inputs.positions.range.end, factor(inputs.geometry));
        let round = |value: f64| inputs.emulate.round(value);
        let entry = |bucket: usize, head: usize| round(factor * round(inputs.values[0][bucket * heads + head]));
        let rows = self.rows(len);
        let bias = (0..heads).flat_map(|head| rows.iter().map(move |bucket| entry(*bucket, head))).collect();
        EncodingForm::Table(DistanceTable { heads, len, sides: self.sides(), bias: Some(bias), weight: None })
    }

    fn jacobian(&self, inputs: &FormInputs) -> TableJacobian {
        let rows = self.rows(inputs.positions.range.end).into_iter().map(Some).collect();
        TableJacobian {
            sides: self.sides(),
            bias: Some(Jacobian::Rows { factor: factor(inputs.geometry), rows }),
            weight: None,
        }
    }
}
