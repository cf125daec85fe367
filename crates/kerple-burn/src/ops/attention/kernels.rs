//! Which calls have a kernel on which device.

use crate::attention_context::ScoreContext;
use crate::implementation::DeviceKind;
use burn::tensor::Tensor;

const HOST: &[DeviceKind] = &[DeviceKind::Cpu];

/// The processor has one for every call, GPUs have one for those with tables over distances, FIRE's bias or nothing at all.
#[cfg(feature = "cube")]
pub(super) fn of(rows: [&Tensor<4>; 3], context: &ScoreContext) -> &'static [DeviceKind] {
    if super::gpu::runs(rows, context) { &[DeviceKind::Cpu, DeviceKind::Gpu] } else { HOST }
}

/// The processor has one for every call.
#[cfg(not(feature = "cube"))]
pub(super) fn of(_: [&Tensor<4>; 3], _: &ScoreContext) -> &'static [DeviceKind] {
    HOST
}
