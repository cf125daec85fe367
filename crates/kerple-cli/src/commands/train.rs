//! `kerple train`

use super::{print_json, step_line, stop_flag};
use crate::args::Train;
use crate::failure::{Failure, Outcome};
use crate::output::{remarkln, resultln};
use crate::progress::{Line, duration};
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::Source;
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::train::{self, Event, Sitting};

/// Trains or resumes one run.
pub fn run(args: &Train) -> Outcome {
    let config = RunConfig::read(&args.file.config, &args.file.set)?;
    let source = Source::open(&config.data)?;
    let plan = Plan::new(&config, source.facts())?;
    remarkln!(
        "{}: {} parameters, {} steps of {} x {} tokens, plan {}",
        plan.label,
        plan.parameters,
        plan.steps,
        plan.train.batch,
        plan.train_len,
        &plan.hash[..12]
    );
    remarkln!("{}", plan.training_memory(plan.train.micro_batch.unwrap_or(plan.train.batch)));
    let (stop, mut line) = (stop_flag(), Line::new());
    let (run, batches) = (RunFolder::new(&args.out), source.batches(&plan)?);
    let host = args.hardware.host();
    let sitting = Sitting { plan: &plan, run: &run, batches: &batches, stop: &stop, strict: args.strict, host: &host };
    let outcome = train::train(&sitting, &mut |event| match event {
        Event::Note(note) => line.done(&format!("note: {note}")),
        Event::Step(step) => line.show(|| step_line(&plan.label, step)),
    })?;
    let loss = outcome.loss.map_or_else(String::new, |loss| format!(", loss {loss:.4}"));
    line.done(&format!("{} of {} steps{loss}, {}", outcome.step, plan.steps, duration(outcome.seconds)));
    if args.json {
        print_json(&serde_json::json!({
            "run": args.out, "step": outcome.step, "finished": outcome.finished, "loss": outcome.loss,
            "seconds": outcome.seconds, "parameters": plan.parameters, "plan": plan.hash,
        }));
    } else {
        resultln!("{}", args.out.display());
    }
    if outcome.finished {
        return Ok(());
    }
    Err(Failure::stopped("stopped before the end; the run is saved", "the same command again goes on from here"))
}
