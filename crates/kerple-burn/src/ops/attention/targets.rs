//! Which calls have a kernel on which device.

use crate::forms::Positions;
use crate::fused::Target;
use burn::tensor::Tensor;

const HOST: &[Target] = &[Target::Host];

/// The processor has one for every call, GPUs have one for those with tables over distances, FIRE's bias or nothing at all.
#[cfg(feature = "cube")]
pub(super) fn of(q: &Tensor<4>, k: &Tensor<4>, positions: &Positions) -> &'static [Target] {
    if super::gpu::runs(q, k, positions) { &[Target::Host, Target::Gpu] } else { HOST }
}

/// The processor has one for every call.
#[cfg(not(feature = "cube"))]
pub(super) fn of(_: &Tensor<4>, _: &Tensor<4>, _: &Positions) -> &'static [Target] {
    HOST
}
