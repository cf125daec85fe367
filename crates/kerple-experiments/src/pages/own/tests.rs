use crate::claim::Claim;
use crate::manifest::runs_folder;
use crate::pages::reader::ReproductionFolder;
use crate::pages::{PAGE_FOLDER, markdown};
use kerple_run::{EVALUATION_FILE, MANIFEST_FILE, PLAN_FILE, write_json};
use serde_json::{Value, json};

/// Perplexities at 64 and 256 of a run.
type Perplexities = [f64; 2];

/// A folder with two arms of three seeds, trained at 64 and evaluated at 64 and 256, and one claim; runs without perplexities
/// are only planned.
fn folder(claim: &Value, perplexity: impl Fn(&str, u64) -> Option<Perplexities>) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let mut runs = Vec::new();
    for (variant, seed) in ["", "decayed"].into_iter().flat_map(|variant| [1, 2, 3].map(|seed| (variant, seed))) {
        let path = format!("{}/alibi/seed-{seed}", runs_folder("web", variant));
        runs.push(json!({"folder": path, "corpus": "web", "variant": variant, "label": "alibi", "seed": seed,
            "train_len": 64, "evaluate": ["lengths"], "serves": ["values"]}));
        let Some(perplexities) = perplexity(variant, seed) else { continue };
        let folder = root.path().join(&path);
        std::fs::create_dir_all(&folder).unwrap();
        let plan = json!({"label": "alibi", "seed": seed, "train_len": 64, "steps": 9, "hash": path,
            "encoding": {"kind": "alibi"}});
        write_json(&folder.join(PLAN_FILE), &plan).unwrap();
        let row = |(length, perplexity): (u64, f64)| {
            let text = json!({"checksum": "c", "segment_len": 256, "n_segments": 2, "seed": seed});
            let row = json!({"label": "alibi", "seed": seed, "train_len": 64, "eval_len": length, "protocol": "nonoverlapping",
                "split": "test", "step": 9, "text": text, "n_windows": 2, "tokens": 99, "nll": perplexity.ln(),
                "perplexity": perplexity, "seconds": 1.0});
            format!("{row}\n")
        };
        let rows = [64, 256].into_iter().zip(perplexities).map(row);
        std::fs::write(folder.join(EVALUATION_FILE), rows.collect::<String>()).unwrap();
    }
    let manifest = json!({"paper": "decay", "scale": "small", "title": "A question", "about": "", "runs": runs,
        "claims": [claim], "corpora": [{"name": "web", "title": "Web pages", "texts": "", "tokenizer": "byte"}],
        "evaluations": {"lengths": {"protocol": "nonoverlapping", "span": 256, "segments": 2, "lengths": [64, 256]}}});
    write_json(&root.path().join(MANIFEST_FILE), &manifest).unwrap();
    root
}

fn rises(bound: f64) -> Value {
    json!({"text": "it rises", "measure": "change", "evaluation": "lengths", "from": 64, "lengths": [256],
        "treatment": {"encoding": "alibi", "variant": "decayed"}, "baseline": {"encoding": "alibi"}, "bound": {"above": bound}})
}

/// Twice as high as without, and rising by 10 % more, a little other for each seed.
fn perplexity(variant: &str, seed: u64) -> Perplexities {
    let noise = 1.0 + 0.002 * seed as f64;
    if variant.is_empty() { [10.0, 9.5] } else { [20.0, 20.9 * noise] }
}

fn line(root: &tempfile::TempDir, start: &str) -> String {
    let page = markdown(root.path()).unwrap();
    page.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}\n{page}")).trim_end().to_owned()
}

#[test]
fn a_claim_is_judged_as_it_was_written() {
    let verdict = |claim: &Value| line(&folder(claim, |variant, seed| Some(perplexity(variant, seed))), "| it rises |");
    let confirmed = verdict(&rises(0.01));
    assert!(confirmed.contains("confirmed") && confirmed.contains("at 256: 1.104 "), "{confirmed}");
    assert!(verdict(&rises(0.2)).contains("contradicted"), "10 % is less than what counts");
    // the level is another thing than the change
    let mut level = rises(0.6);
    level.as_object_mut().unwrap().remove("from");
    level["measure"] = "level".into();
    assert!(verdict(&level).contains("confirmed** (at 256: 2.209 "), "{}", verdict(&level));
    // its own change, beside nothing
    let mut own = rises(0.01);
    own.as_object_mut().unwrap().remove("baseline");
    assert!(verdict(&own).contains("at 256: 1.049 "), "{}", verdict(&own));
}

/// Without the keys beyond a window, and with all keys: both under the same document mask.
#[test]
fn a_window_is_compared_with_the_same_mask() {
    let root = folder(&rises(0.01), |variant, seed| Some(perplexity(variant, seed)));
    let path = root.path().join(MANIFEST_FILE);
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let lengths = manifest["evaluations"]["lengths"].clone();
    let evaluation = |documents: &str, window: Option<u64>| {
        let mut of = lengths.clone();
        (of["documents"], of["window"]) = (documents.into(), window.into());
        of
    };
    for (name, of) in [
        ("joined", evaluation("joined", None)),
        ("separate", evaluation("separate", None)),
        ("window", evaluation("separate", Some(64))),
    ] {
        manifest["evaluations"][name] = of;
    }
    write_json(&path, &manifest).unwrap();
    let all = ReproductionFolder::read(root.path()).unwrap();
    let windowed = &all.manifest.evaluations["window"];
    assert_eq!(all.with_all_keys(windowed).map(|(name, _)| name), Some("separate"));
}

#[test]
fn what_was_not_run_is_said() {
    let root = folder(&rises(0.01), |_, _| None);
    assert_eq!(line(&root, "| it rises |"), "| it rises | – |");
    assert!(line(&root, "| ALiBi |").contains("0 of 3 seeds"));
    let two = folder(&rises(0.01), |variant, seed| (seed < 3).then(|| perplexity(variant, seed)));
    assert!(line(&two, "| it rises |").contains("not settled (at 256: 1.103 times, n = 2, no test)"));
    assert!(line(&two, "| ALiBi |").contains("2 of 3 seeds"));
}

#[test]
fn a_claim_is_written_and_read_as_it_is() {
    let claim: Claim = serde_json::from_value(rises(0.01)).unwrap();
    assert_eq!(serde_json::from_value::<Claim>(serde_json::to_value(&claim).unwrap()).unwrap(), claim);
    let mut unknown = rises(0.01);
    unknown["margin"] = 3.into();
    assert!(serde_json::from_value::<Claim>(unknown).is_err());
}

#[test]
fn programs_read_the_same_numbers() {
    let root = folder(&rises(0.01), |variant, seed| (seed < 3).then(|| perplexity(variant, seed)));
    let cells = values_of(&root);
    assert_eq!(cells.len(), 4, "two variants at two lengths");
    let far = &cells[3];
    assert_eq!((far["variant"].as_str(), far["eval_len"].as_u64()), (Some("decayed"), Some(256)));
    assert_eq!((far["n"].as_u64(), far["planned"].as_u64(), far["multiple"].as_f64()), (Some(2), Some(3), Some(4.0)));
    let mean = 20.9 * 1.003;
    assert!((far["perplexity"].as_f64().unwrap() - mean).abs() < 1e-9, "{far}");
}

fn values_of(root: &tempfile::TempDir) -> Vec<Value> {
    crate::pages::write(root.path(), &[], &[]).unwrap();
    kerple_run::read_json(&root.path().join(PAGE_FOLDER).join("cells.json")).unwrap()
}

#[test]
fn changes_are_drawn_of_what_was_run() {
    let lines = |perplexity: &dyn Fn(&str, u64) -> Option<Perplexities>| {
        let root = folder(&rises(0.01), perplexity);
        crate::pages::write(root.path(), &[], &[]).unwrap();
        let file = root.path().join(PAGE_FOLDER).join("figures/change.svg");
        file.exists().then(|| std::fs::read_to_string(file).unwrap())
    };
    assert_eq!(lines(&|_, _| None), None);
    let one = lines(&|variant, seed| variant.is_empty().then(|| perplexity(variant, seed))).unwrap();
    assert!(one.contains("Web pages") && !one.contains("decayed"), "{one}");
    let both = lines(&|variant, seed| Some(perplexity(variant, seed))).unwrap();
    assert!(both.contains("ALiBi, 256: 0.950<") && both.contains("ALiBi, 256: 1.049 \u{b1} 0.005<"), "{both}");
}
