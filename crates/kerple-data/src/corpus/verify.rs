//! Reading a whole corpus once to see whether it is what it says.

use super::{Corpus, shard};
use crate::error::Result;
use crate::split::Split;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// What [`verify()`] has found to be as it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Identifies the corpus, as [`Corpus::content`].
    pub content: String,
    /// What was read, split by split.
    pub splits: Vec<Verified>,
}

/// A split that holds what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Which.
    pub split: Split,
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
    /// XXH3-128 of the tokens, in hexadecimal.
    pub checksum: String,
}

/// Checks everything a corpus says of itself: every token, its vocabulary, the tables of documents, `meta.json` and the
/// tokenizer. Reads all of it once, at the speed of the disk.
///
/// GPT-NeoX token files say little: their index is checked and every token read, and the checksums are for comparing
/// with those of another time or place.
///
/// # Errors
/// The first thing that is not as it should be.
pub fn verify(path: &Path) -> Result<Report> {
    let corpus = Corpus::open_unread(path)?;
    corpus.check_tokens(u64::MAX)?;
    Ok(corpus.report())
}

impl Corpus {
    /// [`verify()`] for an open corpus.
    ///
    /// # Errors
    /// The first thing that is not as it should be.
    pub fn verify(&self) -> Result<Report> {
        self.check_tokens(u64::MAX)?;
        Ok(self.report())
    }

    /// Compares the tokens of the shards of up to `limit` bytes with their checksums.
    pub(super) fn check_tokens(&self, limit: u64) -> Result<()> {
        for (tokens, header) in self.splits.iter().zip(self.headers.iter().flatten()) {
            if (tokens.len() * tokens.width().bytes()) as u64 <= limit {
                shard::verify(tokens, header)?;
            }
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let verified = |split: Split| {
            let counts = self.summary.split(split).clone();
            Verified { split, documents: counts.documents, tokens: counts.tokens, checksum: counts.checksum }
        };
        Report { content: self.content().to_owned(), splits: Split::ALL.map(verified).to_vec() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Verified { split, documents, tokens, checksum } in &self.splits {
            writeln!(out, "{:<6} {tokens:>14} tokens {documents:>12} documents  {checksum}", split.name())?;
        }
        write!(out, "content {}", self.content)
    }
}
