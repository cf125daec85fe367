//! `kerple quickstart` through the binary: what it writes, and what a second call does.

use crate::common::Place;
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

/// A quickstart of the fewest steps there are.
fn quickstart<'a>(data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["quickstart", "--data", data, "--steps", "20", "--out", "q"], more].concat()
}

/// The run that is trained and evaluated first.
const FIRST: &str = "q/runs/kerple_log/seed-1235";

/// Begins a quickstart and kills it once the first row of an evaluation is there.
fn kill_within_an_evaluation(place: &Place) {
    let mut command = place.command(&quickstart("text", &[]));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let rows = place.path(format!("{FIRST}/evaluation.jsonl"));
    while !fs::read(&rows).is_ok_and(|rows| rows.contains(&b'\n')) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Weights of the first run, and its rows without times.
fn trace(place: &Place) -> (Vec<u8>, Vec<Value>) {
    let rows = ["metrics.jsonl", "evaluation.jsonl"].map(|file| place.read(format!("{FIRST}/{file}"))).concat();
    let mut rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in &mut rows {
        let keys = row.as_object_mut().unwrap();
        keys.retain(|key, _| !["seconds", "step_seconds"].contains(&key.as_str()));
    }
    let checkpoint = fs::read_dir(place.path(format!("{FIRST}/checkpoints"))).unwrap().next().unwrap().unwrap();
    (fs::read(checkpoint.path().join("model.safetensors")).unwrap(), rows)
}

fn failure(place: &Place, arguments: &[&str]) -> String {
    let output = place.run(arguments);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn it_ends_in_tables_and_figures_and_goes_on_where_it_was_stopped() {
    let place = Place::new();
    place.make_text(12, 6000);
    // killed in its trial: the folder of the trial is there, complete
    fs::create_dir_all(place.path("q/.trial/checkpoints")).unwrap();
    place.write("q/.trial/plan.json", "{}");
    kill_within_an_evaluation(&place);
    let printed = place.ok(&quickstart("text", &[]));
    assert!(!place.path("q/.trial").exists());
    for encoding in ["kerple_log", "kerple_power", "alibi", "t5", "rotary", "sinusoidal"] {
        assert!(printed.contains(encoding), "{printed}");
        let rows = place.read(format!("q/runs/{encoding}/seed-1235/evaluation.jsonl"));
        let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let lengths: Vec<u64> = rows.iter().map(|row| row["eval_len"].as_u64().unwrap()).collect();
        assert_eq!(lengths, [64, 128, 256, 512, 1024, 2048], "{encoding}");
        let text: Vec<&Value> = rows.iter().map(|row| &row["text"]).collect();
        assert!(text[0]["checksum"].is_string() && text.iter().all(|other| *other == text[0]), "{text:?}");
    }
    // what is printed fits a terminal
    assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
    let report = place.read("q/report/index.html");
    for figure in ["perplexity by", "kerple_log", "<svg"] {
        assert!(report.to_lowercase().contains(figure), "{figure}");
    }
    let results: Value = serde_json::from_str(&place.read("q/report/report.json")).unwrap();
    assert_eq!(results["tables"].as_array().unwrap().len(), 1);
    assert!(!results["positions"].as_array().unwrap().is_empty(), "the page shows curves by position");

    // the same command trains and evaluates nothing again
    let rows = place.read("q/runs/alibi/seed-1236/evaluation.jsonl");
    let metrics = place.read("q/runs/alibi/seed-1236/metrics.jsonl");
    assert_eq!(place.ok(&quickstart("text", &[])), printed);
    assert_eq!(place.read("q/runs/alibi/seed-1236/evaluation.jsonl"), rows);
    assert_eq!(place.read("q/runs/alibi/seed-1236/metrics.jsonl"), metrics);

    // the run that was killed is as one that was not
    let killed = trace(&place);
    fs::remove_dir_all(place.path(FIRST)).unwrap();
    assert_eq!(place.ok(&quickstart("text", &[])), printed);
    assert!(trace(&place) == killed);

    // another text or number of steps is another job, not the old result
    place.write("other/text.txt", "words of another kind ".repeat(4000));
    let said = failure(&place, &quickstart("other", &[]));
    assert!(said.contains("was started on") && said.contains("hint: use the same --data"), "{said}");
    assert!(failure(&place, &quickstart("nowhere", &[])).contains("was started on"));
    assert!(
        failure(&place, &["quickstart", "--data", "text", "--steps", "21", "--out", "q"])
            .contains("with 20 steps, not 21")
    );
}

#[test]
fn what_was_refused_leaves_nothing_in_the_way() {
    let place = Place::new();
    place.write("tiny.txt", "x");
    let output = place.run(&quickstart("tiny.txt", &[]));
    assert!(!output.status.success());
    assert!(!place.path("q").exists(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn too_little_time_is_refused_with_the_time_that_is_enough() {
    let place = Place::new();
    place.make_text(12, 6000);
    let said = failure(&place, &["quickstart", "--data", "text", "--minutes", "0.01", "--out", "q"]);
    assert!(said.contains("at least 300 are needed") && said.contains("hint: use --minutes "), "{said}");
    // the hint works: no run had begun, so the time may change
    assert!(!place.path("q/runs").exists());
    let resumed = failure(&place, &["quickstart", "--data", "text", "--minutes", "0.02", "--out", "q"]);
    assert!(resumed.contains("--minutes 0.02 allows"), "{resumed}");
}

#[test]
fn files_that_a_refused_quickstart_found_stay() {
    let place = Place::new();
    for folder in ["out/data", "out/text"] {
        std::fs::create_dir_all(place.path(folder)).unwrap();
        place.write(&format!("{folder}/mine.txt"), "kept");
    }
    place.write("short.txt", "too short");
    for options in [&["--steps", "2"][..], &["--steps", "2", "--data", "short.txt"]] {
        let output = place.run(&[&["quickstart", "--out", "out"], options].concat());
        assert!(!output.status.success(), "{options:?}");
        for folder in ["out/data", "out/text"] {
            assert_eq!(place.read(format!("{folder}/mine.txt")), "kept", "{options:?}");
        }
    }
}
