//! Dropout on GPUs, by the kernel of [`kerple_gpu::dropout`].

use super::Drop;
use crate::fused::{Forward, GpuOp, Saved, Step, like};
use burn_cubecl::tensor::CubeTensor;
use kerple_gpu::dropout::{Stream, dropped};

impl Drop {
    /// The same for values and for gradients.
    fn on_cube(&self, x: &CubeTensor) -> CubeTensor {
        let rows = x.meta.shape()[0];
        let stream = |row| {
            let words = self.stream(row);
            Stream { key: words.get_seed(), number: words.get_stream() }
        };
        let streams: Vec<Stream> = (0..rows).map(stream).collect();
        let width = x.meta.num_elements() / rows.max(1);
        like(x, dropped(&x.client, &x.handle, &streams, width, self.limit(), self.growth() as f32))
    }
}

impl GpuOp for Drop {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> Forward<CubeTensor> {
        Forward { output: self.on_cube(&inputs[0]), saved: Saved::nothing() }
    }

    fn backward(&self, step: &Step<CubeTensor>) -> Vec<Option<CubeTensor>> {
        vec![Some(self.on_cube(step.d_output))]
    }
}
