//! Transformer-XL's relative positions. Dai et al. 2019, arXiv:1901.02860, section 3.3, without its recurrence.
//!
//! ```text
//! z = [(q_i + u) . k_j + (q_i + v) . r_{i-j}] / sqrt(D)        r_d = W [sin(d f_0), .., cos(d f_0), ..]
//! f_n = 10000^(-2n/M), n < M/2, M = H D
//! ```
//!
//! `u` is added to the queries before their product with the keys, `(q + v) . r` enters afterwards as a map. Enters: queries
//! and scores. Learned: W, u and v, in every layer for itself, all decayed. Encoders take waves of negative distances for
//! keys ahead. Past the training length: defined for every distance, by waves that the model has not seen.

use super::description::{Description, UNSEEN};
use super::error::{ConfigError, Result};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterShare};
use crate::encoding::{EncodingForm, ScoreModForm};
use crate::forms::DistanceTable;
use crate::score_mods::relative::{Relative, RelativeSource};
use serde::{Deserialize, Serialize};

/// Nothing to set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerXlConfig {}

impl Positional for TransformerXlConfig {
    fn description(&self) -> Description {
        Description {
            name: "Transformer-XL",
            formula: "z = ((q + u).k + (q + v).r_d) / sqrt(D), r_d = W [sin(d f), cos(d f)]",
            learned: "W, u, v: M^2 + 2 M per layer",
            enters: "queries and attention scores of every layer",
            beyond: UNSEEN,
            source: "Dai et al. 2019, arXiv:1901.02860",
        }
    }

    fn entry(&self) -> Injection {
        Injection::ScoreMod { tables: TableContents::default(), rotates: false }
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let width = geometry.heads * geometry.head_dim;
        if width.is_multiple_of(2) {
            return Ok(());
        }
        let message = format!("sinusoids need an even number of features over all heads, got {width}");
        Err(ConfigError::new("kind", message, "change model.n_heads or model.head_dim"))
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let (heads, d) = (geometry.heads, geometry.head_dim);
        let width = heads * d;
        vec![
            EncodingParameter::of_layer("weight", &[width, width], width),
            EncodingParameter::matrix("u", [heads, d], 0.02),
            EncodingParameter::matrix("v", [heads, d], 0.02),
        ]
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
        let map = Relative { heads, head_dim, source: RelativeSource::Projected, drawn, values: false }.into();
        let table = DistanceTable { heads, len: positions.range.end, ..DistanceTable::default() };
        EncodingForm::ScoreMod(ScoreModForm { map, table, rotary: None, own: 3 })
    }
}
