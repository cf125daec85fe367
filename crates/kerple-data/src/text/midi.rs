//! MIDI files and archives of them: each piece is a document.

use super::recognise::is_compressed_midi;
use super::splits::split_of;
use super::{DocumentContent, SourceDocument, unreadable};
use crate::contain::contain;
use crate::error::{Error, Result};
use crate::music::{MusicDocument, MusicPiece, Representation};
use crate::split::Split;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

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

/// The pieces in a tar archive, in its order; other files in it are named as files that were left out, hidden ones aside.
pub(super) struct MidiArchive {
    path: PathBuf,
    input: Box<dyn BufRead>,
    representation: Representation,
    number: usize,
    ended: bool,
    /// Where its folders and files are called splits: the first of each.
    splits: BTreeMap<Split, String>,
    warnings: Rc<RefCell<Vec<String>>>,
}

/// What an archive has next.
enum ArchiveEntry {
    Midi {
        name: String,
        bytes: Vec<u8>,
    },
    /// Another file, and why it is left out.
    Other(String),
}

impl MidiArchive {
    pub(super) fn new(
        path: &Path,
        input: Box<dyn BufRead>,
        representation: Representation,
        warnings: Rc<RefCell<Vec<String>>>,
    ) -> MidiArchive {
        let (path, splits) = (path.to_owned(), BTreeMap::new());
        MidiArchive { path, input, representation, number: 0, ended: false, splits, warnings }
    }

    /// The next file; folders and hidden files are passed over.
    fn advance(&mut self) -> Result<Option<ArchiveEntry>> {
        loop {
            self.number += 1;
            let place = format!(", entry {}", self.number);
            let bad = |error: std::io::Error| unreadable(&self.path, place.clone(), &error);
            // one archive an entry, so that nothing borrows what it is read from
            let entry = contain(|| next_entry(&mut self.input));
            let entry = entry.map_err(|message| Error::damaged_at(&self.path, place.clone(), message, AGAIN))?;
            let Some(TarEntry { name, kind, size }) = entry.map_err(bad)? else {
                self.remark_on_splits();
                return Ok(None);
            };
            if !(kind == TarKind::File && is_midi(&name)) {
                std::io::copy(&mut Read::take(&mut self.input, padded(size)), &mut std::io::sink()).map_err(bad)?;
                match left_out(&name, kind) {
                    Some(why) => return Ok(Some(ArchiveEntry::Other(why))),
                    None => continue,
                }
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
            if let Some(split) = split_in(&name) {
                self.splits.entry(split).or_insert_with(|| name.clone());
            }
            return Ok(Some(ArchiveEntry::Midi { name, bytes }));
        }
    }

    /// Says that names inside of the archive, which do not count, look like splits.
    fn remark_on_splits(&self) {
        if self.splits.len() > 1 {
            let shown: Vec<String> = self.splits.values().map(|name| kerple_run::files::printable(name)).collect();
            self.warnings.borrow_mut().push(format!(
                "{}: names in the archive look like splits and are ignored: {}; to use them, unpack it, or make one \
                 archive per split: train.tar, valid.tar and test.tar",
                self.path.display(),
                shown.join(", ")
            ));
        }
    }
}

/// Why a file of an archive is left out; nothing of folders and hidden files.
fn left_out(name: &str, kind: TarKind) -> Option<String> {
    let shown = kerple_run::files::printable(name);
    let is_hidden = name.split('/').any(|part| part.starts_with('.') && part != "." && part != "..");
    match kind {
        _ if is_hidden => None,
        TarKind::File if is_compressed_midi(Path::new(name)) => {
            Some(format!("its file {shown} is compressed MIDI; decompress it"))
        }
        TarKind::File => Some(format!("its file {shown} is not MIDI")),
        TarKind::Link => Some(format!("its file {shown} is a link; links in archives are not followed")),
        TarKind::Other => None,
    }
}

/// The split that a folder or the file is called.
fn split_in(name: &str) -> Option<Split> {
    let stem = |part: &str| part.rsplit_once('.').map_or(part, |(stem, _)| stem).to_lowercase();
    name.split('/').rev().find_map(|part| split_of(&stem(part)))
}

const AGAIN: &str = "the archive is damaged or contains something other than music; create it again";

/// Bytes an entry takes: whole blocks of 512.
fn padded(size: u64) -> u64 {
    size.saturating_add(511) / 512 * 512
}

/// What kind of entry one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TarKind {
    File,
    /// To another entry or to a file.
    Link,
    /// A folder, or what archives say of themselves.
    Other,
}

/// An entry of an archive.
struct TarEntry {
    name: String,
    kind: TarKind,
    size: u64,
}

/// The entry that begins here; `None` at the end of the archive.
fn next_entry(input: &mut dyn BufRead) -> std::io::Result<Option<TarEntry>> {
    let mut archive = tar::Archive::new(input);
    let Some(entry) = archive.entries()?.next().transpose()? else { return Ok(None) };
    let kind = match entry.header().entry_type() {
        kind if kind.is_file() => TarKind::File,
        kind if kind.is_symlink() || kind.is_hard_link() => TarKind::Link,
        _ => TarKind::Other,
    };
    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    Ok(Some(TarEntry { name, kind, size: entry.size() }))
}

impl Iterator for MidiArchive {
    type Item = Result<SourceDocument>;

    fn next(&mut self) -> Option<Result<SourceDocument>> {
        if self.ended {
            return None;
        }
        let document = self.advance().and_then(|found| {
            let (name, bytes) = match found {
                None => return Ok(None),
                Some(ArchiveEntry::Other(why)) => {
                    return Ok(Some(SourceDocument { number: self.number, content: DocumentContent::NotText(why) }));
                }
                Some(ArchiveEntry::Midi { name, bytes }) => (name, bytes),
            };
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
