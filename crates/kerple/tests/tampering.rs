//! What `kerple verify` finds in an export that was changed after it was made, and what it cannot.

use crate::common::{Place, document};
use kerple_experiments::manifest::Manifest;
use kerple_experiments::packed::{SUMS_FILE, pack, unpacked};
use kerple_experiments::{pages, seal};
use kerple_run::ARCHIVE_FILE;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A small export: two encodings of three seeds of a kept one, with a claim and its pages, under a name that no plan has.
fn export(place: &Place) -> Manifest {
    let (from, folder) = (document("results/seeds-small"), place.path("kept"));
    let runs = unpacked(&from).unwrap().unwrap();
    let mut manifest = Manifest::read(&from).unwrap();
    manifest.paper = "made-up".into();
    let is_kept = |label: &str, seed: u64, folder: &Path| {
        ["alibi", "kerple_log"].contains(&label) && seed < 2004 && folder.starts_with("web")
    };
    manifest.runs.retain(|run| is_kept(&run.label, run.seed, &run.folder));
    manifest.claims.truncate(2);
    assert_eq!(manifest.runs.len(), 6, "the export that this is made of has other seeds");
    fs::create_dir_all(&folder).unwrap();
    pack(&manifest, runs.path(), &folder).unwrap();
    fs::write(folder.join("reproduction.json"), serde_json::to_string_pretty(&manifest).unwrap()).unwrap();
    seal::seal(&folder).unwrap();
    pages::write(&folder, &[], &[]).unwrap();
    manifest
}

/// Lines of a file of rows.
fn lines(path: &Path, change: impl FnOnce(&mut Vec<String>)) {
    let mut rows: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    change(&mut rows);
    fs::write(path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
}

/// A row, or a document, with another value somewhere.
fn with(text: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut value: Value = serde_json::from_str(text).unwrap();
    change(&mut value);
    value.to_string()
}

fn in_row(path: &Path, at: usize, change: impl FnOnce(&mut Value)) {
    lines(path, |rows| rows[at] = with(&rows[at], change));
}

fn in_file(path: &Path, change: impl FnOnce(&mut Value)) {
    fs::write(path, with(&fs::read_to_string(path).unwrap(), change)).unwrap();
}

/// Runs `verify`: its exit code and what it printed.
fn verified(place: &Place, folder: &str) -> (Option<i32>, String) {
    let output = place.run(&["verify", folder]);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// A change of unpacked runs, by a name, and what has to be said of it.
type Tampering = (&'static str, fn(&Path), &'static str);

const RUN: &str = "web/alibi/seed-2001";
const OTHER: &str = "web/alibi/seed-2002";

const ROWS: &str = "web/alibi/seed-2001/evaluation.jsonl";

/// Everything that was once done to an export, most of which once passed.
const IN_RUNS: [Tampering; 16] = [
    ("a loss alone", |at| in_row(&at.join(ROWS), 1, |row| row["nll"] = 1.0.into()), "exp(nll) is 2.7"),
    (
        "rows of another seed",
        |at| drop(fs::copy(at.join(OTHER).join("evaluation.jsonl"), at.join(ROWS))),
        "line 1: it belongs to",
    ),
    (
        "rows of another encoding",
        |at| drop(fs::copy(at.join("web/kerple_log/seed-2001/evaluation.jsonl"), at.join(ROWS))),
        "line 1: it belongs to kerple_log",
    ),
    (
        "a learning rate",
        |at| in_file(&at.join(RUN).join("plan.json"), |plan| plan["train"]["learning_rate"] = 0.5.into()),
        "web/alibi/seed-2001/plan.json",
    ),
    (
        "loss, perplexity and bits together",
        |at| {
            in_row(&at.join(ROWS), 1, |row| {
                let nll = 1.0f64;
                let bytes = row["bytes"].as_f64().unwrap() * std::f64::consts::LN_2;
                row["bits_per_byte"] = (nll * row["tokens"].as_f64().unwrap() / bytes).into();
                (row["nll"], row["perplexity"]) = (nll.into(), nll.exp().into());
            });
        },
        "web/alibi/seed-2001/evaluation.jsonl differs from what was exported",
    ),
    ("a run dropped", |at| fs::remove_dir_all(at.join(RUN)).unwrap(), "the run web/alibi/seed-2001 is missing"),
    (
        "a row dropped",
        |at| lines(&at.join(ROWS), |rows| drop(rows.remove(1))),
        "evaluation.jsonl differs from what was exported: the row of",
    ),
    (
        "a row twice",
        |at| lines(&at.join(ROWS), |rows| rows.push(rows[1].clone())),
        "evaluation.jsonl differs from what was exported: row 10 repeats row 2",
    ),
    (
        "folders of seeds exchanged",
        |at| {
            fs::rename(at.join(RUN), at.join("aside")).unwrap();
            fs::rename(at.join(OTHER), at.join(RUN)).unwrap();
            fs::rename(at.join("aside"), at.join(OTHER)).unwrap();
        },
        "web/alibi/seed-2001 is planned for alibi of seed 2001, but contains alibi of seed 2002",
    ),
    (
        "the commit of a plan",
        |at| in_file(&at.join(RUN).join("plan.json"), |plan| plan["commit"] = "0123456789ab".into()),
        "web/alibi/seed-2001/plan.json differs from what was exported",
    ),
    (
        "the checksum of a row's text",
        |at| in_row(&at.join(ROWS), 1, |row| row["text"]["checksum"] = "0".repeat(32).into()),
        "evaluation.jsonl differs from what was exported: row 2 scores another text than the other rows",
    ),
    (
        "a machine",
        |at| in_row(&at.join(RUN).join("sessions.jsonl"), 0, |row| row["cpu"] = "another".into()),
        "web/alibi/seed-2001/sessions.jsonl differs from what was exported",
    ),
    (
        "a row of another step",
        |at| in_row(&at.join(ROWS), 1, |row| row["step"] = 1200.into()),
        "evaluation.jsonl differs from what was exported: row 2 was computed at step 1200, not at the last",
    ),
    (
        "a training loss",
        |at| in_row(&at.join(RUN).join("metrics.jsonl"), 3, |row| row["loss"] = 1.0.into()),
        "web/alibi/seed-2001/metrics.jsonl differs from what was exported",
    ),
    (
        "metrics removed",
        |at| fs::remove_file(at.join(RUN).join("metrics.jsonl")).unwrap(),
        "web/alibi/seed-2001/metrics.jsonl is missing",
    ),
    (
        "a file added",
        |at| fs::write(at.join(RUN).join("attention_scores.json"), "[]").unwrap(),
        "web/alibi/seed-2001/attention_scores.json was added",
    ),
];

/// Changes of what lies beside the archive, or of its bytes.
const IN_FOLDER: [Tampering; 9] = [
    (
        "an archive cut",
        |at| {
            let bytes = fs::read(at.join(ARCHIVE_FILE)).unwrap();
            fs::write(at.join(ARCHIVE_FILE), &bytes[..bytes.len() / 2]).unwrap();
        },
        "kept/runs.tar.zst: ",
    ),
    (
        "a bit of the archive",
        |at| {
            let mut bytes = fs::read(at.join(ARCHIVE_FILE)).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            fs::write(at.join(ARCHIVE_FILE), bytes).unwrap();
        },
        "kept/runs.tar.zst: ",
    ),
    (
        "report.md",
        |at| {
            let text = fs::read_to_string(at.join("paper/report.md")).unwrap();
            let (before, after) = text.split_once("not settled").expect("a verdict");
            fs::write(at.join("paper/report.md"), format!("{before}\u{2713} confirmed{after}")).unwrap();
        },
        "kept/paper/report.md: does not match the runs",
    ),
    (
        "the bound of a claim",
        |at| {
            in_file(&at.join("reproduction.json"), |all| all["claims"][0]["bound"] = serde_json::json!({"below": 0.5}))
        },
        "reproduction.json differs from what was exported",
    ),
    ("the sums removed", |at| fs::remove_file(at.join(SUMS_FILE)).unwrap(), "SHA256SUMS: is missing"),
    (
        "the manifest removed",
        |at| fs::remove_file(at.join("reproduction.json")).unwrap(),
        "kept/reproduction.json: is missing",
    ),
    (
        "the manifest and the archive removed",
        |at| ["reproduction.json", ARCHIVE_FILE].iter().for_each(|name| fs::remove_file(at.join(name)).unwrap()),
        "kept/reproduction.json: is missing",
    ),
    (
        "report.md removed",
        |at| fs::remove_file(at.join("paper/report.md")).unwrap(),
        "kept/paper/report.md: is missing",
    ),
    ("a page removed", |at| fs::remove_file(at.join("paper/cells.csv")).unwrap(), "kept/paper/cells.csv: is missing"),
];

#[test]
fn whatever_is_changed_in_an_export_is_found() {
    let place = Place::new();
    let manifest = export(&place);
    let folder = place.path("kept");
    let (code, said) = verified(&place, "kept");
    assert!(code == Some(0) && said.contains("files are as exported, digest "), "{said}");
    let keep = |from: &str, to: &str| {
        let copied = std::process::Command::new("cp").args(["-r", from, to]).current_dir(place.path("")).status();
        assert!(copied.unwrap().success());
    };
    keep("kept", "whole");
    let restore = || {
        fs::remove_dir_all(&folder).unwrap();
        keep("whole", "kept");
    };
    for (what, change, expected) in IN_RUNS {
        let runs = unpacked(&folder).unwrap().unwrap();
        change(runs.path());
        pack(&manifest, runs.path(), &folder).unwrap();
        let (code, said) = verified(&place, "kept");
        let damaged = said.lines().any(|line| line.contains("DAMAGED") && line.contains(expected));
        assert!(code == Some(1) && damaged, "{what}: {expected:?} is not in\n{said}");
        assert!(!said.contains("/tmp/"), "{what}: {said}");
        // nothing is exported of it, as if it were whole
        if what != "a learning rate" {
            assert!(kerple_experiments::reproduce::export(&folder, &place.path("again")).is_err(), "{what}");
        }
        let error = pages::write_to(&folder, &place.path("pages"), &[]).unwrap_err();
        assert!(error.to_string().contains("does not match SHA256SUMS"), "{what}: {error}");
        restore();
    }
    for (what, change, expected) in IN_FOLDER {
        change(&folder);
        let (code, said) = verified(&place, "kept");
        let damaged = said.lines().any(|line| line.contains("DAMAGED") && line.contains(expected));
        assert!(code == Some(1) && damaged, "{what}: {expected:?} is not in\n{said}");
        restore();
    }
    // pages that repeat the others may be absent, and so may all pages
    for (name, expected) in [
        ("index.html", "match what this program computes from the runs"),
        ("cells.json", "match what this program computes from the runs"),
        ("", "ok       paper: missing, so pages were not compared with the runs"),
    ] {
        let page = folder.join("paper").join(name);
        let removed = if name.is_empty() { fs::remove_dir_all(page) } else { fs::remove_file(page) };
        removed.unwrap();
        let (code, said) = verified(&place, "kept");
        assert!(code == Some(0) && said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn sums_that_are_made_to_fit_hide_no_contradiction() {
    let place = Place::new();
    let manifest = export(&place);
    let folder = place.path("kept");
    let is_found = |what: &str| match what {
        // a consistent forgery: rows that agree with themselves, and a claim that no plan of the program has
        "loss, perplexity and bits together" | "a row dropped" | "a row twice" | "a run dropped" => false,
        "the commit of a plan" | "a machine" | "a training loss" | "metrics removed" | "a file added" => false,
        "the checksum of a row's text" | "a row of another step" => false,
        _ => true,
    };
    let whole = fs::read(folder.join(ARCHIVE_FILE)).unwrap();
    for (what, change, _) in IN_RUNS {
        let runs = unpacked(&folder).unwrap().unwrap();
        change(runs.path());
        pack(&manifest, runs.path(), &folder).unwrap();
        seal::seal(&folder).unwrap();
        pages::write(&folder, &[], &[]).unwrap();
        let (code, said) = verified(&place, "kept");
        assert_eq!(code == Some(1), is_found(what), "{what}: {said}");
        fs::write(folder.join(ARCHIVE_FILE), &whole).unwrap();
    }
    // a bound that was changed with its sum is another than that of the plan
    let kept = document("results/decay-small");
    let copy = place.path("decay");
    fs::create_dir_all(&copy).unwrap();
    for name in [ARCHIVE_FILE, "reproduction.json"] {
        fs::copy(kept.join(name), copy.join(name)).unwrap();
    }
    in_file(&copy.join("reproduction.json"), |all| all["claims"][0]["bound"] = serde_json::json!({"above": -9.0}));
    seal::seal(&copy).unwrap();
    let (code, said) = verified(&place, "decay");
    assert!(code == Some(1) && said.contains("`bound` is {\"above\":-9.0}, in the plan {"), "{said}");
}

#[test]
fn an_archive_that_was_packed_again_with_folders_is_the_same() {
    let place = Place::new();
    export(&place);
    let runs = unpacked(&place.path("kept")).unwrap().unwrap();
    let tar = std::process::Command::new("tar").args(["-cf", "-", "web"]).current_dir(runs.path()).output().unwrap();
    assert!(tar.status.success() && tar.stdout.windows(4).any(|part| part == b"web/"));
    fs::write(place.path("kept").join(ARCHIVE_FILE), zstd::encode_all(&tar.stdout[..], 3).unwrap()).unwrap();
    let (code, said) = verified(&place, "kept");
    assert!(code == Some(0) && said.contains("6 of 6 runs") && said.contains("as exported"), "{said}");
}

#[test]
fn every_kept_result_is_whole() {
    let place = Place::new();
    let (code, said) = verified(&place, document("results").to_str().unwrap());
    assert!(code == Some(0) && said.contains("1944 of 1944 runs") && said.contains("20 of 20 lists"), "{said}");
    assert_eq!(said.matches("match what this program computes from the runs").count(), 20, "{said}");
    assert_eq!(said.matches("match the plan ").count(), 20, "{said}");
}
