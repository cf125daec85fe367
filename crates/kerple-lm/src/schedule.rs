//! Learning-rate schedule of GPT-NeoX. Chi et al. 2022 train with the cosine form.
//!
//! With `n` the number of updates done before this one, `w` warm-up updates of `T`:
//!
//! ```text
//! n <= w :  lr n / w                                  (the first update has rate 0)
//! n >  w :  m = min(n, T - w) - w
//!   cosine       lr (cos(pi m / T) + 1) / 2
//!   linear       lr (T - m) / T
//!   exponential  lr exp(-0.693 m / T)
//! ```
//!
//! The denominator is `T`, not `T - w`, so the rate ends above 0 and is flat for the last `w` updates.

use serde::{Deserialize, Serialize};

/// Shape of the decay after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Half a cosine.
    #[default]
    Cosine,
    /// A straight line.
    Linear,
    /// Halves over the run.
    Exponential,
    /// No decay.
    Constant,
}

/// A learning rate for each update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Peak rate.
    pub learning_rate: f64,
    /// Floor of the decay.
    pub min_learning_rate: f64,
    /// Updates of the whole run, T.
    pub steps: u64,
    /// Share of the steps that warms up.
    pub warmup: f64,
    /// Shape after warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The rate after `done` updates, that is, for update number `done + 1`.
    pub fn at(&self, done: u64) -> f64 {
        let total = self.steps as f64;
        let warmup = self.warmup * total;
        if warmup > 0.0 && done as f64 <= warmup {
            return self.learning_rate * done as f64 / warmup;
        }
        let m = (done as f64).min(total - warmup) - warmup;
        let rate = match self.decay {
            Decay::Cosine => self.learning_rate / 2.0 * ((std::f64::consts::PI * m / total).cos() + 1.0),
            Decay::Linear => self.learning_rate * (total - m) / total,
            Decay::Exponential => self.learning_rate * (-0.693 * m / total).exp(),
            Decay::Constant => self.learning_rate,
        };
        rate.max(self.min_learning_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_schedule_starts_at_zero_and_ends_flat() {
        let schedule =
            Schedule { learning_rate: 6e-4, min_learning_rate: 0.0, steps: 50_000, warmup: 0.01, decay: Decay::Cosine };
        assert_eq!(schedule.at(0), 0.0);
        assert_eq!(schedule.at(250), 3e-4);
        assert_eq!(schedule.at(500), 6e-4);
        assert_eq!(schedule.at(49_500), schedule.at(50_000));
        assert!((schedule.at(50_000) - 5.919_814_715_185_322e-7).abs() < 1e-18);
    }
}
