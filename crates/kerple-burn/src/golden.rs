//! Whole attention layers in double precision, forward and backward, for reference values and comparisons.

use crate::composed;
use crate::layers;
use crate::positions::PositionalEncoding;
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple::encoding::{Encoding, Geometry};

/// One attention layer and the gradient that flows into its output; arrays are `[B, H, L, D]`.
#[derive(Debug)]
pub struct Task<'a> {
    /// How positions enter.
    pub encoding: &'a Encoding,
    /// Sizes.
    pub geometry: &'a Geometry,
    /// Learned values of the encoding.
    pub values: &'a [Vec<f64>],
    /// B, H, L, D.
    pub shape: [usize; 4],
    /// Queries.
    pub q: &'a [f64],
    /// Keys.
    pub k: &'a [f64],
    /// Values.
    pub v: &'a [f64],
    /// Gradient of the loss in the output.
    pub d_out: &'a [f64],
    /// The fused operation, or its composed definition.
    pub fused: bool,
}

/// Output and gradients.
#[derive(Debug)]
pub struct Answer {
    /// `[B, H, L, D]`.
    pub out: Vec<f64>,
    /// Gradient in the queries.
    pub d_q: Vec<f64>,
    /// Gradient in the keys.
    pub d_k: Vec<f64>,
    /// Gradient in the values.
    pub d_v: Vec<f64>,
    /// Gradients in the learned values of the encoding.
    pub d_values: Vec<Vec<f64>>,
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Runs the layer through Burn's autodiff on the flex backend.
pub fn attention(task: &Task) -> Answer {
    let device = Device::flex().autodiff();
    let tensor = |values: &[f64]| {
        let data = TensorData::new(values.to_vec(), task.shape);
        Tensor::<4>::from_data(data, (&device, DType::F64)).require_grad()
    };
    let [q, k, v] = [task.q, task.k, task.v].map(tensor);
    let d_out = tensor(task.d_out).detach();
    let mut encoding = PositionalEncoding::new(task.encoding, task.geometry, 0, &device);
    encoding.values = task
        .values
        .iter()
        .map(|values| {
            let data = TensorData::new(values.clone(), [values.len()]);
            Param::from_tensor(Tensor::from_data(data, (&device, DType::F64)))
        })
        .collect();
    let len = task.shape[2];
    let positions = encoding.positions(len, len, (&device, DType::F64));
    let run = if task.fused { layers::attention } else { composed::rotated_attention };
    let out = run(q.clone(), k.clone(), v.clone(), &positions);
    let gradients = (out.clone() * d_out).sum().backward();
    let take = |tensor: &Tensor<4>| tensor.grad(&gradients).map(numbers).unwrap_or_default();
    Answer {
        out: numbers(out),
        d_q: take(&q),
        d_k: take(&k),
        d_v: take(&v),
        d_values: encoding
            .values
            .iter()
            .map(|value| value.val().grad(&gradients).map(numbers).unwrap_or_default())
            .collect(),
    }
}

/// A KERPLE-log attention layer in single precision, to be timed.
#[derive(Debug)]
pub struct Layer {
    encoding: PositionalEncoding,
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
}

impl Layer {
    /// A layer on `[B, H, D]` random inputs of `len` positions.
    pub fn new(len: usize, [batch, heads, head_dim]: [usize; 3]) -> Layer {
        let device = Device::flex().autodiff();
        let input = || {
            let noise = burn::tensor::Distribution::Uniform(-1.0, 1.0);
            Tensor::<4>::random([batch, heads, len, head_dim], noise, &device).require_grad()
        };
        let encoding = Encoding::from(kerple::encoding::Method::KerpleLog(Default::default()));
        let geometry = Geometry { heads, head_dim, train_len: len };
        let encoding = PositionalEncoding::new(&encoding, &geometry, 0, &device);
        Layer { encoding, q: input(), k: input(), v: input() }
    }

    /// One forward, and one backward of the sum of the outputs when asked.
    pub fn run(&self, backward: bool, fused: bool) {
        let len = self.q.dims()[2];
        let (q, k, v) = (self.q.clone(), self.k.clone(), self.v.clone());
        let positions = self.encoding.positions(len, len, (&q.device(), DType::F32));
        let run = if fused { layers::attention } else { composed::rotated_attention };
        let out = run(q, k, v, &positions);
        if backward {
            let _ = out.sum().backward();
        }
    }
}
