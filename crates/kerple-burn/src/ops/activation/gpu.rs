//! Activations on GPUs, by the kernels of [`kerple_cube::activation`].

use super::Alone;
use crate::fused::{Forward, GpuOp, Saved, Step, like};
use burn_cubecl::tensor::CubeTensor;
use kerple_cube::activation::{activate, activate_backward};

impl GpuOp for Alone {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> Forward<CubeTensor> {
        let x = &inputs[0];
        let y = activate(&x.client, self.0, &x.handle, x.meta.num_elements());
        Forward { output: like(x, y), saved: Saved::nothing() }
    }

    fn backward(&self, step: &Step<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let x = &step.inputs[0];
        let arrays = [&x.handle, &step.d_output.handle];
        vec![Some(like(x, activate_backward(&x.client, self.0, arrays, x.meta.num_elements())))]
    }
}
