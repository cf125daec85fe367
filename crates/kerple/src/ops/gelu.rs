//! The exact Gaussian error linear unit, forward and backward. Hendrycks and Gimpel 2016, arXiv:1606.08415.
//!
//! ```text
//! gelu(x)  = x P(x)             P the standard normal distribution, (1 + erf(x / sqrt 2)) / 2
//! gelu'(x) = P(x) + x p(x)      p its density
//! ```

use crate::cpu::vectorized;

vectorized! {
    /// `a = gelu(h)` by the calling thread.
    pub fn forward(h: &[T], a: &mut [T]) {
        for (h, a) in h.iter().zip(a) {
            *a = *h * h.normal().0;
        }
    }
}

vectorized! {
    /// The backward pass from the pre-activation `h`: `d`, the gradient in `gelu(h)`, becomes the gradient in `h`, and `a`
    /// becomes `gelu(h)`, which the gradient of the next weights needs.
    pub fn backward(h: &[T], d: &mut [T], a: &mut [T]) {
        for ((h, d), a) in h.iter().zip(d).zip(a) {
            let (distribution, density) = h.normal();
            *a = *h * distribution;
            *d = *d * h.mul_add(density, distribution);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_gradient, random, single};
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
        fn backward_matches_central_differences(len in 0usize..300, seed in 0u64..1000) {
            let h: Vec<f64> = random(len, seed).iter().map(|h| 4.0 * h).collect();
            let d_a = random(len, seed + 1);
            let (mut d_h, mut a) = (d_a.clone(), vec![f64::NAN; len]);
            backward(&h, &mut d_h, &mut a);
            for (a, h) in a.iter().zip(&h) {
                prop_assert!((a - plain(*h)).abs() < 1e-14);
            }
            let loss = |h: &[f64]| h.iter().zip(&d_a).map(|(h, d)| plain(*h) * d).sum::<f64>();
            assert_gradient("d_h", &h, &d_h, loss);
        }
    }

    #[test]
    fn instruction_sets_do_not_change_bits() {
        let (h, d_a) = (single(&random(6600, 1)), single(&random(6600, 2)));
        let results = on_every_set(|| {
            let (mut d, mut a) = (d_a.clone(), vec![f32::NAN; h.len()]);
            backward(&h, &mut d, &mut a);
            forward(&h, &mut d);
            (d, a)
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
