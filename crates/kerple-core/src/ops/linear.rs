//! Linear layers, alone, after a norm or before a residual: the parts of fused layers.
//!
//! ```text
//! y = x W + b                 d_W = x^T d_y      d_b = sum of the rows of d_y      d_x = d_y W^T
//! ```

use super::gemm::{MatmulShape, Out, add_rows, matmul, matmul_bias, matmul_then};
use super::kept::{KeptRows, KeptSlice};
use super::zeros;
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;
use crate::precision::Precision;
use crate::tiles::workers::for_each_task;
use std::ops::Range;

/// The parameters of one layer from `inputs` to `outputs` features.
#[derive(Clone, Copy, Debug)]
pub struct LinearParameters<'a, T> {
    /// `[inputs, outputs]`
    pub weight: KeptSlice<'a, T>,
    /// `[outputs]`; `None` adds nothing.
    pub bias: Option<&'a [T]>,
    /// What its products and those of its gradients multiply, see [`MatmulShape::at`].
    pub precision: Precision,
}

/// Some outputs of a [`LinearParameters`], copied.
#[derive(Clone, Debug)]
pub struct LinearSlice<'a, T> {
    /// `[inputs, outputs]`
    weight: KeptRows<T>,
    /// `[outputs]`
    bias: Option<&'a [T]>,
    precision: Precision,
}

impl<T: Number> LinearSlice<'_, T> {
    /// As a layer.
    pub fn as_linear(&self) -> LinearParameters<'_, T> {
        LinearParameters { weight: self.weight.all(), bias: self.bias, precision: self.precision }
    }
}

/// Gradients in the parameters of a [`LinearParameters`], of their shapes; there is one in the bias where there is a bias.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearGradients<T> {
    /// `[inputs, outputs]`
    pub d_weight: Vec<T>,
    /// `[outputs]`
    pub d_bias: Option<Vec<T>>,
}

impl<'a, T: Number> LinearParameters<'a, T> {
    /// The layer that makes these of its outputs alone.
    ///
    /// # Panics
    /// As [`LinearParameters::outputs`], or if there are fewer.
    pub fn part(&self, inputs: usize, outputs: Range<usize>) -> LinearSlice<'a, T> {
        fn columns<N: Copy>(matrix: &[N], of: usize, columns: &Range<usize>) -> Vec<N> {
            matrix.chunks_exact(of.max(1)).flat_map(|row| &row[columns.clone()]).copied().collect()
        }
        let of = self.outputs(inputs);
        let weight = match self.weight {
            KeptSlice::Exact(weight) => KeptRows::Exact(columns(weight, of, &outputs)),
            KeptSlice::Bf16(weight) => KeptRows::Bf16(columns(weight, of, &outputs)),
        };
        LinearSlice { weight, bias: self.bias.map(|bias| &bias[outputs]), precision: self.precision }
    }

    /// Features that come out.
    ///
    /// # Panics
    /// If the weight is not a matrix with this many rows, or the bias does not fit it.
    pub fn outputs(&self, inputs: usize) -> usize {
        let LinearParameters { weight, bias, .. } = *self;
        let outputs = weight.len() / inputs.max(1);
        check_shape!(weight, inputs = inputs, outputs = outputs);
        if let Some(bias) = bias {
            check_shape!(bias, outputs = outputs);
        }
        outputs
    }

    /// The product of `x`, `[rows, inputs]`, with this layer.
    pub fn product(&self, x: &[T], inputs: usize) -> MatmulShape {
        MatmulShape::new(x.len() / inputs.max(1), inputs, self.outputs(inputs)).at(self.precision)
    }

    /// Writes the layer's output for `x`, `[rows, inputs]`.
    ///
    /// # Panics
    /// If a slice has the wrong size.
    pub fn forward(&self, to: Out<'_, T>, x: &[T], inputs: usize) {
        let product = self.product(x, inputs);
        match self.bias {
            Some(bias) => matmul_bias(to, x, self.weight, bias, product),
            None => matmul(to, x, self.weight, product),
        }
    }

    /// [`LinearParameters::forward`] with `base`, `[rows, outputs]`, added: the end of a residual branch.
    ///
    /// # Panics
    /// If a slice has the wrong size.
    pub fn forward_onto(&self, to: Out<'_, T>, x: &[T], inputs: usize, base: &[T]) {
        let (product, outputs) = (self.product(x, inputs), self.outputs(inputs));
        check_shape!(base, rows = x.len() / inputs.max(1), outputs = outputs);
        matmul_then(to, None::<&mut Vec<T>>, x, self.weight, product, |row, columns, y, _| {
            reduce::add(y, &base[row * outputs..][columns.clone()]);
            if let Some(bias) = self.bias {
                reduce::add(y, &bias[columns]);
            }
        });
    }

    /// Room for the gradients in the parameters.
    pub fn gradients(&self, inputs: usize) -> LinearGradients<T> {
        let outputs = self.outputs(inputs);
        LinearGradients { d_weight: Vec::new(), d_bias: self.bias.map(|_| zeros(outputs)) }
    }

    /// Adds the gradients in the parameters for these rows of the input, `[rows, inputs]`, and of the gradient in the output.
    ///
    /// # Panics
    /// If a slice has the wrong size.
    pub fn backward(&self, x: &[T], d_y: &[T], inputs: usize, gradients: &mut LinearGradients<T>) {
        let LinearGradients { d_weight, d_bias } = gradients;
        if let Some(d_bias) = d_bias {
            add_rows(d_y, d_bias);
        }
        let product = MatmulShape::new(inputs, x.len() / inputs.max(1), self.outputs(inputs)).transpose_a();
        matmul(Out::accumulate_into(d_weight), x, d_y, product.at(self.precision));
    }

    /// Writes the gradient in the input, `[rows, inputs]`.
    ///
    /// # Panics
    /// If a slice has the wrong size.
    pub fn backward_input(&self, to: Out<'_, T>, d_y: &[T], inputs: usize) {
        matmul(to, d_y, self.weight, self.input_product(d_y, inputs));
    }

    /// The product that makes the gradient in the input.
    pub fn input_product(&self, d_y: &[T], inputs: usize) -> MatmulShape {
        let outputs = self.outputs(inputs);
        MatmulShape::new(d_y.len() / outputs.max(1), outputs, inputs).transpose_b().at(self.precision)
    }
}

impl<T: Number> LinearGradients<T> {
    /// The gradients after no rows at all are zeros too.
    pub fn finish(&mut self, weights: usize) {
        self.d_weight.resize(weights, T::ZERO);
    }
}

/// Adds corresponding elements, on the current rayon pool.
///
/// # Panics
/// If the slices differ in length.
pub fn add<T: Number>(to: &mut [T], from: &[T]) {
    /// Values a task takes.
    const PIECE: usize = 1 << 15;
    check_shape!(from, elements = to.len());
    for_each_task(to.chunks_mut(PIECE).zip(from.chunks(PIECE)), |_, (to, from)| reduce::add(to, from));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_gradient, random};
    use proptest::prelude::*;

    fn plain(linear: LinearParameters<'_, f64>, x: &[f64], inputs: usize) -> Vec<f64> {
        let outputs = linear.outputs(inputs);
        let element = |row: &[f64], j: usize| {
            let sum: f64 = row.iter().enumerate().map(|(i, x)| x * linear.weight.at(i * outputs + j)).sum();
            sum + linear.bias.map_or(0.0, |bias| bias[j])
        };
        x.chunks(inputs).flat_map(|row| (0..outputs).map(|j| element(row, j)).collect::<Vec<_>>()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn equals_plain_and_its_differences(rows in 0usize..9, i in 1usize..8, o in 1usize..8, biased: bool, seed in 0u64..1000) {
            let (weight, bias, x) = (random(i * o, seed), random(o, seed + 1), random(rows * i, seed + 2));
            let (d_y, base) = (random(rows * o, seed + 3), random(rows * o, seed + 4));
            let linear = LinearParameters { weight: (&weight).into(), bias: biased.then_some(&bias[..]), precision: Precision::F32 };
            let (mut y, mut onto, mut d_x) = (Vec::new(), Vec::new(), Vec::new());
            linear.forward(Out::Append(&mut y), &x, i);
            linear.forward_onto(Out::Append(&mut onto), &x, i, &base);
            add(&mut y, &base);
            for ((y, onto), (want, base)) in y.iter().zip(&onto).zip(plain(linear, &x, i).iter().zip(&base)) {
                prop_assert!((y - want - base).abs() < 1e-13 && (onto - want - base).abs() < 1e-13);
            }
            let (half, mut left) = (o / 2, Vec::new());
            linear.part(i, 0..half).as_linear().forward(Out::Append(&mut left), &x, i);
            let of_all = plain(linear, &x, i);
            for (left, all) in left.chunks_exact(half.max(1)).zip(of_all.chunks_exact(o)) {
                prop_assert!(left.iter().zip(all).all(|(left, all)| (left - all).abs() < 1e-13));
            }
            prop_assert_eq!(left.len(), rows * half);
            linear.backward_input(Out::Append(&mut d_x), &d_y, i);
            let mut gradients = linear.gradients(i);
            // two halves add up
            let half = rows / 2;
            linear.backward(&x[..half * i], &d_y[..half * o], i, &mut gradients);
            linear.backward(&x[half * i..], &d_y[half * o..], i, &mut gradients);
            gradients.finish(i * o);
            let loss = |linear: LinearParameters<'_, f64>, x: &[f64]| plain(linear, x, i).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
            assert_gradient("d_x", &x, &d_x, |x| loss(linear, x));
            assert_gradient("d_weight", &weight, &gradients.d_weight, |weight| loss(LinearParameters { weight: weight.into(), ..linear }, &x));
            prop_assert_eq!(gradients.d_bias.is_some(), biased);
            if let Some(d_bias) = &gradients.d_bias {
                assert_gradient("d_bias", &bias, d_bias, |bias| loss(LinearParameters { bias: Some(bias), ..linear }, &x));
            }
        }
    }
}
