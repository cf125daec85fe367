//! Runs that a stop rule ends: how many have learned, and after how many updates.

use std::path::Path;

use kerple_report::results::{Results, RunState};
use kerple_report::{WrittenReport, find_runs, table_text, write};
use kerple_run::MetricsRow;
use serde_json::{Value, json};

/// A run folder with these validation scores, one every 10 updates.
fn run(root: &Path, encoding: &str, seed: u64, until: Value, scores: &[f64]) {
    let folder = root.join(format!("{encoding}-{seed}"));
    std::fs::create_dir_all(&folder).unwrap();
    let plan = json!({
        "label": encoding, "seed": seed, "train_len": 40, "steps": 60, "hash": format!("{encoding}{seed}"),
        "encoding": {"kind": encoding}, "data": {"task": {"kind": "recall"}},
        "train": {"steps": 60, "eval_interval": 10, "until": until},
    });
    std::fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    let row = |(at, score): (usize, &f64)| {
        let step = 10 * (at as u64 + 1);
        let row: MetricsRow =
            serde_json::from_value(json!({"step": step, "loss": 1.0, "learning_rate": 0.1, "grad_norm": 1.0,
            "tokens": 40 * step, "seconds": 1.0, "step_seconds": 0.1, "val_loss": 1.0, "val_score": score}))
            .unwrap();
        serde_json::to_string(&row).unwrap() + "\n"
    };
    let rows: String = scores.iter().enumerate().map(row).collect();
    std::fs::write(folder.join("metrics.jsonl"), rows).unwrap();
}

fn report(root: &Path) -> WrittenReport {
    write(&find_runs(&[root]).unwrap(), &root.join("report"), &Default::default()).unwrap()
}

#[test]
fn learned_runs_are_counted_with_their_updates() {
    let root = tempfile::tempdir().unwrap();
    let rule = || json!({"score": 0.9, "checks": 2});
    // met at 30, at the end, never, and not yet
    run(root.path(), "alibi", 1, rule(), &[0.1, 0.9, 0.95]);
    run(root.path(), "alibi", 2, rule(), &[0.1, 0.9, 0.2, 0.3, 0.9, 1.0]);
    run(root.path(), "alibi", 3, rule(), &[0.9, 0.1, 0.9, 0.1, 0.9, 0.8]);
    run(root.path(), "none", 1, rule(), &[0.1, 0.1, 0.1, 0.1, 0.1, 0.95]);
    run(root.path(), "none", 2, rule(), &[0.1, 0.95]);
    let WrittenReport { results, index, .. } = report(root.path());
    let found: Vec<_> =
        results.learning.iter().map(|run| (run.encoding.as_str(), run.updates, run.stopped_at)).collect();
    let expected = [
        ("alibi", Some(20), Some(30)),
        ("alibi", Some(50), Some(60)),
        ("alibi", None, None),
        ("none", None, None),
        ("none", None, None),
    ];
    assert_eq!(found, expected);
    let counts: Vec<_> =
        results.learned.iter().map(|row| (row.n, row.learned, row.unfinished, row.median_updates)).collect();
    assert_eq!(counts, [(3, 2, 0, Some(50.0)), (1, 0, 1, None)]);
    // a run that its rule ended is complete
    let states: Vec<_> = results.runs.iter().map(|run| (run.state, run.steps, run.planned_steps)).collect();
    let (finished, unfinished) = (RunState::Finished, RunState::Unfinished);
    let expected = [(finished, 30), (finished, 60), (finished, 60), (finished, 60), (unfinished, 20)];
    assert_eq!(states, expected.map(|(state, steps)| (state, steps, Some(60))));
    assert!(results.notes.iter().all(|note| !note.contains("alibi-1 is unfinished")), "{:?}", results.notes);

    let markdown = std::fs::read_to_string(root.path().join("report/report.md")).unwrap();
    let caption = "Updates until learned, recall: 2 of 4 learned. Updates up to the first of 2 validations in a row with a \
        score of at least 0.9; validations every 10 updates, at most 60 updates.";
    for part in [
        caption,
        "| alibi | 2 of 3 | 50 | 20, 50, > 60 |",
        "| none | 0 of 1 (1 unfinished) | \u{2013} | > 60, unfinished |",
    ] {
        assert!(markdown.contains(part), "{part}\n{markdown}");
    }
    assert!(markdown.contains("| 30 of 60 (learned) |"), "{markdown}");
    let html = std::fs::read_to_string(index).unwrap();
    assert!(html.contains("Score at validation") && html.contains("share of right answers"));
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(&html, options).unwrap();
    assert!(html.contains("Updates until learned, recall: 2 of 4 learned") && html.contains("20, 50, &gt; 60"));
    let csv = |name: &str| std::fs::read_to_string(root.path().join(format!("report/tables/{name}.csv"))).unwrap();
    let learning = csv("learning");
    assert!(learning.lines().nth(1).unwrap().ends_with(",alibi,1,recall,0.9,2,10,60,learned,20,30,0.95"), "{learning}");
    assert!(csv("learned").lines().nth(1).unwrap().ends_with(",alibi,3,2,0,50.0"), "{}", csv("learned"));
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(root.path().join("report/report.json")).unwrap()).unwrap();
    assert_eq!(json["learning"][2]["outcome"], "not_learned");
    assert_eq!((&json["learned"][0]["learned"], json["learned"].as_array().unwrap().len()), (&2.into(), 2));
    let text = table_text(&results);
    assert!(text.contains("2 of 3") && text.contains("20, 50, > 60"), "{text}");
}

#[test]
fn runs_without_a_rule_are_not_counted() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), "alibi", 1, Value::Null, &[1.0; 6]);
    let written = report(root.path());
    assert!(written.results.learning.is_empty() && written.results.learned.is_empty());
    assert_eq!(written.results.runs[0].state, RunState::Finished);
    let page = std::fs::read_to_string(&written.index).unwrap();
    assert!(!page.contains("until learned"));
    let json = std::fs::read_to_string(root.path().join("report/report.json")).unwrap();
    assert!(!json.contains("\"learning\"") && !root.path().join("report/tables/learning.csv").exists());
    // rules that differ are never counted together
    run(root.path(), "alibi", 2, json!({"score": 0.9, "checks": 2}), &[1.0; 2]);
    run(root.path(), "alibi", 3, json!({"score": 0.8, "checks": 2}), &[1.0; 2]);
    let Results { learned, groups, .. } = report(root.path()).results;
    assert_eq!((learned.len(), groups.len()), (2, 3));
}
