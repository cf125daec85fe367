//! A split on disk: one file of tokens.
//!
//! ```text
//! offset  0  magic "KERPLTOK"      8  version u32        12  bytes per token u32: 1, 2, 4
//!        16  tokens u64           24  documents u64      32  XXH3-128 of the tokens
//!        48  XXH3-64 of all after the tokens             56  largest token u32
//!        60  split u32: 0 train, 1 valid, 2 test         64  XXH3-64 of bytes 0..64
//!        72  tokens, then zeros up to a multiple of 8, then where each document ends, u64, in tokens
//! ```
//!
//! Little endian. A document's last token is the end-of-document token.

use crate::error::{Error, Result};
use crate::file::PositionedFile;
use crate::hash::{Checksum, hex};
use crate::split::Split;
use crate::tokens::{TokenStream, TokenWidth};
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"KERPLTOK";
const VERSION: u32 = 2;
const HEADER: usize = 72;
pub(super) const AGAIN: &str = "prepare the corpus again";

/// Writes a shard, document by document.
pub(crate) struct ShardWriter {
    path: PathBuf,
    file: BufWriter<File>,
    split: Split,
    sum: Checksum,
    width: TokenWidth,
    tokens: u64,
    largest: u32,
    ends: Vec<u64>,
    bytes: Vec<u8>,
}

impl ShardWriter {
    pub(crate) fn create(folder: &Path, split: Split, width: TokenWidth) -> Result<ShardWriter> {
        ShardWriter::at(&folder.join(split.file()), split, width)
    }

    pub(super) fn at(path: &Path, split: Split, width: TokenWidth) -> Result<ShardWriter> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(Error::io(path, "create"))?);
        file.write_all(&[0; HEADER]).map_err(Error::io(path, "write"))?;
        Ok(ShardWriter {
            path: path.to_owned(),
            file,
            split,
            sum: Checksum::default(),
            width,
            tokens: 0,
            largest: 0,
            ends: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Appends tokens to the document being written.
    pub(crate) fn extend(&mut self, tokens: &[u32]) -> Result<()> {
        self.tokens += tokens.len() as u64;
        self.largest = self.largest.max(tokens.iter().copied().max().unwrap_or(0));
        self.bytes.clear();
        self.width.encode(tokens, &mut self.bytes);
        self.sum.add(&self.bytes);
        self.file.write_all(&self.bytes).map_err(Error::io(&self.path, "write"))
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

    /// Writes the table of documents and the header, and waits until all is on disk.
    pub(crate) fn finish(mut self) -> Result<ShardChecksums> {
        let tail = tail(self.tokens, self.width, &self.ends);
        let header = ShardHeader {
            width: self.width,
            split: self.split,
            tokens: self.tokens,
            documents: self.ends.len() as u64,
            stored: ShardChecksums { checksum: self.sum.finish(), table: XxHash3_64::oneshot(&tail) },
            largest: self.largest,
        };
        let mut write = || {
            self.file.write_all(&tail)?;
            self.file.rewind()?;
            self.file.write_all(&header.to_bytes())?;
            self.file.flush()?;
            self.file.get_ref().sync_all()
        };
        write().map_err(Error::io(&self.path, "write"))?;
        Ok(header.stored)
    }
}

/// What a shard holds, in two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ShardChecksums {
    /// XXH3-128 of the tokens as they are stored.
    pub(crate) checksum: u128,
    /// XXH3-64 of the padding and the table of documents.
    pub(crate) table: u64,
}

/// What follows the tokens: zeros up to a multiple of 8 and where each document ends.
pub(super) fn tail(tokens: u64, width: TokenWidth, ends: &[u64]) -> Vec<u8> {
    let length = tokens as usize * width.bytes();
    let mut bytes = vec![0; length.next_multiple_of(8) - length];
    bytes.extend(ends.iter().flat_map(|end| end.to_le_bytes()));
    bytes
}

#[derive(Debug, PartialEq)]
pub(super) struct ShardHeader {
    width: TokenWidth,
    split: Split,
    tokens: u64,
    documents: u64,
    pub(super) stored: ShardChecksums,
    pub(super) largest: u32,
}

impl ShardHeader {
    fn to_bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.width.bytes() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.documents.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.stored.checksum.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.stored.table.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.largest.to_le_bytes());
        bytes[60..64].copy_from_slice(&(self.split as u32).to_le_bytes());
        let checksum = XxHash3_64::oneshot(&bytes[..64]);
        bytes[64..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8], size: u64) -> std::result::Result<ShardHeader, String> {
        if !bytes.starts_with(MAGIC) && !bytes.is_empty() {
            let start = &bytes[..bytes.len().min(8)];
            return Err(format!("the file is not a shard of tokens: it starts with `{}`", start.escape_ascii()));
        }
        let small = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let large = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes.len() >= 12 && small(8) < VERSION {
            return Err(format!("the file has format {}, of an older version of kerple; expected {VERSION}", small(8)));
        }
        if bytes.len() >= 12 && small(8) > VERSION {
            return Err(format!("the file has format {}; kerple reads {VERSION}", small(8)));
        }
        if bytes.len() < HEADER {
            return Err(format!("the file has {size} bytes; the header alone needs {HEADER}"));
        }
        if large(64) != XxHash3_64::oneshot(&bytes[..64]) {
            return Err("the header is damaged: its checksum does not match".to_owned());
        }
        let width = TokenWidth::from_bytes(small(12)).ok_or_else(|| format!("tokens have {} bytes", small(12)))?;
        let split = Split::ALL.get(small(60) as usize).ok_or_else(|| format!("split number {}", small(60)))?;
        let checksum = u128::from(large(32)) | u128::from(large(40)) << 64;
        let stored = ShardChecksums { checksum, table: large(48) };
        Ok(ShardHeader { width, split: *split, tokens: large(16), documents: large(24), stored, largest: small(56) })
    }

    /// Bytes of the tokens, padding included.
    fn token_bytes(&self) -> u128 {
        (u128::from(self.tokens) * self.width.bytes() as u128).next_multiple_of(8)
    }
}

/// Opens the shard of a split. The header, the split, the size, the vocabulary and the table of documents are checked;
/// the tokens by [`verify()`].
pub(super) fn open(path: &Path, split: Split, vocab_size: usize) -> Result<(TokenStream, ShardHeader)> {
    let file = PositionedFile::open(path)?;
    let damaged = |message: String| Error::damaged(path, message, AGAIN);
    let start = file.read(0..file.len().min(HEADER as u64))?;
    let header = ShardHeader::parse(&start, file.len()).map_err(damaged)?;
    if header.split != split {
        let (found, expected) = (header.split.name(), split.name());
        return Err(damaged(format!("the file contains the {found} split; expected the {expected} split")));
    }
    let expected = HEADER as u128 + header.token_bytes() + u128::from(header.documents) * 8;
    if u128::from(file.len()) != expected {
        return Err(damaged(format!("the file has {} bytes; its header states {expected}", file.len())));
    }
    if header.tokens > 0 && header.largest as usize >= vocab_size {
        let limit = vocab_size as i128 - 1;
        return Err(damaged(format!(
            "token {} is out of range; the largest id of the vocabulary is {limit}",
            header.largest
        )));
    }
    let tail = file.read(HEADER as u64 + header.tokens * header.width.bytes() as u64..file.len())?;
    if XxHash3_64::oneshot(&tail) != header.stored.table {
        return Err(damaged("the document table is damaged: its checksum does not match".to_owned()));
    }
    let table = &tail[tail.len() - header.documents as usize * 8..];
    let ends: Vec<u64> = table.as_chunks::<8>().0.iter().map(|end| u64::from_le_bytes(*end)).collect();
    if !ends.is_sorted() || ends.last().copied().unwrap_or(0) != header.tokens {
        return Err(damaged("the document table is damaged: it does not end at the last token".to_owned()));
    }
    let tokens = TokenStream::new(Arc::new(file), HEADER as u64, header.width, ends, vocab_size);
    Ok((tokens, header))
}

/// Whether a file begins as shards do.
pub(crate) fn is_shard(path: &Path) -> bool {
    path.is_file() && PositionedFile::open(path).and_then(|file| file.read(0..8)).is_ok_and(|start| start == MAGIC)
}

/// Compares the tokens with what the header says of them; reads all of them once.
pub(super) fn verify(tokens: &TokenStream, header: &ShardHeader) -> Result<()> {
    let (checksum, largest) = survey(tokens)?;
    let damaged = |message: String| Error::damaged(tokens.path(), message, AGAIN);
    if checksum != header.stored.checksum {
        return Err(damaged(format!(
            "the checksum is {}, but the header states {}",
            hex(checksum),
            hex(header.stored.checksum)
        )));
    }
    if largest != header.largest {
        return Err(damaged(format!("the largest token is {largest}, but the header states {}", header.largest)));
    }
    Ok(())
}

/// Checksum of the stored tokens, and the largest of them.
pub(super) fn survey(tokens: &TokenStream) -> Result<(u128, u32)> {
    let (mut sum, mut largest, mut decoded) = (Checksum::default(), 0, Vec::new());
    tokens.blocks(0..tokens.len(), |bytes, _| {
        sum.add(bytes);
        decoded.clear();
        tokens.width().decode(bytes, &mut decoded);
        largest = largest.max(decoded.iter().copied().max().unwrap_or(0));
        Ok(())
    })?;
    Ok((sum.finish(), largest))
}
