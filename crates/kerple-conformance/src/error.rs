//! Errors before the first case runs.

use std::path::{Path, PathBuf};

/// A folder that cannot be read as reference values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The manifest is not one.
    #[error("{}: {message}", path.display())]
    Damaged {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
}

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        "give a folder of reference values: it contains manifest.json and the .safetensors files it lists"
    }

    pub(crate) fn damaged(path: &Path, message: impl AsRef<str>) -> Error {
        Error::Damaged { path: path.to_owned(), message: kerple_run::files::printable(message.as_ref()) }
    }
}
