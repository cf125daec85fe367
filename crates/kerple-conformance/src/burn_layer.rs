//! Attention through Burn, forward and backward.

use crate::engines::Answer;
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::fused::Engine;
use kerple_burn::ops::attention::{default_scale, rotated};
use kerple_burn::pass::Pass;
use kerple_burn::positions::PositionalEncoding;
use kerple_core::encoding::{Encoding, Geometry};

/// One attention layer and the gradient that flows into its output; arrays are `[B, H, L, D]`.
pub struct Layer<'a> {
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
    /// Where it runs, and in which numbers.
    pub on: (&'a Device, DType),
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Runs it through Burn's autodiff.
pub fn run(layer: &Layer) -> Answer {
    let (device, dtype) = (layer.on.0.clone().autodiff(), layer.on.1);
    let tensor = |values: &[f64]| {
        let data = TensorData::new(values.to_vec(), layer.shape);
        Tensor::<4>::from_data(data, (&device, dtype)).require_grad()
    };
    let [q, k, v] = [layer.q, layer.k, layer.v].map(tensor);
    let d_out = tensor(layer.d_out).detach();
    let mut encoding = PositionalEncoding::new(layer.encoding, layer.geometry, 1, 0, &device);
    let values: Vec<_> = layer
        .values
        .iter()
        .map(|values| {
            let data = TensorData::new(values.clone(), [values.len()]);
            Param::from_tensor(Tensor::<1>::from_data(data, (&device, dtype)))
        })
        .collect();
    // the only layer's own, or those that layers share
    match encoding.layers.as_mut_slice() {
        [] => encoding.values = values.clone(),
        own => own[0] = values.clone(),
    }
    let len = layer.shape[2];
    let engine = if layer.fused { Engine::Fused } else { Engine::Composed };
    let positions = encoding.positions(0, [len, len], (&device, dtype), engine, &Pass::evaluation(0));
    let out = rotated(q.clone(), k.clone(), v.clone(), default_scale(layer.shape[3]), &positions, engine);
    let gradients = (out.clone() * d_out).sum().backward();
    let take = |tensor: &Tensor<4>| tensor.grad(&gradients).map(numbers).unwrap_or_default();
    Answer {
        out: numbers(out),
        d_q: take(&q),
        d_k: take(&k),
        d_v: take(&v),
        d_values: values.iter().map(|value| value.val().grad(&gradients).map(numbers).unwrap_or_default()).collect(),
    }
}
