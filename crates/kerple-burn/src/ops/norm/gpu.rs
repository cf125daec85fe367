//! Norms on GPUs, by the kernels of [`kerple_gpu::norm`].

use super::{NormOp, RowNorm};
use crate::custom_op::{BackwardContext, GpuOp, OpOutput, SavedForBackward, like};
use burn_cubecl::tensor::CubeTensor;
use kerple_gpu::cubecl::server::Handle;
use kerple_gpu::norm::{FusedNorm, FusedNormGradients};

impl NormOp {
    fn on(&self, inputs: &[CubeTensor]) -> FusedNorm {
        let (x, gamma) = (&inputs[self.x], &inputs[self.norm.gamma]);
        let width = gamma.meta.num_elements();
        FusedNorm {
            centred: self.norm.kind == RowNorm::Layer,
            epsilon: self.norm.epsilon as f32,
            gamma: gamma.handle.clone(),
            beta: self.norm.beta.map(|beta| inputs[beta].handle.clone()),
            sizes: [x.meta.num_elements() / width, width],
        }
    }
}

impl GpuOp for NormOp {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        let x = &inputs[self.x];
        let [y, stats] = self.on(inputs).forward(&x.client, &x.handle);
        OpOutput { output: like(x, y), saved: SavedForBackward::new(stats) }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, x) = (ctx.inputs, &ctx.inputs[self.x]);
        let rows = [&x.handle, ctx.saved::<Handle>(), &ctx.d_output.handle];
        let FusedNormGradients { d_x, d_gamma, d_beta } = self.on(inputs).backward(&x.client, rows);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        let mut put = |place: usize, gradient| gradients[place] = Some(like(&inputs[place], gradient));
        put(self.x, d_x);
        put(self.norm.gamma, d_gamma);
        if let (Some(place), Some(d_beta)) = (self.norm.beta, d_beta) {
            put(place, d_beta);
        }
        gradients
    }
}
