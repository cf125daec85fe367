//! Which calls have a kernel on which device.

use crate::attention_context::ScoreContext;
use crate::implementation::DeviceKind;
use crate::ops::attention::Scoring;
use burn::tensor::Tensor;

const HOST: &[DeviceKind] = &[DeviceKind::Cpu];

/// The processor has one for every call, GPUs have one for softmax with tables over distances, FIRE's bias or nothing at all.
#[cfg(feature = "cube")]
pub(super) fn of(rows: [&Tensor<4>; 3], scoring: &Scoring, context: &ScoreContext) -> &'static [DeviceKind] {
    if scoring.normalizer.is_softmax() && scoring.selective.is_none() && super::gpu::runs(rows, context) {
        &[DeviceKind::Cpu, DeviceKind::Gpu]
    } else {
        HOST
    }
}

/// The processor has one for every call.
#[cfg(not(feature = "cube"))]
pub(super) fn of(_: [&Tensor<4>; 3], _: &Scoring, _: &ScoreContext) -> &'static [DeviceKind] {
    HOST
}
