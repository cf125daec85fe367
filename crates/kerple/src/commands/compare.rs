//! `kerple compare`

use super::report::write_and_print;
use super::{compare_tasks, slurm, step_line, stop_flag};
use crate::args::{CompareArgs, RunFile};
use crate::command_error::{CommandError, CommandResult};
use crate::encodings;
use crate::output::{print_json, remarkln};
use crate::progress::ProgressLine;
use kerple_core::encoding::Encoding;
use kerple_core::encoding::scaling::RopeScaling;
use kerple_lm::compare::{Comparison, EXCHANGED, SweepEvent};
use kerple_lm::config::RunConfig;
use kerple_lm::evaluate;
use kerple_lm::layers::LayerConfig;
use kerple_lm::ranks::Ranks;
use kerple_lm::sweep::Shard;
use kerple_lm::train;
use kerple_report::folder::refuse_run_or_corpus;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// More seeds are a slip of the finger.
const MOST_SEEDS: u64 = 10_000;

/// Trains and evaluates every encoding with every seed, then writes the report.
pub fn run(args: &CompareArgs, ranks: &Ranks) -> CommandResult {
    // with --layers, the other layers keep the encoding of the file
    let read = if args.layers.is_some() { RunConfig::read } else { RunConfig::read_without_encoding };
    let config = read(&args.file.config, &args.file.set)?;
    config.preset_without_effect().iter().for_each(|key| remarkln!("note: no effect: {key}"));
    if args.seeds > MOST_SEEDS {
        return Err(CommandError::misuse(
            format!("--seeds {} is out of range, it must be at most {MOST_SEEDS}", args.seeds),
            "a few seeds, e.g. --seeds 3, show how much results vary",
        ));
    }
    if args.seeds == 0 {
        return Err(CommandError::misuse(
            "--seeds 0 is out of range, it must be at least 1",
            "give at least 1, e.g. --seeds 3",
        ));
    }
    let encodings = encodings(&args.encodings)?;
    refuse_run_or_corpus(&args.out)?;
    check_replaced(args, &config)?;
    let scalings: Vec<String> = args.rope_scaling.iter().map(RopeScaling::label).collect();
    if let Some(twice) = (1..scalings.len()).find(|at| scalings[..*at].contains(&scalings[*at])) {
        let message = format!("--rope-scaling {} is given twice", scalings[twice]);
        return Err(CommandError::misuse(message, "give each scaling once"));
    }
    match args.layers {
        None => check_rope_scalings(&args.rope_scaling, &encodings)?,
        Some(_) => check_rope_scalings_with_layers(&args.rope_scaling, &config.encoding)?,
    }
    let configs = match &args.tasks[..] {
        [] => vec![(args.out.clone(), args.out.join("runs"), config)],
        names => {
            compare_tasks::check_replaced(&args.file.set)?;
            let of_tasks = compare_tasks::configs(names, &config)?;
            let folders = |(name, config)| {
                let out = args.out.join(name);
                (out.clone(), runs_of_task(out), config)
            };
            of_tasks.into_iter().map(folders).collect()
        }
    };
    let runtime = args.hardware.runtime_where(args.sharing.slurm.is_none())?.with_ranks(ranks.clone());
    let comparison = |(out, runs, config): (PathBuf, PathBuf, RunConfig)| -> Result<Comparison, CommandError> {
        Ok(Comparison {
            encodings: encodings.clone(),
            layers: args.layers.clone(),
            seeds: args.seeds,
            request: args.evaluation.request(config.train.train_len, config.seed, config.data.task.is_some())?,
            rope_scalings: args.rope_scaling.clone(),
            out,
            runs,
            runtime: runtime.clone(),
            config,
        })
    };
    let comparisons: Vec<Comparison> = configs.into_iter().map(comparison).collect::<Result<_, _>>()?;
    let asked = (comparisons.len() * encodings.len()).saturating_mul(args.seeds as usize);
    if let Some(array) = args.sharing.slurm {
        slurm::refuse_ranks(ranks)?;
        // what every job of the array would refuse is refused here
        let stop = stop_flag();
        comparisons.iter().try_for_each(|comparison| comparison.check_for_elsewhere(&stop))?;
        let pages = ["report".into(), (&args.out).into(), "--out".into(), args.out.join("report").into()];
        return slurm::write_and_print(&args.out, array, asked, &pages);
    }
    let (shard, stop) = (args.sharing.shard.unwrap_or(Shard::WHOLE), stop_flag());
    if let [_, _, ..] = &comparisons[..] {
        // what the last task refuses is refused before the first is trained
        ranks.agree(comparisons.iter().try_for_each(|comparison| comparison.check(&stop)))?;
    }
    for comparison in &comparisons {
        if !args.tasks.is_empty() && ranks.is_first() {
            remarkln!("task: {}", comparison.out.display());
        }
        run_comparison(comparison, shard, &stop, args.json)?;
    }
    if let Some(shard) = args.sharing.shard {
        remarkln!("{}", done(shard, asked));
        remarkln!(
            "when all shards are done, run `kerple report {} --out {}` to write the report",
            slurm::quoted(args.out.as_os_str()),
            slurm::quoted(args.out.join("report").as_os_str())
        );
        return Ok(());
    }
    if !ranks.is_first() {
        return Ok(());
    }
    let others = kerple_report::find_runs(std::slice::from_ref(&args.out))?.len().saturating_sub(asked);
    if others > 0 {
        remarkln!("note: the report has all runs in {}, {others} more than this command names", args.out.display());
    }
    write_and_print(std::slice::from_ref(&args.out), &args.out.join("report"), None, args.json).map(drop)
}

/// Refuses keys of `[encoding]` that `--encodings` replaces, and layers that the model lacks.
fn check_replaced(args: &CompareArgs, config: &RunConfig) -> CommandResult {
    let Some(layers) = &args.layers else {
        let hint = "omit it; give encodings with keys as --encodings @FILE, a list of [[encoding]] tables";
        return check_replaced_encoding(&args.file, config, ("--encodings", hint));
    };
    let n_layers = config.model.n_layers.unwrap_or(config.model.preset.sizes()[0]);
    if let Some(layer) = layers.iter().find(|layer| **layer >= n_layers) {
        let message = format!("--layers {layer}: layers are counted from 0, and model.n_layers is {n_layers}");
        return Err(CommandError::misuse(message, format!("give layers up to {}", n_layers.saturating_sub(1))));
    }
    if config.model.layers.contains_key(EXCHANGED) {
        let message =
            format!("--layers: the run file has layers of the kind `{EXCHANGED}`, the name of those that are compared");
        return Err(CommandError::misuse(message, format!("rename [model.layers.{EXCHANGED}] in the run file")));
    }
    let is_taken = |kind: &LayerConfig| kind.at.iter().flatten().find(|at| layers.contains(*at)).copied();
    if let Some((name, layer)) = config.model.layers.iter().find_map(|(name, kind)| Some((name, is_taken(kind)?))) {
        let message = format!("--layers {layer}: [model.layers.{name}] of the run file has that layer");
        return Err(CommandError::misuse(message, "give other layers, or remove this one from the kind of layers"));
    }
    Ok(())
}

/// Refuses keys of `[encoding]` that something else replaces, and names the table of the run file where it has keys.
pub(super) fn check_replaced_encoding(
    file: &RunFile,
    config: &RunConfig,
    (replacing, hint): (&str, &str),
) -> CommandResult {
    if let Some(ignored) = file.set.iter().find(|set| set.starts_with("encoding.") || set.starts_with("encoding=")) {
        return Err(CommandError::misuse(format!("--set {ignored}: {replacing} replaces the encoding"), hint));
    }
    if config.encoding != encodings::named(config.encoding.method.kind())? {
        remarkln!(
            "note: {replacing} replaces [encoding] of {} with all its keys, here `{}`",
            file.config.display(),
            config.encoding.label()
        );
    }
    Ok(())
}

/// Refuses a scaling that no encoding takes, and names those that do not take it.
fn check_rope_scalings(scalings: &[RopeScaling], encodings: &[Encoding]) -> CommandResult {
    for scaling in scalings {
        let takes = |encoding: &&Encoding| encoding.with_rope_scaling(*scaling).is_ok();
        let without: Vec<String> = encodings.iter().filter(|encoding| !takes(encoding)).map(Encoding::label).collect();
        if without.len() == encodings.len() {
            let message = format!("--rope-scaling {}: no encoding that is compared takes it", scaling.label());
            return Err(CommandError::misuse(message, "omit --rope-scaling, or use the encoding rotary"));
        }
        if !without.is_empty() {
            remarkln!("note: --rope-scaling {} does not apply to {}", scaling.label(), without.join(", "));
        }
    }
    Ok(())
}

/// The same with `--layers`, where the encodings that are compared are scaled with the model's own.
fn check_rope_scalings_with_layers(scalings: &[RopeScaling], own: &Encoding) -> CommandResult {
    let Some((scaling, refusal)) =
        scalings.iter().find_map(|scaling| Some((scaling, own.with_rope_scaling(*scaling).err()?)))
    else {
        return Ok(());
    };
    let message = format!(
        "--rope-scaling {}: with --layers it scales the model's own encoding, here {}: {}",
        scaling.label(),
        own.label(),
        refusal.message
    );
    Err(CommandError::misuse(message, "omit --rope-scaling, or give the model a rotary encoding of its own"))
}

/// Where the runs of a task are: in its folder. A folder that an earlier version began has them one below, where they are resumed.
fn runs_of_task(out: PathBuf) -> PathBuf {
    let before = out.join("runs");
    if before.is_dir() { before } else { out }
}

/// The encodings named on the command line; `@FILE` holds a TOML list `[[encoding]]`.
fn encodings(names: &[String]) -> Result<Vec<Encoding>, CommandError> {
    let mut found = Vec::new();
    for name in names {
        match name.strip_prefix('@') {
            Some(file) => found.extend(from_file(Path::new(file))?),
            None => {
                found.push(encodings::named(name)?);
            }
        }
    }
    let mut labels: Vec<String> = found.iter().map(Encoding::label).collect();
    labels.sort();
    match labels.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(CommandError::misuse(
            format!("`{}` is given twice", pair[0]),
            "give each \
            encoding once",
        )),
        None => Ok(found),
    }
}

fn from_file(file: &Path) -> Result<Vec<Encoding>, CommandError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct EncodingList {
        encoding: Vec<Encoding>,
    }
    let hint = "write one [[encoding]] table per encoding, with `kind` and its keys";
    let text = kerple_run::files::read_text(file).map_err(|error| {
        let message = format!("--encodings @{}: cannot read: {error}", file.display());
        CommandError::misuse(message, kerple_run::files::hint(&error))
    })?;
    let list: EncodingList = toml::from_str(&text)
        .map_err(|error| CommandError::misuse(format!("{}: {}", file.display(), error.to_string().trim_end()), hint))?;
    Ok(list.encoding)
}

/// Runs a shard of a comparison with progress; fails when the user stops it.
pub fn run_comparison(comparison: &Comparison, shard: Shard, stop: &AtomicBool, json: bool) -> CommandResult {
    work(json, |tell| comparison.run(shard, stop, tell))
}

/// What to say of a shard that has no more to do.
pub fn done(shard: Shard, runs: usize) -> String {
    match shard.count_of(runs) {
        0 => format!("shard {shard} has none of the {runs} runs"),
        _ => format!("shard {shard} is done"),
    }
}

/// Does jobs with progress; fails when the user stops it.
pub fn work<E>(json: bool, run: impl FnOnce(&mut dyn FnMut(SweepEvent)) -> Result<bool, E>) -> CommandResult
where
    CommandError: From<E>,
{
    let mut line = ProgressLine::new();
    let (mut what, mut first) = (String::new(), true);
    let finished = run(&mut |event| match event {
        SweepEvent::Run { name, seed, index, runs, memory } => {
            what = format!("run {}/{runs}  {name} seed {seed}", index + 1);
            // the runs differ by a few learned values
            if std::mem::take(&mut first) {
                line.done(&memory.to_string());
            }
        }
        SweepEvent::Diverged { error, .. } => line.done(&format!("{what}  failed: {error}; the other runs continue")),
        SweepEvent::Training(train::TrainEvent::Note(note)) => line.done(&format!("{what}  note: {note}")),
        SweepEvent::Training(train::TrainEvent::Step(step)) => line.show(|| step_line(&what, step)),
        SweepEvent::Evaluation(evaluate::EvalEvent::Evaluating { length, done, windows }) => {
            line.show(|| format!("{what}  evaluating length {length}  window {done}/{windows}"));
        }
        SweepEvent::Evaluation(evaluate::EvalEvent::Note(note)) => {
            line.done(format!("{what}  note: {note}").trim_start())
        }
        SweepEvent::Evaluation(evaluate::EvalEvent::Row { row, .. }) if json => print_json(row),
        SweepEvent::Evaluation(evaluate::EvalEvent::Row { fresh: false, .. }) => {}
        SweepEvent::Evaluation(evaluate::EvalEvent::Row { row, .. }) => {
            let found = match &row.task {
                Some(task) => format!("right {:.2} %", 100.0 * task.score()),
                None => format!("perplexity {:.3}", row.perplexity),
            };
            line.done(&format!("{what}  length {:>6}  {found}", row.eval_len));
        }
    })?;
    if finished {
        return Ok(());
    }
    line.done("stopped");
    Err(CommandError::stopped("stopped before the end; finished work is saved", "re-run the command to resume"))
}
