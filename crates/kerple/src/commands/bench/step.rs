//! A training step of a decoder.

use crate::command_error::CommandResult;
use crate::timing::model::{CHECKED_LEN, TimedModel};
use crate::timing::{Measurement, TimedSizes, TimedWork, check_agreement, check_gradients, times};
use burn::tensor::Tensor;
use kerple_burn::implementation::Impl;
use kerple_lm::forward_context::ForwardContext;
use kerple_lm::model::Decoder;
use kerple_lm::objective::NextTokenPrediction;
use kerple_lm::plan::Plan;
use kerple_lm::train_state::{AdamWStep, TrainState, settings};

/// The step of this model.
pub struct TimedStep(pub TimedModel);

impl TimedStep {
    fn train_state(&self, plan: &Plan, implementation: Impl) -> TrainState<Decoder, NextTokenPrediction> {
        let model = Decoder::new(plan, &self.0.on.device.clone().autodiff()).with_implementation(implementation);
        TrainState::new(model, NextTokenPrediction::default(), settings(plan)).with_implementation(implementation)
    }

    /// Fails unless the loss and every gradient of the fused model equal the reference's.
    fn check(&self, batch: usize) -> CommandResult {
        let plan = self.0.plan(CHECKED_LEN, batch.min(2))?;
        let batch = [self.0.noise_batch(plan.train.batch_size, CHECKED_LEN)];
        let pass = ForwardContext::training(plan.seed, 0);
        let fused = self.train_state(&plan, Impl::Kernel).gradients(&batch, pass);
        let reference = self.train_state(&plan, Impl::Reference).gradients(&batch, pass);
        // a chain of products in f32, each rounded in another order
        const TOLERANCE: f32 = 1e-3;
        let losses = [fused.loss, reference.loss].map(|loss| [loss as f32]);
        check_agreement("the loss of the fused step", &losses[0], &losses[1], TOLERANCE)?;
        let values = |tensor: Tensor<1>| tensor.into_data().iter::<f32>().collect::<Vec<f32>>();
        let [fused, reference] =
            [fused.values, reference.values].map(|all| all.into_iter().map(values).collect::<Vec<Vec<f32>>>());
        check_gradients(&fused, &reference, TOLERANCE)
    }
}

impl TimedWork for TimedStep {
    fn check_length(&self, length: usize, sizes: TimedSizes) -> CommandResult {
        let on = &self.0.on;
        Ok(self.0.plan(length, sizes.batch)?.check_training_memory(on.memory.as_ref(), on.kept_precision)?)
    }

    fn time(&self, length: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        self.check(sizes.batch)?;
        let model = &self.0;
        let plan = model.plan(length, sizes.batch)?;
        let batch = model.noise_batch(sizes.batch, length);
        for (name, implementation) in [("fused", model.on.implementation), ("composed", Impl::Reference)] {
            model.on.device.memory_cleanup();
            let mut train_state = self.train_state(&plan, implementation);
            let mut adam_step = 0;
            let mut run = || {
                adam_step += 1;
                let update = AdamWStep { learning_rate: plan.train.learning_rate, adam_step };
                let pass = ForwardContext::training(plan.seed, adam_step);
                train_state.step(std::slice::from_ref(&batch), pass, update).expect("noise has a finite loss");
            };
            let all = times(sizes.repeats, &mut run);
            let row = model.row(("step", name), &plan, sizes, &all, true);
            report(Measurement { extra_mib: model.on.extra_mib(run), ..row });
        }
        Ok(())
    }
}
