//! The native module of the Python package `kerple`: engines on arrays that Python owns.
//!
//! Every function checks its arguments and raises `TypeError` or `ValueError` with the argument,
//! its value and the limit. The interpreter lock is released during computation. Results have the
//! same bits at any number of threads. People use the package in `python/`; this module promises no
//! stable interface.

mod array;
mod attention;
#[cfg(feature = "command")]
mod command;
mod content;
mod dlpack;
mod encoding;
mod kernel;
mod linear;
mod parts;
mod positions;
mod run_folder;
mod threads;

use kerple_core::cpu::InstructionSet;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns the instruction set in use.
#[pyfunction]
fn instruction_set() -> &'static str {
    InstructionSet::current().name()
}

/// Limits the instruction set from now on; returns the one in use.
#[pyfunction]
fn limit_instruction_set(most: &str) -> PyResult<&'static str> {
    let found = InstructionSet::ALL.into_iter().find(|set| set.name() == most);
    let names = InstructionSet::ALL.map(InstructionSet::name).join(", ");
    let set = found.ok_or_else(|| PyValueError::new_err(format!("most = {most:?} is unknown; use one of {names}")))?;
    Ok(kerple_core::cpu::limit(set).name())
}

/// The module `kerple._native`.
#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<attention::AttentionRule>()?;
    module.add_class::<encoding::PyEncoding>()?;
    module.add_function(wrap_pyfunction!(attention::attention_forward, module)?)?;
    module.add_function(wrap_pyfunction!(attention::attention_backward, module)?)?;
    module.add_function(wrap_pyfunction!(content::content_forward, module)?)?;
    module.add_function(wrap_pyfunction!(content::content_backward, module)?)?;
    module.add_class::<linear::LinearRule>()?;
    module.add_class::<linear::LinearState>()?;
    module.add_function(wrap_pyfunction!(linear::linear_forward, module)?)?;
    module.add_function(wrap_pyfunction!(linear::linear_backward, module)?)?;
    module.add_function(wrap_pyfunction!(linear::parts::linear_omega, module)?)?;
    module.add_function(wrap_pyfunction!(linear::parts::linear_form, module)?)?;
    module.add_function(wrap_pyfunction!(linear::parts::linear_noise, module)?)?;
    module.add_function(wrap_pyfunction!(linear::parts::linear_decay, module)?)?;
    module.add_function(wrap_pyfunction!(linear::parts::linear_decay_backward, module)?)?;
    module.add_function(wrap_pyfunction!(encoding::methods, module)?)?;
    module.add_function(wrap_pyfunction!(kernel::check_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(run_folder::refuse_old_names, module)?)?;
    #[cfg(feature = "command")]
    module.add_function(wrap_pyfunction!(command::command, module)?)?;
    module.add_function(wrap_pyfunction!(instruction_set, module)?)?;
    module.add_function(wrap_pyfunction!(limit_instruction_set, module)?)?;
    Ok(())
}
