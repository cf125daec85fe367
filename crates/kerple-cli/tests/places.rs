//! A run is found and used from any folder, and with its text wherever that went.

mod common;

use common::Place;
use kerple_lm::run::RunFolder;
use std::fs;

#[test]
fn a_run_works_from_any_folder() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "runs/one"]);
    fs::create_dir(place.path("elsewhere")).unwrap();
    let eval = |run: &str, options: &[&str]| {
        let mut command = place.command(&[&["eval", run, "--lengths", "16", "--segments", "2"], options].concat());
        let output = command.current_dir(place.path("elsewhere")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, message) = eval("../runs/one", &[]);
    assert_eq!(code, Some(0), "{message}");
    let found = RunFolder::new(place.path("runs/one")).verify();
    assert!(found.is_good(), "{:?}", found.problems);
    assert_eq!(found.good.len(), 6, "plan, checkpoint, metrics, evaluations, kernels, data: {:?}", found.good);

    // run and text moved together
    fs::create_dir(place.path("moved")).unwrap();
    fs::rename(place.path("runs"), place.path("moved/runs")).unwrap();
    fs::rename(place.path("data"), place.path("moved/data")).unwrap();
    let (code, message) = eval("../moved/runs/one", &["--protocol", "blocks"]);
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
    assert!(output.status.code() == Some(2) && message.contains("holds other text"), "{message}");
    place.ok(&["train", "--config", "run.toml", "--set", "data.path=kept", "--out", "moved/runs/one"]);
    let (code, message) = eval("../moved/runs/one", &["--protocol", "sliding:8"]);
    assert_eq!(code, Some(0), "the place of the text is that of the last training: {message}");
}
