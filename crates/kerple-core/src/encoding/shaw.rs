//! Relative position representations. Shaw et al. 2018, arXiv:1803.02155, section 3, Eq. 3 and 4.
//!
//! ```text
//! z_ij = q_i . (k_j + a[clip(i - j, -K, K)]) / sqrt(D)        a [2 K + 1, D]
//! out_i = sum over j of p_ij (v_j + b[clip(i - j, -K, K)])    b [2 K + 1, D], with `values`
//! ```
//!
//! All heads share the vectors. The paper adds them to values as well and finds that those bring nothing (its Table 3); `values`
//! asks for them. Enters: scores, and values. Learned: a and b, in every layer for itself, decayed; a decoder uses the upper
//! halves. Past the training length: defined for every distance, all from K on share a vector.

use super::description::{Description, SCORES};
use super::error::{Result, check_count};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterShare};
use crate::encoding::{EncodingForm, ScoreModForm};
use crate::forms::DistanceTable;
use crate::score_mods::relative::{Relative, RelativeSource};
use serde::{Deserialize, Serialize};

/// Keys of relative position representations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShawConfig {
    /// K: distances beyond share its vector.
    pub max_distance: usize,
    /// Whether vectors are added to values too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub values: bool,
}

impl Default for ShawConfig {
    fn default() -> Self {
        ShawConfig { max_distance: 16, values: false }
    }
}

/// Most distances with a vector of their own.
const MOST: usize = 1 << 20;

impl Positional for ShawConfig {
    fn description(&self) -> Description {
        Description {
            name: "Shaw et al.",
            formula: "z = q.(k + a[clip(d, -K, K)]) / sqrt(D)",
            learned: "a: (2 K + 1) D per layer, and as many for values with `values`",
            enters: SCORES,
            beyond: "defined: all distances from max_distance on share one vector",
            source: "Shaw et al. 2018, arXiv:1803.02155",
        }
    }

    fn entry(&self) -> Injection {
        Injection::ScoreMod { tables: TableContents::default(), rotates: false }
    }

    fn check_keys(&self) -> Result {
        check_count("max_distance", self.max_distance, 1..=MOST, "use e.g. 16, as in the paper")
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let vectors = |name| EncodingParameter::matrix(name, [2 * self.max_distance + 1, geometry.head_dim], 0.02);
        if self.values { vec![vectors("keys"), vectors("values")] } else { vec![vectors("keys")] }
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let (Geometry { heads, head_dim, .. }, positions) = (*inputs.geometry, &inputs.positions);
        let drawn = positions.drawn.map(<[usize]>::to_vec);
        let (source, values) = (RelativeSource::Learned { reach: self.max_distance }, self.values);
        let map = Relative { heads, head_dim, source, drawn, values }.into();
        let table = DistanceTable { heads, len: positions.range.end, ..DistanceTable::default() };
        EncodingForm::ScoreMod(ScoreModForm { map, table, rotary: None, own: if values { 2 } else { 1 } })
    }
}
