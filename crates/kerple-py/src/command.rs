//! The command `kerple`, which the package installs.

use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

#[global_allocator]
static ALLOCATOR: kerple::CountingAllocator = kerple::CountingAllocator;

/// Runs the command once, as the only work of the process, and returns the exit code. `program` is
/// the call that repeats it.
#[pyfunction]
pub fn command(py: Python<'_>, program: PathBuf, arguments: Vec<OsString>) -> u8 {
    py.detach(|| kerple::run(program, arguments))
}
