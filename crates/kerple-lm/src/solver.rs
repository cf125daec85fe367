//! The model that a plan describes: a decoder for texts and marked tokens, an encoder with places
//! or one class for its answer.

use crate::model::{Classifier, Decoder, Transducer};
use crate::plan::Plan;
use crate::task::{Answering, Batch, LanguageModel, Scores, Task};
use burn::module::Module;
use burn::tensor::Device;
use kerple_burn::fused::Engine;
use kerple_burn::parameters::Describe;
use kerple_burn::pass::Pass;
use kerple_burn::positions::PositionalEncoding;
use kerple_data::tasks::{Answer, TaskConfig};
use std::any::Any;
use std::fmt::Debug;

/// A model that answers, whichever kind it is.
pub trait Solve: Debug {
    /// How positions enter.
    fn encoding(&self) -> &PositionalEncoding;

    /// The same, to change what an evaluation may change.
    fn encoding_mut(&mut self) -> &mut PositionalEncoding;

    /// Computes with this engine from now on.
    fn compute_with(&mut self, engine: Engine);

    /// The loss of each target and whether it was hit.
    fn score(&self, batch: &Batch, pass: &Pass) -> Scores;

    /// The model, where it is one that texts are predicted with.
    fn decoder(&self) -> Option<&Decoder>;
}

/// A model that a plan describes whole.
pub trait Planned: Module + Describe + Solve + 'static {
    /// A fresh one.
    fn of(plan: &Plan, device: &Device) -> Self;

    /// One whose weights are read next, so that their initial values do not matter.
    fn empty(plan: &Plan, device: &Device) -> Self {
        Self::of(plan, device)
    }
}

/// What is to be done with the model of a plan and what it is trained for, whichever they are.
pub trait Work {
    /// What comes of it.
    type Found;

    /// Does it.
    fn with<M: Planned, T: Task<M> + Copy>(self, task: T) -> Self::Found;
}

/// Runs work with the model of a plan: the one place that maps kinds of answers to models.
pub fn work<W: Work>(plan: &Plan, work: W) -> W::Found {
    match plan.data.task.as_ref().map(|task| task.facts().answer) {
        None => work.with::<Decoder, _>(LanguageModel { piece: plan.train.chunk_len }),
        Some(Answer::Marked) => work.with::<Decoder, _>(Answering),
        Some(Answer::Tape) => work.with::<Transducer, _>(Answering),
        Some(Answer::Class) => work.with::<Classifier, _>(Answering),
    }
}

/// Answers that the plan's task has.
fn classes(plan: &Plan) -> usize {
    plan.data.task.as_ref().map(TaskConfig::facts).map_or(plan.model.vocab_size, |facts| facts.classes)
}

impl Planned for Decoder {
    fn of(plan: &Plan, device: &Device) -> Decoder {
        Decoder::new(plan, device)
    }

    fn empty(plan: &Plan, device: &Device) -> Decoder {
        Decoder::empty(plan, device)
    }
}

impl Planned for Transducer {
    fn of(plan: &Plan, device: &Device) -> Transducer {
        Transducer::new(plan, classes(plan), device)
    }
}

impl Planned for Classifier {
    fn of(plan: &Plan, device: &Device) -> Classifier {
        Classifier::new(plan, classes(plan), device)
    }
}

/// Every model answers alike, and has its layers in one place.
macro_rules! solve {
    ($($model:ident: $($trunk:ident).+;)+) => {
        $(
            impl Solve for $model {
                fn encoding(&self) -> &PositionalEncoding {
                    &self.$($trunk).+.encoding
                }

                fn encoding_mut(&mut self) -> &mut PositionalEncoding {
                    &mut self.$($trunk).+.encoding
                }

                fn compute_with(&mut self, engine: Engine) {
                    self.$($trunk).+.engine = engine;
                }

                fn score(&self, batch: &Batch, pass: &Pass) -> Scores {
                    Answering.score(self, batch, pass)
                }

                fn decoder(&self) -> Option<&Decoder> {
                    (self as &dyn Any).downcast_ref()
                }
            }
        )+
    };
}

solve! {
    Decoder: trunk;
    Transducer: encoder.trunk;
    Classifier: encoder.trunk;
}
