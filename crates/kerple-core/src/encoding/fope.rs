//! FoPE: rotary positions in which each pair of features turns by a learned mixture of rates. Hua et al. 2024, arXiv:2412.17739.
//!
//! ```text
//! c_t = cos(t f) C,  s_t = sin(t f) S        (x_n, x_{n+D/2})  ->  (x_n c_n - x_{n+D/2} s_n,  x_{n+D/2} c_n + x_n s_n)
//! ```
//!
//! f are the rates of rotary whose period is no longer than the training sequences, F of them. C and S, `[F, O]` in every head, mix
//! them to O = min(F, D/4) pairs; for the other pairs c is 1 and s is 0 (`zero_pad`), so that they do not turn. The released code
//! has s = 1 there too, which turns them by 45 degrees and doubles their products: `zero_pad = false`.
//!
//! Enters: queries and keys of every layer, before caching; every query head turns the key by its own numbers. Learned, in every
//! layer for itself and not decayed: `cos_mix` and `sin_mix`, `[H, F, O]`. Both start with a 1 for every rate of a step of F / O, plus
//! N(0, 0.09 * 2 / (F + O)).
//!
//! Scores depend on where the two tokens are, not on their distance alone: the same content moved along has other scores. Past the
//! training length: defined, at angles that training has not seen; none of the rates is slower than a turn in a training sequence.

use super::description::Description;
use super::error::{ConfigError, Result, check_base, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::scaling::plain_rates;
use super::selective_rope::check_pairs;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::{FourierMap, QueryKeyMap};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// As of rotary.
const BASE: f64 = 10_000.0;
/// The gain of the first mixture's noise.
const GAIN: f64 = 0.3;

/// Keys of FoPE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FopeConfig {
    /// Base of the geometric sequence of rates.
    pub base: f64,
    /// Rates turn at least once in so many tokens: the training length unless it is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_len: Option<usize>,
    /// Whether pairs without a mixture do not turn; otherwise their sine is 1, as in the released code.
    pub zero_pad: bool,
}

impl Default for FopeConfig {
    fn default() -> Self {
        FopeConfig { base: BASE, train_len: None, zero_pad: true }
    }
}

impl FopeConfig {
    /// The rates, and how many pairs they are mixed to.
    fn rates(&self, geometry: &Geometry) -> (Vec<f64>, usize) {
        let slowest = TAU / self.train_len.unwrap_or(geometry.train_len).max(1) as f64;
        let all = plain_rates(self.base, geometry.head_dim);
        let rates: Vec<f64> = all.into_iter().filter(|rate| *rate >= slowest).collect();
        let mixed = rates.len().min(geometry.head_dim / 4);
        (rates, mixed)
    }
}

impl Positional for FopeConfig {
    fn description(&self) -> Description {
        Description {
            name: "FoPE",
            formula: "q_t, k_t rotated with cosines cos(t f) C and sines sin(t f) S in place of those of one rate a pair",
            learned: "cos_mix, sin_mix: 2 H F min(F, D/4) per layer, for F rates",
            enters: "queries and keys of every layer",
            beyond: "defined, but the model has not seen those positions, and scores depend on them, not on distances alone",
            source: "Hua et al. 2024, arXiv:2412.17739",
        }
    }

    fn entry(&self) -> Injection {
        Injection::QueryKeyMap { widens: false }
    }

    fn check_keys(&self) -> Result {
        check_base(self.base)?;
        let hint = "remove it to use the training length";
        self.train_len.map_or(Ok(()), |len| check_count("train_len", len, 1..=1 << 40, hint))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        check_pairs("fope", geometry)?;
        if geometry.head_dim < 4 {
            let message =
                format!("fope mixes the rates of a quarter of the features, but heads have {}", geometry.head_dim);
            return Err(ConfigError::new("kind", message, "use heads of at least 4 features"));
        }
        if self.rates(geometry).0.is_empty() {
            let len = self.train_len.unwrap_or(geometry.train_len);
            let message = format!("no rate turns once in {len} tokens, the fastest needs 7");
            return Err(ConfigError::new("train_len", message, "set it to at least 7, or train on longer sequences"));
        }
        Ok(())
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let (rates, mixed) = self.rates(geometry);
        let std = GAIN * (2.0 / (rates.len() + mixed).max(1) as f64).sqrt();
        let mix = |name| EncodingParameter {
            shape: vec![geometry.heads, rates.len(), mixed],
            init: ParameterInit::StepIdentity { rows: rates.len(), columns: mixed, std },
            decay: false,
            ..EncodingParameter::matrix(name, [0, 0], 0.0)
        };
        vec![mix("cos_mix"), mix("sin_mix")]
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("its scores depend on true positions")
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let (rates, mixed) = self.rates(inputs.geometry);
        EncodingForm::QueryKeyMap(QueryKeyMap::Fourier(FourierMap { rates, mixed, zero_pad: self.zero_pad }))
    }

    fn pin_length(&mut self, train_len: usize) {
        self.train_len.get_or_insert(train_len);
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry};

    fn encoding(keys: &str) -> Encoding {
        serde_json::from_str(&format!(r#"{{"kind":"fope"{keys}}}"#)).unwrap()
    }

    #[test]
    fn mixtures_start_near_every_other_rate() {
        // rates 1, 0.1, 0.01, 0.001, of which three turn within 700 tokens, and two pairs are mixed
        let geometry = Geometry::new(2, 8, 700);
        let start = encoding("").initial(&geometry, 3);
        assert_eq!([start[0].len(), start[1].len()], [2 * 3 * 2; 2]);
        for (at, value) in start.iter().flat_map(|values| values.iter().enumerate()) {
            let [rate, pair] = [at / 2 % 3, at % 2];
            let identity = if rate == 2 * pair { 1.0 } else { 0.0 };
            // five deviations of 0.3 sqrt(2 / 5)
            assert!((value - identity).abs() < 0.95, "{at}: {value}");
        }
        let pinned = encoding(r#","train_len":700"#);
        assert_eq!(pinned.parameters(&Geometry { train_len: 64, ..geometry })[0].shape, [2, 3, 2]);
    }

    #[test]
    fn a_model_without_a_rate_is_refused() {
        let check = |geometry| encoding("").check(&geometry).err().map(|error| error.line());
        assert_eq!(check(Geometry::new(2, 8, 7)), None);
        let error = check(Geometry::new(2, 8, 6)).unwrap();
        assert!(error.contains("no rate turns once in 6 tokens") && error.contains("at least 7"), "{error}");
        let error = check(Geometry::new(2, 2, 64)).unwrap();
        assert!(error.contains("heads have 2") && error.contains("at least 4"), "{error}");
    }
}
