//! What can go wrong between run folders and a written report.

use std::path::{Path, PathBuf};

/// An error with what was found, what was expected and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb: `reading`, `writing`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file of records holds something that is not a record.
    #[error("{}:{line}: not a record: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What the parser expected.
        reason: String,
    },
    /// No `plan.json` below the given folders.
    #[error("no runs below {}", list(folders))]
    NoRuns {
        /// The folders that were searched.
        folders: Vec<PathBuf>,
    },
    /// The encoding that the others should be compared with was not evaluated.
    #[error("no evaluated run has the encoding {wanted:?}; there are {}", available.join(", "))]
    UnknownReference {
        /// The encoding asked for.
        wanted: String,
        /// The encodings that were evaluated.
        available: Vec<String>,
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
            Error::Corrupt { line, .. } => {
                Some(format!("only an incomplete last line is forgiven; repair or delete line {line}, or leave the run out"))
            }
            Error::NoRuns { .. } => {
                Some("a run folder holds plan.json; name the folder that `kerple train --out` or `kerple compare --out` wrote".into())
            }
            Error::UnknownReference { available, .. } => available.first().map(|name| format!("for example --reference {name}")),
            Error::Io { .. } | Error::Render { .. } => None,
        }
    }

    /// For `map_err` at a file operation.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }
}

fn list(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}
