//! A piece during preparation: its words, and those of its altered copies.

use super::{MusicPiece, Representation, Vocabulary};
use crate::error::Result;

/// A piece with its words.
#[derive(Debug)]
pub(crate) struct MusicDocument {
    piece: MusicPiece,
    vocabulary: &'static Vocabulary,
    /// The words, each followed by a space; empty when the piece has no notes.
    text: String,
    /// What was repaired of its file, which is named.
    repaired: Option<String>,
}

impl MusicDocument {
    /// The score of a piece that was read at a place.
    ///
    /// # Errors
    /// A piece that is too long.
    pub(crate) fn new(piece: MusicPiece, representation: Representation, place: &str) -> Result<MusicDocument> {
        let vocabulary = representation.vocabulary();
        let text = vocabulary.spell(&vocabulary.tokens(&piece)?);
        let repaired = (!piece.repairs.is_empty()).then(|| format!("{place}: {}", piece.repairs.join("; ")));
        Ok(MusicDocument { piece, vocabulary, text, repaired })
    }

    /// What was repaired of its file, if anything.
    pub(crate) fn repaired(&self) -> Option<&String> {
        self.repaired.as_ref()
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
