//! The failure of a command: message, hint and exit code.

use std::path::Path;

/// A message, what to do about it, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub hint: String,
    /// 1 failed, 2 misused, 130 stopped.
    pub code: u8,
    /// Whether every one of several ranks ends with it, so that it is said once.
    pub known: bool,
}

/// What a command returns.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// The code of work that was stopped.
    pub const STOPPED: u8 = 130;

    /// The user asked for something impossible.
    pub fn misuse(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: hint.into(), code: 2, known: false }
    }

    /// Something did not work out.
    pub fn failed(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: hint.into(), code: 1, known: false }
    }

    /// The user ended it; what was done is saved.
    pub fn stopped(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: hint.into(), code: Failure::STOPPED, known: true }
    }

    /// A file that could not be read, or looked for.
    pub fn reading(path: &Path, error: &std::io::Error) -> Failure {
        Failure::failed(format!("{}: cannot read: {error}", path.display()), kerple_run::files::hint(error))
    }

    /// A file that could not be written.
    pub fn writing(path: &Path, error: &std::io::Error) -> Failure {
        Failure::failed(format!("{}: cannot write: {error}", path.display()), kerple_run::files::hint(error))
    }
}

impl From<kerple_run::Error> for Failure {
    fn from(error: kerple_run::Error) -> Failure {
        let code = match error {
            kerple_run::Error::Stopped => Failure::STOPPED,
            _ if error.is_misuse() => 2,
            _ => 1,
        };
        Failure {
            message: error.to_string(),
            hint: error.hint(),
            code,
            known: matches!(error, kerple_run::Error::Rank { .. }),
        }
    }
}

impl From<kerple_core::calculus::error::Error> for Failure {
    fn from(error: kerple_core::calculus::error::Error) -> Failure {
        let hint = error.hint().unwrap_or_else(|| "see docs/kernels.md for the syntax of kernels".to_owned());
        Failure::misuse(error.to_string(), hint)
    }
}

impl From<kerple_burn::device::DeviceUnavailable> for Failure {
    fn from(error: kerple_burn::device::DeviceUnavailable) -> Failure {
        Failure::misuse(error.to_string(), error.hint())
    }
}
