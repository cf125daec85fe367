//! The program `measure`: every work passes its check and is timed; sizes that do not fit are refused.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output};

fn measure(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_measure")).args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = measure(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn assert_refused(arguments: &[&str], message: &str) {
    let output = measure(arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    assert!(told.starts_with("error: ") && told.contains(message), "{arguments:?}: {told}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

#[test]
fn every_work_is_checked_and_timed() {
    for (work, options, engines, biases) in [
        ("decode", &[][..], &["tiled"][..], &["fixed", "inkling"][..]),
        ("eval", &["--layers", "1"], &["fused"], &["fixed"]),
        ("eval", &["--layers", "1", "--encoding", "alibi"], &["fused"], &["alibi"]),
        (
            "linear",
            &[],
            &["chunked", "fft", "naive"],
            &["conv_spe", "elu", "fox", "kerple_log", "none", "relu", "sine_spe"],
        ),
        ("maps", &[], &["fused"], &["fope", "learned", "rotary", "selective_rope"]),
    ] {
        let sizes = ["--lengths", "200,64", "--batch", "1", "--heads", "2", "--head-dim", "16", "--repeats", "1"];
        let all = [&[work], &sizes[..], options].concat();
        let rows = printed(&[&all[..], &["--json", "--threads", "1"]].concat());
        let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names = |key: &str| rows.iter().map(|row| row[key].as_str().unwrap()).collect::<BTreeSet<_>>();
        assert!(names("engine").iter().eq(engines), "{work}: {:?}", names("engine"));
        assert!(names("bias").iter().eq(biases), "{work}: {:?}", names("bias"));
        for row in &rows {
            assert_eq!((&row["work"], &row["threads"]), (&work.into(), &1.into()), "{row}");
            assert_eq!((&row["batch"], &row["heads"], &row["head_dim"]), (&1.into(), &2.into(), &16.into()), "{row}");
            assert!(row["median_ms"].as_f64().unwrap() > 0.0 && row["gflops"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row["bandwidth_share"].is_f64(), work == "decode", "{row}");
        }
        for length in [200, 64] {
            assert_eq!(rows.iter().filter(|row| row["length"] == length).count(), rows.len() / 2, "{work}");
        }
        assert_eq!(printed(&all).lines().count(), 1 + rows.len());
    }
}

/// Nothing of the size is made: the refusal comes before memory runs out.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    for work in ["decode", "eval", "linear", "maps"] {
        for option in ["--lengths", "--heads", "--head-dim", "--batch"] {
            assert_refused(&[work, option, "1099511627776", "--repeats", "1"], "it must be at most");
        }
    }
    for work in ["decode", "linear", "maps"] {
        let sizes = ["--lengths", "16777216", "--heads", "65536", "--head-dim", "65536"];
        assert_refused(&[&[work], &sizes[..]].concat(), "--lengths 16777216 needs about ");
    }
    assert_refused(&["eval", "--lengths", "16777216", "--batch", "16"], "needs about ");
    assert_refused(&["maps", "--head-dim", "15"], "maps turn pairs of features");
    // its rows would fit, and the mixtures of its features do not
    let wide = ["maps", "--lengths", "1", "--batch", "1", "--heads", "16", "--head-dim", "65536"];
    assert_refused(&wide, "--lengths 1 needs about ");
}

/// An option that a work does not read is refused, and so is a device that it cannot run on.
#[test]
fn options_of_another_work_are_refused() {
    for option in ["--encoding=alibi", "--layers=2", "--config=run.toml", "--device=wgpu", "--precision=bf16"] {
        for work in ["decode", "linear", "maps"] {
            let name = option.split('=').next().unwrap();
            assert_refused(&[work, option], &format!("unexpected argument '{name}'"));
        }
    }
    assert_refused(&["eval", "--config", "run.toml", "--heads", "2"], "cannot be used with");
    assert_refused(&["eval", "--precision", "tf32"], "no instructions for tf32");
    assert_refused(&["attention"], "unrecognized subcommand 'attention'");
    assert_refused(&["decode", "--threads", "100000"], "at most 4096");
}
