//! Errors in user input and in files.

use kerple_run::files::printable;
use std::path::{Path, PathBuf};

/// An error for users: what is wrong and where, with the value and the limit, and a hint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was attempted, e.g. "read".
        action: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}{place}: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, e.g. ", line 7"; may be empty.
        place: String,
        /// What is wrong, naming value and limit.
        message: String,
        /// What to do.
        hint: String,
    },
    /// A request that the data or the tokenizer cannot serve.
    #[error("{message}")]
    Refused {
        /// What was asked and the limit.
        message: String,
        /// What to ask instead.
        hint: String,
    },
    /// The user stopped the work.
    #[error("stopped; nothing was written")]
    Stopped,
}

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The hint: what to do about it.
    pub fn hint(&self) -> String {
        match self {
            Error::Io { source, .. } => kerple_run::files::hint(source).to_owned(),
            Error::Damaged { hint, .. } | Error::Refused { hint, .. } => hint.clone(),
            Error::Stopped => "run the same command to start over".to_owned(),
        }
    }

    /// Whether the request was invalid, rather than an operation failed.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Error::Refused { .. })
    }

    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Io { path, action, source }
    }

    pub(crate) fn damaged(path: &Path, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::damaged_at(path, String::new(), message, hint)
    }

    /// `place` follows the path in messages, e.g. ", line 7".
    pub(crate) fn damaged_at(path: &Path, place: String, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), place, message: printable(message.as_ref()), hint: hint.into() }
    }

    pub(crate) fn refused(message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::Refused { message: printable(message.as_ref()), hint: hint.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_do_not_steer_the_terminal() {
        let error = Error::damaged(Path::new("x"), "there is no key `a\u{1b}[2J\n`", "");
        assert_eq!(error.to_string(), "x: there is no key `a\\u{1b}[2J\n`");
    }
}
