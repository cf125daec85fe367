//! Errors in what a user typed or a file contains.

use kerple_run::files::printable;
use std::path::{Path, PathBuf};

/// An error for people: what is wrong, with the value and the limit, and what to do about it.
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
    /// A configuration file or `--set` argument is not what a run needs.
    #[error("{place}: {message}")]
    Config {
        /// File, or `--set key=value`.
        place: String,
        /// What is wrong, naming key, value and limit.
        message: String,
        /// What to change.
        hint: String,
    },
    /// A file of a run folder is damaged or of another run.
    #[error("{}: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
        /// What to do.
        hint: String,
    },
    /// Another process is training in a run folder.
    #[error("{}: {holder} is training here", path.display())]
    Busy {
        /// The run folder.
        path: PathBuf,
        /// Process, machine, time and command.
        holder: String,
    },
    /// Training produced a value that is not a number.
    #[error("step {step}: {what} is {value}")]
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        /// The loss, or the name of the parameter with the largest gradient.
        what: String,
        /// NaN or infinity.
        value: f64,
        /// Where to go on from.
        hint: String,
    },
    /// Text or tokens could not be read, prepared or served.
    #[error(transparent)]
    Data(#[from] kerple_data::Error),
    /// A file of records could not be read or written.
    #[error(transparent)]
    Record(#[from] kerple_run::Error),
    /// Another rank cannot go on, so this one does not either.
    #[error("rank {rank} on {host}: {message}")]
    Rank {
        /// Its number.
        rank: usize,
        /// The machine it is on.
        host: String,
        /// What it says.
        message: String,
        /// What to do.
        hint: String,
        /// Whether the user asked it for something impossible.
        misuse: bool,
    },
    /// A request that the data, the encoding or the model cannot serve.
    #[error("{message}")]
    Refused {
        /// What was asked and the limit.
        message: String,
        /// What to ask instead.
        hint: String,
    },
}

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What is wrong with something that was typed; control characters in it are written out.
    pub(crate) fn config(place: impl AsRef<str>, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        let [place, message] = [place.as_ref(), message.as_ref()].map(printable);
        Error::Config { place, message, hint: hint.into() }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Error::Io { source, .. } => kerple_run::files::hint(source).to_owned(),
            Error::Data(error) => error.hint(),
            Error::Record(error) => error.hint(),
            Error::Busy { .. } => "wait for that process, stop it, or use another --out folder".to_owned(),
            Error::Config { hint, .. }
            | Error::Damaged { hint, .. }
            | Error::NotFinite { hint, .. }
            | Error::Rank { hint, .. }
            | Error::Refused { hint, .. } => hint.clone(),
        }
    }

    /// Whether the user asked for something impossible (exit code 2) rather than something failed (1).
    pub fn is_misuse(&self) -> bool {
        match self {
            Error::Data(error) => error.is_misuse(),
            Error::Config { .. } | Error::Refused { .. } => true,
            Error::Rank { misuse, .. } => *misuse,
            _ => false,
        }
    }

    /// What the operating system answered to something that was attempted with a file.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Io { path, action, source }
    }

    /// A request that cannot be served; control characters in the message are written out.
    pub fn refused(message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::Refused { message: printable(message.as_ref()), hint: hint.into() }
    }

    /// A file that is not as it should be; control characters in the message are written out.
    pub fn damaged(path: &Path, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), message: printable(message.as_ref()), hint: hint.into() }
    }
}
