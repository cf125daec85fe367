//! `kerple quickstart`: an example with defaults.

use super::report::{write, write_and_print};
use super::stop_flag;
use crate::args::{QuickstartArgs, default_lengths};
use crate::command_error::{CommandError, CommandResult};
use crate::output::remarkln;
use crate::progress::{ProgressLine, duration};
use kerple_core::encoding::{Encoding, Method};
use kerple_core::seed::DEFAULT_SEED;
use kerple_data::{PrepareOptions, Sources};
use kerple_lm::compare::Comparison;
use kerple_lm::config::{DataConfig, ModelConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::evaluate::{EvalEvent, EvalRequest, Protocol, SegmentCount};
use kerple_lm::runtime::Runtime;
use kerple_lm::sweep::{Shard, SweepEvent};
use kerple_lm::train::TrainEvent;
use kerple_report::folder::refuse_run_or_corpus;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// At least these are always trained; `none` and the rest are a `kerple compare` away.
const ENCODINGS: [&str; 6] = ["kerple_log", "kerple_power", "alibi", "t5", "rotary", "sinusoidal"];
const SEEDS: u64 = 2;
const RUNS: usize = ENCODINGS.len() * SEEDS as usize;
const TRAIN_LEN: usize = 64;
const BATCH: usize = 16;
/// A small vocabulary: a token carries enough text for far ones to matter after a few hundred steps.
const TOKENIZER: &str = "bpe:512";
const SEGMENTS: usize = 48;
/// Most bytes of text that are taken.
const TEXT_BYTES: u64 = 24 << 20;
/// Share of the time that is planned for; the rest is reports, and steps that take longer than those that were timed.
const PLANNED_SHARE: f64 = 0.9;
/// With fewer steps rotary positions hardly rise beyond the training length, and the report shows no difference.
const FEWEST_STEPS: u64 = 300;

/// Prepares, trains, evaluates and reports.
pub fn run(args: &QuickstartArgs) -> CommandResult {
    refuse_run_or_corpus(&args.out)?;
    if !(args.minutes.is_finite() && args.minutes > 0.0) {
        return Err(CommandError::misuse(
            format!("--minutes {} is out of range, it must be greater than 0", args.minutes),
            "give a number greater than 0, e.g. --minutes 10",
        ));
    }
    let (clock, stop, runtime) = (Instant::now(), stop_flag(), args.hardware.runtime()?);
    let data = args.out.join("data");
    let mut job = QuickstartJob::of(args)?;
    if kerple_data::is_prepared(&data) {
        job = job.continued(&args.out)?;
        if !args.data.is_empty() {
            remarkln!("note: resumes with the text that was prepared before; --data was not read again");
        }
    } else {
        let had_text = text(&args.out).exists();
        let inputs = inputs(args)?;
        job.record(&args.out)?;
        let checked = prepare(inputs, &data, &stop).and_then(|()| {
            let checked = comparison(&args.out, &data, runtime.clone()).check(&stop).map_err(CommandError::from);
            checked.map_err(|refusal| CommandError { hint: "give more text with --data".to_owned(), ..refusal })
        });
        if let Err(failure) = checked {
            // nothing was begun: another call may ask for something else
            let _ = std::fs::remove_file(QuickstartJob::file(&args.out));
            if kerple_data::is_prepared(&data) {
                // it was not before
                let _ = std::fs::remove_dir_all(&data);
            }
            if args.data.is_empty() && !had_text {
                let _ = std::fs::remove_dir_all(text(&args.out));
            }
            let _ = std::fs::remove_dir(&args.out);
            return Err(failure);
        }
    }
    remove_trial(&args.out)?;
    let mut comparison = comparison(&args.out, &data, runtime);
    let steps = match job.steps {
        Some(steps) => steps,
        None => {
            let cost = Cost::measure(&comparison, &stop)?;
            cost.steps(args.minutes, clock.elapsed().as_secs_f64())?
        }
    };
    job.steps = Some(steps);
    job.record(&args.out)?;
    let kinds = ENCODINGS.len();
    remarkln!("{kinds} encodings x {SEEDS} seeds = {RUNS} runs of {steps} steps of {BATCH} x {TRAIN_LEN} tokens");
    comparison.config.train.steps = steps;
    train_and_evaluate(&comparison, &stop)?;
    write_and_print(std::slice::from_ref(&args.out), &report(&args.out), None, false)?;
    remarkln!("done in {}", duration(clock.elapsed().as_secs_f64()));
    Ok(())
}

fn report(out: &Path) -> PathBuf {
    out.join("report")
}

fn comparison(out: &Path, data: &Path, runtime: Runtime) -> Comparison {
    Comparison {
        config: config(data),
        layers: None,
        encodings: ENCODINGS.iter().filter_map(|kind| Method::named(kind)).map(Encoding::from).collect(),
        seeds: SEEDS,
        request: EvalRequest {
            lengths: default_lengths(TRAIN_LEN),
            protocol: Protocol::Last(TRAIN_LEN),
            n_segments: SegmentCount::UpTo(SEGMENTS),
            segment_len: None,
            seed: 0,
            per_position: true,
            documents: None,
            within: Default::default(),
        },
        rope_scalings: Vec::new(),
        out: out.to_owned(),
        runs: out.join("runs"),
        runtime,
    }
}

/// Does all runs, with one line of progress for all of them and one that stays for each, and a report after each.
fn train_and_evaluate(comparison: &Comparison, stop: &AtomicBool) -> CommandResult {
    let began = Instant::now();
    let mut line = ProgressLine::new();
    let (mut run, mut done, mut perplexities) = (String::new(), 0, Vec::new());
    let mut reported = Ok(());
    let finished = comparison.run(Shard::WHOLE, stop, &mut |event| match event {
        SweepEvent::Run { name, seed, index, .. } => {
            if index > 0 && reported.is_ok() {
                reported = write(std::slice::from_ref(&comparison.out), &report(&comparison.out), None).map(drop);
            }
            run = format!("{name} seed {seed}");
            done = index;
            // a run that diverged has left the lengths that it had finished
            perplexities.clear();
        }
        SweepEvent::Training(TrainEvent::Step(step)) => line.show(|| {
            let share = (done as f64 + step.step as f64 / step.steps as f64) / RUNS as f64;
            let left = began.elapsed().as_secs_f64() * (1.0 - share) / share;
            let (run_number, percent) = (done + 1, (100.0 * share) as u32);
            format!("{percent:>3} %  run {run_number}/{RUNS} {run}  loss {:.3}  {} left", step.loss, duration(left))
        }),
        SweepEvent::Training(TrainEvent::Note(note)) | SweepEvent::Evaluation(EvalEvent::Note(note)) => {
            line.done(&format!("{run}: note: {note}"));
        }
        SweepEvent::Evaluation(EvalEvent::Row { row, .. }) => {
            perplexities.push((row.eval_len, row.perplexity));
            if perplexities.len() == comparison.request.lengths.len() {
                let [(short, first), .., (long, last)] = perplexities[..] else { return };
                line.done(&format!("{run}: perplexity {first:.2} at {short} tokens, {last:.2} at {long}"));
                perplexities.clear();
            }
        }
        SweepEvent::Diverged { error, .. } => line.done(&format!("{run} failed: {error}; the other runs continue")),
        SweepEvent::Evaluation(EvalEvent::Evaluating { .. }) => {}
    })?;
    reported?;
    if finished {
        return Ok(());
    }
    line.done("stopped");
    Err(CommandError::stopped("stopped before the end; finished work is saved", "re-run the command to resume"))
}

fn config(data: &Path) -> RunConfig {
    RunConfig {
        seed: DEFAULT_SEED,
        data: DataConfig::text(data),
        encoding: Encoding::from(Method::KerpleLog(Default::default())),
        model: ModelConfig { preset: Preset::Tiny, ..ModelConfig::default() },
        train: TrainConfig {
            train_len: TRAIN_LEN,
            batch_size: BATCH,
            learning_rate: 3e-3,
            warmup_ratio: 0.05,
            eval_interval: 0,
            save_interval: 1_000_000,
            keep_last_n: 1,
            ..TrainConfig::default()
        },
    }
}

/// What a folder was started for, so that the same command goes on and another one is not taken for it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuickstartJob {
    /// Absolute paths of the text; none for what the program brings along.
    data: Vec<PathBuf>,
    minutes: f64,
    /// Training steps per run, given or once a step has been timed.
    steps: Option<u64>,
}

impl QuickstartJob {
    fn of(args: &QuickstartArgs) -> Result<QuickstartJob, CommandError> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path).map_err(|error| {
                CommandError::misuse(
                    format!("{}: {error}", path.display()),
                    "give the \
                    path of a text file or folder, e.g. --data my-text/",
                )
            })
        };
        let data = args.data.iter().map(absolute).collect::<Result<_, _>>()?;
        Ok(QuickstartJob { data, minutes: args.minutes, steps: args.steps })
    }

    fn file(out: &Path) -> PathBuf {
        out.join("quickstart.json")
    }

    fn record(&self, out: &Path) -> CommandResult {
        std::fs::create_dir_all(out).map_err(|error| CommandError::writing(out, &error))?;
        Ok(kerple_run::write_json(&QuickstartJob::file(out), self)?)
    }

    /// This job as an earlier session left it.
    fn continued(self, out: &Path) -> Result<QuickstartJob, CommandError> {
        let hint = "use the same --data and --minutes to resume, or another folder with --out";
        let file = QuickstartJob::file(out);
        if !kerple_run::files::is_there(&file).map_err(|error| CommandError::reading(&file, &error))? {
            return Err(CommandError::misuse(format!("{} contains other prepared text", out.display()), hint));
        }
        let before: QuickstartJob = kerple_run::read_json(&file)?;
        if before.data != self.data {
            let text = |job: &QuickstartJob| match job.data.as_slice() {
                [] => "the built-in text".to_owned(),
                paths => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
            };
            let message = format!("{} was started on {}, not on {}", out.display(), text(&before), text(&self));
            return Err(CommandError::misuse(message, hint));
        }
        let Some(steps) = before.steps else {
            // no run has begun: the time may change
            return Ok(self);
        };
        if before.minutes != self.minutes {
            let message = format!("{} was started for {} minutes, not {}", out.display(), before.minutes, self.minutes);
            return Err(CommandError::misuse(message, hint));
        }
        if let Some(other) = self.steps.filter(|other| *other != steps) {
            let message = format!("{} was started with {steps} steps, not {other}", out.display());
            return Err(CommandError::misuse(
                message,
                format!("use --steps {steps} to resume, or another folder with --out"),
            ));
        }
        Ok(before)
    }
}

/// The text that was named, or what the program brings along, written where a person can look at it.
fn inputs(args: &QuickstartArgs) -> Result<Sources, CommandError> {
    if !args.data.is_empty() {
        return Ok(Sources::paths(&args.data));
    }
    let text = text(&args.out);
    kerple_data::peps::write(&text, 0..=u32::MAX)?;
    Ok(Sources::paths(&[text]))
}

/// Where the text of the program itself is written.
fn text(out: &Path) -> PathBuf {
    out.join("text")
}

/// Tokenizes the text; one that is too short or too uniform for a vocabulary has its bytes as tokens.
fn prepare(inputs: Sources, out: &Path, stop: &Arc<AtomicBool>) -> CommandResult {
    let mut line = ProgressLine::new();
    let mut options = PrepareOptions {
        tokenizer: TOKENIZER.to_owned(),
        byte_budget: Some(TEXT_BYTES),
        stop: Some(stop.clone()),
        ..PrepareOptions::new(inputs, out)
    };
    let mut tokenize =
        |options: &PrepareOptions| kerple_data::prepare(options, &mut |progress| line.show(|| progress.to_string()));
    let summary = match tokenize(&options) {
        Err(refusal) if refusal.is_misuse() => {
            options.tokenizer = "byte".to_owned();
            let summary = tokenize(&options)?;
            remarkln!("note: {refusal}; tokens are the bytes of the text");
            summary
        }
        prepared => prepared?,
    };
    line.done(&format!("text: {summary}"));
    Ok(())
}

/// Where a short run is timed.
fn trial_folder(out: &Path) -> PathBuf {
    out.join(".trial")
}

/// Removes the folder of a trial in which an earlier session was killed.
fn remove_trial(out: &Path) -> CommandResult {
    let trial = trial_folder(out);
    if kerple_run::files::is_there(&trial).map_err(|error| CommandError::reading(&trial, &error))? {
        std::fs::remove_dir_all(&trial).map_err(|error| CommandError::writing(&trial, &error))?;
    }
    Ok(())
}

/// What a run costs on this machine, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) step: f64,
    pub(super) evaluation: f64,
}

impl Cost {
    /// Times a short run of the first encoding, the costliest, and its evaluation.
    pub(super) fn measure(comparison: &Comparison, stop: &AtomicBool) -> Result<Cost, CommandError> {
        const STEPS: u64 = 24;
        let folder = trial_folder(&comparison.out);
        remove_trial(&comparison.out)?;
        let mut trial = Comparison { seeds: 1, out: folder.clone(), runs: folder.join("runs"), ..comparison.clone() };
        trial.encodings.truncate(1);
        trial.config.train.steps = STEPS;
        let mut line = ProgressLine::new();
        let (mut times, mut before, mut evaluating) = (Vec::new(), Instant::now(), None);
        let finished = trial.run(Shard::WHOLE, stop, &mut |event| match event {
            SweepEvent::Training(TrainEvent::Step(step)) => {
                times.push(before.elapsed().as_secs_f64());
                before = Instant::now();
                line.show(|| format!("timing a training step: {}/{STEPS}", step.step));
            }
            SweepEvent::Evaluation(_) => {
                evaluating.get_or_insert_with(Instant::now);
            }
            _ => {}
        })?;
        let evaluation = evaluating.map_or(0.0, |began| began.elapsed().as_secs_f64());
        std::fs::remove_dir_all(&folder).map_err(|error| CommandError::writing(&folder, &error))?;
        if !finished {
            line.done("stopped");
            return Err(CommandError::stopped("stopped before the first run", "re-run the command to resume"));
        }
        times.sort_by(f64::total_cmp);
        let step = times[times.len() / 2];
        line.done(&format!("a training step takes {:.0} ms, an evaluation {}", step * 1e3, duration(evaluation)));
        Ok(Cost { step, evaluation })
    }

    /// Steps per run that fit into these minutes, of which some seconds are over; two significant digits.
    fn steps(self, minutes: f64, spent: f64) -> Result<u64, CommandError> {
        let runs = RUNS as f64;
        let per_run = ((minutes * 60.0 - spent) * PLANNED_SHARE / runs - self.evaluation).max(0.0);
        let steps = (per_run / self.step) as u64;
        if steps < FEWEST_STEPS {
            let fewest = self.evaluation + FEWEST_STEPS as f64 * self.step;
            let needed = ((fewest * runs / PLANNED_SHARE + spent) / 60.0).ceil();
            return Err(CommandError::misuse(
                format!(
                    "--minutes {minutes} allows {steps} training steps per run on this machine, at least {FEWEST_STEPS} \
                     are needed to show a difference"
                ),
                format!("use --minutes {needed}; or `kerple demo`, which takes less; or --steps to run anyway"),
            ));
        }
        let digits = 10u64.pow(steps.ilog10() - 1);
        Ok(steps / digits * digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_fit_into_the_time_and_the_hint_of_too_little_is_enough() {
        let cost = Cost { step: 0.02, evaluation: 2.0 };
        let steps = cost.steps(10.0, 5.0).unwrap();
        let total = 5.0 + RUNS as f64 * (2.0 + steps as f64 * 0.02);
        assert!(total <= 600.0 && total > 450.0, "{steps} steps, {total} s");

        let refused = cost.steps(1.0, 5.0).unwrap_err();
        let needed: f64 = refused.hint.split("--minutes ").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
        assert!(cost.steps(needed, 5.0).unwrap() >= FEWEST_STEPS, "{needed}");
    }
}
