//! Labelled byte sequences in memory, and files read whole.

use super::example;
use crate::error::{Error, Result};
use crate::examples::{Example, ExampleId, Examples, TaskInfo};
use crate::file::is_file;
use crate::hash::{Checksum, hex};
use crate::split::Split;
use crate::text::{Compression, open};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Tokens of bytes: 0 is padding, a byte is itself plus 1.
pub(super) const BYTES: usize = 257;

/// Sequences of bytes one after the other.
#[derive(Default)]
pub(super) struct Sequences {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    labels: Vec<u32>,
}

impl Sequences {
    /// # Errors
    /// A sequence of nothing, in words.
    pub(super) fn push(&mut self, bytes: impl IntoIterator<Item = u8>, label: u32) -> std::result::Result<(), String> {
        let before = self.bytes.len();
        self.bytes.extend(bytes);
        if self.bytes.len() == before {
            return Err("the sequence is empty, so nothing identifies its class".to_owned());
        }
        self.ends.push(self.bytes.len());
        self.labels.push(label);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The sequences from `at` on, which are taken out.
    pub(super) fn split_off(&mut self, at: usize) -> Sequences {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let ends = self.ends.split_off(at).into_iter().map(|end| end - start).collect();
        Sequences { bytes: self.bytes.split_off(start), ends, labels: self.labels.split_off(at) }
    }

    fn get(&self, index: usize) -> (&[u8], u32) {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        (&self.bytes[start..self.ends[index]], self.labels[index])
    }
}

/// A data set in memory.
pub(super) struct Store {
    facts: TaskInfo,
    splits: [Sequences; 3],
    /// What is added to a byte to make it a token.
    offset: u32,
    remark: Option<&'static str>,
}

impl Store {
    /// # Errors
    /// A split without sequences.
    pub(super) fn new(facts: TaskInfo, path: &Path, splits: [Sequences; 3], offset: u32) -> Result<Store> {
        let mut sum = Checksum::default();
        for (split, sequences) in Split::ALL.into_iter().zip(&splits) {
            if sequences.len() == 0 {
                let message = format!("no sequences are usable for {}", split.name());
                return Err(Error::damaged(path, message, "each of train, valid and test needs at least one sequence"));
            }
            sum.add(&(sequences.len() as u64).to_le_bytes());
            sequences.ends.iter().for_each(|end| sum.add(&(*end as u64).to_le_bytes()));
            sequences.labels.iter().for_each(|label| sum.add(&label.to_le_bytes()));
            sum.add(&sequences.bytes);
        }
        let content = format!("{} {}", facts.content, hex(sum.finish()));
        Ok(Store { facts: TaskInfo { content, ..facts }, splits, offset, remark: None })
    }

    /// The same with what the user should know of it.
    pub(super) fn remarking(self, remark: Option<&'static str>) -> Store {
        Store { remark, ..self }
    }
}

/// Refuses a label beyond the classes, at its place in a file.
pub(super) fn check_label(path: &Path, place: impl Fn() -> String, label: u32, classes: usize) -> Result<()> {
    if (label as usize) < classes {
        return Ok(());
    }
    let message = format!("label {label} is out of range; the classes are 0 to {}", classes - 1);
    Err(Error::damaged_at(path, place(), message, "set the key `classes` of data.task to the number of classes"))
}

impl Examples for Store {
    fn facts(&self) -> TaskInfo {
        self.facts.clone()
    }

    fn remark(&self) -> Option<&'static str> {
        self.remark
    }

    fn count(&self, split: Split) -> Option<u64> {
        Some(self.splits[split as usize].len() as u64)
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let (bytes, label) = self.splits[place.split as usize].get(place.index as usize);
        let tokens = bytes.iter().take(length).map(|byte| u32::from(*byte) + self.offset);
        Ok(example(tokens.collect(), label))
    }

    fn answers(&self, _: usize) -> usize {
        1
    }
}

/// The file of this name in a folder, plain or compressed.
///
/// # Errors
/// A disk that does not answer.
pub(super) fn find(folder: &Path, name: &str) -> Result<Option<(PathBuf, Compression)>> {
    for (end, kind) in [("", Compression::None), (".zst", Compression::Zstd), (".gz", Compression::Gzip)] {
        let path = folder.join(format!("{name}{end}"));
        if is_file(&path)? {
            return Ok(Some((path, kind)));
        }
    }
    Ok(None)
}

/// [`find`] of the first of several names.
///
/// # Errors
/// None of them is there.
pub(super) fn require(folder: &Path, names: &[&str], hint: &str) -> Result<(PathBuf, Compression)> {
    for name in names {
        if let Some(found) = find(folder, name)? {
            return Ok(found);
        }
    }
    let message = format!("{}: {} is missing", folder.display(), names.join(" or "));
    Err(Error::refused(message, hint))
}

/// What a file holds, decompressed, up to a limit.
///
/// # Errors
/// A file that cannot be read, or holds more.
pub(super) fn read(path: &Path, compression: Compression, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let input = open(path, compression, Rc::default())?;
    let again = "the file is truncated, damaged, or not compressed as its name claims; download it again";
    let read = Read::take(input, limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::damaged(path, format!("cannot read further: {error}"), again))?;
    if bytes.len() as u64 > limit {
        Err(Error::damaged(path, format!("the file has more than {limit} bytes"), "use the published files"))
    } else {
        Ok(bytes)
    }
}
