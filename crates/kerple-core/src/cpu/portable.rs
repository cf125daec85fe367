//! Plain Rust: four numbers at a time, for f64 and for CPUs without the others, and single f32.

use super::lanes::{Arithmetic, Dispatch, Lanes, SimdKernel, Single};
use crate::cpu::Number;
use std::array::from_fn;
use std::marker::PhantomData;

/// Whether the target multiplies and adds in one instruction.
const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// Four numbers. Needs no proof.
#[derive(Clone, Copy)]
pub(crate) struct Portable<T>(pub(crate) PhantomData<T>);

impl<T: Number> Arithmetic for Portable<T> {
    type Number = T;
    type Vector = [T; 4];

    #[inline(always)]
    fn splat(self, value: T) -> [T; 4] {
        [value; 4]
    }
    #[inline(always)]
    fn add(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        from_fn(|i| a[i] * b[i])
    }
    /// Rounded once where the target has such an instruction, else twice: rounding once would be a slow library function.
    #[inline(always)]
    fn mul_add(self, a: [T; 4], b: [T; 4], c: [T; 4]) -> [T; 4] {
        from_fn(|i| if FUSED { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] })
    }
    #[inline(always)]
    fn max(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
}

impl Single for Portable<f32> {
    #[inline(always)]
    fn low_bits_to_exponent(self, vector: [f32; 4]) -> [f32; 4] {
        from_fn(|i| f32::from_bits(vector[i].to_bits() << 23))
    }
}

impl<T: Number> Lanes for Portable<T> {
    const COUNT: usize = 4;
    const SIDE: usize = 4;
    const BLOCK_ROWS: &[usize] = &[6, 6];
    const TILE_ROWS: usize = 6;

    #[inline]
    fn run<K: SimdKernel<T>>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const T) -> [T; 4] {
        // SAFETY: the caller's promise; any alignment of T serves an array of it.
        unsafe { *from.cast() }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> [T; 4] {
        // SAFETY: as for `load`.
        from_fn(|i| T::from_bf16(unsafe { *from.add(i) }))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut T, vector: [T; 4]) {
        // SAFETY: as for `load`.
        unsafe { *to.cast() = vector }
    }
    #[inline(always)]
    fn exp(self, x: [T; 4]) -> [T; 4] {
        <T as Dispatch>::portable_exp(x)
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const T, from_stride: usize, to: *mut T, to_stride: usize, factor: T) {
        for (r, c) in (0..4).flat_map(|r| (0..4).map(move |c| (r, c))) {
            // SAFETY: the caller's promise.
            unsafe { *to.add(c * to_stride + r) = factor * *from.add(r * from_stride + c) };
        }
    }
    #[inline(always)]
    fn sum(self, vector: [T; 4]) -> T {
        (vector[0] + vector[2]) + (vector[1] + vector[3])
    }
}

/// One f32, whose `mul_add` is rounded once whatever the processor: in a `vectorized!` body the compiler makes vectors of it.
#[derive(Clone, Copy)]
pub(crate) struct One;

impl Arithmetic for One {
    type Number = f32;
    type Vector = f32;

    #[inline(always)]
    fn splat(self, value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        f32::mul_add(a, b, c)
    }
    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
}

impl Single for One {
    #[inline(always)]
    fn low_bits_to_exponent(self, vector: f32) -> f32 {
        f32::from_bits(vector.to_bits() << 23)
    }
}
