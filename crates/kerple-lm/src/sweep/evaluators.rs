//! Runs of a sweep that choose the key tokens of others, see [`KeyTokenEval`].
//!
//! They are trained by the same sweep, perhaps by another shard. A run whose evaluators are not trained yet is evaluated on
//! everything else, and on key tokens once they are.

use super::{EvalSpec, JobEnd, SweepEvent, SweepJob};
use crate::architecture::Model;
use crate::error::{Error, Result};
use crate::evaluate::{
    self, EvalData, EvalEvent, EvalRequest, Evaluator, KeyRule, KeyTokenEval, Protocol, Reuse, TextEval,
};
use crate::plan::Plan;
use crate::run::{RunFolder, SpecialTokens, TrainedModel};
use std::sync::atomic::{AtomicBool, Ordering};

/// A run of a sweep that chooses key tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatorRun {
    /// Where it is kept.
    pub folder: RunFolder,
    /// What is trained there.
    pub plan: Plan,
}

/// What came of the choice of key tokens.
pub(super) enum KeyChoice<'a> {
    Chosen(Box<dyn EvalData + 'a>),
    /// There is nothing to score: every row is there, no token is key, an evaluator is missing, or it was stopped.
    Ended(JobEnd),
}

impl EvaluatorRun {
    fn name(&self) -> String {
        format!("evaluator {}, seed {}", self.plan.label, self.plan.seed)
    }

    /// The trained run; in words why there is none yet.
    fn load(&self, job: &SweepJob) -> Result<std::result::Result<Evaluator, String>> {
        let name = self.name();
        match self.folder.plan()? {
            None => return Ok(Err(format!("{name} is not trained yet"))),
            Some(plan) if plan.hash != self.plan.hash => {
                return Ok(Err(format!("{name}: {} contains a run of another plan", self.folder.path().display())));
            }
            Some(_) => {}
        }
        let mut trained = match self.folder.load_any(&job.runtime.device, false) {
            Ok(trained) => trained,
            Err(error) => return Ok(Err(format!("{name} cannot be loaded: {error}"))),
        };
        let last = self.folder.last_step(&self.plan)?;
        if trained.state.step != last {
            return Ok(Err(format!("{name} is at update {} of {last}", trained.state.step)));
        }
        trained.model.compute_with(job.runtime.implementation);
        Ok(Ok(trained))
    }
}

impl SweepJob<'_> {
    /// Refuses evaluators without a protocol for them, and those that do not suit this run.
    pub(super) fn check_evaluators(&self, spec: &EvalSpec, segment_len: usize) -> Result<()> {
        let Protocol::Key(rule) = spec.request.protocol else {
            if spec.evaluators.is_empty() {
                return Ok(());
            }
            let message = format!("evaluators: {} scores all tokens of its windows", spec.request.protocol);
            return Err(Error::refused(message, "use the protocol key:ALPHA:BETA:CONTEXT, or omit `evaluators`"));
        };
        let plans: Vec<&Plan> = spec.evaluators.iter().map(|evaluator| &evaluator.plan).collect();
        rule.check(self.plan, segment_len, &plans)?;
        let limit = self.runtime.limit();
        plans.iter().try_for_each(|plan| plan.check_evaluation_memory(segment_len, limit.as_ref()))
    }

    /// Whatever identifies the rows of a spec, without a model.
    pub(super) fn key_rows(
        &self,
        spec: &EvalSpec,
        request: &EvalRequest,
        special: &SpecialTokens,
    ) -> Result<Box<dyn EvalData + '_>> {
        let of = |run: &EvaluatorRun| Ok((run.plan.hash.clone(), run.folder.last_step(&run.plan)?));
        let evaluators = spec.evaluators.iter().map(of).collect::<Result<_>>()?;
        let text = TextEval::new((self.plan, special), self.source.text(spec.split)?, request.clone(), &[])?;
        Ok(Box::new(text.chosen_by(evaluators)))
    }

    /// The key tokens of a spec, where a row is missing.
    pub(super) fn choose_keys(
        &self,
        (spec, request): (&EvalSpec, &EvalRequest),
        (trained, rule): (&TrainedModel<Box<dyn Model>>, KeyRule),
        stop: &AtomicBool,
        tell: &mut dyn FnMut(SweepEvent),
    ) -> Result<KeyChoice<'_>> {
        let (special, known) = (self.folder.special_tokens()?, self.folder.evaluations()?);
        let asked = (trained.state.step, trained.model.encoding().encoding());
        let by = (&self.runtime.provenance, Reuse::AnyMachine);
        let rows = evaluate::known(&known, asked, &*self.key_rows(spec, request, &special)?, by);
        if rows.iter().all(Option::is_some) {
            return Ok(KeyChoice::Ended(JobEnd::Done));
        }
        let mut evaluators = Vec::new();
        for evaluator in &spec.evaluators {
            match evaluator.load(self)? {
                Ok(trained) => evaluators.push(trained),
                Err(reason) => return Ok(KeyChoice::Ended(JobEnd::Waiting(reason))),
            }
        }
        let text = (self.source.text(spec.split)?, &known[..]);
        let of = (evaluators, self.runtime);
        let keys = KeyTokenEval::new((&trained.plan, &special), text, (rule, request.clone()), of)?;
        let length = request.segment_len.unwrap_or(0);
        let found = keys.key_tokens(&self.runtime.ranks, &mut |done, windows| {
            tell(SweepEvent::Evaluation(EvalEvent::Evaluating { length, done, windows }));
            !stop.load(Ordering::Relaxed)
        })?;
        Ok(match found {
            None => KeyChoice::Ended(JobEnd::Stopped),
            Some(0) => {
                let note = format!("the rule {} chooses no token, so this evaluation has no row", request.protocol);
                tell(SweepEvent::Evaluation(EvalEvent::Note(note)));
                KeyChoice::Ended(JobEnd::Done)
            }
            Some(_) => KeyChoice::Chosen(Box::new(keys)),
        })
    }

    /// The error of a run that is still not evaluated on key tokens when all others are done.
    pub(super) fn still_waits(&self, reason: &str) -> Error {
        let message = format!("{}, seed {}, is not evaluated on key tokens: {reason}", self.name, self.plan.seed);
        Error::refused(message, "run the command again when the evaluators are trained; another shard may train them")
    }
}
