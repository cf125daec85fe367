//! `kerple quickstart`: an example with defaults.

use super::compare::run_comparison;
use super::report::write_and_print;
use super::stop_flag;
use crate::args::{Quickstart, default_lengths};
use crate::failure::{Failure, Outcome};
use crate::output::remarkln;
use crate::progress::{Line, duration};
use kerple_core::encoding::{Encoding, Method};
use kerple_core::seed::DEFAULT_SEED;
use kerple_data::{PrepareOptions, Sources};
use kerple_lm::compare::Comparison;
use kerple_lm::config::{DataConfig, ModelConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::corpus::DataSource;
use kerple_lm::evaluate::{EvalRequest, Protocol, SegmentCount};
use kerple_lm::plan::Plan;
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sweep::Shard;
use kerple_lm::train::{self, TrainSession};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// At least these are always trained; `none` and the rest are a `kerple compare` away.
const ENCODINGS: [&str; 6] = ["kerple_log", "kerple_power", "alibi", "t5", "rotary", "sinusoidal"];
const SEEDS: u64 = 2;
const TRAIN_LEN: usize = 64;
const BATCH: usize = 32;
const SEGMENTS: usize = 48;
/// Most bytes of text that are taken.
const TEXT_BYTES: u64 = 24 << 20;
/// Share of the time spent training; the rest evaluates, prepares and reports.
const TRAINING_SHARE: f64 = 0.7;
const FEWEST_STEPS: u64 = 20;

/// Prepares, trains, evaluates and reports.
pub fn run(args: &Quickstart) -> Outcome {
    if !(args.minutes.is_finite() && args.minutes > 0.0) {
        return Err(Failure::misuse(
            format!("--minutes {} is out of range, it must be greater than 0", args.minutes),
            "give a number greater than 0, e.g. --minutes 10",
        ));
    }
    let (clock, stop, runtime) = (Instant::now(), stop_flag(), args.hardware.runtime()?);
    let data = args.out.join("data");
    let mut job = Job::of(args)?;
    if kerple_data::is_prepared(&data) {
        job = job.continued(&args.out)?;
    } else {
        let inputs = inputs(args)?;
        job.record(&args.out)?;
        if let Err(failure) = prepare(inputs, &data, &stop) {
            // nothing was begun: another call may ask for something else
            let _ = std::fs::remove_file(Job::file(&args.out));
            if args.data.is_empty() {
                let _ = std::fs::remove_dir_all(text(&args.out));
            }
            let _ = std::fs::remove_dir(&args.out);
            return Err(failure);
        }
    }
    let config = config(&data);
    let steps = match job.steps {
        Some(steps) => steps,
        None => {
            let left = args.minutes * 60.0 - clock.elapsed().as_secs_f64();
            let steps = affordable_steps(&config, &args.out, left, &stop, &runtime)?;
            job.steps = Some(steps);
            job.record(&args.out)?;
            steps
        }
    };
    let runs = ENCODINGS.len() as u64 * SEEDS;
    let kinds = ENCODINGS.len();
    remarkln!("{kinds} encodings x {SEEDS} seeds = {runs} runs of {steps} steps of {BATCH} x {TRAIN_LEN} tokens");
    let comparison = Comparison {
        config: RunConfig { train: TrainConfig { steps, ..config.train.clone() }, ..config },
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
        },
        rope_scalings: Vec::new(),
        out: args.out.clone(),
        runtime,
    };
    run_comparison(&comparison, Shard::WHOLE, &stop, false)?;
    write_and_print(std::slice::from_ref(&args.out), &args.out.join("report"), None, false)?;
    remarkln!("done in {}", duration(clock.elapsed().as_secs_f64()));
    Ok(())
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
struct Job {
    /// Absolute paths of the text; none for what the program brings along.
    data: Vec<PathBuf>,
    minutes: f64,
    /// Training steps a run, once a step has been timed.
    steps: Option<u64>,
}

impl Job {
    fn of(args: &Quickstart) -> Result<Job, Failure> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path).map_err(|error| {
                Failure::misuse(
                    format!("{}: {error}", path.display()),
                    "give the \
                    path of a text file or folder, e.g. --data my-text/",
                )
            })
        };
        let data = args.data.iter().map(absolute).collect::<Result<_, _>>()?;
        Ok(Job { data, minutes: args.minutes, steps: None })
    }

    fn file(out: &Path) -> PathBuf {
        out.join("quickstart.json")
    }

    fn record(&self, out: &Path) -> Outcome {
        std::fs::create_dir_all(out).map_err(|error| Failure::writing(out, &error))?;
        Ok(kerple_run::write_json(&Job::file(out), self)?)
    }

    /// This job as an earlier session left it.
    fn continued(self, out: &Path) -> Result<Job, Failure> {
        let hint = "use the same --data and --minutes to resume, or another folder with --out";
        let file = Job::file(out);
        if !kerple_run::files::is_there(&file).map_err(|error| Failure::reading(&file, &error))? {
            return Err(Failure::misuse(format!("{} contains other prepared text", out.display()), hint));
        }
        let before: Job = kerple_run::read_json(&file)?;
        if before.data != self.data {
            let text = |job: &Job| match job.data.as_slice() {
                [] => "the built-in text".to_owned(),
                paths => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
            };
            let message = format!("{} was started on {}, not on {}", out.display(), text(&before), text(&self));
            return Err(Failure::misuse(message, hint));
        }
        if before.minutes != self.minutes {
            let message = format!("{} was started for {} minutes, not {}", out.display(), before.minutes, self.minutes);
            return Err(Failure::misuse(message, hint));
        }
        Ok(before)
    }
}

/// The text that was named, or what the program brings along, written where a person can look at it.
fn inputs(args: &Quickstart) -> Result<Sources, Failure> {
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

fn prepare(inputs: Sources, out: &Path, stop: &Arc<AtomicBool>) -> Outcome {
    let mut line = Line::new();
    let options =
        PrepareOptions { byte_budget: Some(TEXT_BYTES), stop: Some(stop.clone()), ..PrepareOptions::new(inputs, out) };
    let summary = kerple_data::prepare(&options, &mut |progress| line.show(|| progress.to_string()))?;
    line.done(&format!("text: {summary}"));
    Ok(())
}

/// Times a few steps of the costliest method and fits the whole job into `seconds`; two significant digits.
fn affordable_steps(
    config: &RunConfig,
    out: &Path,
    seconds: f64,
    stop: &AtomicBool,
    runtime: &Runtime,
) -> Result<u64, Failure> {
    const TRIAL: u64 = 24;
    let folder = out.join(".trial");
    if kerple_run::files::is_there(&folder).map_err(|error| Failure::reading(&folder, &error))? {
        // an earlier session was killed in it
        std::fs::remove_dir_all(&folder).map_err(|error| Failure::writing(&folder, &error))?;
    }
    let trial = RunConfig { train: TrainConfig { steps: TRIAL, ..config.train.clone() }, ..config.clone() };
    let source = DataSource::open(&trial.data)?;
    let plan = Plan::new(&trial, source.facts())?;
    let mut times = Vec::new();
    let mut before = Instant::now();
    let mut line = Line::new();
    let (run, batches) = (RunFolder::new(&folder), source.batches(&plan)?);
    let session = TrainSession { plan: &plan, run: &run, batches: &batches, stop, strict: false, runtime };
    let outcome = train::train(&session, &mut |event| {
        if let train::TrainEvent::Step(step) = event {
            times.push(before.elapsed().as_secs_f64());
            before = Instant::now();
            line.show(|| format!("timing a training step: {}/{TRIAL}", step.step));
        }
    })?;
    std::fs::remove_dir_all(&folder).map_err(|error| Failure::writing(&folder, &error))?;
    if !outcome.finished {
        line.done("stopped");
        return Err(Failure::stopped("stopped before the first run", "re-run the command to resume"));
    }
    times.sort_by(f64::total_cmp);
    let step = times[times.len() / 2];
    let runs = (ENCODINGS.len() as u64 * SEEDS) as f64;
    let steps = (seconds * TRAINING_SHARE / runs / step) as u64;
    line.done(&format!("a training step takes {:.0} ms", step * 1e3));
    let digits = 10u64.pow(steps.max(1).ilog10().saturating_sub(1));
    Ok((steps / digits * digits).max(FEWEST_STEPS))
}
