//! The error of every crate that reads and writes files: what is wrong, and what to do about it.

use crate::files::printable;
use std::path::{Path, PathBuf};

/// An error for users: what is wrong, with the value and the limit, and a hint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{attempt}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What failed, with the path: `reading metrics.jsonl`, `run.toml: cannot read`.
        attempt: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file does not contain what it should.
    #[error("{}{place}: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, e.g. ", line 7"; may be empty.
        place: String,
        /// What was found, and what was expected.
        message: String,
        /// What to do.
        hint: String,
    },
    /// A configuration file or an option such as `--set` has an invalid value.
    #[error("{place}: {message}")]
    Config {
        /// File, key, or `--set key=value`.
        place: String,
        /// What is wrong with the value, and what is allowed.
        message: String,
        /// What to change.
        hint: String,
    },
    /// A request that the data, the encoding, the model or the run folder cannot serve.
    #[error("{message}")]
    Refused {
        /// What was asked for and the limit.
        message: String,
        /// What to ask for instead.
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
    /// Training produced NaN or infinity.
    #[error("step {step}: {what} is {value}")]
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        /// The loss, or the name of the parameter with the largest gradient.
        what: String,
        /// NaN or infinity.
        value: f64,
        /// From where to resume.
        hint: String,
    },
    /// Another rank failed, so this one stops too.
    #[error("rank {rank} on {host}: {message}")]
    Rank {
        /// Its number.
        rank: usize,
        /// Its machine.
        host: String,
        /// Its message.
        message: String,
        /// What to do.
        hint: String,
        /// Whether its request was invalid.
        misuse: bool,
    },
    /// A page could not be filled in: a mistake in a template, not in the runs.
    #[error("rendering {page}: {reason}")]
    Render {
        /// The page or table.
        page: &'static str,
        /// The template engine's reason.
        reason: String,
    },
    /// The user stopped the work.
    #[error("stopped; nothing was written")]
    Stopped,
}

/// The result of everything that reads or writes files.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            // the hint of a folder to write to
            Error::Io { attempt, source, .. }
                if source.kind() == std::io::ErrorKind::NotADirectory && attempt.contains("read") =>
            {
                "a file is where a folder should be; check the path".to_owned()
            }
            Error::Io { source, .. } => crate::files::hint(source).to_owned(),
            Error::Busy { .. } => "wait for that process, stop it, or use another --out folder".to_owned(),
            Error::Render { .. } => "check the disk and run the command again; no partial output was kept".to_owned(),
            Error::Stopped => "run the same command to start over".to_owned(),
            Error::Damaged { hint, .. }
            | Error::Config { hint, .. }
            | Error::Refused { hint, .. }
            | Error::NotFinite { hint, .. }
            | Error::Rank { hint, .. } => hint.clone(),
        }
    }

    /// Whether the request was invalid (exit code 2), rather than an operation failed (1).
    pub fn is_misuse(&self) -> bool {
        match self {
            Error::Config { .. } | Error::Refused { .. } => true,
            Error::Rank { misuse, .. } => *misuse,
            _ => false,
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

    /// For `map_err` at a file operation: `run.toml: cannot read: ...` for the action `read`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Io { attempt: format!("{}: cannot {action}", path.display()), path, source }
    }

    /// The same for the files of run folders: `reading metrics.jsonl: ...` for the action `reading`.
    pub fn io_while(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Io { attempt: format!("{action} {}", path.display()), path, source }
    }

    /// A file with unexpected content; control characters in the message are escaped, here and below.
    pub fn damaged(path: &Path, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::damaged_at(path, String::new(), message, hint)
    }

    /// The same; `place` follows the path in messages, e.g. ", line 7".
    pub fn damaged_at(path: &Path, place: String, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), place, message: printable(message.as_ref()), hint: hint.into() }
    }

    /// A line, counted from 1, that is not a record.
    pub(crate) fn damaged_line(path: &Path, (line, text): (usize, &[u8]), reason: &serde_json::Error) -> Error {
        let usual = format!("only the last line may be incomplete; repair or delete line {line}, or leave out the run");
        let hint = crate::json_mistake::hint(text, reason).map_or(usual, str::to_owned);
        // the reason counts lines within this one
        let said = reason.to_string();
        let said = match said.rsplit_once(" at line 1 ") {
            Some((said, _)) if reason.column() > 0 => format!("{said} (column {})", reason.column()),
            _ => said,
        };
        Error::damaged(path, format!("line {line} is not a record: {said}"), hint)
    }

    /// An invalid value in a configuration.
    pub fn config(place: impl AsRef<str>, message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        let [place, message] = [place.as_ref(), message.as_ref()].map(printable);
        Error::Config { place, message, hint: hint.into() }
    }

    /// A request that cannot be served.
    pub fn refused(message: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::Refused { message: printable(message.as_ref()), hint: hint.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_do_not_steer_the_terminal() {
        let error = Error::damaged(Path::new("x"), "unknown key `a\u{1b}[2J\n`", "");
        assert_eq!(error.to_string(), "x: unknown key `a\\u{1b}[2J\n`");
    }
}
