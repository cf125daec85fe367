//! `kerple train`

use super::{remark_on_kernels, step_line, stop_flag};
use crate::args::TrainArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{print_json, remarkln, resultln};
use crate::progress::{ProgressLine, duration};
use kerple_burn::device::DeviceName;
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::DataSource;
use kerple_lm::finetune::BaseRun;
use kerple_lm::plan::Plan;
use kerple_lm::ranks::Ranks;
use kerple_lm::run::RunFolder;
use kerple_lm::train::{self, TrainEvent, TrainSession};
use std::sync::atomic::AtomicBool;

/// The text and the plan of the run, which begins with the weights of another one where that is asked for.
fn begin(
    args: &TrainArgs,
    run: &RunFolder,
    ranks: &Ranks,
    stop: &AtomicBool,
) -> Result<(DataSource, Plan), CommandError> {
    let Some(from) = &args.init_from else {
        let file = args.config.as_ref().expect("--config is required without --init-from");
        let config = RunConfig::read(file, &args.set)?;
        config.preset_without_effect().iter().for_each(|key| remarkln!("note: no effect: {key}"));
        let source = DataSource::open_until(&config.data, stop)?;
        let plan = Plan::new(&config, source.facts())?;
        return Ok((source, plan));
    };
    let base = BaseRun::open(RunFolder::new(from))?;
    base.notes.iter().for_each(|note| remarkln!("note: {note}"));
    let mut config = base.config(args.config.as_deref(), &args.set)?;
    let is_chosen =
        args.config.is_some() || args.set.iter().any(|set| set.trim_start().starts_with("train.batch_size"));
    if base.is_imported() && !is_chosen {
        let size = config.train.batch_size;
        remarkln!("note: train.batch_size is {size}, as nothing is known of how the imported model was trained");
    }
    let source = base.data(&mut config)?;
    let plan = base.plan_of(&config, source.facts(), run)?;
    // all have seen the folder as it was, then the first writes
    ranks.barrier();
    if ranks.is_first() {
        base.create_run(&plan, run)?.iter().for_each(|note| remarkln!("note: {note}"));
    }
    ranks.barrier();
    Ok((source, plan))
}

/// Trains or resumes one run.
pub fn run(args: &TrainArgs, ranks: &Ranks) -> CommandResult {
    let (run, stop) = (RunFolder::new(&args.out), stop_flag());
    run.check_place()?;
    let runtime = args.hardware.runtime()?.with_ranks(ranks.clone());
    let (source, plan) = begin(args, &run, ranks, &stop)?;
    remarkln!(
        "{}: {} parameters, {} steps of {} x {} tokens, plan {}",
        plan.label,
        plan.parameters,
        plan.steps,
        plan.train.batch_size,
        plan.train_len,
        &plan.hash[..12]
    );
    plan.keys_without_effect().iter().for_each(|key| remarkln!("note: no effect: {key}"));
    if args.hardware.device == DeviceName::Cpu {
        let micro_batch = plan.train.micro_batch_size.unwrap_or(plan.train.batch_size);
        remarkln!("{}", plan.training_memory(micro_batch, runtime.kept_precision()));
    }
    remark_on_kernels(&plan, args.hardware.device);
    let (batches, mut line) = (source.batches(&plan)?, ProgressLine::new());
    let session =
        TrainSession { plan: &plan, run: &run, batches: &batches, stop: &stop, strict: args.strict, runtime: &runtime };
    let outcome = train::train(&session, &mut |event| match event {
        TrainEvent::Note(note) => line.done(&format!("note: {note}")),
        TrainEvent::Step(step) => line.show(|| step_line(&plan.label, step)),
    })?;
    let loss = outcome.loss.map_or_else(String::new, |loss| format!(", loss {loss:.4}"));
    let learned = match outcome.learned_at {
        Some(at) => format!(", learned after {}", at.first),
        None if outcome.finished && plan.train.until.is_some() => ", train.until not met".to_owned(),
        None => String::new(),
    };
    line.done(&format!("{} of {} steps{loss}{learned}, {}", outcome.step, plan.steps, duration(outcome.seconds)));
    if args.json {
        let mut result = serde_json::json!({
            "run": args.out, "step": outcome.step, "finished": outcome.finished, "loss": outcome.loss,
            "seconds": outcome.seconds, "parameters": plan.parameters, "plan": plan.hash,
        });
        if plan.train.until.is_some() {
            result["learned_at"] = serde_json::json!(outcome.learned_at.map(|at| at.first));
        }
        print_json(&result);
    } else {
        resultln!("{}", args.out.display());
    }
    if outcome.finished {
        return Ok(());
    }
    Err(CommandError::stopped("stopped before the end; the run is saved", "re-run the command to resume"))
}
