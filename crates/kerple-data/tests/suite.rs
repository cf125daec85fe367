//! Corpora, tokenizers and tasks. One program, since each program of tests links everything again.

mod common;
mod decisions;
mod length_suite;
#[cfg(feature = "music-lra")]
mod music;
mod prepare;
