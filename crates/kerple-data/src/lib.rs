//! Bytes to batches: text, tokenizers, memory-mapped token shards, and batches as pure functions of a seed and a step.
//!
//! ```text
//! files --Sources--> documents --Tokenizer--> shards --Corpus--> Tokens --Batches--> batch(step)
//! ```
//!
//! [`prepare()`] runs the first half once and leaves a folder a person can look into (`meta.json`, `tokenizer.json`,
//! `train.tokens`, `valid.tokens`, `test.tokens`). [`Corpus::open`] maps it, or a GPT-NeoX `.bin`/`.idx` pair, into
//! memory; [`Batches`] cuts training sequences from it and [`random_segments`] and [`blocks`] choose what to evaluate on.
//! Nothing here knows of models or tensors.

mod corpus;
mod error;
mod packing;
mod prepare;
mod source;
mod tokenizer;

pub use corpus::{Corpus, Split, SplitCounts, Summary, Tokens, is_prepared};
pub use error::{Error, Result};
pub use packing::{
    Batch, BatchShape, Batches, NumpyRandom, Packing, blocks, document_index, random_segments, sample_index,
    shuffle_index, split_boundaries,
};
pub use prepare::{PrepareOptions, Progress, prepare};
pub use source::{DEFAULT_CRATES, Sources};
pub use tokenizer::{StreamDecoder, Tokenizer};
