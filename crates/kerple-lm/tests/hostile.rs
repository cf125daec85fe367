//! Damaged and lying run files, assignments, run folders and kernels: an error or a success, never a panic, never more
//! memory or time than the good ones are worth. Cases that once failed are kept at the end.

mod common;
#[path = "../../kerple-data/tests/common/hunt.rs"]
mod hunt;

use common::{Counting, encoding, plan, plan_with};
use hunt::{alone, config, counting};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::plan::{AttentionKind, BlockConfig, LinearAttentionConfig};
use kerple_core::calculus::points::Points;
use kerple_core::precision::Precision;
use kerple_data::fingerprint;
use kerple_lm::checkpoint::{self, CheckpointState};
use kerple_lm::config::{DataConfig, REFERENCE, RunConfig, TrainConfig};
use kerple_lm::corpus::DataSource;
use kerple_lm::model::Decoder;
use kerple_lm::objective::{NextTokenPrediction, Objective, SequenceBatch};
use kerple_lm::plan::{DataInfo, Plan};
use kerple_lm::run::RunFolder;
use kerple_lm::runtime::Runtime;
use kerple_lm::sequences::BatchSource;
use kerple_lm::train::{TrainSession, train};
use kerple_lm::train_state::{self, TrainState};
use kerple_lm::{Error, Result};
use kerple_report::{ReportOptions, find_runs, write};
use kerple_run::{EvaluationRow, Journal};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// What any of these readers may take; the good files need a thousandth.
const MOST: usize = 256 << 20;

/// Reads something and checks what it takes and what it says.
fn check(name: &str, read: impl FnOnce() -> Result<()>) -> bool {
    hunt::check(name, MOST, || read().map_err(|error| (error.to_string(), error.hint())))
}

/// Changes a good text in many ways.
fn hunt(name: &str, good: &[u8], cases: u32, read: &dyn Fn(&[u8]) -> Result<()>) {
    hunt::hunt(name, good, cases, &|bytes| check(name, || read(bytes)));
}

fn facts() -> DataInfo {
    DataInfo { vocab_size: 300, tokenizer: "t".to_owned(), train_tokens: 1 << 40, content: "c".to_owned() }
}

/// A run file, down to its plan and what it would take.
fn as_run_file(bytes: &[u8], set: &[String]) -> Result<()> {
    let config = RunConfig::parse(&String::from_utf8_lossy(bytes), "run.toml", set)?;
    let plan = Plan::new(&config, facts())?;
    let _ = plan.training_memory(plan.train.batch_size, Precision::F32).to_string();
    let back: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).expect("what is written is read");
    assert_eq!(back.hash, plan.hash);
    Ok(())
}

/// Every kind of value a run file has, and encodings with keys of their own.
fn run_files() -> Vec<String> {
    let commented = REFERENCE.replace("\n# ", "\n");
    let of =
        |encoding: &str| format!("[data]\npath = \"d\"\n[encoding]\n{encoding}\n[train]\nsteps = 10\nbatch_size = 4\n");
    let mut files = vec![REFERENCE.to_owned()];
    if RunConfig::parse(&commented, "run.toml", &[]).is_ok() {
        files.push(commented);
    }
    files.extend([
        of("kind = \"t5\"\nnum_buckets = 32\nmax_distance = 128"),
        of("kind = \"rotary\"\nbase = 10000.0\npct = 0.5"),
        of("kind = \"kernel\"\nbias = \"log(b=1, a=0.5) + power(1, 1)\""),
        of("kind = \"kerple_power\"\na = [0.5, 1.5]\np = 1.0\nkeep = \"smooth\""),
    ]);
    files.retain(|file| as_run_file(file.as_bytes(), &[]).is_ok());
    files
}

#[test]
fn run_files_and_assignments() {
    let _alone = alone();
    let files = run_files();
    assert!(files.len() >= 4, "{} of the run files are good", files.len());
    for file in &files {
        hunt("run file", file.as_bytes(), 400, &|bytes| as_run_file(bytes, &[]));
    }
    for set in [
        "train.steps=100",
        "encoding={kind=\"kerple_log\",r1=[0.0,2.0]}",
        "train.adam_betas=[0.9, 0.95]",
        "model.block.norm=rms",
        "model.n_heads=4",
        "data.path=elsewhere",
    ] {
        let read = |bytes: &[u8]| as_run_file(REFERENCE.as_bytes(), &[String::from_utf8_lossy(bytes).into_owned()]);
        hunt("assignment", set.as_bytes(), 200, &read);
    }
}

/// What people write by mistake, and what a file may say to take all there is: nothing, little, and more than any limit.
const NUMBERS: [u64; 10] = [
    0,
    1,
    2,
    4095,
    1 << 16,
    (1 << 20) + 1,
    1 << 31,
    (1 << 40) - 1,
    1 << 40,
    i64::MAX as u64, /* TOML has no more */
];

/// Places of the numbers of a run file, in lists too.
fn numbers(value: &toml::Value, place: &str, found: &mut Vec<String>) {
    let below = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}/{key}") };
    match value {
        toml::Value::Integer(_) | toml::Value::Float(_) => found.push(place.to_owned()),
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| numbers(value, &below(key), found)),
        toml::Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| numbers(value, &below(&at.to_string()), found));
        }
        _ => {}
    }
}

/// The same file with another number at a place.
fn with_number(file: &toml::Value, place: &str, number: u64) -> toml::Value {
    let mut file = file.clone();
    let mut at = &mut file;
    for part in place.split('/') {
        at = match at {
            toml::Value::Array(items) => &mut items[part.parse::<usize>().unwrap()],
            table => &mut table[part],
        };
    }
    *at = match at {
        toml::Value::Float(_) => toml::Value::Float(number as f64),
        _ => toml::Value::Integer(number.try_into().unwrap()),
    };
    file
}

/// A run file down to its plan, and the examples of a task that needs no files.
fn as_planned(file: &toml::Value) -> Result<()> {
    let text = toml::to_string(file).unwrap();
    let config = RunConfig::parse(&text, "run.toml", &[])?;
    as_run_file(text.as_bytes(), &[])?;
    if config.data.task.as_ref().is_some_and(|task| task.open(None).is_ok()) {
        let config = RunConfig { data: DataConfig { path: PathBuf::new(), ..config.data }, ..config };
        let source = DataSource::open(&config.data)?;
        let plan = Plan::new(&config, source.facts())?;
        if plan.train_len <= 4096 && plan.train.batch_size <= 64 {
            source.batches(&plan)?.batch(0, 0..1)?;
        }
    }
    Ok(())
}

/// Every number of every run file, one at a time and then some together.
#[test]
fn numbers_of_run_files() {
    let _alone = alone();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let shipped = [folder.clone(), folder.join("lra")].map(|folder| fs::read_dir(folder).unwrap());
    let shipped = shipped.into_iter().flatten().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let mut files: Vec<String> = shipped.map(|path| fs::read_to_string(path).unwrap()).collect();
    files.extend(run_files());
    let of = |task: &str| {
        format!("[data]\ntask = {task}\n[encoding]\nkind = \"rotary\"\n[train]\nbatch_size = 2\ntrain_len = 64\n")
    };
    files.extend([
        of("{kind=\"passkey\",digits=5,noise=32}"),
        of("{kind=\"recall\",pairs=4,vocab=128,power=0.01}"),
        of("{kind=\"listops\",more_than=3,fewer_than=60,depth=10,arguments=10,train=10,valid=10,test=10,seed=0}"),
        of("{kind=\"pathfinder\",size=32,train=10,valid=10,test=10,seed=0}"),
        of("{kind=\"lra_retrieval\",train=10,valid=10,test=10,subjects=8,seed=0}"),
    ]);
    let mut tried = 0;
    for file in &files {
        let file: toml::Value = toml::from_str(file).unwrap();
        let mut places = Vec::new();
        numbers(&file, "", &mut places);
        let read = |file: &toml::Value, what: &str| {
            let survived = catch_unwind(AssertUnwindSafe(|| check(what, || as_planned(file))));
            assert!(survived.is_ok(), "{what} in\n{}", toml::to_string(file).unwrap());
        };
        for place in &places {
            for number in NUMBERS {
                tried += 1;
                read(&with_number(&file, place, number), &format!("{place} = {number}"));
            }
        }
        let some = prop::collection::vec((0..places.len().max(1), prop::sample::select(NUMBERS.to_vec())), 2..5);
        let found = TestRunner::new(config(40)).run(&some, |changes| {
            let changes = changes.into_iter().filter(|(at, _)| *at < places.len());
            let changed = changes.fold(file.clone(), |file, (at, number)| with_number(&file, &places[at], number));
            let survived = catch_unwind(AssertUnwindSafe(|| check("numbers", || as_planned(&changed))));
            prop_assert!(survived.is_ok(), "keep {}", toml::to_string(&changed).unwrap());
            Ok(())
        });
        if let Err(error) = found {
            panic!("{error}");
        }
    }
    assert!(tried > 1000, "{tried} numbers");
}

/// A short finished run with evaluations.
struct Finished {
    folder: tempfile::TempDir,
    plan: Plan,
    checkpoint: PathBuf,
}

impl Finished {
    fn new() -> Finished {
        let settings =
            TrainConfig { steps: 3, log_every: 1, eval_interval: 2, eval_sequences: 2, ..TrainConfig::default() };
        let (folder, plan) = (tempfile::tempdir().unwrap(), plan(&encoding("kerple_log"), settings));
        let (run, batches, stop) = (RunFolder::new(folder.path()), Counting(plan.clone()), AtomicBool::new(false));
        let session = TrainSession {
            plan: &plan,
            run: &run,
            batches: &batches,
            stop: &stop,
            strict: false,
            runtime: &Runtime::cpu(None),
        };
        assert!(train(&session, &mut |_| {}).unwrap().finished);
        let mut rows = Journal::open(&run.evaluation_file()).unwrap();
        for length in [12, 24, 48] {
            rows.push(&evaluation(&plan, length)).unwrap();
        }
        let checkpoint = checkpoint::folder(folder.path()).join("step-00000003");
        Finished { folder, plan, checkpoint }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Reads everything, as training, evaluation, `verify` and `report` do.
    fn read(&self) -> Result<()> {
        let run = RunFolder::new(self.path());
        let _ = run.verify();
        let report = find_runs(&[self.path()])
            .and_then(|runs| write(&runs, &self.path().join("page"), &ReportOptions::default()));
        let loaded = run.load(&kerple_lm::device(), false).map(|_| ());
        let state = checkpoint::state(&self.checkpoint, &self.plan)?;
        let model = Decoder::new(&self.plan, &kerple_lm::device().autodiff());
        let mut train_state = TrainState::new(model, NextTokenPrediction::default(), train_state::settings(&self.plan));
        checkpoint::restore(&self.checkpoint, &state, &mut train_state)?;
        run.evaluations()?;
        let metrics = run.path().join("metrics.jsonl");
        let kept = fs::read(&metrics).unwrap();
        let reopened = run.reopen_metrics(2).map(|_| ());
        fs::write(&metrics, kept).unwrap();
        report?;
        loaded.and(reopened)
    }

    /// State as it would be written, after `change`.
    fn seal(&self, change: impl FnOnce(&mut CheckpointState)) {
        let path = self.checkpoint.join("state.json");
        let Ok(mut state) = serde_json::from_slice::<CheckpointState>(&fs::read(&path).unwrap()) else { return };
        change(&mut state);
        state.sha256 = String::new();
        state.sha256 = fingerprint(&serde_json::to_vec(&state).unwrap());
        fs::write(path, serde_json::to_vec(&state).unwrap()).unwrap();
    }
}

fn evaluation(plan: &Plan, length: u64) -> EvaluationRow {
    let text = serde_json::json!({ "checksum": "c", "segment_len": 48, "n_segments": 2, "seed": 7 });
    let row = serde_json::json!({
        "label": plan.label, "seed": plan.seed, "train_len": plan.train_len, "eval_len": length, "protocol": "segments",
        "split": "test", "step": 3, "text": text, "n_windows": 2, "tokens": 2 * length, "nll": 2.0, "perplexity": 2f64.exp(),
        "seconds": 0.1, "nll_by_position": vec![2.0; length as usize], "nll_by_segment": [2.0, 2.0],
    });
    serde_json::from_value(row).unwrap()
}

#[test]
fn run_folders() {
    let _alone = alone();
    let run = Finished::new();
    let weights = |run: &Finished, bytes: &[u8]| run.seal(|state| state.model_sha256 = fingerprint(bytes));
    let moments = |run: &Finished, bytes: &[u8]| run.seal(|state| state.optimizer_sha256 = fingerprint(bytes));
    type Seal<'a> = &'a dyn Fn(&Finished, &[u8]);
    // checksums that would catch the lie are made to fit it
    let files: [(&str, Seal); 9] = [
        ("plan.json", &|_, _| ()),
        ("metrics.jsonl", &|_, _| ()),
        ("sessions.jsonl", &|_, _| ()),
        ("evaluation.jsonl", &|_, _| ()),
        ("kernels.json", &|_, _| ()),
        ("checkpoints/step-00000003/state.json", &|_, _| ()),
        ("checkpoints/step-00000003/state.json", &|run, _| run.seal(|_| ())),
        ("checkpoints/step-00000003/model.safetensors", &weights),
        ("checkpoints/step-00000003/optimizer.safetensors", &moments),
    ];
    let plan = run.path().join("plan.json");
    let good = fs::read_to_string(&plan).unwrap();
    fs::write(&plan, good.replace("adam_first_step", "first\u{7f}adam_step")).unwrap();
    let message = run.read().unwrap_err().to_string();
    assert!(message.contains("unknown field `first\\u{7f}adam_step`"), "{message}");
    fs::write(&plan, good).unwrap();
    for (name, seal) in files {
        let path = run.path().join(name);
        let state = fs::read(run.checkpoint.join("state.json")).unwrap();
        let good = fs::read(&path).unwrap();
        hunt(name, &good, 60, &|bytes| {
            fs::write(run.checkpoint.join("state.json"), &state).unwrap();
            fs::write(&path, bytes).unwrap();
            seal(&run, bytes);
            run.read()
        });
        fs::write(run.checkpoint.join("state.json"), &state).unwrap();
        fs::write(&path, &good).unwrap();
    }
}

#[test]
fn a_validation_of_long_sequences_takes_what_a_piece_takes() {
    let _alone = alone();
    let block =
        BlockConfig { attention: AttentionKind::Linear(LinearAttentionConfig::default()), ..BlockConfig::default() };
    let plan = plan_with(&encoding("rotary"), TrainConfig::default(), block);
    let model = Decoder::new(&plan, &kerple_lm::device());
    let len = 1 << 16;
    let batch = SequenceBatch { tokens: vec![3; len], targets: vec![4; len], rows: 1, len, ..SequenceBatch::default() };
    let [whole, pieces] = [None, Some(256)].map(|piece| {
        counting::most(|| NextTokenPrediction { piece }.mean_loss(&model, &batch, &ForwardContext::evaluation(1))).1
    });
    assert!(pieces < whole / 4, "{} of {} KiB", pieces >> 10, whole >> 10);
}

#[test]
fn kernels_and_points() {
    let _alone = alone();
    let refused = |message: String| Error::Refused { message, hint: "docs/kernels.md".to_owned() };
    for kernel in [
        "log(b=1, a=0.5) + 2 * power(1, 1.5)",
        "exp(-power(0.5, 1))",
        "0.5 * gauss(3) * (1 + log(1, 1))^0.5",
        "cauchy(1) - min(log(1, 2), 3)",
    ] {
        let read = |bytes: &[u8]| {
            let report = kerple_core::calculus::report::check(&String::from_utf8_lossy(bytes), "0..15")
                .map_err(|error| refused(error.to_string()))?;
            let _ = report.to_string();
            Ok(())
        };
        // not all of these are in the language; what their changes do counts
        let good = if read(kernel.as_bytes()).is_ok() { kernel } else { "log(1, 1)" };
        hunt("kernel", good.as_bytes(), 300, &read);
    }
    for points in ["0..31", "0,1,2.5,9", "grid(4x5)", "random(n=20, high=100, seed=1)", "0..10..0.5"] {
        let read = |bytes: &[u8]| match Points::parse(&String::from_utf8_lossy(bytes)) {
            Ok(points) => {
                assert!(points.len() <= 1024 && (0..points.len()).all(|at| points.point(at).len() == points.dim()));
                Ok(())
            }
            Err(error) => Err(refused(error.to_string())),
        };
        let good = if read(points.as_bytes()).is_ok() { points } else { "0..31" };
        hunt("points", good.as_bytes(), 300, &read);
    }
}

/// Deep nesting once overflowed the stack, in an assignment and in a run file.
#[test]
fn deep_keys_are_errors() {
    let deep = "a.".repeat(20_000);
    let refused = RunConfig::parse(REFERENCE, "run.toml", &[format!("{deep}b=1")]).unwrap_err();
    assert!(refused.to_string().contains("more than 8 parts") && refused.to_string().len() < 200, "{refused}");
    for text in [format!("{deep}b = 1\n"), format!("[{deep}b]\n"), format!("x = {}", "[".repeat(20_000))] {
        assert!(RunConfig::parse(&text, "run.toml", &[]).is_err());
        assert!(RunConfig::parse(REFERENCE, "run.toml", &[format!("seed={text}")]).is_err());
    }
    let inline = format!("{}1{}", "{a=".repeat(20_000), "}".repeat(20_000));
    assert!(RunConfig::parse(REFERENCE, "run.toml", &[format!("seed={inline}")]).is_err());
}
