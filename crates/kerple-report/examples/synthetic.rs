//! A report of made-up runs, to look at the page without training anything.
//!
//! `cargo run --release -p kerple-report --example synthetic -- OUT` writes run folders to `OUT/runs` and the report to
//! `OUT/report`. The perplexities resemble Chi et al. 2022, arXiv:2205.09921, Table 3; nothing here is a measurement.
//! Some runs are left unfinished, one diverges, some are of a smaller model and some rows do not say which text they are
//! over, because a report has to say so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kerple_report::{ReportOptions, find_runs, table_text, write};
use kerple_run::{EvaluationRow, Journal, KernelSnapshot, MetricsRow, ScoredText, write_json};
use serde_json::json;

const TRAIN_LEN: u64 = 512;
const STEPS: u64 = 5000;
const LENGTHS: [u64; 6] = [512, 1024, 2048, 4096, 8192, 16384];

/// An encoding, its perplexities at [`LENGTHS`] and its seconds a step.
const ENCODINGS: [(&str, [f64; 6], f64); 7] = [
    ("kerple_log", [23.9, 22.0, 21.6, 21.2, 21.3, 21.4], 0.307),
    ("kerple_power", [23.9, 22.1, 21.9, 21.5, 21.6, 21.7], 0.321),
    ("alibi", [23.9, 22.4, 22.5, 22.2, 22.3, 22.5], 0.302),
    ("t5", [23.7, 21.9, 21.7, 22.5, 25.5, 31.4], 0.340),
    ("rotary", [24.2, 32.8, 62.4, 111.0, 185.0, 269.0], 0.332),
    ("sinusoidal", [33.0, 750.0, 5507.0, 14039.0, 22621.0, 30046.0], 0.298),
    ("none", [26.1, 27.0, 33.9, 61.0, 140.0, 410.0], 0.296),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(out) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err("usage: synthetic OUT".into());
    };
    let runs = out.join("runs");
    for (index, (name, perplexities, step_seconds)) in ENCODINGS.into_iter().enumerate() {
        for seed in 1235..1240 {
            let mut noise = Noise(seed * 1000 + index as u64);
            write_run(&runs.join(format!("{name}-{seed}")), name, seed, 12, perplexities, step_seconds, &mut noise)?;
        }
    }
    for (index, (name, perplexities, step_seconds)) in ENCODINGS.into_iter().enumerate().take(3) {
        for seed in [1235, 1236] {
            let mut noise = Noise(seed * 1000 + index as u64);
            let (folder, perplexities) = (runs.join(format!("small-{name}-{seed}")), perplexities.map(|p| 1.7 * p));
            write_run(&folder, name, seed, 2, perplexities, 0.2 * step_seconds, &mut noise)?;
        }
    }
    let found = find_runs(&[&runs])?;
    let options = ReportOptions {
        title: "Train at 512, read 16 384".into(),
        commit: Some("0000000".into()),
        date: Some("2026-01-01".into()),
        ..ReportOptions::default()
    };
    let summary = write(&found, &out.join("report"), &options)?;
    print!("{}", table_text(&summary.results));
    eprintln!("{}", summary.index.display());
    Ok(())
}

fn write_run(
    folder: &Path,
    name: &str,
    seed: u64,
    layers: u64,
    perplexities: [f64; 6],
    step_seconds: f64,
    noise: &mut Noise,
) -> Result<(), Box<dyn std::error::Error>> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    let steps = if (name, seed) == ("rotary", 1239) { 3000 } else { STEPS };
    let plan = json!({
        "label": name, "seed": seed, "train_len": TRAIN_LEN, "steps": STEPS, "encoding": {"kind": name},
        "parameters": 13_526_912 * layers, "hash": format!("{name:-<16}{layers}"), "model": {"n_layers": layers},
    });
    write_json(&folder.join(kerple_run::PLAN_FILE), &plan)?;
    let heads = Heads::new(name, noise);
    write_metrics(folder, &heads, steps, step_seconds, perplexities[0], noise)?;
    write_kernels(folder, &heads, steps)?;
    if (name, seed) == ("none", 1239) {
        return Ok(());
    }
    let mut rows = Journal::open(&folder.join(kerple_run::EVALUATION_FILE))?;
    // The text of a seed is the same for every encoding, so its difficulty is too.
    let text = (seed as f64 - 1237.0) * 0.016;
    for protocol in ["segments", "last:256"] {
        for (length, perplexity) in LENGTHS.into_iter().zip(perplexities) {
            if (name, seed, length) == ("t5", 1238, 16384) {
                continue;
            }
            let own = noise.normal() * 0.002 * perplexity.ln().powi(2);
            let context = if protocol == "segments" { 0.0 } else { -0.06 };
            let diverged = (name, length, seed) == ("sinusoidal", 16384, 1236);
            let nll = if diverged { f64::NAN } else { perplexity.ln() + text + own + context };
            rows.push(&evaluation(name, seed, length, protocol, None, steps, nll))?;
            if protocol == "segments" && name == "kerple_log" && length >= 4096 {
                rows.push(&evaluation(name, seed, length, protocol, Some(512), steps, nll + 0.035))?;
            }
        }
    }
    Ok(())
}

fn evaluation(
    name: &str,
    seed: u64,
    length: u64,
    protocol: &str,
    window: Option<u64>,
    step: u64,
    nll: f64,
) -> EvaluationRow {
    let tokens = 320 * if protocol == "segments" { length } else { 256 };
    let bytes = tokens * 9 / 2;
    let scored_from = if protocol == "segments" { 0 } else { length - 256 };
    let positions = (protocol != "segments" || length >= 4096).then(|| {
        let mut noise = Noise(seed + length);
        // Early positions have little context; past the training length the loss goes where the encoding's mean goes.
        let short = 2.9 + 0.002 * (name.len() as f64);
        let beyond = |p: f64| (p / TRAIN_LEN as f64).max(1.0).ln() * (nll - 3.05) * 0.45;
        let seen = |p: f64| window.map_or(p, |window| p.min(window as f64));
        let loss = |p: f64| short + 4.5 / seen(p).powf(0.45) + beyond(p).max(-0.05) + 0.15 * noise.normal();
        let losses: Vec<f64> = (1..=length).map(|p| p as f64).map(loss).collect();
        losses.into_iter().enumerate().map(|(i, loss)| if (i as u64) < scored_from { f64::NAN } else { loss }).collect()
    });
    EvaluationRow {
        label: name.into(),
        seed,
        train_len: TRAIN_LEN,
        eval_len: length,
        protocol: protocol.into(),
        window,
        rope_scaling: None,
        documents: kerple_run::DocumentMask::Joined,
        split: "test".into(),
        text: ScoredText {
            checksum: "0123456789abcdef".into(),
            segment_len: 16384,
            n_segments: 320,
            seed,
            within: Default::default(),
        },
        step,
        n_windows: 320,
        tokens,
        bytes: Some(bytes),
        nll,
        perplexity: nll.exp(),
        bits_per_byte: Some(kerple_run::bits_per_byte(nll * tokens as f64, bytes)),
        rolling: None,
        seconds: tokens as f64 / 20_000.0,
        nll_by_position: positions,
        nll_by_own_context: None,
        nll_by_segment: None,
        key_tokens: None,
        task: None,
        provenance: None,
    }
}

/// The learned amplitude and rate of every head, and which kernel they shape.
struct Heads {
    name: String,
    parameters: BTreeMap<String, Vec<f64>>,
}

impl Heads {
    fn new(name: &str, noise: &mut Noise) -> Heads {
        let mut draw =
            |low: f64, high: f64| (0..12).map(|_| low * (high / low).powf(noise.uniform())).collect::<Vec<f64>>();
        let parameters = match name {
            "kerple_log" => BTreeMap::from([("r1".into(), draw(0.05, 2.5)), ("r2".into(), draw(0.01, 2.0))]),
            "kerple_power" => BTreeMap::from([("r1".into(), draw(0.01, 1.0)), ("r2".into(), draw(0.05, 1.9))]),
            "alibi" => {
                BTreeMap::from([("slope".into(), (1..=12).map(|h| 2f64.powf(-8.0 * h as f64 / 12.0)).collect())])
            }
            _ => BTreeMap::new(),
        };
        Heads { name: name.into(), parameters }
    }

    fn bias(&self, head: usize, distance: f64) -> f64 {
        let value = |name: &str| self.parameters[name][head];
        match self.name.as_str() {
            "kerple_log" => -value("r1") * (value("r2") * distance).ln_1p(),
            "kerple_power" => -value("r1") * distance.powf(value("r2")),
            _ => -value("slope") * distance,
        }
    }
}

fn write_metrics(
    folder: &Path,
    heads: &Heads,
    steps: u64,
    step_seconds: f64,
    perplexity: f64,
    noise: &mut Noise,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut rows = Journal::open(&folder.join(kerple_run::METRICS_FILE))?;
    for step in (50..=steps).step_by(50) {
        let progress = step as f64 / STEPS as f64;
        let loss = perplexity.ln() + 0.35 * (1.0 - progress) + 4.0 * (step as f64 / -160.0).exp();
        let moved = |(name, values): (&String, &Vec<f64>)| {
            let value = |value: &f64| 0.5 + (value - 0.5) * (1.0 - (-6.0 * progress).exp());
            (name.clone(), values.iter().map(value).collect())
        };
        let learned = heads.name.starts_with("kerple") && step % 100 == 0;
        rows.push(&MetricsRow {
            step,
            loss: loss + 0.03 * noise.normal(),
            learning_rate: 3e-4 * (1.0 + (std::f64::consts::PI * progress).cos()),
            grad_norm: 0.6 + 0.1 * noise.uniform(),
            tokens: step * 16384,
            seconds: step as f64 * step_seconds,
            comm_wait_fraction: None,
            step_seconds: step_seconds * (1.0 + 0.02 * noise.uniform()),
            scored: None,
            val_loss: step.is_multiple_of(500).then_some(loss + 0.04),
            val_score: None,
            encoding_params: if learned { heads.parameters.iter().map(moved).collect() } else { BTreeMap::new() },
        })?;
    }
    Ok(())
}

fn write_kernels(folder: &Path, heads: &Heads, step: u64) -> Result<(), Box<dyn std::error::Error>> {
    if heads.parameters.is_empty() {
        return Ok(());
    }
    let distances: Vec<u64> = (0..16).chain((16..=56).map(|k| 2f64.powf(k as f64 / 4.0) as u64)).collect();
    let kernel = |head| distances.iter().map(|&distance| heads.bias(head, distance as f64)).collect();
    let effective = |head| (0..20480).find(|&distance| heads.bias(head, distance as f64) < -2.0);
    let snapshot = KernelSnapshot {
        step,
        layers: Vec::new(),
        bias: Some((0..12).map(kernel).collect()),
        weight: None,
        effective_length: (0..12).map(effective).collect(),
        distances,
    };
    Ok(write_json(&folder.join(kerple_run::KERNELS_FILE), &[snapshot])?)
}

/// A small generator of made-up noise; the same seed, the same runs.
struct Noise(u64);

impl Noise {
    /// Uniform in `[0, 1)`: the SplitMix64 sequence.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Roughly normal with deviation 1: a sum of twelve uniform numbers.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}
