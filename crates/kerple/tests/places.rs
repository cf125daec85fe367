//! A run is found and used from any folder, and with its text wherever that went.

use crate::common::Place;
use kerple_lm::run::RunFolder;
use serde_json::Value;
use std::fs;

#[test]
fn a_run_works_from_any_folder() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "runs/one"]);
    fs::create_dir(place.path("elsewhere")).unwrap();
    let eval = |run: &str, options: &[&str]| {
        let mut command = place.command(&[&["eval", run, "--lengths", "16", "--n-segments", "2"], options].concat());
        let output = command.current_dir(place.path("elsewhere")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, message) = eval("../runs/one", &[]);
    assert_eq!(code, Some(0), "{message}");
    let found = RunFolder::new(place.path("runs/one")).verify();
    assert!(found.is_good(), "{:?}", found.problems);
    assert_eq!(
        found.good.len(),
        7,
        "plan, checkpoint, metrics, sessions, evaluations, kernels, data: {:?}",
        found.good
    );

    // run and text moved together
    fs::create_dir(place.path("moved")).unwrap();
    fs::rename(place.path("runs"), place.path("moved/runs")).unwrap();
    fs::rename(place.path("data"), place.path("moved/data")).unwrap();
    let (code, message) = eval("../moved/runs/one", &["--protocol", "nonoverlapping"]);
    assert_eq!(code, Some(0), "{message}");

    // other text where the text was is not taken for it
    fs::rename(place.path("moved/data"), place.path("kept")).unwrap();
    let text = place.read("text/00.txt").to_uppercase();
    for part in 0..12 {
        place.write(&format!("upper/{part:02}.txt"), format!("{part} {text}"));
    }
    place.ok(&["prepare", "--input", "upper", "--out", "moved/data"]);
    let (code, message) = eval("../moved/runs/one", &["--protocol", "last:8"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("moved/runs/one/../../data: other text") && message.contains("hint: "), "{message}");
    let (code, message) = eval("../moved/runs/one", &["--protocol", "last:8", "--data", "../kept"]);
    assert_eq!(code, Some(0), "{message}");

    // nor is a run gone on with on it
    let again = ["train", "--config", "run.toml", "--set", "data.path=moved/data", "--out", "moved/runs/one"];
    let output = place.run(&again);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("contains other text"), "{message}");
    place.ok(&["train", "--config", "run.toml", "--set", "data.path=kept", "--out", "moved/runs/one"]);
    let (code, message) = eval("../moved/runs/one", &["--protocol", "sliding:8"]);
    assert_eq!(code, Some(0), "the place of the text is that of the last training: {message}");
}

/// A run that classifies texts of a folder.
const TEXTS: &str = r#"
[data]
path = "a"
task = "lra_text"

[encoding]
kind = "sinusoidal"

[model]
n_layers = 1
n_heads = 2
head_dim = 8

[train]
train_len = 16
batch_size = 4
steps = 4
"#;

#[test]
fn a_run_of_a_task_knows_its_data() {
    let place = Place::new();
    let texts = |folder: &str, word: &str| {
        let line = |number: usize| format!("{{\"text\":\"{}\",\"label\":{}}}\n", word.repeat(number + 2), number % 2);
        for part in ["train", "valid", "test"] {
            place.write(&format!("{folder}/{part}.jsonl"), (0..8).map(line).collect::<String>());
        }
    };
    texts("a", "abc");
    texts("b", "xyz");
    texts("elsewhere/a", "xyz");
    place.write("run.toml", TEXTS);
    place.ok(&["train", "--config", "run.toml", "--out", "r"]);
    let eval = |folder: &str, run: &str, options: &[&str]| {
        let basic = ["eval", run, "--lengths", "16", "--json", "--n-segments"];
        let output = place.command(&[&basic[..], options].concat()).current_dir(place.path(folder)).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        let row = serde_json::from_slice::<Value>(&output.stdout).map_err(|_| message);
        (output.status.code(), row)
    };
    let row = |folder: &str, run: &str, options: &[&str]| eval(folder, run, options).1.unwrap();
    let rows = || place.read("r/evaluation.jsonl").lines().count();

    // other data is another result, whether or not this one is known
    let own = row(".", "r", &["4"]);
    let other = row(".", "r", &["4", "--data", "b"]);
    assert_ne!(own["text"]["checksum"], other["text"]["checksum"]);
    assert_ne!(own["nll"], other["nll"]);
    assert_eq!(row(".", "r", &["3", "--data", "b"])["text"]["checksum"], other["text"]["checksum"]);
    assert_eq!((row(".", "r", &["4"]), row(".", "r", &["4", "--data", "b"]), rows()), (own.clone(), other, 3));

    // what has the name of the data in another folder is not taken for it
    let elsewhere = row("elsewhere", "../r", &["3"]);
    assert_eq!(elsewhere["text"]["checksum"], own["text"]["checksum"]);
    fs::remove_file(place.path("r/evaluation.jsonl")).unwrap();
    assert_eq!(row(".", "r", &["3"])["nll"], elsewhere["nll"]);

    // nor is what lies in its place
    fs::rename(place.path("a"), place.path("kept")).unwrap();
    fs::rename(place.path("b"), place.path("a")).unwrap();
    let (code, refused) = eval(".", "r", &["2"]);
    let message = refused.unwrap_err();
    assert!(code == Some(2) && message.contains("a: other text") && message.contains("hint: "), "{message}");
    assert_eq!(row(".", "r", &["2", "--data", "kept"])["text"]["checksum"], own["text"]["checksum"]);
}
