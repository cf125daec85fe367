//! Vectors of numbers, one implementation per instruction set, and the way kernels are compiled for each.
//!
//! A value of a [`Lanes`] type is proof that the CPU has its instructions, so arithmetic is safe to call. A [`Kernel`] is
//! written once, generic over the lanes; [`Lanes::run`] compiles it with the instructions enabled, provided that its
//! `run` and everything below it is `#[inline(always)]`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;

use crate::attention::Real;

/// Coefficients of `2^f = 1 + f (C[0] + f (C[1] + ...))` for `|f| <= 1/2`: minimax in the relative error, 9.2e-8 before rounding.
#[allow(clippy::approx_constant, reason = "the first is near ln 2 and better than it")]
const EXP2: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];

/// Adding this rounds a small number to an integer, which then sits in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// `2^-127` has an all-zero pattern in the arithmetic of [`Lanes::exp`]: anything below becomes 0.
const LOWEST_EXPONENT: f32 = -127.0;

/// Some numbers handled by one instruction.
pub trait Lanes: Copy + Send + Sync {
    type Real: Real;
    type Vector: Copy;
    /// Numbers in a vector.
    const COUNT: usize;
    /// Vectors side by side in a block of [`Product`](super::product::Product) that fits the registers, at most 4.
    const BLOCK_VECTORS: usize;

    /// Runs a kernel compiled for these lanes.
    fn run<K: Kernel<Self::Real>>(self, kernel: K) -> K::Output;

    /// # Safety
    /// `COUNT` numbers can be read.
    unsafe fn load(self, from: *const Self::Real) -> Self::Vector;
    /// # Safety
    /// `COUNT` numbers can be written.
    unsafe fn store(self, to: *mut Self::Real, vector: Self::Vector);
    fn splat(self, value: Self::Real) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a b + c`
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `b` if either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `e^x` for `x <= 88`, within `2e-7 + 7.5e-8 |x|` of it relatively, and 0 within 2e-38 absolutely below -87.3.
    fn exp(self, x: Self::Vector) -> Self::Vector;
    /// The sum of a vector's numbers.
    fn sum(self, vector: Self::Vector) -> Self::Real;
    /// The largest of a vector's numbers, none of them NaN.
    #[inline(always)]
    fn largest(self, vector: Self::Vector) -> Self::Real {
        let mut numbers = [Self::Real::LOWEST; 16];
        assert!(Self::COUNT <= numbers.len());
        // SAFETY: `COUNT` numbers fit.
        unsafe { self.store(numbers.as_mut_ptr(), vector) };
        numbers.into_iter().fold(Self::Real::LOWEST, Self::Real::max)
    }
}

/// Code written once for every kind of lanes.
pub trait Kernel<R> {
    type Output;
    /// To be `#[inline(always)]`.
    fn run<L: Lanes<Real = R>>(self, lanes: L) -> Self::Output;
}

/// The arithmetic of `Lanes` for f32 by one instruction each. `exp` rounds `x log2 e` to `n + f` and puts `n` into the
/// exponent of the polynomial in `f`.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($load:ident $store:ident $splat:ident $add:ident $sub:ident $mul:ident $mul_add:ident $max:ident
     to_bits $to_bits:ident from_bits $from_bits:ident shift $shift:ident add_bits $add_bits:ident) => {
        #[inline(always)]
        unsafe fn load(self, from: *const f32) -> Self::Vector {
            // SAFETY: the caller's promise; the token proves the instructions.
            unsafe { $load(from) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32, vector: Self::Vector) {
            // SAFETY: the caller's promise; the token proves the instructions.
            unsafe { $store(to, vector) }
        }
        #[inline(always)]
        fn splat(self, value: f32) -> Self::Vector {
            // SAFETY: the token proves the instructions.
            unsafe { $splat(value) }
        }
        #[inline(always)]
        fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: the token proves the instructions.
            unsafe { $add(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: the token proves the instructions.
            unsafe { $sub(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: the token proves the instructions.
            unsafe { $mul(a, b) }
        }
        #[inline(always)]
        fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
            // SAFETY: the token proves the instructions.
            unsafe { $mul_add(a, b, c) }
        }
        #[inline(always)]
        fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            // SAFETY: the token proves the instructions.
            unsafe { $max(a, b) }
        }
        #[inline(always)]
        fn exp(self, x: Self::Vector) -> Self::Vector {
            let y = self.mul(x, self.splat(std::f32::consts::LOG2_E));
            let y = self.max(self.splat(super::LOWEST_EXPONENT), y); // in this order NaN stays NaN
            let shifted = self.add(y, self.splat(super::ROUND));
            let f = self.sub(y, self.sub(shifted, self.splat(super::ROUND)));
            let mut p = self.splat(super::EXP2[4]);
            for c in [super::EXP2[3], super::EXP2[2], super::EXP2[1], super::EXP2[0], 1.0] {
                p = self.mul_add(p, f, self.splat(c));
            }
            // SAFETY: the token proves the instructions.
            unsafe { $from_bits($add_bits($to_bits(p), $shift::<23>($to_bits(shifted)))) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
use intrinsics;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::tiled::instructions::{Dispatch, InstructionSet};

    struct Exp<'a>(&'a mut [f32]);

    impl Kernel<f32> for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes<Real = f32>>(self, lanes: L) {
            for chunk in self.0.chunks_exact_mut(L::COUNT) {
                // SAFETY: a chunk is one vector long.
                unsafe { lanes.store(chunk.as_mut_ptr(), lanes.exp(lanes.load(chunk.as_ptr()))) };
            }
        }
    }

    #[test]
    fn exp_keeps_its_bound() {
        let inputs: Vec<f32> = (0..1 << 20).map(|i| 88.0 - 196.0 * i as f32 / (1 << 20) as f32).collect();
        for set in InstructionSet::available() {
            let mut outputs = inputs.clone();
            f32::dispatch(set, Exp(&mut outputs));
            for (&x, &y) in inputs.iter().zip(&outputs) {
                let exact = f64::from(x).exp();
                let bound = exact * (2e-7 + 7.5e-8 * f64::from(x.abs())) + if x < -87.3 { 2e-38 } else { 0.0 };
                assert!((f64::from(y) - exact).abs() <= bound, "{set:?} exp({x}) = {y}, {exact}");
            }
        }
    }

    #[test]
    fn exp_is_exact_at_zero_and_vanishes() {
        for set in InstructionSet::available() {
            let mut values = [0.0f32; 64];
            values[..5].copy_from_slice(&[-89.0, -1e4, f32::MIN, f32::NEG_INFINITY, -0.0]);
            f32::dispatch(set, Exp(&mut values));
            assert_eq!(values[..4], [0.0; 4], "{set:?}");
            assert_eq!(values[4..], [1.0; 60], "{set:?}");
        }
    }
}
