//! Kernel expressions and their certificates.

use crate::threads::{Workload, run};
use kerple_core::calculus::report;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The certificate of a kernel: whether it is valid, in words, and as JSON.
#[pyfunction]
pub fn check_kernel(py: Python, expression: &str, points: &str) -> PyResult<(bool, String, String)> {
    let found = run(py, 1, Workload::Any, || report::check(expression, points))?;
    let found = found.map_err(|error| {
        let hint = error.hint().map_or(String::new(), |hint| format!("; {hint}"));
        PyValueError::new_err(format!("{error}{hint}"))
    })?;
    let json = serde_json::to_string(&found).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((found.is_valid(), found.to_string(), json))
}
