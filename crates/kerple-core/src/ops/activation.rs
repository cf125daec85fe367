//! Activations of a feed-forward layer, forward and backward, as a choice.
//!
//! | name | formula | source |
//! |---|---|---|
//! | `gelu` | `x P(x)`, `P` the normal distribution; slope `P(x) + x p(x)`, `p` its density | Hendrycks and Gimpel 2016, arXiv:1606.08415 |
//! | `gelu_tanh` | `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` | the same, section 2 |
//! | `silu` | `x sigmoid(x)` | the same, section 2; Ramachandran et al. 2017, arXiv:1710.05941 |
//! | `quick_gelu` | `x sigmoid(1.702 x)` | the same, section 2 |
//! | `relu` | `max(x, 0)` | |
//! | `relu2` | `max(x, 0)^2` | So et al. 2021, arXiv:2109.08668 |
//!
//! `(1 + tanh(u)) / 2 = sigmoid(2 u)`, so three of them are `x sigmoid(g(x))` with `g(x) = x (linear + cubic x^2)`.

use crate::Number;
use crate::cpu::vectorized;
use serde::{Deserialize, Serialize};

/// What the hidden values of a feed-forward layer go through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The exact Gaussian error linear unit.
    #[default]
    Gelu,
    /// Its approximation by a hyperbolic tangent.
    GeluTanh,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// `x sigmoid(1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)^2`
    Relu2,
}

/// A formula that activations share, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Formula {
    /// `x P(x)`
    Normal,
    /// `x sigmoid(x (linear + cubic x^2))` of `[linear, cubic]`.
    Sigmoid([f64; 2]),
    /// `max(x, 0)`
    Ramp,
    /// `max(x, 0)^2`
    Square,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 6] = [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::QuickGelu,
        Activation::Relu,
        Activation::Relu2,
    ];

    /// The formula it is computed by.
    pub fn formula(self) -> Formula {
        /// `2 sqrt(2 / pi)`
        const TWICE: f64 = 2.0 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
        match self {
            Activation::Gelu => Formula::Normal,
            Activation::GeluTanh => Formula::Sigmoid([TWICE, 0.044_715 * TWICE]),
            Activation::Silu => Formula::Sigmoid([1.0, 0.0]),
            Activation::QuickGelu => Formula::Sigmoid([1.702, 0.0]),
            Activation::Relu => Formula::Ramp,
            Activation::Relu2 => Formula::Square,
        }
    }

    /// `a = act(h)` by the calling thread.
    pub fn forward<T: Number>(self, h: &[T], a: &mut [T]) {
        match self.formula() {
            Formula::Normal => forward_gelu(h, a),
            Formula::Sigmoid([linear, cubic]) => forward_sigmoid(h, a, T::from_f64(linear), T::from_f64(cubic)),
            Formula::Ramp => forward_relu(h, a),
            Formula::Square => forward_relu2(h, a),
        }
    }

    /// The same, over `h`.
    pub fn forward_in_place<T: Number>(self, h: &mut [T]) {
        /// Values taken at once: a few cache lines on the stack.
        const PIECE: usize = 128;
        let mut from = [T::ZERO; PIECE];
        for h in h.chunks_mut(PIECE) {
            let from = &mut from[..h.len()];
            from.copy_from_slice(h);
            self.forward(from, h);
        }
    }

    /// The backward pass from `h`: `d`, the gradient in `act(h)`, becomes the gradient in `h`, and `a` becomes `act(h)`.
    pub fn backward<T: Number>(self, h: &[T], d: &mut [T], a: &mut [T]) {
        match self.formula() {
            Formula::Normal => backward_gelu(h, d, a),
            Formula::Sigmoid([linear, cubic]) => backward_sigmoid(h, d, a, T::from_f64(linear), T::from_f64(cubic)),
            Formula::Ramp => backward_relu(h, d, a),
            Formula::Square => backward_relu2(h, d, a),
        }
    }
}

vectorized! {
    fn forward_gelu(h: &[T], a: &mut [T]) {
        for (h, a) in h.iter().zip(a) {
            *a = *h * h.normal().0;
        }
    }
}

vectorized! {
    fn backward_gelu(h: &[T], d: &mut [T], a: &mut [T]) {
        for ((h, d), a) in h.iter().zip(d).zip(a) {
            let (distribution, density) = h.normal();
            *a = *h * distribution;
            *d = *d * h.mul_add(density, distribution);
        }
    }
}

vectorized! {
    fn forward_sigmoid(h: &[T], a: &mut [T], linear: T, cubic: T) {
        for (h, a) in h.iter().zip(a) {
            let g = *h * (*h * *h).mul_add(cubic, linear);
            *a = *h / (T::ONE + (-g).exp());
        }
    }
}

vectorized! {
    fn backward_sigmoid(h: &[T], d: &mut [T], a: &mut [T], linear: T, cubic: T) {
        let three = T::from_f64(3.0);
        for ((h, d), a) in h.iter().zip(d).zip(a) {
            let square = *h * *h;
            let g = *h * square.mul_add(cubic, linear);
            // the share below 1 by its own formula: 1 - sigmoid loses all digits where it is small
            let (rise, fall) = (T::ONE / (T::ONE + (-g).exp()), T::ONE / (T::ONE + g.exp()));
            let slope = square.mul_add(three * cubic, linear);
            *a = *h * rise;
            *d = *d * rise * (*h * fall).mul_add(slope, T::ONE);
        }
    }
}

vectorized! {
    fn forward_relu(h: &[T], a: &mut [T]) {
        for (h, a) in h.iter().zip(a) {
            // this way round NaN stays
            *a = if *h < T::ZERO { T::ZERO } else { *h };
        }
    }
}

vectorized! {
    fn backward_relu(h: &[T], d: &mut [T], a: &mut [T]) {
        for ((h, d), a) in h.iter().zip(d).zip(a) {
            *a = if *h < T::ZERO { T::ZERO } else { *h };
            // a factor: choosing between `*d` and 0 becomes a masked store, which is slow on some processors
            *d = *d * if *h > T::ZERO { T::ONE } else { T::ZERO };
        }
    }
}

vectorized! {
    fn forward_relu2(h: &[T], a: &mut [T]) {
        for (h, a) in h.iter().zip(a) {
            let positive = if *h < T::ZERO { T::ZERO } else { *h };
            *a = positive * positive;
        }
    }
}

vectorized! {
    fn backward_relu2(h: &[T], d: &mut [T], a: &mut [T]) {
        for ((h, d), a) in h.iter().zip(d).zip(a) {
            let positive = if *h < T::ZERO { T::ZERO } else { *h };
            *a = positive * positive;
            *d = *d * (positive + positive);
        }
    }
}

vectorized! {
    /// `a = a * b` by the calling thread: what a gate lets through.
    pub fn multiply(a: &mut [T], b: &[T]) {
        for (a, b) in a.iter_mut().zip(b) {
            *a = *a * *b;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_gradient, random, single};
    use proptest::prelude::*;

    fn plain(activation: Activation, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match activation {
            Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
            Activation::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + u.tanh())
            }
            Activation::Silu => x * sigmoid(x),
            Activation::QuickGelu => x * sigmoid(1.702 * x),
            Activation::Relu => x.max(0.0),
            Activation::Relu2 => x.max(0.0).powi(2),
        }
    }

    #[test]
    fn forward_equals_the_formula() {
        let h: Vec<f32> = (-120_000..=120_000).map(|i| i as f32 * 1e-4).collect();
        for activation in Activation::ALL {
            let mut a = vec![f32::NAN; h.len()];
            activation.forward(&h, &mut a);
            for (h, a) in h.iter().zip(&a) {
                let want = plain(activation, f64::from(*h));
                // the exact GELU's distribution is off by 1.8e-7, and the product is rounded to 6e-8 of itself; of the others
                // the argument of the exponential, at most 95, is rounded to 6e-8 of itself and the formula by cancellation
                let rounding = if activation == Activation::Gelu { 6e-8 } else { 3e-7 };
                let allowed = 2e-7 * f64::from(h.abs()) + rounding * want.abs();
                assert!((f64::from(*a) - want).abs() <= allowed, "{activation:?} {h}: {a} {want}");
            }
        }
    }

    #[test]
    fn large_and_broken_inputs() {
        for activation in Activation::ALL {
            let (h, mut a) = ([40.0f32, -40.0, 0.0, f32::NAN], [1.0f32; 4]);
            activation.forward(&h, &mut a);
            let large = if activation == Activation::Relu2 { 1600.0 } else { 40.0 };
            assert!(a[0] == large && a[1].abs() < 1e-15 && a[2] == 0.0 && a[3].is_nan(), "{activation:?} {a:?}");
            let mut d = [1.0f32; 4];
            activation.backward(&h, &mut d, &mut a);
            assert!(d[..3].iter().all(|d| d.is_finite()) && d[1].abs() < 1e-14, "{activation:?} {d:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn backward_matches_central_differences(len in 0usize..300, seed in 0u64..1000) {
            let h: Vec<f64> = random(len, seed).iter().map(|h| 4.0 * h).collect();
            let d_a = random(len, seed + 1);
            for activation in Activation::ALL {
                // differences across a kink are not its slope
                let smooth = |h: f64| if activation == Activation::Relu && h.abs() < 0.01 { h + 0.1 } else { h };
                let h: Vec<f64> = h.iter().map(|h| smooth(*h)).collect();
                let (mut d_h, mut a) = (d_a.clone(), vec![f64::NAN; len]);
                activation.backward(&h, &mut d_h, &mut a);
                for (a, h) in a.iter().zip(&h) {
                    prop_assert!((a - plain(activation, *h)).abs() < 1e-14 * (1.0 + h * h));
                }
                if activation == Activation::Relu2 {
                    // its second derivative jumps at 0, so differences are off by the step
                    for (i, (d_h, d_a)) in d_h.iter().zip(&d_a).enumerate() {
                        prop_assert!((d_h - 2.0 * h[i].max(0.0) * d_a).abs() < 1e-14 * (1.0 + h[i].abs()));
                    }
                    continue;
                }
                let loss = |h: &[f64]| h.iter().zip(&d_a).map(|(h, d)| plain(activation, *h) * d).sum::<f64>();
                assert_gradient("d_h", &h, &d_h, loss);
            }
        }
    }

    #[test]
    fn instruction_sets_do_not_change_bits() {
        let (h, d_a) = (single(&random(6600, 1)), single(&random(6600, 2)));
        for activation in Activation::ALL {
            let results = on_every_set(|| {
                let (mut d, mut a) = (d_a.clone(), vec![f32::NAN; h.len()]);
                activation.backward(&h, &mut d, &mut a);
                multiply(&mut a, &d);
                activation.forward(&h, &mut d);
                (d, a)
            });
            assert!(results.iter().all(|result| *result == results[0]), "{activation:?}");
        }
    }
}
