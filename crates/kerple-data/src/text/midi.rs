//! MIDI files and archives of them: each piece is a document.

use super::{DocumentContent, SourceDocument, unreadable};
use crate::contain::contain;
use crate::error::{Error, Result};
use crate::music::{MusicDocument, MusicPiece, Representation};
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// A longer entry of an archive is not taken for a piece of music.
const LONGEST: u64 = 1 << 24;

/// Whether a name is that of a MIDI file; karaoke and RIFF files of MIDI are. Files that Apple's archives add, `._name`, are not.
pub(super) fn is_midi(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    let end = name.rsplit_once('.').map(|(_, end)| end.to_lowercase());
    matches!(end.as_deref(), Some("mid" | "midi" | "kar" | "rmi")) && !name.starts_with("._")
}

/// The piece in a file of its own.
pub(super) fn file(path: &Path, representation: Representation) -> Result<SourceDocument> {
    let score = MusicPiece::read(path).and_then(|piece| {
        let score = MusicDocument::new(piece, representation, &path.display().to_string());
        score.map_err(|error| Error::damaged(path, error.to_string(), error.hint()))
    });
    DocumentContent::or_bad(score.map(|score| DocumentContent::Music(Box::new(score))))
        .map(|content| SourceDocument { number: 1, content })
}

/// The pieces in a tar archive, in its order; other files in it are passed over.
pub(super) struct MidiArchive {
    path: PathBuf,
    input: Box<dyn BufRead>,
    representation: Representation,
    number: usize,
    ended: bool,
}

impl MidiArchive {
    pub(super) fn new(path: &Path, input: Box<dyn BufRead>, representation: Representation) -> MidiArchive {
        MidiArchive { path: path.to_owned(), input, representation, number: 0, ended: false }
    }

    /// The name and the bytes of the next MIDI file.
    fn advance(&mut self) -> Result<Option<(String, Vec<u8>)>> {
        loop {
            self.number += 1;
            let place = format!(", entry {}", self.number);
            let bad = |error: std::io::Error| unreadable(&self.path, place.clone(), &error);
            // one archive an entry, so that nothing borrows what it is read from
            let entry = contain(|| next_entry(&mut self.input));
            let entry = entry.map_err(|message| Error::damaged_at(&self.path, place.clone(), message, AGAIN))?;
            let Some((name, size)) = entry.map_err(bad)? else { return Ok(None) };
            if !is_midi(&name) {
                std::io::copy(&mut Read::take(&mut self.input, padded(size)), &mut std::io::sink()).map_err(bad)?;
                continue;
            }
            if size > LONGEST {
                let message = format!("the file has {size} bytes; at most {LONGEST} are allowed");
                return Err(Error::damaged_at(&self.path, format!(", {name}"), message, AGAIN));
            }
            let mut bytes = Vec::new();
            Read::take(&mut self.input, padded(size)).read_to_end(&mut bytes).map_err(bad)?;
            if (bytes.len() as u64) < size {
                return Err(bad(std::io::ErrorKind::UnexpectedEof.into()));
            }
            bytes.truncate(size as usize);
            return Ok(Some((name, bytes)));
        }
    }
}

const AGAIN: &str = "the archive is damaged or contains something other than music; create it again";

/// Bytes an entry takes: whole blocks of 512.
fn padded(size: u64) -> u64 {
    size.saturating_add(511) / 512 * 512
}

/// The name and size of the entry that begins here; `None` at the end of the archive.
fn next_entry(input: &mut dyn BufRead) -> std::io::Result<Option<(String, u64)>> {
    let mut archive = tar::Archive::new(input);
    let Some(entry) = archive.entries()?.next().transpose()? else { return Ok(None) };
    let is_file = entry.header().entry_type().is_file();
    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    Ok(Some((if is_file { name } else { String::new() }, entry.size())))
}

impl Iterator for MidiArchive {
    type Item = Result<SourceDocument>;

    fn next(&mut self) -> Option<Result<SourceDocument>> {
        if self.ended {
            return None;
        }
        let document = self.advance().and_then(|found| {
            let Some((name, bytes)) = found else { return Ok(None) };
            let bad = |message: String, hint: String| Error::damaged_at(&self.path, format!(", {name}"), message, hint);
            let piece = MusicPiece::from_midi(&bytes).map_err(|message| bad(message, AGAIN.to_owned()));
            let score = piece.and_then(|piece| {
                let place = format!("{}, {}", self.path.display(), kerple_run::files::printable(&name));
                let score = MusicDocument::new(piece, self.representation, &place);
                score.map_err(|error| bad(error.to_string(), error.hint()))
            });
            let content = DocumentContent::or_bad(score.map(|score| DocumentContent::Music(Box::new(score))))?;
            Ok(Some(SourceDocument { number: self.number, content }))
        });
        self.ended = !matches!(document, Ok(Some(_)));
        document.transpose()
    }
}
