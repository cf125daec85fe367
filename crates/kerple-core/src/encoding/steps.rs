//! Steps of learned positions: keys, and the map from a logit to a step.
//!
//! ```text
//! step = "sigmoid"     phi(a) = min + (max - min) sigmoid(a)
//! step = "softplus"    phi(a) = min + softplus(a)
//! step = "exp"         phi(a) = e^a, a in [-10, 10]
//! ```

use super::error::{ConfigError, Result};
use crate::ops::gate_cumsum::GateMap;
use serde::{Deserialize, Serialize};

/// Largest step unless it says otherwise.
const STEP_MAX: f64 = 2.0;

/// How a row becomes a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepChoice {
    /// Bounded on both sides.
    #[default]
    Sigmoid,
    /// Without an upper bound, so that one token can break a segment.
    Softplus,
    /// Without a scale.
    Exp,
}

/// The keys `step`, `step_max` and `step_min` of a method.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    pub(super) choice: StepChoice,
    pub(super) max: Option<f64>,
    pub(super) min: Option<f64>,
}

impl Steps {
    pub(super) fn map(self) -> GateMap {
        let min = self.min.unwrap_or(0.0);
        match self.choice {
            StepChoice::Sigmoid => GateMap::Sigmoid { min, max: self.max.unwrap_or(STEP_MAX) },
            StepChoice::Softplus => GateMap::Softplus { min },
            StepChoice::Exp => GateMap::Exp,
        }
    }

    /// The logit of a step of 1.
    pub(super) fn start(self) -> f64 {
        match self.map() {
            GateMap::Sigmoid { min, max } => ((1.0 - min) / (max - 1.0)).ln(),
            GateMap::Softplus { min } => (1.0 - min).exp_m1().ln(),
            GateMap::Exp | GateMap::LogSigmoid => 0.0,
        }
    }

    /// Refuses bounds that the choice does not read, or that exclude a step of 1.
    pub(super) fn check(self) -> Result {
        if self.max.is_some() && self.choice != StepChoice::Sigmoid {
            return Err(unused("step_max", "step = \"sigmoid\""));
        }
        if self.min.is_some() && self.choice == StepChoice::Exp {
            return Err(unused("step_min", "step = \"sigmoid\" or \"softplus\""));
        }
        let (min, max) = (self.min.unwrap_or(0.0), self.max.unwrap_or(STEP_MAX));
        if !(0.0..1.0).contains(&min) {
            let message = format!("{min} is out of range, it must be at least 0 and below 1");
            return Err(ConfigError::new("step_min", message, "steps start at 1; e.g. 0.05"));
        }
        if !(max > 1.0 && max <= 1e3) {
            let message = format!("{max} is out of range, it must be above 1 and at most 1000");
            return Err(ConfigError::new("step_max", message, "steps start at 1; e.g. 2"));
        }
        Ok(())
    }
}

/// A key that the choices beside it do not read.
pub(super) fn unused(key: &str, reader: &str) -> ConfigError {
    ConfigError::new(key, format!("has no effect, only {reader} reads it"), "remove it")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With no weight every step is 1, whatever its bounds.
    #[test]
    fn steps_start_at_one() {
        let bounded = [(StepChoice::Sigmoid, Some(3.5), Some(0.2)), (StepChoice::Softplus, None, Some(0.05))];
        let plain = [StepChoice::Sigmoid, StepChoice::Softplus, StepChoice::Exp].map(|choice| (choice, None, None));
        for (choice, max, min) in bounded.into_iter().chain(plain) {
            let steps = Steps { choice, max, min };
            steps.check().unwrap();
            assert!((steps.map().value(steps.start()) - 1.0).abs() < 1e-15, "{steps:?}");
        }
    }
}
