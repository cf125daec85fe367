//! `kerple quickstart`: the main job with defaults.

use super::compare::run_comparison;
use super::report::write_and_print;
use super::stop_flag;
use crate::args::Quickstart;
use crate::failure::{Failure, Outcome};
use crate::progress::{Line, duration};
use kerple::encoding::{Encoding, Method};
use kerple_data::{PrepareOptions, Sources};
use kerple_lm::compare::Comparison;
use kerple_lm::config::{DataConfig, ModelConfig, PackingConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::corpus::Source;
use kerple_lm::evaluate::{Amount, Protocol, Request};
use kerple_lm::plan::Plan;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// At least these are always trained; `none` and the rest are a `kerple compare` away.
const ENCODINGS: [&str; 6] = ["kerple_log", "kerple_power", "alibi", "t5", "rotary", "sinusoidal"];
const SEEDS: u64 = 2;
const TRAIN_LEN: usize = 64;
const BATCH: usize = 32;
const SEGMENTS: usize = 48;
/// Bytes of dependency sources taken as the default text.
const TEXT_BYTES: u64 = 24 << 20;
/// Share of the time spent training; the rest evaluates, prepares and reports.
const TRAINING_SHARE: f64 = 0.7;
const FEWEST_STEPS: u64 = 20;

/// Prepares, trains, evaluates and reports.
pub fn run(args: &Quickstart) -> Outcome {
    if !(args.minutes.is_finite() && args.minutes > 0.0) {
        return Err(Failure::misuse(
            format!("--minutes {} is no time to work in", args.minutes),
            "give a number above 0, e.g. --minutes 10",
        ));
    }
    let clock = Instant::now();
    let data = args.out.join("data");
    prepare(args, &data)?;
    let config = config(&data);
    let steps = match recorded_steps(&args.out) {
        Some(steps) => steps,
        None => {
            let left = args.minutes * 60.0 - clock.elapsed().as_secs_f64();
            let steps = affordable_steps(&config, &args.out, left)?;
            record_steps(&args.out, steps)?;
            steps
        }
    };
    let runs = ENCODINGS.len() as u64 * SEEDS;
    eprintln!(
        "{} encodings x {SEEDS} seeds = {runs} runs of {steps} steps of {BATCH} x {TRAIN_LEN} tokens",
        ENCODINGS.len()
    );
    let comparison = Comparison {
        config: RunConfig { train: TrainConfig { steps, ..config.train.clone() }, ..config },
        encodings: ENCODINGS.iter().filter_map(|kind| Method::named(kind)).map(Encoding::from).collect(),
        seeds: SEEDS,
        request: Request {
            lengths: super::default_lengths(TRAIN_LEN),
            protocol: Protocol::Last(TRAIN_LEN),
            segments: Amount::UpTo(SEGMENTS),
            span: None,
            seed: 0,
            positions: true,
        },
        out: args.out.clone(),
    };
    run_comparison(&comparison, &stop_flag(), false)?;
    write_and_print(std::slice::from_ref(&args.out), &args.out.join("report"), None, false)?;
    eprintln!("done in {}", duration(clock.elapsed().as_secs_f64()));
    Ok(())
}

fn config(data: &Path) -> RunConfig {
    RunConfig {
        seed: 1235,
        data: DataConfig { path: data.to_owned(), packing: PackingConfig::Random },
        encoding: Encoding::from(Method::KerpleLog(Default::default())),
        model: ModelConfig { preset: Preset::Tiny, ..ModelConfig::default() },
        train: TrainConfig {
            train_len: TRAIN_LEN,
            batch: BATCH,
            learning_rate: 3e-3,
            warmup: 0.05,
            valid_every: 0,
            checkpoint_every: 1_000_000,
            keep: 1,
            ..TrainConfig::default()
        },
    }
}

/// Prepares the text unless an earlier sitting has.
fn prepare(args: &Quickstart, out: &Path) -> Outcome {
    if kerple_data::is_prepared(out) {
        return Ok(());
    }
    let inputs = match args.data.is_empty() {
        false => Sources::paths(&args.data),
        true => registry_text()?,
    };
    let mut line = Line::new();
    let options = PrepareOptions { byte_budget: Some(TEXT_BYTES), ..PrepareOptions::new(inputs, out) };
    let summary = kerple_data::prepare(&options, &mut |progress| line.show(|| progress.to_string()))?;
    line.done(&format!("text: {summary}"));
    Ok(())
}

/// The sources of the locked dependencies, which every machine that built the project has.
fn registry_text() -> Result<Sources, Failure> {
    let lock = include_str!("../../../../Cargo.lock");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let home = home.ok_or_else(|| Failure::failed("there is no home folder to find cargo's registry in", DATA_HINT))?;
    Sources::registry(lock, &home, &kerple_data::DEFAULT_CRATES)
        .map_err(|error| Failure::failed(error.to_string(), DATA_HINT))
}

const DATA_HINT: &str = "give a text of your own: kerple quickstart --data FILE|DIR...";

fn steps_file(out: &Path) -> PathBuf {
    out.join("quickstart.json")
}

fn recorded_steps(out: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(steps_file(out)).ok()?;
    serde_json::from_str::<serde_json::Value>(&text).ok()?["steps"].as_u64()
}

fn record_steps(out: &Path, steps: u64) -> Outcome {
    let text = serde_json::json!({ "steps": steps });
    Ok(kerple_report::record::write_json(&steps_file(out), &text)?)
}

/// Times a few steps of the costliest method and fits the whole job into `seconds`; two significant digits.
fn affordable_steps(config: &RunConfig, out: &Path, seconds: f64) -> Result<u64, Failure> {
    const TRIAL: u64 = 24;
    let folder = out.join(".trial");
    let trial = RunConfig { train: TrainConfig { steps: TRIAL, ..config.train.clone() }, ..config.clone() };
    let source = Source::open(&trial.data)?;
    let plan = Plan::new(&trial, source.facts())?;
    let mut times = Vec::new();
    let mut before = Instant::now();
    let never = std::sync::atomic::AtomicBool::new(false);
    let mut line = Line::new();
    kerple_lm::train::train(&plan, &folder, &source.batches(&plan)?, &never, &mut |step| {
        times.push(before.elapsed().as_secs_f64());
        before = Instant::now();
        line.show(|| format!("timing a training step: {}/{TRIAL}", step.step));
    })?;
    let _ = std::fs::remove_dir_all(&folder);
    times.sort_by(f64::total_cmp);
    let step = times[times.len() / 2];
    let runs = (ENCODINGS.len() as u64 * SEEDS) as f64;
    let steps = (seconds * TRAINING_SHARE / runs / step) as u64;
    line.done(&format!("a training step takes {:.0} ms", step * 1e3));
    let digits = 10u64.pow(steps.max(1).ilog10().saturating_sub(1));
    Ok((steps / digits * digits).max(FEWEST_STEPS))
}
