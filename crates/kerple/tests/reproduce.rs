//! `kerple reproduce` through the binary: tables and figures, going on, sharing runs, scripts for Slurm.

use crate::common::{Place, RUN, document};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SMOKE: [&str; 4] = ["reproduce", "kerple", "--scale", "smoke"];

fn smoke<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&SMOKE[..], &["--out", out], more].concat()
}

/// Every file below a folder whose bytes do not depend on the clock.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// The rows of all runs without their times and what made them, which has the number of threads.
fn rows(place: &Place, out: &str) -> BTreeMap<PathBuf, Vec<Value>> {
    let of = |(path, bytes): (PathBuf, Vec<u8>)| {
        let text = String::from_utf8(bytes).unwrap();
        let row = |line: &str| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            row["seconds"] = Value::Null;
            row["provenance"] = Value::Null;
            row
        };
        (path, text.lines().map(row).collect())
    };
    let all = files(&place.path(out)).into_iter();
    all.filter(|(path, _)| path.ends_with("evaluation.jsonl")).map(of).collect()
}

#[test]
fn it_ends_in_every_table_and_figure_and_a_second_call_does_nothing() {
    let place = Place::new();
    let printed = place.ok(&smoke("r", &[]));
    for line in printed.lines().filter(|line| !line.starts_with("page:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[1], words[2]), (words[3], "of"), "{line}");
        assert_ne!(words[3], "0", "{line}");
    }
    assert_eq!(printed.lines().count(), 17, "{printed}");
    let page = place.read("r/paper/index.html").replace("&#x2f;", "/");
    let markdown = place.read("r/paper/report.md");
    for part in ["Table 3", "paper: 31.3 ± 5.20 †", "Figure 7", "out of memory", "github/kerple_log/seed-1235"] {
        assert!(page.contains(part) && markdown.contains(part), "{part}");
    }
    assert!(page.contains("href=\"../github/rotary-bf16/\"") && place.path("r/github/rotary-bf16/seed-1235").is_dir());
    let cells: Vec<Value> = serde_json::from_str(&place.read("r/paper/cells.json")).unwrap();
    let is_complete = |cell: &Value| cell["n"] == cell["planned"] && cell["perplexity"].as_f64().is_some();
    assert_eq!((cells.len(), cells.iter().filter(|cell| is_complete(cell)).count()), (329, 329));
    // one seed gives every encoding the same text
    let all = rows(&place, "r");
    let text = |label: &str| all[Path::new(&format!("github/{label}/seed-1236/evaluation.jsonl"))][0]["text"].clone();
    assert!(text("alibi").is_object());
    assert_eq!(text("alibi"), text("kerple_log3"));

    // a row over another text is no part of the tables, and the page says so
    let file = "r/github/alibi/seed-1236/evaluation.jsonl";
    let kept = place.read(file);
    let checksum = text("alibi")["checksum"].as_str().unwrap().to_owned();
    let foreign = kept.lines().next().unwrap().replacen(&checksum, &"0".repeat(checksum.len()), 1);
    place.write(file, format!("{kept}{foreign}\n"));
    assert_eq!(place.ok(&smoke("r", &["--pages-only"])), printed);
    assert!(
        place.read("r/paper/report.md").contains("rows over other texts, left out: 1\n")
            && !markdown.contains("left out:")
    );
    place.write(file, kept);
    place.ok(&smoke("r", &["--pages-only"]));

    let before = files(&place.path("r"));
    assert_eq!(place.ok(&smoke("r", &[])), printed);
    assert_eq!(files(&place.path("r")), before, "a second call changes no file");

    // what is exported makes the same tables, of less
    let exported = place.ok(&smoke("r", &["--export", "kept"]));
    assert_eq!(exported.replace("kept/", "r/"), printed);
    let verified = place.ok(&["verify", "r", "kept"]);
    assert!(verified.matches("1 of 1 lists of planned runs").count() == 2 && verified.contains(" texts"), "{verified}");
    assert_eq!(place.read("kept/paper/cells.csv"), place.read("r/paper/cells.csv"));
    assert!(!place.path("kept/data").exists() && !place.path("kept/github").exists());
    let unpacked = kerple_experiments::packed::unpacked(&place.path("kept")).unwrap().unwrap();
    assert!(!unpacked.path().join("github/alibi/seed-1235/checkpoints").exists());
    // nor does it say where this machine has its texts
    let plan = fs::read_to_string(unpacked.path().join("github/alibi/seed-1235/plan.json")).unwrap();
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["data"]["path"], "data/github");
    // but what trained the runs
    let sessions = "github/alibi/seed-1235/sessions.jsonl";
    let kept = fs::read_to_string(unpacked.path().join(sessions)).unwrap();
    let [kept, trained] =
        [kept, place.read(format!("r/{sessions}"))].map(|rows| serde_json::from_str::<Value>(&rows).unwrap());
    assert_eq!(kept, trained);
}

#[test]
fn music_and_the_arena_end_in_every_table_and_figure() {
    let place = Place::new();
    let spe = |more: &[&'static str]| [&["reproduce", "spe", "--scale", "smoke"][..], more].concat();
    let printed = place.ok(&spe(&["--out", "s"]));
    for line in printed.lines().filter(|line| !line.starts_with("page:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[1], words[2]), (words[3], "of"), "{line}");
        assert_ne!(words[3], "0", "{line}");
    }
    assert_eq!(printed.lines().count(), 7, "{printed}");
    let (page, markdown) = (place.read("s/paper/index.html"), place.read("s/paper/report.md"));
    for part in [
        "made-up loops",
        "ListOps (drawn)",
        "Retrieval (made up)",
        "SineSPE, ungated",
        "linear KERPLE, log",
        "translation invariance",
        "paper: 62.39 ± 0.59",
        "linear KERPLE, log: is below APE, sinusoidal beyond",
        "linear KERPLE, log: the last quarter is more alike than with SineSPE, gated",
        "linear KERPLE, log: more right answers than ConvSPE, gated",
        "onset-drum",
    ] {
        assert!(page.contains(part) && markdown.contains(part), "{part}");
    }
    for figure in ["piano-piano", "groove-groove-time-pitch", "attention-piano-sine_spe-ungated", "rolls-groove"] {
        assert!(place.read(format!("s/paper/figures/{figure}.svg")).starts_with("<svg"), "{figure}");
    }
    // a probe is made once for each run that asks for it, and a player opens what it was made of
    let probes = place.read("s/groove/conv_spe-noise=shared-realisations=8-taps=16/seed-1236/probes.jsonl");
    let probe: Value = serde_json::from_str(probes.trim_end()).unwrap();
    assert_eq!(probe["result"]["style"]["rows"].as_array().unwrap().len(), 2 * 4);
    let evaluated = place.read("s/groove/conv_spe-noise=shared-realisations=8-taps=16/seed-1236/evaluation.jsonl");
    let evaluated: Value = serde_json::from_str(evaluated.lines().next().unwrap()).unwrap();
    let text = |row: &Value| ["checksum", "seed"].map(|key| row["text"][key].clone());
    assert_eq!(text(&probe), text(&evaluated), "both are of the test text of a seed");
    assert!(place.path("s/music/groove/train/0000.mid").is_file());
    let before = files(&place.path("s"));
    assert_eq!(place.ok(&spe(&["--out", "s"])), printed);
    assert_eq!(files(&place.path("s")), before, "a second call changes no file");
    assert_eq!(place.ok(&spe(&["--out", "s", "--export", "kept"])).replace("kept/", "s/"), printed);
    assert_eq!(place.read("kept/paper/cells.csv"), place.read("s/paper/cells.csv"));
}

#[test]
fn shards_together_are_one_run() {
    let place = Place::new();
    let few = ["--only", "table10,figure2"];
    place.ok(&smoke("whole", &few));
    for (shard, folder) in [("0/2", "a"), ("1/2", "b")] {
        place.ok(&smoke(folder, &[&few[..], &["--shard", shard]].concat()));
        assert!(!place.path(folder).join("paper").exists());
    }
    let (a, b) = (rows(&place, "a"), rows(&place, "b"));
    assert!(!a.is_empty() && !b.is_empty() && a.keys().all(|run| !b.contains_key(run)), "no run is in both");
    // half of it: what is missing says so
    let partial = place.ok(&smoke("a", &[&few[..], &["--pages-only"]].concat()));
    let line = partial.lines().find(|line| line.starts_with("table10")).unwrap();
    assert!(!line.contains("14 of 14"), "{line}");
    assert!(place.read("a/paper/report.md").contains("0 of 2 seeds"));
    // merged by copying
    for (path, bytes) in files(&place.path("b")) {
        place.write(place.path("a").join(path).to_str().unwrap(), bytes);
    }
    assert_eq!(rows(&place, "a"), rows(&place, "whole"));
    assert_eq!(
        place.ok(&smoke("a", &[&few[..], &["--pages-only"]].concat())).replace("a/paper", "whole/paper"),
        place.ok(&smoke("whole", &few))
    );
    assert_eq!(place.read("a/paper/cells.csv"), place.read("whole/paper/cells.csv"));
}

#[test]
fn dape_is_trained_measured_and_looked_into() {
    let place = Place::new();
    let command =
        ["reproduce", "dape", "--scale", "smoke", "--only", "table1,table7,figure1,figure7,claims", "--out", "d"];
    let few = ["reproduce", "dape", "--scale", "smoke", "--only", "table1,table7,figure1,figure7", "--out", "d"];
    let printed = place.ok(&few);
    for line in printed.lines().filter(|line| !line.starts_with("page:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[1], words[2]), (words[3], "of"), "{line}");
        assert_ne!(words[3], "0", "{line}");
    }
    let page = place.read("d/paper/report.md");
    for part in ["Table 7", "trained at 64", "paper: 39.31", "layer 1, head 2", "| dape-kernel=3 |"] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    // times are of a machine
    let timing: Value = serde_json::from_str(&place.read("d/timing.json")).unwrap();
    let provenance = &timing["provenance"];
    assert!(provenance["threads"].as_u64() > Some(0) && provenance["device"] == "cpu", "{provenance}");
    for key in ["cpu", "simd", "precision"] {
        let word = provenance[key].as_str().unwrap();
        assert!(page.contains("Timed on ") && page.contains(word), "{key}: {word}");
    }
    assert!(["local", "anti-local", "depends on the text"].iter().any(|kind| page.contains(kind)));
    let scores: Value = serde_json::from_str(&place.read("d/arxiv-512/dape/seed-1235/attention_scores.json")).unwrap();
    let lengths: Vec<u64> = scores.as_array().unwrap().iter().map(|one| one["length"].as_u64().unwrap()).collect();
    assert_eq!(lengths, [64, 64, 1024, 1024]);
    assert_eq!(place.ok(&few), printed, "nothing is done twice");
    // the same of what is kept, and claims of what there is
    assert_eq!(place.ok(&[&few[..], &["--export", "kept"]].concat()).replace("kept/", "d/"), printed);
    assert_eq!(serde_json::from_str::<Value>(&place.read("kept/timing.json")).unwrap(), timing);
    let unpacked = kerple_experiments::packed::unpacked(&place.path("kept")).unwrap().unwrap();
    let log = |folder: &Path| fs::read_to_string(folder.join("arxiv-512/dape/seed-1235/metrics.jsonl")).unwrap();
    assert!(log(&place.path("d")).contains("\"encoding_params\""));
    assert!(!log(unpacked.path()).contains("\"encoding_params\""), "a network's weights are not kept");
    let claims = place.ok(&[&command[..], &["--pages-only"]].concat());
    assert!(claims.starts_with("claims"), "{claims}");
    let page = place.read("d/paper/report.md");
    let line = page.lines().find(|line| line.starts_with("| DAPE is below a network of the bias alone")).unwrap();
    assert!(line.contains("at 1024: ") && line.contains("n = 2"), "{line}");
}

#[test]
fn mistakes_are_named() {
    let place = Place::new();
    place.ok(&smoke("r", &["--only", "table1"]));
    for (arguments, part) in [
        (vec!["reproduce", "rope", "--out", "x"], "unknown paper or experiment `rope`"),
        (vec!["reproduce", "kerple", "--out", "x"], "the small scale needs texts"),
        (vec!["reproduce", "kerple", "--scale", "small", "--out", "r"], "contains the smoke reproduction"),
        (smoke("x", &["--only", "table11"]), "no such table or figure"),
        (smoke("x", &["--shard", "2/2"]), "shards are 0 to 1"),
        (smoke("x", &["--shard", "0/2", "--slurm", "2"]), "cannot be used with"),
        (smoke("x", &["--slurm", "0"]), "at least 1"),
        (smoke("x", &["--pages-only"]), "is not a reproduction"),
    ] {
        let output = place.run(&arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}\n{said}");
        assert!(said.contains(part) && said.contains("hint: "), "{arguments:?}\n{said}");
    }
    assert!(!place.path("x").exists());
}

/// A script of `--slurm`, run as Slurm would, with a `scontrol` that writes down what it is asked.
fn task(place: &Place, script: &str, index: &str) -> std::process::Child {
    place.write("bin/scontrol", "#!/bin/sh\necho \"$@\" >> \"$(dirname \"$0\")/asked\"\n");
    let scontrol = place.path("bin/scontrol");
    let mut mode = fs::metadata(&scontrol).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&scontrol, mode).unwrap();
    let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
    std::process::Command::new("bash")
        .arg(place.path(script))
        .env("PATH", path)
        .env("SLURM_ARRAY_TASK_ID", index)
        .env("SLURM_JOB_ID", "77")
        .spawn()
        .unwrap()
}

#[test]
fn the_scripts_for_slurm_share_the_runs_and_make_the_page() {
    let place = Place::new();
    place.make_data();
    let compare = ["compare", "--config", "run.toml", "--encodings", "alibi,t5", "--seeds", "2", "--lengths", "16,32"];
    place.ok(&[&compare[..], &["--out", "whole"]].concat());
    let printed = place.ok(&[&compare[..], &["--out", "it's", "--slurm", "2%1"]].concat());
    assert!(printed.starts_with("bash ") && printed.contains("submit.sh"), "{printed}");
    assert!(!place.path("it's/runs").exists(), "nothing is trained");
    let script = place.read("it's/slurm/array.sh");
    assert!(script.contains("#SBATCH --array=0-1%1") && script.contains("--signal=B:TERM@120"), "{script}");
    for index in ["0", "1"] {
        assert!(task(&place, "it's/slurm/array.sh", index).wait().unwrap().success());
    }
    let strip = |out: &str| rows(&place, out);
    assert_eq!(strip("it's"), strip("whole"));
    assert!(task(&place, "it's/slurm/pages.sh", "").wait().unwrap().success());
    let page = |out: &str| place.read(format!("{out}/report/tables/scores.csv"));
    assert_eq!(page("it's"), page("whole"));
}

#[test]
fn a_task_that_is_stopped_saves_and_asks_for_the_queue() {
    let place = Place::new();
    place.make_data();
    // too long to be done before it is stopped
    place.write("run.toml", RUN.replace("steps = 20", "steps = 1000000"));
    place.ok(&["compare", "--config", "run.toml", "--encodings", "alibi", "--out", "c", "--slurm", "1"]);
    let mut child = task(&place, "c/slurm/array.sh", "0");
    let log = place.path("c/runs/alibi/seed-1235/metrics.jsonl");
    let clock = std::time::Instant::now();
    while fs::metadata(&log).map_or(0, |file| file.len()) == 0 {
        assert!(clock.elapsed().as_secs() < 60, "no step was logged");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.read("bin/asked"), "requeue 77\n");
    assert!(place.path("c/runs/alibi/seed-1235/checkpoints").read_dir().unwrap().next().is_some(), "it was saved");
    assert!(place.read("c/slurm/shard-0.log").contains("stopped before the end"));
}

#[test]
fn the_report_of_an_export_is_the_pages_of_its_paper() {
    let (place, export) = (Place::new(), document("results/induction-small"));
    let folder = export.to_str().unwrap();
    let printed = place.ok(&["report", folder, "--out", "pages"]);
    assert!(printed.ends_with("page: pages/index.html\n"), "{printed}");
    assert!(place.read("pages/index.html").contains("<table"));
    assert_eq!(place.read("pages/cells.csv"), fs::read_to_string(export.join("paper/cells.csv")).unwrap());
    let refused = place.run(&["report", folder, folder, "--out", "both"]);
    assert!(refused.status.code() == Some(2) && !place.path("both").exists(), "{refused:?}");
}

#[test]
fn what_is_odd_about_a_run_is_said_with_the_pages() {
    let place = Place::new();
    place.ok(&smoke("r", &["--shard", "0/400"]));
    let rows = "r/github/kerple_log/seed-1235/evaluation.jsonl";
    let whole = place.read(rows);
    place.write(rows, format!("{whole}{{\"label\""));
    let output = place.run(&smoke("r", &["--pages-only"]));
    let (remarks, line) = (String::from_utf8(output.stderr).unwrap(), whole.lines().count() + 1);
    let note = format!("note: github/kerple_log/seed-1235: evaluation.jsonl: the last line, {line}, is incomplete");
    assert!(output.status.success() && remarks.contains(&note), "{note}: {remarks}");
}

#[test]
fn every_result_of_the_repository_is_listed() {
    let place = Place::new();
    let missing = place.run(&["results", "nowhere"]);
    let message = String::from_utf8_lossy(&missing.stderr);
    assert!(missing.status.code() == Some(2) && message.contains("nowhere: the folder does not exist"), "{message}");
    let listed = place.ok(&["results"]);
    for entry in fs::read_dir(document("results")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(listed.lines().any(|line| line.split(' ').next() == Some(&name)), "{name} is missing in\n{listed}");
    }
}
