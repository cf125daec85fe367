//! Errors between run folders and a written report.

use std::path::{Path, PathBuf};

/// An error with what was found, what was expected and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written, or holds something else than it should.
    #[error(transparent)]
    Record(#[from] kerple_run::Error),
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
    /// What a person can do about it.
    pub fn hint(&self) -> String {
        match self {
            Error::Record(error) => error.hint(),
            Error::Refused { hint, .. } => hint.clone(),
            Error::Render { .. } => "check the disk and run the command again; no partial output was kept".to_owned(),
        }
    }

    /// Whether it is what was asked for, not what was found, that is wrong.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Error::Refused { .. })
    }

    /// For `map_err` at a file operation.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| kerple_run::Error::io(action, path)(source).into()
    }

    /// No `plan.json` below the given folders.
    pub(crate) fn no_runs(folders: &[PathBuf]) -> Error {
        let list: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let place = if list.is_empty() { String::new() } else { format!(" below {}", list.join(", ")) };
        Error::Refused {
            message: format!("no runs{place}"),
            hint: "give the --out folder of `kerple train` or `kerple compare`; a run folder \
                contains plan.json"
                .into(),
        }
    }
}
