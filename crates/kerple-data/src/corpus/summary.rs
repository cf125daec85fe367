//! The summary of a prepared corpus: the contents of its `meta.json`.

use super::META;
use super::shard::{AGAIN, ShardChecksums};
use crate::error::{Error, Result};
use crate::file::read_text;
use crate::hash::{fingerprint, hex};
use crate::split::Split;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

/// The format of a prepared folder. 1 had no checksums of what it holds.
const FORMAT: u64 = 2;

/// A longer `meta.json` is not one.
const LONGEST: u64 = 1 << 26;

/// The content of a prepared corpus, and its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusSummary {
    /// Version of the folder's format.
    pub format: u64,
    /// Version of the program that made it.
    pub kerple_version: String,
    /// Identifies everything that models see: the tokens of the three splits, where documents end,
    /// the vocabulary and the tokenizer. SHA-256, in hexadecimal.
    pub content: String,
    /// `byte`, `hugging_face`, `bpe:N`, `remi`, `groove`, or `none` for bare token ids.
    pub tokenizer: String,
    /// SHA-256 of the tokenizer's definition.
    pub tokenizer_fingerprint: String,
    /// The vocabulary size: token ids are below it.
    pub vocab_size: usize,
    /// The token that closes every document.
    pub end_of_document: Option<u32>,
    /// Whether the tokenizer marks it as special, so that text cannot contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_document_special: Option<bool>,
    /// Why this token was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_document_because: Option<String>,
    /// Training split.
    pub train: SplitCounts,
    /// Validation split.
    pub valid: SplitCounts,
    /// Test split.
    pub test: SplitCounts,
    /// How documents were assigned to splits.
    pub assignment: String,
    /// Documents skipped because an equal one came before.
    pub duplicates: u64,
    /// Documents skipped because they contain no text.
    pub empty: u64,
    /// Files skipped, those in archives too: not text, not a regular file, a link to nothing, a description of the data files.
    pub skipped_files: u64,
    /// The first of them, and why they were skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Number of files that were read, by format.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub formats: BTreeMap<String, u64>,
    /// Damaged documents that were skipped: what was wrong, and where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// Deviations of MIDI files from the standard: how they were read, and where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
    /// Prepared corpora skipped among the inputs.
    pub passed_over: u64,
    /// Whether the byte budget ended before the inputs did.
    pub cut_by_budget: bool,
    /// The inputs.
    pub inputs: Vec<String>,
    /// Warnings to read before training on it.
    pub warnings: Vec<String>,
    /// SHA-256 of all of the above, as one line of JSON.
    pub checksum: String,
}

/// The content of a split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitCounts {
    /// Documents.
    pub documents: u64,
    /// Tokens, end-of-document tokens included.
    pub tokens: u64,
    /// Bytes of text, in UTF-8.
    pub bytes: u64,
    /// Bytes that the tokens represent one by one; the same, unless the tokenizer loses text.
    pub token_bytes: u64,
    /// XXH3-128 of the stored tokens, in hexadecimal.
    pub checksum: String,
}

impl CorpusSummary {
    /// A corpus of bare ids, still empty.
    pub(crate) fn of_ids(vocab_size: usize) -> CorpusSummary {
        CorpusSummary {
            format: FORMAT,
            kerple_version: env!("CARGO_PKG_VERSION").to_owned(),
            content: String::new(),
            tokenizer: "none".to_owned(),
            tokenizer_fingerprint: fingerprint(format!("ids below {vocab_size}").as_bytes()),
            vocab_size,
            end_of_document: None,
            end_of_document_special: None,
            end_of_document_because: None,
            train: SplitCounts::default(),
            valid: SplitCounts::default(),
            test: SplitCounts::default(),
            assignment: String::new(),
            duplicates: 0,
            empty: 0,
            skipped_files: 0,
            skipped: Vec::new(),
            formats: BTreeMap::new(),
            damaged: Vec::new(),
            repaired: Vec::new(),
            passed_over: 0,
            cut_by_budget: false,
            inputs: Vec::new(),
            warnings: Vec::new(),
            checksum: String::new(),
        }
    }

    /// Counts and checksum of a split.
    pub fn split(&self, split: Split) -> &SplitCounts {
        match split {
            Split::Train => &self.train,
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        }
    }

    pub(crate) fn splits_mut(&mut self) -> [&mut SplitCounts; 3] {
        [&mut self.train, &mut self.valid, &mut self.test]
    }

    /// Writes down what the three splits hold, once all else is known.
    pub(crate) fn seal(&mut self, stored: [ShardChecksums; 3]) {
        for (counts, stored) in self.splits_mut().into_iter().zip(stored) {
            counts.checksum = hex(stored.checksum);
        }
        self.content = self.identity(stored.map(|stored| stored.table));
        self.checksum = self.own_checksum();
    }

    /// The content of a corpus with these tables of documents.
    pub(super) fn identity(&self, tables: [u64; 3]) -> String {
        let mut text = format!(
            "kerple corpus\nvocabulary {}\ntokenizer {}\nend of document {:?}\n",
            self.vocab_size, self.tokenizer_fingerprint, self.end_of_document
        );
        for (split, table) in Split::ALL.into_iter().zip(tables) {
            let SplitCounts { documents, tokens, checksum, .. } = self.split(split);
            text += &format!("{} {tokens} {checksum} {documents} {table:016x}\n", split.name());
        }
        fingerprint(text.as_bytes())
    }

    fn own_checksum(&self) -> String {
        let bare = CorpusSummary { checksum: String::new(), ..self.clone() };
        fingerprint(&serde_json::to_vec(&bare).expect("a summary has string keys only"))
    }

    /// That of a folder.
    ///
    /// # Errors
    /// A folder that is no prepared corpus, and a summary that is damaged.
    pub fn read(folder: &Path) -> Result<CorpusSummary> {
        let file = folder.join(META);
        let none = || {
            // a mistyped path is more likely than a corpus that lost its summary
            let why = match folder.try_exists() {
                Ok(false) => "the folder does not exist".to_owned(),
                _ => format!("{META} is missing"),
            };
            format!("{}: not a prepared corpus: {why}", folder.display())
        };
        let text = read_text(&file, LONGEST, AGAIN).map_err(|error| match error {
            Error::Io { source, .. } if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Error::refused(
                    none(),
                    "run `kerple prepare --input PATH --out DIR` to make one, or give the prefix of \
                     .bin and .idx files",
                )
            }
            other => other,
        })?;
        let damaged = |message: String| Error::damaged(&file, message, AGAIN);
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        match value["format"].as_u64() {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => {
                let message = format!("the format is {newer}; kerple reads {FORMAT}");
                return Err(Error::damaged(&file, message, "use the newer version of kerple that prepared the corpus"));
            }
            None if value["kerple_version"].is_null() => {
                return Err(damaged("the file does not describe a corpus".into()));
            }
            _ => return Err(damaged("an older version of kerple prepared the corpus".to_owned())),
        }
        let summary: CorpusSummary = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
        if summary.own_checksum() != summary.checksum {
            return Err(damaged("the file was edited: its checksum does not match".to_owned()));
        }
        Ok(summary)
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a summary has string keys only") + "\n"
    }
}

impl fmt::Display for CorpusSummary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:<6} {:>12} {:>14} {:>15} {:>15}", "split", "documents", "tokens", "bytes", "bytes in tokens")?;
        for split in Split::ALL {
            let SplitCounts { documents, tokens, bytes, token_bytes, .. } = self.split(split);
            writeln!(out, "{:<6} {documents:>12} {tokens:>14} {bytes:>15} {token_bytes:>15}", split.name())?;
        }
        if !self.formats.is_empty() {
            let formats = self.formats.iter().map(|(kind, count)| format!("{kind} ({count})"));
            writeln!(out, "files read as {}", formats.collect::<Vec<_>>().join(", "))?;
        }
        writeln!(out, "tokenizer {}, vocabulary {}", self.tokenizer, self.vocab_size)?;
        if let (Some(end), Some(because)) = (self.end_of_document, &self.end_of_document_because) {
            let special = if self.end_of_document_special == Some(false) { ", not marked special" } else { "" };
            writeln!(out, "documents end with token {end}{special}: {because}")?;
        }
        write!(out, "split {}", self.assignment)?;
        let left_out = [
            (self.duplicates, "duplicate documents"),
            (self.empty, "empty documents"),
            (self.skipped_files, "files"),
            (self.damaged.len() as u64, "damaged documents"),
            (self.passed_over, "prepared corpora among the inputs"),
        ];
        for (count, what) in left_out.into_iter().filter(|(count, _)| *count > 0) {
            write!(out, "\nskipped {count} {what}")?;
        }
        for damaged in self.damaged.iter().chain(&self.skipped) {
            write!(out, "\n  {damaged}")?;
        }
        const SHOWN: usize = 10;
        for repaired in self.repaired.iter().take(SHOWN) {
            write!(out, "\nrepaired: {repaired}")?;
        }
        if let Some(more @ 1..) = self.repaired.len().checked_sub(SHOWN) {
            write!(out, "\nrepaired: {more} more files, named in {META}")?;
        }
        if self.cut_by_budget {
            write!(out, "\nstopped at the byte budget")?;
        }
        for warning in &self.warnings {
            write!(out, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}
