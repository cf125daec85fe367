//! A stream of tokens in a memory-mapped file.

use crate::error::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A file mapped into memory, shared by those who read parts of it.
#[derive(Clone)]
pub(crate) struct Map(Arc<Mmap>);

impl Map {
    pub(crate) fn open(path: &Path) -> Result<Map> {
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        // SAFETY: the file must not shrink or change while mapped. Shards are never written in place: they appear, and
        // disappear, by renaming their folder, which leaves mapped files as they are.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path, "map"))?;
        Ok(Map(Arc::new(map)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// How a token is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    U8,
    U16,
    U32,
}

impl Width {
    /// The narrowest that holds every token of a vocabulary.
    pub(crate) fn of(vocab_size: usize) -> Width {
        match vocab_size {
            0..=0x100 => Width::U8,
            0x101..=0x1_0000 => Width::U16,
            _ => Width::U32,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Width::U8 => 1,
            Width::U16 => 2,
            Width::U32 => 4,
        }
    }

    pub(crate) fn from_bytes(bytes: u32) -> Option<Width> {
        [Width::U8, Width::U16, Width::U32].into_iter().find(|width| width.bytes() as u32 == bytes)
    }
}

/// A stream of tokens: the documents of a split one after another, each closed by the end-of-document token.
///
/// Cheap to clone; clones share the mapped file.
#[derive(Clone)]
pub struct Tokens {
    map: Map,
    at: usize,
    width: Width,
    ends: Arc<[u64]>,
}

impl Tokens {
    /// The tokens from byte `at` of a map on, with documents that end at `ends`.
    pub(crate) fn new(map: Map, at: usize, width: Width, ends: Vec<u64>) -> Tokens {
        Tokens { map, at, width, ends: ends.into() }
    }

    /// Tokens in the stream.
    pub fn len(&self) -> usize {
        self.ends.last().map_or(0, |end| *end as usize)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Documents in the stream.
    pub fn documents(&self) -> usize {
        self.ends.len()
    }

    /// Where a document lies, its end-of-document token included.
    ///
    /// # Panics
    /// When there are not that many documents.
    pub fn document(&self, index: usize) -> Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start as usize..self.ends[index] as usize
    }

    /// The tokens of a range.
    ///
    /// # Panics
    /// When the range reaches beyond the end.
    pub fn read(&self, range: Range<usize>) -> Vec<u32> {
        let mut out = Vec::with_capacity(range.len());
        self.read_into(range, &mut out);
        out
    }

    /// Appends the tokens of a range to `out`.
    ///
    /// # Panics
    /// When the range reaches beyond the end.
    pub fn read_into(&self, range: Range<usize>, out: &mut Vec<u32>) {
        let len = self.len();
        assert!(range.start <= range.end && range.end <= len, "tokens {range:?} of a stream of {len}");
        let width = self.width.bytes();
        let bytes = &self.map.bytes()[self.at + range.start * width..self.at + range.end * width];
        match self.width {
            Width::U8 => out.extend(bytes.iter().map(|byte| u32::from(*byte))),
            Width::U16 => out.extend(bytes.as_chunks().0.iter().map(|token| u32::from(u16::from_le_bytes(*token)))),
            Width::U32 => out.extend(bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token))),
        }
    }

    pub(crate) fn map(&self) -> &Map {
        &self.map
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Tokens {{ {} tokens, {} documents }}", self.len(), self.documents())
    }
}
