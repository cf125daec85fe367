//! The output head after the layers of a model and its loss: one place for all kinds of answers,
//! and for the pooling of encoders.

use super::ModelPlan;
use crate::config::Pooling;
use kerple_data::tasks::{AnswerMode, TaskConfig};

/// How a model answers.
pub(crate) enum OutputHead<'a> {
    /// At every token, with one of the vocabulary: texts, and tasks that mark tokens.
    Tokens,
    /// At empty places after the sequence.
    Places(&'a TaskConfig),
    /// Once.
    Class(&'a TaskConfig),
}

impl<'a> OutputHead<'a> {
    /// The head of what a text, or this task, is learned with.
    pub(crate) fn of(task: Option<&'a TaskConfig>) -> OutputHead<'a> {
        match task.map(|task| (task, task.facts().answer)) {
            None | Some((_, AnswerMode::Marked)) => OutputHead::Tokens,
            Some((task, AnswerMode::Tape)) => OutputHead::Places(task),
            Some((task, AnswerMode::Class)) => OutputHead::Class(task),
        }
    }

    /// Whether the layers are an encoder's, which sees keys ahead of a query.
    pub(crate) fn is_bidirectional(&self) -> bool {
        !matches!(self, OutputHead::Tokens)
    }

    /// Whether one answer is for a whole sequence, which has a length of its own.
    pub(crate) fn is_class(&self) -> bool {
        matches!(self, OutputHead::Class(_))
    }

    /// Tokens of a sequence of this length as the model reads it: with the empty places of its answer, with the token that its
    /// class is read off, of a pair its longer half.
    pub(crate) fn positions(&self, pooling: Pooling, length: usize) -> usize {
        match self {
            OutputHead::Tokens => length,
            OutputHead::Places(task) => length + task.answers(length),
            OutputHead::Class(_) => match pooling {
                Pooling::Mean => length,
                Pooling::Cls => length + 1,
                // the separator is half of none, and each half has a token in front
                Pooling::TwoTower => length.saturating_sub(1).div_ceil(2) + 1,
            },
        }
    }

    /// Trained values of it, biases included.
    pub(crate) fn parameters(&self, model: &ModelPlan) -> usize {
        let (ModelPlan { d_model, pooling, block, .. }, rows) = (model, model.n_logits());
        match self {
            OutputHead::Tokens => {
                let matrix = if block.tie_embeddings { 0 } else { rows * d_model };
                matrix + if block.lm_head_bias { rows } else { 0 }
            }
            OutputHead::Places(task) => (d_model + 1) * task.facts().classes,
            OutputHead::Class(task) => {
                let widths: Vec<usize> = model.read_widths().into_iter().chain([task.facts().classes]).collect();
                let layers: usize = widths.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum();
                layers + if *pooling == Pooling::Mean { 0 } else { *d_model }
            }
        }
    }
}
