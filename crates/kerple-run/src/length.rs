//! Lengths in files, checked when they are read, so that every length in use is in range.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The largest sequence length that files may contain, some thousand times the longest length ever
/// evaluated.
pub const MOST_TOKENS: u64 = 1 << 32;

/// Refuses a length of no tokens, and of more than [`MOST_TOKENS`].
///
/// # Errors
/// The length and the limit, in words.
pub fn check_length(tokens: u64) -> Result<u64, String> {
    match tokens {
        1..=MOST_TOKENS => Ok(tokens),
        _ => Err(format!("a length of {tokens} tokens is out of range; it must be between 1 and {MOST_TOKENS}")),
    }
}

/// For `#[serde(deserialize_with)]`.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    check_length(u64::deserialize(deserializer)?).map_err(D::Error::custom)
}
