//! Matrix products in the precision of the implementation.

#[cfg(feature = "cube")]
mod gpu;

#[cfg(feature = "cube")]
use crate::implementation::DeviceKind;
use crate::implementation::Impl;
#[cfg(feature = "cube")]
use burn::tensor::DType;
use burn::tensor::Tensor;
use kerple_core::precision::Precision;

/// `x W`, or `x W^T` where the matrix is `turned`, for each of the first axes, which are alike: `[.., rows, in]` to `[.., rows, out]`.
/// The precision is that of the implementation; the reference's is `f32`.
pub(super) fn product<const D: usize>(
    x: Tensor<D>,
    matrix: Tensor<D>,
    turned: bool,
    implementation: Impl,
) -> Tensor<D> {
    of_precision(x, matrix, turned, implementation.precision())
}

/// A product of numbers as they are, on every device; GPUs' own products may take less of them.
pub fn exact<const D: usize>(x: Tensor<D>, matrix: Tensor<D>) -> Tensor<D> {
    of_precision(x, matrix, false, Precision::F32)
}

fn of_precision<const D: usize>(x: Tensor<D>, matrix: Tensor<D>, turned: bool, precision: Precision) -> Tensor<D> {
    #[cfg(feature = "cube")]
    if x.dtype() == DType::F32 && DeviceKind::of(&x.device()) == Some(DeviceKind::Gpu) {
        return gpu::product(x, matrix, turned, precision);
    }
    #[cfg(not(feature = "cube"))]
    let _ = precision;
    // matrices may be held as `bf16`
    let matrix = if matrix.dtype() == x.dtype() { matrix } else { matrix.cast(x.dtype()) };
    x.matmul(if turned { matrix.transpose() } else { matrix })
}
