//! Run folders, which the package reads by itself.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Refuses a run folder that has names from before 0.1.0.
#[pyfunction]
pub fn refuse_old_names(folder: PathBuf) -> PyResult<()> {
    let refused = kerple_run::old_names::refuse_folder(&folder);
    refused.map_err(|error| PyValueError::new_err(format!("{error}; {}", error.hint())))
}
