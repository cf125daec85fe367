//! Keys of run files, plans and checkpoints that were renamed: what a file still has of them is refused, with the new name in
//! the hint.

pub use kerple_core::encoding::Renamed;
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

/// What was renamed beside the keys of encodings.
const OWN: [Renamed; 41] = [
    Renamed::key(DATA, "packing", "sampling"),
    Renamed::key(MODEL, "readout", "pooling"),
    Renamed::value(MODEL, "pooling", "first", "cls"),
    Renamed::value(MODEL, "pooling", "towers", "two_tower"),
    Renamed::key(MODEL, "vocab_rows", "padded_vocab_size"),
    Renamed::key(MODEL, "pad_vocab_to", "pad_vocab_multiple"),
    Renamed::value(BLOCK, "norm", "layer_without_shift", "layer_no_bias"),
    Renamed::value(BLOCK, "residual", "normed", "norm_residual"),
    Renamed::value(BLOCK, "residual", "post", "post_ln"),
    Renamed::key(BLOCK, "kv_heads", "n_kv_heads"),
    Renamed::key(BLOCK, "gated", "glu"),
    Renamed::key(BLOCK, "score_scale", "attn_scale"),
    Renamed::key(BLOCK, "scale_by_layer", "scale_attn_by_layer"),
    Renamed::value(BLOCK, "sink", "one", "off_by_one"),
    Renamed::key(BLOCK, "soft_cap", "attn_softcap"),
    Renamed::key(BLOCK, "clamp_qkv", "clip_qkv"),
    Renamed::key(BLOCK, "tied_head", "tie_embeddings"),
    Renamed::key(BLOCK, "head_bias", "lm_head_bias"),
    Renamed::key(BLOCK, "scaled_embedding", "scale_embeddings"),
    Renamed::key(LINEAR, "features", "feature_map"),
    Renamed::key(LINEAR, "count", "n_features"),
    Renamed::key(LINEAR, "redraw", "redraw_every"),
    Renamed::key(LINEAR, "independent_lengths", "independent_norms"),
    Renamed::key(TRAIN, "batch", "batch_size"),
    Renamed::key(TRAIN, "micro_batch", "micro_batch_size"),
    Renamed::key(TRAIN, "piece", "chunk_len"),
    Renamed::key(TRAIN, "min_learning_rate", "min_lr"),
    Renamed::key(TRAIN, "warmup", "warmup_ratio"),
    Renamed::key(TRAIN, "decay", "lr_schedule"),
    Renamed::key(TRAIN, "cycle", "lr_cycle_steps"),
    Renamed::key(TRAIN, "betas", "adam_betas"),
    Renamed::key(TRAIN, "eps", "adam_eps"),
    Renamed::key(TRAIN, "first_adam_step", "adam_first_step"),
    Renamed::key(TRAIN, "clip", "grad_clip"),
    Renamed::key(TRAIN, "valid_every", "eval_interval"),
    Renamed::key(TRAIN, "valid_segments", "eval_sequences"),
    Renamed::key(TRAIN, "checkpoint_every", "save_interval"),
    Renamed::key(TRAIN, "keep", "keep_last_n"),
    Renamed::key(PLAN_FILE, "facts", "data_info"),
    Renamed::key(PLAN_FILE, "origin", "init_from"),
    Renamed::key(STATE_FILE, "plan", "trajectory_hash"),
];

/// Everything that was renamed.
pub fn all() -> impl Iterator<Item = &'static Renamed> {
    OWN.iter().chain(&kerple_core::encoding::RENAMED)
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
