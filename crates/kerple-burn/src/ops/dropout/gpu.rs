//! Dropout on GPUs, by the kernel of [`kerple_gpu::dropout`].

use super::DropoutOp;
use crate::custom_op::{BackwardContext, GpuOp, OpOutput, SavedForBackward, like};
use burn_cubecl::tensor::CubeTensor;
use kerple_gpu::dropout::{ChaChaStream, dropout};

impl DropoutOp {
    /// The same for values and for gradients.
    fn on_cube(&self, x: &CubeTensor) -> CubeTensor {
        let rows = x.meta.shape()[0];
        let stream = |row| {
            let words = self.stream(row);
            ChaChaStream { key: words.get_seed(), number: words.get_stream() }
        };
        let streams: Vec<ChaChaStream> = (0..rows).map(stream).collect();
        let width = x.meta.num_elements() / rows.max(1);
        like(x, dropout(&x.client, &x.handle, &streams, width, self.limit(), self.growth() as f32))
    }
}

impl GpuOp for DropoutOp {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        OpOutput { output: self.on_cube(&inputs[0]), saved: SavedForBackward::nothing() }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        vec![Some(self.on_cube(ctx.d_output))]
    }
}
