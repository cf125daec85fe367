//! Learned positions of a call, and the kernel of their differences.

use crate::array::PythonArray;
use kerple_core::attention::{AttentionDims, DocumentSegment, LearnedPositions, PackedDocuments, PositionKernel};
use kerple_core::forms::Strided;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ops::RangeInclusive;

/// Numbers per head of a spline: that of the whole distance, and 1 to 24 knots.
const OF_SPLINE: RangeInclusive<usize> = 2..=25;

/// Positions, parameters, and the name of their kernel.
pub type PositionObjects<'py> = Option<(Bound<'py, PyAny>, Bound<'py, PyAny>, String)>;

/// Positions `[B, H, K]` and the parameters of their kernel, `[H, P]`.
pub struct PositionArrays {
    /// Not decreasing.
    pub positions: PythonArray,
    /// 0 in a spline alone.
    pub parameters: PythonArray,
    kernel: PositionKernel,
}

impl PositionArrays {
    /// Reads the arrays of a call.
    pub fn of(objects: &PositionObjects) -> PyResult<Option<PositionArrays>> {
        let Some((positions, parameters, kernel)) = objects else { return Ok(None) };
        let positions = PythonArray::of("positions", positions)?;
        let parameters = PythonArray::of("position_kernel[1]", parameters)?;
        let [_, count] = parameters.sizes("H, P")?;
        let kernel = match kernel.as_str() {
            "log" => PositionKernel::Log,
            "power" => PositionKernel::Power,
            "log3" => PositionKernel::Log3,
            "spline" if OF_SPLINE.contains(&count) => PositionKernel::Spline { knots: count - 1 },
            "spline" => return refuse(&format!("position_kernel[1]: {count} numbers per head; a spline has 2 to 25")),
            _ => {
                let names = "\"log\", \"power\", \"log3\" or \"spline\"";
                return refuse(&format!("position_kernel[0] = {kernel:?} is unknown; use {names}"));
            }
        };
        Ok(Some(PositionArrays { positions, parameters, kernel }))
    }

    /// Refuses what the engine would refuse.
    pub fn check(&self, dims: AttentionDims, documents: Option<&PackedDocuments>) -> PyResult<()> {
        let AttentionDims { batch, heads, queries, keys, .. } = dims;
        self.positions.expect_shape("B, H, K", &[batch, heads, keys])?;
        let count = self.kernel.parameters();
        self.parameters.expect_shape("H, P", &[heads, count])?;
        if queries > keys {
            return refuse(&format!("q: {queries} queries exceed the {keys} keys, which alone have positions"));
        }
        let zero = self.parameters.values::<f64>()?.iter().position(|parameter| *parameter == 0.0);
        if let (Some(at), false) = (zero, !self.kernel.divides_by_parameters()) {
            let place = [at / count, at % count];
            let reason = "which only a spline takes, since gradients divide by it";
            return refuse(&format!("position_kernel[1]: the parameter at {place:?} is 0, {reason}"));
        }
        let values = self.positions.values::<f64>()?;
        let own = |DocumentSegment { row, first_key, keys, .. }: DocumentSegment| (row, first_key, keys);
        let segments: Vec<_> = match documents {
            Some(documents) => documents.documents().map(own).collect(),
            None => (0..batch).map(|row| (row, 0, keys)).collect(),
        };
        for (row, first, len) in segments {
            for head in 0..heads {
                let of_segment = &values[(row * heads + head) * keys + first..][..len];
                if let Some(at) = of_segment.windows(2).position(|pair| pair[1] < pair[0]) {
                    let (place, [before, after]) = ([row, head, first + at + 1], [of_segment[at], of_segment[at + 1]]);
                    let reason = "they are running sums of steps, which may not be negative";
                    return refuse(&format!("positions: they fall from {before} to {after} at {place:?}; {reason}"));
                }
            }
        }
        Ok(())
    }

    /// As the engine takes them.
    pub fn learned(&self) -> PyResult<LearnedPositions<'_>> {
        let [_, _, stride] = self.positions.sizes("B, H, K")?;
        let positions = Strided { values: self.positions.values::<f64>()?, stride };
        Ok(LearnedPositions { positions, kernel: self.kernel, parameters: self.parameters.values()? })
    }
}

fn refuse<T>(message: &str) -> PyResult<T> {
    Err(PyValueError::new_err(message.to_owned()))
}
