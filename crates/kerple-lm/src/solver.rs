//! The model that a plan asks for: a decoder for texts and marked tokens, an encoder with places or one class for its answer.

use crate::model::{Classifier, Decoder, Transducer};
use crate::plan::Plan;
use crate::task::{Answering, Batch, Scores, Task};
use burn::module::Module;
use burn::tensor::Device;
use kerple_burn::parameters::Describe;
use kerple_burn::pass::Pass;
use kerple_burn::positions::PositionalEncoding;
use kerple_data::tasks::{Answer, TaskConfig};

/// A model that a plan describes whole.
pub trait Planned: Module + Describe {
    /// A fresh one.
    fn of(plan: &Plan, device: &Device) -> Self;

    /// How positions enter.
    fn encoding(&self) -> &PositionalEncoding;

    /// The same, to change what an evaluation may change.
    fn encoding_mut(&mut self) -> &mut PositionalEncoding;
}

impl Planned for Decoder {
    fn of(plan: &Plan, device: &Device) -> Decoder {
        Decoder::new(plan, device)
    }

    fn encoding(&self) -> &PositionalEncoding {
        &self.trunk.encoding
    }

    fn encoding_mut(&mut self) -> &mut PositionalEncoding {
        &mut self.trunk.encoding
    }
}

/// Answers that the plan's task has.
fn classes(plan: &Plan) -> usize {
    plan.data.task.as_ref().map_or(plan.model.vocab_size, |task| task.facts().classes)
}

impl Planned for Transducer {
    fn of(plan: &Plan, device: &Device) -> Transducer {
        Transducer::new(plan, classes(plan), device)
    }

    fn encoding(&self) -> &PositionalEncoding {
        &self.encoder.trunk.encoding
    }

    fn encoding_mut(&mut self) -> &mut PositionalEncoding {
        &mut self.encoder.trunk.encoding
    }
}

impl Planned for Classifier {
    fn of(plan: &Plan, device: &Device) -> Classifier {
        Classifier::new(plan, classes(plan), device)
    }

    fn encoding(&self) -> &PositionalEncoding {
        &self.encoder.trunk.encoding
    }

    fn encoding_mut(&mut self) -> &mut PositionalEncoding {
        &mut self.encoder.trunk.encoding
    }
}

/// A trained model that answers, whichever kind it is.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "one of them a process")]
pub enum Solver {
    /// At marked tokens.
    Decoder(Decoder),
    /// At empty places.
    Transducer(Transducer),
    /// Once.
    Classifier(Classifier),
}

impl Solver {
    /// How the task of a plan is answered; `None` for a text.
    pub fn answer(plan: &Plan) -> Option<Answer> {
        plan.data.task.as_ref().map(TaskConfig::facts).map(|facts| facts.answer)
    }

    /// How positions enter.
    pub fn encoding(&self) -> &PositionalEncoding {
        match self {
            Solver::Decoder(model) => model.encoding(),
            Solver::Transducer(model) => model.encoding(),
            Solver::Classifier(model) => model.encoding(),
        }
    }

    /// The same, to change what an evaluation may change.
    pub fn encoding_mut(&mut self) -> &mut PositionalEncoding {
        match self {
            Solver::Decoder(model) => model.encoding_mut(),
            Solver::Transducer(model) => model.encoding_mut(),
            Solver::Classifier(model) => model.encoding_mut(),
        }
    }

    /// The loss of each target and whether it was hit.
    pub fn score(&self, batch: &Batch, pass: &Pass) -> Scores {
        match self {
            Solver::Decoder(model) => Answering.score(model, batch, pass),
            Solver::Transducer(model) => Answering.score(model, batch, pass),
            Solver::Classifier(model) => Answering.score(model, batch, pass),
        }
    }
}
