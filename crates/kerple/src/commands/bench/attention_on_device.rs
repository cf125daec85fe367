//! Attention on a GPU: its kernels, and the reference in Burn's operations where it is short
//! enough.

use super::attention::{LONGEST_COMPOSED, bytes, flops, narrowed};
use crate::command_error::CommandResult;
use crate::timing::inputs::{log_bias, noise};
use crate::timing::model::{CHECKED_LEN, TimedDevice};
use crate::timing::{Measurement, TimedSizes, TimedWork, check_agreement, check_memory, times};
use burn::tensor::{Device, Tensor, TensorData};
use kerple_burn::attention_context::{AttentionBias, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{attention, default_scale};
use kerple_core::forms::Mask;

/// Inputs of one call.
struct DeviceInputs {
    own: [Tensor<4>; 3],
    bias: Option<Tensor<2>>,
    mask: Mask,
}

impl DeviceInputs {
    fn new(
        device: &Device,
        length: usize,
        TimedSizes { batch, heads, head_dim, .. }: TimedSizes,
        mask: Mask,
        with_bias: bool,
    ) -> DeviceInputs {
        let device = device.clone().autodiff();
        let shape = [batch, heads, length, head_dim];
        let input = |seed| {
            let values = noise(shape.iter().product(), seed);
            Tensor::<4>::from_data(TensorData::new(values, shape), &device).require_grad()
        };
        let table = || TensorData::new(log_bias(heads, head_dim, length), [heads, length]);
        let bias = with_bias.then(|| Tensor::<2>::from_data(table(), &device).require_grad());
        DeviceInputs { own: [1, 2, 3].map(input), bias, mask }
    }

    /// The output, and with a backward of its sum the gradients in queries and in the bias.
    fn run(&self, implementation: Impl, backward: bool) -> (Tensor<4>, Option<[Option<Tensor<1>>; 2]>) {
        let [q, k, v] = self.own.clone();
        let scale = default_scale(q.dims()[3]);
        let bias = AttentionBias::Table { bias: self.bias.clone(), weight: None };
        let score_context = ScoreContext { mask: self.mask.into(), bias, ..ScoreContext::default() };
        let out = attention(q, k, v, scale, &score_context, implementation);
        let gradients = backward.then(|| {
            let gradients = out.clone().sum().backward();
            let flat = |values: Tensor<2>| values.reshape([-1]);
            let d_q = self.own[0].grad(&gradients).map(|values| values.reshape([-1]));
            [d_q, self.bias.as_ref().and_then(|bias| bias.grad(&gradients)).map(flat)]
        });
        (out, gradients)
    }
}

fn numbers(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Fails unless output and gradients of the kernels equal the reference's on the same device.
fn check(device: &Device, sizes: TimedSizes, mask: Mask, implementation: Impl) -> CommandResult {
    let layer =
        DeviceInputs::new(device, CHECKED_LEN, TimedSizes { batch: 1, ..sizes }, narrowed(mask, CHECKED_LEN), true);
    let all = |implementation| {
        let (out, gradients) = layer.run(implementation, true);
        let gradients = gradients.into_iter().flatten().flatten();
        std::iter::once(out.without_autodiff().reshape([-1])).chain(gradients).map(numbers).collect::<Vec<_>>()
    };
    for (kernel, reference) in all(implementation).iter().zip(all(Impl::Reference)) {
        // products of the reference may be made of shorter numbers; of those that are rounded, some errors add up
        let tolerance = 5e-3 + 4.0 * implementation.precision().unit() as f32;
        check_agreement("attention on the device", kernel, &reference, tolerance)?;
    }
    Ok(())
}

/// Attention with KERPLE-log's table on a device.
pub struct DeviceAttention {
    pub device: TimedDevice,
    pub mask: Mask,
}

impl TimedWork for DeviceAttention {
    fn check_length(&self, length: usize, sizes: TimedSizes) -> CommandResult {
        check_memory(bytes(length, sizes), length, self.device.memory.as_ref())
    }

    fn time(&self, length: usize, sizes: TimedSizes, report: &mut dyn FnMut(Measurement)) -> CommandResult {
        let TimedDevice { device, name, implementation: fused, .. } = &self.device;
        let mask = self.mask;
        check(device, sizes, mask, *fused)?;
        for (implementation, what) in [(*fused, "kernel"), (Impl::Reference, "composed")] {
            if implementation == Impl::Reference && length > LONGEST_COMPOSED {
                continue;
            }
            for backward in [false, true] {
                for bias in ["none", "learned"] {
                    device.memory_cleanup();
                    let layer = DeviceInputs::new(device, length, sizes, mask, bias == "learned");
                    let mut last = None;
                    let all = times(sizes.repeats, || {
                        last = None;
                        last = Some(layer.run(implementation, backward));
                        device.sync().expect("the device answers");
                    });
                    let (out, gradients) = last.expect("it ran");
                    // work on a device is queued: what failed shows when a result is read, and not before
                    for made in std::iter::once(out.without_autodiff().reshape([-1]))
                        .chain(gradients.into_iter().flatten().flatten())
                    {
                        numbers(made.narrow(0, 0, 1));
                    }
                    let flops = flops(length, sizes, mask, backward);
                    let mut row = Measurement::new("attention", what, length, sizes, &all, flops).on(name);
                    (row.backward, row.bias) = (backward, bias);
                    row.extra_mib = self.device.reserved_mib();
                    report(row);
                }
            }
        }
        Ok(())
    }
}
