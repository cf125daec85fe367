//! `kerple reproduce PAPER`

use super::compare::{done, work};
use super::reproductions::print_pages;
use super::{slurm, stop_flag};
use crate::args::ReproduceArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::remarkln;
use crate::progress::ProgressLine;
use kerple_experiments::reproduce::{Reproduction, ReproductionRequest, export};
use kerple_lm::ranks::Ranks;
use kerple_lm::sweep::Shard;
use kerple_report::folder::refuse_run_or_corpus;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs what is not done yet, then makes the pages.
pub fn run(args: &ReproduceArgs, ranks: &Ranks) -> CommandResult {
    refuse_run_or_corpus(&args.out)?;
    refuse_ignored(args)?;
    let models_run = !args.pages_only && args.export.is_none() && args.sharing.slurm.is_none();
    let reproduction = Reproduction::new(ReproductionRequest {
        paper: &args.paper,
        scale: &args.scale,
        data: args.data.clone(),
        out: args.out.clone(),
        only: args.only.clone(),
        runtime: args.hardware.runtime_where(models_run)?.with_ranks(ranks.clone()),
    })?;
    let pages_only = args.pages_only || args.export.is_some();
    if pages_only && !ranks.is_first() {
        return Ok(());
    }
    if let Some(folder) = &args.export {
        let runs = export(&args.out, folder)?;
        remarkln!("copied {runs} evaluated runs to {}", folder.display());
        return pages(folder, args);
    }
    if args.pages_only {
        return pages(&args.out, args);
    }
    let stop = stop_flag();
    if let Some(array) = args.sharing.slurm {
        slurm::refuse_ranks(ranks)?;
        // what every job of the array would refuse is refused here
        reproduction.to_prepare(&stop)?;
        return slurm::write_and_print(&args.out, array, reproduction.runs(), &pages_arguments(args));
    }
    let shard = args.sharing.shard.unwrap_or(Shard::WHOLE);
    if ranks.is_first() {
        prepare(&reproduction, &stop)?;
        reproduction.write_manifest()?;
    }
    ranks.barrier();
    remarkln!("{} runs in {}", reproduction.runs(), reproduction.out().display());
    work(false, |tell| reproduction.run(shard, &stop, tell))?;
    if !ranks.is_first() {
        return Ok(());
    }
    if shard.is_first() {
        time(&reproduction, &stop)?;
    }
    if args.sharing.shard.is_some() {
        remarkln!("{}", done(shard, reproduction.runs()));
        let given = args.hardware.given().into_iter().filter(|(_, is_given)| *is_given);
        let without: String = given.map(|(option, _)| format!(", without {option},")).collect();
        remarkln!(
            "when all shards are done, re-run the command with --pages-only in place of --shard{without} to make the \
            pages"
        );
        return Ok(());
    }
    pages(&args.out, args)
}

/// Refuses options of runs where none are made.
fn refuse_ignored(args: &ReproduceArgs) -> CommandResult {
    let only = match (&args.export, args.pages_only) {
        (Some(_), true) => {
            let message = "--export makes pages of what it copies, and --pages-only those of --out";
            return Err(CommandError::misuse(message, "run the command once with each of them"));
        }
        (Some(_), false) => "--export",
        (None, true) => "--pages-only",
        (None, false) => return Ok(()),
    };
    let shared = [("--shard", args.sharing.shard.is_some()), ("--slurm", args.sharing.slurm.is_some())];
    match shared.into_iter().chain(args.hardware.given()).find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            let message = format!("{option} is for runs that are made, and {only} makes none");
            Err(CommandError::misuse(message, format!("omit {option}")))
        }
        None => Ok(()),
    }
}

/// The arguments that make the pages.
fn pages_arguments(args: &ReproduceArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        vec!["reproduce".into(), (&args.paper).into(), "--scale".into(), (&args.scale).into()];
    if !args.only.is_empty() {
        words.extend(["--only".into(), args.only.join(",").into()]);
    }
    words.extend(["--out".into(), (&args.out).into(), "--pages-only".into()]);
    words
}

fn prepare(reproduction: &Reproduction, stop: &Arc<AtomicBool>) -> CommandResult {
    for (name, options) in reproduction.to_prepare(stop)? {
        if kerple_data::is_prepared(&options.out) {
            // another shard was faster
            continue;
        }
        let mut line = ProgressLine::new();
        match kerple_data::prepare(&options, &mut |progress| line.show(|| format!("{name}: {progress}"))) {
            Ok(summary) => line.done(&format!("{name}: {summary}")),
            Err(_) if kerple_data::is_prepared(&options.out) => line.done(&format!("{name}: prepared")),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn time(reproduction: &Reproduction, stop: &AtomicBool) -> CommandResult {
    let mut line = ProgressLine::new();
    let finished = reproduction.time(stop, &mut |done, rounds| {
        line.show(|| format!("timing in turns: round {done}/{rounds}"));
    })?;
    if finished {
        return Ok(());
    }
    line.done("stopped");
    Err(CommandError::stopped("stopped while timing steps", "re-run the command to resume"))
}

/// Makes the pages of a folder and prints how complete they are.
fn pages(folder: &Path, args: &ReproduceArgs) -> CommandResult {
    let facts = [("pages by", super::report::program())];
    let summary = kerple_experiments::pages::write(folder, &args.only, &facts)?;
    print_pages(&summary, args.json);
    Ok(())
}
