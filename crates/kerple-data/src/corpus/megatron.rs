//! Token files of Megatron-LM and GPT-NeoX: `name.bin` holds tokens, `name.idx` says where documents lie.
//!
//! ```text
//! .idx  "MMIDIDX\0\0", version u64 = 1, type u8, sequences u64, documents + 1 u64,
//!       sizes i32[sequences], byte offsets into .bin i64[sequences], document bounds i64[documents + 1]
//! ```
//!
//! Little endian. A sequence is a document to GPT-NeoX, and here.

use super::tokens::{Map, Tokens, Width};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::ops::Range;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEADER: usize = 34;
const HINT: &str = "give the prefix of files written by GPT-NeoX's preprocess_data with --dataset-impl mmap";

/// An open pair of files.
pub(crate) struct TokenFiles {
    bin: PathBuf,
    tokens: Map,
    width: Width,
    signed: bool,
    /// Where each document lies, in tokens.
    documents: Vec<Range<usize>>,
}

fn with_extension(prefix: &Path, extension: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(extension);
    name.into()
}

impl TokenFiles {
    /// Whether `prefix.idx` and `prefix.bin` are there.
    pub(crate) fn exist(prefix: &Path) -> bool {
        with_extension(prefix, ".idx").is_file() && with_extension(prefix, ".bin").is_file()
    }

    pub(crate) fn open(prefix: &Path) -> Result<TokenFiles> {
        let (idx, bin) = (with_extension(prefix, ".idx"), with_extension(prefix, ".bin"));
        let index = Map::open(&idx)?;
        let damaged =
            |at: usize, message: String| Error::damaged(format!("{}, byte {at}", idx.display()), message, HINT);
        let (width, signed, sequences) = parse_header(index.bytes()).map_err(|(at, message)| damaged(at, message))?;
        let sizes = index.bytes()[HEADER..].as_chunks::<4>().0[..sequences].iter();
        let offsets = index.bytes()[HEADER + 4 * sequences..].as_chunks::<8>().0[..sequences].iter();
        let tokens = Map::open(&bin)?;
        let limit = tokens.bytes().len();
        let mut documents = Vec::with_capacity(sequences);
        for (at, (size, offset)) in sizes.zip(offsets).enumerate() {
            let (size, offset) = (i32::from_le_bytes(*size), i64::from_le_bytes(*offset));
            let end = i128::from(offset) + i128::from(size) * width.bytes() as i128;
            if size < 0 || offset < 0 || end > limit as i128 || !(offset as usize).is_multiple_of(width.bytes()) {
                return Err(damaged(
                    HEADER + 4 * at,
                    format!("document {at} has {size} tokens at byte {offset}, {} has {limit} bytes", bin.display()),
                ));
            }
            let start = offset as usize / width.bytes();
            documents.push(start..start + size as usize);
        }
        Ok(TokenFiles { bin, tokens, width, signed, documents })
    }

    /// Bytes of tokens.
    pub(crate) fn size(&self) -> u64 {
        self.tokens.bytes().len() as u64
    }

    pub(crate) fn documents(&self) -> usize {
        self.documents.len()
    }

    /// A document's tokens.
    pub(crate) fn document(&self, index: usize) -> Vec<u32> {
        let Range { start, end } = self.documents[index];
        let at = start * self.width.bytes();
        Tokens::new(self.tokens.clone(), at, self.width, vec![(end - start) as u64]).read(0..end - start)
    }

    /// Neighbouring documents as one stream.
    pub(crate) fn stream(&self, documents: Range<usize>) -> Result<Tokens> {
        let first = self.documents.get(documents.start).map_or(0, |document| document.start);
        let mut ends = Vec::with_capacity(documents.len());
        let mut last = first;
        for (index, document) in self.documents[documents.clone()].iter().enumerate() {
            if document.start != last {
                return Err(Error::refused(
                    format!(
                        "{}: document {} does not follow its predecessor: it begins at token {}, not {last}",
                        self.bin.display(),
                        documents.start + index,
                        document.start
                    ),
                    "copy the tokens into a corpus of their own with `kerple prepare`",
                ));
            }
            last = document.end;
            ends.push((last - first) as u64);
        }
        Ok(Tokens::new(self.tokens.clone(), first * self.width.bytes(), self.width, ends))
    }

    /// The size of the vocabulary: as stated, or the largest token and one.
    pub(crate) fn vocab_size(&self, stated: Option<usize>) -> Result<usize> {
        let largest = (0..self.documents()).into_par_iter().map(|index| {
            let largest = self.document(index).into_iter().max();
            (largest, std::cmp::Reverse(index))
        });
        let Some((Some(largest), document)) = largest.max() else {
            return Err(Error::damaged(self.bin.display().to_string(), "there are no tokens", HINT));
        };
        let place = format!("{}, document {}", self.bin.display(), document.0);
        if self.signed && largest > i32::MAX as u32 {
            return Err(Error::damaged(place, format!("token {} is negative", largest as i32), HINT));
        }
        match stated {
            Some(stated) if largest as usize >= stated => Err(Error::damaged(
                place,
                format!("token {largest}, the vocabulary ends at {}", stated as i128 - 1),
                "state the vocabulary size of the tokenizer the tokens were made with",
            )),
            Some(stated) => Ok(stated),
            None => Ok(largest as usize + 1),
        }
    }
}

/// Width of tokens, whether they are signed, and how many sequences there are; or the byte at fault and why.
fn parse_header(bytes: &[u8]) -> std::result::Result<(Width, bool, usize), (usize, String)> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Err((bytes.len(), format!("the file has {} bytes, its header alone has {HEADER}", bytes.len())));
    };
    if &header[..9] != MAGIC {
        return Err((0, format!("the file begins with `{}`, not `MMIDIDX`", header[..9].escape_ascii())));
    }
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    if number(9) != 1 {
        return Err((9, format!("the format's version is {}, this program reads 1", number(9))));
    }
    let (width, signed) = match header[17] {
        1 => (Width::U8, false),
        4 => (Width::U32, true),
        8 => (Width::U16, false),
        other => {
            return Err((17, format!("tokens are of type {other}, this program reads 1 (u8), 4 (i32) and 8 (u16)")));
        }
    };
    let (sequences, bounds) = (number(18), number(26));
    let expected = HEADER as u128 + 12 * u128::from(sequences) + 8 * u128::from(bounds);
    if (bytes.len() as u128) < expected {
        return Err((18, format!("{sequences} sequences need {expected} bytes, the file has {}", bytes.len())));
    }
    Ok((width, signed, sequences as usize))
}
