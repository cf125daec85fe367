//! The failure of a command: message, hint and exit code.

use std::path::Path;

/// A message, what to do about it, and the exit code.
#[derive(Debug)]
pub struct CommandError {
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// 1 failed, 2 misused, 130 stopped.
    pub code: u8,
    /// Whether every one of several ranks ends with it, so that it is said once.
    pub known: bool,
}

/// What a command returns.
pub type CommandResult = Result<(), CommandError>;

impl CommandError {
    /// The code of work that was stopped.
    pub const STOPPED: u8 = 130;

    /// The user asked for something impossible.
    pub fn misuse(message: impl Into<String>, hint: impl Into<String>) -> CommandError {
        CommandError { message: message.into(), hint: hint.into(), code: 2, known: false }
    }

    /// Something did not work out.
    pub fn failed(message: impl Into<String>, hint: impl Into<String>) -> CommandError {
        CommandError { message: message.into(), hint: hint.into(), code: 1, known: false }
    }

    /// The user ended it; what was done is saved.
    pub fn stopped(message: impl Into<String>, hint: impl Into<String>) -> CommandError {
        CommandError { message: message.into(), hint: hint.into(), code: CommandError::STOPPED, known: true }
    }

    /// A file that could not be read, or looked for.
    pub fn reading(path: &Path, error: &std::io::Error) -> CommandError {
        CommandError::failed(format!("{}: cannot read: {error}", path.display()), kerple_run::files::hint(error))
    }

    /// A file that could not be written.
    pub fn writing(path: &Path, error: &std::io::Error) -> CommandError {
        CommandError::failed(format!("{}: cannot write: {error}", path.display()), kerple_run::files::hint(error))
    }
}

impl From<kerple_run::Error> for CommandError {
    fn from(error: kerple_run::Error) -> CommandError {
        let code = match error {
            kerple_run::Error::Stopped => CommandError::STOPPED,
            _ if error.is_misuse() => 2,
            _ => 1,
        };
        CommandError {
            message: error.to_string(),
            hint: error.hint(),
            code,
            known: matches!(error, kerple_run::Error::Rank { .. }),
        }
    }
}

impl From<kerple_core::calculus::error::Error> for CommandError {
    fn from(error: kerple_core::calculus::error::Error) -> CommandError {
        let hint = error.hint().unwrap_or_else(|| "see docs/kernels.md for the syntax of kernels".to_owned());
        CommandError::misuse(error.to_string(), hint)
    }
}

impl From<kerple_burn::device::DeviceUnavailable> for CommandError {
    fn from(error: kerple_burn::device::DeviceUnavailable) -> CommandError {
        CommandError::misuse(error.to_string(), error.hint())
    }
}
