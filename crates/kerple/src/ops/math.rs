//! Scalars of the operations, and elementary functions that vectorise: no branches, no tables, no calls.
//!
//! Error bounds of the `f32` versions against `f64`, each checked by a test over a dense grid:
//!
//! | function | bound | range |
//! |---|---|---|
//! | `exp` | 1.5e-7 relative | `-86.9 ..= 88.7`; 0 below, infinity above |
//! | `normal().0`, the distribution | 1.8e-7 absolute; relative `3.5e-7 + 6e-8 x^2` in the lower tail | `-13 ..` |
//! | `normal().1`, the density | relative `2e-7 + 6e-8 x^2` | `-13 ..= 13` |
//!
//! NaN in gives NaN out. The `f64` versions are those of `std` and `libm`.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

/// `1 / sqrt(2 pi)`, the height of the normal density.
const DENSITY_AT_ZERO: f64 = 0.398_942_280_401_432_7;

/// `f32` or `f64`.
pub trait Float:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + 'static
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// Smaller than every number.
    const NEG_INFINITY: Self;

    /// The nearest value.
    fn from_f64(value: f64) -> Self;
    /// The same value.
    fn to_f64(self) -> f64;
    /// `self * factor + term`, rounded once.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// `e` to this power.
    fn exp(self) -> Self;
    /// The standard normal distribution and its density at this point.
    fn normal(self) -> (Self, Self);
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> f64 {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn mul_add(self, factor: f64, term: f64) -> f64 {
        f64::mul_add(self, factor, term)
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn normal(self) -> (f64, f64) {
        let distribution = 0.5 * libm::erfc(-self * std::f64::consts::FRAC_1_SQRT_2);
        (distribution, DENSITY_AT_ZERO * (-0.5 * self * self).exp())
    }
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn mul_add(self, factor: f32, term: f32) -> f32 {
        f32::mul_add(self, factor, term)
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
    #[inline(always)]
    fn exp(self) -> f32 {
        exp(self)
    }
    #[inline(always)]
    fn normal(self) -> (f32, f32) {
        normal(self)
    }
}

/// `e^x = 2^n e^r` with `x = n ln 2 + r` and `|r| <= ln(2) / 2`; `e^r` is a minimax polynomial.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding it leaves the rounded integer in the low bits of the mantissa.
    const ROUNDER: f32 = 1.5 * (1 << 23) as f32;
    /// `ln 2` cut to 15 bits, so that its products with `n` are exact, and the rest.
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    /// `(e^r - 1 - r) / r^2`, relative error of `e^r` 3.2e-9.
    const REST: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_374, 0.008_368_646, 0.001_381_496_6];

    // comparisons in this order keep NaN; the ends give n = -126 (a scale of 0) and n = 128 (infinity)
    let x = if x < -87.4 { -87.4 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = f32::mul_add(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = f32::mul_add(n, -LN2_LOW, f32::mul_add(n, -LN2_HIGH, x));
    let power = f32::mul_add(r * r, polynomial(r, REST), r) + 1.0;
    // 2^(n - 1), so that n = 128 is still a number: the sign and exponent of the rounder are shifted out
    let half_scale = f32::from_bits(shifted.to_bits().wrapping_add(126) << 23);
    power * half_scale * 2.0
}

/// The upper tail is `e^(-t^2/2)` times a slowly falling function of `t = |x|`, a polynomial in `1 / (1 + 0.35 t)`.
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    /// `(1 - distribution(t)) e^(t^2/2) / w`, relative error 3.2e-8 for `t <= 14`.
    const TAIL: [f32; 9] = [
        0.139_621_4,
        0.139_861_87,
        0.119_832_89,
        0.105_507_92,
        -0.023_109_612,
        0.159_173_81,
        -0.255_713_93,
        0.143_971_53,
        -0.029_145_896,
    ];
    let t = x.abs();
    let decay = exp(-0.5 * t * t);
    let w = 1.0 / f32::mul_add(t, 0.35, 1.0);
    let tail = decay * w * polynomial(w, TAIL);
    (if x > 0.0 { 1.0 - tail } else { tail }, DENSITY_AT_ZERO as f32 * decay)
}

/// `sum_i coefficients[i] x^i`, Horner.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        value = f32::mul_add(value, x, coefficients[i]);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest error of `f32` function `got` relative to `allowed`, over a grid of `[from, to]`.
    fn worst(
        from: f32,
        to: f32,
        got: impl Fn(f32) -> f32,
        want: impl Fn(f64) -> f64,
        allowed: impl Fn(f64, f64) -> f64,
    ) -> f64 {
        let steps = 2_000_000;
        let at = |i: u32| from + (to - from) * (i as f32 / steps as f32);
        let ratio = |i| {
            let (x, want) = (f64::from(at(i)), want(f64::from(at(i))));
            (f64::from(got(at(i))) - want).abs() / allowed(x, want)
        };
        (0..=steps).map(ratio).fold(0.0, f64::max)
    }

    // the bounds below are the table of the module's documentation

    #[test]
    fn exp_is_within_its_bound() {
        let ratio = worst(-86.9, 88.7, Float::exp, f64::exp, |_, value| 1.5e-7 * value);
        assert!(ratio <= 1.0, "{ratio}");
        let ratio = worst(-1.0, 1.0, Float::exp, f64::exp, |_, value| 1.5e-7 * value);
        assert!(ratio <= 1.0, "{ratio}");
    }

    #[test]
    fn exp_at_the_ends() {
        let f = |x: f32| Float::exp(x);
        assert_eq!([f(0.0), f(-0.0), f(-87.1), f(-1e30), f(f32::NEG_INFINITY)], [1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!([f(88.73), f(1e30), f(f32::INFINITY)], [f32::INFINITY; 3]);
        assert!(f(88.72).is_finite() && f(f32::NAN).is_nan());
    }

    #[test]
    fn distribution_is_within_its_bounds() {
        let exact = |x: f64| x.normal().0;
        let absolute = worst(-14.0, 14.0, |x| x.normal().0, exact, |_, _| 1.8e-7);
        let relative = worst(-13.0, 0.0, |x| x.normal().0, exact, |x, value| (3.5e-7 + 6e-8 * x * x) * value);
        assert!(absolute <= 1.0 && relative <= 1.0, "{absolute} {relative}");
    }

    #[test]
    fn density_is_within_its_bound() {
        let ratio = worst(-13.0, 13.0, |x| x.normal().1, |x| x.normal().1, |x, value| (2e-7 + 6e-8 * x * x) * value);
        assert!(ratio <= 1.0, "{ratio}");
    }

    #[test]
    fn normal_at_the_ends() {
        assert_eq!([f32::NEG_INFINITY.normal().0, f32::INFINITY.normal().0], [0.0, 1.0]);
        assert!(f32::NAN.normal().0.is_nan() && f32::NAN.normal().1.is_nan());
        assert!((0.0f32.normal().0 - 0.5).abs() < 6e-8);
    }

    #[test]
    fn double_distribution_has_the_density_as_slope() {
        for i in -500..=500 {
            let (x, step) = (f64::from(i) * 0.01, 1e-5);
            let slope = ((x + step).normal().0 - (x - step).normal().0) / (2.0 * step);
            // cut off at step^2 / 6 and rounding of about 1e-16 / step
            assert!((slope - x.normal().1).abs() < 1e-10, "{x}");
        }
    }
}
