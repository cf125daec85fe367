//! Epilogues of products on GPUs, by the kernels of [`kerple_gpu::epilogue`].

use super::EpilogueTensors;
use crate::custom_op::{BackwardContext, CustomOp, GpuOp, OpInputs, OpOutput, SavedForBackward, like};
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use kerple_core::ops::activation::Activation;
use kerple_gpu::epilogue::{FusedEpilogue, FusedEpilogueGradients};

pub(super) fn epilogue(x: Tensor<3>, EpilogueTensors { bias, activation, base }: EpilogueTensors) -> Tensor<3> {
    if bias.is_none() && activation.is_none() && base.is_none() {
        return x;
    }
    let mut inputs = OpInputs::default();
    let x = inputs.add(x);
    let op = EpilogueOp { x, bias: inputs.add_some(bias), activation, base: inputs.add_some(base) };
    inputs.apply(op)
}

#[derive(Debug)]
struct EpilogueOp {
    x: usize,
    bias: Option<usize>,
    activation: Option<Activation>,
    base: Option<usize>,
}

impl CustomOp for EpilogueOp {
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

impl EpilogueOp {
    fn on<'a>(&self, inputs: &'a [CubeTensor]) -> FusedEpilogue<'a> {
        let shape = inputs[self.x].meta.shape();
        let handle = |place: Option<usize>| place.map(|place| &inputs[place].handle);
        let sizes = [shape[0] * shape[1], shape[2]];
        FusedEpilogue { sizes, bias: handle(self.bias), activation: self.activation, base: handle(self.base) }
    }
}

impl GpuOp for EpilogueOp {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        let x = &inputs[self.x];
        let output = like(x, self.on(inputs).forward(&x.client, &x.handle));
        OpOutput { output, saved: SavedForBackward::nothing() }
    }

    fn reads(&self, place: usize) -> bool {
        self.activation.is_some() && self.base != Some(place)
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let (inputs, x) = (ctx.inputs, &ctx.inputs[self.x]);
        let FusedEpilogueGradients { d_x, d_bias } =
            self.on(inputs).backward(&x.client, [&x.handle, &ctx.d_output.handle]);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        gradients[self.x] = Some(like(x, d_x));
        if let (Some(place), Some(d_bias)) = (self.bias, d_bias) {
            gradients[place] = Some(like(&inputs[place], d_bias));
        }
        if let Some(place) = self.base {
            gradients[place] = Some(ctx.d_output.clone());
        }
        gradients
    }
}
