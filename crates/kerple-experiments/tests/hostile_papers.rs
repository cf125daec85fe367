//! Folders of reproductions that are damaged or lie, as other people's may: pages or an error, never a panic, never more
//! memory or time than the good ones are worth, and nothing written outside the folder.

#[path = "../../kerple-data/tests/common/hunt.rs"]
mod hunt;

use hunt::{alone, lie, zero};
use kerple_experiments::pages;
use kerple_experiments::reproduce::export;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What pages of such folders may take; the good ones need a hundredth.
const MOST: usize = 256 << 20;

/// A reproduction of a paper with two methods, a text and a task, in the only folder of a folder.
struct Made {
    above: tempfile::TempDir,
    files: Vec<PathBuf>,
}

/// A folder in memory where the machine has such: thousands of files are written and synced.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn rows(method: &str, corpus: &str, seed: u64) -> Vec<Value> {
    let row = |protocol: &str, (segment_len, eval_len): (u64, u64)| {
        let text = json!({"checksum": corpus, "segment_len": segment_len, "n_segments": 2, "seed": seed});
        json!({"label": method, "seed": seed, "train_len": 8, "eval_len": eval_len, "protocol": protocol, "split": "test",
            "step": 9, "text": text, "n_windows": 2, "tokens": 32, "bytes": 40, "nll": 2.0 + 0.1 * seed as f64,
            "perplexity": 7.4 + seed as f64, "bits_per_byte": 2.1, "seconds": 0.5})
    };
    if corpus == "task" {
        let mut row = row("answers", (16, 16));
        row["task"] = json!({"name": "parity_check", "accuracy": 0.5, "chance": 0.5, "by_depth": [0.5, 0.25]});
        return vec![row];
    }
    let mut rows = vec![row("last:4", (16, 8)), row("last:4", (16, 16)), row("segments", (16, 16))];
    rows[2]["nll_by_position"] = json!((0..16).map(|at| 3.0 - 0.1 * f64::from(at)).collect::<Vec<_>>());
    rows
}

fn probes(seed: u64) -> Vec<Value> {
    let text = json!({"checksum": "shown", "segment_len": 16, "n_segments": 2, "seed": seed});
    let attention = json!([{"layer": 0, "head": 0, "length": 16, "translation_invariance": 0.5, "monotonicity": 0.25,
        "single_translation_invariance": 0.5, "single_monotonicity": 0.25, "cells": [1.0, 0.0, 0.5, 1.5]}]);
    let quarter = json!({"song": 0, "quarter": 1, "time_pitch": 0.5, "onset_duration": 0.5, "onset_drum": 0.25});
    let roll = json!({"voices": ["piano"], "notes": [[0.0, 1.0, 60, 0], [1.0, 2.0, 71, 0]], "prompt": 1.0});
    [("attention", attention), ("style", json!({"rows": [quarter], "roll": roll}))]
        .map(|(name, found)| json!({"step": 9, "text": text, "config": {}, "result": {name: found}}))
        .into()
}

impl Made {
    fn new(paper: &str, [corpus, methods @ ..]: [&str; 3]) -> Made {
        let mut made = Made { above: scratch(), files: Vec::new() };
        let mut runs = Vec::new();
        for (corpus, method) in [corpus, "task"].iter().flat_map(|corpus| methods.iter().map(move |m| (*corpus, *m))) {
            for seed in [1, 2] {
                let folder = PathBuf::from(corpus).join(method).join(format!("seed-{seed}"));
                made.write_run(&folder, (method, corpus, seed));
                let (evaluate, probe) = match corpus {
                    "task" => (json!(["answers_task"]), json!([])),
                    _ => (json!(["lengths", "positions"]), json!(["attention", "style"])),
                };
                let serves = ["figure1", "figure2", "figure5", "figure6", "figure7", "table3", "table5"];
                runs.push(
                    json!({"folder": folder, "corpus": corpus, "label": method, "seed": seed, "evaluate": evaluate,
                    "probe": probe, "serves": serves}),
                );
            }
        }
        let text = |name: &str, tokenizer: &str| {
            let splits = json!({"train": {"documents": 3, "tokens": 900, "bytes": 1000}});
            json!({"name": name, "title": name, "texts": "R", "tokenizer": tokenizer, "vocab_size": 256, "splits": splits,
                "example": {"input": [1, 2], "answer": [3]}, "chance": 0.5})
        };
        let asked = |protocol: &str, span: u64, lengths: &[u64]| json!({"protocol": protocol, "span": span, "segments": 2, "lengths": lengths, "positions": true});
        let evaluations = json!({"lengths": asked("last:4", 16, &[8, 16]), "positions": asked("segments", 16, &[16]),
            "answers_task": asked("segments", 0, &[16])});
        let manifest = json!({"paper": paper, "scale": "smoke", "title": "t", "about": "a", "runs": runs,
            "corpora": [text(corpus, "byte"), text("task", "")], "evaluations": evaluations});
        let seconds: Vec<Value> =
            methods.iter().map(|name| json!({"encoding": name, "seconds": [0.5, 0.25]})).collect();
        let provenance = json!({"cpu": "m", "simd": "avx2", "threads": 2, "device": "cpu", "precision": "f32"});
        let timing = json!({"train_len": 8, "batch": 4, "forward": true, "provenance": provenance, "rows": seconds});
        made.write("reproduction.json", &manifest.to_string());
        made.write("timing.json", &timing.to_string());
        made
    }

    fn write_run(&mut self, folder: &Path, (method, corpus, seed): (&str, &str, u64)) {
        let lines = |rows: &[Value]| rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        let plan = json!({"label": method, "seed": seed, "train_len": 8, "steps": 9, "hash": format!("{corpus}{method}"),
            "parameters": 1000, "encoding": {"kind": method}, "model": {"n_layers": 1, "n_heads": 2, "head_dim": 8}});
        let metrics = json!({"step": 9, "loss": 2.0, "learning_rate": 0.1, "grad_norm": 1.0, "tokens": 288, "seconds": 3.0,
            "step_seconds": 0.25, "val_loss": 2.5, "encoding_params": {"r1": [0.5, 1.0]}});
        let kernels = json!([{"step": 9, "distances": [0, 1, 8], "bias": [[0.0, -1.0, -3.0], [0.0, -0.5, -1.0]],
            "weight": [[1.0, 0.5, 0.25]], "effective_length": [8, null]}]);
        let text = json!({"checksum": corpus, "segment_len": 16, "n_segments": 2, "seed": seed});
        let values = json!([[0.5, 0.25, 1.0, 2.0], [1.0, 0.5, 0.25, 0.0]]);
        let layer = json!({"scores": values, "bias": values, "adaptive": values});
        let score = |segment: u64| json!({"step": 9, "text": text, "length": 4, "segment": segment, "layers": [layer]});
        let all = [
            ("plan.json", plan.to_string()),
            ("metrics.jsonl", lines(&[metrics])),
            ("evaluation.jsonl", lines(&rows(method, corpus, seed))),
            ("probes.jsonl", lines(&probes(seed))),
            ("kernels.json", kernels.to_string()),
            ("attention_scores.json", json!([score(0), score(1)]).to_string()),
        ];
        all.iter().for_each(|(name, content)| self.write(folder.join(name).to_str().unwrap(), content));
    }

    fn write(&mut self, name: &str, content: &str) {
        let path = self.folder().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        self.files.push(path);
    }

    fn folder(&self) -> PathBuf {
        self.above.path().join("folder")
    }

    /// Makes pages and an export; `true` when both could be made.
    fn check(&self, what: &str) -> bool {
        let kept = self.above.path().join("kept");
        let is_good = hunt::check(what, MOST, || {
            let made = pages::write(&self.folder(), &[], &[]);
            // plans that no program made are refused by an export
            let _ = export(&self.folder(), &kept);
            made.map(drop).map_err(|error| (error.to_string(), error.hint()))
        });
        let _ = fs::remove_dir_all(&kept);
        let beside: Vec<_> = fs::read_dir(self.above.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(beside, ["folder"], "{what}");
        is_good
    }

    /// The files of one run of the text and those beside, one of a kind.
    fn kinds(&self) -> Vec<PathBuf> {
        let mut seen = BTreeSet::new();
        self.files.iter().filter(|path| seen.insert(path.file_name().unwrap().to_owned())).cloned().collect()
    }
}

fn papers() -> [Made; 3] {
    [
        Made::new("kerple", ["github", "kerple_log", "alibi"]),
        Made::new("dape", ["arxiv", "dape", "kerple_log"]),
        Made::new("spe", ["piano", "sinusoidal", "sine_spe-gated=false"]),
    ]
}

#[test]
fn every_number_and_name_of_a_reproduction_may_lie() {
    let _alone = alone();
    for made in papers() {
        assert!(made.check("as it was made"));
        for file in made.kinds() {
            let good = fs::read_to_string(&file).unwrap();
            for (number, line) in good.lines().enumerate() {
                lie(&serde_json::from_str(line).unwrap(), 1, &mut |changed, lie| {
                    let lines = good.lines().enumerate();
                    let text: String = lines
                        .map(|(at, line)| if at == number { format!("{changed}\n") } else { format!("{line}\n") })
                        .collect();
                    fs::write(&file, text).unwrap();
                    made.check(&format!("{}, line {number}, {lie}", file.display()));
                });
            }
            fs::write(&file, good).unwrap();
        }
        assert!(made.check("as it was made"));
    }
}

#[test]
fn every_number_at_once_may_be_zero() {
    let _alone = alone();
    for made in papers() {
        for file in made.kinds() {
            let good = fs::read_to_string(&file).unwrap();
            let zeros = good.lines().map(|line| {
                let mut value: Value = serde_json::from_str(line).unwrap();
                zero(&mut value);
                format!("{value}\n")
            });
            fs::write(&file, zeros.collect::<String>()).unwrap();
            made.check(&format!("zeros in {}", file.display()));
            fs::write(&file, good).unwrap();
        }
    }
}

#[test]
fn damaged_files_of_a_reproduction() {
    let _alone = alone();
    for made in papers() {
        for file in made.kinds() {
            let good = fs::read(&file).unwrap();
            hunt::hunt(&file.display().to_string(), &good, 30, &|bytes| {
                fs::write(&file, bytes).unwrap();
                made.check("damaged")
            });
            fs::write(&file, good).unwrap();
        }
    }
}
