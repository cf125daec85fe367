//! Modules with parameters. What they compute is in [`ops`](crate::ops).

mod attention;
mod linear;
mod mlp;
mod norm;

pub use attention::{CachedSequence, SelfAttention};
pub use linear::{Linear, normal_matrix, shortened, with_short_matrices};
pub use mlp::Mlp;
pub use norm::Norm;

use crate::plan::InitKind;
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// Where and how fresh parameters are made.
#[derive(Debug)]
pub struct LayerInit<'a, R> {
    /// Draws the matrices, in the order in which they are made. `None`: they are zeros, to be read from a file.
    pub rng: Option<&'a mut R>,
    /// How matrices begin.
    pub kind: InitKind,
    /// Standard deviation of matrices.
    pub std: f64,
    /// That of matrices that write to the residual stream.
    pub std_out: f64,
    /// Where they live.
    pub device: &'a Device,
    /// Their type.
    pub dtype: DType,
}

impl<R> LayerInit<'_, R> {
    /// A bias or a shift of this width: zeros.
    pub fn zeros(&self, width: usize) -> Param<Tensor<1>> {
        self.tensor(vec![0.0; width], [width])
    }

    /// A matrix of zeros.
    fn zero_matrix(&self, [rows, columns]: [usize; 2]) -> Param<Tensor<2>> {
        self.tensor(vec![0.0; rows * columns], [rows, columns])
    }

    /// As many times this number.
    fn filled(&self, value: f64, width: usize) -> Param<Tensor<1>> {
        self.tensor(vec![value; width], [width])
    }

    /// Zeros of this shape, to be replaced: one value, expanded.
    fn blank<const D: usize>(&self, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::<D>::zeros([1; D], (self.device, self.dtype)).expand(shape))
    }

    fn tensor<const D: usize>(&self, values: Vec<f64>, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), (self.device, self.dtype)))
    }
}
