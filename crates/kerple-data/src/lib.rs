//! From bytes to batches: text, tokenizers, token shards, and batches as pure functions of a seed
//! and a step.
//!
//! ```text
//! files --Sources--> documents --Tokenizer--> shards --Corpus--> Tokens --Batches--> batch(step)
//! ```
//!
//! [`prepare()`] runs the first half once and leaves a folder that a person can inspect
//! (`meta.json`, `tokenizer.json`, `train.tokens`, `valid.tokens`, `test.tokens`). [`Corpus::open`]
//! opens it, or a GPT-NeoX `.bin`/`.idx` pair, and identifies the text by its hash
//! ([`Corpus::content`]); [`verify()`] reads all of it. [`TextBatches`] cuts training sequences from
//! it, and [`random_segments`] and [`blocks`] select text for evaluation. [`tasks`] are questions
//! with known answers instead of text. This crate depends on neither models nor tensors.
//!
//! Music and the Long Range Arena are behind the feature `music-lra`. A build without it refuses
//! their tokenizers and tasks with an error that names the feature.

// helpers that only the feature uses, and branches for its types, which have no values without it
#![cfg_attr(not(feature = "music-lra"), allow(dead_code, unreachable_code, unreachable_patterns, unused_variables))]

mod contain;
mod corpus;
mod error;
mod examples;
mod file;
mod hash;
mod json;
#[cfg(feature = "music-lra")]
pub mod lra;
pub mod machine;
#[cfg(feature = "music-lra")]
pub mod music;
mod order;
pub mod peps;
mod prepare;
pub mod quotes;
mod random;
mod split;
pub mod tasks;
mod text;
mod tokenizer;
mod tokens;
#[cfg(any(test, not(feature = "music-lra")))]
#[cfg_attr(feature = "music-lra", allow(dead_code, unused_imports, reason = "only its names are tested"))]
mod without_music_lra;

#[cfg(not(feature = "music-lra"))]
use without_music_lra::music;

pub use corpus::{Corpus, CorpusSummary, SplitCounts, VerifiedSplit, VerifyReport, has_summary, is_prepared, verify};
pub use error::{Error, Result};
pub use hash::{Sha256, fingerprint};
pub use music::Rules as MusicRules;
pub use order::{
    BatchShape, NumpyRandom, Sampling, Segments, TextBatch, TextBatches, blocks, document_index, random_segments,
    sample_index, shuffle_index, split_boundaries,
};
pub use prepare::{PrepareOptions, PrepareProgress, prepare};
pub use split::Split;
pub use text::{Inventory, Sources};
pub use tokenizer::{StreamDecoder, Tokenizer};
pub use tokens::TokenStream;
