//! Results on stdout, everything else on stderr.
//!
//! A result that cannot be written is a failure. A remark that cannot be written (a full disk after
//! `2>log`) does not end hours of work.

use crate::failure::Failure;
use clap::builder::styling::{AnsiColor, Style};
use std::fmt::Arguments;
use std::io::{Write, stdout};
use std::sync::OnceLock;

/// How much is printed in addition to results and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// Nothing, not even results: another rank prints them.
    Silent,
    /// Results, and nothing else.
    Quiet,
    /// Remarks, and progress in a line that is redrawn.
    Normal,
    /// More remarks, and progress in lines that stay.
    Verbose,
}

static VOICE: OnceLock<Voice> = OnceLock::new();

/// Chooses how much is said from here on; the first choice counts.
pub fn speak(voice: Voice) {
    let _ = VOICE.set(voice);
}

/// How much is said.
pub fn voice() -> Voice {
    VOICE.get().copied().unwrap_or(Voice::Normal)
}

/// Writes a part of the result; a full disk ends the process with exit code 1.
pub fn result(text: Arguments) {
    if voice() == Voice::Silent {
        return;
    }
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        let hint = "free disk space, or write to another disk";
        complain(&Failure::failed(format!("stdout: cannot write: {error}"), hint), None);
        std::process::exit(1);
    }
}

/// Writes a remark, if it is wanted and can be written.
pub fn remark(text: Arguments) {
    if !matches!(voice(), Voice::Quiet | Voice::Silent) {
        let _ = anstream::stderr().write_fmt(text);
    }
}

/// Writes what went wrong and what to do about it, and which of several ranks says so; what all of them end with is said once.
pub fn complain(failure: &Failure, rank: Option<String>) {
    const ERROR: Style = AnsiColor::Red.on_default().bold();
    const HINT: Style = AnsiColor::Cyan.on_default().bold();
    let Failure { message, hint, known, .. } = failure;
    if voice() == Voice::Silent && *known {
        return;
    }
    let rank = rank.filter(|_| !known).map_or_else(String::new, |rank| format!("{rank}: "));
    let _ = writeln!(anstream::stderr(), "{ERROR}error:{ERROR:#} {rank}{message}\n\n{HINT}hint:{HINT:#} {hint}");
}

/// A line of the result.
macro_rules! resultln {
    ($($part:tt)*) => { $crate::output::result(format_args!("{}\n", format_args!($($part)*))) };
}

/// A line for the reader of stderr.
macro_rules! remarkln {
    ($($part:tt)*) => { $crate::output::remark(format_args!("{}\n", format_args!($($part)*))) };
}

pub(crate) use {remarkln, resultln};
