//! What can go wrong between run folders and a written report.

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
    /// What was asked for cannot be done with what is there.
    #[error("{message}")]
    Refused {
        /// What was asked for, and what there is.
        message: String,
        /// What to ask for instead.
        hint: String,
    },
    /// A page could not be filled in: a mistake in a template, not in the runs.
    #[error("rendering {page}: {reason}")]
    Render {
        /// The page or table.
        page: &'static str,
        /// The template engine's reason.
        reason: String,
    },
}

/// The result of everything here that touches files.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What a person can do about it, if there is something better than reading the message.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Damaged { hint, .. } | Error::Refused { hint, .. } => Some(hint.clone()),
            Error::Io { .. } | Error::Render { .. } => None,
        }
    }

    /// Whether it is what was asked for, not what was found, that is wrong.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Error::Refused { .. })
    }

    /// Nothing where a file that was to be read is not there; a disk that does not answer stays an error.
    pub(crate) fn unless_absent<T>(read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// For `map_err` at a file operation.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), action, source }
    }

    /// A line, counted from 1, that is not what the file is made of.
    pub(crate) fn damaged_line(path: &Path, line: usize, reason: &serde_json::Error) -> Error {
        Error::Damaged {
            path: path.to_owned(),
            message: format!("line {line} is not a record: {reason}"),
            hint: format!(
                "only an incomplete last line is forgiven; repair or delete line {line}, or leave the run out"
            ),
        }
    }

    /// No `plan.json` below the given folders.
    pub(crate) fn no_runs(folders: &[PathBuf]) -> Error {
        let list: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let place = if list.is_empty() { String::new() } else { format!(" below {}", list.join(", ")) };
        Error::Refused {
            message: format!("no runs{place}"),
            hint: "a run folder holds plan.json; name the folder that `kerple train --out` or `kerple compare --out` wrote"
                .into(),
        }
    }
}
