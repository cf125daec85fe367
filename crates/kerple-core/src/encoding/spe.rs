//! Stochastic positional encoding (SPE), for linear attention. Liutkus et al. 2021, arXiv:2105.08399.
//!
//! ```text
//! q_hat[m, r] = sum_d q[m, d] q_bar[m, d, r]        k_hat[n, r] = sum_d k[n, d] k_bar[n, d, r]        r = 1..R
//! E q_hat[m].k_hat[n] / sqrt(R) = sum_d q[m, d] P_d(m - n) k[n, d] / sqrt(D)
//! ```
//!
//! | kind       | kernel `P_d`                                     | learned, for each head and feature |
//! |------------|--------------------------------------------------|-------------------------------|
//! | `sine_spe` | `1/(2K) sum_k lambda_k^2 cos(2 pi f_k lag + theta_k)` | freqs, offsets, gains    |
//! | `conv_spe` | `sum_j a_j b_(j + lag)`, 0 from a lag of P on    | two filters, query and key    |
//!
//! Both may have a gate, see [`Gating`]. Enters: queries and keys of every layer, before the feature map; attention is
//! linear, see `model.block.attention`. Learned values are shared by layers or not by `share`, as for every encoding; the gate
//! is each layer's own. The noise is drawn for a whole pass: anew for every update in training, unless it is `frozen`, always the same one in
//! evaluation, and one for a whole decoded sequence. (The original draws in evaluation too, and anew for every token.)
//!
//! Past the training length: defined for every position of a line; for those of `size` over a plane or volume. A token in front
//! of a sequence is a position of it, so a raster is coded as a whole only where classes are read off the mean of its rows.

use super::description::{DEFINED, Description};
use super::error::{ConfigError, Result, check_count};
use super::method::{FormInputs, Injection, Positional};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, ParameterInit, ParameterShare};
use crate::calculus::parameter::Constraint;
use crate::encoding::EncodingForm;
use crate::features::{ConvShape, Gating, SineShape, filter_scale, padded};
use crate::forms::{CodeForm, CodeKind};
use serde::{Deserialize, Serialize};

const SOURCE: &str = "Liutkus et al. 2021, arXiv:2105.08399";
const ENTERS: &str = "queries and keys of every layer, before the features of linear attention";
/// Most sines, taps and positions along an axis.
const MOST: usize = 1 << 16;
/// Most realisations: random directions of so many features are made orthogonal to each other.
const MOST_REALISATIONS: usize = 1 << 12;
/// Most numbers of a code that are there at once, of all heads or of a few positions.
const MOST_NUMBERS: usize = 1 << 28;

/// What layers share of a draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpeNoise {
    /// Nothing: every layer draws for itself (the JAX code).
    #[default]
    Layer,
    /// The code: one for all layers (the PyTorch code with `share_pe`).
    Shared,
}

/// SineSPE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SineSpeConfig {
    /// Sinusoids for each feature, K.
    pub num_sines: usize,
    /// Realisations, R: features of a query or key after the code.
    pub num_realizations: usize,
    /// Whether the code is gated.
    pub gated: bool,
    /// Which share the gate is of.
    pub gating: Gating,
    /// What layers share of a draw.
    pub noise: SpeNoise,
    /// Whether the gradient in frequencies is counted from the middle of a sequence: the same in the mean, and nearer to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub centred: bool,
    /// Whether the noise is drawn once, as in runs of the released code, instead of anew for every update.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
}

impl Default for SineSpeConfig {
    fn default() -> Self {
        let (gating, noise) = (Gating::Torch, SpeNoise::Layer);
        SineSpeConfig { num_sines: 5, num_realizations: 64, gated: true, gating, noise, centred: false, frozen: false }
    }
}

/// ConvSPE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConvSpeConfig {
    /// Taps of a filter along each axis, P: one number for sequences, two or three for rows of pixels or voxels.
    pub kernel_size: Vec<usize>,
    /// Positions along each axis where there is more than one; their product is the longest sequence.
    pub size: Vec<usize>,
    /// Realisations, R.
    pub num_realizations: usize,
    /// Whether the code is gated.
    pub gated: bool,
    /// Which share the gate is of.
    pub gating: Gating,
    /// What layers share of a draw.
    pub noise: SpeNoise,
    /// Whether the noise is drawn once, as in runs of the released code, instead of anew for every update.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
}

impl Default for ConvSpeConfig {
    fn default() -> Self {
        let (gating, noise) = (Gating::Torch, SpeNoise::Layer);
        ConvSpeConfig {
            kernel_size: vec![128],
            size: vec![],
            num_realizations: 64,
            gated: true,
            gating,
            noise,
            frozen: false,
        }
    }
}

fn check(key: &str, value: usize, most: usize) -> Result {
    check_count(key, value, 1..=most, "remove it to use the default")
}

/// Refuses a code that is larger than any model it could serve.
fn check_size(what: &str, factors: &[usize]) -> Result {
    let numbers = crate::elements(factors).unwrap_or(usize::MAX);
    if numbers <= MOST_NUMBERS {
        return Ok(());
    }
    let message = format!("{what} would need {numbers} values, the limit is {MOST_NUMBERS}");
    Err(ConfigError::new("num_realizations", message, "lower it, or one of its factors"))
}

fn parameter(name: &str, shape: Vec<usize>, init: ParameterInit, share: ParameterShare) -> EncodingParameter {
    let (low, high, keep) = (f64::NEG_INFINITY, f64::INFINITY, Constraint::Projection);
    EncodingParameter { name: name.to_owned(), shape, init, low, high, keep, share, decay: false }
}

fn gate(geometry: &Geometry, gated: bool) -> Option<EncodingParameter> {
    let shape = vec![geometry.heads, geometry.head_dim];
    gated.then(|| parameter("gate", shape, ParameterInit::Normal { std: 1.0 }, ParameterShare::Layer))
}

impl Positional for SineSpeConfig {
    fn description(&self) -> Description {
        Description {
            name: "SineSPE",
            formula: "z = q_hat.k_hat / sqrt(R), E z = sum_i q_i k_i sum_k lambda_k^2 cos(2 pi f_k d + theta_k) / (2K sqrt(D))",
            learned: "freqs, offsets, gains: 3 K M; gate: M per layer",
            enters: ENTERS,
            beyond: DEFINED,
            source: SOURCE,
        }
    }

    fn entry(&self) -> Injection {
        Injection::Code
    }

    fn check_keys(&self) -> Result {
        check("num_sines", self.num_sines, MOST)?;
        check("num_realizations", self.num_realizations, MOST_REALISATIONS)
    }

    fn check(&self, geometry: &Geometry) -> Result {
        let Geometry { heads, head_dim, .. } = *geometry;
        let what = format!("the noise of {} sines with {} realizations", self.num_sines, self.num_realizations);
        check_size(&what, &[heads, head_dim, 2 * self.num_sines + 1, padded(self.num_realizations)])
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let shape = || vec![geometry.heads, geometry.head_dim, self.num_sines];
        let wave = |name, init| parameter(name, shape(), init, ParameterShare::Model);
        let own = [
            wave("freqs", ParameterInit::Around { mean: -4.0, std: 1.0 }),
            wave("offsets", ParameterInit::Normal { std: 1.0 }),
            wave("gains", ParameterInit::Gains { waves: self.num_sines }),
        ];
        own.into_iter().chain(gate(geometry, self.gated)).collect()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED_OR_OWN
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("it draws its code, not its positions")
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let Geometry { heads, head_dim, .. } = *inputs.geometry;
        let kind = SineShape { heads, head_dim, waves: self.num_sines, realisations: self.num_realizations };
        let kind = CodeKind::Sine(kind);
        let (gating, shared) = (self.gated.then_some(self.gating), self.noise == SpeNoise::Shared);
        EncodingForm::Code(CodeForm { kind, gating, shared, frozen: self.frozen, centred: self.centred })
    }
}

impl ConvSpeConfig {
    fn shape(&self, geometry: &Geometry) -> ConvShape {
        let Geometry { heads, head_dim, .. } = *geometry;
        let size = if self.size.is_empty() { vec![1] } else { self.size.clone() };
        ConvShape { heads, head_dim, realisations: self.num_realizations, taps: self.kernel_size.clone(), size }
    }
}

impl Positional for ConvSpeConfig {
    fn description(&self) -> Description {
        Description {
            name: "ConvSPE",
            formula: "z = q_hat.k_hat / sqrt(R), E z = sum_i q_i k_i sum_j a_j b_(j+d) / sqrt(D)",
            learned: "query, key: 2 P M; gate: M per layer",
            enters: ENTERS,
            beyond: DEFINED,
            source: SOURCE,
        }
    }

    fn entry(&self) -> Injection {
        Injection::Code
    }

    fn check_keys(&self) -> Result {
        let axes = self.kernel_size.len();
        if !(1..=3).contains(&axes) {
            return Err(ConfigError::new(
                "kernel_size",
                format!("{axes} axes are out of range, it must be 1 to 3"),
                "use kernel_size = [128], the usual filter",
            ));
        }
        let sizes = if axes == 1 { 0 } else { axes };
        if self.size.len() != sizes {
            let message = format!("{} axes, but a kernel_size of {axes} axes needs {sizes}", self.size.len());
            return Err(ConfigError::new(
                "size",
                message,
                "give the number of positions along each axis, \
                or remove `size` for sequences",
            ));
        }
        self.kernel_size.iter().try_for_each(|taps| check("kernel_size", *taps, MOST))?;
        self.size.iter().try_for_each(|size| check("size", *size, MOST))?;
        check("kernel_size", self.kernel_size.iter().fold(1, |all: usize, taps| all.saturating_mul(*taps)), MOST)?;
        check("num_realizations", self.num_realizations, MOST_REALISATIONS)
    }

    fn check(&self, geometry: &Geometry) -> Result {
        match self.longest(geometry) {
            Some(longest) if longest < geometry.train_len => {
                let message = format!("{:?} has {longest} positions, train_len is {}", self.size, geometry.train_len);
                let hint = "give the number of positions along each axis of a whole sequence; the \
                    class token adds one, pooling = \"mean\" has no class token";
                Err(ConfigError::new("size", message, hint))
            }
            _ => {
                let (noise, what) = (self.shape(geometry).reached_at_once(), "the noise that a few positions reach");
                check_size(what, &[geometry.head_dim, noise, padded(self.num_realizations)])
            }
        }
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let shape = || [&[geometry.heads, geometry.head_dim], &self.kernel_size[..]].concat();
        let init = ParameterInit::Uniform([0.0, filter_scale(&self.kernel_size)]);
        let own = ["query", "key"].map(|name| parameter(name, shape(), init.clone(), ParameterShare::Model));
        own.into_iter().chain(gate(geometry, self.gated)).collect()
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::SHARED_OR_OWN
    }

    fn randomized(&self) -> Randomized {
        Randomized::Never("it draws its code, not its positions")
    }

    fn longest(&self, _: &Geometry) -> Option<usize> {
        let all = || self.size.iter().fold(1, |all: usize, size| all.saturating_mul(*size));
        (!self.size.is_empty()).then(all)
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let kind = CodeKind::Conv(self.shape(inputs.geometry));
        let (gating, shared) = (self.gated.then_some(self.gating), self.noise == SpeNoise::Shared);
        EncodingForm::Code(CodeForm { kind, gating, shared, frozen: self.frozen, centred: false })
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry, ParameterShare};

    #[test]
    fn layers_share_what_is_learned_but_for_their_gates() {
        let geometry = Geometry::new(2, 4, 64);
        for text in [r#"{"kind":"sine_spe","noise":"shared"}"#, r#"{"kind":"conv_spe","noise":"shared"}"#] {
            let encoding: Encoding = serde_json::from_str(text).unwrap();
            let [first, second] = [0, 1].map(|layer| encoding.initial_in_layer(&geometry, 1, layer));
            for ((parameter, first), second) in encoding.parameters(&geometry).iter().zip(first).zip(second) {
                let share = if parameter.name == "gate" { ParameterShare::Layer } else { ParameterShare::Model };
                assert_eq!(
                    (parameter.share, first == second),
                    (share, share == ParameterShare::Model),
                    "{}",
                    parameter.name
                );
            }
        }
    }

    #[test]
    fn a_raster_has_no_place_for_a_token_in_front() {
        let encoding: Encoding =
            serde_json::from_str(r#"{"kind":"conv_spe","kernel_size":[3,3],"size":[32,32]}"#).unwrap();
        assert!(encoding.check(&Geometry::new(2, 4, 1024)).is_ok());
        let refusal = encoding.check(&Geometry::new(2, 4, 1025)).unwrap_err();
        assert!(refusal.message.contains("has 1024 positions"), "{}", refusal.message);
        assert!(refusal.hint.contains("pooling = \"mean\""), "{}", refusal.hint);
    }
}
