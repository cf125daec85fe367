//! No positions at all (NoPE): the causal mask is the only order. Haviv et al. 2022, arXiv:2203.16634.
//!
//! ```text
//! z = s
//! ```
//!
//! Enters: nowhere. Learned: nothing. Past the training length: defined for every distance.

use super::description::{DEFINED, Description};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterShare};
use crate::encoding::EncodingForm;
use serde::{Deserialize, Serialize};

/// Nothing to set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoPeConfig {}

impl Positional for NoPeConfig {
    fn description(&self) -> Description {
        Description {
            name: "NoPE",
            formula: "z = s",
            learned: "nothing",
            enters: "nowhere: the causal mask is the only order",
            beyond: DEFINED,
            source: "Haviv et al. 2022, arXiv:2203.16634",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Nowhere
    }

    fn parameters(&self, _: &Geometry) -> Vec<EncodingParameter> {
        Vec::new()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("no position enters the model")
    }

    fn form(&self, _: &FormInputs) -> EncodingForm {
        EncodingForm::Nothing
    }
}
