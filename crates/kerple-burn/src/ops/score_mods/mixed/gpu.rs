//! A network over heads on GPUs, by the kernels of [`kerple_gpu::head_mlp`].

use crate::custom_op::{BackwardContext, CustomOp, GpuOp, OpInputs, OpOutput, SavedForBackward, like};
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use kerple_core::score_mods::network::Network;
use kerple_gpu::head_mlp::HeadMlp;

/// Scores `[B, H, Q, K]` with what a network of these numbers and a bias, `[1, H, Q, K]`, add to them; `None`: there is no kernel.
pub(super) fn mixed(
    network: &Network,
    scores: &Tensor<4>,
    bias: Option<&Tensor<4>>,
    numbers: Tensor<1>,
) -> Option<Tensor<4>> {
    let device = scores.device().without_autodiff();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return None };
    let [batch, heads, queries, keys] = scores.dims();
    let there = HeadMlp::new(&device.client(), network, [batch, heads, queries * keys], bias.is_some());
    let kernels = there.filter(|_| scores.dtype() == DType::F32)?;
    let mut inputs = OpInputs::default();
    let [scores, numbers] = [inputs.add(scores.clone()), inputs.add(numbers)];
    let bias = inputs.add_some(bias.cloned());
    Some(inputs.apply(HeadNetworkOp { scores, numbers, bias, kernels }))
}

/// Inputs: scores, the network's numbers, a bias.
#[derive(Debug)]
struct HeadNetworkOp {
    scores: usize,
    numbers: usize,
    bias: Option<usize>,
    kernels: HeadMlp,
}

impl CustomOp for HeadNetworkOp {
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

impl GpuOp for HeadNetworkOp {
    fn forward(&self, inputs: &[CubeTensor], _tracked: bool) -> OpOutput<CubeTensor> {
        let (scores, bias) = (&inputs[self.scores], self.bias.map(|bias| &inputs[bias].handle));
        let made = self.kernels.forward(&scores.client, &scores.handle, bias, &inputs[self.numbers].handle);
        OpOutput { output: like(scores, made), saved: SavedForBackward::nothing() }
    }

    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        let inputs = ctx.inputs;
        let [scores, numbers] = [&inputs[self.scores], &inputs[self.numbers]];
        let bias = self.bias.map(|bias| &inputs[bias].handle);
        let given = [&scores.handle, &numbers.handle, &ctx.d_output.handle];
        let found = self.kernels.backward(&scores.client, given, bias);
        let mut gradients: Vec<Option<CubeTensor>> = inputs.iter().map(|_| None).collect();
        gradients[self.scores] = Some(like(scores, found.d_scores));
        gradients[self.numbers] = Some(like(numbers, found.d_parameters));
        if let (Some(bias), Some(d_bias)) = (self.bias, found.d_bias) {
            gradients[bias] = Some(like(&inputs[bias], d_bias));
        }
        gradients
    }
}
