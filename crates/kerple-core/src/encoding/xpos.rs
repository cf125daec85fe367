//! xPos: rotary position embedding whose products decay with distance. Sun et al. 2022,
//! arXiv:2212.10554, section 3.
//!
//! ```text
//! s_ij = 1/sqrt(D) sum over pairs n of zeta_n^((i - j) / B) (q_i turned by i f_n) . (k_j turned by j f_n)
//! zeta_n = (2n/D + gamma) / (1 + gamma),  f_n = base^(-2n/D),  n < D/2        B = 512, gamma = 0.4
//! ```
//!
//! The authors' code multiplies queries by `zeta^(i/B)` and keys by `zeta^(-j/B)`, positions counted from the middle, which
//! ends where keys overflow: at some 70,000 positions in f32. Here the engine damps by distance, tile by tile, so that every
//! factor is at most 1 but within a tile, at any position. The paper evaluates long texts in blocks; `window` is the nearest
//! to that here.
//!
//! Enters: queries and keys, before caching, and their products. Learned: nothing. For decoders: ahead of a query the factor
//! would grow. Past the training length: defined for every distance. Pairs are half-split as in [`rotary`], the
//! authors' are neighbours, which is another order of features.

use super::description::Description;
use super::error::{ConfigError, Result, check_base};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterShare, rotary};
use crate::attention::MAX_FEATURE_DECAY;
use crate::encoding::EncodingForm;
use crate::forms::Rotary;
use serde::{Deserialize, Serialize};

/// Keys of xPos.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct XposConfig {
    /// Base of the geometric sequence of rates of rotation.
    pub base: f64,
    /// The larger, the more similar is the decay of all pairs.
    pub gamma: f64,
    /// B: distance, in tokens, over which the products of pair n fall to zeta_n.
    pub scale_base: f64,
}

impl Default for XposConfig {
    fn default() -> Self {
        XposConfig { base: 10_000.0, gamma: 0.4, scale_base: 512.0 }
    }
}

impl XposConfig {
    fn rotation(&self) -> rotary::RotaryConfig {
        rotary::RotaryConfig { base: self.base, ..rotary::RotaryConfig::default() }
    }

    /// Rate of the pair that fades this share of the way up from the fastest, share 0, to share 1, that does not fade.
    fn rate(&self, share: f64) -> f64 {
        ((1.0 + self.gamma) / (share + self.gamma)).ln() / self.scale_base
    }
}

impl Positional for XposConfig {
    fn description(&self) -> Description {
        Description {
            name: "xPos",
            formula: "rotary with q_i.k_j of pair n times zeta_n^(d/B), zeta_n = (2n/D + gamma) / (1 + gamma)",
            learned: "nothing",
            enters: "queries and keys of every layer, and their products",
            beyond: "defined for every distance: products with far keys decay, slowest in pairs of \
                slow rates",
            source: "Sun et al. 2022, arXiv:2212.10554",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Rotation { decays: true }
    }

    fn check_keys(&self) -> Result {
        check_base(self.base)?;
        for (key, value, hint) in [
            ("gamma", self.gamma, "use e.g. 0.4, as in the paper"),
            (
                "scale_base",
                self.scale_base,
                "use e.g. \
                512, as in the paper",
            ),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ConfigError::new(key, format!("{value} is out of range, it must be above 0"), hint));
            }
        }
        let fastest = self.rate(0.0);
        if fastest <= MAX_FEATURE_DECAY {
            return Ok(());
        }
        let message = format!(
            "products would decay by e^-{fastest} per token, the limit is \
            e^-{MAX_FEATURE_DECAY}"
        );
        Err(ConfigError::new("scale_base", message, "raise scale_base or gamma; the paper uses 512 and 0.4"))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        self.rotation().check(geometry)
    }

    fn parameters(&self, _: &Geometry) -> Vec<EncodingParameter> {
        Vec::new()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its products decay with true distances")
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let rotary = self.rotation().rotary(inputs.geometry.head_dim, inputs.emulate);
        let pairs = rotary.inv_freq.len();
        let decay_rates = (0..pairs).map(|n| self.rate(n as f64 / pairs as f64)).collect();
        EncodingForm::Rotary(Rotary { decay_rates, ..rotary })
    }
}

#[cfg(test)]
mod tests {
    use crate::attention::{
        AttentionDims, AttentionProblem, ScoreTable, ScoreTransform, Strides, View, ViewMut, forward, naive,
    };
    use crate::encoding::{Encoding, Geometry, Method};
    use crate::ops::rotary::{Angles, Rotated, Turn, rotate};
    use crate::ops::testing::random;

    const D: usize = 8;

    type Forward = fn(&AttentionProblem<f64>, View<f64>, View<f64>, View<f64>, ViewMut<f64>, &mut [f64]);

    /// Output of attention with xPos over rows whose last one is at position `len - 1`.
    fn attended(q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
        let geometry = Geometry::new(1, D, 16);
        let rotary = Encoding::from(Method::named("xpos").unwrap()).rotary(&geometry, 0).unwrap();
        let decay_rates = rotary.feature_decay(D).unwrap();
        let (keys, queries) = (k.len() / D, q.len() / D);
        let turned = |rows: &[f64], start: usize| {
            let (mut rows, len) = (rows.to_vec(), rows.len() / D);
            let (cos, sin) = rotary.tables(start..start + len);
            let strides = Strides { batch: rows.len(), head: rows.len(), row: D };
            let angles = Angles { cos: &cos, sin: &sin, pairs: D / 2 };
            rotate(&mut rows, strides, Rotated { batch: 1, len, heads: 1 }, angles, Turn::Forward);
            rows
        };
        let (q, k) = (turned(q, keys - queries), turned(k, 0));
        let dims = AttentionDims { batch: 1, heads: 1, kv_heads: 1, queries, keys, head_dim: D, value_dim: D };
        let scores = ScoreTransform::Table(ScoreTable { feature_decay: Some(&decay_rates), ..ScoreTable::PLAIN });
        let problem = AttentionProblem { scores, ..AttentionProblem::causal(dims, 0.6) };
        let strides = |rows: usize| Strides { batch: rows * D, head: rows * D, row: D };
        let view = |data, rows| View { data, strides: strides(rows) };
        let run = |engine: Forward| {
            let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; queries]);
            let to = ViewMut::new(&mut out, strides(queries));
            engine(&problem, view(&q, queries), view(&k, keys), view(v, keys), to, &mut lse);
            out
        };
        let (definition, shipped) = (run(naive::forward), run(forward));
        for (a, b) in definition.iter().zip(&shipped) {
            // f64 sums over the keys in another order
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
        shipped
    }

    /// As the authors' code has it: queries times `zeta^(i / 512)`, keys times `zeta^(-j / 512)`, neighbours as pairs.
    #[test]
    fn scores_are_those_of_scaled_queries_and_keys() {
        let len = 40;
        let [q, k, v] = [1, 2, 3].map(|seed| random(len * D, seed));
        let scaled = |row: &[f64], position: usize, sign: f64| -> Vec<f64> {
            let mut to = vec![0.0; D];
            for n in 0..D / 2 {
                let zeta = (2.0 * n as f64 + 0.4 * D as f64) / (1.4 * D as f64);
                let scale = zeta.powf(sign * (position as f64 - 20.0) / 512.0);
                let angle = position as f64 * 10_000f64.powf(-2.0 * n as f64 / D as f64);
                // our pairs are halves, theirs neighbours
                let (a, b) = (row[n], row[n + D / 2]);
                to[2 * n] = scale * (a * angle.cos() - b * angle.sin());
                to[2 * n + 1] = scale * (b * angle.cos() + a * angle.sin());
            }
            to
        };
        let got = attended(&q, &k, &v);
        for i in 0..len {
            let query = scaled(&q[i * D..][..D], i, 1.0);
            let score = |j: usize| {
                let key = scaled(&k[j * D..][..D], j, -1.0);
                0.6 * query.iter().zip(&key).map(|(a, b)| a * b).sum::<f64>()
            };
            let weights: Vec<f64> = (0..=i).map(|j| score(j).exp()).collect();
            let total: f64 = weights.iter().sum();
            for feature in 0..D {
                let want = weights.iter().enumerate().map(|(j, w)| w * v[j * D + feature]).sum::<f64>() / total;
                assert!((got[i * D + feature] - want).abs() < 1e-13, "{i} {feature}");
            }
        }
    }

    /// The last queries of a million positions, against the formula pair by pair.
    #[test]
    fn a_million_positions_neither_overflow_nor_vanish() {
        let keys = 1_000_000;
        let (k, v) = (random(keys * D, 4), random(keys * D, 5));
        for queries in [1, 3] {
            let out = attended(&random(queries * D, 6), &k, &v);
            assert!(out.iter().all(|x| x.is_finite() && *x != 0.0), "{out:?}");
        }
    }
}
