//! Rotary position embedding. Su et al. 2021, arXiv:2104.09864, section 3.2; half-split form of GPT-NeoX.
//!
//! ```text
//! inv_freq_j = base^(-2j / n),  angle = position * inv_freq_j,  n = rotated features
//! (x_j, x_{j+n/2})  ->  (x_j cos - x_{j+n/2} sin,  x_{j+n/2} cos + x_j sin)
//! ```
//!
//! Enters: queries and keys of every layer, before caching. Past the training length: defined, but the model has not seen
//! those angles; [`RopeScaling`] makes other rates for longer sequences, in training or in the evaluation of a trained model. The
//! original's low-precision runs round `inv_freq` and the positions to bf16.
//!
//! Pairs of slow rates turn less than once within a training sequence. Two methods take their rotation away, which leaves
//! these pairs to the content: p-RoPE (Barbero et al. 2024, arXiv:2410.06205) keeps the fastest share `keep` of the pairs.
//! HoPE (Chen et al. 2024, arXiv:2410.21216) drops the rates whose period `2 pi / f` exceeds the training length; its
//! abstract states the idea and not the rule, so `frequencies` takes the rates themselves.

use super::description::Description;
use super::error::{ConfigError, Result, check_base};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::scaling::{RopeLengths, RopeScaling, ScaledRates, plain_rates};
use super::{Emulate, EncodingParameter, Geometry, ParameterShare};
use crate::encoding::EncodingForm;
use crate::forms::Rotary;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Of the original.
const BASE: f64 = 10_000.0;

/// Keys of a rotary embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RotaryConfig {
    /// Share of each head's features that is rotated, in (0, 1], in whole pairs: of an odd number the last stays as it is.
    pub pct: f64,
    /// Features that the rates are made for, n, instead of that share; of an odd number, one more is rotated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Base of the geometric sequence of rates.
    pub base: f64,
    /// Share of the pairs that turn, in (0, 1]: the fastest; the rates of the others are 0 (p-RoPE).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<f64>,
    /// Rates of the pairs in radians per token, in [0, pi], instead of those of `base` (HoPE): one for each rotated pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<Vec<f64>>,
    /// Other rates for sequences longer than those of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<RopeScaling>,
}

impl Default for RotaryConfig {
    fn default() -> Self {
        RotaryConfig { pct: 1.0, width: None, base: BASE, keep: None, frequencies: None, scaling: None }
    }
}

impl RotaryConfig {
    /// Features of a head that the rates are made for, n; that many are rotated, or one more where it is odd.
    fn width(&self, head_dim: usize) -> usize {
        if let Some(width) = self.width {
            return width;
        }
        let rotated = if self.pct >= 1.0 { head_dim } else { (head_dim as f64 * self.pct) as usize };
        rotated / 2 * 2
    }

    /// The rotation for heads of `head_dim` features, without any scaling.
    pub fn rotary(&self, head_dim: usize, emulate: Emulate) -> Rotary {
        let rates = self.frequencies.clone().unwrap_or_else(|| plain_rates(self.base, self.width(head_dim)));
        self.turning(ScaledRates { rates, amplitude: 1.0 }, emulate)
    }

    /// The same in sequences of these lengths.
    fn scaled(&self, head_dim: usize, lengths: RopeLengths, emulate: Emulate) -> Rotary {
        match self.scaling {
            Some(scaling) => {
                let rotary = self.turning(scaling.scaled(self.base, self.width(head_dim), lengths), emulate);
                Rotary { grouped: scaling.grouped(), ..rotary }
            }
            None => self.rotary(head_dim, emulate),
        }
    }

    /// Pairs, of so many, that turn.
    fn kept(&self, pairs: usize) -> usize {
        // shares that are meant to be whole numbers of pairs may round to just below them
        self.keep.map_or(pairs, |share| (share * pairs as f64 + 1e-9) as usize)
    }

    fn turning(&self, ScaledRates { mut rates, amplitude }: ScaledRates, emulate: Emulate) -> Rotary {
        let kept = self.kept(rates.len());
        rates[kept..].fill(0.0);
        let inv_freq = rates.into_iter().map(|rate| emulate.round(rate)).collect();
        let (bf16_positions, decay_rates) = (emulate == Emulate::Bf16, Vec::new());
        Rotary { inv_freq, amplitude, bf16_positions, decay_rates, grouped: None }
    }
}

impl Positional for RotaryConfig {
    fn description(&self) -> Description {
        Description {
            name: "rotary (RoPE)",
            formula: "q_i, k_j rotated by i f_n, j f_n, f_n = base^(-2n/D)",
            learned: "nothing",
            enters: "queries and keys of every layer",
            beyond: "defined, but the model has not seen those positions; `scaling` changes the \
                rates for them, `keep` (p-RoPE) and `frequencies` (HoPE) stop pairs of slow rates",
            source: "Su et al. 2021, arXiv:2104.09864",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Rotation { decays: false }
    }

    fn check_keys(&self) -> Result {
        if self.width.is_some() && self.pct != 1.0 {
            let message = format!("width and pct = {} both set the number of rotated features", self.pct);
            return Err(ConfigError::new("pct", message, "remove one of them"));
        }
        self.check_kept_rates()?;
        if self.pct > 0.0 && self.pct <= 1.0 {
            check_base(self.base)?;
            return self.scaling.map_or(Ok(()), |scaling| scaling.check());
        }
        let message = format!("{} is out of range, it must be above 0 and at most 1", self.pct);
        Err(ConfigError::new(
            "pct",
            message,
            "set the fraction of features per head that are rotated; 1 \
            rotates all",
        ))
    }

    fn check(&self, geometry: &Geometry) -> Result {
        self.check_rotated(geometry.head_dim)?;
        self.check_pairs(geometry.head_dim)
    }

    fn parameters(&self, _: &Geometry) -> Vec<EncodingParameter> {
        Vec::new()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Positions
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let Geometry { head_dim, train_len, .. } = *inputs.geometry;
        EncodingForm::Rotary(self.scaled(
            head_dim,
            RopeLengths { train_len, span: inputs.positions.span },
            inputs.emulate,
        ))
    }

    fn pin_length(&mut self, train_len: usize) {
        self.scaling = self.scaling.map(|scaling| scaling.pinned(train_len));
    }

    fn rotation_mut(&mut self) -> Option<&mut RotaryConfig> {
        Some(self)
    }
}

/// Checks of single keys.
impl RotaryConfig {
    /// `keep` and `frequencies`, apart from the sizes of a model.
    fn check_kept_rates(&self) -> Result {
        if let Some(keep) = self.keep.filter(|keep| !(*keep > 0.0 && *keep <= 1.0)) {
            let message = format!("{keep} is out of range, it must be above 0 and at most 1");
            return Err(ConfigError::new("keep", message, "set the share of pairs that turn, e.g. 0.75"));
        }
        let Some(rates) = &self.frequencies else { return Ok(()) };
        let refuse = |message: String, hint: &str| Err(ConfigError::new("frequencies", message, hint));
        for (key, is_set) in
            [("keep", self.keep.is_some()), ("scaling", self.scaling.is_some()), ("base", self.base != BASE)]
        {
            if is_set {
                let message = format!("{key} changes rates that follow from base, but frequencies lists the rates");
                return refuse(message, "remove one of the two keys");
            }
        }
        if let Some(rate) = rates.iter().find(|rate| !(0.0..=PI).contains(*rate)) {
            let message = format!("{rate} is out of range, rates must be between 0 and pi radians per token");
            return refuse(message, "use rates such as 1.0, or 0 for a pair that must not turn");
        }
        if rates.iter().all(|rate| *rate == 0.0) {
            return refuse("no rate is above 0, so nothing would be rotated".to_owned(), "use the encoding `none`");
        }
        Ok(())
    }

    /// Whether heads of so many features have the pairs that `keep` and `frequencies` are about.
    fn check_pairs(&self, features: usize) -> Result {
        let pairs = self.width(features).div_ceil(2);
        if let Some(rates) = self.frequencies.as_ref().filter(|rates| rates.len() != pairs) {
            let message = format!("{} rates, but {pairs} pairs of features are rotated", rates.len());
            let hint =
                format!("list {pairs} rates, 0 for pairs that must not turn, or set width = {}", 2 * rates.len());
            return Err(ConfigError::new("frequencies", message, hint));
        }
        if self.kept(pairs) > 0 {
            return Ok(());
        }
        let message =
            format!("{} of {pairs} pairs is less than one, so nothing would be rotated", self.keep.unwrap_or(1.0));
        Err(ConfigError::new("keep", message, format!("use at least {}", 1.0 / pairs as f64)))
    }

    fn check_rotated(&self, features: usize) -> Result {
        if let Some(width) = self.width {
            if (1..=features).contains(&width) && width.next_multiple_of(2) <= features {
                return Ok(());
            }
            let message = format!(
                "{width} is out of range, heads have {features} features, which are rotated \
                    in pairs"
            );
            return Err(ConfigError::new("width", message, "remove it to rotate all features"));
        }
        if self.width(features) > 0 {
            return Ok(());
        }
        if features < 2 {
            let message = format!("rotary rotates pairs of features, but heads have {features}");
            return Err(ConfigError::new("kind", message, "raise model.head_dim to at least 2"));
        }
        Err(ConfigError::new(
            "pct",
            format!("{} of {features} features per head is less than one pair, so nothing would be rotated", self.pct),
            format!("use at least {}", 2.0 / features as f64),
        ))
    }
}

impl Rotary {
    /// `cos` and `sin` of the angles of these positions times the amplitude, `[len, rotated / 2]` each.
    pub fn tables(&self, positions: impl IntoIterator<Item = usize>) -> (Vec<f64>, Vec<f64>) {
        let emulate = if self.bf16_positions { Emulate::Bf16 } else { Emulate::Exact };
        let angle = |position: usize, rate: f64| emulate.round(emulate.round(position as f64) * rate);
        let angles =
            positions.into_iter().flat_map(|position| self.inv_freq.iter().map(move |rate| angle(position, *rate)));
        angles.map(|angle| (self.amplitude * angle.cos(), self.amplitude * angle.sin())).unzip()
    }

    /// Rates at which the products of each of `head_dim` features decay with distance; `None` where
    /// they do not.
    pub fn feature_decay(&self, head_dim: usize) -> Option<Vec<f64>> {
        let of_pairs = self.decay_rates.iter().chain(&self.decay_rates).copied();
        let rates = of_pairs.chain(std::iter::repeat(0.0)).take(head_dim);
        (!self.decay_rates.is_empty()).then(|| rates.collect())
    }

    /// Number of rotated features.
    pub fn rotated(&self) -> usize {
        2 * self.inv_freq.len()
    }
}
