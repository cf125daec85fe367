//! A model in training: the gradients of a batch, with gradient accumulation over its
//! micro-batches, and the updates.

use crate::objective::{Objective, SequenceBatch};
use crate::plan::Plan;
use crate::ranks::{self, AllReduce, BatchLoss, Ranks};
use burn::module::Module;
use burn::tensor::Tensor;
use kerple_burn::adamw::AdamW;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::host_array::HostArray;
use kerple_burn::implementation::Impl;
use kerple_burn::parameters::{self, NamedParameter, ParamGroupOverrides};

pub use kerple_burn::adamw::{AdamWConfig, AdamWStep};

/// The mean loss of a batch, and its gradient in each parameter, flattened, in the order of the module.
#[derive(Clone, Debug)]
pub struct BatchGradients {
    /// Mean over the scored targets.
    pub loss: f64,
    /// Zero in a parameter that the loss does not depend on.
    pub values: Vec<Tensor<1>>,
}

/// What an update did, or did not where one of these is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMetrics {
    /// Mean loss of the batch before the update.
    pub loss: f64,
    /// Global norm of its gradient before clipping.
    pub grad_norm: f64,
    /// Targets of the batch that were scored, over all ranks.
    pub scored: u64,
}

/// A loss or gradient that is not a number; nothing was updated.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFiniteValue {
    /// The loss, or the name of the first parameter with such a gradient.
    pub what: String,
    /// NaN or infinity.
    pub value: f64,
}

/// What a checkpoint holds of a training state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPart {
    /// The values of the parameters, by their paths.
    Weights,
    /// The optimizer's moments: `first.PATH` of all parameters, then `second.PATH`.
    Moments,
}

impl StepMetrics {
    /// Whether there was an update.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }
}

/// A model, its objective and its optimizer.
pub struct TrainState<M, T> {
    /// Away only during an update.
    model: Option<M>,
    objective: T,
    optimizer: AdamW,
    ranks: Ranks,
    /// Losses, norms and numbers of scored targets of updates that were not read yet.
    unread: Vec<(BatchLoss, Tensor<1>, u64)>,
    /// Added to every norm: 0 until a loss or a norm was not finite, and from then on no number, which no update survives.
    found_nonfinite: Option<Tensor<1>>,
}

/// The optimizer's settings of a plan.
pub fn settings(plan: &Plan) -> AdamWConfig {
    let train = &plan.train;
    AdamWConfig {
        betas: train.adam_betas,
        epsilon: train.adam_eps,
        weight_decay: train.weight_decay,
        clip: train.grad_clip,
    }
}

impl<M: Module + ParamGroupOverrides, T: Objective<M>> TrainState<M, T> {
    /// A fresh training state; `model` lives on a device with autodiff.
    pub fn new(model: M, objective: T, settings: AdamWConfig) -> TrainState<M, T> {
        let optimizer = AdamW::new(&model, settings);
        TrainState {
            model: Some(model),
            objective,
            optimizer,
            ranks: Ranks::alone(),
            unread: Vec::new(),
            found_nonfinite: None,
        }
    }

    /// The same with an optimizer that computes with this implementation.
    pub fn with_implementation(self, implementation: Impl) -> TrainState<M, T> {
        TrainState { optimizer: self.optimizer.with_implementation(implementation), ..self }
    }

    /// The same as one of several ranks, which all make the same updates.
    pub fn with_ranks(self, ranks: Ranks) -> TrainState<M, T> {
        TrainState { ranks, ..self }
    }

    /// The model as it is now.
    pub fn model(&self) -> &M {
        self.model.as_ref().expect("the model is only away during an update")
    }

    fn take(&mut self) -> M {
        self.model.take().expect("the model is only away during an update")
    }

    /// What is learned.
    pub fn objective(&self) -> &T {
        &self.objective
    }

    /// The loss and gradients of a batch in micro-batches, `parts`. With several ranks, `parts` are
    /// those of this rank, every n-th of the batch ([`Ranks::rows`]) and of equal size, and every
    /// rank has equally many; loss and gradients are those of the whole batch. `pass` is that of
    /// the first part of the batch. Draws for all positions are for those of the longest sequence
    /// of all parts. Gradient accumulation adds whole parts in their order.
    pub fn gradients(&self, parts: &[SequenceBatch], pass: ForwardContext) -> BatchGradients {
        let (loss, values, _) = self.sums(parts, pass);
        BatchGradients { loss: loss.read(), values }
    }

    /// The same with the loss where it was made, and how many targets of the batch are scored.
    fn sums(&self, parts: &[SequenceBatch], pass: ForwardContext) -> (BatchLoss, Vec<Tensor<1>>, u64) {
        let weight: usize = parts.iter().map(|part| self.objective.weight(part)).sum();
        let longest = parts.iter().map(|part| self.objective.span(self.model(), part)).max().unwrap_or(0);
        let all = self.ranks.gather(&(weight, longest));
        let scored = all.iter().map(|(weight, _)| weight).sum::<usize>();
        let total = scored as f64;
        let pass = pass.over(all.iter().map(|(_, longest)| *longest).max().unwrap_or(0));
        let mut sum = AllReduce::new(&self.ranks, parameters::values(self.model()));
        let mut row = self.ranks.rank() * parts.first().map_or(0, |part| part.rows);
        for part in parts {
            let (loss, gradients) = self.part(part, total, &pass.at_row(row));
            sum.add(loss, gradients);
            row += part.rows * self.ranks.world_size();
        }
        let (loss, values) = sum.finish();
        (loss, values, scored as u64)
    }

    /// A part's share of the loss, in pieces, and of the gradients of a batch that scores `total` targets.
    fn part(
        &self,
        part: &SequenceBatch,
        total: f64,
        pass: &ForwardContext,
    ) -> (Vec<Tensor<1>>, Vec<Option<Tensor<1>>>) {
        let (mut loss, mut sums) = (Vec::new(), vec![None; self.optimizer.groups().len()]);
        let weight = self.objective.weight(part);
        // a part of which nothing is scored has no loss
        if weight > 0 {
            self.objective.each_loss(self.model(), part, pass, &mut |piece| {
                let piece = piece / (total / weight as f64);
                loss.push(piece.clone().inner());
                ranks::add(&mut sums, parameters::gradients(self.model(), &mut piece.backward()));
            });
        }
        (loss, sums)
    }

    /// One update by a batch in micro-batches, `parts`.
    ///
    /// # Errors
    /// A loss or gradient that is not finite; the state is then as it was.
    pub fn step(
        &mut self,
        parts: &[SequenceBatch],
        pass: ForwardContext,
        update: AdamWStep,
    ) -> Result<StepMetrics, NonFiniteValue> {
        self.advance(parts, pass, update);
        let learned = self.read().pop().expect("there was an update");
        if learned.is_finite() {
            return Ok(learned);
        }
        self.found_nonfinite = None;
        Err(self.explain_nonfinite(parts, pass, learned))
    }

    /// The same without a look at its loss and norm: what comes next need not wait for them. From an update on of which one is
    /// not finite, nothing is changed any more; [`TrainState::read`] tells.
    pub fn advance(&mut self, parts: &[SequenceBatch], pass: ForwardContext, update: AdamWStep) {
        let (loss, values, scored) = self.sums(parts, pass);
        let norm = self.optimizer.norm(&values);
        // 0 where all is finite
        let found_nonfinite = (loss.on_device((&norm.device(), norm.dtype())) + norm.clone()) * 0.0;
        let found_nonfinite =
            if let Some(earlier) = self.found_nonfinite.take() { earlier + found_nonfinite } else { found_nonfinite };
        let model = self.take();
        self.model = Some(self.optimizer.step(model, values, norm.clone() + found_nonfinite.clone(), update));
        self.found_nonfinite = Some(found_nonfinite);
        self.unread.push((loss, norm, scored));
    }

    /// What the updates did that were not read yet, in their order.
    pub fn read(&mut self) -> Vec<StepMetrics> {
        let unread = std::mem::take(&mut self.unread).into_iter();
        let read = |(loss, norm, scored): (BatchLoss, Tensor<1>, u64)| {
            let (loss, grad_norm) = (loss.read(), norm.into_scalar());
            StepMetrics { loss, grad_norm, scored }
        };
        unread.map(read).collect()
    }

    /// What was not finite in the first update that was none, by its batch; the parameters are still those that it had.
    pub fn explain_nonfinite(
        &self,
        parts: &[SequenceBatch],
        pass: ForwardContext,
        found: StepMetrics,
    ) -> NonFiniteValue {
        let StepMetrics { loss, grad_norm, .. } = found;
        if !loss.is_finite() {
            return NonFiniteValue { what: "the loss".to_owned(), value: loss };
        }
        let (_, gradients, _) = self.sums(parts, pass);
        let place = gradients.iter().position(|gradient| !self.optimizer.is_finite(gradient));
        let what = match place {
            Some(at) => format!("the gradient of `{}`", parameters::names(self.model())[at]),
            None => "the norm of the gradient".to_owned(),
        };
        NonFiniteValue { what, value: grad_norm }
    }

    /// The first parameter that holds a value that is not finite: a checkpoint of it could not be gone on from.
    pub fn not_finite(&self) -> Option<String> {
        let place = parameters::values(self.model()).iter().position(|values| !self.optimizer.is_finite(values));
        place.map(|at| parameters::names(self.model()).swap_remove(at))
    }

    /// What a checkpoint holds, on the host.
    pub fn stored(&self, part: CheckpointPart) -> Vec<NamedParameter> {
        let weights = parameters::collect(self.model());
        match part {
            CheckpointPart::Weights => weights,
            CheckpointPart::Moments => {
                let moments = self.optimizer.moments();
                let named = |which: usize| {
                    let named = |(weight, moment): (&NamedParameter, &[HostArray; 2])| NamedParameter {
                        name: moment_name(which == 1, &weight.name),
                        array: moment[which].reshape(weight.array.shape()),
                    };
                    weights.iter().zip(&moments).map(named).collect::<Vec<_>>()
                };
                [named(0), named(1)].concat()
            }
        }
    }

    /// Replaces what a checkpoint holds: `fill` is given each name as [`TrainState::stored`] gives it, and writes the values.
    ///
    /// # Errors
    /// The first error of `fill`; the state is then partly replaced.
    pub fn restore<E>(
        &mut self,
        part: CheckpointPart,
        mut fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.found_nonfinite = None;
        match part {
            CheckpointPart::Weights => {
                let (model, filled) = parameters::load(self.take(), fill);
                self.model = Some(model);
                filled
            }
            CheckpointPart::Moments => {
                let names = parameters::names(self.model());
                self.optimizer.load_moments(|at, second, values| fill(&moment_name(second, &names[at]), values))
            }
        }
    }
}

fn moment_name(second: bool, parameter: &str) -> String {
    format!("{}.{parameter}", if second { "second" } else { "first" })
}
