//! Tables of rotary positions.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Cosines and sines of the rotation angles of consecutive positions.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    half: usize,
    cos: Vec<f64>,
    sin: Vec<f64>,
    held: Option<[Tensor<4>; 2]>,
}

impl RotaryTables {
    /// Tables `[L, half]` each.
    ///
    /// # Panics
    /// When they differ in size, or are no rows of `half` values.
    pub fn new(half: usize, cos: Vec<f64>, sin: Vec<f64>) -> RotaryTables {
        kerple_core::check_shape!(cos, L = cos.len() / half.max(1), half = half);
        kerple_core::check_shape!(sin, L = cos.len() / half.max(1), half = half);
        RotaryTables { half, cos, sin, held: None }
    }

    /// The same with tensors that all layers share.
    pub fn held(self, options: (&Device, DType)) -> RotaryTables {
        RotaryTables { held: Some(self.tensors(options)), ..self }
    }

    /// Cosines and sines, `[1, 1, L, half]` each.
    pub(crate) fn tensors(&self, (device, dtype): (&Device, DType)) -> [Tensor<4>; 2] {
        if let Some(held) = self.held.as_ref().filter(|[cos, _]| cos.device() == *device && cos.dtype() == dtype) {
            return held.clone();
        }
        let shape = [1, 1, self.cos.len() / self.half.max(1), self.half];
        let table = |values: &Vec<f64>| Tensor::from_data(TensorData::new(values.clone(), shape), (device, dtype));
        [&self.cos, &self.sin].map(table)
    }

    /// Rotated features, divided by two.
    pub fn half(&self) -> usize {
        self.half
    }

    /// Cosines, `[L, half]`.
    pub fn cos(&self) -> &[f64] {
        &self.cos
    }

    /// Sines, `[L, half]`.
    pub fn sin(&self) -> &[f64] {
        &self.sin
    }
}
