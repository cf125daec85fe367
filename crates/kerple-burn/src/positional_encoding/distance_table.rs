//! Tables that the host computes as tensors, with gradients for the parameters that they are
//! computed from.

use crate::custom_op::{BackwardContext, CustomOp, OpInput, OpOutput, SavedForBackward, apply};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{DType, Device, Element, ElementConversion, Int, Tensor, TensorData};
use bytemuck::Pod;
use kerple_core::encoding::Jacobian;
use std::sync::Arc;

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

pub(super) fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

/// One table made in f64 on the host, `[H, L]`, with its derivatives in the stored numbers it was made from.
#[derive(Debug)]
pub(super) struct DistanceTableOp {
    pub heads: usize,
    pub len: usize,
    pub rows: Vec<f64>,
    pub jacobian: Option<Jacobian>,
    pub numbers: Arc<Vec<Vec<f64>>>,
}

impl DistanceTableOp {
    /// The table as a tensor `[H, L]` through which gradients reach `stored`.
    pub(super) fn tensor(
        self,
        stored: &[Tensor<1>],
        (device, dtype): (&Device, DType),
        implementation: Impl,
    ) -> Tensor<2> {
        if self.jacobian.is_none() {
            return Tensor::from_data(TensorData::new(self.rows, [self.heads, self.len]), (device, dtype));
        }
        if implementation.has_kernel(KERNELS, &stored[0]) {
            return cast(apply(self, vec![OpInput::from(Tensor::cat(stored.to_vec(), 0))]), dtype);
        }
        self.reference(stored, (device, dtype))
    }

    /// `rows + sum_k slopes_k (stored_k - numbers_k)`: the differences are zero and carry the gradients.
    fn reference(self, stored: &[Tensor<1>], (device, dtype): (&Device, DType)) -> Tensor<2> {
        let DistanceTableOp { heads, len, rows, jacobian, numbers } = self;
        let constant = |rows: Vec<f64>| Tensor::<2>::from_data(TensorData::new(rows, [heads, len]), (device, dtype));
        let difference = |index: usize| {
            let values: &Tensor<1> = &stored[index];
            let numbers = TensorData::new(numbers[index].clone(), [numbers[index].len()]);
            let numbers = Tensor::<1>::from_data(numbers, (&values.device(), values.dtype()));
            cast(values.clone() - numbers, dtype)
        };
        let table = constant(rows);
        match jacobian {
            None => table,
            Some(Jacobian::PerHead(parameters)) => parameters.into_iter().fold(table, |table, (index, jacobian)| {
                table + constant(jacobian) * difference(index).reshape([heads, 1])
            }),
            Some(Jacobian::Rows { factor, rows }) => {
                let matrix = difference(0).reshape([-1, heads as i32]);
                let is_learned: Vec<f64> = rows.iter().map(|row| f64::from(u8::from(row.is_some()))).collect();
                let is_learned = Tensor::<2>::from_data(TensorData::new(is_learned, [1, len]), (device, dtype));
                let index: Vec<i64> = rows.into_iter().map(|row| row.unwrap_or_default() as i64).collect();
                let index = Tensor::<1, Int>::from_data(TensorData::new(index, [len]), device);
                table + matrix.select(0, index).swap_dims(0, 1) * is_learned * factor
            }
        }
    }
}

fn forward<T: Element + Pod>(table: &DistanceTableOp) -> HostArray {
    HostArray::from_vec(table.rows.iter().map(|value| value.elem::<T>()).collect(), &[table.heads, table.len])
}

fn backward<T: Element + Pod>(table: &DistanceTableOp, d_table: &HostArray) -> HostArray {
    let d_table: Vec<f64> = d_table.slice::<T>().iter().map(|value| value.elem::<f64>()).collect();
    let mut d_stored: Vec<Vec<f64>> = table.numbers.iter().map(|numbers| vec![0.0; numbers.len()]).collect();
    if let Some(jacobian) = &table.jacobian {
        jacobian.backward(table.heads, &d_table, &mut d_stored);
    }
    let d_stored: Vec<T> = d_stored.into_iter().flatten().map(|value| value.elem()).collect();
    let count = d_stored.len();
    HostArray::from_vec(d_stored, &[count])
}

/// The table exists already; the operation ties it to the stored numbers, all of a layer concatenated.
impl CustomOp for DistanceTableOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        OpOutput { output: with_element!(inputs[0], T => forward::<T>(self)), saved: SavedForBackward::nothing() }
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        vec![Some(with_element!(ctx.inputs[0], T => backward::<T>(self, ctx.d_output)))]
    }
}
