//! `kerple verify` through the binary.

use crate::common::Place;
use std::fs;

/// Changes one byte in the middle of a file.
fn damage(place: &Place, file: &str) {
    let mut bytes = fs::read(place.path(file)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(place.path(file), bytes).unwrap();
}

#[test]
fn damage_is_found_wherever_it_is() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["eval", "run", "--lengths", "16"]);
    let said = place.ok(&["verify", "data", "run"]);
    assert!(said.contains("checkpoints: step 20") && said.contains("content ") && !said.contains("DAMAGED"), "{said}");
    for (file, whose) in [
        ("data/train.tokens", "data"),
        ("data/test.tokens", "data"),
        ("data/meta.json", "data"),
        ("run/plan.json", "run"),
        ("run/checkpoints/step-00000020/model.safetensors", "run"),
        ("run/checkpoints/step-00000020/optimizer.safetensors", "run"),
    ] {
        let whole = fs::read(place.path(file)).unwrap();
        damage(&place, file);
        let output = place.run(&["verify", whose]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}\n{said}");
        assert!(said.contains("DAMAGED"), "{file}\n{said}");
        fs::write(place.path(file), whole).unwrap();
    }
    place.ok(&["verify", "data", "run"]);
    assert_eq!(place.run(&["verify", "missing"]).status.code(), Some(2));
    let json = place.ok(&["verify", "data", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&found["kind"], found["problems"].as_array().unwrap().len()), (&"data".into(), 0));
}

/// Runs `verify` and returns its exit code, what it printed and what it remarked.
fn verified(place: &Place, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = place.run(&[&["verify"], arguments].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn folders_of_runs_are_looked_at_whole() {
    let place = Place::new();
    place.make_data();
    let compare = ["compare", "--config", "run.toml", "--encodings", "alibi,none", "--lengths", "16", "--out", "two"];
    place.ok(&compare);
    let (code, said, _) = verified(&place, &["two"]);
    assert!(code == Some(0) && said.contains("ok       2 of 2 runs"), "{said}");
    // links count, and what is there twice counts once
    #[cfg(unix)]
    {
        fs::create_dir(place.path("linked")).unwrap();
        for (to, name) in [("../two/runs/alibi", "a"), ("../two/runs/alibi/seed-1235", "b"), ("../linked", "c")] {
            std::os::unix::fs::symlink(to, place.path("linked").join(name)).unwrap();
        }
        let (code, said, _) = verified(&place, &["linked"]);
        assert!(code == Some(0) && said.contains("plan "), "{said}");
        assert!(place.ok(&["report", "linked", "--out", "page"]).contains("alibi"));
    }
    // what comes behind a path with nothing in it, and behind a damaged one, is looked at all the same
    damage(&place, "two/runs/alibi/seed-1235/plan.json");
    let (code, said, remarks) = verified(&place, &["missing", "two", "data"]);
    assert_eq!(code, Some(1), "{said}{remarks}");
    for line in [
        "NOTHING  missing: not a prepared corpus: the folder does not exist",
        "ok       1 of 2 runs",
        "DAMAGED  two/runs/alibi/seed-1235/plan.json: ",
        "ok       content ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let (_, said, _) = verified(&place, &["two", "--json"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    let (code, _, remarks) = verified(&place, &["text"]);
    assert!(code == Some(2) && remarks.contains("hint: give a run (it has plan.json), a prepared corpus"), "{remarks}");
}

#[test]
fn text_that_is_absent_is_no_damage() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    fs::rename(place.path("data"), place.path("elsewhere")).unwrap();
    let said = place.ok(&["verify", "run"]);
    assert!(said.contains("data: missing, not checked"), "{said}");
    // another text in its place is
    place.make_text(3, 4000);
    place.ok(&["prepare", "--input", "text", "--out", "data"]);
    let (code, said, _) = verified(&place, &["run"]);
    assert!(code == Some(1) && said.contains("DAMAGED  the text of the run"), "{said}");
}

#[test]
fn what_is_no_row_is_found_with_its_line() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["eval", "run", "--lengths", "16,32"]);
    let text = r#"{"checksum":"ab","segment_len":32,"n_segments":2,"seed":0}"#;
    let probe = format!(r#"{{"step":20,"text":{text},"config":{{}},"result":{{"attention":[]}}}}"#);
    place.write("run/probes.jsonl", format!("{probe}\n{probe}\n"));
    let scores = format!(r#"[{{"step":20,"text":{text},"length":16,"segment":0,"layers":[]}}]"#);
    place.write("run/attention_scores.json", scores);
    let said = place.ok(&["verify", "run"]);
    for good in [
        "metrics.jsonl: 3 rows",
        "sessions.jsonl: 1 rows",
        "evaluation.jsonl: 2 rows",
        "probes.jsonl: 2 rows",
        "attention_scores.json: 1 snapshots",
    ] {
        assert!(said.contains(good), "{said}");
    }
    for file in ["metrics.jsonl", "evaluation.jsonl", "probes.jsonl", "kernels.json", "attention_scores.json"] {
        let path = format!("run/{file}");
        let whole = place.read(&path);
        // what stands in the second line, or in the only one, is no step any more
        let (first, rest) = whole.split_at(if file.ends_with(".json") { 0 } else { whole.find('\n').unwrap() });
        place.write(&path, format!("{first}{}", rest.replacen("\"step\"", "\"stop\"", 1)));
        let output = place.run(&["verify", "run"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}\n{said}");
        let damaged: Vec<&str> = said.lines().filter(|line| line.contains("DAMAGED")).collect();
        let place_of_it = match file.ends_with(".json") {
            true => format!("{file}: not what kerple writes: missing field `step` at line 1 "),
            false => format!("{file}: line 2 "),
        };
        assert!(damaged.len() == 1 && damaged[0].contains(&place_of_it), "{file}\n{said}");
        place.write(&path, whole);
    }
    place.ok(&["verify", "run"]);
}

/// The problems that `verify run` finds.
fn damages(place: &Place) -> Vec<String> {
    let (code, said, _) = verified(place, &["run"]);
    let damages: Vec<String> =
        said.lines().filter_map(|line| line.trim().strip_prefix("DAMAGED  ")).map(str::to_owned).collect();
    assert_eq!(code, Some(i32::from(!damages.is_empty())), "{said}");
    damages
}

#[test]
fn rows_that_are_missing_before_a_checkpoint_are_found() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let metrics = "run/metrics.jsonl";
    let steps = || {
        let step = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap();
        place.read(metrics).lines().map(step).collect::<Vec<u64>>()
    };
    assert_eq!(steps(), [1, 10, 20]);
    let missing = |step: u64, last: u64| {
        format!("run/metrics.jsonl: the row of step {step} is missing, and a checkpoint of step {last} exists")
    };
    let without = |lines: &[usize]| {
        let whole = place.read(metrics);
        let kept = whole.lines().enumerate().filter(|(at, _)| !lines.contains(at));
        place.write(metrics, kept.map(|(_, line)| format!("{line}\n")).collect::<String>());
        let found = damages(&place);
        place.write(metrics, whole);
        found
    };
    for (lines, step) in [(&[0][..], 1), (&[1], 10), (&[2], 20), (&[1, 2], 10), (&[0, 1, 2], 1)] {
        assert_eq!(without(lines), [missing(step, 20)], "{lines:?}");
    }
    for file in [metrics, "run/sessions.jsonl"] {
        let whole = place.read(file);
        fs::remove_file(place.path(file)).unwrap();
        assert_eq!(damages(&place), [format!("{file}: the file is missing, and a checkpoint of step 20 exists")]);
        place.write(file, whole);
    }
    let sessions = place.read("run/sessions.jsonl");
    place.write("run/sessions.jsonl", "");
    assert_eq!(damages(&place), ["run/sessions.jsonl: the file has no rows, and a checkpoint of step 20 exists"]);
    place.write("run/sessions.jsonl", sessions);
    // a session that logs other steps: those of the session before are not known any more, but for the first
    let extended = ["train.steps=30", "train.schedule_steps=20", "train.log_every=4", "train.eval_interval=13"];
    let options = extended.into_iter().flat_map(|value| ["--set", value]);
    place.ok(&["train", "--config", "run.toml", "--out", "run"].into_iter().chain(options).collect::<Vec<_>>());
    assert_eq!((steps(), damages(&place)), (vec![1, 10, 20, 24, 26, 28, 30], Vec::new()));
    for (line, step) in [(0, 1), (3, 24), (4, 26), (6, 30)] {
        assert_eq!(without(&[line]), [missing(step, 30)]);
    }
    // an export has no checkpoints, and fewer rows
    fs::remove_dir_all(place.path("run/checkpoints")).unwrap();
    fs::remove_file(place.path("run/sessions.jsonl")).unwrap();
    assert!(without(&[1, 3]).is_empty());
}

/// Where the plan had the new intervals before the session, rows of the session before would be missing until the next one.
#[test]
fn a_session_is_recorded_before_its_intervals() {
    let place = Place::new();
    place.make_data();
    let train = |sets: [&'static str; 2]| {
        let sets: Vec<&str> =
            sets.into_iter().chain(["train.schedule_steps=20"]).flat_map(|set| ["--set", set]).collect();
        [&["train", "--config", "run.toml", "--out", "run"], &sets[..]].concat()
    };
    place.ok(&train(["train.steps=10", "train.log_every=10"]));
    let (plan, sessions) = (place.read("run/plan.json"), place.read("run/sessions.jsonl"));
    let file = place.path("run/sessions.jsonl");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(place.run(&train(["train.steps=20", "train.log_every=7"])).status.code(), Some(1));
    assert_eq!(place.read("run/plan.json"), plan);
    fs::remove_dir(&file).unwrap();
    place.write("run/sessions.jsonl", sessions);
    place.ok(&train(["train.steps=20", "train.log_every=7"]));
    assert_eq!(damages(&place), [""; 0]);
}

#[test]
fn folders_with_names_from_before_are_refused() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["eval", "run", "--lengths", "16"]);
    let refused = |commands: &[&[&str]], named: &str| {
        for command in commands {
            let output = place.run(command);
            let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
            assert!(!output.status.success() && said.contains("was written before 0.1.0"), "{command:?}: {said}");
            assert!(said.contains(named) && said.contains("train the run again"), "{command:?}: {said}");
        }
    };
    let (eval, report) = (["eval", "run", "--lengths", "16"], ["report", "run", "--out", "page"]);
    let all: [&[&str]; 5] =
        [&["train", "--config", "run.toml", "--out", "run"], &eval, &["sample", "run"], &report, &["verify", "run"]];
    fs::rename(place.path("run/sessions.jsonl"), place.path("run/sittings.jsonl")).unwrap();
    refused(&all, "`sittings.jsonl` is now `sessions.jsonl`");
    fs::rename(place.path("run/sittings.jsonl"), place.path("run/sessions.jsonl")).unwrap();
    let rows = place.read("run/evaluation.jsonl");
    place.write("run/evaluation.jsonl", rows.replace("\"eval_len\"", "\"length\""));
    refused(&[&eval, &report, &["verify", "run"]], "`length` is now `eval_len`");
    place.write("run/evaluation.jsonl", rows);
    place.ok(&["verify", "run"]);
}

#[test]
fn rows_that_contradict_themselves_or_the_plan_are_found() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["eval", "run", "--lengths", "16,32"]);
    for (file, key, expected) in [
        ("evaluation.jsonl", "\"perplexity\":", "line 2: the perplexity is 1"),
        ("evaluation.jsonl", "\"bits_per_byte\":", "line 2: bits_per_byte is 1"),
        ("evaluation.jsonl", "\"seed\":", "line 2: it belongs to "),
        ("metrics.jsonl", "\"tokens\":", "tokens are not "),
    ] {
        let path = format!("run/{file}");
        let whole = place.read(&path);
        let (first, rest) = whole.split_at(whole.find('\n').unwrap());
        let (before, value) = rest.split_at(rest.find(key).unwrap() + key.len());
        place.write(&path, format!("{first}{before}1{value}"));
        let output = place.run(&["verify", "run"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{key}\n{said}");
        assert!(said.lines().any(|line| line.contains("DAMAGED") && line.contains(expected)), "{key}\n{said}");
        place.write(&path, whole);
    }
    place.ok(&["verify", "run"]);
}

#[test]
fn rows_of_one_evaluation_that_differ_are_found() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    place.ok(&["eval", "run", "--lengths", "16,32"]);
    let rows = place.read("run/evaluation.jsonl");
    let first = rows.lines().next().unwrap();
    place.write("run/evaluation.jsonl", format!("{rows}{first}\n"));
    place.ok(&["verify", "run"]);
    // a row that agrees with itself
    let mut other: serde_json::Value = serde_json::from_str(first).unwrap();
    other["nll"] = 1.5.into();
    other["perplexity"] = 1.5f64.exp().into();
    for list in ["bytes", "bits_per_byte", "nll_by_segment", "nll_by_own_context"] {
        other.as_object_mut().unwrap().remove(list);
    }
    place.write("run/evaluation.jsonl", format!("{rows}\n{other}\n"));
    let (code, said, remarks) = verified(&place, &["run"]);
    assert!(code == Some(1) && said.contains("lines 1 and 4 record one evaluation, but nll is "), "{said}");
    assert!(remarks.contains("hint: delete the line that is wrong, or both and evaluate again"), "{remarks}");
    // what the hint says works
    place.write("run/evaluation.jsonl", rows.split_once('\n').unwrap().1);
    place.ok(&["eval", "run", "--lengths", "16,32"]);
    place.ok(&["verify", "run"]);
}

#[test]
fn rows_that_contradict_themselves_are_not_results() {
    let place = Place::new();
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--out", "run"]);
    let eval = ["eval", "run", "--lengths", "16"];
    place.ok(&eval);
    let whole = place.read("run/evaluation.jsonl");
    let error = |arguments: &[&str]| {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    place.write("run/evaluation.jsonl", whole.replacen("\"perplexity\":", "\"perplexity\":1", 1));
    let said = error(&eval);
    assert!(
        said.contains("line 1: the perplexity is 1") && said.contains("delete line 1 and evaluate again"),
        "{said}"
    );
    let report = place.ok(&["report", "run", "--out", "report"]);
    assert!(
        report.contains("note: run: evaluation.jsonl has a row that contradicts itself: the perplexity is 1"),
        "{report}"
    );
    // the row of another seed
    place.write("run/evaluation.jsonl", whole.replacen("\"seed\":1235", "\"seed\":7", 1));
    let said = error(&eval);
    assert!(said.contains("it has a row of seed 7, trained at 16; the run has seed 1235"), "{said}");
    place.write("run/evaluation.jsonl", "");
    place.ok(&eval);
    place.ok(&["verify", "run"]);
}

#[test]
fn rows_and_checkpoints_that_were_lost_are_named() {
    let place = Place::new();
    place.make_data();
    let train = |steps: &str| {
        let steps = format!("train.steps={steps}");
        let output = place.run(&[
            "train",
            "--config",
            "run.toml",
            "--set",
            &steps,
            "--set",
            "train.schedule_steps=20",
            "--out",
            "run",
        ]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = train("20");
    assert!(!said.contains("note:"), "{said}");
    let said = train("25");
    assert!(!said.contains("note:"), "{said}");
    fs::remove_file(place.path("run/metrics.jsonl")).unwrap();
    let said = train("30");
    assert!(said.contains("note: metrics.jsonl has no row of step 1, which was trained; reports lack it"), "{said}");
    fs::remove_dir_all(place.path("run/checkpoints")).unwrap();
    let said = train("30");
    assert!(
        said.contains(
            "note: the folder has no checkpoint: training starts at step 1, and replaces the rows up to step 30"
        ),
        "{said}"
    );
    place.ok(&["verify", "run"]);
}

#[test]
fn an_export_is_no_damage_and_says_its_programs() {
    let place = Place::new();
    let verified = |name: &str| place.ok(&["verify", &format!("{}/../../results/{name}", env!("CARGO_MANIFEST_DIR"))]);
    // some were evaluated under a window
    for (name, runs) in [("kerple-small", "183 of 183 runs"), ("spe-small", "111 of 111 runs")] {
        let said = verified(name);
        assert!(said.contains(runs), "{said}");
    }
    let said = verified("dape-small");
    assert!(said.contains("273 of 273 runs"), "{said}");
    assert!(said.contains("a43def0972c2: 57 runs: ") && said.contains("e72f4c9bd111: 184 runs: "), "{said}");
    assert!(said.contains("books3/cope (1235, 1236, 1237)"), "{said}");
}
