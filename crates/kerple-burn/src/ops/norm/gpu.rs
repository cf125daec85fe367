//! Norms on GPUs, by the kernels of [`kerple_gpu::norm`].

use super::{Alone, RowNorm};
use crate::fused::{Forward, GpuOp, Saved, Step, like};
use burn_cubecl::tensor::CubeTensor;
use kerple_gpu::cubecl::server::Handle;
use kerple_gpu::norm::{self, Gradients};

impl Alone {
    fn on(&self, inputs: &[CubeTensor]) -> norm::Norm {
        let (x, gamma) = (&inputs[self.x], &inputs[self.norm.gamma]);
        let width = gamma.meta.num_elements();
        norm::Norm {
            centred: self.norm.kind == RowNorm::Layer,
            epsilon: self.norm.epsilon as f32,
            gamma: gamma.handle.clone(),
            beta: self.norm.beta.map(|beta| inputs[beta].handle.clone()),
            sizes: [x.meta.num_elements() / width, width],
        }
    }
}

impl GpuOp for Alone {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> Forward<CubeTensor> {
        let x = &inputs[self.x];
        let [y, stats] = self.on(inputs).forward(&x.client, &x.handle);
        Forward { output: like(x, y), saved: Saved::new(stats) }
    }

    fn backward(&self, step: &Step<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, x) = (step.inputs, &step.inputs[self.x]);
        let rows = [&x.handle, step.saved::<Handle>(), &step.d_output.handle];
        let Gradients { d_x, d_gamma, d_beta } = self.on(inputs).backward(&x.client, rows);
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
