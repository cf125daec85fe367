//! Checked reads of regular files, at any offset, of known size.

use crate::error::{Error, Result};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file read at any place, by any number of threads.
///
/// Not mapped into memory: a mapped file that another program cuts short ends the process with SIGBUS, a read is an
/// error. The operating system's cache makes both equally fast for windows of text.
#[derive(Debug)]
pub(crate) struct PositionedFile {
    file: File,
    path: PathBuf,
    len: u64,
}

impl PositionedFile {
    pub(crate) fn open(path: &Path) -> Result<PositionedFile> {
        let file = kerple_run::files::open(path).map_err(Error::io(path, "open"))?;
        let len = file.metadata().map_err(Error::io(path, "open"))?.len();
        Ok(PositionedFile { file, path: path.to_owned(), len })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Errors
    /// A file that cannot be read, or has become shorter since it was opened.
    pub(crate) fn read_at(&self, at: u64, out: &mut [u8]) -> Result<()> {
        read_exact_at(&self.file, at, out).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::damaged(
                &self.path,
                format!(
                    "the file now ends before byte {}; it had {} bytes when it was opened",
                    at + out.len() as u64,
                    self.len
                ),
                "another program changed the file; do not write to it while kerple reads it",
            ),
            _ => Error::io(&self.path, "read")(error),
        })
    }

    /// A range of bytes that is small enough to hold.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut out = vec![0; (range.end - range.start) as usize];
        self.read_at(range.start, &mut out)?;
        Ok(out)
    }
}

/// Whether a folder is at a place.
///
/// # Errors
/// A disk that does not answer.
pub(crate) fn is_folder(path: &Path) -> Result<bool> {
    kerple_run::files::is_folder(path).map_err(Error::io(path, "look for"))
}

/// Whether a regular file is at a place.
///
/// # Errors
/// A disk that does not answer.
pub(crate) fn is_file(path: &Path) -> Result<bool> {
    kerple_run::files::is_file(path).map_err(Error::io(path, "look for"))
}

#[cfg(unix)]
fn read_exact_at(file: &File, at: u64, out: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut at: u64, mut out: &mut [u8]) -> std::io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, at)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => (at, out) = (at + count as u64, &mut out[count..]),
        }
    }
    Ok(())
}

/// A byte order mark: editors of other systems begin UTF-8 with it, and it is no text.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// What a file holds after its byte order mark, if it has one.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(MARK).unwrap_or(bytes)
}

/// A line without its end, `\n` or `\r\n`.
pub(crate) fn without_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The lines of a file that are not blank, with their numbers, without their ends and without a byte order mark.
pub(crate) fn filled_lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = without_mark(bytes).split(|byte| *byte == b'\n').map(without_line_end);
    (1..).zip(lines).filter(|(_, line)| !line.trim_ascii().is_empty())
}

/// Whether a file is hidden, as those are that systems leave beside others: `.DS_Store`, `._name`.
pub(crate) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// All of a text file of at most `limit` bytes.
///
/// # Errors
/// A file that cannot be read, is longer, is no regular file, or is not UTF-8.
pub(crate) fn read_text(path: &Path, limit: u64, hint: &str) -> Result<String> {
    let file = PositionedFile::open(path)?;
    if file.len() > limit {
        return Err(Error::damaged(
            path,
            format!("the file has {} bytes; at most {limit} are allowed", file.len()),
            hint,
        ));
    }
    let text = String::from_utf8(file.read(0..file.len())?);
    text.map_err(|error| {
        Error::damaged(path, format!("byte {} is not valid UTF-8", error.utf8_error().valid_up_to()), hint)
    })
}
