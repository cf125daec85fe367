//! The exact Gaussian error linear unit, forward and backward. Hendrycks and Gimpel 2016, arXiv:1606.08415.
//!
//! ```text
//! gelu(x)  = x P(x)             P the standard normal distribution, (1 + erf(x / sqrt 2)) / 2
//! gelu'(x) = P(x) + x p(x)      p its density
//! ```

use super::dispatch::vectorized;
use super::{Float, ROWS_PER_TASK, lanes};
use crate::check_shape;
use rayon::prelude::*;

/// Elements a task of the forward pass takes.
const ELEMENTS_PER_TASK: usize = 1 << 14;

/// `a = gelu(h)`.
///
/// # Panics
/// If the slices differ in length.
pub fn forward<T: Float>(h: &[T], a: &mut [T]) {
    let elements = h.len();
    check_shape!(a, elements = elements);
    a.par_chunks_mut(ELEMENTS_PER_TASK).zip(h.par_chunks(ELEMENTS_PER_TASK)).for_each(|(a, h)| forward_elements(h, a));
}

/// The backward pass from the pre-activation `h`, `[rows, F]`: `d`, the gradient in `gelu(h)`, becomes the gradient in `h`;
/// `a` becomes `gelu(h)`, which the gradient of the next weights needs; `d_bias`, `[F]`, the sum of the new `d` over rows,
/// which is the gradient of a bias added into `h`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Float>(h: &[T], d: &mut [T], a: &mut [T], d_bias: &mut [T]) {
    let f = d_bias.len();
    let rows = h.len().checked_div(f).unwrap_or(0);
    check_shape!(h, rows = rows, f = f);
    check_shape!(d, rows = rows, f = f);
    check_shape!(a, rows = rows, f = f);
    d_bias.fill(T::ZERO);
    if rows == 0 {
        return;
    }
    let mut partial = vec![T::ZERO; rows.div_ceil(ROWS_PER_TASK) * f];
    h.par_chunks(ROWS_PER_TASK * f)
        .zip(d.par_chunks_mut(ROWS_PER_TASK * f))
        .zip(a.par_chunks_mut(ROWS_PER_TASK * f))
        .zip(partial.par_chunks_mut(f))
        .for_each(|(((h, d), a), d_bias)| backward_rows(h, d, a, d_bias));
    partial.chunks_exact(f).for_each(|partial| lanes::add(d_bias, partial));
}

vectorized! {
    /// [`forward`] by one thread.
    pub(crate) fn forward_elements(h: &[T], a: &mut [T]) {
        for (h, a) in h.iter().zip(a) {
            *a = *h * h.normal().0;
        }
    }
}

vectorized! {
    /// [`backward`] by one thread; adds to `d_bias`.
    pub(crate) fn backward_rows(h: &[T], d: &mut [T], a: &mut [T], d_bias: &mut [T]) {
        let f = d_bias.len();
        for ((h, d), a) in h.chunks_exact(f).zip(d.chunks_exact_mut(f)).zip(a.chunks_exact_mut(f)) {
            for (((h, d), a), d_bias) in h.iter().zip(d).zip(a).zip(d_bias.iter_mut()) {
                let (distribution, density) = h.normal();
                *a = *h * distribution;
                *d = *d * h.mul_add(density, distribution);
                *d_bias += *d;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::dispatch::tests::at_every_level;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    /// By the error function, not by its complement as in the operation.
    fn plain(x: f64) -> f64 {
        0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()))
    }

    #[test]
    fn forward_is_within_its_bound() {
        let h: Vec<f32> = (-120_000..=120_000).map(|i| i as f32 * 1e-4).collect();
        let mut a = vec![f32::NAN; h.len()];
        forward(&h, &mut a);
        for (h, a) in h.iter().zip(&a) {
            let want = plain(f64::from(*h));
            // the distribution's 1.8e-7 times |x|, but the product is rounded to 6e-8 of itself
            assert!((f64::from(*a) - want).abs() <= 2e-7 * f64::from(h.abs()) + 6e-8 * want.abs(), "{h}: {a} {want}");
        }
    }

    #[test]
    fn large_and_broken_inputs() {
        let mut a = [0.0f32; 4];
        forward(&[40.0, -40.0, 0.0, f32::NAN], &mut a);
        assert_eq!(a[..3], [40.0, 0.0, 0.0]);
        assert!(a[3].is_nan());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn backward_matches_central_differences(rows in 0usize..150, f in 1usize..40, seed in 0u64..1000) {
            let h: Vec<f64> = random(rows * f, seed).iter().map(|h| 4.0 * h).collect();
            let d_a = random(rows * f, seed + 1);
            let (mut d_h, mut a, mut d_bias) = (d_a.clone(), vec![f64::NAN; rows * f], vec![f64::NAN; f]);
            backward(&h, &mut d_h, &mut a, &mut d_bias);
            for (a, h) in a.iter().zip(&h) {
                prop_assert!((a - plain(*h)).abs() < 1e-14);
            }
            let loss = |h: &[f64]| h.iter().zip(&d_a).map(|(h, d)| plain(*h) * d).sum::<f64>();
            assert_gradient("d_h", &h, &d_h, loss);
            let zero = vec![0.0; f];
            assert_gradient("d_bias", &zero, &d_bias, |bias| {
                let moved: Vec<f64> = h.iter().enumerate().map(|(i, h)| h + bias[i % f]).collect();
                loss(&moved)
            });
        }
    }

    #[test]
    fn threads_and_instruction_sets_do_not_change_bits() {
        let (h, d_a) = (single(&random(200 * 33, 1)), single(&random(200 * 33, 2)));
        let run = || {
            let (mut d, mut a, mut d_bias) = (d_a.clone(), vec![f32::NAN; 200 * 33], vec![f32::NAN; 33]);
            backward(&h, &mut d, &mut a, &mut d_bias);
            (d, a, d_bias)
        };
        assert_same_at_any_threads(run);
        let results = at_every_level(|| {
            let (mut d, mut a, mut d_bias) = (d_a.clone(), vec![f32::NAN; 200 * 33], vec![0.0; 33]);
            backward_rows(&h, &mut d, &mut a, &mut d_bias);
            forward_elements(&h, &mut d);
            (d, a, d_bias)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
