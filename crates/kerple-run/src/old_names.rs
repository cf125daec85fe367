//! Names from before 0.1.0, and the refusal of run folders that have them.
//!
//! Unknown keys are ignored, so a row with an old optional key would be read without its value. Such a row is refused instead,
//! and so is a folder with a file that has another name now.

use crate::error::{Error, Result};
use crate::{
    ATTENTION_SCORES_FILE, DATA_PATH_FILE, EVALUATION_FILE, METRICS_FILE, PLAN_FILE, PROBES_FILE, SESSIONS_FILE,
};
use serde_json::Value;
use std::path::Path;

/// The old name of a file or key, and the new one.
type OldName = (&'static str, &'static str);

/// Files of a run folder that had another name.
pub const FILES: [OldName; 3] =
    [("sittings.jsonl", SESSIONS_FILE), ("data.json", DATA_PATH_FILE), ("scores.json", ATTENTION_SCORES_FILE)];

/// Keys of `plan.json` that had another name; a run file has the same keys, but for the first two.
pub const PLAN_KEYS: [OldName; 32] = [
    ("facts", "data_info"),
    ("origin", "init_from"),
    ("data.packing", "sampling"),
    ("model.readout", "pooling"),
    ("model.block.kv_heads", "n_kv_heads"),
    ("model.block.gated", "glu"),
    ("model.block.score_scale", "attn_scale"),
    ("model.block.scale_by_layer", "scale_attn_by_layer"),
    ("model.block.soft_cap", "attn_softcap"),
    ("model.block.clamp_qkv", "clip_qkv"),
    ("model.block.tied_head", "tie_embeddings"),
    ("model.block.head_bias", "lm_head_bias"),
    ("model.block.scaled_embedding", "scale_embeddings"),
    ("model.block.attention.linear.features", "feature_map"),
    ("model.block.attention.linear.count", "n_features"),
    ("model.block.attention.linear.redraw", "redraw_every"),
    ("model.block.attention.linear.independent_lengths", "independent_norms"),
    ("train.batch", "batch_size"),
    ("train.micro_batch", "micro_batch_size"),
    ("train.piece", "chunk_len"),
    ("train.min_learning_rate", "min_lr"),
    ("train.warmup", "warmup_ratio"),
    ("train.decay", "lr_schedule"),
    ("train.cycle", "lr_cycle_steps"),
    ("train.betas", "adam_betas"),
    ("train.eps", "adam_eps"),
    ("train.first_adam_step", "adam_first_step"),
    ("train.clip", "grad_clip"),
    ("train.valid_every", "eval_interval"),
    ("train.valid_segments", "eval_sequences"),
    ("train.checkpoint_every", "save_interval"),
    ("train.keep", "keep_last_n"),
];

/// Keys that had another name, by file. A dot leads into the object of that key.
pub const KEYS: [(&str, &[OldName]); 7] = [
    (PLAN_FILE, &PLAN_KEYS),
    (METRICS_FILE, &[("valid_loss", "val_loss"), ("waiting", "comm_wait_fraction"), ("encoding", "encoding_params")]),
    (
        SESSIONS_FILE,
        &[
            ("began", "started_at"),
            ("machine", "cpu"),
            ("instructions", "simd"),
            ("ranks", "world_size"),
            ("micro_batch", "micro_batch_size"),
        ],
    ),
    (
        EVALUATION_FILE,
        &[
            ("encoding", "label"),
            ("length", "eval_len"),
            ("segments", "n_windows"),
            ("position_nll", "nll_by_position"),
            ("segment_nll", "nll_by_segment"),
            ("answers", "task"),
            ("task.task", "name"),
            ("text.span", "segment_len"),
            ("text.segments", "n_segments"),
            ("made_by", "provenance"),
            ("provenance.machine", "cpu"),
            ("provenance.instructions", "simd"),
        ],
    ),
    (
        PROBES_FILE,
        &[
            ("asked", "config"),
            ("found", "result"),
            ("text.span", "segment_len"),
            ("text.segments", "n_segments"),
            ("made_by", "provenance"),
            ("provenance.machine", "cpu"),
            ("provenance.instructions", "simd"),
        ],
    ),
    (
        ATTENTION_SCORES_FILE,
        &[
            ("text.span", "segment_len"),
            ("text.segments", "n_segments"),
            ("made_by", "provenance"),
            ("provenance.machine", "cpu"),
            ("provenance.instructions", "simd"),
        ],
    ),
    ("timing.json", &[("made_by", "provenance"), ("provenance.machine", "cpu"), ("provenance.instructions", "simd")]),
];

const HINT: &str = "open it with the version that wrote it, or train the run again into another folder";

/// Refuses a run folder that has a file with an old name.
///
/// # Errors
/// [`Error::Damaged`] with the old and the new name; [`Error::Io`] of a disk that does not answer.
pub fn refuse_files(folder: &Path) -> Result<()> {
    for (old, new) in FILES {
        let path = folder.join(old);
        if crate::files::look(&path).map_err(Error::io_while("looking for", &path))?.is_some() {
            let message = format!("this run folder was written before 0.1.0; `{old}` is now `{new}`");
            return Err(Error::damaged(&path, message, HINT));
        }
    }
    Ok(())
}

/// Refuses a run folder that has an old name, as a file or in one.
///
/// # Errors
/// As [`refuse_files`], and a file that cannot be read.
pub fn refuse_folder(folder: &Path) -> Result<()> {
    refuse_files(folder)?;
    for (file, _) in KEYS {
        let path = folder.join(file);
        let read = crate::files::read(&path).map_err(Error::io_while("reading", &path));
        if let Some(text) = Error::unless_absent(read)? {
            refuse_keys(&path, &text)?;
        }
    }
    Ok(())
}

/// Refuses the text of a file, of one JSON value or one a line, that has keys with old names.
pub(crate) fn refuse_keys(path: &Path, text: &[u8]) -> Result<()> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some((_, renamed)) = KEYS.iter().find(|(file, _)| Some(*file) == name) else { return Ok(()) };
    // parsing every row twice would take twice the time: only a file with a key of an old name is parsed here
    let quoted = |key: &str| format!("\"{}\"", key.rsplit('.').next().unwrap_or(key));
    let old: Vec<String> = renamed.iter().map(|(old, _)| quoted(old)).collect();
    let is_old_key = |colon: usize| {
        let before = text[..colon].trim_ascii_end();
        before.ends_with(b"\"") && old.iter().any(|key| before.ends_with(key.as_bytes()))
    };
    if !text.iter().enumerate().any(|(at, byte)| *byte == b':' && is_old_key(at)) {
        return Ok(());
    }
    // what is no JSON is found where the rows are read
    let values = serde_json::Deserializer::from_slice(text).into_iter::<Value>().map_while(std::result::Result::ok);
    for value in values {
        let rows = value.as_array().map_or(std::slice::from_ref(&value), Vec::as_slice);
        if let Some(names) = rows.iter().map(|row| old_keys(row, renamed)).find(|names| !names.is_empty()) {
            let message = format!("this run folder was written before 0.1.0; {}", names.join(", "));
            return Err(Error::damaged(path, message, HINT));
        }
    }
    Ok(())
}

/// The old keys of a row, each with its new name.
fn old_keys(row: &Value, renamed: &[OldName]) -> Vec<String> {
    let has = |key: &str| row.pointer(&format!("/{}", key.replace('.', "/"))).is_some();
    let found = renamed.iter().filter(|(old, _)| has(old));
    found.map(|(old, new)| format!("`{old}` is now `{new}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read_json, read_rows};

    /// A row with one key, by its path.
    fn row(key: &str) -> String {
        key.rsplit('.').fold("1".to_owned(), |inner, key| format!("{{\"{key}\":{inner}}}"))
    }

    #[test]
    fn every_old_key_is_refused_with_its_new_name() {
        for (file, renamed) in KEYS {
            for (old, new) in renamed {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join(file);
                let write = |key: &str| {
                    let text = if file.ends_with('l') { row(key) } else { format!("[{}]", row(key)) };
                    std::fs::write(&path, text + "\n").unwrap();
                };
                write(old);
                let read = match file.ends_with('l') {
                    true => read_rows::<Value>(&path).map(drop),
                    false => read_json::<Value>(&path).map(drop),
                };
                for refused in [read, refuse_folder(folder.path())] {
                    let error = refused.unwrap_err();
                    assert!(error.to_string().contains(&format!("`{old}` is now `{new}`")), "{file}: {error}");
                    assert!(error.to_string().contains("written before 0.1.0") && error.hint().contains("train"));
                }
                let above = old.rsplit_once('.').map_or(String::new(), |(above, _)| format!("{above}."));
                write(&format!("{above}{new}"));
                refuse_folder(folder.path()).unwrap();
            }
        }
    }

    #[test]
    fn every_old_file_is_refused_with_its_new_name() {
        for (old, new) in FILES {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(new), "").unwrap();
            refuse_files(folder.path()).unwrap();
            std::fs::write(folder.path().join(old), "").unwrap();
            let error = refuse_files(folder.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("{old}: ")) && error.contains(&format!("is now `{new}`")), "{error}");
        }
    }

    #[test]
    fn an_old_row_after_a_new_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EVALUATION_FILE);
        std::fs::write(&path, "{\"label\":\"alibi\"}\n{\"length\" : 5}\n").unwrap();
        for refused in [read_rows::<Value>(&path).map(drop), refuse_folder(folder.path())] {
            assert!(refused.unwrap_err().to_string().contains("`length` is now `eval_len`"));
        }
    }

    #[test]
    fn values_that_are_old_names_are_no_keys() {
        let row = serde_json::json!({"label": "answers", "protocol": "segments", "text": {"checksum": "span"}});
        refuse_keys(Path::new(EVALUATION_FILE), row.to_string().as_bytes()).unwrap();
        refuse_keys(Path::new("kernels.json"), br#"[{"encoding":1}]"#).unwrap();
    }
}
