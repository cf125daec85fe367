//! Vectors of numbers, one implementation per instruction set, and the way kernels are compiled for each.
//!
//! A value of a [`Lanes`] type is proof that the CPU has its instructions, so arithmetic is safe to call. A [`SimdKernel`] is
//! written once, generic over the lanes; [`Lanes::run`] compiles it with the instructions enabled, provided that its
//! `run` and everything below it is `#[inline(always)]`.

use super::InstructionSet;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use super::{elementary, portable::Portable};
use crate::cpu::Number;
use std::array::from_fn;
use std::marker::PhantomData;

/// Arithmetic on numbers side by side, one or several.
pub trait Arithmetic: Copy + Send + Sync {
    /// Of what there are several.
    type Number: Number;
    /// The numbers.
    type Vector: Copy;

    fn splat(self, value: Self::Number) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a b + c`, rounded once if the processor can do that by one instruction.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `b` if either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `b` if either is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
}

/// Arithmetic on f32 and their bits.
pub trait Single: Arithmetic<Number = f32> {
    /// The bits shifted left by 23, where the exponent of an f32 is.
    fn low_bits_to_exponent(self, vector: Self::Vector) -> Self::Vector;
}

/// Some numbers handled by one instruction.
pub trait Lanes: Arithmetic {
    /// Numbers in a vector.
    const COUNT: usize;
    /// Rows of 1, 2, 3, .. vectors that a product's block in registers may have, at most 8: `rows * vectors` sums, enough
    /// to hide their latency, beside `vectors` factors and one more.
    const BLOCK_ROWS: &[usize];
    /// Rows of two vectors in a tile of a product whose factors lie as it reads them.
    const TILE_ROWS: usize;

    /// Rows and columns of the square that [`Lanes::transpose`] turns at once.
    const SIDE: usize;

    /// Runs a kernel compiled for these lanes.
    fn run<K: SimdKernel<Self::Number>>(self, kernel: K) -> K::Output;

    /// # Safety
    /// `COUNT` numbers can be read.
    unsafe fn load(self, from: *const Self::Number) -> Self::Vector;
    /// The numbers of these bits of `bf16`.
    ///
    /// # Safety
    /// `COUNT` of them can be read.
    unsafe fn load_bf16(self, from: *const u16) -> Self::Vector;
    /// # Safety
    /// `COUNT` numbers can be written.
    unsafe fn store(self, to: *mut Self::Number, vector: Self::Vector);
    /// `e^x` as [`Number::exp`], to its bound.
    fn exp(self, x: Self::Vector) -> Self::Vector;
    /// `to[c * to_stride + r] = factor * from[r * from_stride + c]` for `r` and `c` below [`Lanes::SIDE`].
    ///
    /// # Safety
    /// Those elements can be read and written.
    unsafe fn transpose(
        self,
        from: *const Self::Number,
        from_stride: usize,
        to: *mut Self::Number,
        to_stride: usize,
        factor: Self::Number,
    );
    /// The sum of a vector's numbers.
    fn sum(self, vector: Self::Vector) -> Self::Number;
    /// The largest of a vector's numbers, NaN if one of them is.
    #[inline(always)]
    fn largest(self, vector: Self::Vector) -> Self::Number {
        let mut numbers = [Self::Number::LOWEST; 16];
        assert!(Self::COUNT <= numbers.len());
        // SAFETY: `COUNT` numbers fit.
        unsafe { self.store(numbers.as_mut_ptr(), vector) };
        numbers.into_iter().fold(Self::Number::LOWEST, Self::Number::max)
    }
}

/// Code written once for every kind of lanes.
pub trait SimdKernel<T> {
    /// What it returns.
    type Output;
    /// To be `#[inline(always)]`.
    fn run<L: Lanes<Number = T>>(self, lanes: L) -> Self::Output;
}

/// A number type's way to its lanes.
pub trait Dispatch: Sized {
    /// Hands a kernel the lanes of an instruction set, or the portable ones where the CPU or the type has no such lanes.
    fn dispatch<K: SimdKernel<Self>>(set: InstructionSet, kernel: K) -> K::Output;
    /// [`Lanes::exp`] of the portable lanes.
    fn portable_exp(x: [Self; 4]) -> [Self; 4];
}

/// Runs a kernel that is one loop, with all of it compiled for the current instruction set. (Handed to
/// [`Dispatch::dispatch`] by itself it would be compiled for the target's, with a call for every vector.)
pub(crate) fn run<T: Number, K: SimdKernel<T>>(kernel: K) -> K::Output {
    struct Whole<K>(K);
    impl<T, K: SimdKernel<T>> SimdKernel<T> for Whole<K> {
        type Output = K::Output;
        #[inline(always)]
        fn run<L: Lanes<Number = T>>(self, lanes: L) -> K::Output {
            lanes.run(self.0)
        }
    }
    T::dispatch(InstructionSet::current(), Whole(kernel))
}

impl Dispatch for f32 {
    fn dispatch<K: SimdKernel<f32>>(set: InstructionSet, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        match set {
            InstructionSet::Avx512 => {
                if let Some(lanes) = Avx512::detect() {
                    return kernel.run(lanes);
                }
            }
            InstructionSet::Avx2 => {
                if let Some(lanes) = Avx2::detect() {
                    return kernel.run(lanes);
                }
            }
            InstructionSet::Portable => {}
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = set;
        kernel.run(Portable(PhantomData))
    }

    #[inline(always)]
    fn portable_exp(x: [f32; 4]) -> [f32; 4] {
        elementary::exp(Portable(PhantomData), x)
    }
}

impl Dispatch for f64 {
    fn dispatch<K: SimdKernel<f64>>(_: InstructionSet, kernel: K) -> K::Output {
        kernel.run(Portable(PhantomData))
    }

    #[inline(always)]
    fn portable_exp(x: [f64; 4]) -> [f64; 4] {
        from_fn(|i| x[i].exp())
    }
}

/// [`Arithmetic`] and [`Single`] by one instruction each.
#[cfg(target_arch = "x86_64")]
macro_rules! arithmetic {
    ($lanes:ident $vector:ident: $splat:ident $add:ident $sub:ident $mul:ident $mul_add:ident $max:ident $min:ident
     to_bits $to_bits:ident from_bits $from_bits:ident shift $shift:ident) => {
        impl Arithmetic for $lanes {
            type Number = f32;
            type Vector = $vector;

            #[inline(always)]
            fn splat(self, value: f32) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $splat(value) }
            }
            #[inline(always)]
            fn add(self, a: $vector, b: $vector) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $add(a, b) }
            }
            #[inline(always)]
            fn sub(self, a: $vector, b: $vector) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $sub(a, b) }
            }
            #[inline(always)]
            fn mul(self, a: $vector, b: $vector) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $mul(a, b) }
            }
            #[inline(always)]
            fn mul_add(self, a: $vector, b: $vector, c: $vector) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $mul_add(a, b, c) }
            }
            #[inline(always)]
            fn max(self, a: $vector, b: $vector) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $max(a, b) }
            }
            #[inline(always)]
            fn min(self, a: $vector, b: $vector) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $min(a, b) }
            }
        }

        impl Single for $lanes {
            #[inline(always)]
            fn low_bits_to_exponent(self, vector: $vector) -> $vector {
                // SAFETY: the token proves the instructions.
                unsafe { $from_bits($shift::<23>($to_bits(vector))) }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use arithmetic;
