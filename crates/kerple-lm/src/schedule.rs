//! Learning-rate schedules: those of GPT-NeoX, of which Chi et al. 2022 train with the cosine form, and two more.
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
//! A schedule of no updates, `T = 0`, has neither warm-up nor decay: its rate is `lr`.
//!
//! The denominator is `T`, not `T - w`, so the rate ends above 0 and is flat for the last `w` updates.
//!
//! The others go on for any number of updates, from the floor `low`; `c` is the length of a cycle:
//!
//! ```text
//! n <= w :  as above                                   (inverse_root: lr n / w / sqrt(w))
//! n >  w :
//!   inverse_root     lr / sqrt(n)                                           Vaswani et al. 2017
//!   cosine_restarts  low + (lr - low) (cos(pi ((n - w) / c mod 1)) + 1) / 2  Loshchilov and Hutter 2017
//! ```
//!
//! The peak of `inverse_root` is `lr / sqrt(w)`, as the Long Range Arena has it.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Shape of the decay after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// Half a cosine.
    #[default]
    Cosine,
    /// A straight line.
    Linear,
    /// Halves over the run.
    Exponential,
    /// No decay.
    Constant,
    /// By the square root of the number of updates.
    InverseRoot,
    /// Half a cosine again and again.
    CosineRestarts,
}

/// A learning rate for each update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrScheduler {
    /// Peak rate.
    pub learning_rate: f64,
    /// Floor of the decay.
    pub min_lr: f64,
    /// Updates of the whole run, T.
    pub steps: u64,
    /// Share of the steps that warms up.
    pub warmup_ratio: f64,
    /// Shape after warm-up.
    pub lr_schedule: LrSchedule,
    /// Updates of a cycle of [`LrSchedule::CosineRestarts`].
    pub lr_cycle_steps: u64,
}

impl LrScheduler {
    /// The rate after `done` updates, that is, for update number `done + 1`.
    pub fn at(&self, done: u64) -> f64 {
        let total = self.steps as f64;
        let warmup = self.warmup_ratio * total;
        let root =
            if self.lr_schedule == LrSchedule::InverseRoot { warmup.max(done as f64).max(1.0).sqrt() } else { 1.0 };
        if warmup > 0.0 && done as f64 <= warmup {
            return self.learning_rate * done as f64 / warmup / root;
        }
        let m = (done as f64).min(total - warmup) - warmup;
        let rate = match self.lr_schedule {
            LrSchedule::Cosine | LrSchedule::Linear | LrSchedule::Exponential if self.steps == 0 => self.learning_rate,
            LrSchedule::Cosine => self.learning_rate / 2.0 * ((std::f64::consts::PI * m / total).cos() + 1.0),
            LrSchedule::Linear => self.learning_rate * (total - m) / total,
            LrSchedule::Exponential => self.learning_rate * (-0.693 * m / total).exp(),
            LrSchedule::Constant => self.learning_rate,
            LrSchedule::InverseRoot => self.learning_rate / root,
            LrSchedule::CosineRestarts => {
                let low = self.min_lr;
                let share = ((done as f64 - warmup) / self.lr_cycle_steps.max(1) as f64).fract();
                low + (self.learning_rate - low) / 2.0 * ((std::f64::consts::PI * share).cos() + 1.0)
            }
        };
        // unlike `max`, which would hide a rate that is not a number
        if rate < self.min_lr { self.min_lr } else { rate }
    }

    /// The rate of the update after `done` others, as an optimizer may use it.
    ///
    /// # Errors
    /// A rate below 0, NaN or infinity.
    pub fn rate(&self, done: u64) -> Result<f64> {
        let rate = self.at(done);
        if rate.is_finite() && rate >= 0.0 {
            return Ok(rate);
        }
        let hint = "change train.learning_rate, train.min_lr, train.warmup_ratio or train.schedule_steps".to_owned();
        Err(Error::NotFinite { step: done + 1, what: "the learning rate".to_owned(), value: rate, hint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long Range Arena: `lr min(1, s / w) / sqrt(max(s, w))`, and a cosine of 35,000 updates from the warm-up on.
    #[test]
    fn roots_and_restarts_are_those_of_the_arena() {
        let arena = |lr_schedule, learning_rate, steps, warmup_ratio| LrScheduler {
            learning_rate,
            min_lr: 0.0,
            steps,
            warmup_ratio,
            lr_schedule,
            lr_cycle_steps: 35_000,
        };
        let list_ops = arena(LrSchedule::InverseRoot, 0.0125, 10_000, 0.1);
        let published = |s: f64| 0.0125 * (s / 1000.0).min(1.0) / s.max(1000.0).sqrt();
        for done in [0, 1, 500, 1000, 1001, 4000, 10_000, 50_000] {
            assert!((list_ops.at(done) - published(done as f64)).abs() < 1e-15, "{done}");
        }
        let image = arena(LrSchedule::CosineRestarts, 2.5e-4, 93_600, 0.005);
        assert_eq!((image.at(234), image.at(468), image.at(35_468)), (1.25e-4, 2.5e-4, 2.5e-4));
        assert!((image.at(468 + 17_500) - 1.25e-4).abs() < 1e-12 && image.at(35_467) < 1e-11);
        let floor = LrScheduler { min_lr: 5e-6, ..image };
        assert!((floor.at(35_467) - 5e-6).abs() < 1e-11 && floor.at(35_468) == 2.5e-4);
    }

    /// The decays that plans may have, in the order of their list.
    const DECAYS: [LrSchedule; 6] = [
        LrSchedule::Cosine,
        LrSchedule::Linear,
        LrSchedule::Exponential,
        LrSchedule::Constant,
        LrSchedule::InverseRoot,
        LrSchedule::CosineRestarts,
    ];

    #[test]
    fn every_rate_is_finite_and_between_the_floor_and_the_peak() {
        let counts = [0, 1, 2, 3, 10, 1000, 1_000_000_000_000];
        for lr_schedule in DECAYS {
            for (steps, warmup_ratio, lr_cycle_steps) in counts
                .iter()
                .flat_map(|steps| [0.0, 0.01, 0.3, 0.5].map(|warmup_ratio| (*steps, warmup_ratio)))
                .flat_map(|(steps, warmup_ratio)| {
                    [0, 1, 7, steps].map(|lr_cycle_steps| (steps, warmup_ratio, lr_cycle_steps))
                })
            {
                for (learning_rate, min_lr) in [(1e-3, 0.0), (1e-3, 1e-4), (10.0, 10.0), (0.0, 0.0)] {
                    let schedule =
                        LrScheduler { learning_rate, min_lr, steps, warmup_ratio, lr_schedule, lr_cycle_steps };
                    for done in counts.iter().flat_map(|done| [*done, done + 1, steps / 2, steps.saturating_sub(1)]) {
                        let rate = schedule.rate(done).unwrap();
                        let above = rate <= learning_rate * (1.0 + 1e-12);
                        assert!(above, "{schedule:?} after {done}: {rate}");
                        let warm = done as f64 > warmup_ratio * steps as f64;
                        assert!(!warm || rate >= min_lr, "{schedule:?} after {done}: {rate}");
                        let trains = warm && lr_schedule != LrSchedule::CosineRestarts && steps == 0;
                        assert!(!trains || learning_rate == 0.0 || rate > 0.0, "{schedule:?} after {done}: {rate}");
                    }
                }
            }
        }
    }

    #[test]
    fn without_updates_there_is_neither_warm_up_nor_decay() {
        for lr_schedule in [
            LrSchedule::Cosine,
            LrSchedule::Linear,
            LrSchedule::Exponential,
            LrSchedule::Constant,
            LrSchedule::CosineRestarts,
        ] {
            let schedule = LrScheduler {
                learning_rate: 1e-3,
                min_lr: 0.0,
                steps: 0,
                warmup_ratio: 0.01,
                lr_schedule,
                lr_cycle_steps: 0,
            };
            for done in [0, 1, 30, 1000] {
                assert_eq!(schedule.rate(done).unwrap(), 1e-3, "{lr_schedule:?} after {done}");
            }
        }
    }

    #[test]
    fn a_rate_that_is_not_a_number_is_refused_and_not_hidden_by_the_floor() {
        for lr_schedule in DECAYS {
            let schedule = LrScheduler {
                learning_rate: f64::NAN,
                min_lr: 0.0,
                steps: 10,
                warmup_ratio: 0.0,
                lr_schedule,
                lr_cycle_steps: 10,
            };
            let error = schedule.rate(3).unwrap_err();
            assert!(error.to_string().contains("learning rate"), "{lr_schedule:?}: {error}");
        }
    }

    #[test]
    fn the_papers_schedule_starts_at_zero_and_ends_flat() {
        let schedule = LrScheduler {
            learning_rate: 6e-4,
            min_lr: 0.0,
            steps: 50_000,
            warmup_ratio: 0.01,
            lr_schedule: LrSchedule::Cosine,
            lr_cycle_steps: 0,
        };
        assert_eq!(schedule.at(0), 0.0);
        assert_eq!(schedule.at(250), 3e-4);
        assert_eq!(schedule.at(500), 6e-4);
        assert_eq!(schedule.at(49_500), schedule.at(50_000));
        assert!((schedule.at(50_000) - 5.919_814_715_185_322e-7).abs() < 1e-18);
    }
}
