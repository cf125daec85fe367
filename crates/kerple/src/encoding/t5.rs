//! T5's relative bias. Raffel et al. 2020, arXiv:1910.10683, section 2.1; buckets and scale as in GPT-NeoX.
//!
//! ```text
//! b_h(d) = sqrt(D) W[bucket(d), h]
//! ```
//!
//! Half the buckets hold one distance each, the other half grow logarithmically up to `max_distance`, beyond which all
//! distances share the last bucket. Enters: scores, after the `1/sqrt(D)` scale; T5 itself uses neither scale.
//! Past the training length: defined for every d, constant from `max_distance` on.

use super::{Geometry, Init, Parameter, TableGradient, bf16};
use crate::forms::{DistanceTable, Sides};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Keys of a T5 bias.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Number of buckets, even and at least 2.
    pub num_buckets: usize,
    /// Distances from here on share the last bucket; more than `num_buckets / 2`.
    pub max_distance: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { num_buckets: 32, max_distance: 128 }
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct Keys {
            num_buckets: usize,
            max_distance: usize,
        }
        impl Default for Keys {
            fn default() -> Self {
                let Config { num_buckets, max_distance } = Config::default();
                Keys { num_buckets, max_distance }
            }
        }
        let Keys { num_buckets, max_distance } = Keys::deserialize(deserializer)?;
        if num_buckets < 2 || num_buckets % 2 == 1 {
            return Err(D::Error::custom(format!("`num_buckets` is {num_buckets}, it must be even and at least 2")));
        }
        if max_distance <= num_buckets / 2 {
            return Err(D::Error::custom(format!(
                "`max_distance` is {max_distance}, it must exceed num_buckets / 2 = {}",
                num_buckets / 2
            )));
        }
        Ok(Config { num_buckets, max_distance })
    }
}

/// Bucket of a key `distance = i - j` behind the query.
///
/// The logarithm, the division and the product are float32, in this order, as in the original.
/// `causal = false` halves the buckets and gives the upper half to keys after the query (`distance < 0`).
pub fn bucket(distance: i64, num_buckets: usize, max_distance: usize, causal: bool) -> usize {
    let (buckets, offset, n) = match causal {
        true => (num_buckets, 0, distance.max(0) as usize),
        false => (num_buckets / 2, if distance < 0 { num_buckets / 2 } else { 0 }, distance.unsigned_abs() as usize),
    };
    let exact = buckets / 2;
    if n < exact {
        return offset + n;
    }
    let ratio = (max_distance as f64 / exact as f64).ln() as f32;
    let log = (n as f32 / exact as f32).ln() / ratio * (buckets - exact) as f32;
    offset + (exact + log as usize).min(buckets - 1)
}

impl Config {
    /// `W`, `[num_buckets, H]`, Xavier-normal.
    pub fn parameters(&self, geometry: &Geometry) -> Vec<Parameter> {
        let std = (2.0 / (self.num_buckets + geometry.heads) as f64).sqrt();
        vec![Parameter {
            name: "weight".to_owned(),
            shape: vec![self.num_buckets, geometry.heads],
            init: Init::Normal { std },
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
        }]
    }

    fn buckets(&self, len: usize) -> impl Iterator<Item = usize> + '_ {
        (0..len).map(|d| bucket(d as i64, self.num_buckets, self.max_distance, true))
    }

    /// Bias at distances `0..len`.
    pub fn table(&self, geometry: &Geometry, values: &[Vec<f64>], len: usize, low_precision: bool) -> DistanceTable {
        let (heads, scale) = (geometry.heads, (geometry.head_dim as f64).sqrt());
        let round = |value: f64| if low_precision { bf16::round(value) } else { value };
        let entry = |bucket: usize, head: usize| round(scale * round(values[0][bucket * heads + head]));
        let bias = (0..heads).flat_map(|head| self.buckets(len).map(move |bucket| entry(bucket, head))).collect();
        DistanceTable { heads, len, sides: Sides::One, bias: Some(bias), weight: None }
    }

    /// Gradient in `W`.
    pub fn table_backward(&self, geometry: &Geometry, gradient: TableGradient) -> Vec<f64> {
        let (heads, scale) = (geometry.heads, (geometry.head_dim as f64).sqrt());
        let mut d_weight = vec![0.0; self.num_buckets * heads];
        if let Some(d_bias) = gradient.d_bias {
            crate::check_shape!(d_bias, H = heads, L = gradient.len);
            for (head, row) in d_bias.chunks_exact(gradient.len).enumerate() {
                for (bucket, upstream) in self.buckets(gradient.len).zip(row) {
                    d_weight[bucket * heads + head] += scale * upstream;
                }
            }
        }
        d_weight
    }
}
