//! What a prepared corpus is: the contents of its `meta.json`.

use super::{META, Split};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::Path;

/// What a prepared corpus holds, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Version of the program that made it.
    pub kerple_version: String,
    /// `byte`, `hugging_face`, `bpe:N`, or `none` for bare token ids.
    pub tokenizer: String,
    /// SHA-256 of the tokenizer's definition.
    pub tokenizer_fingerprint: String,
    /// Tokens are below this.
    pub vocab_size: usize,
    /// The token that closes every document.
    pub end_of_document: Option<u32>,
    /// To learn from.
    pub train: SplitCounts,
    /// To choose by.
    pub valid: SplitCounts,
    /// To report on.
    pub test: SplitCounts,
    /// How documents came into splits.
    pub assignment: String,
    /// Documents left out because an equal one came before.
    pub duplicates: u64,
    /// Documents left out because they hold no text.
    pub empty: u64,
    /// Files left out because they are not text.
    pub skipped_files: u64,
    /// Whether the byte budget ended before the inputs did.
    pub cut_by_budget: bool,
    /// What was read.
    pub inputs: Vec<String>,
}

/// How large a split is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitCounts {
    /// Documents.
    pub documents: u64,
    /// Tokens, ends of documents included.
    pub tokens: u64,
    /// Bytes of text, in UTF-8.
    pub bytes: u64,
}

impl Summary {
    /// A corpus of bare ids, still empty.
    pub(crate) fn of_ids(vocab_size: usize) -> Summary {
        Summary {
            kerple_version: env!("CARGO_PKG_VERSION").to_owned(),
            tokenizer: "none".to_owned(),
            tokenizer_fingerprint: fingerprint(format!("ids below {vocab_size}").as_bytes()),
            vocab_size,
            end_of_document: None,
            train: SplitCounts::default(),
            valid: SplitCounts::default(),
            test: SplitCounts::default(),
            assignment: String::new(),
            duplicates: 0,
            empty: 0,
            skipped_files: 0,
            cut_by_budget: false,
            inputs: Vec::new(),
        }
    }

    /// Counts of a split.
    pub fn split(&self, split: Split) -> SplitCounts {
        match split {
            Split::Train => self.train,
            Split::Valid => self.valid,
            Split::Test => self.test,
        }
    }

    pub(crate) fn splits_mut(&mut self) -> [&mut SplitCounts; 3] {
        [&mut self.train, &mut self.valid, &mut self.test]
    }

    pub(crate) fn read(folder: &Path) -> Result<Summary> {
        let file = folder.join(META);
        let text = std::fs::read_to_string(&file).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::refused(
                format!("{}: this is not a prepared corpus, it has no {META}", folder.display()),
                "make one with `kerple prepare --input PATH --out DIR`, or give the prefix of .bin and .idx files",
            ),
            _ => Error::io(&file, "read")(error),
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Error::damaged(file.display().to_string(), error.to_string(), "this is not a corpus this version prepared")
        })
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a summary has string keys only") + "\n"
    }
}

/// SHA-256 in hexadecimal.
pub(crate) fn fingerprint(definition: &[u8]) -> String {
    Sha256::digest(definition).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:<6} {:>12} {:>14} {:>15}", "split", "documents", "tokens", "bytes")?;
        for split in Split::ALL {
            let SplitCounts { documents, tokens, bytes } = self.split(split);
            writeln!(out, "{:<6} {documents:>12} {tokens:>14} {bytes:>15}", split.name())?;
        }
        writeln!(out, "tokenizer {}, vocabulary {}", self.tokenizer, self.vocab_size)?;
        write!(out, "split {}", self.assignment)?;
        let left_out = [
            (self.duplicates, "duplicate documents"),
            (self.empty, "empty documents"),
            (self.skipped_files, "files that are not text"),
        ];
        for (count, what) in left_out.into_iter().filter(|(count, _)| *count > 0) {
            write!(out, "\nleft out {count} {what}")?;
        }
        if self.cut_by_budget {
            write!(out, "\nstopped at the byte budget")?;
        }
        Ok(())
    }
}
