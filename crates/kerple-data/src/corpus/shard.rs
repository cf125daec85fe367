//! A split on disk: one file of tokens, read through a memory map.
//!
//! ```text
//! offset  0  magic "KERPLTOK"      8  version u32        12  bytes a token u32: 1, 2 or 4
//!        16  tokens u64           24  documents u64      32  XXH3-64 of all after the header
//!        40  XXH3-64 of bytes 0..40
//!        48  tokens, then zeros up to a multiple of 8, then where each document ends, u64, in tokens
//! ```
//!
//! Little endian. A document's last token is the end-of-document token.

use super::tokens::{Map, Tokens, Width};
use crate::error::{Error, Result};
use std::fs::File;
use std::hash::Hasher;
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"KERPLTOK";
const VERSION: u32 = 1;
const HEADER: usize = 48;
const AGAIN: &str = "prepare the corpus again";

/// Writes a shard, document by document.
pub(crate) struct ShardWriter {
    path: PathBuf,
    file: BufWriter<File>,
    body: XxHash3_64,
    width: Width,
    tokens: u64,
    ends: Vec<u64>,
    bytes: Vec<u8>,
}

impl ShardWriter {
    pub(crate) fn create(path: &Path, width: Width) -> Result<ShardWriter> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(Error::io(path, "create"))?);
        file.write_all(&[0; HEADER]).map_err(Error::io(path, "write"))?;
        let (tokens, ends, bytes) = (0, Vec::new(), Vec::new());
        Ok(ShardWriter { path: path.to_owned(), file, body: XxHash3_64::with_seed(0), width, tokens, ends, bytes })
    }

    /// Appends tokens to the document being written.
    pub(crate) fn extend(&mut self, tokens: &[u32]) -> Result<()> {
        self.tokens += tokens.len() as u64;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        match self.width {
            Width::U8 => bytes.extend(tokens.iter().map(|token| *token as u8)),
            Width::U16 => bytes.extend(tokens.iter().flat_map(|token| (*token as u16).to_le_bytes())),
            Width::U32 => bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes())),
        }
        self.write(&bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Ends the document being written.
    pub(crate) fn end_document(&mut self) {
        self.ends.push(self.tokens);
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(crate) fn documents(&self) -> u64 {
        self.ends.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.body.write(bytes);
        self.file.write_all(bytes).map_err(Error::io(&self.path, "write"))
    }

    /// Writes the table of documents and the header, and waits until all is on disk.
    pub(crate) fn finish(mut self) -> Result<()> {
        let length = self.tokens as usize * self.width.bytes();
        self.write(&[0; 8][..length.next_multiple_of(8) - length])?;
        let ends = std::mem::take(&mut self.ends);
        for chunk in ends.chunks(1 << 16) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|end| end.to_le_bytes()).collect();
            self.write(&bytes)?;
        }
        let header = Header {
            width: self.width,
            tokens: self.tokens,
            documents: ends.len() as u64,
            checksum: self.body.finish(),
        };
        self.file.rewind().map_err(Error::io(&self.path, "write"))?;
        self.file.write_all(&header.to_bytes()).map_err(Error::io(&self.path, "write"))?;
        self.file.flush().map_err(Error::io(&self.path, "write"))?;
        self.file.get_ref().sync_all().map_err(Error::io(&self.path, "write"))
    }
}

#[derive(Debug, PartialEq)]
struct Header {
    width: Width,
    tokens: u64,
    documents: u64,
    checksum: u64,
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.width.bytes() as u32).to_le_bytes());
        for (field, number) in bytes[16..40].chunks_exact_mut(8).zip([self.tokens, self.documents, self.checksum]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = XxHash3_64::oneshot(&bytes[..40]);
        bytes[40..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Header, String> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err(format!("the file has {} bytes, its header alone has {HEADER}", bytes.len()));
        };
        if &bytes[..8] != MAGIC {
            return Err(format!("this is not a token shard: it begins with `{}`", bytes[..8].escape_ascii()));
        }
        let small = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let large = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if small(8) != VERSION {
            return Err(format!("the format's version is {}, this program reads {VERSION}", small(8)));
        }
        if large(40) != XxHash3_64::oneshot(&bytes[..40]) {
            return Err("the header is damaged: its checksum does not match".to_owned());
        }
        let width = Width::from_bytes(small(12)).ok_or_else(|| format!("tokens of {} bytes", small(12)))?;
        Ok(Header { width, tokens: large(16), documents: large(24), checksum: large(32) })
    }

    /// Bytes of the tokens, padding included.
    fn token_bytes(&self) -> u128 {
        (u128::from(self.tokens) * self.width.bytes() as u128).next_multiple_of(8)
    }
}

/// Maps a shard. The header, the size and the table of documents are checked; the tokens by [`verify`].
pub(crate) fn open(path: &Path) -> Result<Tokens> {
    let map = Map::open(path)?;
    let damaged = |message: String| Error::damaged(path.display().to_string(), message, AGAIN);
    let bytes = map.bytes();
    let header = Header::parse(bytes).map_err(damaged)?;
    let expected = HEADER as u128 + header.token_bytes() + u128::from(header.documents) * 8;
    if bytes.len() as u128 != expected {
        return Err(damaged(format!("the file has {} bytes, its header says {expected}", bytes.len())));
    }
    let table = &bytes[HEADER + header.token_bytes() as usize..];
    let ends: Vec<u64> = table.as_chunks::<8>().0.iter().map(|end| u64::from_le_bytes(*end)).collect();
    if !ends.is_sorted() || ends.last().copied().unwrap_or(0) != header.tokens {
        return Err(damaged("the table of documents is damaged: it does not end with the last token".to_owned()));
    }
    Ok(Tokens::new(map, HEADER, header.width, ends))
}

/// Compares the checksum of everything after the header with the one in it.
pub(crate) fn verify(path: &Path, map: &Map) -> Result<()> {
    let damaged = |message: String| Error::damaged(path.display().to_string(), message, AGAIN);
    let header = Header::parse(map.bytes()).map_err(damaged)?;
    let found = XxHash3_64::oneshot(&map.bytes()[HEADER..]);
    if found != header.checksum {
        return Err(damaged(format!("checksum {found:016x}, the header says {:016x}", header.checksum)));
    }
    Ok(())
}
