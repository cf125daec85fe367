//! Training steps of several encodings beside each other, in turns, so that what else the machine does meets all alike.

use super::Reproduction;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::learner::{self, Learner, Update};
use crate::model::Decoder;
use crate::plan::Plan;
use crate::task::{Batch, LanguageModel};
use crate::train::Batches;
use kerple_burn::pass::Pass;
use kerple_report::paper::{TIMING_FILE, Timing, TimingRow};
use kerple_report::record;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

impl Reproduction {
    /// Times training steps, unless it was done before; `false` when `stop` was set before the end. `tell` is called with
    /// rounds done and rounds in all.
    ///
    /// # Errors
    /// Text that cannot be read, a file that cannot be written.
    pub fn time(&self, stop: &AtomicBool, tell: &mut dyn FnMut(usize, usize)) -> Result<bool> {
        let file = self.out.join(TIMING_FILE);
        if !self.is_timed() || file.exists() {
            return Ok(true);
        }
        let plans = self.timed_plans()?;
        let mut rows: Vec<TimingRow> =
            plans.iter().map(|plan| TimingRow { encoding: plan.label.clone(), seconds: Vec::new() }).collect();
        let rounds = self.experiment.timing.rounds;
        let sources = self.sources()?;
        let Some(source) = sources.values().next() else { return Ok(true) };
        for round in 0..rounds {
            for (plan, row) in plans.iter().zip(&mut rows) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                row.seconds.push(seconds(plan, &source.batches(plan)?)?);
            }
            tell(round + 1, rounds);
        }
        let Some(plan) = plans.first() else { return Ok(true) };
        let (train_len, batch) = (plan.train_len as u64, plan.train.batch as u64);
        Ok(record::write_json(&file, &Timing { train_len, batch, rows }).map(|()| true)?)
    }

    /// The plans of the usual runs with these encodings, on the first text that is there.
    fn timed_plans(&self) -> Result<Vec<Plan>> {
        let sources = self.sources()?;
        let usual = self.planned.iter().find(|planned| planned.run.variant.is_empty());
        let (Some(usual), Some(source)) = (usual, sources.values().next()) else { return Ok(Vec::new()) };
        let config = self.config(usual)?;
        let plan = |encoding: &kerple::encoding::Encoding| {
            Plan::new(&RunConfig { encoding: encoding.clone(), ..config.clone() }, source.facts())
        };
        self.experiment.timing.encodings.iter().map(plan).collect()
    }
}

/// Seconds of the second step of a fresh learner; the first one meets cold caches.
fn seconds(plan: &Plan, batches: &dyn Batches) -> Result<f64> {
    let model = Decoder::new(plan, &crate::device().autodiff());
    let mut learner = Learner::new(model, LanguageModel, learner::settings(plan));
    let mut last = 0.0;
    for step in 0..2 {
        let micro = plan.train.micro_batch.unwrap_or(plan.train.batch);
        let parts = crate::task::parts(0..plan.train.batch, micro)?;
        let parts =
            parts.into_iter().map(|rows| Ok(batches.batch(step, rows)?.into())).collect::<Result<Vec<Batch>>>()?;
        let update = Update { learning_rate: plan.schedule().at(step), adam_step: plan.train.first_adam_step + step };
        let clock = Instant::now();
        learner.step(&parts, Pass::training(plan.seed, step), update).map_err(|number| Error::NotFinite {
            step: step + 1,
            what: number.what,
            value: number.value,
            hint: "lower train.learning_rate".to_owned(),
        })?;
        last = clock.elapsed().as_secs_f64();
    }
    Ok(last)
}
