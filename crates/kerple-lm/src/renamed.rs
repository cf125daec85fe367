//! Keys of run files, plans and checkpoints that were renamed: what a file still has of them is refused, with the new name in
//! the hint.

pub use kerple_core::encoding::RenamedKey;
use kerple_run::old_names::PLAN_KEYS;
use serde_json::{Map, Value};

/// A run file, or what `--set` makes of one.
pub const RUN_FILE: &str = "run file";
/// The file of a plan.
pub const PLAN_FILE: &str = kerple_run::PLAN_FILE;
/// The file of a checkpoint that says where its run stands.
pub const STATE_FILE: &str = "state.json";

const DATA: &str = "data";
const TRAIN: &str = "train";
const MODEL: &str = "model";
const BLOCK: &str = "model.block";
const LINEAR: &str = "model.block.attention.linear";

/// What was renamed beside the keys of encodings and those that a plan has too, [`PLAN_KEYS`].
const OWN: [RenamedKey; 9] = [
    RenamedKey::value(MODEL, "pooling", "first", "cls"),
    RenamedKey::value(MODEL, "pooling", "towers", "two_tower"),
    RenamedKey::key(MODEL, "vocab_rows", "padded_vocab_size"),
    RenamedKey::key(MODEL, "pad_vocab_to", "pad_vocab_multiple"),
    RenamedKey::value(BLOCK, "norm", "layer_without_shift", "layer_no_bias"),
    RenamedKey::value(BLOCK, "residual", "normed", "norm_residual"),
    RenamedKey::value(BLOCK, "residual", "post", "post_ln"),
    RenamedKey::value(BLOCK, "sink", "one", "off_by_one"),
    RenamedKey::key(STATE_FILE, "plan", "trajectory_hash"),
];

/// Everything that was renamed.
pub fn all() -> impl Iterator<Item = RenamedKey> {
    let plan = PLAN_KEYS.into_iter().map(|(old, new)| {
        let (table, key) = old.rsplit_once('.').unwrap_or((PLAN_FILE, old));
        RenamedKey::key(table, key, new)
    });
    plan.chain(OWN).chain(kerple_core::encoding::RENAMED)
}

/// The new names of what the content of a file still calls otherwise; `None` where it has no old name.
pub fn hint(file: &str, content: &Value) -> Option<String> {
    let mut found: Vec<String> = Vec::new();
    for (table, keys) in tables(file, content) {
        for renamed in all().filter(|renamed| renamed.is_in(table, keys)) {
            let line = renamed.to_string();
            if !found.contains(&line) {
                found.push(line);
            }
        }
    }
    (!found.is_empty()).then(|| found.join(", "))
}

/// The tables of a file with the names that the list has for them.
fn tables<'a>(file: &'a str, content: &'a Value) -> Vec<(&'a str, &'a Map<String, Value>)> {
    let model = &content[MODEL];
    let layers = || model["layers"].as_object().into_iter().flat_map(|kinds| kinds.values());
    let mut all = vec![
        (file, content),
        (DATA, &content[DATA]),
        (TRAIN, &content[TRAIN]),
        (MODEL, model),
        (BLOCK, &model["block"]),
        (LINEAR, &model["block"]["attention"]["linear"]),
    ];
    all.extend(layers().map(|kind| (LINEAR, &kind["attention"]["linear"])));
    for encoding in std::iter::once(&content["encoding"]).chain(layers().map(|kind| &kind["encoding"])) {
        all.push((kerple_core::encoding::renamed::SHARED, encoding));
        // that of dape has keys of its own kind
        let methods = [encoding, &encoding["base"]];
        all.extend(methods.map(|method| (method["kind"].as_str().unwrap_or_default(), method)));
    }
    all.into_iter().filter_map(|(table, keys)| Some((table, keys.as_object()?))).collect()
}
