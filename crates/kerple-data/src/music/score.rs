//! A piece on its way into a corpus: its words, and those of its altered copies.

use super::{Piece, Representation, Vocabulary};
use crate::error::Result;

/// A piece with its words.
#[derive(Debug)]
pub(crate) struct Score {
    piece: Piece,
    vocabulary: &'static Vocabulary,
    /// The words, each followed by a space; empty when the piece has no notes.
    text: String,
}

impl Score {
    /// # Errors
    /// A piece that is too long.
    pub(crate) fn new(piece: Piece, representation: Representation) -> Result<Score> {
        let vocabulary = representation.vocabulary();
        let text = vocabulary.spell(&vocabulary.tokens(&piece)?);
        Ok(Score { piece, vocabulary, text })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The words of an altered copy.
    pub(crate) fn copy(&self, number: u64) -> Result<String> {
        Ok(self.vocabulary.spell(&self.vocabulary.augmented(&self.piece, SEED, number)?))
    }
}

/// Copies are drawn from this seed: equal inputs and options give equal corpora.
const SEED: u64 = 0;
