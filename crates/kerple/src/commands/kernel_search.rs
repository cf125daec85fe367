//! `kerple kernel search`

use super::compare::{check_replaced_encoding, work};
use super::quickstart::Cost;
use super::report::program;
use super::stop_flag;
use crate::args::{MeasureName, NOISE, SearchArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::encodings;
use crate::output::{print_json, remarkln, resultln};
use crate::progress::{ProgressLine, duration};
use kerple_fit::kernel_search::{
    BASELINES, ComparedArm, REFERENCE, RunCost, ScoredSplits, SearchMeasure, SearchOutcome, SearchPlan, SearchRequest,
    SearchResult, StageOutcome, SyntheticMeasure, TrainingMeasure, run as search, write,
};
use kerple_fit::space::{Space, bases};
use kerple_lm::compare::Comparison;
use kerple_lm::config::RunConfig;
use kerple_lm::corpus::DataSource;
use kerple_lm::evaluate::{EvalLength, EvalRequest, Protocol, SegmentCount};
use kerple_lm::runtime::Runtime;
use kerple_lm::sweep::Shard;
use kerple_report::folder::refuse_run_or_corpus;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Longest length that is compared by default, as a multiple of the training length.
const FAR: usize = 8;
/// Keys of the run file that a search without training takes.
const SYNTHETIC_KEYS: [&str; 3] = ["seed", "train.steps", "train.train_len"];

/// Plans a search, or resumes it; trains, tests, prints and writes what was found.
pub fn run(args: &SearchArgs) -> CommandResult {
    refuse_run_or_corpus(&args.out)?;
    let stop = stop_flag();
    let config = RunConfig::read_without_encoding(&args.file.config, &args.file.set)?;
    let hint =
        "omit it: every expression of a search has the usual keys; `kerple compare` trains encodings with other ones";
    check_replaced_encoding(&args.file, &config, ("the search", hint))?;
    if args.measure == MeasureName::Synthetic {
        return synthetic(args, &config);
    }
    for (option, is_given) in [("--truth", args.truth.is_some()), ("--noise", args.noise.is_some())] {
        if is_given {
            return Err(CommandError::misuse(
                format!("{option} is for --measure synthetic"),
                format!("add --measure synthetic, or omit {option} to train"),
            ));
        }
    }
    if args.budget.is_none() {
        return Err(CommandError::misuse(
            "--budget is missing: it sets the updates of the rungs",
            "give hours for all runs on this machine, e.g. --budget 8",
        ));
    }
    let runtime = args.hardware.runtime()?;
    let source = DataSource::open_until(&config.data, &stop)?;
    let scored = scored(args, &config)?;
    let splits = ScoredSplits::new(&source, &scored, config.train.train_len)?;
    let here = runtime.provenance.numerics();
    let (precision, device) = here.chosen();
    let measure = SearchMeasure::Nll {
        lengths: scored.lengths.clone(),
        protocol: scored.protocol,
        segment_len: splits.segment_len,
        valid_segments: splits.valid,
        test_segments: splits.test,
        run: TrainingMeasure::reference_plan(&config, &source)?.hash,
        precision: precision.to_owned(),
        device: device.to_owned(),
    };
    let request = request(args, &config, measure)?;
    let plan = plan(args, request, || cost(args, &config, &scored, &runtime, &stop).map(Some))?;
    if args.plan_only {
        return Ok(());
    }
    let training = TrainingMeasure {
        config: &config,
        source: &source,
        plan: &plan,
        out: &args.out,
        runtime: &runtime,
        shard: args.shard.unwrap_or(Shard::WHOLE),
        stop: &stop,
    };
    let mut outcome = SearchOutcome::Stopped;
    work(false, |tell| -> kerple_run::Result<bool> {
        outcome =
            search(&plan, &mut |stage, arms| training.stage(stage, arms, tell), &mut |rows| record(&args.out, rows))?;
        Ok(outcome != SearchOutcome::Stopped)
    })?;
    finish(args, &plan, outcome)
}

/// A search that trains nothing.
fn synthetic(args: &SearchArgs, config: &RunConfig) -> CommandResult {
    let trained = [
        ("--budget", args.budget.is_some()),
        ("--protocol", args.protocol.is_some()),
        ("--n-segments", args.n_segments.is_some()),
        ("--shard", args.shard.is_some()),
    ];
    if let Some((option, _)) = trained.into_iter().chain(args.hardware.given()).find(|(_, is_given)| *is_given) {
        let message = format!("{option} is for runs that are trained, and --measure synthetic trains none");
        return Err(CommandError::misuse(message, format!("omit {option}")));
    }
    let key = |set: &&String| set.split('=').next().unwrap_or_default().trim().to_owned();
    if let Some(set) = args.file.set.iter().find(|set| !SYNTHETIC_KEYS.contains(&key(set).as_str())) {
        let message = format!("--set {set} is for runs that are trained, and --measure synthetic trains none");
        return Err(CommandError::misuse(message, format!("omit it; {} count", SYNTHETIC_KEYS.join(", "))));
    }
    let lengths = lengths(args, config);
    let length = lengths.iter().copied().max().unwrap_or(0);
    if lengths.len() > 1 && !args.lengths.is_empty() {
        let shorter: Vec<String> = lengths.iter().filter(|of| **of < length).map(usize::to_string).collect();
        remarkln!(
            "note: no effect: --lengths {}; a search without training compares kernels up to the longest, {length}",
            shorter.join(",")
        );
    }
    let noise = args.noise.unwrap_or(NOISE);
    let mut measured = SyntheticMeasure::new(args.truth.as_deref(), noise, length, args.unproven)?;
    let measure = SearchMeasure::Synthetic { truth: args.truth.clone(), noise, length };
    let plan = plan(args, request(args, config, measure)?, || Ok(None))?;
    if args.plan_only {
        return Ok(());
    }
    let mut stage = |stage: &_, arms: &[_]| -> kerple_run::Result<StageOutcome> { measured.stage(stage, arms) };
    let outcome = search(&plan, &mut stage, &mut |rows| record(&args.out, rows))?;
    finish(args, &plan, outcome)
}

fn lengths(args: &SearchArgs, config: &RunConfig) -> Vec<usize> {
    let train_len = config.train.train_len;
    match args.lengths.is_empty() {
        true => vec![train_len, train_len.saturating_mul(FAR)],
        false => EvalLength::resolve(&args.lengths, train_len),
    }
}

/// What is evaluated of every run; the seed is each run's.
fn scored(args: &SearchArgs, config: &RunConfig) -> Result<EvalRequest, CommandError> {
    let protocol: Protocol = match &args.protocol {
        Some(protocol) => protocol.parse()?,
        None => ScoredSplits::default_protocol(config.train.train_len),
    };
    if matches!(protocol, Protocol::Rolling(_) | Protocol::Key(_)) {
        return Err(CommandError::misuse(
            format!("--protocol {protocol} is not available in a search, whose lengths are read from one text"),
            "use last:COUNT, nonoverlapping, segments or sliding:STRIDE, e.g. --protocol last:64",
        ));
    }
    Ok(EvalRequest {
        lengths: lengths(args, config),
        protocol,
        n_segments: args.n_segments.map_or(SegmentCount::UpTo(320), SegmentCount::Exactly),
        segment_len: None,
        seed: config.seed,
        per_position: false,
        documents: None,
        within: Default::default(),
    })
}

fn request(args: &SearchArgs, config: &RunConfig, measure: SearchMeasure) -> Result<SearchRequest, CommandError> {
    let request = SearchRequest {
        bases: bases(&args.base)?,
        size: args.size,
        unproven: args.unproven,
        budget_hours: args.budget,
        seed: config.seed,
        updates: config.train.steps,
        measure,
    };
    request.check()?;
    Ok(request)
}

/// The plan that the folder has, or a new one, which is listed and written.
fn plan(
    args: &SearchArgs,
    request: SearchRequest,
    cost: impl FnOnce() -> Result<Option<RunCost>, CommandError>,
) -> Result<SearchPlan, CommandError> {
    if let Some(plan) = SearchPlan::find(&args.out, &request)? {
        if args.plan_only {
            list(args, &plan);
        }
        return Ok(plan);
    }
    if let Some(shard) = args.shard {
        return Err(CommandError::misuse(
            format!("--shard {shard}: {} has no plan, and all shards need the same one", args.out.display()),
            "run the command once with --plan-only in place of --shard, then give each machine a copy of the folder",
        ));
    }
    let mut line = ProgressLine::new();
    let baselines = [BASELINES[0].1];
    let space = Space::new(&request.space(), &baselines, &mut |text| line.show(|| text))?;
    line.done(&format!("{} expressions in the space", space.expressions.len()));
    let plan = SearchPlan::new(request, space, cost()?)?;
    plan.write(&args.out)?;
    list(args, &plan);
    Ok(plan)
}

/// Lists the space: as the result with `--plan-only`, otherwise as a remark.
fn list(args: &SearchArgs, plan: &SearchPlan) {
    if args.plan_only && args.json {
        return print_json(plan);
    }
    let Space { expressions, counts, .. } = &plan.space;
    let mut lines: Vec<String> =
        expressions.iter().map(|of| format!("{}  {}: {}", of.size, of.title(), of.class)).collect();
    lines.push(format!(
        "{} expressions; {} written, {} refused without a proof, {} for their number of parameters; merged: {} by text, {} by curves",
        expressions.len(),
        counts.written,
        counts.refused_without_proof,
        counts.refused_for_parameters,
        counts.same_text,
        counts.same_curves
    ));
    for stage in &plan.stages {
        lines.push(format!(
            "{}: {} expressions and {} baselines, {} seeds, {} updates, {} split",
            stage.name,
            stage.expressions,
            BASELINES.len(),
            stage.seeds.len(),
            stage.updates,
            stage.split
        ));
    }
    let time = plan.cost.map_or_else(String::new, |cost| {
        let of = |stage: &kerple_fit::kernel_search::StagePlan| {
            stage.runs() as f64 * (stage.updates as f64 * cost.update + cost.evaluation)
        };
        format!(", about {}", duration(plan.stages.iter().map(of).sum()))
    });
    lines.push(format!("{} runs{time}; plan {}", plan.runs(), &plan.hash[..12]));
    for line in lines {
        if args.plan_only { resultln!("{line}") } else { remarkln!("{line}") }
    }
}

/// What a run of the reference takes here.
fn cost(
    args: &SearchArgs,
    config: &RunConfig,
    scored: &EvalRequest,
    runtime: &Runtime,
    stop: &AtomicBool,
) -> Result<RunCost, CommandError> {
    let trial = Comparison {
        config: config.clone(),
        encodings: vec![encodings::named(REFERENCE)?],
        layers: None,
        seeds: 1,
        request: scored.clone(),
        rope_scalings: Vec::new(),
        out: args.out.clone(),
        runs: args.out.join("runs"),
        runtime: runtime.clone(),
    };
    let Cost { step, evaluation } = Cost::measure(&trial, stop)?;
    Ok(RunCost { update: step, evaluation })
}

fn record(out: &Path, rows: &[kerple_fit::kernel_search::SearchRow]) -> kerple_run::Result<()> {
    kerple_run::replace_rows(&out.join("rows.jsonl"), rows)
}

fn finish(args: &SearchArgs, plan: &SearchPlan, outcome: SearchOutcome) -> CommandResult {
    let result = match outcome {
        SearchOutcome::Finished(result) => result,
        SearchOutcome::Missing { stage, runs } => {
            remarkln!(
                "this shard is done with {stage}; {runs} runs are left to other shards. When they are done, copy the folders \
                 together and re-run the command"
            );
            return Ok(());
        }
        SearchOutcome::Stopped => {
            return Err(CommandError::stopped(
                "stopped before the end; finished work is saved",
                "re-run the command to resume",
            ));
        }
    };
    let written = write(plan, &result, &args.out.join("report"), &program())?;
    if args.json {
        print_json(&result);
        return Ok(());
    }
    print(&result);
    resultln!("page: {}", written.index.display());
    Ok(())
}

fn print(result: &SearchResult) {
    resultln!("{}", result.headline);
    let widest = |arms: &[ComparedArm]| arms.iter().map(|arm| arm.expression.chars().count()).max().unwrap_or(0);
    let width = widest(&result.finalists).max(widest(&result.baselines));
    for arm in result.finalists.iter().chain(&result.baselines) {
        let ratio = arm.ratio.map_or_else(|| "no ratio".to_owned(), |ratio| format!("ratio {ratio:.4}"));
        let interval = arm.interval.map_or_else(String::new, |(low, high)| format!(" [{low:.4}, {high:.4}]"));
        let verdict = arm.verdict.map_or("baseline", |verdict| verdict.text());
        resultln!("{:<width$}  {ratio}{interval}  {verdict}", arm.expression);
    }
    for sentence in result.counts.sentences() {
        resultln!("{sentence}");
    }
}
