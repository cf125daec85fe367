//! The feed-forward block of a transformer layer, with its layer norm and its residual, forward and backward.
//!
//! ```text
//! y = x + W2 gelu(W1 norm(x) + b1) + b2
//! ```
//!
//! Rows run through the whole block a few at a time, so what lies between the two products stays in cache, and without a
//! backward pass the `[rows, F]` activations are never held.

use super::gemm::{Product, matmul, matmul_serial, transposed};
use super::layer_norm::{self, Norm, NormGradients, Stats};
use super::{Float, gelu, lanes};
use crate::check_shape;
use rayon::prelude::*;

/// Most rows of a task; a multiple of the height of the product kernels' tile, 6.
const MOST_ROWS: usize = 192;
/// Fewest rows of a task: below, packing the weights for each task costs more than the second core gains.
const FEWEST_ROWS: usize = 48;
/// Tasks wanted if there are enough rows.
const ENOUGH_TASKS: usize = 6;
/// Rows after which the backward pass adds to the weights' gradients; their activations are held meanwhile.
const ROWS_PER_SPAN: usize = ENOUGH_TASKS * MOST_ROWS;

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

/// What the backward pass needs of the forward pass besides `x`; empty by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved<T> {
    /// Of the layer norm.
    pub stats: Stats<T>,
    /// `W1 norm(x) + b1`, `[rows, F]`.
    pub h: Vec<T>,
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

/// Rows of a task when there are this many in all.
fn rows_per_task(rows: usize) -> usize {
    rows.div_ceil(ENOUGH_TASKS).next_multiple_of(FEWEST_ROWS).clamp(FEWEST_ROWS, MOST_ROWS)
}

/// What a task holds between the steps of the forward pass.
struct Scratch<T> {
    /// Output of the layer norm, `[rows, M]`.
    normed: Vec<T>,
    /// `gelu(h)`, `[rows, F]`.
    a: Vec<T>,
}

impl<T: Float> Scratch<T> {
    fn new(rows: usize, m: usize, f: usize) -> Scratch<T> {
        Scratch { normed: vec![T::ZERO; rows * m], a: vec![T::ZERO; rows * f] }
    }
}

/// The block's output for `x` into `y`, both `[rows, M]`, without a backward pass.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Float>(mlp: Mlp<'_, T>, x: &[T], y: &mut [T]) {
    let (m, f, rows) = mlp.sizes(x);
    check_shape!(y, rows = rows, m = m);
    let task_rows = rows_per_task(rows);
    let room = |rows| (Scratch::new(rows, m, f), Saved { stats: Stats::new(rows), h: vec![T::ZERO; rows * f] });
    let run = |(scratch, saved): &mut (Scratch<T>, Saved<T>), x: &[T], y: &mut [T], multiply| {
        let rows = x.len() / m;
        let stats = (&mut saved.stats.mean[..rows], &mut saved.stats.rstd[..rows]);
        forward_task(mlp, x, y, stats, &mut saved.h[..rows * f], scratch, multiply);
    };
    if rows <= task_rows {
        // too few rows to share, as in decoding: the products share their columns
        return run(&mut room(rows), x, y, matmul);
    }
    x.chunks(task_rows * m)
        .zip(y.chunks_mut(task_rows * m))
        .par_bridge()
        .for_each_init(|| room(task_rows), |room, (x, y)| run(room, x, y, matmul_serial));
}

/// [`forward`], keeping what [`backward`] needs in `saved`. A `saved` of an earlier call is overwritten without a new
/// allocation, which would cost as much as a tenth of the call.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward_saving<T: Float>(mlp: Mlp<'_, T>, x: &[T], y: &mut [T], saved: &mut Saved<T>) {
    let (m, f, rows) = mlp.sizes(x);
    check_shape!(y, rows = rows, m = m);
    saved.stats.mean.resize(rows, T::ZERO);
    saved.stats.rstd.resize(rows, T::ZERO);
    saved.h.resize(rows * f, T::ZERO);
    let task_rows = rows_per_task(rows);
    x.chunks(task_rows * m)
        .zip(y.chunks_mut(task_rows * m))
        .zip(saved.h.chunks_mut(task_rows * f))
        .zip(saved.stats.mean.chunks_mut(task_rows).zip(saved.stats.rstd.chunks_mut(task_rows)))
        .par_bridge()
        .for_each_init(
            || Scratch::new(task_rows, m, f),
            |scratch, (((x, y), h), stats)| forward_task(mlp, x, y, stats, h, scratch, matmul_serial),
        );
}

/// The forward pass of a task's rows; `multiply` is [`matmul`] or [`matmul_serial`].
fn forward_task<T: Float>(
    mlp: Mlp<'_, T>,
    x: &[T],
    y: &mut [T],
    (mean, rstd): (&mut [T], &mut [T]),
    h: &mut [T],
    scratch: &mut Scratch<T>,
    multiply: fn(&mut [T], &[T], &[T], Product),
) {
    let (m, f, rows) = (mlp.b2.len(), mlp.b1.len(), mean.len());
    let (normed, a) = (&mut scratch.normed[..rows * m], &mut scratch.a[..rows * f]);
    layer_norm::forward_rows(mlp.norm, x, normed, mean, rstd);
    h.chunks_exact_mut(f).for_each(|row| row.copy_from_slice(mlp.b1));
    multiply(h, normed, mlp.w1, Product::new(rows, m, f).add());
    gelu::forward_elements(h, a);
    y.copy_from_slice(x);
    y.chunks_exact_mut(m).for_each(|row| lanes::add(row, mlp.b2));
    multiply(y, a, mlp.w2, Product::new(rows, f, m).add());
}

/// Gradients of [`forward_saving`], given `d_y`; `x`, `d_y` and `d_x` are `[rows, M]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Float>(
    mlp: Mlp<'_, T>,
    x: &[T],
    saved: &Saved<T>,
    d_y: &[T],
    d_x: &mut [T],
    mut gradients: MlpGradients<'_, T>,
) {
    let (m, f, rows) = mlp.sizes(x);
    let Saved { h, stats: Stats { mean, rstd } } = saved;
    check_shape!(h, rows = rows, f = f);
    check_shape!(mean, rows = rows);
    check_shape!(rstd, rows = rows);
    check_shape!(d_y, rows = rows, m = m);
    check_shape!(d_x, rows = rows, m = m);
    gradients.clear(m, f);
    let transposed_weights = (transposed(mlp.w1, m, f), transposed(mlp.w2, f, m));
    let mut span = Span::new(rows.min(ROWS_PER_SPAN), m, f);
    for (i, d_x) in d_x.chunks_mut(ROWS_PER_SPAN * m).enumerate() {
        let (first, rows) = (i * ROWS_PER_SPAN, d_x.len() / m);
        let inputs = Inputs { mlp, x, h, mean, rstd, d_y }.rows(first, rows);
        let sums = span.backward(inputs, &transposed_weights, d_x);
        gradients.add_sums(&sums);
        let (normed, a, d_h) = (&span.normed[..rows * m], &span.a[..rows * f], &span.d_h[..rows * f]);
        matmul(gradients.d_w1, normed, d_h, Product::new(m, rows, f).transpose_a().add());
        matmul(gradients.d_w2, a, inputs.d_y, Product::new(f, rows, m).transpose_a().add());
    }
}

impl<T: Float> MlpGradients<'_, T> {
    /// Checks the sizes and sets everything to 0.
    fn clear(&mut self, m: usize, f: usize) {
        let MlpGradients { norm: NormGradients { d_gamma, d_beta }, d_w1, d_b1, d_w2, d_b2 } = self;
        check_shape!(d_gamma, m = m);
        check_shape!(d_beta, m = m);
        check_shape!(d_w1, m = m, f = f);
        check_shape!(d_b1, f = f);
        check_shape!(d_w2, f = f, m = m);
        check_shape!(d_b2, m = m);
        for gradient in [d_gamma, d_beta, d_w1, d_b1, d_w2, d_b2] {
            gradient.fill(T::ZERO);
        }
    }

    /// Adds the sums of tasks, task by task: those of `d_gamma`, `d_beta`, `d_b2` and `d_b1`.
    fn add_sums(&mut self, sums: &[T]) {
        let (m, f) = (self.d_b2.len(), self.d_b1.len());
        for sums in sums.chunks_exact(3 * m + f) {
            let to = [&mut *self.norm.d_gamma, &mut *self.norm.d_beta, &mut *self.d_b2, &mut *self.d_b1];
            let from = [&sums[..m], &sums[m..2 * m], &sums[2 * m..3 * m], &sums[3 * m..]];
            to.into_iter().zip(from).for_each(|(to, from)| lanes::add(to, from));
        }
    }
}

/// What the backward pass reads of some rows.
#[derive(Clone, Copy)]
struct Inputs<'a, T> {
    mlp: Mlp<'a, T>,
    x: &'a [T],
    h: &'a [T],
    mean: &'a [T],
    rstd: &'a [T],
    d_y: &'a [T],
}

impl<T> Inputs<'_, T> {
    /// Those of `rows` rows from row `first`.
    fn rows(self, first: usize, rows: usize) -> Self {
        let (m, f) = (self.mlp.b2.len(), self.mlp.b1.len());
        Inputs {
            mlp: self.mlp,
            x: &self.x[first * m..][..rows * m],
            h: &self.h[first * f..][..rows * f],
            mean: &self.mean[first..][..rows],
            rstd: &self.rstd[first..][..rows],
            d_y: &self.d_y[first * m..][..rows * m],
        }
    }
}

/// The activations that the gradients of the weights need, for the rows of a span.
struct Span<T> {
    /// Output of the layer norm, `[rows, M]`.
    normed: Vec<T>,
    /// `gelu(h)`, `[rows, F]`.
    a: Vec<T>,
    /// Gradient in `h`, `[rows, F]`.
    d_h: Vec<T>,
}

impl<T: Float> Span<T> {
    fn new(rows: usize, m: usize, f: usize) -> Span<T> {
        Span { normed: vec![T::ZERO; rows * m], a: vec![T::ZERO; rows * f], d_h: vec![T::ZERO; rows * f] }
    }

    /// Fills the activations and `d_x` and gives each task's sums for the parameters of the norm and the biases.
    fn backward(&mut self, inputs: Inputs<'_, T>, transposed_weights: &(Vec<T>, Vec<T>), d_x: &mut [T]) -> Vec<T> {
        let (m, f, rows) = (inputs.mlp.b2.len(), inputs.mlp.b1.len(), inputs.mean.len());
        let task_rows = rows_per_task(rows);
        let mut sums = vec![T::ZERO; rows.div_ceil(task_rows) * (3 * m + f)];
        self.normed
            .chunks_mut(task_rows * m)
            .zip(self.a.chunks_mut(task_rows * f).zip(self.d_h.chunks_mut(task_rows * f)))
            .zip(d_x.chunks_mut(task_rows * m))
            .zip(sums.chunks_mut(3 * m + f))
            .enumerate()
            .par_bridge()
            .for_each_init(
                || vec![T::ZERO; task_rows * m],
                |d_normed, (task, (((normed, (a, d_h)), d_x), sums))| {
                    let rows = d_x.len() / m;
                    let inputs = inputs.rows(task * task_rows, rows);
                    let (normed, d_normed) = (&mut normed[..rows * m], &mut d_normed[..rows * m]);
                    let (a, d_h) = (&mut a[..rows * f], &mut d_h[..rows * f]);
                    let (norm_sums, bias_sums) = sums.split_at_mut(2 * m);
                    backward_inner(inputs, &transposed_weights.1, normed, a, d_h, bias_sums);
                    matmul_serial(d_normed, d_h, &transposed_weights.0, Product::new(rows, f, m));
                    backward_norm(inputs, d_normed, d_x, norm_sums);
                },
            );
        sums
    }
}

/// A task's way from `d_y` to `d_h`; adds to the sums for `d_b2`, `[M]`, and `d_b1`, `[F]`.
fn backward_inner<T: Float>(
    inputs: Inputs<'_, T>,
    transposed_w2: &[T],
    normed: &mut [T],
    a: &mut [T],
    d_h: &mut [T],
    sums: &mut [T],
) {
    let Inputs { mlp, x, h, mean, rstd, d_y } = inputs;
    let (m, f, rows) = (mlp.b2.len(), mlp.b1.len(), mean.len());
    let (d_b2, d_b1) = sums.split_at_mut(m);
    layer_norm::normalise_rows(mlp.norm, x, (mean, rstd), normed);
    d_y.chunks_exact(m).for_each(|row| lanes::add(d_b2, row));
    matmul_serial(d_h, d_y, transposed_w2, Product::new(rows, m, f));
    gelu::backward_rows(h, d_h, a, d_b1);
}

/// A task's way from the gradient of the norm's output to `d_x`, residual included; adds to the sums for `d_gamma` and
/// `d_beta`, `[M]` each.
fn backward_norm<T: Float>(inputs: Inputs<'_, T>, d_normed: &[T], d_x: &mut [T], sums: &mut [T]) {
    let Inputs { mlp, x, mean, rstd, d_y, .. } = inputs;
    let (d_gamma, d_beta) = sums.split_at_mut(mlp.b2.len());
    layer_norm::backward_rows(mlp.norm, x, (mean, rstd), d_normed, d_x, NormGradients { d_gamma, d_beta });
    lanes::add(d_x, d_y);
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
        // a used one, of another size
        let mut saved = Saved { stats: Stats::new(5), h: vec![T::from_f64(f64::NAN); 7] };
        forward_saving(owned.mlp(), x, &mut y, &mut saved);
        let rows = x.len() / owned.0[0].len();
        if rows > FEWEST_ROWS {
            assert_eq!(y, also_y);
        }
        backward(owned.mlp(), x, &saved, d_y, &mut d_x, d.gradients());
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
        let (rows, m, f) = (ROWS_PER_SPAN + 50, 16, 40);
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
        let (rows, m, f) = (ROWS_PER_SPAN + 50, 8, 24);
        let (owned, x, d_y) = (parameters(m, f, 5), random(rows * m, 6), random(rows * m, 7));
        let cut = ROWS_PER_SPAN * m;
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
        for rows in [3, 300, ROWS_PER_SPAN + 50] {
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
