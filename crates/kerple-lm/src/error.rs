//! The error of every crate that reads and writes files.

pub use kerple_run::{Error, Result};
