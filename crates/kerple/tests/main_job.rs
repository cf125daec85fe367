//! The main job through the binary, small: prepare, train, stop and resume, evaluate, compare, report, sample, draw.

use crate::common::Place;
use kerple_core::cpu::Bf16Unit;
use serde_json::Value;
use std::fs;

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Step, loss, gradient norm and validation loss of every row: what must not depend on when a run was stopped.
fn losses(place: &Place, run: &str) -> Vec<[Value; 4]> {
    let rows = json_lines(&place.read(format!("{run}/metrics.jsonl")));
    rows.iter().map(|row| ["step", "loss", "grad_norm", "val_loss"].map(|key| row[key].clone())).collect()
}

#[cfg(unix)]
#[test]
fn stopped_and_resumed_equals_uninterrupted() {
    let place = Place::new();
    place.make_data();
    let mut train = vec!["train", "--config", "run.toml", "--json"];
    for set in
        ["train.steps=60", "train.batch_size=64", "train.log_every=1", "train.eval_interval=7", "model.head_dim=32"]
    {
        train.extend(["--set", set]);
    }
    let into = |out| [&train[..], &["--out", out]].concat();
    let whole: Value = serde_json::from_str(&place.ok(&into("whole"))).unwrap();
    assert_eq!((&whole["step"], &whole["finished"]), (&60.into(), &true.into()));

    let mut child = place.command(&into("parts")).stderr(std::process::Stdio::null()).spawn().unwrap();
    let rows = || fs::read_to_string(place.path("parts/metrics.jsonl")).map_or(0, |text| text.lines().count());
    while rows() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it could be stopped");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130), "a stopped run has not succeeded");
    let stopped = losses(&place, "parts").len();
    assert!((3..60).contains(&stopped), "stopped after {stopped} steps");

    place.ok(&into("parts"));
    assert_eq!(losses(&place, "parts"), losses(&place, "whole"));
    for file in ["model", "optimizer"] {
        let bytes =
            |run: &str| fs::read(place.path(format!("{run}/checkpoints/step-00000060/{file}.safetensors"))).unwrap();
        assert!(bytes("parts") == bytes("whole"), "{file} differs");
    }
    // what is finished is left as it is
    let before = place.read("parts/metrics.jsonl");
    place.ok(&into("parts"));
    assert_eq!(place.read("parts/metrics.jsonl"), before);
}

#[test]
fn every_protocol_scores_what_it_says() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let mut printed = Vec::new();
    // tokens scored at lengths 16 and 60 with 10 segments of 32 * 16 tokens; 60 does not divide 5120
    for (protocol, tokens) in
        [("segments", [160, 600]), ("nonoverlapping", [5120, 5120]), ("last:8", [80, 80]), ("sliding:16", [5120, 5120])]
    {
        let lines = place.ok(&[
            "eval",
            "run",
            "--json",
            "--per-position",
            "--lengths",
            "16,60",
            "--n-segments",
            "10",
            "--protocol",
            protocol,
        ]);
        let rows = json_lines(&lines);
        assert_eq!(rows.len(), 2);
        for (row, tokens) in rows.iter().zip(tokens) {
            assert_eq!((&row["protocol"], &row["tokens"]), (&protocol.into(), &tokens.into()));
            let nll = row["nll"].as_f64().unwrap();
            assert_eq!(row["perplexity"].as_f64().unwrap(), nll.exp());
            // an untrained model of 256 bytes is near ln 256 = 5.545
            assert!((4.0..5.6).contains(&nll), "{nll}");
            assert_eq!(row["nll_by_position"].as_array().unwrap().len() as u64, row["eval_len"].as_u64().unwrap());
        }
        printed.extend(rows);
    }
    assert_eq!(json_lines(&place.read("run/evaluation.jsonl")), printed, "what is printed is what is kept");
}

/// Fields of a line of CSV; quoted ones may hold commas.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields.last_mut().unwrap().push(c),
        }
    }
    fields
}

/// Rows of a CSV file, by column.
fn csv(text: &str) -> Vec<Vec<(String, String)>> {
    let mut lines = text.lines().map(fields);
    let names = lines.next().unwrap();
    lines.map(|line| names.iter().cloned().zip(line).collect()).collect()
}

#[test]
fn a_comparison_ends_in_a_report() {
    let place = Place::new();
    place.make_data();
    let compare = [
        "compare",
        "--config",
        "run.toml",
        "--encodings",
        "kerple_log,alibi",
        "--seeds",
        "2",
        "--lengths",
        "16,64",
        "--n-segments",
        "20",
        "--out",
        "all",
        "--json",
    ];
    let printed = place.ok(&compare);
    assert_eq!(printed.lines().count(), 2 * 2 * 2 + 1, "a row an evaluation, then the report");
    let report: Value = serde_json::from_str(&place.read("all/report/report.json")).unwrap();
    let last = json_lines(&printed).pop().unwrap();
    assert!(["tables", "runs", "speeds", "effective_lengths"].iter().all(|part| last[part] == report[part]));
    assert!(place.read("all/report/index.html").contains("kerple_log"));
    assert!(place.read("all/report/report.md").contains("kerple_log"));
    assert!(place.read("all/report/figures/perplexity-0.svg").contains("<svg"));

    for (file, list) in
        [("evaluations", &report["tables"][0]["evaluations"]), ("scores", &report["tables"][0]["scores"])]
    {
        let rows = csv(&place.read(format!("all/report/tables/{file}.csv")));
        assert_eq!(rows.len(), list.as_array().unwrap().len());
        let mut compared = 0;
        for (row, entry) in rows.iter().zip(list.as_array().unwrap()) {
            for (name, value) in row.iter().filter(|(name, _)| entry[name].is_number()) {
                assert_eq!(value.parse::<f64>().unwrap(), entry[name].as_f64().unwrap(), "{file}: {name}");
                compared += 1;
            }
        }
        assert!(compared >= 5 * rows.len(), "{file}: {compared} numbers");
    }
    // nothing is done twice
    let evaluated = place.read("all/runs/alibi/seed-1236/evaluation.jsonl");
    assert_eq!(place.ok(&compare), printed);
    assert_eq!(place.read("all/runs/alibi/seed-1236/evaluation.jsonl"), evaluated);
    assert!(place.ok(&["report", "all", "--out", "again"]).contains("again/index.html"));
}

#[test]
fn variants_of_one_kind_are_compared() {
    let place = Place::new();
    place.make_data();
    place.write(
        "variants.toml",
        r#"
        [[encoding]]
        kind = "kernel"
        bias = "log(b, a) + 0.5*power(a~0.1, p=1)"
        [[encoding]]
        kind = "kernel"
        bias = "power(a, p)"
        [[encoding]]
        kind = "t5"
        num_buckets = 8
        max_distance = 32
        [[encoding]]
        kind = "rotary"
        base = 500.0
        "#,
    );
    place.ok(&[
        "compare",
        "--config",
        "run.toml",
        "--encodings",
        "@variants.toml,t5,rotary",
        "--lengths",
        "16",
        "--out",
        "all",
    ]);
    let report: Value = serde_json::from_str(&place.read("all/report/report.json")).unwrap();
    let names: std::collections::BTreeSet<&str> =
        report["encodings"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names.contains("t5") && names.contains("rotary-base=500"), "{names:?}");
}

#[test]
fn samples_follow_their_seed() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let sample = |options: &[&str]| {
        let output = place.run(&[&["sample", "run", "--prompt", "ka lo", "--max-new-tokens", "40"], options].concat());
        assert!(output.status.success());
        output.stdout
    };
    let first = sample(&["--seed", "1"]);
    assert!(first.starts_with(b"ka lo"));
    assert_eq!(first, sample(&["--seed", "1"]));
    assert_ne!(first, sample(&["--seed", "2"]));
    let greedy = sample(&["--temperature", "0", "--seed", "1"]);
    assert_eq!(greedy, sample(&["--temperature", "0", "--seed", "2"]));
    assert_eq!(greedy, sample(&["--top-k", "1", "--seed", "3"]), "the likeliest of one");
}

#[test]
fn pictures_and_descriptions() {
    let place = Place::new();
    let list = place.ok(&["describe", "--json"]);
    for about in json_lines(&list) {
        let kind = about["kind"].as_str().unwrap();
        let text = place.ok(&["describe", kind]);
        assert!(text.contains(about["description"]["formula"].as_str().unwrap()), "{text}");
        let all: Value = serde_json::from_str(&place.ok(&["describe", kind, "--json"])).unwrap();
        if let Some(bias) = all["bias"].as_array() {
            assert_eq!(bias.len(), 8 * 512, "{kind}");
        }
    }
    // a bias that ends is not the kernel that is proven
    let cut = r#"{ kind = "kerple_log", reach = 16 }"#;
    let text = place.ok(&["describe", cut, "--heads", "2", "--length", "64"]);
    assert!(text.contains("  unproven  the bias ends at distance 16"), "{text}");
    assert!(text.contains("the bias is 0 for keys at distance 16") && text.contains("reach = 16"), "{text}");
    assert!(!text.contains("positive definite") && !place.ok(&["describe", "kerple_log"]).contains("not proven"));
    let all: Value = serde_json::from_str(&place.ok(&["describe", cut, "--json", "--heads", "1"])).unwrap();
    assert_eq!(all["certificate"], "not proven: the bias ends at distance 16");
    assert_eq!(all["linear"], "does not support it");
    let bias: Vec<f64> = all["bias"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    assert!(bias[1..16].iter().all(|value| *value < 0.0) && bias[16..].iter().all(|value| *value == 0.0), "{bias:?}");
    place.ok(&["describe", "alibi", "--svg", "alibi.svg"]);
    // an expression with a minus in front among options
    place.ok(&["kernel", "plot", "log(1, 1)", "-(-log(1, 1))^0.5", "--length", "64", "--svg", "kernels.svg"]);
    for file in ["alibi.svg", "kernels.svg"] {
        let text = place.read(file);
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    }
    assert!(place.ok(&["kernel", "check", "log(1, 1)"]).contains("conditionally positive definite"));
}

/// Any processor generates with matrices held as `bf16`, the same at any number of threads.
#[test]
fn matrices_of_bf16_are_for_all_processors() {
    let place = Place::new();
    place.make_data();
    place.ok(&[
        "train",
        "--config",
        "run.toml",
        "--set",
        "train.steps=5",
        "--set",
        "model.head_dim=32",
        "--out",
        "run",
    ]);
    let short = ["sample", "run", "--prompt", "the", "--max-new-tokens", "20", "--precision", "bf16"];
    let text = place.ok(&short);
    assert_eq!(text, place.ok(&[&short[..], &["--threads", "1"]].concat()));
    let narrow = place.command(&short).env("KERPLE_SIMD", "portable").output().unwrap();
    assert!(narrow.status.success(), "{}", String::from_utf8_lossy(&narrow.stderr));
}

/// A processor that multiplies `bf16` trains and evaluates with it, says so, and repeats itself; others refuse.
#[test]
fn products_of_bf16_are_for_processors_that_have_them() {
    let place = Place::new();
    place.make_data();
    let train = |out, more: &[&'static str]| {
        let sizes = ["--set", "train.steps=30", "--set", "train.log_every=1", "--set", "model.head_dim=32"];
        [&["train", "--config", "run.toml", "--json", "--out", out], &sizes[..], more].concat()
    };
    let unit = Bf16Unit::current();
    if unit == Bf16Unit::Portable {
        let run = place.run(&train("short", &["--precision", "bf16"]));
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.code() == Some(2) && said.contains("neither AVX512-BF16 nor AMX"), "{said}");
        return;
    }
    place.ok(&train("exact", &[]));
    place.ok(&train("short", &["--precision", "bf16"]));
    place.ok(&train("again", &["--precision", "bf16", "--threads", "1"]));
    assert_eq!(losses(&place, "again"), losses(&place, "short"));
    let last = |run| losses(&place, run).pop().unwrap()[1].as_f64().unwrap();
    let apart = (last("short") - last("exact")).abs();
    assert!(apart > 0.0 && apart < 0.02, "{apart}");
    let session = json_lines(&place.read("short/sessions.jsonl")).pop().unwrap();
    assert_eq!((session["precision"].as_str(), session["simd"].as_str()), (Some("bf16"), Some(unit.name())));
    let loss = |more: &[&str]| {
        let eval = [&["eval", "exact", "--lengths", "64", "--json"], more].concat();
        let row = json_lines(&place.ok(&eval)).pop().unwrap();
        assert_eq!(row["provenance"]["precision"], if more.is_empty() { "f32" } else { "bf16" });
        row["nll"].as_f64().unwrap()
    };
    let apart = (loss(&["--precision", "bf16"]) - loss(&[])).abs();
    assert!(apart > 0.0 && apart < 0.01, "{apart}");
}
