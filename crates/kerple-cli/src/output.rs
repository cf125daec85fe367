//! Results on stdout, everything else on stderr.
//!
//! A result that cannot be written is a failure; a remark that cannot be written (a full disk behind `2>log`) is no reason
//! to end hours of work.

use std::fmt::Arguments;
use std::io::{Write, stderr, stdout};

/// Writes a part of the result; a full disk ends the process with exit code 1.
pub fn result(text: Arguments) {
    let mut out = stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        remark(format_args!(
            "error: stdout: cannot write: {error}\n\nhint: free some disk space, or write elsewhere\n"
        ));
        std::process::exit(1);
    }
}

/// Writes a remark, if it can be written.
pub fn remark(text: Arguments) {
    let _ = stderr().write_fmt(text);
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
