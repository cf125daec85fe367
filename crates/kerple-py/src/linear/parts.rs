//! What linear attention draws, and its decay: for devices whose tensors compute the rest.

use super::{DEMAND, LinearRule};
use crate::array::PythonArray;
use crate::threads::{Workload, run};
use kerple_core::attention::linear::CHUNK;
use kerple_core::encoding::{EncodingDecay, InLinear};
use kerple_core::features::{Gating, Normals, omega};
use kerple_core::forms::{CodeForm, CodeKind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What streams of random numbers are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drawn {
    Code,
    Gate,
    Omega,
}

/// Writes the projection of random features, `[D, m]` of `2 m` features.
#[pyfunction]
pub fn linear_omega(rule: &LinearRule, out: &Bound<PyAny>) -> PyResult<()> {
    let out = PythonArray::of("out", out)?;
    let size = out.sizes("D, m")?;
    // SAFETY: Python made it for this call, and it is taken once.
    let to = unsafe { out.values_mut::<f64>()? };
    to.copy_from_slice(&omega::orthogonal(size, omega::ColumnNorms::OfRows, &mut rule.stream(Drawn::Omega)));
    Ok(())
}

/// Sizes and options of a stochastic code.
type CodeDescription = (usize, usize, Vec<usize>, Vec<usize>, Option<&'static str>, bool);

/// How the rule takes its encoding, `"as it is"`, `"code"`, `"decay"` or `"gates"`; and of a stochastic code its realisations; waves of a
/// feature, 0 of a code of filters; taps and positions along each axis; how it is gated; and whether gradients in frequencies are counted
/// from the middle of a sequence.
#[pyfunction]
pub fn linear_form(rule: &LinearRule) -> (&'static str, Option<CodeDescription>) {
    let (encoding, geometry) = rule.encoding.get().parts();
    let takes = match encoding.in_linear() {
        None | Some(InLinear::AsItIs) => "as it is",
        Some(InLinear::Code) => "code",
        Some(InLinear::Decay) => "decay",
        Some(InLinear::Gates) => "gates",
    };
    let describe = |CodeForm { kind, gating, centred, .. }| {
        let gating = gating.map(|gating| match gating {
            Gating::Torch => "torch",
            Gating::Jax => "jax",
        });
        match kind {
            CodeKind::Sine(shape) => (shape.realisations, shape.waves, Vec::new(), Vec::new(), gating, centred),
            CodeKind::Conv(shape) => (shape.realisations, 0, shape.taps, shape.size, gating, centred),
        }
    };
    (takes, encoding.code(geometry).map(describe))
}

/// Writes rows of the noise of a code, from row `first` of each of the streams of heads and features on, `[H D, rows, R]`; or with
/// `of_gate` the row that its gate mixes in, `[H D, 1, R]`.
#[pyfunction]
pub fn linear_noise(py: Python, rule: &LinearRule, of_gate: bool, first: usize, out: &Bound<PyAny>) -> PyResult<()> {
    let out = PythonArray::of("out", out)?;
    let [_, rows, width] = out.sizes("H D, rows, R")?;
    let noise = Normals::drawn(rule.stream(if of_gate { Drawn::Gate } else { Drawn::Code }));
    // SAFETY: Python made it for this call, and it is taken once.
    let to = unsafe { out.values_mut::<f64>()? };
    run(py, rule.threads, Workload::Any, || {
        for (stream, to) in to.chunks_exact_mut((rows * width).max(1)).enumerate() {
            to.copy_from_slice(&noise.rows(stream, first, [rows, width]));
        }
    })
}

/// Positions of a chunk; the decay at distances that are processed pair by pair, `[H, near]`; rates and weights of the exponentials of
/// distances beyond, `[H, K]`.
type DecayParts = (usize, Vec<f64>, Vec<f64>, Vec<f64>);

/// The decay of the rule's encoding.
#[pyfunction]
pub fn linear_decay(py: Python, rule: &LinearRule, values: &Bound<PyAny>) -> PyResult<DecayParts> {
    let (found, _) = decay(py, rule, values)?;
    Ok((CHUNK, found.near, found.rates, found.weights))
}

fn decay(py: Python, rule: &LinearRule, values: &Bound<PyAny>) -> PyResult<(EncodingDecay, Vec<Vec<f64>>)> {
    let stored = rule.encoding.get().stored(&PythonArray::of("values", values)?)?;
    let (encoding, geometry) = rule.encoding.get().parts();
    let found = run(py, rule.threads, Workload::Any, || encoding.decay(geometry, &stored, &DEMAND))?;
    let found = found.ok_or_else(|| PyValueError::new_err(format!("{} does not decay products", encoding.label())))?;
    Ok((found, stored))
}

/// Writes the gradient of the encoding's raw parameters, given that of its decay.
#[pyfunction]
pub fn linear_decay_backward(
    py: Python,
    rule: &LinearRule,
    values: &Bound<PyAny>,
    d_near: &Bound<PyAny>,
    d_weights: &Bound<PyAny>,
    d_values: &Bound<PyAny>,
) -> PyResult<()> {
    let (found, stored) = decay(py, rule, values)?;
    let d = [PythonArray::of("d_near", d_near)?, PythonArray::of("d_weights", d_weights)?];
    let d_values = PythonArray::of("d_values", d_values)?;
    d_values.expect_shape("P", &[stored.iter().map(Vec::len).sum()])?;
    for (array, of) in d.iter().zip([&found.near, &found.weights]) {
        array.expect_shape("N", &[of.len()])?;
    }
    let (_, geometry) = rule.encoding.get().parts();
    let gradient = decay_gradient(&found, geometry.heads, &stored, [d[0].values::<f64>()?, d[1].values::<f64>()?]);
    // SAFETY: Python made it for this call, and it is taken once.
    unsafe { d_values.values_mut::<f64>()? }.copy_from_slice(&gradient.concat());
    Ok(())
}

/// The gradient of raw parameters, given that of a decay: at near distances, and in the weights of its exponentials.
pub(super) fn decay_gradient(
    found: &EncodingDecay,
    heads: usize,
    stored: &[Vec<f64>],
    d_tables: [&[f64]; 2],
) -> Vec<Vec<f64>> {
    let mut sums: Vec<Vec<f64>> = stored.iter().map(|values| vec![0.0; values.len()]).collect();
    for (slopes, d_table) in [&found.near_jacobian, &found.weight_jacobian].into_iter().zip(d_tables) {
        if let (Some(slopes), false) = (slopes, d_table.is_empty()) {
            slopes.backward(heads, d_table, &mut sums);
        }
    }
    sums
}
