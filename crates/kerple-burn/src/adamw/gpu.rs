//! The optimizer on GPUs, by the kernels of [`kerple_gpu::adamw`].

use super::AdamState;
use crate::custom_op::{array, tensor};
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use kerple_core::ops::adam;
use kerple_gpu::adamw::{self, AdamwParameter};

/// The global L2 norm of gradients, `[1]`.
pub(super) fn norm(gradients: &[Tensor<1>]) -> Tensor<1> {
    let arrays: Vec<CubeTensor> = gradients.iter().cloned().map(array).collect();
    let all: Vec<_> = arrays.iter().map(|array| (&array.handle, array.meta.num_elements())).collect();
    let CubeTensor { client, device, dtype, .. } = &arrays[0];
    let norm = adamw::norm(client, &all);
    tensor(&CubeTensor::new_contiguous(client.clone(), device.clone(), [1].into(), norm, *dtype))
}

/// An array that nothing else shares.
fn own<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    let array = array(tensor);
    if array.can_mut() { array } else { array.copy() }
}

/// [`reference`](super::reference) in one kernel, in place where nothing else shares the values, by a gradient that is not clipped
/// yet.
pub(super) fn update<const D: usize>(
    settings: &adam::AdamWUpdate,
    range: Option<[f64; 2]>,
    (values, moments): (Tensor<D>, AdamState),
    gradient: Tensor<1>,
    (norm, clip): (&Tensor<1>, f64),
) -> (Tensor<D>, AdamState) {
    let (values, first, second) = (own(values), own(moments.first), own(moments.second));
    let (gradient, norm) = (array(gradient), array(norm.clone()));
    let [of_values, of_first, of_second] = [&values, &first, &second].map(|array| array.handle.clone());
    let len = values.meta.num_elements();
    let parameter =
        AdamwParameter { values: of_values, first: of_first, second: of_second, gradient: gradient.handle, len };
    adamw::apply(&values.client, &parameter, &norm.handle, settings, clip, range);
    (tensor(&values), AdamState { first: tensor(&first), second: tensor(&second) })
}
