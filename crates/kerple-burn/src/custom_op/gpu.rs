//! Custom autograd operations on GPUs.

use super::{BackwardContext, CustomOp, OpBackend, OpOutput};
use burn::backend::tensor::FloatTensor;
use burn::tensor::kind::Basic;
use burn::tensor::{BackendPrimitive, Shape, Tensor};
use burn_cubecl::Cube;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use kerple_gpu::cubecl::server::Handle;

/// What an operation is on a GPU: [`CustomOp`] on arrays that lie there.
pub trait GpuOp {
    /// See [`CustomOp::forward`].
    fn forward(&self, inputs: &[CubeTensor], tracked: bool) -> OpOutput<CubeTensor>;

    /// Whether the backward reads the input at this place. Of one that it does not read it is given the shape alone.
    fn reads(&self, _place: usize) -> bool {
        true
    }

    /// See [`CustomOp::backward`].
    fn backward(&self, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>>;
}

fn face(op: &dyn CustomOp) -> &dyn GpuOp {
    op.on_gpu().unwrap_or_else(|| panic!("{op:?} has no kernels for GPUs"))
}

impl OpBackend for Cube {
    type Array = CubeTensor;

    fn array(tensor: FloatTensor<Cube>) -> CubeTensor {
        into_contiguous(tensor)
    }

    fn tensor(array: CubeTensor) -> FloatTensor<Cube> {
        array
    }

    fn forward(op: &dyn CustomOp, inputs: &mut [CubeTensor], tracked: bool) -> OpOutput<CubeTensor> {
        face(op).forward(inputs, tracked)
    }

    fn kept_for_backward(op: &dyn CustomOp, inputs: Vec<CubeTensor>) -> Vec<CubeTensor> {
        let shape_of = |input: CubeTensor| like(&input, input.client.empty(size_of::<f32>()));
        let kept = |(place, input)| if face(op).reads(place) { input } else { shape_of(input) };
        inputs.into_iter().enumerate().map(kept).collect()
    }

    fn backward(op: &dyn CustomOp, ctx: &BackwardContext<CubeTensor>) -> Vec<Option<CubeTensor>> {
        face(op).backward(ctx)
    }
}

/// An array of this shape that a kernel wrote, on the device of another.
pub(crate) fn like(other: &CubeTensor, handle: Handle) -> CubeTensor {
    let CubeTensor { client, meta, device, dtype, .. } = other;
    CubeTensor::new_contiguous(client.clone(), device.clone(), meta.shape().clone(), handle, *dtype)
}

/// The same in a shape of its own.
pub(crate) fn of_shape<const D: usize>(other: &CubeTensor, shape: [usize; D], handle: Handle) -> CubeTensor {
    let CubeTensor { client, device, dtype, .. } = other;
    CubeTensor::new_contiguous(client.clone(), device.clone(), Shape::from(shape), handle, *dtype)
}

/// The tensor of an array.
pub(crate) fn tensor<const D: usize>(array: &CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(array.clone())
}

/// The contiguous array of a tensor outside autodiff.
pub(crate) fn array<const D: usize, K: Basic + BackendPrimitive<Cube, Primitive = CubeTensor>>(
    tensor: Tensor<D, K>,
) -> CubeTensor {
    into_contiguous(tensor.try_into_primitive::<Cube>().expect("it is an untracked GPU tensor"))
}
