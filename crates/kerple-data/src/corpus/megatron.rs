//! Token files of Megatron-LM and GPT-NeoX: `name.bin` holds tokens, `name.idx` the positions of
//! documents.
//!
//! ```text
//! .idx  "MMIDIDX\0\0", version u64 = 1, type u8, sequences u64, documents + 1 u64,
//!       sizes i32[sequences], byte offsets into .bin i64[sequences], document bounds i64[documents + 1]
//! ```
//!
//! Little endian. A document has one or more sequences, e.g. its sentences: those from one bound to
//! the next. GPT-NeoX itself writes one sequence per document, and treats each sequence of other
//! files as a document.

use super::shard::survey;
use crate::error::{Error, Result};
use crate::file::{PositionedFile, is_file};
use crate::tokenizer::LARGEST_VOCABULARY;
use crate::tokens::{TokenStream, TokenWidth};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEADER: usize = 34;
const HINT: &str = "give the prefix of files that GPT-NeoX's preprocess_data wrote with --dataset-impl mmap";

/// An open pair of files.
pub(crate) struct TokenFiles {
    tokens: Arc<PositionedFile>,
    width: TokenWidth,
    signed: bool,
    /// Where each document lies, in tokens.
    documents: Vec<Range<usize>>,
    /// Tokens of no sequence.
    left_out: u64,
    /// Bytes of the index after the document bounds.
    beyond: u64,
}

fn with_extension(prefix: &Path, extension: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(extension);
    name.into()
}

impl TokenFiles {
    /// Whether `prefix.idx` and `prefix.bin` are there.
    ///
    /// # Errors
    /// A disk that does not answer.
    pub(crate) fn exist(prefix: &Path) -> Result<bool> {
        let [index, tokens] = TokenFiles::paths(prefix);
        Ok(is_file(&index)? && is_file(&tokens)?)
    }

    /// Both files of a prefix: index and tokens.
    pub(crate) fn paths(prefix: &Path) -> [PathBuf; 2] {
        [".idx", ".bin"].map(|end| with_extension(prefix, end))
    }

    pub(crate) fn open(prefix: &Path) -> Result<TokenFiles> {
        let [idx, bin] = TokenFiles::paths(prefix);
        let index = PositionedFile::open(&idx)?;
        let damaged = |at: usize, message: String| Error::damaged_at(&idx, format!(", byte {at}"), message, HINT);
        let start = index.read(0..index.len().min(HEADER as u64))?;
        let MegatronHeader { width, signed, sequences, bounds } =
            parse_header(&start, index.len()).map_err(|(at, message)| damaged(at, message))?;
        let table = index.read(HEADER as u64..(HEADER + 12 * sequences) as u64)?;
        let (sizes, offsets) = table.split_at(4 * sequences);
        check_width(width, sizes, offsets).map_err(|message| damaged(TYPE, message))?;
        let tokens = PositionedFile::open(&bin)?;
        let limit = tokens.len();
        let mut found = Vec::with_capacity(sequences);
        for (at, (size, offset)) in sizes.as_chunks::<4>().0.iter().zip(offsets.as_chunks::<8>().0).enumerate() {
            let (size, offset) = (i32::from_le_bytes(*size), i64::from_le_bytes(*offset));
            let end = i128::from(offset) + i128::from(size) * width.bytes() as i128;
            if size < 0 || offset < 0 || end > i128::from(limit) || !(offset as usize).is_multiple_of(width.bytes()) {
                return Err(damaged(
                    HEADER + 4 * at,
                    format!(
                        "sequence {at} has {size} tokens at byte {offset}, which does not fit the {limit} bytes of {}",
                        bin.display()
                    ),
                ));
            }
            let start = offset as usize / width.bytes();
            found.push(start..start + size as usize);
        }
        let stated: u128 = found.iter().map(|sequence| sequence.len() as u128).sum();
        if stated > u128::from(limit / width.bytes() as u64) {
            let message = format!(
                "the sequences have {stated} tokens in total, which do not fit the {limit} bytes of {}",
                bin.display()
            );
            return Err(damaged(HEADER, message));
        }
        let left_out = limit / width.bytes() as u64 - stated as u64;
        let at = (HEADER + 12 * sequences) as u64;
        let table = index.read(at..at + 8 * bounds as u64)?;
        let bounds: Vec<i64> = table.as_chunks::<8>().0.iter().map(|bound| i64::from_le_bytes(*bound)).collect();
        let documents =
            joined(&found, &bounds).map_err(|(place, message)| damaged(at as usize + 8 * place, message))?;
        let beyond = index.len() - (at + 8 * bounds.len() as u64);
        Ok(TokenFiles { tokens: Arc::new(tokens), width, signed, documents, left_out, beyond })
    }

    /// Bytes of tokens.
    pub(crate) fn size(&self) -> u64 {
        self.tokens.len()
    }

    /// What of the files is not read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Self { left_out, beyond, tokens, .. } = self;
        let path = tokens.path().display();
        let tokens = (*left_out > 0)
            .then(|| format!("{path}: {left_out} of its tokens belong to no sequence of the index and are skipped"));
        // e.g. the modes of sequences in Megatron's multimodal files
        let bytes = (*beyond > 0)
            .then(|| format!("{path}: its index has {beyond} bytes after the document bounds, which are ignored"));
        tokens.into_iter().chain(bytes).collect()
    }

    pub(crate) fn documents(&self) -> usize {
        self.documents.len()
    }

    /// A document, whatever its tokens are.
    pub(crate) fn document(&self, index: usize) -> TokenStream {
        let Range { start, end } = self.documents[index];
        self.tokens_at(start, vec![(end - start) as u64])
    }

    /// Neighbouring documents as one stream, whatever their tokens are.
    pub(crate) fn stream(&self, documents: Range<usize>) -> Result<TokenStream> {
        let first = self.documents.get(documents.start).map_or(0, |document| document.start);
        let mut ends = Vec::with_capacity(documents.len());
        let mut last = first;
        for (index, document) in self.documents[documents.clone()].iter().enumerate() {
            if document.start != last && !document.is_empty() {
                return Err(Error::refused(
                    format!(
                        "{}: document {} does not follow the previous one: it starts at token {}; \
                         expected token {last}",
                        self.tokens.path().display(),
                        documents.start + index,
                        document.start
                    ),
                    "copy the tokens into a contiguous corpus with `kerple prepare`",
                ));
            }
            last += document.len();
            ends.push((last - first) as u64);
        }
        Ok(self.tokens_at(first, ends))
    }

    fn tokens_at(&self, start: usize, ends: Vec<u64>) -> TokenStream {
        TokenStream::new(self.tokens.clone(), (start * self.width.bytes()) as u64, self.width, ends, 1 << 32)
    }

    /// The largest token of all documents.
    pub(crate) fn largest(&self) -> Result<u32> {
        let mut largest = 0;
        for run in self.documents.chunk_by(|one, next| one.end == next.start) {
            let (start, end) = (run[0].start, run[run.len() - 1].end);
            largest = largest.max(survey(&self.tokens_at(start, vec![(end - start) as u64]))?.1);
        }
        Ok(largest)
    }

    /// The size of the vocabulary: as stated, or the largest token and one.
    pub(crate) fn vocab_size(&self, largest: u32, stated: Option<usize>) -> Result<usize> {
        if self.documents.iter().all(Range::is_empty) {
            return Err(Error::damaged(self.tokens.path(), "the file contains 0 tokens; expected at least 1", HINT));
        }
        let limit = stated.unwrap_or(LARGEST_VOCABULARY);
        if (largest as usize) < limit && !(self.signed && largest > i32::MAX as u32) {
            return Ok(stated.unwrap_or(largest as usize + 1));
        }
        self.locate(largest, limit)
    }

    /// Says where a token is that is not in the vocabulary.
    fn locate(&self, token: u32, vocab_size: usize) -> Result<usize> {
        for index in 0..self.documents() {
            if self.document(index).contains(token)? {
                let place = format!(", document {index}");
                let (message, hint) = if self.signed && token > i32::MAX as u32 {
                    (format!("token {} is negative; expected 0 or more", token as i32), HINT)
                } else {
                    (
                        format!(
                            "token {token} is out of range; the largest id of the vocabulary is {}",
                            vocab_size as i128 - 1
                        ),
                        "state the vocabulary size of the tokenizer that produced the tokens",
                    )
                };
                return Err(Error::damaged_at(self.tokens.path(), place, message, hint));
            }
        }
        Err(Error::damaged(
            self.tokens.path(),
            "the file changed during reading",
            "do not write to the file while kerple reads it",
        ))
    }
}

/// The byte of the header with the type of tokens.
const TYPE: usize = 17;

/// Refuses a type of tokens whose width contradicts where the sequences begin: other programs write them one after the other.
fn check_width(width: TokenWidth, sizes: &[u8], offsets: &[u8]) -> std::result::Result<(), String> {
    let sizes = || sizes.as_chunks::<4>().0.iter().map(|size| i128::from(i32::from_le_bytes(*size)));
    let follow = |bytes: i128| {
        let ends = sizes().scan(0, |end, size| {
            *end += bytes * size;
            Some(*end)
        });
        let starts = std::iter::once(0).chain(ends);
        starts.zip(offsets.as_chunks::<8>().0).all(|(start, stated)| start == i128::from(i64::from_le_bytes(*stated)))
    };
    let own = width.bytes() as i128;
    match [1, 2, 4, 8].into_iter().find(|bytes| *bytes != own && !follow(own) && follow(*bytes)) {
        None => Ok(()),
        Some(bytes) => Err(format!(
            "the token type has {own} bytes, but the sequences begin where tokens of {bytes} bytes put them"
        )),
    }
}

/// What a header says.
struct MegatronHeader {
    width: TokenWidth,
    signed: bool,
    sequences: usize,
    /// Bounds of documents, one more than there are documents.
    bounds: usize,
}

/// The sequences of each document as one range; or the bound at fault and why.
fn joined(sequences: &[Range<usize>], bounds: &[i64]) -> std::result::Result<Vec<Range<usize>>, (usize, String)> {
    let count = sequences.len();
    let Some((first, rest)) = bounds.split_first() else {
        return Err((0, format!("the index has {count} sequences but 0 document bounds")));
    };
    if *first != 0 {
        return Err((0, format!("document bound 0 is {first}; expected 0")));
    }
    let (mut documents, mut before, mut at) = (Vec::with_capacity(rest.len()), 0, 0);
    for (number, bound) in (1..).zip(rest) {
        let Some(end) = usize::try_from(*bound).ok().filter(|end| (before..=count).contains(end)) else {
            let limits = format!("between {before}, the previous bound, and {count}, the number of sequences");
            return Err((number, format!("document bound {number} is {bound}; it must be {limits}")));
        };
        let filled = || sequences[before..end].iter().zip(before..).filter(|(sequence, _)| !sequence.is_empty());
        let start = filled().next().map_or(at, |(sequence, _)| sequence.start);
        at = start;
        for (sequence, place) in filled() {
            if sequence.start != at {
                let message = format!(
                    "sequence {place} of document {} starts at token {}; expected {at}, where the \
                     previous sequence ends",
                    number - 1,
                    sequence.start
                );
                return Err((number, message));
            }
            at = sequence.end;
        }
        documents.push(start..at);
        before = end;
    }
    if before == count {
        Ok(documents)
    } else {
        let last = bounds.len() - 1;
        Err((
            last,
            format!("document bound {last}, the last one, is {before}; expected {count}, the number of sequences"),
        ))
    }
}

/// The header of an index of `size` bytes; or the byte at fault and why.
fn parse_header(bytes: &[u8], size: u64) -> std::result::Result<MegatronHeader, (usize, String)> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Err((bytes.len(), format!("the file has {size} bytes; the header alone needs {HEADER}")));
    };
    if &header[..9] != MAGIC {
        return Err((0, format!("the file starts with `{}`; expected `MMIDIDX`", header[..9].escape_ascii())));
    }
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    if number(9) != 1 {
        return Err((9, format!("the format has version {}; kerple reads version 1", number(9))));
    }
    let (width, signed) = match header[TYPE] {
        1 => (TokenWidth::U8, false),
        4 => (TokenWidth::U32, true),
        8 => (TokenWidth::U16, false),
        other => {
            return Err((TYPE, format!("the token type is {other}; kerple reads 1 (u8), 4 (i32) and 8 (u16)")));
        }
    };
    let (sequences, bounds) = (number(18), number(26));
    let expected = HEADER as u128 + 12 * u128::from(sequences) + 8 * u128::from(bounds);
    if u128::from(size) < expected {
        return Err((
            18,
            format!("{sequences} sequences and {bounds} document bounds need {expected} bytes; the file has {size}"),
        ));
    }
    Ok(MegatronHeader { width, signed, sequences: sequences as usize, bounds: bounds as usize })
}
