//! Kills at random moments: a run that is started again until it is done equals one that was never disturbed.
#![cfg(unix)]

mod common;

use common::Place;
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

/// Rows without the times, which no two sittings share.
fn rows(place: &Place, file: &str) -> Vec<Value> {
    let without_times = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        row.as_object_mut().unwrap().retain(|key, _| key != "seconds" && key != "step_seconds");
        row
    };
    place.read(file).lines().map(without_times).collect()
}

/// Runs a command, killed without warning after a drawn time, until it succeeds; returns how often it was killed.
fn until_done(place: &Place, arguments: &[&str], longest: u64, state: &mut u64) -> u32 {
    let mut kills = 0;
    loop {
        let mut child = place.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // the more often it was killed, the longer it is left alone, so that any machine gets done
        let patience = longest + u64::from(kills) * longest / 8;
        std::thread::sleep(Duration::from_micros((*state >> 33) % (patience * 1000)));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        match output.status.code() {
            Some(0) => return kills,
            Some(code) => panic!("exit {code}: {}", String::from_utf8_lossy(&output.stderr)),
            None => kills += 1,
        }
    }
}

#[test]
fn kills_change_nothing() {
    let place = Place::new();
    place.make_data();
    let mut train = vec!["train", "--config", "run.toml"];
    for set in [
        "data.packing=megatron",
        "train.steps=400",
        "train.batch=8",
        "train.micro_batch=4",
        "train.log_every=3",
        "train.valid_every=7",
        "train.checkpoint_every=4",
    ] {
        train.extend(["--set", set]);
    }
    let into = |out| [&train[..], &["--out", out]].concat();
    place.ok(&into("whole"));
    let mut state = 20_261_121;
    let kills = until_done(&place, &into("killed"), 120, &mut state);
    assert!(kills >= 5, "killed {kills} times only");
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let read = |run: &str| fs::read(place.path(format!("{run}/checkpoints/step-00000400/{file}"))).unwrap();
        assert!(read("killed") == read("whole"), "{file} after {kills} kills");
    }
    assert_eq!(rows(&place, "killed/metrics.jsonl"), rows(&place, "whole/metrics.jsonl"));
    assert_eq!(place.read("killed/kernels.json"), place.read("whole/kernels.json"));

    let eval = |run| ["eval", run, "--lengths", "16,64,128,256,512", "--segments", "8", "--protocol", "blocks"];
    place.ok(&eval("whole"));
    until_done(&place, &eval("killed"), 40, &mut state);
    assert_eq!(rows(&place, "killed/evaluation.jsonl"), rows(&place, "whole/evaluation.jsonl"));
}
