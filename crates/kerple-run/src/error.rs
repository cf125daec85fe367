//! Errors of files in a run folder.

use crate::files::printable;
use std::path::{Path, PathBuf};

/// An error with what was found, what was expected and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was attempted, as a verb: `reading`, `writing`.
        action: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file holds something else than it should.
    #[error("{}: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, what was found, and what was expected.
        message: String,
        /// What to do about it.
        hint: String,
    },
}

/// The result of everything here that touches files.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Error::Io { source, .. } => crate::files::hint(source).to_owned(),
            Error::Damaged { hint, .. } => hint.clone(),
        }
    }

    /// `None` where the file is absent; a disk that does not answer stays an error.
    ///
    /// # Errors
    /// Every error but that of an absent file.
    pub fn unless_absent<T>(read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// A file with unexpected content.
    pub fn damaged(path: &Path, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), message: printable(message.as_ref()), hint: hint.into() }
    }

    /// For `map_err` at a file operation.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), action, source }
    }

    /// A line, counted from 1, that is not what the file is made of.
    pub(crate) fn damaged_line(path: &Path, line: usize, reason: &serde_json::Error) -> Error {
        let hint = format!("only the last line may be incomplete; repair or delete line {line}, or leave out the run");
        Error::damaged(path, format!("line {line} is not a record: {reason}"), hint)
    }
}
