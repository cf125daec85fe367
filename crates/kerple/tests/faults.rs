//! Kills, and errors of system calls, at drawn moments: a run that is started again until it is done equals one that was
//! never disturbed.
#![cfg(unix)]

#[cfg(target_os = "linux")]
#[path = "faults/injected.rs"]
mod injected;

use crate::common::Place;
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

/// Rows without the times, which no two sessions share.
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

/// The arguments of a training run, and of its evaluation, in which every kind of file is written often.
fn train(out: &str) -> Vec<&str> {
    train_with(out, ["train.steps=400", "train.save_interval=4"])
}

fn train_with<'a>(out: &'a str, sets: [&'a str; 2]) -> Vec<&'a str> {
    let mut train = vec!["train", "--config", "run.toml", "--out", out];
    for set in [
        "data.sampling=megatron",
        "train.batch_size=8",
        "train.micro_batch_size=4",
        "train.log_every=3",
        "train.eval_interval=7",
    ]
    .into_iter()
    .chain(sets)
    {
        train.extend(["--set", set]);
    }
    train
}

fn eval(run: &str) -> [&str; 8] {
    ["eval", run, "--lengths", "16,64,128,256,512", "--n-segments", "8", "--protocol", "nonoverlapping"]
}

/// Whether a run of this many steps is what an undisturbed one is.
fn check_equal(place: &Place, run: &str, steps: u64) {
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let read = |run: &str| fs::read(place.path(format!("{run}/checkpoints/step-{steps:08}/{file}"))).unwrap();
        assert!(read(run) == read("whole"), "{file}");
    }
    for file in ["metrics.jsonl", "evaluation.jsonl"] {
        assert_eq!(rows(place, &format!("{run}/{file}")), rows(place, &format!("whole/{file}")), "{file}");
    }
    assert_eq!(place.read(format!("{run}/kernels.json")), place.read("whole/kernels.json"));
}

#[test]
fn kills_change_nothing() {
    let place = Place::new();
    place.make_data();
    place.ok(&train("whole"));
    place.ok(&eval("whole"));
    let mut state = 20_261_121;
    let kills = until_done(&place, &train("killed"), 120, &mut state);
    assert!(kills >= 5, "killed {kills} times only");
    until_done(&place, &eval("killed"), 40, &mut state);
    check_equal(&place, "killed", 400);
}

/// Files may not grow beyond a limit, so that a write fails in its middle, as on a full disk; or the process is killed there.
#[test]
fn writes_that_fail_change_nothing() {
    let place = Place::new();
    place.make_data();
    place.ok(&train("whole"));
    place.ok(&eval("whole"));
    let limited = |command: &str, arguments: &[&str], blocks: usize| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", command, &blocks.to_string(), env!("CARGO_BIN_EXE_kerple")]).args(arguments);
        shell.current_dir(place.path("")).output().unwrap()
    };
    let (error, kill) = ("trap '' XFSZ; ulimit -f $0; exec \"$@\"", "ulimit -c 0; ulimit -f $0; exec \"$@\"");
    let mut failures = 0;
    for arguments in [&train("full")[..], &eval("full")] {
        for blocks in [0, 1, 2, 3, 5, 8, 12, 20, 30, 40, 50, 60, 70, 80, 90, 100, 120, 140, 160, 180, 200] {
            let output = limited(error, arguments, blocks);
            let message = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1)), "{blocks} blocks: {code:?} {message}");
            if code == Some(1) {
                failures += 1;
                assert!(message.contains("error: ") && message.contains("\n\nhint: "), "{blocks} blocks: {message}");
            }
            failures += usize::from(limited(kill, arguments, blocks).status.code().is_none());
        }
        place.ok(arguments);
    }
    assert!(failures >= 10, "{failures} failures");
    check_equal(&place, "full", 400);
}

/// Starts a command, sends it a signal once `file` has a line, and returns what it said.
fn interrupted(place: &Place, arguments: &[&str], file: &str, signal: i32) -> (Option<i32>, String) {
    let has_line = || fs::read_to_string(place.path(file)).is_ok_and(|text| text.contains('\n'));
    interrupted_when(place, arguments, has_line, signal)
}

/// The same once it is `ready`.
fn interrupted_when(place: &Place, arguments: &[&str], ready: impl Fn() -> bool, signal: i32) -> (Option<i32>, String) {
    let mut child = place.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..6000 {
        if ready() {
            break;
        }
        assert!(child.try_wait().unwrap().is_none(), "{arguments:?} ended before it was ready");
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: a signal to a child that is not waited for yet, whose id hence is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_preparation_that_is_stopped_leaves_nothing() {
    let place = Place::new();
    place.make_text(4, 200_000);
    let entries = || fs::read_dir(place.path("")).unwrap().count();
    let prepare = ["prepare", "--input", "text", "--tokenizer", "bpe:8000", "--out", "data"];
    let (code, said) = interrupted_when(&place, &prepare, || entries() > 1, libc::SIGINT);
    assert!(code == Some(130) && said.contains("nothing was written"), "{code:?} {said}");
    assert_eq!(entries(), 1, "only the text is there");
}

#[test]
fn signals_end_with_what_is_done_saved() {
    let place = Place::new();
    place.make_data();
    let signals = [("int", libc::SIGINT), ("term", libc::SIGTERM), ("hup", libc::SIGHUP), ("usr1", libc::SIGUSR1)];
    for (run, signal) in signals {
        let train = ["train", "--config", "run.toml", "--out", run, "--set", "train.steps=1000000"];
        let (code, said) = interrupted(&place, &train, &format!("{run}/metrics.jsonl"), signal);
        assert!(code == Some(130) && said.contains("finishing this step, then saving"), "{run}: {code:?} {said}");
        let verified = place.ok(&["verify", run]);
        assert!(verified.contains("weights and optimizer state"), "{run}: {verified}");
    }
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    // the second length takes minutes
    let eval = ["eval", "run", "--lengths", "16,1024", "--protocol", "sliding:1"];
    let (code, said) = interrupted(&place, &eval, "run/evaluation.jsonl", libc::SIGTERM);
    assert!(code == Some(130) && said.contains("finished lengths are saved"), "{code:?} {said}");
    assert_eq!(place.read("run/evaluation.jsonl").lines().count(), 1);
}
