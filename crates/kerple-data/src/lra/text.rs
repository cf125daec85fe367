//! Texts with a class, byte by byte.
//!
//! Published: IMDb's reviews, 25000 for training and 25000 for validation *and* test, cut at 1000
//! bytes (Liutkus et al. 2021) or 4000 (Tay et al. 2021). Accepted are IMDb's folders
//! (`train/pos/*.txt` and so on; positive is 1) or `{train,valid,test}.jsonl`, plain or compressed,
//! with `text` and `label`. Any other dataset in this form is a stand-in.

use super::check_stop;
use super::store::{self, Sequences, Store};
use crate::error::{Error, Result};
use crate::examples::{Examples, TaskInfo};
use crate::file::{filled_lines, is_folder, is_hidden, without_mark};
use crate::json;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// More text is not read: it is held in memory.
const LONGEST_FILE: u64 = 1 << 31;

/// IMDb has two splits.
const VALIDATED_ON_TEST: &str = "these reviews have no validation split, so the test split serves \
                                 for validation, as published; do not choose anything by that loss";

/// Keys of `task = { kind = "lra_text" }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LraText {
    /// Labels are below this.
    pub classes: usize,
}

impl Default for LraText {
    fn default() -> LraText {
        LraText { classes: 2 }
    }
}

#[derive(Deserialize)]
struct LabelledText {
    text: String,
    label: u32,
}

impl LraText {
    pub(super) fn open(&self, facts: TaskInfo, path: Option<&Path>, stop: &AtomicBool) -> Result<Box<dyn Examples>> {
        let hint =
            "set `data.path` to the folder of IMDb's reviews, or to one with train.jsonl, valid.jsonl and test.jsonl";
        let path = path.ok_or_else(|| Error::refused("lra_text needs `data.path`", hint))?;
        super::check_classes(self.classes)?;
        let are_reviews = is_folder(&path.join("train").join("pos"))?;
        let splits = if are_reviews {
            [
                reviews(&path.join("train"), stop)?,
                reviews(&path.join("test"), stop)?,
                reviews(&path.join("test"), stop)?,
            ]
        } else {
            let read = |name: &str| -> Result<Sequences> {
                check_stop(stop)?;
                let (file, compression) = store::require(path, &[name], hint)?;
                lines(&file, &store::read(&file, compression, LONGEST_FILE)?, self.classes)
            };
            [read("train.jsonl")?, read("valid.jsonl")?, read("test.jsonl")?]
        };
        let remark = are_reviews.then_some(VALIDATED_ON_TEST);
        Ok(Box::new(Store::new(facts, path, splits, 1)?.remarking(remark)))
    }
}

fn lines(path: &Path, bytes: &[u8], classes: usize) -> Result<Sequences> {
    let mut found = Sequences::default();
    for (number, line) in filled_lines(bytes) {
        let LabelledText { text, label } = json::parse(line).map_err(|error| {
            let message = error.to_string();
            let cause = message.split(" at line ").next().unwrap_or_default();
            let hint = "every line must be a JSON object with a `text` and a `label`, a number from 0 on";
            Error::damaged_at(path, format!(", line {number}"), cause, hint)
        })?;
        let place = || format!(", line {number}");
        store::check_label(path, place, label, classes)?;
        found
            .push(text.bytes(), label)
            .map_err(|message| Error::damaged_at(path, place(), message, "remove the line"))?;
    }
    Ok(found)
}

/// The reviews in `neg` and `pos`, by name; hidden files are none. Lines end with `\n` on every system.
fn reviews(folder: &Path, stop: &AtomicBool) -> Result<Sequences> {
    let mut found = Sequences::default();
    for (name, label) in [("neg", 0), ("pos", 1)] {
        let folder = folder.join(name);
        let entries = std::fs::read_dir(&folder).map_err(Error::io(&folder, "read"))?;
        let mut files: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| entry.path()).map_err(Error::io(&folder, "read")))
            .collect::<Result<_>>()?;
        files.retain(|path| !is_hidden(path));
        files.sort();
        if let Some(other) = files.iter().find(|path| path.extension().is_none_or(|end| end != "txt")) {
            return Err(Error::damaged(
                other,
                "it is not a .txt file, as reviews are",
                "move it out of the folder, or decompress it",
            ));
        }
        for file in files {
            check_stop(stop)?;
            let review = kerple_run::files::read(&file).map_err(Error::io(&file, "read"))?;
            found
                .push(with_line_feeds(without_mark(&review)), label)
                .map_err(|message| Error::damaged(&file, message, "remove the file"))?;
        }
    }
    Ok(found)
}

/// A text with `\n` for `\r\n`.
fn with_line_feeds(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let next = text.iter().skip(1).map(Some).chain([None]);
    text.iter().zip(next).filter(|(byte, next)| !(**byte == b'\r' && *next == Some(&b'\n'))).map(|(byte, _)| *byte)
}
