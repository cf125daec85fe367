//! What `kerple describe` shows is what a run file takes, and it ignores no option.

use crate::common::Place;
use kerple_core::encoding::{Encoding, METHODS};
use kerple_lm::config::RunConfig;
use serde_json::Value;

/// The lines from `[encoding]` on that are TOML; a picture may follow.
fn table(text: &str) -> String {
    let lines = text.lines().skip_while(|line| *line != "[encoding]");
    let is_toml = |line: &&str| line.is_empty() || line.starts_with('[') || line.contains(" = ");
    lines.take_while(is_toml).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_keys_shown_are_those_of_a_run_file() {
    let place = Place::new();
    let tables = [
        r#"{ kind = "inkling", log_scale = { floor = 8.0, alpha = 0.5 } }"#,
        r#"{ kind = "rotary", scaling = { kind = "yarn", factor = 4.0 } }"#,
    ];
    for named in METHODS.into_iter().chain(tables) {
        let text = place.ok(&["describe", named]);
        let json: Value = serde_json::from_str(&place.ok(&["describe", named, "--json"])).unwrap();
        let file = format!("[data]\npath = \"x\"\n{}", table(&text));
        let read = RunConfig::parse(&file, "shown", &[]).unwrap_or_else(|error| panic!("{named}: {error}\n{file}"));
        let expected: Encoding = serde_json::from_value(json["config"].clone()).unwrap();
        assert_eq!(read.encoding, expected, "{named}");
    }
}

#[test]
fn the_keys_of_a_kind_are_listed_absent_ones_too() {
    let place = Place::new();
    for (kind, keys) in [
        ("alibi", "behind, bias_max"),
        ("rotary", "pct, width, base, keep, frequencies, scaling"),
        ("t5", "num_buckets, max_distance, bidirectional"),
        ("learned", "positions"),
        ("none", "none of its own"),
    ] {
        let text = place.ok(&["describe", kind]);
        assert!(text.contains(&format!("\n  keys      {keys}\n")), "{text}");
    }
    let json: Value = serde_json::from_str(&place.ok(&["describe", "alibi", "--json"])).unwrap();
    assert_eq!(json["keys"], serde_json::json!(["behind", "bias_max"]));
}

/// As a table of a run file and as JSON, with each key once.
#[test]
fn an_encoding_is_given_in_either_form() {
    let place = Place::new();
    let shown = |encoding: &str| place.ok(&["describe", encoding]);
    assert_eq!(shown(r#"{"kind":"alibi","window":3}"#), shown(r#"{ kind = "alibi", window = 3 }"#));
    for (encoding, says) in [
        (r#"{"kind":"alibi","window":3,"window":4}"#, "the key `window` occurs twice"),
        (r#"{ kind = "alibi", window = 3, window = 4 }"#, "duplicate key"),
        (r#"{"kind":"alibi","windo":3}"#, "`distance_cap`; did you mean `window`?"),
        (r#"{"kind":"none","windo":3}"#, "unknown field `windo`, expected a key of every encoding: `window`, "),
        (r#"{"kind":"alibi","bias_mx":3}"#, "; did you mean `bias_max`?"),
        (r#"{ kind = "alibi", foo = 1 }"#, "`kerple describe config` lists the keys of every encoding"),
        ("{", "unclosed inline table"),
        ("alib", "did you mean `alibi`?"),
    ] {
        for command in [&["describe"][..], &["bench", "attention", "--encoding"], &["bench", "step", "--encoding"]] {
            let output = place.run(&[command, &[encoding]].concat());
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command:?} {encoding}: {message}");
            assert!(message.contains(says) && message.contains("hint: "), "{command:?} {encoding}: {message}");
        }
    }
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    let place = Place::new();
    for (arguments, expected) in [
        (&["describe", "--svg", "a.svg"][..], "--svg a.svg: only the picture of an encoding can be written"),
        (&["describe", "config", "--svg", "a.svg"], "--svg a.svg: only the picture of an encoding can be written"),
        (&["describe", "config", "--json"], "--json: `kerple describe config` prints a run file, which is TOML"),
        (&["describe", "--heads", "4"], "--heads 4: only the picture of an encoding has this size"),
        (&["describe", "config", "--length", "64"], "--length 64: only the picture of an encoding has this size"),
        (&["describe", "rotary", "--length", "64"], "--length 64: rotary has no distance table to draw"),
        (&["describe", "rotary", "--heads", "4"], "--heads 4: rotary has no distance table to draw"),
    ] {
        let output = place.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty() && !place.path("a.svg").exists(), "{arguments:?}");
    }
    // what the hint says works
    place.ok(&["describe", "alibi", "--svg", "a.svg", "--heads", "4", "--length", "64"]);
    // the defaults are those of the help
    let json: serde_json::Value = serde_json::from_str(&place.ok(&["describe", "alibi", "--json"])).unwrap();
    let help = place.ok(&["describe", "--help"]);
    for (what, key) in [("heads", "heads"), ("distances", "length")] {
        let default = format!("Number of {what} to plot [default: {}]", json[key]);
        assert!(help.contains(&default), "{default}: {help}");
    }
    // fox has no picture; its gates have a value per head
    assert!(place.ok(&["describe", "fox", "--heads", "3"]).contains("3]"));
    assert!(place.read("a.svg").contains("<svg"));
}
