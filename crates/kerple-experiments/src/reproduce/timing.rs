//! Training steps, or forward passes, of several encodings in turns, so that other load on the
//! machine affects all alike.

use super::Reproduction;
use crate::error::{Error, Result};
use crate::timing::{TIMING_FILE, Timing, TimingRow};
use kerple_burn::forward_context::ForwardContext;
use kerple_core::encoding::Encoding;
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::DataSource;
use kerple_lm::model::{Decoder, TokenBatch};
use kerple_lm::objective::{NextTokenPrediction, SequenceBatch};
use kerple_lm::plan::Plan;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::BatchSource;
use kerple_lm::train_state::{self, AdamWStep, TrainState};
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
        let timing = &self.experiment.timing;
        let wanted = self.only.is_empty() || timing.serves.iter().any(|item| self.only.contains(item));
        if !wanted || timing.encodings.is_empty() || kerple_run::look(&file)?.is_some() {
            return Ok(true);
        }
        // the usual runs on the first text
        let (Some(part), Some(corpus)) = (self.experiment.parts.first(), self.experiment.corpora.first()) else {
            return Ok(true);
        };
        let set = [part.set.as_slice(), &timing.set].concat();
        let config = self.experiment.config(&set, corpus, self.data_config(&corpus.name))?;
        let source = DataSource::open_until(&config.data, stop)?;
        let plan = |encoding: &Encoding| {
            Plan::new(&RunConfig { encoding: encoding.clone(), ..config.clone() }, source.facts())
        };
        let plans = timing.encodings.iter().map(plan).collect::<Result<Vec<Plan>>>()?;
        let row = |plan: &Plan| TimingRow { encoding: plan.label.clone(), seconds: Vec::new() };
        let mut rows: Vec<TimingRow> = plans.iter().map(row).collect();
        for round in 0..timing.rounds {
            for (plan, row) in plans.iter().zip(&mut rows) {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                let batches = source.batches(plan)?;
                let time = if timing.forward { forward } else { step };
                row.seconds.push(time(plan, &batches, &self.runtime)?);
            }
            tell(round + 1, timing.rounds);
        }
        let (train_len, batch) = (config.train.train_len as u64, config.train.batch_size as u64);
        let provenance = Some(self.runtime.provenance.clone());
        let timing = Timing { train_len, batch, forward: timing.forward, provenance, rows };
        kerple_run::write_json(&file, &timing).map(|()| true)
    }
}

/// Seconds of the second forward pass of a fresh model, all logits included; the first one meets cold caches.
fn forward(plan: &Plan, batches: &dyn BatchSource, runtime: &Runtime) -> Result<f64> {
    let model = Decoder::new(plan, &runtime.device).with_implementation(runtime.implementation);
    let batch = batches.batch(0, 0..plan.train.batch_size)?;
    let mut last = 0.0;
    for _ in 0..2 {
        let tokens = TokenBatch { ids: &batch.tokens, batch: batch.rows, len: batch.len, documents: None };
        let clock = Instant::now();
        let logits = model.logits(tokens, &ForwardContext::evaluation(plan.seed));
        std::hint::black_box(logits.into_data());
        last = clock.elapsed().as_secs_f64();
    }
    Ok(last)
}

/// Seconds of the second step of a fresh train_state; the first one meets cold caches.
fn step(plan: &Plan, batches: &dyn BatchSource, runtime: &Runtime) -> Result<f64> {
    let model = Decoder::new(plan, &runtime.device.clone().autodiff()).with_implementation(runtime.implementation);
    let mut train_state = TrainState::new(model, NextTokenPrediction::default(), train_state::settings(plan));
    let mut last = 0.0;
    for step in 0..2 {
        let micro = plan.train.micro_batch_size.unwrap_or(plan.train.batch_size);
        let parts = kerple_lm::objective::parts(0..plan.train.batch_size, micro)?;
        let parts = parts.into_iter().map(|rows| batches.batch(step, rows)).collect::<Result<Vec<SequenceBatch>>>()?;
        let update =
            AdamWStep { learning_rate: plan.schedule().at(step), adam_step: plan.train.adam_first_step + step };
        let clock = Instant::now();
        train_state.step(&parts, ForwardContext::training(plan.seed, step), update).map_err(|number| {
            Error::NotFinite {
                step: step + 1,
                what: number.what,
                value: number.value,
                hint: "lower train.learning_rate".to_owned(),
            }
        })?;
        last = clock.elapsed().as_secs_f64();
    }
    Ok(last)
}
