//! A token stream in a file.

use crate::error::{Error, Result};
use crate::file::PositionedFile;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How a token is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenWidth {
    U8,
    U16,
    U32,
}

impl TokenWidth {
    /// The narrowest that holds every token of a vocabulary.
    pub(crate) fn of(vocab_size: usize) -> TokenWidth {
        match vocab_size {
            0..=0x100 => TokenWidth::U8,
            0x101..=0x1_0000 => TokenWidth::U16,
            _ => TokenWidth::U32,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            TokenWidth::U8 => 1,
            TokenWidth::U16 => 2,
            TokenWidth::U32 => 4,
        }
    }

    pub(crate) fn from_bytes(bytes: u32) -> Option<TokenWidth> {
        [TokenWidth::U8, TokenWidth::U16, TokenWidth::U32].into_iter().find(|width| width.bytes() as u32 == bytes)
    }

    /// Appends tokens, little endian. The caller has checked that they fit.
    pub(crate) fn encode(self, tokens: &[u32], out: &mut Vec<u8>) {
        match self {
            TokenWidth::U8 => out.extend(tokens.iter().map(|token| *token as u8)),
            TokenWidth::U16 => out.extend(tokens.iter().flat_map(|token| (*token as u16).to_le_bytes())),
            TokenWidth::U32 => out.extend(tokens.iter().flat_map(|token| token.to_le_bytes())),
        }
    }

    /// Appends the tokens that `bytes` stand for.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut Vec<u32>) {
        match self {
            TokenWidth::U8 => out.extend(bytes.iter().map(|byte| u32::from(*byte))),
            TokenWidth::U16 => {
                out.extend(bytes.as_chunks().0.iter().map(|token| u32::from(u16::from_le_bytes(*token))))
            }
            TokenWidth::U32 => out.extend(bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token))),
        }
    }
}

/// Tokens are read in blocks of at most this many.
const BLOCK: usize = 1 << 20;

/// A stream of tokens: the documents of a split one after another, each closed by the end-of-document token.
///
/// Cheap to clone; clones share the open file.
#[derive(Clone)]
pub struct TokenStream {
    file: Arc<PositionedFile>,
    at: u64,
    width: TokenWidth,
    ends: Arc<[u64]>,
    vocab_size: usize,
}

impl TokenStream {
    /// The tokens from byte `at` of a file on, below `vocab_size`, with documents that end at `ends`.
    pub(crate) fn new(
        file: Arc<PositionedFile>,
        at: u64,
        width: TokenWidth,
        ends: Vec<u64>,
        vocab_size: usize,
    ) -> TokenStream {
        TokenStream { file, at, width, ends: ends.into(), vocab_size }
    }

    /// The same tokens of a vocabulary that is known now.
    pub(crate) fn below(self, vocab_size: usize) -> TokenStream {
        TokenStream { vocab_size, ..self }
    }

    /// Tokens in the stream.
    pub fn len(&self) -> usize {
        self.ends.last().map_or(0, |end| *end as usize)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of positions at which a sequence of `seq_len` tokens and its last target can
    /// begin; 0 when the stream is too short.
    pub fn windows(&self, seq_len: usize) -> usize {
        self.len().saturating_sub(seq_len)
    }

    /// Documents in the stream.
    pub fn documents(&self) -> usize {
        self.ends.len()
    }

    /// The range of a document, its end-of-document token included.
    ///
    /// # Panics
    /// When there are not that many documents.
    pub fn document(&self, index: usize) -> Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start as usize..self.ends[index] as usize
    }

    /// Where documents begin in a range, counted from its start and increasing; the range itself begins one. Empty for an
    /// empty range.
    ///
    /// # Panics
    /// When the range reaches beyond the end.
    pub fn document_starts(&self, range: Range<usize>) -> Vec<usize> {
        assert!(range.start <= range.end && range.end <= self.len(), "tokens {range:?} of a stream of {}", self.len());
        if range.is_empty() {
            return Vec::new();
        }
        let first = self.ends.partition_point(|end| *end as usize <= range.start);
        let within = self.ends[first..].iter().map(|end| *end as usize).take_while(|end| *end < range.end);
        let mut starts: Vec<usize> = [0].into_iter().chain(within.map(|end| end - range.start)).collect();
        // documents without tokens end where they begin
        starts.dedup();
        starts
    }

    /// The tokens of a range.
    ///
    /// # Errors
    /// A file that was changed since it was opened: truncated, or with tokens outside the
    /// vocabulary.
    ///
    /// # Panics
    /// When the range reaches beyond the end.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(range.len());
        self.read_into(range, &mut out)?;
        Ok(out)
    }

    /// Appends the tokens of a range to `out`.
    ///
    /// # Errors
    /// As [`TokenStream::read`].
    ///
    /// # Panics
    /// When the range reaches beyond the end.
    pub fn read_into(&self, range: Range<usize>, out: &mut Vec<u32>) -> Result<()> {
        self.blocks(range, |bytes, start| {
            let before = out.len();
            self.width.decode(bytes, out);
            let largest = out[before..].iter().copied().max().unwrap_or(0);
            if (largest as usize) < self.vocab_size {
                Ok(())
            } else {
                Err(Error::damaged_at(
                    self.file.path(),
                    format!(", tokens {start} to {}", start + bytes.len() / self.width.bytes()),
                    format!(
                        "token {largest} is out of range; the largest id of the vocabulary is {}",
                        self.vocab_size as i128 - 1
                    ),
                    "another program changed the file; check it with `kerple verify`, or prepare the corpus again",
                ))
            }
        })
    }

    /// Passes the stored bytes of a range to `take`, block by block, each with its first token's place.
    pub(crate) fn blocks(&self, range: Range<usize>, mut take: impl FnMut(&[u8], usize) -> Result<()>) -> Result<()> {
        let len = self.len();
        assert!(range.start <= range.end && range.end <= len, "tokens {range:?} of a stream of {len}");
        let width = self.width.bytes();
        let mut bytes = vec![0; range.len().min(BLOCK) * width];
        for start in range.clone().step_by(BLOCK) {
            let block = &mut bytes[..(range.end - start).min(BLOCK) * width];
            self.file.read_at(self.at + (start * width) as u64, block)?;
            take(block, start)?;
        }
        Ok(())
    }

    /// Passes the tokens on, block by block.
    pub(crate) fn each(&self, mut take: impl FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let mut block = Vec::new();
        (0..self.len()).step_by(BLOCK).try_for_each(|start| {
            block.clear();
            self.read_into(start..self.len().min(start + BLOCK), &mut block)?;
            take(&block)
        })
    }

    /// Whether a token occurs.
    pub(crate) fn contains(&self, token: u32) -> Result<bool> {
        let mut found = false;
        self.each(|block| {
            found |= block.contains(&token);
            Ok(())
        })?;
        Ok(found)
    }

    /// Where each document ends.
    pub(crate) fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// How a token is stored.
    pub(crate) fn width(&self) -> TokenWidth {
        self.width
    }

    /// The file the tokens lie in.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl std::fmt::Debug for TokenStream {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Tokens {{ {} tokens, {} documents }}", self.len(), self.documents())
    }
}
