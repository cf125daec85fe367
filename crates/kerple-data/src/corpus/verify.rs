//! Reads a whole corpus once and checks it against its checksums.

use super::{Corpus, shard};
use crate::error::Result;
use crate::split::Split;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// The result of a successful [`verify()`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Identifies the corpus, as [`Corpus::content`].
    pub content: String,
    /// The checked splits.
    pub splits: Vec<VerifiedSplit>,
}

/// A split that passed the check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifiedSplit {
    /// The split.
    pub split: Split,
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
    /// XXH3-128 of the tokens, in hexadecimal.
    pub checksum: String,
}

/// Checks a whole corpus: every token, its vocabulary, the document tables, `meta.json` and the
/// tokenizer. It reads everything once, at the speed of the disk.
///
/// GPT-NeoX token files have no checksums of their own: their index is checked and every token
/// read. The checksums in the report serve to compare with another time or place.
///
/// # Errors
/// The first check that fails.
pub fn verify(path: &Path) -> Result<VerifyReport> {
    let corpus = Corpus::open_unread(path)?;
    corpus.check_tokens(u64::MAX)?;
    Ok(corpus.report())
}

impl Corpus {
    /// [`verify()`] for an open corpus.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn verify(&self) -> Result<VerifyReport> {
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

    fn report(&self) -> VerifyReport {
        let verified = |split: Split| {
            let counts = self.summary.split(split).clone();
            VerifiedSplit { split, documents: counts.documents, tokens: counts.tokens, checksum: counts.checksum }
        };
        VerifyReport { content: self.content().to_owned(), splits: Split::ALL.map(verified).to_vec() }
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for VerifiedSplit { split, documents, tokens, checksum } in &self.splits {
            writeln!(out, "{:<6} {tokens:>14} tokens {documents:>12} documents  {checksum}", split.name())?;
        }
        write!(out, "content {}", self.content)
    }
}
