//! Errors between an experiment and its pages.

/// Errors of running or reporting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Runs could not be made.
    #[error(transparent)]
    Run(#[from] kerple_lm::Error),
    /// Pages could not be made.
    #[error(transparent)]
    Report(#[from] kerple_report::Error),
}

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Error::Run(error) => error.hint(),
            Error::Report(error) => error.hint(),
        }
    }

    /// Whether the user asked for something impossible rather than something failed.
    pub fn is_misuse(&self) -> bool {
        match self {
            Error::Run(error) => error.is_misuse(),
            Error::Report(error) => error.is_misuse(),
        }
    }

    pub(crate) fn refused(message: impl Into<String>, hint: impl Into<String>) -> Error {
        kerple_lm::Error::Refused { message: message.into(), hint: hint.into() }.into()
    }
}

impl From<kerple_run::Error> for Error {
    fn from(error: kerple_run::Error) -> Error {
        kerple_lm::Error::from(error).into()
    }
}

impl From<kerple_data::Error> for Error {
    fn from(error: kerple_data::Error) -> Error {
        kerple_lm::Error::from(error).into()
    }
}
