//! Where sequences come from: batches to train on, and text to evaluate on.

use crate::error::Result;
use crate::objective::SequenceBatch;
use kerple_data::Tokenizer;
use std::ops::Range;

/// Where training sequences come from: pure functions, so resuming needs no saved cursor.
pub trait BatchSource {
    /// Rows of the batch of an update, counted from 0.
    ///
    /// # Errors
    /// Text that can no longer be read.
    fn batch(&self, step: u64, rows: Range<usize>) -> Result<SequenceBatch>;
    /// Number of sequences for the validation loss; 0 where there is no text for it.
    fn validation_rows(&self) -> usize;
    /// The tokenizer of the text, where there is one.
    fn tokenizer(&self) -> Option<&Tokenizer> {
        None
    }
    /// What the user should know of them.
    fn remark(&self) -> Option<&str> {
        None
    }
    /// Some of those sequences, always the same.
    ///
    /// # Errors
    /// Text that can no longer be read.
    fn validation(&self, rows: Range<usize>) -> Result<SequenceBatch>;
}

/// A split of text to evaluate on.
pub trait EvalText {
    /// Name of the split.
    fn split(&self) -> &'static str;
    /// Checksum of the split's tokens.
    fn checksum(&self) -> String;
    /// Tokens of the split.
    fn len(&self) -> usize;
    /// Whether the text is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Token ids of a range.
    ///
    /// # Errors
    /// Text that can no longer be read.
    fn read(&self, range: Range<usize>) -> Result<Vec<u32>>;
    /// Bytes of text that the tokens of a range stand for.
    fn bytes(&self, range: Range<usize>) -> Option<u64>;
    /// Where documents lie, with the tokens that end them.
    fn documents(&self) -> Vec<Range<usize>>;
    /// What made the tokens, where it is known.
    fn tokenizer(&self) -> Option<&Tokenizer>;
}
