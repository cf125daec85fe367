//! Layer normalisation of rows, forward and backward (Ba et al. 2016, arXiv:1607.06450), and by the root mean square alone
//! (Zhang and Sennrich 2019, arXiv:1910.07467), where the mean counts as 0.
//!
//! ```text
//! y = gamma (x - mean) rstd + beta          rstd = 1 / sqrt(variance + epsilon), biased variance of the row
//! d_x = rstd (g - mean(g) - u mean(g u))    u = (x - mean) rstd,  g = gamma d_y
//! d_gamma = sum over rows of d_y u          d_beta = sum over rows of d_y
//! ```

use super::{ROWS_PER_TASK, append};
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;
use crate::cpu::vectorized;

/// Added to the variance by default.
pub const EPSILON: f64 = 1e-5;

/// What a row is measured against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowNorm {
    /// Its mean, and its deviation from it.
    #[default]
    Layer,
    /// 0, and its root mean square.
    Rms,
}

/// The parameters of one norm.
#[derive(Clone, Copy, Debug)]
pub struct NormParameters<'a, T> {
    /// Layer norm or root mean square.
    pub kind: RowNorm,
    /// Scale, `[M]`.
    pub gamma: &'a [T],
    /// Shift, `[M]`; `None` adds nothing.
    pub beta: Option<&'a [T]>,
    /// Added to the variance, usually [`EPSILON`].
    pub epsilon: f64,
}

/// Their gradients, each `[M]`.
#[derive(Debug)]
pub struct NormGradients<'a, T> {
    /// In the scale.
    pub d_gamma: &'a mut [T],
    /// In the shift; `None` where there is none.
    pub d_beta: Option<&'a mut [T]>,
}

/// What the backward pass needs of the forward pass besides `x`: one value a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NormStats<T> {
    /// Mean of the row.
    pub mean: Vec<T>,
    /// `1 / sqrt(variance + epsilon)`.
    pub rstd: Vec<T>,
}

impl<T: Number> NormStats<T> {
    /// Room for this many rows.
    pub(crate) fn new(rows: usize) -> NormStats<T> {
        NormStats { mean: vec![T::ZERO; rows], rstd: vec![T::ZERO; rows] }
    }
}

impl<T> NormParameters<'_, T> {
    /// Features of a row.
    ///
    /// # Panics
    /// If there are none, or `gamma` and `beta` differ in length.
    pub(crate) fn width(&self) -> usize {
        let m = self.gamma.len();
        assert!(m > 0, "gamma: a layer norm needs at least one feature");
        if let Some(beta) = self.beta {
            check_shape!(beta, m = m);
        }
        m
    }
}

/// Normalises the rows of `x`, `[rows, M]`, and appends them to `y`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Number>(norm: NormParameters<'_, T>, x: &[T], y: &mut Vec<T>) -> NormStats<T> {
    let m = norm.width();
    let rows = x.len() / m;
    check_shape!(x, rows = rows, m = m);
    let mut stats = NormStats::new(rows);
    let of_rows = stats.mean.chunks_mut(ROWS_PER_TASK).zip(stats.rstd.chunks_mut(ROWS_PER_TASK));
    let piece = ROWS_PER_TASK * m;
    append(y, x.len(), piece, of_rows, |task, y, (mean, rstd)| {
        forward_rows(norm, &x[task * piece..][..y.len()], y, mean, rstd);
    });
    stats
}

/// Gradients of [`forward`], given `d_y`: that in `x`, and `residual` if there is one, is appended to `d_x`; those in the
/// parameters are added to what `gradients` holds. `x`, `d_y` and `residual` are `[rows, M]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(
    norm: NormParameters<'_, T>,
    x: &[T],
    stats: &NormStats<T>,
    d_y: &[T],
    residual: Option<&[T]>,
    d_x: &mut Vec<T>,
    gradients: NormGradients<'_, T>,
) {
    let (m, rows) = (norm.width(), stats.mean.len());
    let NormGradients { d_gamma, d_beta } = gradients;
    check_shape!(x, rows = rows, m = m);
    check_shape!(d_y, rows = rows, m = m);
    if let Some(residual) = residual {
        check_shape!(residual, rows = rows, m = m);
    }
    check_shape!(d_gamma, m = m);
    if let Some(d_beta) = &d_beta {
        check_shape!(d_beta, m = m);
    }
    let mut partial = vec![T::ZERO; rows.div_ceil(ROWS_PER_TASK) * 2 * m];
    append(d_x, x.len(), ROWS_PER_TASK * m, partial.chunks_mut(2 * m), |task, d_x, partial| {
        let first = task * ROWS_PER_TASK;
        let (rows, elements) = (first..first + d_x.len() / m, first * m..first * m + d_x.len());
        let (d_gamma, d_beta) = partial.split_at_mut(m);
        let saved = (&stats.mean[rows.clone()], &stats.rstd[rows]);
        backward_rows(norm, &x[elements.clone()], saved, &d_y[elements.clone()], d_x, (d_gamma, d_beta));
        if let Some(residual) = residual {
            reduce::add(d_x, &residual[elements]);
        }
    });
    partial.chunks_exact(2 * m).for_each(|partial| reduce::add(d_gamma, &partial[..m]));
    if let Some(d_beta) = d_beta {
        partial.chunks_exact(2 * m).for_each(|partial| reduce::add(d_beta, &partial[m..]));
    }
}

vectorized! {
    /// [`forward`] by one thread; `mean` and `rstd` hold a value a row.
    fn forward_rows(norm: NormParameters<'_, T>, x: &[T], y: &mut [T], mean: &mut [T], rstd: &mut [T]) {
        let m = norm.gamma.len();
        let per_feature = T::ONE / T::from_f64(m as f64);
        let rows = x.chunks_exact(m).zip(y.chunks_exact_mut(m)).zip(mean.iter_mut().zip(rstd));
        for ((x, y), (mean, rstd)) in rows {
            let center = match norm.kind {
                RowNorm::Layer => reduce::sum([x], |[x]| x) * per_feature,
                RowNorm::Rms => T::ZERO,
            };
            let variance = reduce::sum([x], |[x]| (x - center) * (x - center)) * per_feature;
            let scale = T::ONE / (variance + T::from_f64(norm.epsilon)).sqrt();
            (*mean, *rstd) = (center, scale);
            let Some(beta) = norm.beta else {
                for ((x, y), gamma) in x.iter().zip(y).zip(norm.gamma) {
                    *y = (*x - center) * scale * *gamma;
                }
                continue;
            };
            for (((x, y), gamma), beta) in x.iter().zip(y).zip(norm.gamma).zip(beta) {
                *y = ((*x - center) * scale).mul_add(*gamma, *beta);
            }
        }
    }
}

vectorized! {
    /// [`backward`] by one thread; `stats` is mean and `rstd`. Adds to the gradients of gamma and beta.
    fn backward_rows(
        norm: NormParameters<'_, T>,
        x: &[T],
        stats: (&[T], &[T]),
        d_y: &[T],
        d_x: &mut [T],
        gradients: (&mut [T], &mut [T]),
    ) {
        let m = norm.gamma.len();
        let (d_gamma, d_beta) = (&mut gradients.0[..m], &mut gradients.1[..m]);
        let per_feature = T::ONE / T::from_f64(m as f64);
        let rows = x.chunks_exact(m).zip(d_y.chunks_exact(m)).zip(d_x.chunks_exact_mut(m));
        for (((x, d_y), d_x), (mean, rstd)) in rows.zip(stats.0.iter().zip(stats.1)) {
            let (mean, rstd) = (*mean, *rstd);
            let along_one = match norm.kind {
                RowNorm::Layer => reduce::sum([d_y, norm.gamma], |[d_y, gamma]| d_y * gamma) * per_feature,
                RowNorm::Rms => T::ZERO,
            };
            let along_u =
                reduce::sum([x, d_y, norm.gamma], |[x, d_y, gamma]| d_y * gamma * ((x - mean) * rstd)) * per_feature;
            for j in 0..m {
                let (u, g) = ((x[j] - mean) * rstd, d_y[j] * norm.gamma[j]);
                d_x[j] = rstd * (g - along_one - u * along_u);
                d_gamma[j] = d_y[j].mul_add(u, d_gamma[j]);
                d_beta[j] += d_y[j];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    fn plain(norm: NormParameters<'_, f64>, x: &[f64]) -> Vec<f64> {
        let m = norm.gamma.len();
        let mut y = Vec::new();
        for row in x.chunks(m) {
            let mean = if norm.kind == RowNorm::Rms { 0.0 } else { row.iter().sum::<f64>() / m as f64 };
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / m as f64;
            let beta = |j: usize| norm.beta.map_or(0.0, |beta| beta[j]);
            let shift = |(j, x): (usize, &f64)| norm.gamma[j] * (x - mean) / (variance + norm.epsilon).sqrt() + beta(j);
            y.extend(row.iter().enumerate().map(shift));
        }
        y
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn forward_equals_plain(rows in 0usize..150, m in 1usize..200, seed in 0u64..1000, shift in -10.0..10.0, shifted: bool, rms: bool) {
            let (gamma, beta) = (random(m, seed), random(m, seed + 1));
            let x: Vec<f64> = random(rows * m, seed + 2).iter().map(|x| x + shift).collect();
            let kind = if rms { RowNorm::Rms } else { RowNorm::Layer };
            let norm = NormParameters { kind, gamma: &gamma, beta: shifted.then_some(&beta), epsilon: EPSILON };
            let want = plain(norm, &x);
            let mut y = Vec::new();
            forward(norm, &x, &mut y);
            let (gamma, beta, x) = (single(&gamma), single(&beta), single(&x));
            let mut z = Vec::new();
            forward(NormParameters { kind, gamma: &gamma, beta: shifted.then_some(&beta), epsilon: EPSILON }, &x, &mut z);
            for i in 0..rows * m {
                prop_assert!((y[i] - want[i]).abs() < 1e-11, "{i}: {} {}", y[i], want[i]);
                // x is rounded to eps |x| <= 7e-7; dividing by a deviation of at least sqrt(1e-5) enlarges that 316 times
                let tolerance = if m < 10 { 1e-3 } else { 3e-5 };
                prop_assert!((f64::from(z[i]) - want[i]).abs() < tolerance, "{i}: {} {}", z[i], want[i]);
            }
        }

        #[test]
        fn gradients_match_central_differences(rows in 1usize..5, m in 1usize..70, seed in 0u64..1000, shifted: bool, rms: bool) {
            let (gamma, beta, x) = (random(m, seed), random(m, seed + 1), random(rows * m, seed + 2));
            let (d_y, residual) = (random(rows * m, seed + 3), random(rows * m, seed + 4));
            let kind = if rms { RowNorm::Rms } else { RowNorm::Layer };
            let norm = NormParameters { kind, gamma: &gamma, beta: shifted.then_some(&beta), epsilon: 1e-2 };
            let mut y = Vec::new();
            let stats = forward(norm, &x, &mut y);
            let (mut d_x, mut d_gamma, mut d_beta) = (Vec::new(), vec![0.0; m], vec![0.0; m]);
            let gradients = NormGradients { d_gamma: &mut d_gamma, d_beta: Some(&mut d_beta) };
            backward(norm, &x, &stats, &d_y, Some(&residual), &mut d_x, gradients);
            let loss = |norm: NormParameters<'_, f64>, x: &[f64]| {
                plain(norm, x).iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>()
                    + x.iter().zip(&residual).map(|(x, d)| x * d).sum::<f64>()
            };
            assert_gradient("d_x", &x, &d_x, |x| loss(norm, x));
            assert_gradient("d_gamma", &gamma, &d_gamma, |gamma| loss(NormParameters { gamma, ..norm }, &x));
            if shifted {
                assert_gradient("d_beta", &beta, &d_beta, |beta| loss(NormParameters { beta: Some(beta), ..norm }, &x));
            }
        }
    }

    /// Forward and backward of 150 rows (more than one task) of 67 features.
    fn everything() -> [Vec<f32>; 4] {
        let (rows, m) = (150, 67);
        let (gamma, beta) = (single(&random(m, 1)), single(&random(m, 2)));
        let (x, d_y) = (single(&random(rows * m, 3)), single(&random(rows * m, 4)));
        let norm = NormParameters { kind: RowNorm::Layer, gamma: &gamma, beta: Some(&beta), epsilon: EPSILON };
        let [mut y, mut d_x] = [(); 2].map(|_| Vec::new());
        let [mut d_gamma, mut d_beta] = [(); 2].map(|_| vec![0.5f32; m]);
        let stats = forward(norm, &x, &mut y);
        let gradients = NormGradients { d_gamma: &mut d_gamma, d_beta: Some(&mut d_beta) };
        backward(norm, &x, &stats, &d_y, None, &mut d_x, gradients);
        [y, d_x, d_gamma, d_beta]
    }

    #[test]
    fn threads_do_not_change_bits() {
        assert_same_at_any_threads(everything);
    }

    #[test]
    fn instruction_sets_do_not_change_bits() {
        let (gamma, beta, x) = (single(&random(67, 1)), single(&random(67, 2)), single(&random(3 * 67, 3)));
        let norm = NormParameters { kind: RowNorm::Layer, gamma: &gamma, beta: Some(&beta), epsilon: EPSILON };
        let results = on_every_set(|| {
            let ([mut mean, mut rstd], [mut y, mut d_x]) = ([[0.0f32; 3]; 2], [[0.0f32; 3 * 67]; 2]);
            let ([mut d_gamma, mut d_beta], d_y) = ([[0.0f32; 67]; 2], x.clone());
            forward_rows(norm, &x, &mut y, &mut mean, &mut rstd);
            backward_rows(norm, &x, (&mean, &rstd), &d_y, &mut d_x, (&mut d_gamma, &mut d_beta));
            (y, d_x, d_gamma, d_beta)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }

    #[test]
    fn large_offset_costs_no_accuracy() {
        let (gamma, beta) = (vec![1.0f32; 64], vec![0.0f32; 64]);
        let near: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let far: Vec<f32> = near.iter().map(|x| x + 4096.0).collect();
        let norm = NormParameters { kind: RowNorm::Layer, gamma: &gamma, beta: Some(&beta), epsilon: EPSILON };
        let [mut a, mut b] = [Vec::new(), Vec::new()];
        forward(norm, &near, &mut a);
        forward(norm, &far, &mut b);
        // all sums are exact in f32
        assert_eq!(a, b);
    }
}
