//! Key tokens in experiments: evaluators are runs of the experiment, perhaps of another shard, and claims are judged on what they
//! choose.

use super::*;
use std::fmt::Write;

/// Three seeds of two arms, and two runs that choose key tokens.
const KEYS: &str = r#"
title = "Key tokens"
about = "A test."
seed = 1
[model]
n_layers = 1
n_heads = 1
head_dim = 8
[train]
train_len = 16
batch_size = 2
steps = 2
learning_rate = 1e-2
log_every = 1
eval_interval = 0
save_interval = 2
keep_last_n = 1
[[corpus]]
name = "web"
title = "Web pages"
texts = "web"
tokenizer = "byte"
split = [0.4, 0.2, 0.4]
[evaluation.keys]
protocol = "key:0:-9:8:8"
segments = 8
span = 64
lengths = [16, 64]
evaluators = [{ encoding = "rotary", seed = 7 }, { encoding = "none", seed = 8 }]
[[claim]]
text = "alike on key tokens"
measure = "key"
evaluation = "keys"
lengths = [64]
treatment = { encoding = "kerple_log" }
baseline = { encoding = "alibi" }
bound = { within = 0.5 }
[[part]]
serves = ["values"]
encodings = ["rotary"]
first_seed = 7
seeds = 1
[[part]]
serves = ["values"]
encodings = ["none"]
first_seed = 8
seeds = 1
[[part]]
serves = ["claims"]
stage = 1
encodings = ["kerple_log", "alibi"]
seeds = 3
evaluate = ["keys"]
"#;

fn reproduction(text: &str, root: &Path, only: &[String]) -> Reproduction {
    let experiment = Experiment::parse(text, "here.toml").unwrap();
    Reproduction {
        paper: "length".to_owned(),
        scale: "smoke".to_owned(),
        planned: planned(&experiment, only),
        experiment,
        data: Some(root.join("texts")),
        out: root.join("out"),
        only: only.to_vec(),
        runtime: Runtime::cpu(None),
    }
}

/// Documents of words that come back, so that some tokens need what was long before.
fn write_texts(root: &Path) {
    let folder = root.join("texts/web");
    std::fs::create_dir_all(&folder).unwrap();
    for document in 0..24 {
        let mut text = String::new();
        for word in 0..60 {
            let _ = write!(text, "{:03} ", (document * 31 + word * word * 7) % 977);
        }
        std::fs::write(folder.join(format!("{document}.txt")), text).unwrap();
    }
}

#[test]
fn runs_of_other_shards_choose_key_tokens() {
    let root = tempfile::tempdir().unwrap();
    write_texts(root.path());
    let all = reproduction(KEYS, root.path(), &[]);
    for (_, options) in all.to_prepare(&Arc::default()).unwrap() {
        kerple_data::prepare(&options, &mut |_| ()).unwrap();
    }
    all.write_manifest().unwrap();
    assert_eq!(all.planned.len(), 8);
    let run = |shard: &str| all.run(shard.parse().unwrap(), &AtomicBool::new(false), &mut |_| ());
    // the first two runs choose the tokens of the others
    let error = run("1/2").unwrap_err();
    assert!(
        error.to_string().contains("is not evaluated on key tokens: evaluator rotary, seed 7 is not trained yet"),
        "{error}"
    );
    assert!(error.hint().contains("another shard may train them"), "{}", error.hint());
    assert!(run("0/2").unwrap() && run("1/2").unwrap());

    let read = |label: &str, seed: u64| {
        kerple_report::Run::read(&root.path().join(format!("out/web/{label}/seed-{seed}"))).unwrap()
    };
    let manifest = Manifest::read(&root.path().join("out")).unwrap();
    for (label, seed) in ["kerple_log", "alibi"].into_iter().flat_map(|label| [1, 2, 3].map(|seed| (label, seed))) {
        let run = read(label, seed);
        assert!(
            run.evaluations.len() == 2
                && run.evaluations.iter().all(|row| manifest.evaluations["keys"].is_of(&run, row))
        );
        let keys = run.evaluations[0].key_tokens.as_ref().unwrap();
        let evaluators: Vec<(&str, u64)> = keys.evaluators.iter().map(|by| (by.label.as_str(), by.seed)).collect();
        assert_eq!(evaluators, [("rotary", 7), ("none", 8)]);
        assert_eq!(Some(keys.evaluators[0].plan.as_str()), read("rotary", 7).plan_hash());
        let other = read("alibi", seed);
        assert_eq!(other.evaluations[0].tokens, run.evaluations[0].tokens, "the same keys for every arm");
    }
    // nothing is left to do, and nothing is evaluated twice
    assert!(run("0/1").unwrap());
    assert_eq!(read("alibi", 2).evaluations.len(), 2);

    let out = root.path().join("out");
    crate::pages::write(&out, &[], &[]).unwrap();
    let page = std::fs::read_to_string(out.join("paper/report.md")).unwrap();
    for part in [
        "Key tokens of Web pages (keys): alpha 0, beta -9, a short context of 8 tokens in windows that move by 8",
        "% of those with enough context. Evaluators: rotary, seed 7 (step 2, plan ",
        "Web pages: perplexity of key tokens, chosen by `rotary`, seed 7; `none`, seed 8",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    let claim = page.lines().find(|line| line.starts_with("| alike on key tokens")).unwrap();
    assert!(claim.contains("confirmed") && claim.contains("n = 3"), "{claim}");

    // an export has what its pages need: the plans of the evaluators
    let kept = root.path().join("kept");
    assert_eq!(export(&out, &kept).unwrap(), 6);
    crate::pages::write(&kept, &[], &[]).unwrap();
    let page = std::fs::read_to_string(kept.join("paper/report.md")).unwrap();
    assert!(page.lines().any(|line| line.starts_with("| alike on key tokens") && line.contains("confirmed")), "{page}");

    // rows of other key tokens are never compared
    let place = out.join("web/rotary/seed-7/plan.json");
    let plan = std::fs::read_to_string(&place).unwrap();
    let hash = read("rotary", 7).plan_hash().unwrap().to_owned();
    std::fs::write(&place, plan.replace(&hash, "0123456789abcdef")).unwrap();
    let page = crate::pages::markdown(&out).unwrap();
    assert!(page.contains("rows over other texts, left out: 12"), "{page}");
}

#[test]
fn evaluators_are_planned_with_what_they_choose_tokens_for() {
    let experiment = Experiment::parse(KEYS, "here.toml").unwrap();
    let folders = |only: &str| -> Vec<String> {
        let planned = planned(&experiment, &[only.to_owned()]);
        planned.iter().map(|planned| planned.run.folder.display().to_string()).collect()
    };
    assert_eq!(folders("claims")[..2], ["web/rotary/seed-7", "web/none/seed-8"]);
    assert_eq!((folders("claims").len(), folders("values").len()), (8, 2));
}

#[test]
fn key_tokens_that_no_independent_run_chooses_are_refused() {
    let (evaluators, rotary) = (
        "evaluators = [{ encoding = \"rotary\", seed = 7 }, { encoding = \"none\", seed = 8 }]",
        "{ encoding = \"rotary\", seed = 7 }",
    );
    for (from, to, part) in [
        (evaluators, "", "evaluation `keys`, evaluators: key:0:-9:8:8 needs runs that choose the key tokens"),
        ("key:0:-9:8:8", "last:8", "evaluators: last:8 scores all tokens of its windows"),
        (rotary, "{ encoding = \"rotary\", seed = 6 }", "`rotary`, seed 6 on `web` does not occur in a [[part]]"),
        (rotary, "{ encoding = \"none\", seed = 8 }", "`none`, seed 8 is given twice"),
        (rotary, "{ encoding = \"alibi\", seed = 2 }", "`alibi`, seed 2 has the encoding and seed of an evaluated run"),
        ("segments = 8", "segments = 8\npositions = true", "scores few tokens, whose positions are not comparable"),
        (
            "measure = \"key\"",
            "measure = \"level\"",
            "`keys`, key:0:-9:8:8, scores key tokens, which the measure `key` compares",
        ),
        // claims need evaluators that share neither the encoding nor a seed with the arms
        ("first_seed = 8\nseeds = 1", "first_seed = 3\nseeds = 6", "planned"),
        ("encodings = [\"none\"]\nfirst_seed = 8", "encodings = [\"none\", \"alibi\"]\nfirst_seed = 8", "planned"),
    ] {
        let text = KEYS.replacen(from, to, 1);
        assert_ne!(text, KEYS, "{from}");
        match Experiment::parse(&text, "here.toml") {
            Err(error) => assert!(error.to_string().contains(part), "{part}: {error}"),
            Ok(_) => assert_eq!(part, "planned", "{to}"),
        }
    }
    for (from, to, part) in [
        (
            "{ encoding = \"none\", seed = 8 }",
            "{ encoding = \"none\", seed = 3 }",
            "the evaluator `none`, seed 3 has a seed of its arms",
        ),
        (
            "{ encoding = \"none\", seed = 8 }",
            "{ encoding = \"alibi\", seed = 8 }",
            "the evaluator `alibi`, seed 8 has the encoding of an arm",
        ),
    ] {
        let text = KEYS.replacen(from, to, 1).replacen(
            "encodings = [\"none\"]\nfirst_seed = 8\nseeds = 1",
            "encodings = [\"none\", \"alibi\"]\nfirst_seed = 3\nseeds = 6\nvariant = \"\"",
            1,
        );
        let text = if to.contains("alibi") {
            text.replacen("first_seed = 3\nseeds = 6", "first_seed = 4\nseeds = 6", 1)
        } else {
            text
        };
        let error = Experiment::parse(&text, "here.toml").unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    let of_task = KEYS.replacen("texts = \"web\"\ntokenizer = \"byte\"", "task = \"passkey\"", 1);
    let error = Experiment::parse(&of_task, "here.toml").unwrap_err().to_string();
    assert!(error.contains("evaluators: runs of `web` learn a task"), "{error}");
    // two sets of key tokens are never compared
    let other = KEYS.replacen("[[claim]]", "[evaluation.others]\nprotocol = \"key:1:-9:8:8\"\nsegments = 8\nspan = 64\nlengths = [16, 64]\nevaluators = [{ encoding = \"rotary\", seed = 7 }]\n[[claim]]", 1)
        .replacen("baseline = { encoding = \"alibi\" }", "baseline = { encoding = \"alibi\", evaluation = \"others\" }", 1)
        .replacen("evaluate = [\"keys\"]", "evaluate = [\"keys\", \"others\"]", 1);
    let error = Experiment::parse(&other, "here.toml").unwrap_err().to_string();
    assert!(error.contains("its arms are evaluated on different key tokens"), "{error}");
}
