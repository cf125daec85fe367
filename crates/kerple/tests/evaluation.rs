//! What was scored is known: rows are reused for exactly the same text, and only then.

use crate::common::Place;
use serde_json::Value;

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A place with data, other data of the same tokenizer, and a comparison of one encoding at length 16.
fn compared() -> Place {
    let place = Place::new();
    place.make_data();
    for part in 0..12 {
        let text = place.read(format!("text/{part:02}.txt")).to_uppercase();
        place.write(&format!("upper/{part:02}.txt"), text);
    }
    place.ok(&["prepare", "--input", "upper", "--out", "data2"]);
    assert_eq!(compare(&place, "16", &["--n-segments", "4"]), [16]);
    place
}

const RUN: &str = "all/runs/alibi/seed-1235";

/// Compares at `lengths` and returns the lengths that were evaluated now.
fn compare(place: &Place, lengths: &str, options: &[&str]) -> Vec<u64> {
    let basic = ["compare", "--config", "run.toml", "--encodings", "alibi", "--out", "all", "--json", "--lengths"];
    let before = known(place, RUN).len();
    let printed = rows(&place.ok(&[&basic[..], &[lengths], options].concat()));
    // one row a length and the report, whenever they were evaluated
    assert_eq!(printed.len(), lengths.split(',').count() + 1);
    known(place, RUN).split_off(before).iter().filter_map(|row| row["eval_len"].as_u64()).collect()
}

/// The rows of a run.
fn known(place: &Place, run: &str) -> Vec<Value> {
    let file = format!("{run}/evaluation.jsonl");
    if place.path(&file).exists() { rows(&place.read(&file)) } else { Vec::new() }
}

#[test]
fn other_data_is_another_text() {
    let place = compared();
    let other = rows(&place.ok(&["eval", RUN, "--json", "--lengths", "32", "--n-segments", "4", "--data", "data2"]));
    assert_eq!(
        compare(&place, "16,32", &["--n-segments", "4"]),
        [32],
        "the row over other text is not the run's result"
    );
    let all = rows(&place.read(format!("{RUN}/evaluation.jsonl")));
    assert_eq!(all.len(), 3);
    assert_eq!(all[0]["text"], all[2]["text"], "later calls keep the text");
    assert_ne!(other[0]["text"]["checksum"], all[2]["text"]["checksum"]);
    assert_ne!(other[0]["nll"], all[2]["nll"]);
}

#[test]
fn what_a_model_cannot_take_is_no_evaluation_of_it() {
    let place = Place::new();
    place.make_data();
    let linear = "model.block.attention={ linear = { feature_map = \"elu\" } }";
    let rotary = ["--set", "encoding={ kind = \"rotary\" }"];
    place.ok(&[&["train", "--config", "run.toml", "--out", "r", "--set", linear][..], &rotary].concat());
    // below and beyond what is read in pieces
    for length in ["32", "8192"] {
        let refused = place.run(&["eval", "r", "--lengths", length, "--window", "8", "--n-segments", "1"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(
            said.contains("a run of rotary cannot be evaluated as rotary-window8: ") && said.contains("linear"),
            "{said}"
        );
    }
    assert!(!place.path("r/evaluation.jsonl").exists());
    place.ok(&["eval", "r", "--lengths", "32", "--rope-scaling", "ntk", "--n-segments", "1"]);
}

#[test]
fn rows_and_sessions_say_what_made_them() {
    let place = compared();
    let sessions = rows(&place.read(format!("{RUN}/sessions.jsonl")));
    let evaluations = rows(&place.read(format!("{RUN}/evaluation.jsonl")));
    let provenance = &evaluations[0]["provenance"];
    let about = ["commit", "cpu", "simd", "threads", "device", "precision"];
    for key in about {
        assert!(provenance[key].is_string() || provenance[key].as_u64() > Some(0), "{key}: {provenance}");
        assert_eq!(provenance[key], sessions[0][key], "{key}");
    }
    assert_eq!((provenance.as_object().unwrap().len(), sessions.len()), (about.len(), 1));
    assert_eq!((&sessions[0]["first_step"], &sessions[0]["micro_batch_size"]), (&1.into(), &4.into()));
    let alone = place.command(&["eval", RUN, "--lengths", "32", "--json"]).env("RAYON_NUM_THREADS", "1").output();
    let row = rows(&String::from_utf8(alone.unwrap().stdout).unwrap()).remove(0);
    assert_eq!(row["provenance"]["threads"], 1, "a row says what evaluated it, not what trained the run");
}

/// Writes the rows of the run with another value of a key of what made them.
fn made_otherwise(place: &Place, key: &str, value: &str) {
    let file = format!("{RUN}/evaluation.jsonl");
    let changed = rows(&place.read(&file)).into_iter().map(|mut row| {
        row["provenance"][key] = value.into();
        format!("{row}\n")
    });
    place.write(&file, changed.collect::<String>());
}

/// Lengths of `eval` that were evaluated now, and what was remarked.
fn evaluated(place: &Place, lengths: &str) -> (usize, String) {
    let before = place.read(format!("{RUN}/evaluation.jsonl")).lines().count();
    let output = place.run(&["eval", RUN, "--lengths", lengths, "--n-segments", "4"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    (place.read(format!("{RUN}/evaluation.jsonl")).lines().count() - before, said)
}

#[test]
fn rows_of_other_numerics_are_other_rows() {
    for (key, value, words) in [
        ("precision", "bf16", "were computed in bf16 on cpu, "),
        (
            "device",
            "cuda:0 (NVIDIA H100)",
            "were computed in f32 on cuda, NVIDIA H100; the new rows are computed in f32 on cpu, ",
        ),
        ("simd", "mmx", "were computed in f32 on cpu, mmx; "),
    ] {
        let place = compared();
        assert_eq!(evaluated(&place, "16").0, 0, "the same program on the same machine");
        made_otherwise(&place, key, value);
        let (fresh, said) = evaluated(&place, "16");
        assert!(fresh == 1 && said.contains(words) && !said.contains("(evaluated before"), "{key}: {said}");
        assert_eq!(evaluated(&place, "16").0, 0, "{key}: and that is kept");
        // both stand in the report
        let report = place.ok(&["report", RUN, "--out", &format!("report-{key}")]);
        let tables = report.lines().filter(|line| line.contains("trained at")).count();
        assert!(tables >= 2, "{key}: {report}");
    }
}

#[test]
fn a_row_of_another_program_counts_and_says_so() {
    let place = compared();
    made_otherwise(&place, "commit", "0123456789ab");
    let (fresh, said) = evaluated(&place, "16");
    assert!(fresh == 0 && said.contains("(evaluated before by the program of commit 0123456789ab)"), "{said}");
}

#[test]
fn what_was_computed_otherwise_is_not_done_for_a_comparison() {
    for (key, value, fresh) in [("precision", "bf16", 1), ("device", "cuda:0 (A)", 1), ("simd", "mmx", 0)] {
        let place = compared();
        made_otherwise(&place, key, value);
        assert_eq!(compare(&place, "16", &["--n-segments", "4"]).len(), fresh, "{key}");
        assert_eq!(compare(&place, "16", &["--n-segments", "4"]).len(), 0, "{key}");
    }
    // what counts although another machine or program made it is said
    let place = compared();
    made_otherwise(&place, "simd", "mmx");
    let basic = ["compare", "--config", "run.toml", "--encodings", "alibi", "--out", "all", "--lengths", "16"];
    let output = place.run(&[&basic[..], &["--n-segments", "4"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("1 of the runs count as done because of rows that were computed in f32 on cpu, mmx"),
        "{said}"
    );
    // rows of older versions, which had nothing but f32 on a processor
    let file = format!("{RUN}/evaluation.jsonl");
    let old = rows(&place.read(&file)).into_iter().map(|mut row| {
        row.as_object_mut().unwrap().remove("provenance");
        format!("{row}\n")
    });
    place.write(&file, old.collect::<String>());
    assert_eq!(compare(&place, "16", &["--n-segments", "4"]).len(), 0);
    let (fresh, said) = evaluated(&place, "16");
    assert!(fresh == 1 && said.contains("were computed by an unrecorded program; the new rows"), "{said}");
}

#[test]
fn windows_segments_and_spans_are_told_apart() {
    let place = compared();
    place.ok(&["eval", RUN, "--lengths", "32", "--n-segments", "4", "--window", "2"]);
    assert_eq!(compare(&place, "16,32", &["--n-segments", "4"]), [32], "a row with a window is another result");
    assert_eq!(compare(&place, "16,32", &["--n-segments", "4"]), [0u64; 0], "nothing is done twice");
    assert_eq!(compare(&place, "16,32", &["--n-segments", "9"]), [16, 32], "more segments are more text");
    assert_eq!(
        compare(&place, "16", &["--n-segments", "4", "--segment-len", "64"]),
        [16],
        "another span is another text"
    );
    assert_eq!(compare(&place, "32", &["--n-segments", "4", "--per-position"]), [32], "positions were not kept");
    // of the earlier texts of 4 segments the last that is long enough
    assert_eq!(compare(&place, "128", &["--n-segments", "4"]), [128]);
    let last = rows(&place.read(format!("{RUN}/evaluation.jsonl"))).pop().unwrap();
    assert_eq!(last["text"]["segment_len"], 512);
}

#[test]
fn evaluating_again_shows_what_is_known() {
    let place = compared();
    let eval = ["eval", RUN, "--json", "--lengths", "16,48", "--protocol", "last:16", "--per-position"];
    let first = place.ok(&eval);
    let kept = place.read(format!("{RUN}/evaluation.jsonl"));
    assert_eq!(place.ok(&eval), first);
    assert_eq!(place.read(format!("{RUN}/evaluation.jsonl")), kept);
    assert_eq!(kept.lines().count(), 3);
}

#[test]
fn numbers_do_not_wrap() {
    let place = compared();
    let kept = place.read(format!("{RUN}/evaluation.jsonl"));
    for options in [
        ["--lengths", "18446744073709551615"],
        ["--lengths", "18446744073709551614"],
        ["--n-segments", "1152921504606846976"],
        ["--segment-len", "18446744073709551615"],
    ] {
        for protocol in ["segments", "nonoverlapping", "last:1", "sliding:1"] {
            let output = place.run(&[&["eval", RUN, "--protocol", protocol], &options[..]].concat());
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{options:?} {protocol}: {message}");
            assert!(message.contains("hint: "), "{message}");
        }
    }
    assert_eq!(place.read(format!("{RUN}/evaluation.jsonl")), kept);
}

#[test]
fn scaled_rotations_are_results_of_their_own() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--set", "encoding.kind=rotary", "--out", "rotary"]);
    let eval = |options: &[&str]| {
        let basic = ["eval", "rotary", "--json", "--lengths", "16,64", "--n-segments", "4"];
        rows(&place.ok(&[&basic[..], options].concat()))
    };
    let (plain, yarn) = (eval(&[]), eval(&["--rope-scaling", "yarn"]));
    let linear = eval(&["--rope-scaling", "{ kind = 'linear', factor = 4 }"]);
    assert!(plain[0].get("rope_scaling").is_none());
    assert_eq!((&yarn[1]["rope_scaling"], &linear[1]["rope_scaling"]), (&"yarn".into(), &"linear.factor4".into()));
    assert_eq!(plain[0]["nll"], yarn[0]["nll"], "a sequence of the training length is not stretched");
    assert_ne!(plain[1]["nll"], yarn[1]["nll"]);
    assert_ne!(linear[1]["nll"], yarn[1]["nll"]);
    assert_eq!(eval(&["--rope-scaling", "yarn"]), yarn, "and not evaluated again");
    assert_eq!(rows(&place.read("rotary/evaluation.jsonl")).len(), 6);
    place.ok(&["report", "rotary", "--out", "page"]);
    let scores = place.read("page/tables/scores.csv");
    for name in [",rotary,", "\"rotary, yarn\"", "\"rotary, linear.factor4\""] {
        let found = scores.lines().filter(|line| line.contains(name)).count();
        assert_eq!(found, 2, "{name} at both lengths:\n{scores}");
    }
}

#[test]
fn a_comparison_scales_the_runs_that_rotate() {
    let place = Place::new();
    place.make_data();
    let basic = ["compare", "--config", "run.toml", "--encodings", "alibi,rotary", "--out", "all", "--json"];
    let asked = ["--lengths", "16,64", "--n-segments", "4", "--rope-scaling", "yarn", "--rope-scaling", "linear"];
    let compare =
        || rows(&place.ok(&[basic, asked].concat())).into_iter().filter(|row| row["eval_len"].is_u64()).count();
    let all = || ["alibi", "rotary"].map(|label| known(&place, &format!("all/runs/{label}/seed-1235")));
    assert_eq!(compare(), 2 + 3 * 2);
    let evaluated = all();
    assert_eq!((compare(), all()), (2 + 3 * 2, evaluated), "nothing is done twice");
}

#[test]
fn what_reaches_beyond_the_horizon_is_remarked_on() {
    let place = Place::new();
    place.make_data();
    let linear = "model.block.attention={ linear = { n_features = 8, horizon = 32 } }";
    place.ok(&["train", "--config", "run.toml", "--out", "run", "--set", linear]);
    let said = |command: &[&str]| {
        let output = place.run(command);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let evaluated = |lengths| said(&["eval", "run", "--n-segments", "2", "--lengths", lengths]);
    assert!(!evaluated("16,32").contains("horizon"));
    assert!(evaluated("16,64").contains("note: 64 tokens exceed the horizon of 32"));
    assert!(
        said(&["sample", "run", "--prompt", "ka lo", "--max-new-tokens", "50"]).contains("exceed the horizon of 32")
    );
}

/// A list item is a prompt, and so is what looks like an expression or an option; other values have a hint that works.
#[test]
fn text_may_begin_with_a_minus() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run", "--set", "train.steps=0"]);
    for prompt in ["- item", "-", "--", "-(x) b", "-0.5*log(b)", "--max-new-tokens", "-h"] {
        let text = place.ok(&["sample", "run", "--max-new-tokens", "1", "--prompt", prompt]);
        assert!(text.starts_with(prompt), "{prompt}: {text}");
    }
    let refused = |arguments: &[&str]| {
        let output = place.run(arguments);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused(&["prepare", "--input", "text", "--out", "other", "--text-key", "-k"]);
    assert!(said.contains("join a value that begins with - to its option: '--text-key=-k'"), "{said}");
    // as the hint has it
    assert!(!refused(&["prepare", "--input", "nowhere", "--out", "other", "--text-key=-k"]).contains("unexpected"));
    assert!(!refused(&["sample", "run", "-x"]).contains("join a value"), "nothing takes it for a value");
}

/// Trained, evaluated on the key tokens of another seed, and reported; by a run of the same seed they are refused.
#[test]
fn key_tokens_are_chosen_by_other_runs() {
    let place = Place::new();
    place.make_data();
    for (out, seed) in [("one", "seed=1"), ("two", "seed=2")] {
        place.ok(&["train", "--config", "run.toml", "--out", out, "--set", seed]);
    }
    let basic = ["eval", "one", "--n-segments", "2", "--lengths", "16,64", "--protocol", "key:0:-9:16"];
    let by = |evaluators: &'static str| [&basic[..], &["--evaluator", evaluators]].concat();
    let shown = place.run(&by("two"));
    let [out, said] = [&shown.stdout, &shown.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(shown.status.success(), "{said}");
    assert!(out.lines().next().unwrap().contains("95 % interval of perplexity") && out.lines().count() == 3, "{out}");
    for part in ["key:0:-9:16:4: Key tokens", "evaluators: kerple_log, seed 2", "key tokens: ", "with enough context"] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
    let recorded = rows(&place.read("one/evaluation.jsonl"));
    let keys = &recorded[0]["key_tokens"];
    assert_eq!((recorded.len(), keys["evaluators"][0]["seed"].as_u64()), (2, Some(2)));
    assert_eq!(recorded[0]["tokens"], recorded[1]["tokens"], "the same tokens at every length");
    place.ok(&["eval", "one", "--n-segments", "2", "--lengths", "16"]);
    place.ok(&["report", "one", "--out", "pages"]);
    let page = place.read("pages/report.md");
    for part in ["Key tokens of each run", "Evaluators: kerple_log (seed 2, step ", "LongPPL"] {
        assert!(page.contains(part), "no `{part}` in:\n{page}");
    }
    for (arguments, part) in [
        (by("one"), "evaluator kerple_log, seed 1: the evaluated run has the same encoding and seed"),
        (basic.to_vec(), "needs a run that chooses the key tokens"),
        (vec!["eval", "one", "--evaluator", "two"], "--evaluator: segments scores all tokens of its windows"),
        (vec!["eval", "one", "--protocol", "key:2"], "`key:2`: numbers are missing"),
    ] {
        let refused = place.run(&arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(part), "{said}");
    }
}
