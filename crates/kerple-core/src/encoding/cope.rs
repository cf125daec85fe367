//! CoPE: contextual position encoding. Golovneva et al. 2024, arXiv:2405.18719, section 3.
//!
//! ```text
//! p_ij = min(sum over t from j to i of sigmoid(s_it), P - 1)
//! z_ij = s_ij + q_i . e[p_ij]        e at whole positions is learned, between them interpolated
//! ```
//!
//! A key's position is the number of open gates between it and the query, so it depends on the
//! content: sentences or paragraphs may count instead of tokens. `q` is not scaled in `q . e`, as
//! in the paper's code. Enters: scores. Learned: e, `[D, P]`, the same for all heads, in every
//! layer for itself, decayed; it is initialised as 0. Past the training length: defined; keys after
//! more than P - 1 open gates share a position.

use super::description::{Description, SCORES};
use super::error::{Result, check_count};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::{EncodingForm, ScoreModForm};
use crate::forms::DistanceTable;
use crate::score_mods::Cope;
use serde::{Deserialize, Serialize};

/// Keys of contextual positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CopeConfig {
    /// P: whole positions.
    pub npos_max: usize,
}

impl Default for CopeConfig {
    fn default() -> Self {
        CopeConfig { npos_max: 64 }
    }
}

/// Most whole positions.
const MOST: usize = 1 << 16;

impl Positional for CopeConfig {
    fn description(&self) -> Description {
        Description {
            name: "CoPE",
            formula: "z = s + q.e[p], p = min(sum of sigmoid(s) from key to query, P - 1)",
            learned: "e: D P per layer",
            enters: SCORES,
            beyond: "defined: keys after more than P - 1 open gates share a position",
            source: "Golovneva et al. 2024, arXiv:2405.18719",
        }
    }

    fn entry(&self) -> Injection {
        Injection::ScoreMod { tables: TableContents::default(), rotates: false }
    }

    fn check_keys(&self) -> Result {
        check_count("npos_max", self.npos_max, 2..=MOST, "use 64, the usual number of whole positions")
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let start = ParameterInit::Constant(0.0);
        vec![EncodingParameter {
            init: start,
            ..EncodingParameter::matrix("embedding", [geometry.head_dim, self.npos_max], 0.0)
        }]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its positions depend on the content")
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let Geometry { heads, head_dim, .. } = *inputs.geometry;
        let map = Cope { heads, head_dim, positions: self.npos_max }.into();
        let table = DistanceTable { heads, len: inputs.positions.range.end, ..DistanceTable::default() };
        EncodingForm::ScoreMod(ScoreModForm { map, table, rotary: None, own: 1 })
    }
}
