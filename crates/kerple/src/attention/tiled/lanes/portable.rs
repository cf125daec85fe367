//! Four numbers at a time in plain Rust, for f64 and for CPUs without the others.

use super::{EXP2, Kernel, LOWEST_EXPONENT, Lanes, ROUND};
use crate::attention::Real;
use std::array::from_fn;
use std::marker::PhantomData;

/// Needs no proof.
#[derive(Clone, Copy)]
pub(in crate::attention::tiled) struct Portable<R>(pub(in crate::attention::tiled) PhantomData<R>);

/// The exponential of the portable lanes.
pub trait LaneExp {
    /// `e^x` within the bound of [`Lanes::exp`].
    fn lane_exp(self) -> Self;
}

impl LaneExp for f64 {
    #[inline(always)]
    fn lane_exp(self) -> f64 {
        self.exp()
    }
}

impl LaneExp for f32 {
    #[inline(always)]
    fn lane_exp(self) -> f32 {
        let y = self * std::f32::consts::LOG2_E;
        let y = if LOWEST_EXPONENT > y { LOWEST_EXPONENT } else { y }; // NaN stays NaN
        let shifted = y + ROUND;
        let f = y - (shifted - ROUND);
        let p = EXP2.iter().rev().fold(0.0, |p, &c| p * f + c) * f + 1.0;
        f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
    }
}

impl<R: Real> Lanes for Portable<R> {
    type Real = R;
    type Vector = [R; 4];
    const COUNT: usize = 4;
    const BLOCK_VECTORS: usize = 2;

    #[inline]
    fn run<K: Kernel<R>>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const R) -> [R; 4] {
        // SAFETY: the caller's promise; any alignment of R serves an array of it.
        unsafe { *from.cast() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut R, vector: [R; 4]) {
        // SAFETY: as for `load`.
        unsafe { *to.cast() = vector }
    }
    #[inline(always)]
    fn splat(self, value: R) -> [R; 4] {
        [value; 4]
    }
    #[inline(always)]
    fn add(self, a: [R; 4], b: [R; 4]) -> [R; 4] {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [R; 4], b: [R; 4]) -> [R; 4] {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [R; 4], b: [R; 4]) -> [R; 4] {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: [R; 4], b: [R; 4], c: [R; 4]) -> [R; 4] {
        from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: [R; 4], b: [R; 4]) -> [R; 4] {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn exp(self, x: [R; 4]) -> [R; 4] {
        x.map(R::lane_exp)
    }
    #[inline(always)]
    fn sum(self, vector: [R; 4]) -> R {
        (vector[0] + vector[2]) + (vector[1] + vector[3])
    }
}
