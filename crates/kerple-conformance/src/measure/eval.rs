//! Evaluation of one long segment, as `kerple eval` does it: in chunks where layers keep a state of fixed size.

use kerple::CommandResult;
use kerple::timing::model::{CHECKED_LEN, TimedModel};
use kerple::timing::{Measurement, TimedSizes, TimedWork, check_agreement, times};
use kerple_burn::implementation::Impl;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::Decoder;
use kerple_lm::objective::SequenceBatch;

/// The evaluation of this model.
pub struct TimedEval(pub TimedModel);

/// The loss of every token.
fn losses(model: &Decoder, batch: &SequenceBatch) -> Vec<f32> {
    model.nll(batch.input(), &batch.targets, &ForwardContext::evaluation(0)).into_data().iter::<f32>().collect()
}

impl TimedWork for TimedEval {
    fn check_length(&self, length: usize, sizes: TimedSizes) -> CommandResult {
        let plan = self.0.plan(length, sizes.batch)?;
        Ok(plan.check_evaluation_memory(length.saturating_mul(sizes.batch), self.0.on.memory.as_ref())?)
    }

    fn time(&self, length: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        let timed = &self.0;
        let plan = timed.plan(length, sizes.batch)?;
        let model = Decoder::new(&plan, &timed.on.device);
        let checked = timed.noise_batch(sizes.batch, CHECKED_LEN.min(length));
        let reference = losses(&model.clone().with_implementation(Impl::Reference), &checked);
        // a chain of products in f32, each rounded in another order
        check_agreement("the loss of one token", &losses(&model, &checked), &reference, 1e-4)?;
        let batch = timed.noise_batch(sizes.batch, length);
        let model = model.with_implementation(timed.on.implementation);
        let run = || drop(model.token_losses(batch.input(), &batch.targets, &ForwardContext::evaluation(0)));
        let all = times(sizes.repeats, run);
        let row = timed.row(("eval", "fused"), &plan, sizes, &all, false);
        report(Measurement { extra_mib: timed.on.extra_mib(run), ..row });
        Ok(())
    }
}
