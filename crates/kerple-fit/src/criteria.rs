//! Criteria by which families are compared.
//!
//! ```text
//! loglik = -n/2 (ln(2 pi s2) + 1),  s2 = max(rss / n, floor)      BIC  = k ln n - 2 loglik                    (Schwarz 1978)
//! with a known sigma: -2 loglik = rss / sigma^2                   AICc = 2k - 2 loglik + 2k (k+1) / (n-k-1)   (Hurvich, Tsai 1989)
//! ```
//!
//! The floor is the rounding of the values, so an exact curve is decided by k.

use serde::Serialize;
use std::f64::consts::PI;

/// Families whose criterion is within this of the best are not distinguished from it.
pub const TOLD_APART: f64 = 6.0;

/// By what families are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankBy {
    /// The Bayesian information criterion.
    #[default]
    Bic,
    /// Akaike's criterion for small samples.
    Aicc,
    /// The error of prediction past half of the distances.
    Far,
}

/// How residuals vary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Noise {
    /// Independently, with a standard deviation that is estimated.
    #[default]
    Independent,
    /// Independently, with this standard deviation (divided by the root of a weight).
    Known(f64),
    /// Each residual is rho times the one before it and something independent; rho is estimated.
    Autoregressive,
}

/// Criteria of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criteria {
    /// Natural logarithm of the likelihood, without constants where sigma is known.
    pub loglik: f64,
    /// The Bayesian information criterion.
    pub bic: f64,
    /// Akaike's criterion for small samples; infinite where there are too few values for it.
    pub aicc: f64,
}

/// Criteria of a residual sum of squares of `n` values with `k` parameters; `rho` is the correlation that was removed.
pub(crate) fn criteria(rss: f64, n: usize, k: usize, floor: f64, noise: Noise, rho: f64) -> Criteria {
    let (count, parameters) = (n as f64, k as f64);
    let loglik = match noise {
        Noise::Known(sigma) => -0.5 * rss / (sigma * sigma),
        _ => -0.5 * count * ((2.0 * PI * (rss / count).max(floor)).ln() + 1.0) + 0.5 * (1.0 - rho * rho).ln(),
    };
    let room = count - parameters - 1.0;
    let small = if room > 0.0 { 2.0 * parameters * (parameters + 1.0) / room } else { f64::INFINITY };
    Criteria { loglik, bic: parameters * count.ln() - 2.0 * loglik, aicc: 2.0 * parameters - 2.0 * loglik + small }
}
