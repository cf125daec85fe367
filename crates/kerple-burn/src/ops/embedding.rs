//! Rows of a table by number.

use crate::custom_op::{BackwardContext, CustomOp, FloatElement, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{DType, Int, Tensor, TensorData};
use kerple_core::ops::{embedding, zeros};

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// Rows of `table` `[V, M]` for `[B, L]` token ids; `f32` where the table is held as `bf16`.
///
/// # Panics
/// When the ids are not `B L` many, or one of them is not below V.
pub fn embed(table: Tensor<2>, ids: &[u32], shape: [usize; 2], implementation: Impl) -> Tensor<3> {
    if !implementation.has_kernel(KERNELS, &table) {
        return reference(table, ids, shape);
    }
    let mut inputs = OpInputs::default();
    inputs.add(table);
    inputs.apply(EmbeddingOp { ids: ids.to_vec(), shape })
}

/// The reference.
pub fn reference(table: Tensor<2>, ids: &[u32], [batch, len]: [usize; 2]) -> Tensor<3> {
    let width = table.dims()[1];
    let index: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [batch * len]), &table.device());
    let rows = table.select(0, index).reshape([batch, len, width]);
    if rows.dtype() == DType::BF16 { rows.cast(DType::F32) } else { rows }
}

/// Input: the table `[V, M]`. Output: the rows of the ids, `[B, L, M]`.
#[derive(Debug)]
struct EmbeddingOp {
    ids: Vec<u32>,
    shape: [usize; 2],
}

impl EmbeddingOp {
    fn forward<T: FloatElement>(&self, table: &HostArray) -> HostArray {
        let width = table.shape()[1];
        let mut rows = zeros(self.ids.len() * width);
        embedding::gather(table.kept::<T>(), &self.ids, width, &mut rows);
        HostArray::from_vec(rows, &[self.shape[0], self.shape[1], width])
    }

    fn backward<T: FloatElement>(&self, table: &HostArray, d_rows: &HostArray) -> HostArray {
        let mut d_table = zeros(table.slice::<T>().len());
        embedding::scatter_add(d_rows.slice::<T>(), &self.ids, table.shape()[1], &mut d_table);
        HostArray::from_vec(d_table, table.shape())
    }
}

impl CustomOp for EmbeddingOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        let table = &inputs[0];
        let output = match table.dtype() {
            DType::BF16 => self.forward::<f32>(table),
            _ => with_element!(table, T => self.forward::<T>(table)),
        };
        OpOutput { output, saved: SavedForBackward::nothing() }
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        vec![Some(with_element!(ctx.inputs[0], T => EmbeddingOp::backward::<T>(self, &ctx.inputs[0], ctx.d_output)))]
    }
}
