//! Recognises files whose name leaves their format open, and files that accompany the data of a
//! folder.

use super::{Compression, SourceFile, SourceFormat, midi, open};
use crate::error::{Error, Result};
use crate::file::without_mark;
use crate::json;
use serde::de::IgnoredAny;
use std::cell::Cell;
use std::io::{BufRead, Read};
use std::path::Path;
use std::rc::Rc;

/// So much of a file is looked at.
const HEAD: u64 = 1 << 20;

/// Endings of compressed files and archives that are not read.
const NOT_READ: [&str; 10] = [".xz", ".bz2", ".lzma", ".lz4", ".br", ".sz", ".zip", ".7z", ".rar", ".z"];

/// Whether a name is that of a compressed file or an archive that is not read as text.
pub(super) fn is_compressed_otherwise(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    NOT_READ.iter().any(|end| name.ends_with(end))
}

/// Endings of archives of files.
const ARCHIVES: [&str; 5] = [".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.zstd"];

/// Whether a name is that of an archive that is read for its MIDI files alone.
pub(crate) fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    ARCHIVES.iter().any(|end| name.ends_with(end))
}

/// What to do about a file that is not text, by its name.
pub(super) fn hint_of_name(path: &Path) -> &'static str {
    if is_archive(path) {
        "unpack the archive, and give the folder of its files"
    } else if is_compressed_otherwise(path) {
        "decompress it, or compress it as .gz or .zst"
    } else if path.extension().is_some_and(|end| end == "bin" || end == "idx") {
        "token files are pairs: put the .bin and the .idx of one name next to each other"
    } else if is_compressed_midi(path) {
        "decompress it: MIDI files are read uncompressed, or from .tar, .tar.zst and .tar.gz archives"
    } else {
        "give UTF-8 text, .jsonl, .parquet, or the prefix of .bin and .idx files"
    }
}

/// Whether a name is that of a compressed MIDI file, which is not read.
pub(super) fn is_compressed_midi(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let stem = [".zst", ".zstd", ".gz"].iter().find_map(|end| name.strip_suffix(end));
    stem.is_some_and(midi::is_midi)
}

/// What a file called `.json` holds: lines, an array, or a text that is neither.
///
/// # Errors
/// One object over several lines, which may be a document or a description of some.
pub(super) fn json(path: &Path, compression: Compression) -> Result<SourceFormat> {
    let mut head = Vec::new();
    let input = open(path, compression, Rc::new(Cell::new(0)))?;
    input.take(HEAD).read_to_end(&mut head).map_err(Error::io(path, "read"))?;
    let head = without_mark(&head).trim_ascii_start();
    match head.first() {
        Some(b'[') => Ok(SourceFormat::JsonArray(compression)),
        Some(b'{') => {
            let mut line = Vec::new();
            let _ = (&mut &*head).read_until(b'\n', &mut line);
            // a first line that goes on beyond what is looked at is one object all the same
            let whole = line.len() == head.len() && head.len() as u64 == HEAD;
            if whole || json::parse::<IgnoredAny>(&line).is_ok() {
                Ok(SourceFormat::JsonLines(compression))
            } else {
                Err(Error::refused(
                    format!("{}: one JSON object over several lines; expected documents", path.display()),
                    "write one object per line into a .jsonl file, or name the file .txt to read it as text",
                ))
            }
        }
        _ => Ok(SourceFormat::Text(compression)),
    }
}

/// Checks that a `.txt` does not hold JSON lines, whose keys and braces would be learned with their texts.
///
/// # Errors
/// A file whose first two lines are JSON objects.
pub(super) fn plain(path: &Path, compression: Compression) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    if !name.split('.').any(|part| part == "txt") {
        return Ok(());
    }
    let mut input = open(path, compression, Rc::new(Cell::new(0)))?.take(HEAD);
    let mut is_object = || {
        let mut line = Vec::new();
        // what cannot be read is found where all of the file is
        let read = input.read_until(b'\n', &mut line).is_ok();
        let object = line.trim_ascii();
        read && object.first() == Some(&b'{') && json::parse::<IgnoredAny>(object).is_ok()
    };
    if is_object() && is_object() {
        Err(Error::refused(
            format!("{}: the name claims text, but the file contains JSON lines", path.display()),
            "rename it to .jsonl to read the texts under --text-key, or to .text to train on the JSON itself",
        ))
    } else {
        Ok(())
    }
}

/// Leaves out of folders with data files what describes these: a README, a licence, the description of a dataset.
pub(super) fn snapshot_files(files: &mut [SourceFile]) {
    if !files.iter().any(|file| file.found && is_data(file.format)) {
        return;
    }
    for file in files.iter_mut().filter(|file| file.found && describes(&file.path)) {
        file.format = SourceFormat::Ignored("it describes the data files next to it");
    }
}

/// Whether a file is one of those that datasets are published with. `license.jsonl` is data, as its ending says.
pub(super) fn describes(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let stem = name.split('.').next().unwrap_or_default();
    let described = ["readme", "license", "licence", "citation", "changelog", "notice"];
    let descriptions = ["dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "croissant.json"];
    let is_data = || is_data(SourceFormat::of(path, None));
    described.contains(&stem) && !is_data() || descriptions.contains(&name.as_str())
}

/// Whether documents are values of a key or of a column, as in published datasets.
fn is_data(format: SourceFormat) -> bool {
    matches!(
        format,
        SourceFormat::JsonLines(_) | SourceFormat::JsonArray(_) | SourceFormat::Delimited(..) | SourceFormat::Parquet
    )
}
