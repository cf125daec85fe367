//! Rotary rates for longer sequences than a model was trained on.
//!
//! With `n` rotated features, rates `f_j = base^(-2j/n)`, a training length `P` and a stretch `s`:
//!
//! ```text
//! linear    f_j / s                                               position interpolation; Chen et al. 2023, arXiv:2306.15595
//! ntk       f_j by the base  base s^(n/(n-2))                     the slowest rate becomes f / s, the fastest stays
//! dynamic   f_j by the base  base (factor L/P - (factor-1))^(n/(n-2)), L at least P                 as in transformers
//! yarn      f_j (g_j + (1 - g_j) / s),  g_j = 1 for fast rates, 0 for slow ones, a ramp between
//!           cos and sin times 0.1 ln s + 1                        Peng et al. 2023, arXiv:2309.00071, section 3
//! llama3    f_j, or f_j / s where 2 pi / f_j exceeds P / low, between them a ramp; s = 8
//! self_extend   f_j; keys W and more tokens away at positions of groups of G tokens             Jin et al. 2024, arXiv:2401.01325
//! ```
//!
//! `s` is `factor`, or without one the length of the sequence over `P`, at least 1: sequences that are not longer than in
//! training are rotated as in training. In a sequence that grows, all positions are rotated for the length it has so far.

use super::error::{ConfigError, Result};
use crate::forms::GroupedPositions;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::f64::consts::TAU;

/// A way to stretch rates: in a run file its name, or a table with `kind` and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// All rates are divided.
    Linear(RopeStretch),
    /// The base grows, so that the slowest rate is divided.
    Ntk(RopeStretch),
    /// The base grows with the length.
    Dynamic(DynamicNtk),
    /// Slow rates are divided, and rotated features grow a little.
    Yarn(Yarn),
    /// Slow rates are divided, as in Llama 3.1.
    Llama3(Llama3),
    /// Rates stay, and far keys have positions of groups; for the evaluation of trained models.
    SelfExtend(GroupedPositions),
}

/// Keys of `linear` and `ntk`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RopeStretch {
    /// The stretch; by the length when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Length the rates were made for; the training length when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_len: Option<usize>,
}

/// Keys of `dynamic`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicNtk {
    /// How much faster than the length the stretch grows.
    pub factor: f64,
    /// Length the rates were made for; the training length when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_len: Option<usize>,
}

/// Keys of `yarn`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Yarn {
    /// The stretch; by the length when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Length the rates were made for; the training length when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_len: Option<usize>,
    /// Rates that turn this often within the original length stay.
    pub beta_fast: f64,
    /// Rates that turn only this often are divided.
    pub beta_slow: f64,
    /// What the ramp between the two is linear in.
    pub ramp: YarnRamp,
    /// Factor on cosines and sines; by the stretch when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_factor: Option<f64>,
    /// Whether a ramp in the number of the rate goes between whole numbers.
    #[serde(skip_serializing_if = "is_true")]
    pub truncate: bool,
}

fn is_true(value: &bool) -> bool {
    *value
}

/// What YaRN's ramp is linear in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum YarnRamp {
    /// In the number of turns, as in the paper.
    #[default]
    Turns,
    /// In the number of the rate, between whole numbers, as in the released code and in transformers.
    Index,
}

/// Keys of `llama3`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Llama3 {
    /// The stretch.
    pub factor: f64,
    /// Rates that turn less often than this within the original length are divided.
    pub low_freq_factor: f64,
    /// Rates that turn more often than this stay.
    pub high_freq_factor: f64,
    /// Length the rates were made for; the training length when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_len: Option<usize>,
}

impl Default for DynamicNtk {
    fn default() -> Self {
        DynamicNtk { factor: 1.0, original_len: None }
    }
}

impl Default for Yarn {
    fn default() -> Self {
        let (factor, original_len, attention_factor) = (None, None, None);
        let (ramp, truncate) = (YarnRamp::default(), true);
        Yarn { factor, original_len, beta_fast: 32.0, beta_slow: 1.0, ramp, attention_factor, truncate }
    }
}

impl Default for Llama3 {
    fn default() -> Self {
        Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_len: None }
    }
}

/// The form of a table, with its `kind` among the keys.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum TaggedScaling {
    Linear(RopeStretch),
    Ntk(RopeStretch),
    Dynamic(DynamicNtk),
    Yarn(Yarn),
    Llama3(Llama3),
    SelfExtend(GroupedPositions),
}

/// Names of the kinds.
pub const SCALINGS: [&str; 6] = ["linear", "ntk", "dynamic", "yarn", "llama3", "self_extend"];

impl<'de> Deserialize<'de> for RopeScaling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = match super::finite::value(deserializer)? {
            Value::String(kind) => serde_json::json!({ "kind": kind }),
            table => table,
        };
        let kind = value["kind"].as_str().unwrap_or_default();
        if !SCALINGS.contains(&kind) {
            let message = format!("unknown scaling `{kind}`, use one of {}", SCALINGS.join(", "));
            return Err(D::Error::custom(message));
        }
        Ok(match serde_json::from_value(value).map_err(D::Error::custom)? {
            TaggedScaling::Linear(keys) => RopeScaling::Linear(keys),
            TaggedScaling::Ntk(keys) => RopeScaling::Ntk(keys),
            TaggedScaling::Dynamic(keys) => RopeScaling::Dynamic(keys),
            TaggedScaling::Yarn(keys) => RopeScaling::Yarn(keys),
            TaggedScaling::Llama3(keys) => RopeScaling::Llama3(keys),
            TaggedScaling::SelfExtend(keys) => RopeScaling::SelfExtend(keys),
        })
    }
}

/// A name where every key has its default, which makes short labels.
impl Serialize for RopeScaling {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (written, kind) = match *self {
            RopeScaling::Linear(keys) => {
                (TaggedScaling::Linear(keys), (keys == RopeStretch::default()).then_some("linear"))
            }
            RopeScaling::Ntk(keys) => (TaggedScaling::Ntk(keys), (keys == RopeStretch::default()).then_some("ntk")),
            RopeScaling::Dynamic(keys) => {
                (TaggedScaling::Dynamic(keys), (keys == DynamicNtk::default()).then_some("dynamic"))
            }
            RopeScaling::Yarn(keys) => (TaggedScaling::Yarn(keys), (keys == Yarn::default()).then_some("yarn")),
            RopeScaling::Llama3(keys) => (TaggedScaling::Llama3(keys), (keys == Llama3::default()).then_some("llama3")),
            RopeScaling::SelfExtend(keys) => {
                (TaggedScaling::SelfExtend(keys), (keys == GroupedPositions::default()).then_some("self_extend"))
            }
        };
        match kind {
            Some(kind) => kind.serialize(serializer),
            None => written.serialize(serializer),
        }
    }
}

/// Rates, and what cosines and sines are multiplied by.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledRates {
    /// Radians per position, `[n / 2]`, rounded up.
    pub rates: Vec<f64>,
    /// Factor on both.
    pub amplitude: f64,
}

/// The lengths a stretch follows from.
#[derive(Clone, Copy, Debug)]
pub struct RopeLengths {
    /// Tokens of a training sequence.
    pub train_len: usize,
    /// Tokens of this sequence.
    pub span: usize,
}

impl RopeLengths {
    fn original(self, asked: Option<usize>) -> f64 {
        asked.unwrap_or(self.train_len) as f64
    }

    /// The stretch `s`.
    fn stretch(self, factor: Option<f64>, original_len: Option<usize>) -> f64 {
        factor.unwrap_or_else(|| (self.span as f64 / self.original(original_len)).max(1.0))
    }
}

/// `base^(-2j/n)`, one for the last feature alone where n is odd.
pub(super) fn plain_rates(base: f64, rotated: usize) -> Vec<f64> {
    (0..rotated.div_ceil(2)).map(|j| base.powf(-2.0 * j as f64 / rotated as f64)).collect()
}

/// The rates by the base whose slowest rate is that of `base` divided by `stretch`.
fn with_larger_base(base: f64, rotated: usize, stretch: f64) -> Vec<f64> {
    if rotated <= 2 {
        return plain_rates(base, rotated); // one rate, 1 by any base
    }
    plain_rates(base * stretch.powf(rotated as f64 / (rotated as f64 - 2.0)), rotated)
}

/// `rate` where `keep` is 1, `rate / stretch` where it is 0.
fn partly(rate: f64, stretch: f64, keep: f64) -> f64 {
    rate * keep + rate / stretch * (1.0 - keep)
}

impl RopeScaling {
    /// The same with the length that the rates were made for written down: this one, where it is absent.
    #[must_use]
    pub fn pinned(mut self, train_len: usize) -> RopeScaling {
        match &mut self {
            RopeScaling::Linear(RopeStretch { original_len, .. })
            | RopeScaling::Ntk(RopeStretch { original_len, .. })
            | RopeScaling::Dynamic(DynamicNtk { original_len, .. })
            | RopeScaling::Yarn(Yarn { original_len, .. })
            | RopeScaling::Llama3(Llama3 { original_len, .. }) => {
                original_len.get_or_insert(train_len);
            }
            RopeScaling::SelfExtend(_) => {}
        }
        self
    }

    /// Positions of far keys, where they have their own.
    pub fn grouped(self) -> Option<GroupedPositions> {
        if let RopeScaling::SelfExtend(grouped) = self { Some(grouped) } else { None }
    }

    /// The rates of `rotated` features.
    pub fn scaled(&self, base: f64, rotated: usize, lengths: RopeLengths) -> ScaledRates {
        let divided = |s: f64| plain_rates(base, rotated).into_iter().map(move |rate| rate / s).collect();
        let (rates, amplitude) = match self {
            RopeScaling::Linear(RopeStretch { factor, original_len }) => {
                (divided(lengths.stretch(*factor, *original_len)), 1.0)
            }
            RopeScaling::Ntk(RopeStretch { factor, original_len }) => {
                (with_larger_base(base, rotated, lengths.stretch(*factor, *original_len)), 1.0)
            }
            RopeScaling::Dynamic(DynamicNtk { factor, original_len }) => {
                let stretch = factor * lengths.stretch(None, *original_len) - (factor - 1.0);
                (with_larger_base(base, rotated, stretch), 1.0)
            }
            RopeScaling::SelfExtend(_) => (plain_rates(base, rotated), 1.0),
            RopeScaling::Yarn(yarn) => yarn.rates(base, rotated, lengths),
            RopeScaling::Llama3(llama) => {
                let original = lengths.original(llama.original_len);
                let Llama3 { factor, low_freq_factor: low, high_freq_factor: high, .. } = *llama;
                let keep = |rate: f64| ((original * rate / TAU - low) / (high - low)).clamp(0.0, 1.0);
                let rates = plain_rates(base, rotated).into_iter();
                (rates.map(|rate| partly(rate, factor, keep(rate))).collect(), 1.0)
            }
        };
        ScaledRates { rates, amplitude }
    }

    /// Refuses keys that give no rates in `(0, 1]`.
    pub(super) fn check(&self) -> Result {
        let refuse = |message: String, hint: &str| Err(ConfigError::new("scaling", message, hint));
        let (factor, original_len) = match self {
            RopeScaling::Linear(keys) | RopeScaling::Ntk(keys) => (keys.factor, keys.original_len),
            RopeScaling::Dynamic(keys) => (Some(keys.factor), keys.original_len),
            RopeScaling::Yarn(keys) => (keys.factor, keys.original_len),
            RopeScaling::Llama3(keys) => (Some(keys.factor), keys.original_len),
            RopeScaling::SelfExtend(_) => (None, None),
        };
        if let Some(factor) = factor.filter(|factor| !(factor.is_finite() && *factor >= 1.0)) {
            let message = format!("factor {factor} is out of range, it must be at least 1");
            return refuse(message, "set it to the length of sequences divided by the training length");
        }
        if original_len == Some(0) {
            return refuse(
                "original_len is 0, it must be at least 1".to_owned(),
                "remove it to use the \
                training length",
            );
        }
        match *self {
            RopeScaling::Yarn(Yarn { beta_fast, beta_slow, .. }) if !(beta_slow > 0.0 && beta_fast > beta_slow) => {
                refuse(
                    format!("beta_fast {beta_fast} must exceed beta_slow {beta_slow}, and both must exceed 0"),
                    "use e.g. 32 and 1, as in the paper",
                )
            }
            RopeScaling::Yarn(Yarn { attention_factor: Some(amplitude), .. })
                if amplitude.is_nan() || amplitude <= 0.0 =>
            {
                refuse(format!("attention_factor {amplitude} must exceed 0"), "remove it to use 0.1 ln s + 1")
            }
            RopeScaling::Llama3(Llama3 { low_freq_factor: low, high_freq_factor: high, .. })
                if !(low > 0.0 && high > low) =>
            {
                refuse(
                    format!("high_freq_factor {high} must exceed low_freq_factor {low}, and both must exceed 0"),
                    "use e.g. 4 and 1, as in Llama 3.1",
                )
            }
            RopeScaling::SelfExtend(GroupedPositions { group_size: 0, .. }) => {
                refuse("group_size is 0, it must be at least 1".to_owned(), "use e.g. 8, as in the published code")
            }
            RopeScaling::SelfExtend(GroupedPositions { neighbor_window: 0, .. }) => {
                refuse("neighbor_window is 0, it must be at least 1".to_owned(), "use e.g. half the training length")
            }
            RopeScaling::SelfExtend(_)
            | RopeScaling::Linear(_)
            | RopeScaling::Ntk(_)
            | RopeScaling::Dynamic(_)
            | RopeScaling::Yarn(_)
            | RopeScaling::Llama3(_) => Ok(()),
        }
    }
}

impl Yarn {
    fn rates(&self, base: f64, rotated: usize, lengths: RopeLengths) -> (Vec<f64>, f64) {
        let (original, s) = (lengths.original(self.original_len), lengths.stretch(self.factor, self.original_len));
        let (rates, most) = (plain_rates(base, rotated), (rotated as f64 - 1.0).max(0.0));
        // the number of the rate that turns this often within the original length
        let number = |turns: f64| rotated as f64 * (original / (TAU * turns)).ln() / (2.0 * base.ln());
        let (first, last) = (number(self.beta_fast), number(self.beta_slow));
        let (first, last) = if self.truncate { (first.floor(), last.ceil()) } else { (first, last) };
        let (first, last) = (first.max(0.0), last.min(most));
        let keep = |(j, rate): (usize, f64)| match self.ramp {
            YarnRamp::Turns => (original * rate / TAU - self.beta_slow) / (self.beta_fast - self.beta_slow),
            // equal ends make a step
            YarnRamp::Index if first == last => 1.0 - (j as f64 - first) / 0.001,
            YarnRamp::Index => 1.0 - (j as f64 - first) / (last - first),
        };
        let scaled = rates.iter().enumerate().map(|(j, rate)| partly(*rate, s, keep((j, *rate)).clamp(0.0, 1.0)));
        (scaled.collect(), self.attention_factor.unwrap_or(0.1 * s.ln() + 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LENGTHS: RopeLengths = RopeLengths { train_len: 2048, span: 8192 };

    fn read(value: Value) -> RopeScaling {
        serde_json::from_value(value).unwrap()
    }

    fn rates(value: Value) -> Vec<f64> {
        read(value).scaled(10_000.0, 64, LENGTHS).rates
    }

    #[test]
    fn whatever_rotates_takes_it() {
        let encoding = |value: Value| serde_json::from_value::<crate::encoding::Encoding>(value).unwrap();
        for rotates in [json!({ "kind": "rotary" }), json!({ "kind": "dape", "base": "rotary", "hidden": 5 })] {
            let plain = encoding(rotates);
            let scaled = plain.with_rope_scaling(read(json!("yarn"))).unwrap();
            assert_eq!((plain.rope_scaling(), scaled.rope_scaling()), (None, Some("yarn".to_owned())));
            assert_ne!(plain, scaled);
        }
        for other in [json!({ "kind": "alibi" }), json!({ "kind": "dape" })] {
            let refusal = encoding(other).with_rope_scaling(read(json!("yarn"))).unwrap_err();
            assert!(refusal.message.contains("has no rotary rates"), "{refusal:?}");
        }
    }

    #[test]
    fn names_and_tables_round_trip() {
        for kind in SCALINGS {
            let plain = read(json!(kind));
            assert_eq!(serde_json::to_value(plain).unwrap(), json!(kind));
            let key = if kind == "self_extend" { "group_size" } else { "original_len" };
            let long = read(json!({ "kind": kind, key: 77 }));
            assert_ne!(plain, long);
            assert_eq!(read(serde_json::to_value(long).unwrap()), long);
            assert_eq!(plain.check(), Ok(()));
        }
        for (value, says) in [
            (json!("yarm"), "unknown scaling `yarm`"),
            (json!({"kind": "linear", "beta_fast": 3}), "beta_fast"),
            (json!(5), "unknown scaling"),
        ] {
            let error = serde_json::from_value::<RopeScaling>(value).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_gives_no_rates_is_refused() {
        for (value, says) in [
            (json!({"kind": "linear", "factor": 0.5}), "factor 0.5"),
            (json!({"kind": "dynamic", "factor": -1}), "factor -1"),
            (json!({"kind": "self_extend", "group_size": 0}), "group_size is 0"),
            (json!({"kind": "self_extend", "neighbor_window": 0}), "neighbor_window is 0"),
            (json!({"kind": "ntk", "original_len": 0}), "original_len is 0"),
            (json!({"kind": "yarn", "beta_fast": 1, "beta_slow": 1}), "beta_fast 1 must exceed"),
            (json!({"kind": "yarn", "attention_factor": 0}), "attention_factor 0"),
            (json!({"kind": "llama3", "low_freq_factor": 4}), "high_freq_factor 4 must exceed"),
        ] {
            let refusal = read(value).check().unwrap_err();
            assert!(refusal.to_string().contains(says), "{refusal}");
        }
    }

    #[test]
    fn sequences_of_the_training_length_are_rotated_as_in_training() {
        let lengths = RopeLengths { span: 100, ..LENGTHS };
        for kind in ["linear", "ntk", "dynamic", "yarn"] {
            let ScaledRates { rates, amplitude } = read(json!(kind)).scaled(10_000.0, 64, lengths);
            assert_eq!(amplitude, 1.0);
            for (got, plain) in rates.iter().zip(plain_rates(10_000.0, 64)) {
                // partly() adds two parts of a rate
                assert!((got - plain).abs() <= 1e-15 * plain, "{kind}: {got} {plain}");
            }
        }
    }

    #[test]
    fn the_slowest_rate_is_divided_and_the_fastest_stays_but_for_linear() {
        let plain = plain_rates(10_000.0, 64);
        for kind in ["linear", "ntk", "dynamic", "yarn"] {
            let rates = rates(json!(kind));
            assert!((rates[31] * 4.0 / plain[31] - 1.0).abs() < 1e-13, "{kind}: a stretch of 8192 / 2048");
            let first = if kind == "linear" { 0.25 } else { 1.0 };
            assert!((rates[0] - first).abs() < 1e-13, "{kind}");
            assert!(rates.is_sorted_by(|a, b| a > b), "{kind}");
        }
        let llama = rates(json!("llama3"));
        assert_eq!((llama[0], llama[31]), (1.0, plain[31] / 8.0));
        // a factor of its own, and one that grows faster than the length: 2 * 4 - 1
        assert_eq!(rates(json!({"kind": "linear", "factor": 2}))[0], 0.5);
        let dynamic = rates(json!({"kind": "dynamic", "factor": 2}));
        assert!((dynamic[31] * 7.0 / plain[31] - 1.0).abs() < 1e-13);
        assert_eq!(dynamic, rates(json!({"kind": "ntk", "factor": 7})));
    }

    /// Peng et al. 2023, Eq. 17 to 22, for one rate on the ramp: 2048 f_9 / 2 pi = 24.4 turns.
    #[test]
    fn yarn_follows_its_paper_and_its_code() {
        let yarn = read(json!("yarn")).scaled(10_000.0, 64, LENGTHS);
        assert!((yarn.amplitude - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-15);
        let rate = 10_000f64.powf(-18.0 / 64.0);
        let keep = (2048.0 * rate / TAU - 1.0) / 31.0;
        assert!((0.6..0.9).contains(&keep));
        assert!((yarn.rates[9] - (rate * keep + rate / 4.0 * (1.0 - keep))).abs() < 1e-15);
        // in transformers 8 turns happen between rates 8 and 21: floor(64 ln(2048 / 64 pi) / 2 ln 10000), ceil(.. / 2 pi)
        let index = rates(json!({"kind": "yarn", "ramp": "index"}));
        let plain = plain_rates(10_000.0, 64);
        assert_eq!((index[8], index[21]), (plain[8], plain[21] / 4.0));
        let keep = 1.0 - 4.0 / 13.0;
        assert!((index[12] - (plain[12] * keep + plain[12] / 4.0 * (1.0 - keep))).abs() < 1e-16);
        // without whole numbers the ramp begins a little later
        let ends = [32.0, 1.0].map(|turns: f64| 64.0 * (2048.0 / (TAU * turns)).ln() / (2.0 * 10_000f64.ln()));
        let keep = 1.0 - (12.0 - ends[0]) / (ends[1] - ends[0]);
        let exact = rates(json!({"kind": "yarn", "ramp": "index", "truncate": false}));
        assert!((exact[12] - (plain[12] * keep + plain[12] / 4.0 * (1.0 - keep))).abs() < 1e-16 && exact != index);
        assert_eq!(read(json!({"kind": "yarn", "attention_factor": 2})).scaled(1e4, 64, LENGTHS).amplitude, 2.0);
    }
}
