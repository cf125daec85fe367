//! Values in place of training, so that a search can be checked where the answer is known.
//!
//! ```text
//! nll = 3 + 0.2 * error of the best fit to the true kernel + a value per seed + noise
//! ```

use super::plan::{BASELINES, StagePlan};
use super::stages::{Arm, ArmScore, StageOutcome};
use crate::family::Family;
use crate::observations::Observations;
use crate::space::{CurveSpace, relative_error};
use kerple_core::calculus::expr::Expr;
use kerple_run::{Error, Result};
use statrs::distribution::{ContinuousCDF, Normal};
use std::collections::BTreeMap;

/// Loss of what describes the truth.
const LEVEL: f64 = 3.0;
/// Loss of an error of 1: what describes no more than the level.
const GAIN: f64 = 0.2;
/// Standard deviation of what all arms of a seed have in common.
const SEED_DEVIATION: f64 = 0.05;
/// Errors below this are computed no further.
const ENOUGH: f64 = 1e-3;

/// Measures how badly kernels describe a known one.
pub struct SyntheticMeasure {
    truth: Option<Observations>,
    noise: f64,
    /// Error of each kernel that was asked for.
    errors: BTreeMap<String, f64>,
    unproven: bool,
}

impl SyntheticMeasure {
    /// The truth is a kernel without learned parameters on distances `0..length`; without one all arms are equal. `noise` is
    /// the standard deviation of a run.
    ///
    /// # Errors
    /// A kernel that cannot be read, has learned parameters, or is a constant.
    pub fn new(truth: Option<&str>, noise: f64, length: usize, unproven: bool) -> Result<SyntheticMeasure> {
        let refuse =
            |text: &str, what: String, hint: &str| Err(Error::refused(format!("truth `{text}`: {what}"), hint));
        let truth = match truth {
            None => None,
            Some(text) => {
                let hint = "give a kernel with numbers, e.g. --truth 'exp(2.5, 0.02, 1)'";
                let expr = match Expr::parse_unproven(text) {
                    Ok(expr) => expr,
                    Err(error) => return refuse(text, error.to_string(), hint),
                };
                if !expr.parameters().is_empty() {
                    return refuse(text, "its parameters have no values".to_owned(), hint);
                }
                let Some(curve) = CurveSpace::new(length).observe(&|d| expr.at(&[], d)) else {
                    return refuse(text, "it is constant".to_owned(), hint);
                };
                Some(curve)
            }
        };
        Ok(SyntheticMeasure { truth, noise, errors: BTreeMap::new(), unproven })
    }

    /// The error of the best fit of a kernel to the truth, as a share of the truth's size.
    ///
    /// # Errors
    /// A kernel that is not a family.
    pub fn error(&mut self, arm: &Arm) -> Result<f64> {
        let Some(truth) = &self.truth else { return Ok(0.0) };
        let text = BASELINES.iter().find(|(name, _)| arm.number.is_none() && *name == arm.text);
        let text = text.map_or(arm.text.as_str(), |(_, kernel)| kernel);
        if let Some(known) = self.errors.get(text) {
            return Ok(*known);
        }
        let error = relative_error(&Family::read(text, self.unproven)?, truth, ENOUGH);
        self.errors.insert(text.to_owned(), error);
        Ok(error)
    }

    /// The scores of a stage.
    ///
    /// # Errors
    /// As [`SyntheticMeasure::error`].
    pub fn stage(&mut self, stage: &StagePlan, arms: &[Arm]) -> Result<StageOutcome> {
        let score = |arm: &Arm| {
            let error = self.error(arm)?;
            let of_seed = |seed: &u64| {
                let common = SEED_DEVIATION * normal(&format!("{}/{seed}", stage.name));
                let own = self.noise * normal(&format!("{}/{seed}/{}", stage.name, arm.folder));
                ArmScore { nll_by_length: vec![(0, LEVEL + GAIN * error + common + own)], diverged: None }
            };
            Ok(stage.seeds.iter().map(of_seed).collect())
        };
        Ok(StageOutcome::Measured(arms.iter().map(score).collect::<Result<_>>()?))
    }
}

/// A normal number that a text determines.
fn normal(text: &str) -> f64 {
    let digits = kerple_data::fingerprint(text.as_bytes());
    // 52 bits, in the middle of their cell, so never 0 or 1
    let bits = u64::from_str_radix(&digits[..13], 16).expect("a fingerprint is hexadecimal");
    let uniform = (bits as f64 + 0.5) / 2f64.powi(52);
    Normal::standard().inverse_cdf(uniform)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_standard_normal() {
        let all: Vec<f64> = (0..20_000).map(|i| normal(&i.to_string())).collect();
        let mean = all.iter().sum::<f64>() / 20_000.0;
        let variance = all.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        // four standard errors: 1 / sqrt(20000) and sqrt(2 / 20000)
        assert!(mean.abs() < 0.0283 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
    }

    #[test]
    fn a_truth_is_a_kernel_with_numbers() {
        for (truth, message) in
            [("exp(c, a, 1)", "its parameters have no values"), ("const(3)", "constant"), ("lag(1)", "lag")]
        {
            let Err(error) = SyntheticMeasure::new(Some(truth), 0.01, 64, false) else { panic!("{truth}") };
            assert!(error.is_misuse() && error.to_string().contains(message), "{error}");
        }
        let mut measure = SyntheticMeasure::new(Some("log(1.3, 0.4)"), 0.01, 256, false).unwrap();
        let errors: Vec<f64> = Arm::baselines().iter().map(|arm| measure.error(arm).unwrap()).collect();
        assert!(errors[0] < 0.01 && errors[1] > 0.1 && (errors[2] - 1.0).abs() < 1e-9, "{errors:?}");
    }
}
