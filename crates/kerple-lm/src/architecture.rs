//! The model that a plan describes: a decoder for texts and marked tokens, an encoder with places
//! or one class for its answer.

use crate::model::{Classifier, Decoder, Transducer};
use crate::objective::{Classification, NextTokenPrediction, Objective, SequenceBatch, TargetScores};
use crate::plan::Plan;
use burn::module::Module;
use burn::tensor::Device;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::parameters::ParamGroupOverrides;
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_data::tasks::{AnswerMode, TaskConfig};
use std::any::Any;
use std::fmt::Debug;

/// A model that answers, whichever kind it is.
pub trait Model: Debug {
    /// How positions enter.
    fn encoding(&self) -> &PositionalEncoding;

    /// The same, to change what an evaluation may change.
    fn encoding_mut(&mut self) -> &mut PositionalEncoding;

    /// Computes with this implementation from now on.
    fn compute_with(&mut self, implementation: Impl);

    /// The loss of each target and whether it was hit.
    fn score(&self, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores;

    /// The model, where it is one that texts are predicted with.
    fn decoder(&self) -> Option<&Decoder>;
}

/// A model that a plan describes whole.
pub trait FromPlan: Module + ParamGroupOverrides + Model + 'static {
    /// A fresh one.
    fn of(plan: &Plan, device: &Device) -> Self;

    /// One whose weights are read next, so that their initial values do not matter.
    fn empty(plan: &Plan, device: &Device) -> Self {
        Self::of(plan, device)
    }
}

/// What is to be done with the model of a plan and what it is trained for, whichever they are.
pub trait ModelVisitor {
    /// What comes of it.
    type Output;

    /// Does it.
    fn visit<M: FromPlan, T: Objective<M> + Copy>(self, task: T) -> Self::Output;
}

/// Runs work with the model of a plan: the one place that maps kinds of answers to models.
pub fn visit<V: ModelVisitor>(plan: &Plan, visitor: V) -> V::Output {
    match plan.data.task.as_ref().map(|task| task.facts().answer) {
        None => visitor.visit::<Decoder, _>(NextTokenPrediction { piece: plan.train.chunk_len }),
        Some(AnswerMode::Marked) => visitor.visit::<Decoder, _>(Classification),
        Some(AnswerMode::Tape) => visitor.visit::<Transducer, _>(Classification),
        Some(AnswerMode::Class) => visitor.visit::<Classifier, _>(Classification),
    }
}

/// Answers that the plan's task has.
fn classes(plan: &Plan) -> usize {
    plan.data.task.as_ref().map(TaskConfig::facts).map_or(plan.model.vocab_size, |facts| facts.classes)
}

impl FromPlan for Decoder {
    fn of(plan: &Plan, device: &Device) -> Decoder {
        Decoder::new(plan, device)
    }

    fn empty(plan: &Plan, device: &Device) -> Decoder {
        Decoder::empty(plan, device)
    }
}

impl FromPlan for Transducer {
    fn of(plan: &Plan, device: &Device) -> Transducer {
        Transducer::new(plan, classes(plan), device)
    }
}

impl FromPlan for Classifier {
    fn of(plan: &Plan, device: &Device) -> Classifier {
        Classifier::new(plan, classes(plan), device)
    }
}

/// Every model answers alike, and has its layers in one place.
macro_rules! impl_model {
    ($($model:ident: $($trunk:ident).+;)+) => {
        $(
            impl Model for $model {
                fn encoding(&self) -> &PositionalEncoding {
                    &self.$($trunk).+.encoding
                }

                fn encoding_mut(&mut self) -> &mut PositionalEncoding {
                    &mut self.$($trunk).+.encoding
                }

                fn compute_with(&mut self, implementation: Impl) {
                    self.$($trunk).+.implementation = implementation;
                }

                fn score(&self, batch: &SequenceBatch, pass: &ForwardContext) -> TargetScores {
                    Classification.score(self, batch, pass)
                }

                fn decoder(&self) -> Option<&Decoder> {
                    (self as &dyn Any).downcast_ref()
                }
            }
        )+
    };
}

impl_model! {
    Decoder: trunk;
    Transducer: encoder.trunk;
    Classifier: encoder.trunk;
}
