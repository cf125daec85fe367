//! BAM: a power of the distance with a learned scale, exponent and offset per head, the prior of a generalised Gaussian.
//! Bayesian attention mechanism, arXiv:2505.22842.
//!
//! ```text
//! b_h(d) = -e^alpha_h (|d + mu_h| + eps)^beta_h       d = i - j,  mu_h = 2 sinh(theta_mu_h),  eps = 1e-5
//! db/dalpha = b,  db/dbeta = b ln(|d + mu| + eps),  db/dtheta_mu = b beta / (|d + mu| + eps) sign(d + mu) 2 cosh(theta_mu)
//! ```
//!
//! Enters: scores, after the `1/sqrt(D)` scale. Learned: alpha and beta per head; `theta_mu` too where a start is given, otherwise
//! mu is 0. As in the released code, an offset `mu > 0` puts the origin of distances ahead of the query (`|j - i - mu|`); the
//! README has the other sign. Only a decoder has a use for an offset. The variant with scalable softmax is
//! `model.block.ssmax`.
//!
//! Past the training length: defined for every d; the bias grows or vanishes by beta. A valid kernel only for `mu = 0` and
//! `0 <= beta <= 2`. With a negative exponent a token hides itself (at `beta = -0.7` its own bias is -3162), so starts
//! below 0 are refused, although training may lead there. Values are kept where every bias fits in f32 up to a million
//! tokens. At `d = -mu` there is a corner, which gives theta_mu no gradient.
//!
//! Files of older releases are `(e^alpha |d| + eps)^beta`, which is another kernel.

use super::description::{Description, SCORES};
use super::error::{ConfigError, Result};
use super::method::{FormInputs, Injection, Positional, TableContents};
use super::randomized::Randomized;
use super::{EncodingParameter, Geometry, Jacobian, ParameterInit, ParameterShare};
use crate::encoding::{EncodingForm, TableJacobian};
use crate::forms::{DistanceTable, Sides};
use serde::{Deserialize, Serialize};

/// Keeps the power and its logarithm finite at distance 0.
pub const EPS: f64 = 1e-5;

/// Limits of alpha, beta and theta_mu: `e^20 (1e5)^4` is far below the largest f32, and mu up to a million tokens.
const ALPHA: [f64; 2] = [-20.0, 20.0];
const BETA: [f64; 2] = [-4.0, 4.0];
const THETA_MU: [f64; 2] = [-13.8, 13.8];

/// Keys of BAM: the starts of what it learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BamConfig {
    /// Logarithm of the scale; released files start at 0 or at 1.
    pub alpha: ParameterInit,
    /// Exponent; at 0 the bias is the same at all distances.
    pub beta: ParameterInit,
    /// Offset, as `mu = 2 sinh(theta_mu)`; learned where this is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub theta_mu: Option<ParameterInit>,
}

impl Default for BamConfig {
    fn default() -> Self {
        BamConfig { alpha: ParameterInit::Constant(0.0), beta: ParameterInit::Constant(0.0), theta_mu: None }
    }
}

/// The bias of one head.
#[derive(Clone, Copy)]
struct BamHead {
    alpha: f64,
    beta: f64,
    theta_mu: f64,
}

impl BamHead {
    fn offset(self, d: usize) -> f64 {
        d as f64 + 2.0 * self.theta_mu.sinh()
    }

    fn bias(self, d: usize) -> f64 {
        -(self.alpha + self.beta * (self.offset(d).abs() + EPS).ln()).exp()
    }

    /// Derivatives in alpha, beta and theta_mu.
    fn derivatives(self, d: usize) -> [f64; 3] {
        let (bias, offset) = (self.bias(d), self.offset(d));
        let away = offset.abs() + EPS;
        let side = if offset == 0.0 { 0.0 } else { offset.signum() };
        [bias, bias * away.ln(), bias * self.beta / away * side * 2.0 * self.theta_mu.cosh()]
    }
}

/// What heads learn, from values in the order of [`Positional::parameters`].
fn heads(values: &[Vec<f64>]) -> impl Iterator<Item = BamHead> + '_ {
    let theta_mu = values.get(2);
    values[0].iter().zip(&values[1]).enumerate().map(move |(head, (&alpha, &beta))| BamHead {
        alpha,
        beta,
        theta_mu: theta_mu.map_or(0.0, |values| values[head]),
    })
}

impl Positional for BamConfig {
    fn description(&self) -> Description {
        Description {
            name: "BAM",
            formula: "z = s - e^alpha (abs(d + mu) + 1e-5)^beta, mu = 2 sinh(theta_mu)",
            learned: "alpha, beta: 2 H; theta_mu too where its start is given: 3 H",
            enters: SCORES,
            beyond: "defined for every distance: the bias grows with it for beta > 0 and vanishes for beta < 0",
            source: "Bayesian attention mechanism, 2025, arXiv:2505.22842",
        }
    }

    fn entry(&self) -> Injection {
        Injection::Scores(TableContents::bias(Sides::OneSided))
    }

    fn check_keys(&self) -> Result {
        self.alpha.check("alpha", ALPHA)?;
        self.beta.check("beta", [0.0, BETA[1]])?;
        match self.beta {
            ParameterInit::Uniform([low, _]) => ParameterInit::Constant(low).check("beta", [0.0, BETA[1]])?,
            ParameterInit::Normal { std } if std > 0.0 => {
                let message = "draws around 0 may be negative, and negative exponents hide the query's own token";
                return Err(ConfigError::new("beta", message.to_owned(), "use a number or a range from 0 on"));
            }
            _ => {}
        }
        self.theta_mu.as_ref().map_or(Ok(()), |start| start.check("theta_mu", THETA_MU))
    }

    fn parameters(&self, geometry: &Geometry) -> Vec<EncodingParameter> {
        let per_head = |name, start, limits| EncodingParameter::per_head(name, geometry.heads, start, limits);
        let mut learned = vec![per_head("alpha", self.alpha.clone(), ALPHA), per_head("beta", self.beta.clone(), BETA)];
        learned.extend(self.theta_mu.clone().map(|start| per_head("theta_mu", start, THETA_MU)));
        learned
    }

    fn shares(&self) -> &'static [ParameterShare] {
        ParameterShare::OWN_OR_SHARED
    }

    fn randomized(&self) -> Randomized {
        Randomized::Distances
    }

    fn is_causal_only(&self) -> bool {
        self.theta_mu.is_some()
    }

    fn form(&self, inputs: &FormInputs) -> EncodingForm {
        let len = inputs.positions.range.end;
        let row = |head: BamHead| (0..len).map(move |d| inputs.emulate.round(head.bias(d)));
        let bias = Some(heads(inputs.values).flat_map(row).collect());
        let heads = inputs.geometry.heads;
        EncodingForm::Table(DistanceTable { heads, len, sides: Sides::OneSided, bias, weight: None })
    }

    fn jacobian(&self, inputs: &FormInputs) -> TableJacobian {
        let len = inputs.positions.range.end;
        let of = |index: usize| {
            let row = |head: BamHead| (0..len).map(move |d| head.derivatives(d)[index]);
            (index, heads(inputs.values).flat_map(row).collect())
        };
        let learned = (0..inputs.values.len()).map(of).collect();
        TableJacobian { sides: Sides::OneSided, bias: Some(Jacobian::PerHead(learned)), weight: None }
    }
}

#[cfg(test)]
mod tests {
    use crate::encoding::{Encoding, Geometry, TableGradient, alibi};

    const GEOMETRY: Geometry = Geometry::new(2, 8, 32);

    fn read(text: &str) -> Encoding {
        serde_json::from_str(text).expect("keys of this version")
    }

    #[test]
    fn offsets_have_the_derivatives_of_differences() {
        let (encoding, len) = (read(r#"{"kind":"bam","theta_mu":0.3}"#), 24);
        let values = vec![vec![0.4, -0.3], vec![0.7, -0.6], vec![0.35, -2.1]]; // the second origin is 8 tokens back
        let up: Vec<f64> = (0..2 * len).map(|i| (i as f64 * 0.7).sin()).collect();
        let loss = |values: &[Vec<f64>]| -> f64 {
            let bias = encoding.table(&GEOMETRY, values, len).bias.unwrap();
            bias.iter().zip(&up).map(|(bias, up)| bias * up).sum()
        };
        let gradient = TableGradient { len, d_bias: Some(&up), d_weight: None };
        let analytic = encoding.table_backward(&GEOMETRY, &values, gradient);
        for (p, h) in (0..3).flat_map(|p| [(p, 0), (p, 1)]) {
            let moved = |by: f64| {
                let mut moved = values.clone();
                moved[p][h] += by;
                loss(&moved)
            };
            let numeric = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            // sums of 24 terms below 10, differenced at 1e-6
            assert!((analytic[p][h] - numeric).abs() < 1e-6 * numeric.abs().max(1.0), "{p} {h}: {numeric}");
        }
    }

    #[test]
    fn the_origin_of_a_positive_offset_is_ahead_of_the_query() {
        let encoding = read(r#"{"kind":"bam","theta_mu":0}"#);
        let bias = encoding.table(&GEOMETRY, &[vec![0.0; 2], vec![1.0; 2], vec![1.0, -1.0]], 6).bias.unwrap();
        assert!((bias[0] + 2.0 * 1.0f64.sinh() + super::EPS).abs() < 1e-12, "mu ahead adds to every distance");
        assert!(bias[6 + 2] > bias[6] && bias[6 + 2] > bias[6 + 5], "the bias is largest at a distance of -mu");
        assert!(encoding.is_causal_only() && !read(r#""bam""#).is_causal_only());
        assert!(read(r#"{"kind":"dape","base":{"kind":"bam","theta_mu":0}}"#).is_causal_only());
    }

    #[test]
    fn with_exponent_one_it_is_alibi() {
        let slopes = alibi::slopes(2).into_iter().map(f64::ln).collect();
        let bias = read(r#""bam""#).table(&GEOMETRY, &[slopes, vec![1.0; 2]], 40).bias.unwrap();
        let alibi = read(r#""alibi""#).table(&GEOMETRY, &[], 40).bias.unwrap();
        for (a, b) in bias.iter().zip(&alibi) {
            assert!((a - b).abs() < 1.1 * super::EPS, "{a} {b}"); // eps times a slope below 1
        }
    }
}
