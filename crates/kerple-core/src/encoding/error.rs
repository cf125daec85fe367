//! Settings that no model can be built from.

use std::ops::RangeInclusive;

/// A setting that is out of range or contradicts another: which key, what is wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {message}")]
pub struct ConfigError {
    /// Key of the `[encoding]` table.
    pub key: String,
    /// The value and its limit.
    pub message: String,
    /// What to change.
    pub hint: String,
}

impl ConfigError {
    /// A refusal of the value of `key`.
    pub fn new(key: &str, message: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        ConfigError { key: key.to_owned(), message: message.into(), hint: hint.into() }
    }

    /// Message and hint as one line.
    pub fn line(&self) -> String {
        let end = if self.message.ends_with('?') { "" } else { ";" };
        format!("{self}{end} {}", self.hint)
    }
}

/// The result of a check of settings.
pub type Result<T = (), E = ConfigError> = std::result::Result<T, E>;

/// Refuses a whole number outside of `range`.
pub(super) fn check_count(key: &str, value: usize, range: RangeInclusive<usize>, hint: &str) -> Result {
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    Err(ConfigError::new(key, format!("{value} is out of range, it must be between {low} and {high}"), hint))
}

/// Refuses a base of rates that does not give rates in `(0, 1]`.
pub(super) fn check_base(base: f64) -> Result {
    if base.is_finite() && base >= 1.0 {
        return Ok(());
    }
    Err(ConfigError::new(
        "base",
        format!("{base} is out of range, it must be at least 1"),
        "use 10000, \
        the usual base",
    ))
}
