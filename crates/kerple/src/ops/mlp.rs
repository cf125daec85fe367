//! The feed-forward block of a transformer layer, with its layer norm and its residual, forward and backward.
//!
//! ```text
//! y = x + W2 gelu(W1 norm(x) + b1) + b2
//! ```
//!
//! Rows run through the whole block a span at a time, so without a backward pass the `[rows, F]` activations are never held.
//! The elementwise operations are done on a product's pieces while they are in cache.

use super::gemm::{Product, add_rows, matmul, matmul_then};
use super::layer_norm::{self, Norm, NormGradients};
use super::{Float, gelu, lanes, zeros};
use crate::check_shape;

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

/// Their gradients, of the same shapes.
#[derive(Debug)]
pub struct MlpGradients<'a, T> {
    /// `[M]` each
    pub norm: NormGradients<'a, T>,
    /// `[M, F]`
    pub d_w1: &'a mut [T],
    /// `[F]`
    pub d_b1: &'a mut [T],
    /// `[F, M]`
    pub d_w2: &'a mut [T],
    /// `[M]`
    pub d_b2: &'a mut [T],
}

impl<T: Float> Mlp<'_, T> {
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

/// Rows of a span when there are this many in all.
fn rows_per_span(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(MOST_ROWS).max(1)).max(1)
}

/// The block's output for `x` into `y`, both `[rows, M]`, without a backward pass.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Float>(mlp: Mlp<'_, T>, x: &[T], y: &mut [T]) {
    let (m, f, rows) = mlp.sizes(x);
    check_shape!(y, rows = rows, m = m);
    let mut span = Span::new(rows_per_span(rows), m, f);
    let mut h = zeros(span.rows * f);
    for (x, y) in x.chunks(span.rows * m).zip(y.chunks_mut(span.rows * m)) {
        span.forward(mlp, x, &mut h[..x.len() / m * f], y);
    }
}

/// [`forward`], keeping in `h`, `[rows, F]`, what [`backward`] needs besides `x`: `W1 norm(x) + b1`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward_saving<T: Float>(mlp: Mlp<'_, T>, x: &[T], y: &mut [T], h: &mut [T]) {
    let (m, f, rows) = mlp.sizes(x);
    check_shape!(y, rows = rows, m = m);
    check_shape!(h, rows = rows, f = f);
    let mut span = Span::new(rows_per_span(rows), m, f);
    let (narrow, wide) = (span.rows * m, span.rows * f);
    for ((x, y), h) in x.chunks(narrow).zip(y.chunks_mut(narrow)).zip(h.chunks_mut(wide)) {
        span.forward(mlp, x, h, y);
    }
}

/// Gradients of [`forward_saving`], given `d_y`; `x`, `d_y` and `d_x` are `[rows, M]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Float>(
    mlp: Mlp<'_, T>,
    x: &[T],
    h: &[T],
    d_y: &[T],
    d_x: &mut [T],
    mut gradients: MlpGradients<'_, T>,
) {
    let (m, f, rows) = mlp.sizes(x);
    check_shape!(h, rows = rows, f = f);
    check_shape!(d_y, rows = rows, m = m);
    check_shape!(d_x, rows = rows, m = m);
    gradients.start(m, f, rows);
    let mut span = Span::new(rows_per_span(rows), m, f);
    let mut d_h = zeros(span.rows * f);
    let (narrow, wide) = (span.rows * m, span.rows * f);
    let spans = x.chunks(narrow).zip(h.chunks(wide)).zip(d_y.chunks(narrow).zip(d_x.chunks_mut(narrow)));
    for (i, ((x, h), (d_y, d_x))) in spans.enumerate() {
        span.backward(mlp, x, h, d_y, &mut d_h[..h.len()], d_x, &mut gradients, i == 0);
    }
}

impl<T: Float> MlpGradients<'_, T> {
    /// Checks the sizes and sets to 0 what spans add to; the first span overwrites the rest.
    fn start(&mut self, m: usize, f: usize, rows: usize) {
        let MlpGradients { norm: NormGradients { d_gamma, d_beta }, d_w1, d_b1, d_w2, d_b2 } = self;
        check_shape!(d_gamma, m = m);
        check_shape!(d_beta, m = m);
        check_shape!(d_w1, m = m, f = f);
        check_shape!(d_b1, f = f);
        check_shape!(d_w2, f = f, m = m);
        check_shape!(d_b2, m = m);
        for gradient in [d_gamma, d_beta, d_b1, d_b2] {
            gradient.fill(T::ZERO);
        }
        if rows == 0 {
            d_w1.fill(T::ZERO);
            d_w2.fill(T::ZERO);
        }
    }
}

/// Activations of the rows of a span.
struct Span<T> {
    rows: usize,
    /// Output of the layer norm, then the gradient in it, `[rows, M]`.
    normed: Vec<T>,
    /// `gelu(h)`, `[rows, F]`.
    a: Vec<T>,
}

impl<T: Float> Span<T> {
    fn new(rows: usize, m: usize, f: usize) -> Span<T> {
        Span { rows, normed: zeros(rows * m), a: zeros(rows * f) }
    }

    /// From `x` to `h` and `y`.
    fn forward(&mut self, mlp: Mlp<'_, T>, x: &[T], h: &mut [T], y: &mut [T]) {
        let Mlp { norm, w1, b1, w2, b2 } = mlp;
        let (m, f, rows) = (b2.len(), b1.len(), x.len() / b2.len());
        let (normed, a) = (&mut self.normed[..x.len()], &mut self.a[..h.len()]);
        layer_norm::forward(norm, x, normed);
        matmul_then(h, a, normed, w1, Product::new(rows, m, f), |_, columns, h, a| {
            lanes::add(h, &b1[columns]);
            gelu::forward(h, a);
        });
        matmul_then(y, &mut [], a, w2, Product::new(rows, f, m), |row, columns, y, _| {
            lanes::add(y, &x[row * m..][columns.clone()]);
            lanes::add(y, &b2[columns]);
        });
    }

    /// From `d_y` to `d_h`, `d_x` and the gradients of the parameters.
    #[expect(clippy::too_many_arguments, reason = "the slices are of one span, the rest of all")]
    fn backward(
        &mut self,
        mlp: Mlp<'_, T>,
        x: &[T],
        h: &[T],
        d_y: &[T],
        d_h: &mut [T],
        d_x: &mut [T],
        gradients: &mut MlpGradients<'_, T>,
        is_first: bool,
    ) {
        let (m, f, rows) = (mlp.b2.len(), mlp.b1.len(), x.len() / mlp.b2.len());
        let (normed, a) = (&mut self.normed[..x.len()], &mut self.a[..h.len()]);
        let MlpGradients { norm: NormGradients { d_gamma, d_beta }, d_w1, d_b1, d_w2, d_b2 } = gradients;
        let sum = |product: Product| if is_first { product } else { product.add() };
        let stats = layer_norm::forward(mlp.norm, x, normed);
        matmul_then(d_h, a, d_y, mlp.w2, Product::new(rows, m, f).transpose_b(), |row, columns, d_h, a| {
            gelu::backward(&h[row * f..][columns], d_h, a);
        });
        add_rows(d_y, d_b2);
        add_rows(d_h, d_b1);
        matmul(d_w2, a, d_y, sum(Product::new(f, rows, m).transpose_a()));
        matmul(d_w1, normed, d_h, sum(Product::new(m, rows, f).transpose_a()));
        // the normed rows are done with: their place takes their gradient
        matmul(normed, d_h, mlp.w1, Product::new(rows, f, m).transpose_b());
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

    impl<T: Float> Owned<T> {
        fn mlp(&self) -> Mlp<'_, T> {
            let [gamma, beta, w1, b1, w2, b2] = &self.0;
            Mlp { norm: Norm { gamma, beta, epsilon: 1e-2 }, w1, b1, w2, b2 }
        }

        fn gradients(&mut self) -> MlpGradients<'_, T> {
            let [d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2] = &mut self.0;
            MlpGradients { norm: NormGradients { d_gamma, d_beta }, d_w1, d_b1, d_w2, d_b2 }
        }
    }

    fn parameters(m: usize, f: usize, seed: u64) -> Owned<f64> {
        Owned([m, m, m * f, f, f * m, m].map(|len| random(len, seed + len as u64)))
    }

    /// Of the same sizes, NaN everywhere.
    fn unset<T: Float>(like: &Owned<T>) -> Owned<T> {
        Owned(like.0.each_ref().map(|values| vec![T::from_f64(f64::NAN); values.len()]))
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

    /// Both forward passes and the backward pass, from buffers of NaN.
    fn everything<T: Float>(owned: &Owned<T>, x: &[T], d_y: &[T]) -> (Vec<T>, Vec<T>, Owned<T>) {
        let nan = vec![T::from_f64(f64::NAN); x.len()];
        let (mut y, mut also_y, mut d_x, mut d) = (nan.clone(), nan.clone(), nan, unset(owned));
        forward(owned.mlp(), x, &mut also_y);
        let mut h = vec![T::from_f64(f64::NAN); x.len() / owned.0[0].len() * owned.0[3].len()];
        forward_saving(owned.mlp(), x, &mut y, &mut h);
        assert_eq!(y, also_y);
        backward(owned.mlp(), x, &h, d_y, &mut d_x, d.gradients());
        (also_y, d_x, d)
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
