//! Small made-up runs, and reports of them.

use std::collections::BTreeMap;
use std::path::Path;

use kerple_report::{Error, ReportOptions, WrittenReport, find_runs, write};
use kerple_run::{EvaluationRow, Journal, KernelSnapshot, MetricsRow, ScoredText, write_json};
use serde_json::{Value, json};
use tempfile::TempDir;

/// What every row of one seed scores.
pub fn text(seed: u64) -> ScoredText {
    ScoredText { checksum: "c0ffee".into(), segment_len: 128, n_segments: 2, seed, within: Default::default() }
}

/// A run of 100 steps, trained at 64, with a perplexity per length.
pub fn run(root: &Path, label: &str, seed: u64, perplexities: &[(u64, f64)]) {
    run_of(root, "runs", label, seed, json!({"n_layers": 2}), perplexities);
}

/// The same with a folder above it and a model.
pub fn run_of(root: &Path, above: &str, label: &str, seed: u64, model: Value, perplexities: &[(u64, f64)]) {
    let folder = root.join(above).join(format!("{label} #{seed}"));
    std::fs::create_dir_all(&folder).unwrap();
    let plan = json!({"label": label, "seed": seed, "train_len": 64, "steps": 100, "hash": format!("{label}-{model}"),
        "encoding": {"kind": label}, "parameters": 617 * model["n_layers"].as_u64().unwrap(), "model": model});
    write_json(&folder.join(kerple_run::PLAN_FILE), &plan).unwrap();
    let mut metrics = Journal::open(&folder.join(kerple_run::METRICS_FILE)).unwrap();
    for step in [50, 100] {
        let encoding_params = BTreeMap::from([("r1".to_owned(), vec![0.1 * step as f64, 1.0])]);
        let seconds = 0.5 * step as f64;
        let row = MetricsRow {
            step,
            loss: 3.0,
            learning_rate: 0.1,
            grad_norm: 1.0,
            tokens: 64 * step,
            seconds,
            comm_wait_fraction: None,
            step_seconds: 0.5,
            scored: None,
            val_loss: Some(3.1),
            val_score: None,
            encoding_params,
        };
        metrics.push(&row).unwrap();
    }
    let mut evaluations = Journal::open(&folder.join(kerple_run::EVALUATION_FILE)).unwrap();
    for &(length, perplexity) in perplexities {
        evaluations.push(&evaluation(label, seed, length, perplexity)).unwrap();
    }
    let bias = Some(vec![vec![0.0, -1.0, -4.0], vec![0.0, -0.1, -0.2]]);
    let snapshot = KernelSnapshot {
        step: 100,
        distances: vec![0, 1, 64],
        layers: Vec::new(),
        bias,
        weight: None,
        effective_length: vec![Some(20), None],
    };
    write_json(&folder.join(kerple_run::KERNELS_FILE), &[snapshot]).unwrap();
}

pub fn evaluation(label: &str, seed: u64, length: u64, perplexity: f64) -> EvaluationRow {
    EvaluationRow {
        label: label.into(),
        seed,
        train_len: 64,
        eval_len: length,
        protocol: "segments".into(),
        window: None,
        rope_scaling: None,
        documents: kerple_run::DocumentMask::Joined,
        split: "test".into(),
        text: text(seed),
        step: 100,
        n_windows: 2,
        tokens: 2 * length,
        bytes: Some(8 * length),
        nll: perplexity.ln(),
        perplexity,
        bits_per_byte: None,
        rolling: None,
        seconds: 1.0,
        nll_by_position: Some(vec![perplexity.ln(); length as usize]),
        nll_by_own_context: None,
        nll_by_segment: None,
        key_tokens: None,
        task: None,
        provenance: None,
    }
}

pub fn report(root: &TempDir) -> Result<WrittenReport, Error> {
    let runs = find_runs(&[root.path().join("runs")])?;
    write(&runs, &root.path().join("report"), &ReportOptions { title: "A < B".into(), ..ReportOptions::default() })
}

pub fn read(root: &TempDir, file: &str) -> String {
    std::fs::read_to_string(root.path().join("report").join(file)).unwrap()
}

/// Two encodings, three seeds, two lengths, numbers that can be checked by hand.
pub fn complete() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (seed, text) in [(1, 0.0), (2, 2.0), (3, 4.0)] {
        run(root.path(), "kerple_log", seed, &[(64, 20.0 + text), (128, 18.0 + text)]);
        run(root.path(), "sinusoidal", seed, &[(64, 20.0 + text), (128, 1e4 * (1.0 + seed as f64))]);
    }
    root
}
