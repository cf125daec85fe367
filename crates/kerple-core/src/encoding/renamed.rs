//! Keys that were renamed: what a file or a caller still has of them is refused, with the new name in the hint.

use super::error::{ConfigError, Result};
use serde_json::{Map, Value};
use std::fmt;

/// A key, or one of its values, that was renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenamedKey {
    /// The table it is a key of: that of a run file, or the kind of an encoding for keys that only this kind has.
    pub table: &'static str,
    /// The key, before.
    pub key: &'static str,
    /// The value, before; `None` where the key itself was renamed.
    pub value: Option<&'static str>,
    /// The name of the key, or the value, now.
    pub new: &'static str,
}

impl RenamedKey {
    /// A renamed key.
    pub const fn key(table: &'static str, key: &'static str, new: &'static str) -> RenamedKey {
        RenamedKey { table, key, value: None, new }
    }

    /// A renamed value of a key.
    pub const fn value(table: &'static str, key: &'static str, value: &'static str, new: &'static str) -> RenamedKey {
        RenamedKey { table, key, value: Some(value), new }
    }

    /// Whether a table of this name and these keys still has it.
    pub fn is_in(&self, table: &str, keys: &Map<String, Value>) -> bool {
        self.table == table
            && keys.get(self.key).is_some_and(|found| self.value.is_none_or(|value| found.as_str() == Some(value)))
    }
}

impl fmt::Display for RenamedKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let RenamedKey { key, new, .. } = self;
        match self.value {
            None => write!(f, "`{key}` is now `{new}`"),
            Some(value) => write!(f, "`{key} = \"{value}\"` is now `{key} = \"{new}\"`"),
        }
    }
}

/// Table of the keys that encodings share.
pub const SHARED: &str = "encoding";

/// What was renamed of encodings.
pub const RENAMED: [RenamedKey; 10] = [
    RenamedKey::key(SHARED, "scope", "share"),
    RenamedKey::key(SHARED, "compat", "emulate"),
    RenamedKey::value(SHARED, "clamp", "working_copy", "forward_only"),
    RenamedKey::key("fire", "width", "hidden"),
    RenamedKey::key("fire", "threshold", "init_l"),
    RenamedKey::key("cope", "positions", "npos_max"),
    RenamedKey::key("sine_spe", "waves", "num_sines"),
    RenamedKey::key("sine_spe", "realisations", "num_realizations"),
    RenamedKey::key("conv_spe", "taps", "kernel_size"),
    RenamedKey::key("conv_spe", "realisations", "num_realizations"),
];

/// Refuses keys of these tables that were renamed.
///
/// # Errors
/// The first of them, with its new name.
pub(super) fn refuse(tables: &[&str], keys: &Map<String, Value>) -> Result {
    let is_old = |renamed: &&RenamedKey| tables.iter().any(|table| renamed.is_in(table, keys));
    let Some(renamed) = RENAMED.iter().find(is_old) else { return Ok(()) };
    let message = match renamed.value {
        None => "unknown key".to_owned(),
        Some(value) => format!("unknown value `{value}`"),
    };
    Err(ConfigError::new(renamed.key, message, renamed.to_string()))
}
