//! Relative positional encodings as functions of distance, the theory of their kernels, and exact attention that consumes them.
//!
//! The mathematics of kerple on plain slices: no tensor framework, no files. A positional method makes one of a few
//! [forms]; an attention engine knows only the forms. See `ARCHITECTURE.md` for the whole picture.

pub mod attention;
pub mod cpu;
pub mod encoding;
pub mod forms;
pub mod kernel;
mod number;
pub mod ops;
pub mod seed;

pub use number::Number;

/// Panics with the name, the expected shape letters and the lengths when a slice has the wrong size.
///
/// For callers' mistakes in code; whatever a user typed or a file held is a `Result` instead.
#[macro_export]
macro_rules! check_shape {
    ($slice:expr, $($letter:ident = $size:expr),+) => {{
        let (expected, got) = (1usize $(* $size)+, $slice.len());
        assert!(
            expected == got,
            "{}: expected [{}] = {:?} ({expected} values), got {got}",
            stringify!($slice), [$(stringify!($letter)),+].join(", "), [$($size),+],
        );
    }};
}
