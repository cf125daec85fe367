//! From a token stream to batches: which windows are trained on, in which order.
//!
//! A batch is a function of the step alone. No cursor needs to be saved: a resumed run asks for the
//! next step.

mod megatron;
mod numpy;
mod random;

pub use megatron::{document_index, sample_index, shuffle_index, split_boundaries};
pub use numpy::NumpyRandom;
pub use random::{Segments, blocks, random_segments};
pub(crate) use random::{StreamPurpose, below, stream};

use crate::error::{Error, Result};
use crate::tokens::TokenStream;
use std::ops::Range;

/// Which windows are trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// Windows at uniformly drawn places of the stream, with replacement.
    #[default]
    Random,
    /// GPT-NeoX's order: documents shuffled over all epochs, cut into samples, samples shuffled.
    Megatron {
        /// Updates the order is made for; decides how many epochs are shuffled together.
        steps: u64,
    },
}

/// Sequences per batch and tokens per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Sequences.
    pub batch: usize,
    /// Tokens per sequence, not counting the last target.
    pub seq_len: usize,
}

/// Sequences and, for every token, the token that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextBatch {
    /// `[batch, seq_len]`.
    pub tokens: Vec<u32>,
    /// `[batch, seq_len]`, shifted by one.
    pub targets: Vec<u32>,
    /// Sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Of each sequence, the positions at which a document begins, increasing, among its `seq_len + 1` tokens: the last is
    /// that of the last target. The first is always 0: a window that begins inside a document begins a document there.
    pub document_starts: Vec<Vec<usize>>,
}

impl TextBatch {
    /// The windows of `seq_len + 1` tokens that begin at `starts`.
    ///
    /// # Errors
    /// As [`TokenStream::read`].
    ///
    /// # Panics
    /// When a window reaches beyond the end.
    pub fn at(tokens: &TokenStream, starts: &[usize], seq_len: usize) -> Result<TextBatch> {
        let read = |row: usize, window: &mut Vec<u32>| {
            let range = starts[row]..starts[row] + seq_len + 1;
            tokens.read_into(range.clone(), window)?;
            Ok(tokens.document_starts(range))
        };
        TextBatch::gather(0..starts.len(), seq_len, read)
    }

    fn gather(
        rows: Range<usize>,
        seq_len: usize,
        mut read: impl FnMut(usize, &mut Vec<u32>) -> Result<Vec<usize>>,
    ) -> Result<TextBatch> {
        let batch = rows.len();
        let mut document_starts = Vec::with_capacity(batch);
        let mut tokens = Vec::with_capacity(batch * seq_len);
        let mut targets = Vec::with_capacity(batch * seq_len);
        let mut window = Vec::with_capacity(seq_len + 1);
        for row in rows {
            window.clear();
            document_starts.push(read(row, &mut window)?);
            tokens.extend_from_slice(&window[..seq_len]);
            targets.extend_from_slice(&window[1..]);
        }
        Ok(TextBatch { tokens, targets, batch, seq_len, document_starts })
    }
}

/// The training batches of a run.
pub struct TextBatches {
    tokens: TokenStream,
    shape: BatchShape,
    order: BatchOrder,
}

enum BatchOrder {
    Random { seed: u64 },
    Megatron(Box<megatron::MegatronOrder>),
}

impl TextBatches {
    /// Batches of `tokens`.
    ///
    /// # Errors
    /// Fewer tokens than one sequence and its last target need, an empty shape, or a seed NumPy does not have.
    pub fn new(tokens: &TokenStream, sampling: Sampling, shape: BatchShape, seed: u64) -> Result<TextBatches> {
        let BatchShape { batch, seq_len } = shape;
        if batch == 0 || seq_len == 0 {
            return Err(Error::refused(
                format!("a batch of {batch} sequences of {seq_len} tokens is empty"),
                "use at least 1 sequence of 1 token",
            ));
        }
        if tokens.len() <= seq_len {
            return Err(Error::refused(
                format!("the split has {} tokens; sequences of {seq_len} need at least {}", tokens.len(), seq_len + 1),
                "prepare more text, or train on shorter sequences",
            ));
        }
        let order = match sampling {
            Sampling::Random => BatchOrder::Random { seed },
            Sampling::Megatron { steps } => {
                let seed = u32::try_from(seed).map_err(|_| {
                    Error::refused(
                        format!("seed {seed} is too large for GPT-NeoX's data order; the limit is {}", u32::MAX),
                        "use a smaller seed, or set data.sampling = \"random\"",
                    )
                })?;
                let needed = u128::from(steps).saturating_mul(batch as u128);
                BatchOrder::Megatron(Box::new(megatron::MegatronOrder::new(tokens, seq_len, needed, seed)?))
            }
        };
        Ok(TextBatches { tokens: tokens.clone(), shape, order })
    }

    /// Sequences per batch and tokens per sequence.
    pub fn shape(&self) -> BatchShape {
        self.shape
    }

    /// Rows of the batch of an update, counted from 0: all of it, or any part, so that ranks can
    /// share it.
    ///
    /// # Errors
    /// As [`TokenStream::read`].
    ///
    /// # Panics
    /// When there are not that many rows.
    pub fn batch(&self, step: u64, rows: Range<usize>) -> Result<TextBatch> {
        let BatchShape { batch, seq_len } = self.shape;
        assert!(rows.start <= rows.end && rows.end <= batch, "rows {rows:?} of a batch of {batch}");
        match &self.order {
            BatchOrder::Random { seed } => TextBatch::gather(rows, seq_len, |row, out| {
                let start = random::window(self.tokens.len(), seq_len, *seed, step, row as u64);
                self.tokens.read_into(start..start + seq_len + 1, out)?;
                Ok(self.tokens.document_starts(start..start + seq_len + 1))
            }),
            BatchOrder::Megatron(order) => TextBatch::gather(rows, seq_len, |row, out| {
                order.read(&self.tokens, u128::from(step) * batch as u128 + row as u128, out)
            }),
        }
    }
}

#[cfg(test)]
mod tests;
