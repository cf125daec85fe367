//! Rows of a table by number.

use crate::array::Array;
use crate::fused::{Engine, Forward, Inputs, Number, Op, Saved, Step, Target};
use crate::with_element;
use burn::tensor::{Int, Tensor, TensorData};
use kerple_core::ops::{embedding, zeros};

/// What has a kernel for it.
const KERNELS: &[Target] = &[Target::Host];

/// Rows of `table` `[V, M]` for `[B, L]` token ids.
///
/// # Panics
/// When the ids are not `B L` many, or one of them is not below V.
pub fn embed(table: Tensor<2>, ids: &[u32], shape: [usize; 2], engine: Engine) -> Tensor<3> {
    if !engine.has_kernel(KERNELS, &table) {
        return composed(table, ids, shape);
    }
    let mut inputs = Inputs::default();
    inputs.add(table);
    inputs.apply(Embed { ids: ids.to_vec(), shape })
}

/// The definition.
pub fn composed(table: Tensor<2>, ids: &[u32], [batch, len]: [usize; 2]) -> Tensor<3> {
    let width = table.dims()[1];
    let index: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [batch * len]), &table.device());
    table.select(0, index).reshape([batch, len, width])
}

/// Input: the table `[V, M]`. Output: the rows of the ids, `[B, L, M]`.
#[derive(Debug)]
struct Embed {
    ids: Vec<u32>,
    shape: [usize; 2],
}

impl Embed {
    fn forward<T: Number>(&self, table: &Array) -> Array {
        let width = table.shape()[1];
        let mut rows = zeros(self.ids.len() * width);
        embedding::gather(table.slice::<T>(), &self.ids, width, &mut rows);
        Array::from_vec(rows, &[self.shape[0], self.shape[1], width])
    }

    fn backward<T: Number>(&self, table: &Array, d_rows: &Array) -> Array {
        let mut d_table = zeros(table.slice::<T>().len());
        embedding::scatter_add(d_rows.slice::<T>(), &self.ids, table.shape()[1], &mut d_table);
        Array::from_vec(d_table, table.shape())
    }
}

impl Op for Embed {
    fn forward(&self, inputs: &[Array], _tracked: bool) -> Forward {
        let output = with_element!(inputs[0], T => Embed::forward::<T>(self, &inputs[0]));
        Forward { output, saved: Saved::nothing() }
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        vec![Some(with_element!(step.inputs[0], T => Embed::backward::<T>(self, &step.inputs[0], step.d_output)))]
    }
}
