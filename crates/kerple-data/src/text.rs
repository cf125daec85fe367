//! Sources of text: files of documents, found in a fixed order and read one document at a time.
//!
//! | files | documents |
//! |---|---|
//! | `.jsonl` | the lines, JSON objects with a text under a key, as in the Pile |
//! | `.csv`, `.tsv` | the rows, with a text in the column of a name |
//! | `.parquet` | the rows of a text column |
//! | `.bin` and `.idx` | GPT-NeoX token files: documents that are tokens already |
//! | `.mid`, `.tar` of them | pieces of music, when a tokenizer for music is asked for |
//! | `.json` | the items of an array, or the lines, whichever it holds |
//! | any other file | one: the file, when it is UTF-8 text |
//!
//! `.jsonlines` and `.ndjson` are JSON lines too. All but token files, Parquet and MIDI may be compressed: `.zst`,
//! `.zstd` or `.gz` after the name. Texts of any size are streamed. Kept in memory are a line of
//! JSON, a row, and the window of a `zstd --long` file, 2 GiB at most.

mod delimited;
mod inventory;
mod json_array;
mod json_lines;
#[cfg(feature = "music-lra")]
mod midi;
mod parquet;
mod plain;
mod recognise;
mod splits;
mod walk;
#[cfg(not(feature = "music-lra"))]
mod without_midi;

pub use inventory::Inventory;
pub(crate) use plain::LongText;
pub(crate) use splits::SplitNames;

use crate::corpus::TokenFiles;
use crate::error::{Error, Result};
use crate::music::{MusicDocument, Representation};
use crate::tokens::TokenStream;
use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
#[cfg(not(feature = "music-lra"))]
use without_midi as midi;

/// The inputs, in order.
#[derive(Clone, Debug)]
pub struct Sources {
    paths: Vec<PathBuf>,
}

impl Sources {
    /// Files and folders. Folders are walked in sorted order; hidden files and folders are ignored;
    /// files that are not text, links to nothing and pipes are skipped with the reason.
    pub fn paths<P: AsRef<Path>>(paths: &[P]) -> Sources {
        Sources { paths: paths.iter().map(|path| path.as_ref().to_owned()).collect() }
    }

    /// The inputs as the corpus records them.
    pub fn labels(&self) -> Vec<String> {
        self.paths.iter().map(|path| path.display().to_string()).collect()
    }

    /// All files, in reading order, and how many prepared corpora were passed over on the way.
    pub(crate) fn files(&self) -> Result<(Vec<SourceFile>, u64)> {
        let (mut files, mut passed_over) = (Vec::new(), 0);
        for path in &self.paths {
            walk::collect(path, &mut files, &mut passed_over)?;
        }
        recognise::snapshot_files(&mut files);
        let is_read = |file: &SourceFile| !matches!(file.format, SourceFormat::Ignored(_));
        if !files.iter().any(is_read) {
            let place = self.labels().join(", ");
            return Err(Error::refused(
                format!("no file to read in: {place}"),
                "give files or folders of text, .jsonl, .parquet or .bin/.idx; hidden files, pipes and links to \
                 nothing are ignored",
            ));
        }
        Ok((files, passed_over))
    }
}

/// A file, or a pair of token files.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    /// The file; for token files their common prefix.
    pub(crate) path: PathBuf,
    pub(crate) format: SourceFormat,
    /// Bytes on disk.
    pub(crate) size: u64,
    /// Found in a folder rather than named: passed over when it is not text.
    pub(crate) found: bool,
    /// Folders between the one that was named and the file.
    pub(crate) depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceFormat {
    JsonLines(Compression),
    /// One array, of objects or texts.
    JsonArray(Compression),
    /// Rows of fields between these bytes, under a row of names.
    Delimited(Compression, u8),
    Text(Compression),
    Parquet,
    TokenFiles,
    Midi(Representation),
    /// A tar archive of MIDI files.
    MidiArchive(Representation, Compression),
    /// An entry of a folder that is not read, and why.
    Ignored(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Zstd,
    Gzip,
}

impl SourceFormat {
    /// The format that a name says; MIDI is only read as music.
    fn of(path: &Path, music: Option<Representation>) -> SourceFormat {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let compressed = [(".zst", Compression::Zstd), (".zstd", Compression::Zstd), (".gz", Compression::Gzip)];
        let found = compressed.iter().find_map(|(end, kind)| name.strip_suffix(end).map(|stem| (stem, *kind)));
        let (stem, compression) = found.unwrap_or((&name, Compression::None));
        if let Some(representation) = music
            && midi::is_midi(stem)
            && compression == Compression::None
        {
            SourceFormat::Midi(representation)
        } else if let Some(representation) = music
            && (stem.ends_with(".tar") || name.ends_with(".tgz"))
        {
            let compression = if name.ends_with(".tgz") { Compression::Gzip } else { compression };
            SourceFormat::MidiArchive(representation, compression)
        } else if [".jsonl", ".jsonlines", ".ndjson"].iter().any(|end| stem.ends_with(end)) {
            SourceFormat::JsonLines(compression)
        } else if stem.ends_with(".csv") {
            SourceFormat::Delimited(compression, b',')
        } else if stem.ends_with(".tsv") {
            SourceFormat::Delimited(compression, b'\t')
        } else if name.ends_with(".parquet") {
            SourceFormat::Parquet
        } else {
            SourceFormat::Text(compression)
        }
    }
}

/// Whether a name ends in `.json`, compressed or not.
fn is_json(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    [".json", ".json.gz", ".json.zst", ".json.zstd"].iter().any(|end| name.ends_with(end))
}

impl SourceFile {
    fn new(path: &Path, found: bool, depth: usize) -> Result<SourceFile> {
        let about = std::fs::metadata(path).map_err(Error::io(path, "read"))?;
        if !about.is_file() {
            return Err(Error::refused(
                format!("{}: not a regular file; pipes and devices cannot be read twice", path.display()),
                "write its content to a file, and give that file",
            ));
        }
        let mut format = SourceFormat::of(path, None);
        if let SourceFormat::Text(compression) = format
            && is_json(path)
            && !(found && recognise::describes(path))
        {
            format = recognise::json(path, compression)?;
        }
        if let SourceFormat::Text(compression) = format {
            recognise::plain(path, compression)?;
        }
        Ok(SourceFile { path: path.to_owned(), format, size: about.len(), found, depth })
    }

    /// Takes MIDI files for music, and passes over plain texts that were found between them.
    pub(crate) fn expect_music(&mut self, representation: Representation) {
        // what the walk left out cannot be read as music either
        if !matches!(self.format, SourceFormat::TokenFiles | SourceFormat::Ignored(_)) {
            self.format = SourceFormat::of(&self.path, Some(representation));
        }
        if self.found && matches!(self.format, SourceFormat::Text(_)) {
            let compressed = recognise::is_compressed_midi(&self.path);
            self.format =
                SourceFormat::Ignored(if compressed { "compressed MIDI; decompress it" } else { "it is not MIDI" });
        }
    }

    /// Whether it is an archive in a folder, of whose files none would be read.
    pub(crate) fn is_found_archive(&self) -> bool {
        self.found && matches!(self.format, SourceFormat::Text(_)) && recognise::is_archive(&self.path)
    }

    /// What its documents are, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        match self.format {
            SourceFormat::JsonLines(_) => "JSON lines",
            SourceFormat::JsonArray(_) => "JSON arrays",
            SourceFormat::Delimited(_, b'\t') => "TSV",
            SourceFormat::Delimited(..) => "CSV",
            SourceFormat::Text(_) => "text",
            SourceFormat::Parquet => "Parquet",
            SourceFormat::TokenFiles => "token files",
            SourceFormat::Midi(_) => "MIDI",
            SourceFormat::MidiArchive(..) => "archives of MIDI",
            SourceFormat::Ignored(_) => "left out",
        }
    }

    /// What is wrong where it has no documents, and what to do.
    pub(crate) fn without_documents(&self) -> (&'static str, &'static str) {
        match self.format {
            SourceFormat::Midi(_) | SourceFormat::MidiArchive(..) => (
                "the file contains no notes to prepare",
                "give another file; `remi` leaves out drums, and archives need files that end in .mid or .midi",
            ),
            _ => ("the file contains no text", "give another file"),
        }
    }

    /// Whether its documents are values of a key or of a column.
    pub(crate) fn has_keys(&self) -> bool {
        use SourceFormat::{Delimited, JsonArray, JsonLines, Parquet};
        matches!(self.format, JsonLines(_) | JsonArray(_) | Delimited(..) | Parquet)
    }

    /// The documents, one at a time.
    pub(crate) fn documents(&self, text_key: &str) -> Result<Documents> {
        let (read, warnings) = (Rc::new(Cell::new(0)), Rc::<RefCell<Vec<String>>>::default());
        let reader: DocumentReader = match self.format {
            SourceFormat::JsonLines(compression) => {
                let input = open(&self.path, compression, read.clone())?;
                Box::new(json_lines::JsonLines::new(&self.path, input, text_key))
            }
            SourceFormat::JsonArray(compression) => {
                let input = open(&self.path, compression, read.clone())?;
                Box::new(json_array::documents(&self.path, input, text_key)?)
            }
            SourceFormat::Delimited(compression, delimiter) => {
                let input = open(&self.path, compression, read.clone())?;
                Box::new(delimited::documents(&self.path, input, delimiter, text_key)?)
            }
            SourceFormat::Parquet => {
                Box::new(parquet::ParquetRows::open(&self.path, self.size, text_key, read.clone())?)
            }
            SourceFormat::Text(compression) => {
                let content = plain::read(&self.path, compression, self.found, plain::HELD, read.clone());
                Box::new(std::iter::once(content.map(|content| SourceDocument { number: 1, content })))
            }
            SourceFormat::Midi(representation) => {
                let size = self.size;
                let document = midi::file(&self.path, representation).inspect(|_| read.set(size));
                Box::new(std::iter::once(document))
            }
            SourceFormat::MidiArchive(representation, compression) => {
                let input = open(&self.path, compression, read.clone())?;
                Box::new(midi::MidiArchive::new(&self.path, input, representation, warnings.clone()))
            }
            SourceFormat::Ignored(why) => Box::new(std::iter::once(Ok(SourceDocument {
                number: 1,
                content: DocumentContent::NotText(why.to_owned()),
            }))),
            SourceFormat::TokenFiles => {
                let files = TokenFiles::open(&self.path)?;
                let (size, count, read) = (self.size, files.documents() as u64, read.clone());
                Box::new((0..files.documents()).map(move |index| {
                    read.set((u128::from(size) * (index as u128 + 1) / u128::from(count)) as u64);
                    Ok(SourceDocument { number: index, content: DocumentContent::Tokens(files.document(index)) })
                }))
            }
        };
        Ok(Documents { reader, read, warnings })
    }

    /// What is wrong with a document.
    pub(crate) fn wrong(&self, number: usize, message: String, hint: String) -> Error {
        let place = match self.format {
            SourceFormat::JsonLines(_) => format!(", line {number}"),
            SourceFormat::JsonArray(_) => format!(", item {number}"),
            SourceFormat::Parquet | SourceFormat::Delimited(..) => format!(", row {number}"),
            SourceFormat::TokenFiles => format!(", document {number}"),
            SourceFormat::MidiArchive(..) => format!(", entry {number}"),
            SourceFormat::Text(_) | SourceFormat::Midi(_) | SourceFormat::Ignored(_) => String::new(),
        };
        Error::damaged_at(&self.path, place, message, hint)
    }
}

/// A document as it was found.
#[derive(Debug)]
pub(crate) struct SourceDocument {
    /// Line, row or entry, counted from 1; document of token files, counted from 0.
    pub(crate) number: usize,
    pub(crate) content: DocumentContent,
}

#[derive(Debug)]
pub(crate) enum DocumentContent {
    Text(String),
    Long(LongText),
    Tokens(TokenStream),
    Music(Box<MusicDocument>),
    /// A file that is not text, and how that is seen.
    NotText(String),
    /// What is damaged, while what follows it may be whole.
    Bad(Error),
}

impl DocumentContent {
    /// What was read, or that it is damaged; other errors end the reading.
    fn or_bad(read: Result<DocumentContent>) -> Result<DocumentContent> {
        match read {
            Err(error @ Error::Damaged { .. }) => Ok(DocumentContent::Bad(error)),
            read => read,
        }
    }
}

type DocumentReader = Box<dyn Iterator<Item = Result<SourceDocument>>>;

/// The documents of a file.
pub(crate) struct Documents {
    reader: DocumentReader,
    read: Rc<Cell<u64>>,
    warnings: Rc<RefCell<Vec<String>>>,
}

impl Documents {
    /// How many of the file's bytes have been read.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.get()
    }

    /// What the user should know of the file, once all of it has been read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.take()
    }
}

impl Iterator for Documents {
    type Item = Result<SourceDocument>;

    fn next(&mut self) -> Option<Result<SourceDocument>> {
        self.reader.next()
    }
}

/// Counts what passes through.
struct CountingReader<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

/// Opens a file for reading what it holds uncompressed.
pub(crate) fn open(path: &Path, compression: Compression, count: Rc<Cell<u64>>) -> Result<Box<dyn BufRead>> {
    const BUFFER: usize = 1 << 18;
    let file = kerple_run::files::open(path).map_err(Error::io(path, "open"))?;
    let raw = BufReader::with_capacity(BUFFER, CountingReader { inner: file, count });
    Ok(match compression {
        Compression::None => Box::new(raw),
        Compression::Gzip => Box::new(BufReader::with_capacity(BUFFER, flate2::bufread::MultiGzDecoder::new(raw))),
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(raw).map_err(Error::io(path, "read"))?;
            // files made with `zstd --long` need a window beyond the default limit of 128 MiB
            decoder.window_log_max(31).map_err(Error::io(path, "read"))?;
            Box::new(BufReader::with_capacity(BUFFER, decoder))
        }
    })
}

/// An error of reading compressed bytes at a place.
fn unreadable(path: &Path, place: String, error: &std::io::Error) -> Error {
    Error::damaged_at(
        path,
        place,
        format!("cannot read further: {error}"),
        "the file is truncated, damaged, or not compressed as its name claims; download it again",
    )
}

#[cfg(test)]
mod tests;
