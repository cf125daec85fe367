//! One block of a product by one thread, on the kernels of the `gemm` crate.
//!
//! The crate takes the widest instruction set of the processor, once and for all. Where [`cpu::limit`](crate::cpu::limit)
//! asks for a narrower one, its parts are called as it would call them there. `f64`, which is for tests, is never limited.

use crate::Number;
use crate::cpu::InstructionSet;
use std::any::TypeId;

/// A matrix to read: element `(row, column)` is at `start + row * row_stride + column * column_stride`.
#[derive(Clone, Copy)]
pub(super) struct GemmFactor<T> {
    pub(super) start: *const T,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

/// A row-major block to write.
#[derive(Clone, Copy)]
pub(super) struct OutBlock<T> {
    pub(super) start: *mut T,
    pub(super) row_stride: usize,
    /// Whether the product is added to what is there.
    pub(super) accumulate: bool,
}

/// Writes `a b` to `c`; `a` is `[m, k]`, `b` `[k, n]` and `c` `[m, n]`.
///
/// # Safety
/// Every element of the three matrices can be read and, of `c`, written; nothing else uses `c` meanwhile, and it has been
/// written if it is added to.
pub(super) unsafe fn multiply<T: Number>([m, k, n]: [usize; 3], c: OutBlock<T>, a: GemmFactor<T>, b: GemmFactor<T>) {
    let OutBlock { start, row_stride, accumulate } = c;
    let set = InstructionSet::current();
    if set < InstructionSet::detected() && TypeId::of::<T>() == TypeId::of::<f32>() {
        let single = |factor: GemmFactor<T>| GemmFactor {
            start: factor.start.cast(),
            row_stride: factor.row_stride,
            column_stride: factor.column_stride,
        };
        let c = OutBlock { start: start.cast(), row_stride, accumulate };
        // SAFETY: the caller's promise; T is f32.
        return unsafe { limited::multiply(set, [m, k, n], c, single(a), single(b)) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            start,
            1,
            row_stride as isize,
            accumulate,
            a.start,
            a.column_stride as isize,
            a.row_stride as isize,
            b.start,
            b.column_stride as isize,
            b.row_stride as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

mod limited {
    use super::{GemmFactor, InstructionSet, OutBlock};
    use gemm_common::gemm::gemm_basic_generic;
    use gemm_common::simd::Scalar;
    use gemm_f32::microkernel;

    /// As [`super::multiply`], with this instruction set, which is not AVX-512.
    ///
    /// # Safety
    /// As [`super::multiply`].
    pub(super) unsafe fn multiply(
        set: InstructionSet,
        [m, k, n]: [usize; 3],
        c: OutBlock<f32>,
        a: GemmFactor<f32>,
        b: GemmFactor<f32>,
    ) {
        /// Calls the crate with the kernels of a module, whose vectors hold this many numbers. It wants columns
        /// contiguous, so it is given the transposed product.
        macro_rules! with {
            ($module:ident $numbers:literal $simd:expr, $mul_add:expr) => {{
                use microkernel::$module::f32::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
                // SAFETY: the caller's promise; the proof of the instructions was made from what the processor has.
                unsafe {
                    gemm_basic_generic::<_, f32, $numbers, { MR_DIV_N * $numbers }, NR, MR_DIV_N, H_M, H_N>(
                        $simd,
                        n,
                        m,
                        k,
                        c.start,
                        c.row_stride as isize,
                        1,
                        c.accumulate,
                        b.start,
                        b.row_stride as isize,
                        b.column_stride as isize,
                        a.start,
                        a.row_stride as isize,
                        a.column_stride as isize,
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        $mul_add,
                        &UKR,
                        &H_UKR,
                        false,
                        gemm_common::Parallelism::None,
                    )
                }
            }};
        }
        #[cfg(target_arch = "x86_64")]
        if set == InstructionSet::Avx2
            && let Some(simd) = <gemm_common::simd::V3 as gemm_common::simd::MixedSimd<f32, f32, f32, f32>>::try_new()
        {
            return with!(fma 8 simd, |a, b, c| a * b + c);
        }
        let _ = set;
        with!(scalar 1 Scalar, |a, b, c| a * b + c)
    }
}
