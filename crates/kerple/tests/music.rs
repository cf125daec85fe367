//! Music through the binary: MIDI files, a run, position-wise losses beyond its length, and a piece that a player opens.

use crate::common::{Place, RUN};
use kerple_data::music::{MusicPiece, Note, Track};

/// A figure of eighths that a run learns soon, in a key that differs from piece to piece.
fn piece(number: u64) -> MusicPiece {
    let note = |at: u64| Note {
        start: 240 * at,
        duration: 240,
        pitch: (48 + number % 12 + [0, 4, 7, 12][(at % 4) as usize] + number / 12 % 2 * (at / 8 % 3)) as u8,
        velocity: 60 + 2 * (number / 24) as u8,
    };
    let track = Track { name: "piano".to_owned(), notes: (0..32).map(note).collect(), ..Track::default() };
    MusicPiece { tracks: vec![track], ..MusicPiece::empty(480) }
}

#[test]
fn music_is_learned_and_written() {
    let place = Place::new();
    for number in 0..96 {
        place.write(&format!("midi/{number:02}.mid"), piece(number).to_midi().unwrap());
    }
    let summary = place.ok(&["prepare", "--input", "midi", "--tokenizer", "remi", "--augment", "2", "--out", "data"]);
    assert!(summary.contains("tokenizer remi, vocabulary 333"), "{summary}");
    place.write("run.toml", RUN.replace("steps = 20", "steps = 150\nlearning_rate = 1e-2"));
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let rows = place.ok(&["eval", "run", "--lengths", "16,64", "--json"]);
    let row: serde_json::Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
    assert!(row["bits_per_byte"].is_null(), "events stand for no bytes: {row}");
    // 333 equally likely events have a loss of 5.8
    assert!(row["nll"].as_f64().unwrap() < 5.0, "{row}");
    let words = place.ok(&["sample", "run", "--max-new-tokens", "80", "--midi", "out.mid", "--svg", "out.svg"]);
    assert!(words.starts_with("Bar_None "), "{words}");
    let sampled = MusicPiece::read(&place.path("out.mid")).unwrap();
    assert_eq!((sampled.resolution, sampled.tracks.len() <= 1), (480, true));
    assert!(place.read("out.svg").starts_with("<svg"));
    let options =
        ["sample", "run", "--prompt-midi", "midi/00.mid", "--bars", "1", "--max-new-tokens", "1", "--midi", "on.mid"];
    let words = place.ok(&options);
    assert!(words.starts_with("Bar_None Beat_0 Note_Pitch_48 ") && words.matches("Bar_None").count() >= 2, "{words}");
    assert_eq!(MusicPiece::read(&place.path("on.mid")).unwrap().notes(), 8);
    let greedy =
        |seed: &str| place.ok(&["sample", "run", "--max-new-tokens", "20", "--temperature", "0", "--seed", seed]);
    assert_eq!(greedy("1"), greedy("2"));
    for (arguments, said) in [
        (&["sample", "run", "--prompt", "la la"][..], "`la` is not a word of the remi events"),
        (&["sample", "run", "--prompt-midi", "run.toml"], "run.toml: not a MIDI file"),
        (&["sample", "run", "--prompt", "Bar_None", "--bars", "1"], "cannot be used with '--bars"),
        (&["sample", "run", "--top-p", "2"], "--top-p 2 is out of range"),
        (&["sample", "run", "--prompt-midi", "midi/00.mid", "--bars", "0"], "0 is not in 1.."),
        (&["sample", "run", "--midi", "one", "--svg", "./one"], "--svg ./one: --midi is the same file"),
        (
            &["sample", "run", "--prompt-midi", "midi/00.mid", "--midi", "midi/00.mid"],
            "--midi midi/00.mid: --prompt-midi is the same file",
        ),
        (&["sample", "run", "--midi", "run/plan.json"], "run/plan.json is a file of a run"),
        (&["sample", "run", "--svg", "missing/out.svg"], "the folder missing does not exist"),
        (&["prepare", "--input", "midi", "--out", "bytes"], "files that were skipped: 96, the first midi/00.mid"),
    ] {
        let output = place.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(said), "{message}");
        assert!(output.stdout.is_empty(), "{arguments:?}: nothing is sampled before it is refused");
    }
    let all = place.run(&["sample", "run", "--prompt-midi", "midi/00.mid", "--bars", "9", "--max-new-tokens", "1"]);
    let message = String::from_utf8_lossy(&all.stderr).into_owned();
    assert!(all.status.success() && message.contains("midi/00.mid has fewer than 9 bars"), "{message}");
    place.ok(&["verify", "data", "run"]);
}

#[test]
fn pieces_are_held_against_a_reference() {
    let place = Place::new();
    for number in [0, 1, 37] {
        place.write(&format!("{number}.mid"), piece(number).to_midi().unwrap());
    }
    let similarity = |other: &str| -> Vec<f64> {
        let rows = place.ok(&["music-style", "0.mid", other, "--parts", "2", "--json"]);
        let of = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        rows.lines().map(|line| of(line)["time_pitch"].as_f64().unwrap()).collect()
    };
    // transposed it is the same, which a step up in every round is not
    assert!(similarity("1.mid").iter().all(|value| *value > 0.99));
    assert!(similarity("37.mid").iter().all(|value| *value < 0.99));
    assert!(place.ok(&["music-style", "0.mid", "1.mid"]).contains("onset-drum"));
    let output = place.run(&["music-style", "0.mid", "2.mid"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("2.mid"));
}

#[test]
fn text_runs_write_no_music() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let output = place.run(&["sample", "run", "--midi", "out.mid"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && message.contains("--midi: this run was trained on text"), "{message}");
    assert!(!place.path("out.mid").exists());
}
