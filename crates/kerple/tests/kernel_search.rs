//! `kerple kernel search`: from a run file to a plan, runs, a verdict and pages.

use crate::common::Place;
use std::fs;
use std::time::{Duration, Instant};

/// A search of three expressions whose runs take a fraction of a second.
const SMALL: [&str; 17] = [
    "kernel",
    "search",
    "--config",
    "run.toml",
    "--set",
    "train.steps=16",
    "--size",
    "1",
    "--base",
    "log",
    "--lengths",
    "16,32",
    "--n-segments",
    "8",
    "--budget",
    "2",
    "--quiet",
];

fn small(out: &str, more: &[&'static str]) -> Vec<String> {
    SMALL.iter().chain(more).chain(&["--out"]).map(|word| (*word).to_owned()).chain([out.to_owned()]).collect()
}

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

/// What a search leaves that must not depend on interruptions.
fn results(place: &Place, out: &str) -> [String; 4] {
    ["search-plan.json", "rows.jsonl", "report/search.json", "report/tables/confirmation.csv"].map(|name| {
        let text = place.read(format!("{out}/{name}"));
        // what a run took is no result
        text.split(",\n  \"cost\"").next().unwrap().to_owned()
    })
}

fn finished_runs(place: &Place, out: &str) -> usize {
    fn walk(folder: &std::path::Path) -> usize {
        let Ok(entries) = fs::read_dir(folder) else { return 0 };
        let of = |path: std::path::PathBuf| match path.is_dir() {
            true => walk(&path),
            false => usize::from(path.ends_with("evaluation.jsonl")),
        };
        entries.flatten().map(|entry| of(entry.path())).sum()
    }
    walk(&place.path(out).join("runs"))
}

#[test]
fn a_killed_search_and_one_in_shards_have_the_results_of_one_that_ran_through() {
    let place = Place::new();
    place.make_data();
    let printed = place.ok(&words(&small("whole", &[])));
    for line in ["the logarithm", "3 expressions were in the space, 3 were measured", "by chance", "page: whole/report"]
    {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
    let whole = results(&place, "whole");
    assert_eq!(whole[1].lines().count(), 3 * 2 * 6 + 6 * 6);
    let hash = whole[0].split("\"hash\": \"").nth(1).unwrap()[..64].to_owned();
    assert!(whole[1].lines().all(|row| row.contains(&hash)), "every row names the plan");
    assert!(place.path("whole/report/selection.html").exists());

    for runs in [1, 20, 50] {
        let arguments = small("killed", &[]);
        let mut child = place.command(&words(&arguments)).spawn().unwrap();
        let began = Instant::now();
        while finished_runs(&place, "killed") < runs && child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < Duration::from_secs(120), "no run is finished");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!place.path("killed/report").exists(), "it was killed before the end");
    }
    place.ok(&words(&small("killed", &[])));
    assert_eq!(results(&place, "killed"), whole);

    let refused = place.run(&words(&small("shards", &["--shard", "0/2"])));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("shards has no plan"), "{error}");
    place.ok(&words(&small("shards", &["--plan-only"])));
    for _ in 0..4 {
        place.ok(&words(&small("shards", &["--shard", "0/2"])));
        place.ok(&words(&small("shards", &["--shard", "1/2"])));
    }
    assert_eq!(results(&place, "shards"), whole);
}

#[test]
fn a_plan_is_listed_and_resumes_only_as_it_was_made() {
    let place = Place::new();
    place.make_data();
    let listed = place.ok(&words(&small("out", &["--plan-only"])));
    assert!(listed.contains("1  s*exp(log(b, a)): strictly positive definite"), "{listed}");
    assert!(listed.contains("3 expressions; 4 written, 0 refused without a proof"), "{listed}");
    assert!(listed.contains("rung-0: 3 expressions and 3 baselines, 2 seeds, 1 updates, valid split"), "{listed}");
    assert!(
        listed.contains("confirmation: 3 expressions and 3 baselines, 6 seeds, 16 updates, test split"),
        "{listed}"
    );
    assert!(!place.path("out/runs").exists(), "nothing was trained");
    let again = place.ok(&words(&small("out", &["--plan-only"])));
    assert_eq!(again, listed);
    for (more, message) in [
        (["--size", "2"], "a search with size = 1, not 2"),
        (["--budget", "3"], "budget_hours = 2.0, not 3.0"),
        (["--lengths", "16,48"], "lengths = [16,32], not [16,48]"),
        (["--set", "model.n_heads=1"], "a search with run = "),
    ] {
        let mut arguments = small("out", &[]);
        match arguments.iter().position(|word| word == more[0] && more[0] != "--set") {
            Some(at) => arguments[at + 1] = more[1].to_owned(),
            None => arguments.extend(more.map(str::to_owned)),
        }
        let output = place.run(&words(&arguments));
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(message) && error.contains("\n\nhint: use the same options"), "{more:?}: {error}");
    }
    let plan = place.read("out/search-plan.json").replace("\"updates\": 4", "\"updates\": 5");
    place.write("out/search-plan.json", plan);
    let output = place.run(&words(&small("out", &[])));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("the plan was changed after it was made"), "{error}");
}

#[test]
fn a_synthetic_search_finds_the_known_kernel_without_training() {
    let place = Place::new();
    place.write(
        "run.toml",
        "data.path = \"nowhere\"\nencoding.kind = \"none\"\n[train]\ntrain_len = 64\nsteps = 1600\n",
    );
    let known = ["kernel", "search", "--config", "run.toml", "--size", "1", "--measure", "synthetic"];
    let found = place.ok(&[&known[..], &["--truth", "exp(2.5, 0.02, 1)", "--out", "found"]].concat());
    assert!(found.starts_with('`') && found.contains("is better than the logarithm"), "{found}");
    let none = place.ok(&[&known[..], &["--out", "none", "--json"]].concat());
    let none: serde_json::Value = serde_json::from_str(&none).unwrap();
    assert!(none["winner"].is_null() && none["counts"]["tests"] == 5, "{none}");
}

#[test]
fn misuse_of_a_search_is_named_with_a_hint() {
    let place = Place::new();
    place.make_data();
    place.write(
        "task.toml",
        "encoding.kind = \"none\"\n[data.task]\nkind = \"parity_check\"\n[train]\ntrain_len = 40\nsteps = 16\n",
    );
    let cases: [(&[&str], &str); 18] = [
        (&[], "--budget is missing"),
        (&["--budget", "0"], "--budget 0 is out of range"),
        (&["--budget", "0.0000001"], "--budget 0.0000001 is too small"),
        (&["--budget", "1", "--size", "0"], "--size 0 is out of range"),
        (&["--budget", "1", "--base", "lag"], "unknown function `lag`"),
        (&["--budget", "1", "--base", "const"], "softmax ignores a constant"),
        (&["--budget", "1", "--set", "train.steps=15"], "train.steps = 15 is too few"),
        (&["--budget", "1", "--set", "train.schedule_steps=40"], "train.schedule_steps is set"),
        (&["--budget", "1", "--lengths", "16,8192"], "segments of 8192 tokens, fewer than the 6 seeds"),
        (&["--budget", "1", "--lengths", "16"], "at least 32 are needed"),
        (&["--budget", "1", "--protocol", "last:64"], "last:64 scores more tokens than a length of 16"),
        (&["--budget", "1", "--protocol", "rolling:32"], "--protocol rolling:32 is not available in a search"),
        (&["--budget", "1", "--n-segments", "100000"], "100000 segments of 128 tokens were requested"),
        (&["--budget", "1", "--truth", "log(1, 1)"], "--truth is for --measure synthetic"),
        (&["--budget", "1", "--noise", "0.5"], "--noise is for --measure synthetic"),
        (&["--measure", "synthetic", "--noise", "0"], "--noise 0 is out of range"),
        (&["--measure", "synthetic", "--truth", "log(b, a)"], "its parameters have no values"),
        (&["--budget", "1", "--config", "task.toml"], "data.task is set"),
    ];
    for (more, message) in cases {
        let config: &[&str] = if more.contains(&"--config") { &[] } else { &["--config", "run.toml"] };
        let base: &[&str] = if more.contains(&"--base") { &[] } else { &["--base", "log"] };
        let size: &[&str] = if more.contains(&"--size") { &[] } else { &["--size", "1"] };
        let output = place.run(&[&["kernel", "search", "--out", "out"], config, base, size, more].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(message) && error.contains("\n\nhint: "), "{more:?}: {error}");
        assert!(!place.path("out/search-plan.json").exists(), "{more:?} leaves no plan");
    }
    let plan = ["kernel", "search", "--config", "run.toml", "--size", "1", "--base", "log", "--plan-only"];
    for (lengths, is_said) in [("16,32", true), ("32", false)] {
        let own = ["--measure", "synthetic", "--lengths", lengths, "--set", "train.steps=16", "--out", lengths];
        let output = place.run(&[&plan[..], &own].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{lengths}: {said}");
        assert_eq!(said.contains("note: no effect: --lengths 16; "), is_said, "{lengths}: {said}");
    }
    // a hint that is followed works
    let shorter = ["kernel", "search", "--config", "run.toml", "--size", "1", "--base", "log", "--budget", "1"];
    place.ok(&[&shorter[..], &["--lengths", "16,64", "--set", "train.steps=16", "--plan-only", "--out", "out"]].concat());
}
