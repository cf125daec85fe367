//! Plain text: a whole file is one document, in memory when short and streamed when long.

use super::{Compression, DocumentContent, open, recognise, unreadable};
use crate::error::{Error, Result};
use crate::file::without_mark;
use crate::hash::Checksum;
use std::cell::Cell;
use std::fmt;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Longer texts are read twice, once to know them and once to pass them on, and never held.
pub(super) const HELD: u64 = 4 << 20;

/// Bytes read at once.
const CHUNK: usize = 1 << 16;

/// A text that is too long to hold.
pub(crate) struct LongText {
    path: PathBuf,
    compression: Compression,
    bytes: u64,
    hash: u128,
    read: Rc<Cell<u64>>,
}

impl LongText {
    /// Bytes of text.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// XXH3-128 of the text.
    pub(crate) fn hash(&self) -> u128 {
        self.hash
    }

    /// Passes the text on in pieces that end with whole characters.
    pub(crate) fn stream(&self, sink: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        self.read.set(0);
        let mut text = Utf8::open(&self.path, self.compression, self.read.clone())?;
        let (mut sum, mut bytes) = (Checksum::default(), 0);
        while let Some(chunk) = text.next()? {
            sum.add(chunk.as_bytes());
            bytes += chunk.len() as u64;
            if bytes <= self.bytes {
                sink(chunk)?;
            }
        }
        if (bytes, sum.finish()) == (self.bytes, self.hash) {
            Ok(())
        } else {
            Err(Error::damaged(
                &self.path,
                "the file changed during reading",
                "do not write to the file while kerple reads it",
            ))
        }
    }
}

impl fmt::Debug for LongText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "LongText({} bytes)", self.bytes)
    }
}

/// Reads a file as one document; `found` says whether it may be passed over when it is not text.
pub(super) fn read(
    path: &Path,
    compression: Compression,
    found: bool,
    held: u64,
    read: Rc<Cell<u64>>,
) -> Result<DocumentContent> {
    let mut text = Utf8::open(path, compression, read.clone())?;
    let (mut head, mut sum, mut bytes) = (String::new(), Checksum::default(), 0);
    loop {
        match text.next() {
            Ok(Some(chunk)) => {
                bytes += chunk.len() as u64;
                sum.add(chunk.as_bytes());
                if bytes <= held { head.push_str(chunk) } else { head = String::new() }
            }
            Ok(None) => break,
            Err(TextFailure::NotText(Error::Damaged { message, .. })) if found => {
                return Ok(DocumentContent::NotText(message));
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    if bytes <= held {
        return Ok(DocumentContent::Text(head));
    }
    read.set(0);
    Ok(DocumentContent::Long(LongText { path: path.to_owned(), compression, bytes, hash: sum.finish(), read }))
}

/// Text as it comes out of a file, without a byte order mark.
struct Utf8 {
    path: PathBuf,
    input: Box<dyn BufRead>,
    buffer: Vec<u8>,
    /// Bytes of an unfinished character at the end of `buffer`.
    waiting: usize,
    /// Where `buffer` begins in the file.
    at: u64,
}

enum TextFailure {
    NotText(Error),
    Unreadable(Error),
}

impl From<TextFailure> for Error {
    fn from(failure: TextFailure) -> Error {
        match failure {
            TextFailure::NotText(error) | TextFailure::Unreadable(error) => error,
        }
    }
}

impl Utf8 {
    fn open(path: &Path, compression: Compression, read: Rc<Cell<u64>>) -> Result<Utf8> {
        let input = open(path, compression, read)?;
        Ok(Utf8 { path: path.to_owned(), input, buffer: Vec::new(), waiting: 0, at: 0 })
    }

    /// The next piece of text, which is never empty; none at the end of the file.
    fn next(&mut self) -> std::result::Result<Option<&str>, TextFailure> {
        let done = self.buffer.len() - self.waiting;
        self.at += done as u64;
        self.buffer.drain(..done);
        let mut ended = false;
        while self.buffer.len() < CHUNK && !ended {
            let more = self.input.fill_buf();
            let more = match more {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TextFailure::Unreadable(unreadable(&self.path, String::new(), &error))),
                Ok(more) => &more[..more.len().min(CHUNK)],
            };
            ended = more.is_empty();
            self.buffer.extend_from_slice(more);
            let count = more.len();
            self.input.consume(count);
        }
        if self.at == 0 {
            let mark = self.buffer.len() - without_mark(&self.buffer).len();
            self.buffer.drain(..mark);
            self.at = mark as u64;
        }
        let valid = match std::str::from_utf8(&self.buffer) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() && !ended => error.valid_up_to(),
            Err(error) => {
                let at = self.at + error.valid_up_to() as u64;
                // an earlier NUL is the first thing wrong
                return Err(self
                    .nul(error.valid_up_to())
                    .unwrap_or_else(|| self.not_text(format!("byte {at} is not valid UTF-8"))));
            }
        };
        if let Some(failure) = self.nul(valid) {
            return Err(failure);
        }
        self.waiting = self.buffer.len() - valid;
        let text = std::str::from_utf8(&self.buffer[..valid]).expect("checked above");
        Ok((valid > 0).then_some(text))
    }

    fn nul(&self, valid: usize) -> Option<TextFailure> {
        let at = self.buffer[..valid].iter().position(|byte| *byte == 0)? as u64 + self.at;
        Some(self.not_text(format!("byte {at} is NUL, so the file is not text")))
    }

    fn not_text(&self, message: String) -> TextFailure {
        let hint = match self.buffer[..] {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] if self.at == 0 => {
                "the file begins as UTF-16 does; convert it to UTF-8"
            }
            _ => recognise::hint_of_name(&self.path),
        };
        TextFailure::NotText(Error::damaged(&self.path, message, hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::SourceFormat;
    use proptest::prelude::*;
    use twox_hash::XxHash3_128;

    fn content(name: &str, bytes: &[u8], held: u64) -> (tempfile::TempDir, Result<DocumentContent>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let SourceFormat::Text(compression) = SourceFormat::of(&path, None) else { panic!("{name} is text") };
        let content = read(&path, compression, false, held, Rc::default());
        (folder, content)
    }

    fn whole(content: &DocumentContent) -> String {
        match content {
            DocumentContent::Text(text) => text.clone(),
            DocumentContent::Long(long) => {
                let mut text = String::new();
                long.stream(&mut |chunk| {
                    text.push_str(chunk);
                    Ok(())
                })
                .unwrap();
                assert_eq!((long.bytes(), long.hash()), (text.len() as u64, XxHash3_128::oneshot(text.as_bytes())));
                text
            }
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// A text is the same held or streamed, however characters fall on the bounds of what is read at once.
        #[test]
        fn streaming_reads_what_holding_reads(shift in 0usize..8, letter in prop::sample::select(vec!['a', 'é', '文', '🙂']), mark: bool) {
            let mut text = "x".repeat(shift);
            text.extend(std::iter::repeat_n(letter, 3 * CHUNK / letter.len_utf8()));
            let bytes = if mark { ["\u{feff}", &text].concat() } else { text.clone() };
            for held in [0, u64::MAX] {
                let (_folder, content) = content("a.txt", bytes.as_bytes(), held);
                let content = content.unwrap();
                prop_assert_eq!(matches!(content, DocumentContent::Long(_)), held == 0);
                prop_assert!(whole(&content) == text);
            }
        }
    }

    #[test]
    fn what_is_not_text_is_found_anywhere() {
        let message =
            |bytes: &[u8]| content("a.txt", bytes, 0).1.unwrap_err().to_string().rsplit('/').next().unwrap().to_owned();
        let mut bytes = vec![b'a'; 2 * CHUNK + 5];
        bytes[2 * CHUNK + 4] = 0xe9;
        assert_eq!(message(&bytes), format!("a.txt: byte {} is not valid UTF-8", 2 * CHUNK + 4));
        let utf_16 = content("a.txt", b"\xff\xfea\0", 0).1.unwrap_err();
        assert_eq!(utf_16.hint(), "the file begins as UTF-16 does; convert it to UTF-8");
        bytes[CHUNK + 1] = 0;
        assert_eq!(message(&bytes), format!("a.txt: byte {} is NUL, so the file is not text", CHUNK + 1));
    }

    #[test]
    fn a_text_that_changes_is_noticed() {
        let (folder, content) = content("a.txt", b"one text", 0);
        std::fs::write(folder.path().join("a.txt"), b"two text").unwrap();
        let DocumentContent::Long(long) = content.unwrap() else { panic!("held") };
        let error = long.stream(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.ends_with("a.txt: the file changed during reading"), "{error}");
    }
}
