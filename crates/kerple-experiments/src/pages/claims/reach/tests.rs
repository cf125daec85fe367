use super::*;
use crate::pages::markdown;
use kerple_run::{EVALUATION_FILE, MANIFEST_FILE, PLAN_FILE, write_json};
use serde_json::json;

const LENGTHS: [u64; 5] = [64, 128, 256, 512, 1024];

/// The cell of the claim's grid on the page of three or more seeds of two encodings, trained at 64, with right answers that are
/// given at each length.
fn cell(measure: &str, bound: serde_json::Value, seeds: u64, right: impl Fn(&str, u64) -> [f64; 5]) -> String {
    let page = page(measure, &bound, seeds, right);
    page.lines().find(|line| line.starts_with("| it is so |")).unwrap_or_else(|| panic!("{page}")).trim_end().to_owned()
}

fn page(measure: &str, bound: &serde_json::Value, seeds: u64, right: impl Fn(&str, u64) -> [f64; 5]) -> String {
    let root = tempfile::tempdir().unwrap();
    let mut runs = Vec::new();
    for (label, seed) in
        ["kerple_log", "rotary"].into_iter().flat_map(|label| (1..=seeds).map(move |seed| (label, seed)))
    {
        let path = format!("flips/{label}/seed-{seed}");
        let folder = root.path().join(&path);
        std::fs::create_dir_all(&folder).unwrap();
        let plan = json!({"label": label, "seed": seed, "train_len": 64, "steps": 9, "hash": path, "encoding": {"kind": label}});
        write_json(&folder.join(PLAN_FILE), &plan).unwrap();
        let row = |(length, right): (u64, f64)| {
            let text = json!({"checksum": "c", "segment_len": length, "n_segments": 512, "seed": seed});
            let row = json!({"label": label, "seed": seed, "train_len": 64, "eval_len": length, "protocol": "answers",
                "split": "test", "step": 9, "text": text, "n_windows": 512, "tokens": 512, "nll": 1.0,
                "perplexity": 1f64.exp(), "seconds": 1.0,
                "task": {"name": "flipflop", "accuracy": right, "chance": 0.5}});
            format!("{row}\n")
        };
        let rows = LENGTHS.into_iter().zip(right(label, seed)).map(row);
        std::fs::write(folder.join(EVALUATION_FILE), rows.collect::<String>()).unwrap();
        runs.push(json!({"folder": path, "corpus": "flips", "label": label, "seed": seed, "train_len": 64,
            "evaluate": ["answers"], "serves": ["values"]}));
    }
    let claim = json!({"text": "it is so", "measure": measure, "evaluation": "answers", "lengths": LENGTHS,
        "treatment": {"encoding": "kerple_log"}, "baseline": {"encoding": "rotary"}, "bound": bound});
    let manifest = json!({"paper": "decay", "scale": "small", "title": "A question", "about": "", "runs": runs,
        "claims": [claim], "corpora": [{"name": "flips", "title": "Flips", "texts": "drawn", "tokenizer": "", "chance": 0.5}],
        "evaluations": {"answers": {"protocol": "segments", "span": 0, "segments": 512, "lengths": LENGTHS}}});
    write_json(&root.path().join(MANIFEST_FILE), &manifest).unwrap();
    markdown(root.path()).unwrap()
}

/// Right answers up to the length of a number, about `theta = 0.928` there, a little other for each seed.
fn up_to(reached: usize, seed: u64) -> [f64; 5] {
    let noise = 0.004 * seed as f64;
    std::array::from_fn(|at| if at < reached { 0.99 - noise } else { 0.6 - noise })
}

/// The logarithm reaches everything or 512 tokens, rotary positions 64 or 128.
fn far(label: &str, seed: u64) -> [f64; 5] {
    if label == "rotary" { up_to(1 + (seed % 2) as usize, seed) } else { up_to(4 + (seed % 2) as usize, seed) }
}

#[test]
fn a_reach_is_judged_by_its_cells() {
    let confirmed = cell("reach", json!({"above": 1.0}), 6, far);
    assert!(
        confirmed.contains("✓ confirmed") && confirmed.contains("3.008 [2.031, 4.125] octaves, p = 6e-4"),
        "{confirmed}"
    );
    assert!(confirmed.contains("n = 6"), "{confirmed}");
    let smaller = cell("reach", json!({"above": 4.5}), 6, |label, seed| {
        if label == "rotary" { up_to(1 + (seed % 2) as usize, seed) } else { up_to(3 + (seed % 2) as usize, seed) }
    });
    assert!(smaller.contains("✗ contradicted"), "2 octaves are significantly fewer than 4.5: {smaller}");
    let against = cell("reach", json!({"below": -1.0}), 6, far);
    assert!(against.contains("✗ contradicted"), "{against}");
    let within = cell("reach", json!({"within": 1.0}), 6, far);
    assert!(within.contains("✗ contradicted"), "{within}");
    let unsettled = cell("reach", json!({"above": 0.0}), 3, |label, seed| {
        if label == "rotary" { up_to(2, seed) } else { up_to(2 + (seed % 2) as usize, seed) }
    });
    assert!(unsettled.contains("not settled") && unsettled.contains("n = 3"), "{unsettled}");
}

#[test]
fn reaches_that_have_no_end_are_no_numbers() {
    // seeds at which both reach everything say nothing
    let both = cell("reach", json!({"within": 1.0}), 6, |_, seed| up_to(5, seed));
    assert!(both.contains("not settled (both reach every length in most of 6 pairs, no test)"), "{both}");
    let open =
        cell("reach", json!({"above": 0.5}), 6, |label, seed| up_to(if label == "rotary" { 1 } else { 5 }, seed));
    assert!(open.contains("✓ confirmed") && open.contains(", ∞) octaves, p = "), "{open}");
}

#[test]
fn reaches_of_runs_that_have_not_learned_are_not_compared() {
    let some = cell("reach", json!({"above": 0.0}), 6, |label, seed| {
        up_to(if label == "rotary" && seed > 2 { 0 } else { 3 }, seed)
    });
    assert!(some.contains("not settled (2 of 6 runs of rotary have learned the task, no test)"), "{some}");
    let none = cell("reach", json!({"above": 0.0}), 6, |_, seed| up_to(0, seed));
    assert!(none.contains("nothing learned"), "{none}");
}

#[test]
fn the_mean_beyond_is_judged_where_a_guess_counts_0() {
    // shares of 0.98 and 0.59 at all lengths beyond are 0.96 and 0.18 of the way from a guess
    let mean = |bound| {
        cell("beyond", bound, 4, |label, seed| {
            up_to(if label == "rotary" { 1 } else { 5 }, if label == "rotary" { seed } else { seed * seed / 3 })
        })
    };
    let confirmed = mean(json!({"above": 0.5}));
    assert!(confirmed.contains("✓ confirmed") && confirmed.contains("n = 4"), "{confirmed}");
    assert!(mean(json!({"above": 0.8})).contains("✗ contradicted"), "{}", mean(json!({"above": 0.8})));
    assert!(mean(json!({"within": 0.1})).contains("✗ contradicted"));
    let guessing = cell("beyond", json!({"within": 0.1}), 4, |_, seed| [0.5 + 0.001 * seed as f64; 5]);
    assert!(guessing.contains("nothing learned"), "{guessing}");
}

#[test]
fn the_rule_is_on_the_page_of_such_a_claim() {
    let of = |measure| page(measure, &json!({"above": 0.0}), 3, far);
    assert!(of("reach").contains(RULE) && of("beyond").contains(RULE));
    let answers = of("answers");
    assert!(!answers.contains(RULE), "{answers}");
}
