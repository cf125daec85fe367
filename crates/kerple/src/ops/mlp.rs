//! The feed-forward block of a transformer layer, with its layer norm and its residual, forward and backward.
//!
//! ```text
//! y = x + W2 gelu(W1 norm(x) + b1) + b2
//! ```
//!
//! Rows run through the whole block a span at a time, so without a backward pass the `[rows, F]` activations are never held.
//! The elementwise operations are done on a product's pieces while they are in cache.

use super::gemm::{Product, To, add_rows, matmul, matmul_then};
use super::layer_norm::{self, Norm, NormGradients};
use super::{gelu, zeros};
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;

/// Most rows of a span.
const MOST_ROWS: usize = 2048;

/// The parameters of the block: M features, F hidden ones.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a, T> {
    /// Layer norm before the products, `[M]`.
    pub norm: Norm<'a, T>,
    /// `[M, F]`
    pub w1: &'a [T],
    /// `[F]`
    pub b1: &'a [T],
    /// `[F, M]`
    pub w2: &'a [T],
    /// `[M]`
    pub b2: &'a [T],
}

/// Gradients in the input of the block and in its parameters, of their shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients<T> {
    /// `[rows, M]`
    pub d_x: Vec<T>,
    /// `[M]`
    pub d_gamma: Vec<T>,
    /// `[M]`
    pub d_beta: Vec<T>,
    /// `[M, F]`
    pub d_w1: Vec<T>,
    /// `[F]`
    pub d_b1: Vec<T>,
    /// `[F, M]`
    pub d_w2: Vec<T>,
    /// `[M]`
    pub d_b2: Vec<T>,
}

impl<T: Number> Mlp<'_, T> {
    /// Checks the parameters and gives M, F and the rows of `x`.
    fn sizes(&self, x: &[T]) -> (usize, usize, usize) {
        let Mlp { w1, w2, b2, .. } = self;
        let (m, f) = (self.norm.width(), self.b1.len());
        check_shape!(w1, m = m, f = f);
        check_shape!(w2, f = f, m = m);
        check_shape!(b2, m = m);
        let rows = x.len() / m;
        check_shape!(x, rows = rows, m = m);
        (m, f, rows)
    }
}

/// The block's output for `x`, both `[rows, M]`, without a backward pass.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Number>(mlp: Mlp<'_, T>, x: &[T]) -> Vec<T> {
    let (mut y, mut h) = (Vec::with_capacity(x.len()), Vec::new());
    mlp.by_spans(x, |span, x| {
        h.clear();
        span.forward(mlp, x, &mut h, &mut y);
    });
    y
}

/// [`forward`], and what [`backward`] needs besides `x`: `h = W1 norm(x) + b1`, `[rows, F]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward_saving<T: Number>(mlp: Mlp<'_, T>, x: &[T]) -> (Vec<T>, Vec<T>) {
    let (m, f, _) = mlp.sizes(x);
    let (mut y, mut h) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len() / m * f));
    mlp.by_spans(x, |span, x| span.forward(mlp, x, &mut h, &mut y));
    (y, h)
}

/// Gradients of [`forward_saving`], given `d_y`, `[rows, M]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(mlp: Mlp<'_, T>, x: &[T], h: &[T], d_y: &[T]) -> Gradients<T> {
    let (m, f, rows) = mlp.sizes(x);
    check_shape!(h, rows = rows, f = f);
    check_shape!(d_y, rows = rows, m = m);
    let mut gradients = Gradients {
        d_x: Vec::with_capacity(x.len()),
        d_gamma: zeros(m),
        d_beta: zeros(m),
        d_w1: Vec::new(),
        d_b1: zeros(f),
        d_w2: Vec::new(),
        d_b2: zeros(m),
    };
    let (mut d_h, mut first) = (Vec::new(), 0);
    mlp.by_spans(x, |span, x| {
        let last = first + x.len() / m;
        d_h.clear();
        span.backward(mlp, x, &h[first * f..last * f], &d_y[first * m..last * m], &mut d_h, &mut gradients);
        first = last;
    });
    // of no rows
    gradients.d_w1.resize(m * f, T::ZERO);
    gradients.d_w2.resize(f * m, T::ZERO);
    gradients
}

impl<T: Number> Mlp<'_, T> {
    /// Calls `work` with the rows of each span, and room for its activations.
    fn by_spans(&self, x: &[T], mut work: impl FnMut(&mut Span<T>, &[T])) {
        let (m, _, rows) = self.sizes(x);
        let span_rows = rows.div_ceil(rows.div_ceil(MOST_ROWS).max(1)).max(1);
        let mut span = Span { normed: Vec::new(), a: Vec::new() };
        for x in x.chunks(span_rows * m) {
            span.normed.clear();
            span.a.clear();
            work(&mut span, x);
        }
    }
}

/// Activations of the rows of a span.
struct Span<T> {
    /// Output of the layer norm, then the gradient in it, `[rows, M]`.
    normed: Vec<T>,
    /// `gelu(h)`, `[rows, F]`.
    a: Vec<T>,
}

impl<T: Number> Span<T> {
    /// From `x` to the next rows of `h` and `y`.
    fn forward(&mut self, mlp: Mlp<'_, T>, x: &[T], h: &mut Vec<T>, y: &mut Vec<T>) {
        let Mlp { norm, w1, b1, w2, b2 } = mlp;
        let (m, f, rows) = mlp.sizes(x);
        let Span { normed, a } = self;
        layer_norm::forward(norm, x, normed);
        let up = Product::new(rows, m, f);
        matmul_then(To::End(h), Some(a), normed, w1, up, |_, columns, h, a| {
            reduce::add(h, &b1[columns]);
            gelu::forward(h, a);
        });
        matmul_then(To::End(y), None, a, w2, Product::new(rows, f, m), |row, columns, y, _| {
            reduce::add(y, &x[row * m..][columns.clone()]);
            reduce::add(y, &b2[columns]);
        });
    }

    /// From `d_y` to `d_h` and the gradients; that in `x` is appended.
    fn backward(
        &mut self,
        mlp: Mlp<'_, T>,
        x: &[T],
        h: &[T],
        d_y: &[T],
        d_h: &mut Vec<T>,
        gradients: &mut Gradients<T>,
    ) {
        let (m, f, rows) = mlp.sizes(x);
        let Gradients { d_x, d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2 } = gradients;
        let Span { normed, a } = self;
        let stats = layer_norm::forward(mlp.norm, x, normed);
        let down = Product::new(rows, m, f).transpose_b();
        matmul_then(To::End(d_h), Some(a), d_y, mlp.w2, down, |row, columns, d_h, a| {
            gelu::backward(&h[row * f..][columns], d_h, a);
        });
        add_rows(d_y, d_b2);
        add_rows(d_h, d_b1);
        matmul(To::sum(d_w2), a, d_y, Product::new(f, rows, m).transpose_a());
        matmul(To::sum(d_w1), normed, d_h, Product::new(m, rows, f).transpose_a());
        // the normed rows are done with: their place takes their gradient
        matmul(To::Over(normed), d_h, mlp.w1, Product::new(rows, f, m).transpose_b());
        layer_norm::backward(mlp.norm, x, &stats, normed, Some(d_y), d_x, NormGradients { d_gamma, d_beta });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    /// Owned parameters: gamma, beta, w1, b1, w2, b2.
    struct Owned<T>([Vec<T>; 6]);

    impl<T: Number> Owned<T> {
        fn mlp(&self) -> Mlp<'_, T> {
            let [gamma, beta, w1, b1, w2, b2] = &self.0;
            Mlp { norm: Norm { gamma, beta, epsilon: 1e-2 }, w1, b1, w2, b2 }
        }
    }

    fn parameters(m: usize, f: usize, seed: u64) -> Owned<f64> {
        Owned([m, m, m * f, f, f * m, m].map(|len| random(len, seed + len as u64)))
    }

    /// The formula, a row and an element at a time.
    fn plain(mlp: Mlp<'_, f64>, x: &[f64]) -> Vec<f64> {
        let (m, f) = (mlp.b2.len(), mlp.b1.len());
        let mut y = Vec::new();
        for row in x.chunks(m) {
            let mean = row.iter().sum::<f64>() / m as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / m as f64;
            let normed =
                |i| mlp.norm.gamma[i] * (row[i] - mean) / (variance + mlp.norm.epsilon).sqrt() + mlp.norm.beta[i];
            let h = |j| mlp.b1[j] + (0..m).map(|i| normed(i) * mlp.w1[i * f + j]).sum::<f64>();
            let a: Vec<f64> = (0..f).map(|j| 0.5 * h(j) * (1.0 + libm::erf(h(j) / 2f64.sqrt()))).collect();
            y.extend((0..m).map(|i| row[i] + mlp.b2[i] + (0..f).map(|j| a[j] * mlp.w2[j * m + i]).sum::<f64>()));
        }
        y
    }

    /// The output, `d_x`, and the gradients of the parameters.
    fn everything<T: Number>(owned: &Owned<T>, x: &[T], d_y: &[T]) -> (Vec<T>, Vec<T>, Owned<T>) {
        let (y, h) = forward_saving(owned.mlp(), x);
        assert_eq!(y, forward(owned.mlp(), x));
        let Gradients { d_x, d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2 } = backward(owned.mlp(), x, &h, d_y);
        (y, d_x, Owned([d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2]))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn equals_plain_and_its_differences(rows in 0usize..60, m in 1usize..9, f in 1usize..20, seed in 0u64..1000) {
            let (owned, x, d_y) = (parameters(m, f, seed), random(rows * m, seed + 1), random(rows * m, seed + 2));
            let (y, d_x, d) = everything(&owned, &x, &d_y);
            for (y, want) in y.iter().zip(plain(owned.mlp(), &x)) {
                prop_assert!((y - want).abs() < 1e-12, "{y} {want}");
            }
            let loss = |mlp: Mlp<'_, f64>, x: &[f64]| plain(mlp, x).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>();
            assert_gradient("d_x", &x, &d_x, |x| loss(owned.mlp(), x));
            for (i, name) in ["d_gamma", "d_beta", "d_w1", "d_b1", "d_w2", "d_b2"].into_iter().enumerate() {
                assert_gradient(name, &owned.0[i], &d.0[i], |moved| {
                    let mut owned = Owned(owned.0.clone());
                    owned.0[i] = moved.to_vec();
                    loss(owned.mlp(), &x)
                });
            }
        }
    }

    #[test]
    fn single_precision_is_close_across_spans() {
        let (rows, m, f) = (MOST_ROWS + 50, 16, 40);
        let (owned, x, d_y) = (parameters(m, f, 5), random(rows * m, 6), random(rows * m, 7));
        let double = everything(&owned, &x, &d_y);
        let float = everything(&Owned(owned.0.each_ref().map(|v| single(v))), &single(&x), &single(&d_y));
        let close = |float: &[f32], double: &[f64]| {
            let largest = double.iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let error = float.iter().zip(double).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            // sums of up to 1200 terms rounded to 6e-8 each, in random directions
            assert!(error < 1e-5 * largest, "{error} of {largest}");
        };
        close(&float.0, &double.0);
        close(&float.1, &double.1);
        float.2.0.iter().zip(&double.2.0).for_each(|(float, double)| close(float, double));
    }

    #[test]
    fn spans_add_up() {
        // the first span alone, then the rest alone, against both at once
        let (rows, m, f) = (MOST_ROWS + 50, 8, 24);
        let (owned, x, d_y) = (parameters(m, f, 5), random(rows * m, 6), random(rows * m, 7));
        let cut = MOST_ROWS * m;
        let whole = everything(&owned, &x, &d_y);
        let (first, rest) = (everything(&owned, &x[..cut], &d_y[..cut]), everything(&owned, &x[cut..], &d_y[cut..]));
        for i in 0..6 {
            for j in 0..whole.2.0[i].len() {
                let parts = first.2.0[i][j] + rest.2.0[i][j];
                assert!((whole.2.0[i][j] - parts).abs() < 1e-11 * (1.0 + parts.abs()), "{i} {j}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        for rows in [3, 300, MOST_ROWS + 50] {
            let (m, f) = (24, 70);
            let owned = Owned(parameters(m, f, 8).0.map(|values| single(&values)));
            let (x, d_y) = (single(&random(rows * m, 9)), single(&random(rows * m, 10)));
            assert_same_at_any_threads(|| {
                let (y, d_x, d) = everything(&owned, &x, &d_y);
                (y, d_x, d.0)
            });
        }
    }
}
