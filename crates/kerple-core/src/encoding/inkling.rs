//! Inkling's relative bias: low rank, made by each row of its own features. transformers 5.23, `models/inkling`.
//!
//! ```text
//! r_i = W_r y_i                       W_r [M, H R], y the layer's own normed rows
//! b_ij = r_i . P[:, i - j]            0 <= i - j < E, else 0;  P [R, E], shared by the heads of a layer
//! z_ij = tau_i (s_ij + b_ij)          tau_i = 1 + alpha ln(max(1, (i + 1) / floor)), or 1 without `log_scale`
//! ```
//!
//! Enters: scores, after the scale. Its models scale by `1/D` after norms of queries and keys: `model.block.attn_scale`
//! and `model.block.qk_norm`. Learned: `weight` (W_r) and `profiles` (P), both N(0, 0.02^2) as transformers initialises
//! them. Past the training length: defined at every length, since keys at distance E and beyond keep their scores; far keys
//! then dilute the near ones unless tau grows.
//!
//! For decoders with softmax attention. tau multiplies scores and bias alike, so it multiplies queries and rows before
//! attention. Positions i count the tokens of the sequence from 0. Under a window `reach` is the window unless it is given, as in
//! the released models; columns beyond the window have gradient 0.

use super::description::{Description, SCORES};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{LogLengthFactor, RowProfiles};
use serde::{Deserialize, Serialize};

/// The largest rank, far above the released ones.
pub const MOST_RANK: usize = 1024;
/// The longest reach, likewise.
pub const MOST_REACH: usize = 1 << 20;

/// Keys of Inkling's relative bias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InklingConfig {
    /// Numbers that a row makes for each head, R.
    pub rank: usize,
    /// Distances with a bias, E. In a run file without the key it is the window where there is one.
    pub reach: usize,
    /// How scores grow with the position; absent: not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_scale: Option<LogScale>,
    /// Initial profiles; 0 starts without a bias.
    pub profiles: ParameterInit,
}

/// Keys of the log-length factor: `1 + alpha ln(max(1, (i + 1) / floor))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogScale {
    /// Positions up to which the factor is 1.
    pub floor: f64,
    /// How fast it grows from there on.
    pub alpha: f64,
}

impl InklingConfig {
    /// The name of the method, and of the key whose default is the window.
    pub(super) const KIND: &str = "inkling";
    pub(super) const REACH: &str = "reach";
}

impl Default for InklingConfig {
    fn default() -> Self {
        InklingConfig { rank: 16, reach: 1024, log_scale: None, profiles: ParameterInit::Normal { std: 0.02 } }
    }
}

impl Positional for InklingConfig {
    fn description(&self) -> Description {
        Description {
            name: "Inkling",
            formula: "z = tau_i (s + r_i.P[d]) for d < E, r = y W, tau_i = 1 + alpha ln(max(1, (i + 1) / floor))",
            learned: "weight: M H R, profiles: R E per layer",
            enters: SCORES,
            beyond: "defined for every distance: no bias from `reach` on, so that only `log_scale` keeps far keys from \
                diluting near ones",
            source: "transformers 5.23, models/inkling, 2026",
        }
    }

    fn entry(&self) -> Injection {
        Injection::RelativeBias
    }

    fn check_keys(&self) -> Result {
        check_count("rank", self.rank, 1..=MOST_RANK, "the released models use 16")?;
        check_count("reach", self.reach, 1..=MOST_REACH, "the released models use 1024, or the window")?;
        self.profiles.check("profiles", [f64::NEG_INFINITY, f64::INFINITY])?;
        let Some(LogScale { floor, alpha }) = self.log_scale else { return Ok(()) };
        for (name, value, usual) in [("floor", floor, 128_000.0), ("alpha", alpha, 0.1)] {
            if !(value > 0.0 && value.is_finite()) {
                let message = format!("{name} = {value} is out of range, it must be above 0");
                return Err(ConfigError::new("log_scale", message, format!("the released models use {usual}")));
            }
        }
        Ok(())
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let Geometry { heads, d_model, .. } = *geometry;
        let profiles = EncodingParameter::matrix("profiles", [self.rank, self.reach], 0.0);
        vec![
            EncodingParameter::matrix("weight", [d_model, heads * self.rank], 0.02),
            EncodingParameter { init: self.profiles.clone(), ..profiles },
        ]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its bias ends at a true distance")
    }

    fn is_causal_only(&self) -> bool {
        true
    }

    fn form(&self, _: &FormInputs) -> EncodingForm {
        let log_scale = self.log_scale.map(|LogScale { floor, alpha }| LogLengthFactor { floor, alpha });
        EncodingForm::RelativeBias(RowProfiles { rank: self.rank, reach: self.reach, log_scale })
    }
}

#[cfg(test)]
mod tests {
    use super::InklingConfig;
    use crate::encoding::{Encoding, Method};
    use crate::forms::LogLengthFactor;

    #[test]
    fn the_reach_is_the_window_unless_it_is_given() {
        for (keys, expected) in [
            ("", InklingConfig::default().reach),
            (r#","window":512"#, 512),
            (r#","window":512,"reach":40"#, 40),
            (r#","reach":40"#, 40),
        ] {
            let encoding: Encoding = serde_json::from_str(&format!(r#"{{"kind":"inkling"{keys}}}"#)).unwrap();
            let Method::Inkling(InklingConfig { reach, .. }) = encoding.method else { panic!("{keys}") };
            assert_eq!(reach, expected, "{keys}");
        }
        let error = serde_json::from_str::<Encoding>(r#"{"kind":"inkling","window":0}"#).unwrap_err().to_string();
        assert!(error.contains("a window of 0"), "{error}");
    }

    #[test]
    fn factors_are_1_up_to_the_floor() {
        let factor = LogLengthFactor { floor: 8.0, alpha: 0.5 };
        assert_eq!([0, 6, 7].map(|position| factor.at(position)), [1.0; 3]);
        assert_eq!(factor.at(15), 1.0 + 0.5 * 2f64.ln());
    }
}
