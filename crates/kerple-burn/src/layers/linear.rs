//! A linear layer with its parameters.

use super::Init;
use crate::ops;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kerple::encoding::standard_normal;
use rand::Rng;

/// A matrix of independent draws from N(0, std^2).
pub fn normal_matrix(shape: [usize; 2], std: f64, init: &mut Init<impl Rng>) -> Param<Tensor<2>> {
    let values = (0..shape[0] * shape[1]).map(|_| std * standard_normal(init.rng)).collect();
    init.tensor(values, shape)
}

/// `x W + b`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[in, out]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`, starts at 0.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// A fresh layer with weights from N(0, std^2).
    pub fn new([input, output]: [usize; 2], bias: bool, std: f64, init: &mut Init<impl Rng>) -> Linear {
        let weight = normal_matrix([input, output], std, init);
        Linear { weight, bias: bias.then(|| init.tensor(vec![0.0; output], [output])) }
    }

    /// Its tensors.
    pub fn tensors(&self) -> ops::Linear {
        ops::Linear { weight: self.weight.val(), bias: self.bias.as_ref().map(Param::val) }
    }

    /// Over the last axis of `[B, L, in]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        ops::linear::composed(x, self.tensors())
    }
}
