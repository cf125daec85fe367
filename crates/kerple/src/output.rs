//! Results on stdout, everything else on stderr.
//!
//! A result that cannot be written is a failure. A remark that cannot be written (a full disk after
//! `2>log`) does not end hours of work.

use crate::command_error::CommandError;
use clap::builder::styling::{AnsiColor, Style};
use std::fmt::Arguments;
use std::io::{Write, stdout};
use std::sync::OnceLock;

/// How much is printed in addition to results and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Nothing, not even results: another rank prints them.
    Silent,
    /// Results, and nothing else.
    Quiet,
    /// Remarks, and progress in a line that is redrawn.
    Normal,
    /// More remarks, and progress in lines that stay.
    Verbose,
}

static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

/// Sets the verbosity; the first call counts.
pub fn set_verbosity(verbosity: Verbosity) {
    let _ = VERBOSITY.set(verbosity);
}

/// The verbosity of the process.
pub fn verbosity() -> Verbosity {
    VERBOSITY.get().copied().unwrap_or(Verbosity::Normal)
}

/// A line of the result.
macro_rules! resultln {
    ($($part:tt)*) => { $crate::output::result(format_args!("{}\n", format_args!($($part)*))) };
}

/// A line for the reader of stderr.
macro_rules! remarkln {
    ($($part:tt)*) => { $crate::output::remark(format_args!("{}\n", format_args!($($part)*))) };
}

/// Writes a part of the result; a full disk ends the process with exit code 1.
pub fn result(text: Arguments) {
    if verbosity() == Verbosity::Silent {
        return;
    }
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        let hint = "free disk space, or write to another disk";
        complain(&CommandError::failed(format!("stdout: cannot write: {error}"), hint), None);
        std::process::exit(1);
    }
}

/// Prints a value as one line of JSON.
pub fn print_json(value: &impl serde::Serialize) {
    resultln!("{}", serde_json::to_string(value).expect("results are plain data"));
}

/// Writes a remark, if it is wanted and can be written.
pub fn remark(text: Arguments) {
    if !matches!(verbosity(), Verbosity::Quiet | Verbosity::Silent) {
        let _ = anstream::stderr().write_fmt(text);
    }
}

/// Writes what went wrong and what to do about it, and which of several ranks says so; what all of them end with is said once.
pub fn complain(failure: &CommandError, rank: Option<String>) {
    const ERROR: Style = AnsiColor::Red.on_default().bold();
    const HINT: Style = AnsiColor::Cyan.on_default().bold();
    let CommandError { message, hint, known, .. } = failure;
    if verbosity() == Verbosity::Silent && *known {
        return;
    }
    let rank = rank.filter(|_| !known).map_or_else(String::new, |rank| format!("{rank}: "));
    let _ = writeln!(anstream::stderr(), "{ERROR}error:{ERROR:#} {rank}{message}\n\n{HINT}hint:{HINT:#} {hint}");
}

pub(crate) use {remarkln, resultln};
