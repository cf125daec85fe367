//! Products of rows with a matrix, of numbers as exact as the engine says.

#[cfg(feature = "cube")]
mod gpu;

use crate::fused::Engine;
use burn::tensor::Tensor;

/// `x W`, or `x W^T` where the matrix is `turned`; `[rows, in]` to `[rows, out]`.
pub(super) fn product(x: Tensor<2>, matrix: Tensor<2>, turned: bool, engine: Engine) -> Tensor<2> {
    #[cfg(feature = "cube")]
    if engine.has_kernel(&[crate::fused::Target::Gpu], &x) {
        return gpu::product(x, matrix, turned, engine.precision());
    }
    #[cfg(not(feature = "cube"))]
    let _ = engine;
    x.matmul(if turned { matrix.transpose() } else { matrix })
}
