//! The two number types that everything which computes is written for.

use crate::attention::CompiledEngines;
use crate::cpu::elementary::{self, DENSITY_AT_ZERO};
use crate::cpu::lanes::Dispatch;
use crate::cpu::portable::One;
use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

/// `f32`, the fast one, or `f64`, the exact one; there are no others.
///
/// A type brings the engines of attention along, so that they are compiled once, in this crate.
///
/// Functions of `f64` are those of `std` and `libm`. Those of `f32` vectorise: they have no
/// branches, tables or calls, and their error bounds are documented. NaN in gives NaN out,
/// everywhere.
pub trait Number:
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
    + Sum
    + Dispatch
    + CompiledEngines
    + 'static
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// Below every finite value.
    const NEG_INFINITY: Self;
    /// The lowest finite value; its negative is the largest.
    const LOWEST: Self;
    /// The smallest positive normal value.
    const MIN_POSITIVE: Self;
    /// [`Number::exp`] is 0 below it.
    const EXP_IS_ZERO_BELOW: f64;

    /// The nearest value.
    fn from_f64(value: f64) -> Self;
    /// The same value.
    fn to_f64(self) -> f64;
    /// `self * factor + term`, rounded once.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// The larger of two, NaN if either is NaN.
    fn max(self, other: Self) -> Self;
    /// `e` to this power. In `f32` within 1.3e-7 of it, relatively, for `-86.9 ..= 88.7`; 0 below, infinity above.
    fn exp(self) -> Self;
    /// Natural logarithm, by `std`.
    fn ln(self) -> Self;
    /// `ln x` of a number that is not negative. In `f32` within 1.3e-7 of it, relatively or absolutely; ends are those of the
    /// exponent: -88.03 at 0 and 88.73 at infinity.
    fn log(self) -> Self;
    /// `ln(1 + x)` of a number that is not negative, as [`Number::log`].
    fn log_1p(self) -> Self;
    /// `ln(1 + x)` and `1 / (1 + x)` of a number from 0 to 1, by one division. In `f32` both within 3.5e-7 relatively.
    fn log_1p_and_reciprocal(self) -> (Self, Self);
    /// The standard normal distribution and its density at this point. In `f32` the distribution is within 1.8e-7
    /// absolutely, and in the lower tail down to -13 within `3.5e-7 + 6e-8 x^2` relatively; the density is within
    /// `2e-7 + 6e-8 x^2` relatively up to 13 on both sides.
    fn normal(self) -> (Self, Self);
    /// The bits of the nearest `bf16`, of the even one between two; of `f64` by way of `f32`.
    fn to_bf16(self) -> u16;
    /// The number of these bits.
    fn from_bf16(bits: u16) -> Self;
}

/// The bits of the nearest `bf16`, of the even one between two.
#[inline(always)]
fn single_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // NaN stays one, whatever its other bits
    let rounded = if value.is_nan() { bits | 1 << 22 } else { bits.wrapping_add(0x7fff + (bits >> 16 & 1)) };
    (rounded >> 16) as u16
}

macro_rules! number {
    ($type:ident, exp $exp:expr, zero below $lowest:expr, log $log:expr, log_1p $log_1p:expr, and reciprocal $log_1p_and_reciprocal:expr, normal $normal:expr) => {
        impl Number for $type {
            const ZERO: $type = 0.0;
            const ONE: $type = 1.0;
            const NEG_INFINITY: $type = $type::NEG_INFINITY;
            const LOWEST: $type = $type::MIN;
            const MIN_POSITIVE: $type = $type::MIN_POSITIVE;
            const EXP_IS_ZERO_BELOW: f64 = $lowest;

            #[inline(always)]
            fn from_f64(value: f64) -> $type {
                value as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn mul_add(self, factor: $type, term: $type) -> $type {
                $type::mul_add(self, factor, term)
            }
            #[inline(always)]
            fn sqrt(self) -> $type {
                $type::sqrt(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                $type::is_finite(self)
            }
            #[inline(always)]
            fn max(self, other: $type) -> $type {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn exp(self) -> $type {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> $type {
                $type::ln(self)
            }
            #[inline(always)]
            fn log(self) -> $type {
                $log(self)
            }
            #[inline(always)]
            fn log_1p(self) -> $type {
                $log_1p(self)
            }
            #[inline(always)]
            fn log_1p_and_reciprocal(self) -> ($type, $type) {
                $log_1p_and_reciprocal(self)
            }
            #[inline(always)]
            fn normal(self) -> ($type, $type) {
                $normal(self)
            }
            #[inline(always)]
            fn to_bf16(self) -> u16 {
                single_to_bf16(self as f32)
            }
            #[inline(always)]
            fn from_bf16(bits: u16) -> $type {
                f32::from_bits(u32::from(bits) << 16).into()
            }
        }
    };
}

number!(f32, exp |x| elementary::exp(One, x), zero below -87.4, log elementary::log, log_1p elementary::log_1p,
    and reciprocal elementary::log_1p_and_reciprocal, normal elementary::normal);
number!(f64, exp f64::exp, zero below -745.2, log f64::ln, log_1p f64::ln_1p,
    and reciprocal |x: f64| (x.ln_1p(), 1.0 / (1.0 + x)), normal exact_normal);

fn exact_normal(x: f64) -> (f64, f64) {
    let distribution = 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    (distribution, DENSITY_AT_ZERO * (-0.5 * x * x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_of_two_keeps_nan() {
        fn check<T: Number>() {
            let (one, two, nan) = (T::ONE, T::ONE + T::ONE, T::NEG_INFINITY * T::ZERO);
            assert_eq!([one.max(two), two.max(one), T::NEG_INFINITY.max(one)], [two, two, one]);
            assert!(!(nan.max(one).is_finite() || one.max(nan).is_finite() || nan.max(nan).is_finite()));
        }
        check::<f32>();
        check::<f64>();
    }

    #[test]
    fn exponentials_end_where_they_say() {
        fn check<T: Number>() {
            assert!(
                T::from_f64(T::EXP_IS_ZERO_BELOW).exp() == T::ZERO
                    && T::from_f64(T::EXP_IS_ZERO_BELOW + 0.5).exp() > T::ZERO
            );
        }
        check::<f32>();
        check::<f64>();
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
