//! Models of other programs through the command: imported, looked at, evaluated, and gone on with under other positions.

use crate::common::{Place, document};
use serde_json::Value;

fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn reference(name: &str) -> String {
    document("reference/interchange").join(name).canonicalize().unwrap().to_str().unwrap().to_owned()
}

/// `ids.bin` and `ids.idx`: documents of tokens below 128, as GPT-NeoX stores them.
fn make_ids(place: &Place) {
    let (documents, len) = (40u64, 200u64);
    let mut state = 1u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u16 % 128
    };
    let tokens: Vec<u8> = (0..documents * len).flat_map(|_| draw().to_le_bytes()).collect();
    place.write("ids.bin", tokens);
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1u64.to_le_bytes());
    index.push(8);
    index.extend(documents.to_le_bytes());
    index.extend((documents + 1).to_le_bytes());
    (0..documents).for_each(|_| index.extend((len as i32).to_le_bytes()));
    (0..documents).for_each(|at| index.extend((at * len * 2).to_le_bytes()));
    (0..=documents).for_each(|at| index.extend(at.to_le_bytes()));
    place.write("ids.idx", index);
}

#[test]
fn an_imported_model_is_a_run() {
    let place = Place::new();
    make_ids(&place);
    for name in ["neox_sequential_tied_bf16", "kerple_weight_neox_one_file"] {
        let run = format!("runs/{name}");
        let made = json(&place.ok(&["import", &reference(name), "--out", &run, "--json"]));
        assert!(made[0]["parameters"].as_u64().unwrap() > 10_000, "{made:?}");
        assert!(place.ok(&["verify", &run]).contains("step 0, weights"));
        let text = ["--data", "ids", "--split", "valid", "--n-segments", "4", "--segment-len", "64"];
        let rows = json(&place.ok(&[&["eval", &run, "--lengths", "16,64", "--json"], &text[..]].concat()));
        assert_eq!(rows.iter().map(|row| row["eval_len"].as_u64().unwrap()).collect::<Vec<_>>(), [16, 64]);
        // random weights that were made sharp, on random tokens: worse than knowing nothing
        assert!(rows.iter().all(|row| row["nll"].as_f64().unwrap() > 128f64.ln() && row["step"] == 0), "{rows:?}");
        assert!(place.ok(&["verify", &run]).contains("evaluation.jsonl: 2 rows"));
        let refused = place.run(&["sample", &run]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("has no tokenizer"));
        let refused = place.run(&["eval", &run, "--lengths", "16"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("its model was imported"));
        let refused = place.run(&["import", &reference(name), "--out", &run]);
        assert_eq!(refused.status.code(), Some(2));
    }
    // one has a table over distances
    assert!(place.ok(&["kernel", "plot", "runs/kerple_weight_neox_one_file", "--length", "16"]).lines().count() > 5);
    place.ok(&["report", "runs", "--out", "report"]);
    assert!(place.read("report/report.md").contains("rotary"));
}

#[test]
fn training_goes_on_from_an_imported_model() {
    let place = Place::new();
    make_ids(&place);
    place.ok(&["import", &reference("neox_sequential_tied_bf16"), "--out", "model"]);
    let steps = [
        "--set",
        "train.steps=3",
        "--set",
        "train.train_len=16",
        "--set",
        "train.batch_size=2",
        "--set",
        "data.path=ids",
    ];
    let from = |out: &str, more: &[&str]| {
        let all = [&["train", "--init-from", "model", "--out", out, "--json"], &steps[..], more].concat();
        json(&place.ok(&all))[0].clone()
    };
    assert_eq!(from("same", &[])["step"], 3);
    let kernel = from("kernel", &["--set", "encoding.kind=kerple_log"]);
    assert_eq!((&kernel["finished"], &kernel["step"]), (&Value::from(true), &Value::from(3)));
    let plan: Value = serde_json::from_str(&place.read("kernel/plan.json")).unwrap();
    let init_from = &plan["init_from"];
    assert_eq!(
        [&init_from["kind"], &init_from["family"], &init_from["step"]],
        [&Value::from("run"), &"gpt_neox".into(), &0.into()]
    );
    let before: Value = serde_json::from_str(&place.read("model/plan.json")).unwrap();
    assert_eq!((&init_from["plan"], &init_from["weights"]), (&before["hash"], &before["init_from"]["weights"]));
    // the same command again has nothing left to do
    assert_eq!(from("kernel", &["--set", "encoding.kind=kerple_log"])["loss"], Value::Null);
    assert!(place.ok(&["verify", "kernel"]).contains("step 3, weights and optimizer state"));
}

/// A short run with rotary positions.
fn short(place: &Place) {
    place.make_data();
    place.ok(&["train", "--config", "run.toml", "--set", "encoding.kind=rotary", "--out", "short"]);
}

fn perplexities(place: &Place, run: &str, more: &[&str]) -> Vec<f64> {
    let all =
        [&["eval", run, "--lengths", "16,64", "--n-segments", "8", "--segment-len", "256", "--json"], more].concat();
    json(&place.ok(&all)).iter().map(|row| row["perplexity"].as_f64().unwrap()).collect()
}

#[test]
fn a_run_that_begins_with_anothers_weights_is_that_model() {
    let place = Place::new();
    short(&place);
    let known = perplexities(&place, "short", &[]);
    place.ok(&["train", "--init-from", "short", "--out", "same", "--set", "train.steps=0"]);
    assert_eq!(perplexities(&place, "same", &[]), known, "not trained, so the same to the bit");
    // stretched by the length it was trained at, as the evaluation stretches it
    place.ok(&[
        "train",
        "--init-from",
        "short",
        "--out",
        "yarn",
        "--set",
        "encoding.scaling=yarn",
        "--set",
        "train.train_len=64",
        "--set",
        "train.steps=0",
    ]);
    let scaled = perplexities(&place, "short", &["--rope-scaling", "yarn"]);
    assert_eq!(perplexities(&place, "yarn", &[]), scaled);
    assert_ne!(scaled[1], known[1]);
    let plan: Value = serde_json::from_str(&place.read("yarn/plan.json")).unwrap();
    assert_eq!(plan["encoding"]["scaling"]["original_len"], 16);
    // without rotation it is another model, which learns
    place.ok(&[
        "train",
        "--init-from",
        "short",
        "--out",
        "dropped",
        "--set",
        "encoding.kind=none",
        "--set",
        "train.steps=0",
    ]);
    let dropped = perplexities(&place, "dropped", &[]);
    assert_ne!(dropped, known);
    place.ok(&[
        "train",
        "--init-from",
        "short",
        "--out",
        "learnt",
        "--set",
        "encoding.kind=none",
        "--set",
        "train.steps=30",
    ]);
    assert!(perplexities(&place, "learnt", &[])[0] < dropped[0]);
}

#[test]
fn what_a_run_cannot_begin_with_is_refused_and_leaves_nothing() {
    let place = Place::new();
    short(&place);
    place.write("other.toml", "[model]\nn_layers = 2\n");
    for (arguments, says) in [
        (&["--set", "model.n_layers=2"][..], "model.n_layers = 2 (was 1)"),
        (&["--set", "model.d_hidden=32"], "model.d_hidden = 32 (was 64)"),
        (&["--set", "model.block.tie_embeddings=true"], "model.block.tie_embeddings = true (was false)"),
        (&["--config", "other.toml"], "--init-from takes the model from the other run"),
        (&["--set", "data.task=parity_check"], "data.task is"),
        (&["--set", "encoding.kind=rotarx"], "rotarx"),
    ] {
        let output = place.run(&[&["train", "--init-from", "short", "--out", "new"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(says), "{arguments:?}: {stderr}");
        assert!(!place.path("new").exists(), "{arguments:?}");
    }
    let output = place.run(&["train", "--init-from", "data", "--out", "new"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a run folder"));
}
