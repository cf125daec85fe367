//! Files that commands write are whole or absent, and what is no file is neither waited for nor replaced.
#![cfg(target_os = "linux")]

use crate::common::{Place, RUN};
use kerple_data::music::{MusicPiece, Note, Track};
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Output};

/// A place with a run on music, `music`, that has made a step.
fn with_music() -> Place {
    let place = Place::new();
    for number in 0..12 {
        let note = |at: u64| Note { start: 240 * at, duration: 240, pitch: 48 + number + at as u8 % 4, velocity: 64 };
        let track = Track { notes: (0..32).map(note).collect(), ..Track::default() };
        let piece = MusicPiece { tracks: vec![track], ..MusicPiece::empty(480) };
        place.write(&format!("midi/{number}.mid"), piece.to_midi().unwrap());
    }
    place.ok(&["prepare", "--input", "midi", "--tokenizer", "remi", "--out", "data"]);
    place.write("run.toml", RUN.replace("steps = 20", "steps = 1"));
    place.ok(&["train", "--config", "run.toml", "--out", "music"]);
    place
}

/// Every command that writes a file where it is told to.
fn writers(to: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["describe", "alibi", "--svg", to],
        vec!["kernel", "plot", "log(1, 1)", "--svg", to],
        vec!["sample", "music", "--max-new-tokens", "9", "--svg", to],
        vec!["sample", "music", "--max-new-tokens", "9", "--midi", to],
    ]
}

fn pipe(place: &Place, name: &str) {
    let path = place.path(name);
    _ = std::fs::remove_file(&path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Runs what must end soon, with success or with an error in words; returns both.
fn ends(place: &Place, arguments: &[&str]) -> (Output, String) {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_kerple")]).args(arguments).current_dir(place.path(""));
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().unwrap_or(-1);
    assert!((0..=2).contains(&code) && !message.contains("panicked"), "{arguments:?}: exit {code}, {message}");
    (output, message)
}

fn hidden(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
fn what_is_no_file_is_not_replaced() {
    let place = with_music();
    pipe(&place, "pipe");
    std::os::unix::fs::symlink("pipe", place.path("link")).unwrap();
    std::os::unix::fs::symlink("real", place.path("good")).unwrap();
    for to in ["pipe", "link", "/dev/null", "/dev/stdout"] {
        for arguments in writers(to) {
            let (output, message) = ends(&place, &arguments);
            assert!(output.status.code() == Some(1) && message.contains("not a regular file"), "{message}");
            assert!(message.contains("hint: give the path of a file on disk"), "{message}");
        }
    }
    let kind = |name: &str| std::fs::symlink_metadata(place.path(name)).unwrap().file_type();
    assert!(kind("pipe").is_fifo() && kind("link").is_symlink() && kind("/dev/null").is_char_device());
    for arguments in writers("good") {
        place.write("real", "old");
        place.ok(&arguments);
        assert!(kind("good").is_symlink() && std::fs::read(place.path("real")).unwrap() != b"old", "{arguments:?}");
    }
}

/// Files that may not grow: a write fails, as on a full disk, or the process is killed in it.
#[test]
fn full_disks_and_kills_leave_no_half_files() {
    let place = with_music();
    let limited = |command: &str, arguments: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", command, "sh", env!("CARGO_BIN_EXE_kerple")]).args(arguments);
        shell.current_dir(place.path("")).output().unwrap().status.code()
    };
    for (number, arguments) in writers("picture").into_iter().enumerate() {
        assert_eq!(limited("trap '' XFSZ; ulimit -f 0; exec \"$@\"", &arguments), Some(1), "{arguments:?}");
        assert!(!place.path("picture").exists() && hidden(&place).is_empty(), "{arguments:?}");
        assert_eq!(limited("ulimit -c 0; ulimit -f 0; exec \"$@\"", &arguments), None, "{arguments:?}");
        assert!(!place.path("picture").exists() && hidden(&place).len() == 1, "{arguments:?}");
        // the next that writes here, whatever it writes, sweeps
        place.ok(&writers("other")[number]);
        assert!(hidden(&place).is_empty(), "{arguments:?}: {:?}", hidden(&place));
    }
}

#[test]
fn pipes_in_a_run_folder_are_not_waited_for() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "good"]);
    place.ok(&["eval", "good", "--lengths", "16"]);
    for file in [
        "plan.json",
        "data_path.json",
        "metrics.jsonl",
        "evaluation.jsonl",
        "kernels.json",
        "checkpoints/step-00000020/state.json",
        "checkpoints/step-00000020/model.safetensors",
        "checkpoints/step-00000020/optimizer.safetensors",
    ] {
        let copied = Command::new("cp").args(["-r", "good", "run"]).current_dir(place.path("")).status().unwrap();
        assert!(copied.success());
        pipe(&place, &format!("run/{file}"));
        let (output, _) = ends(&place, &["verify", "run"]);
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{file}: {found}");
        assert!(found.contains("the path is a pipe, not a regular file"), "{file}: {found}");
        ends(&place, &["eval", "run", "--lengths", "16"]);
        ends(&place, &["report", "run", "--out", "report"]);
        ends(&place, &["train", "--config", "run.toml", "--out", "run"]);
        std::fs::remove_dir_all(place.path("run")).unwrap();
    }
    pipe(&place, "pipe");
    let (output, message) = ends(&place, &["train", "--config", "pipe", "--out", "run"]);
    assert!(output.status.code() != Some(0) && message.contains("the path is a pipe"), "{message}");
}
