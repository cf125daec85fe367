//! 16 f32 at a time, AVX-512.

use super::lanes::{Arithmetic, Lanes, SimdKernel, Single, arithmetic};
use super::{InstructionSet, avx2, elementary};
use std::arch::x86_64::*;

/// Proof that AVX-512 F is there.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        (InstructionSet::detected() >= InstructionSet::Avx512).then_some(Avx512(()))
    }
}

#[target_feature(enable = "avx512f")]
fn enabled<K: SimdKernel<f32>>(lanes: Avx512, kernel: K) -> K::Output {
    kernel.run(lanes)
}

arithmetic!(Avx512 __m512: _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_fmadd_ps _mm512_max_ps
    _mm512_min_ps to_bits _mm512_castps_si512 from_bits _mm512_castsi512_ps shift _mm512_slli_epi32);

impl Lanes for Avx512 {
    const COUNT: usize = 16;
    const SIDE: usize = 8;
    const BLOCK_ROWS: &[usize] = &[8, 8, 8, 6];
    const TILE_ROWS: usize = 12;

    #[inline]
    fn run<K: SimdKernel<f32>>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the instructions.
        unsafe { enabled(self, kernel) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller's promise; the token proves the instructions.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: as for `load`.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())), 16)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m512) {
        // SAFETY: as for `load`.
        unsafe { _mm512_storeu_ps(to, vector) }
    }
    #[inline(always)]
    fn exp(self, x: __m512) -> __m512 {
        elementary::exp(self, x)
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize, factor: f32) {
        // SAFETY: the caller's promise; the token proves the instructions, AVX2 among them.
        unsafe { avx2::transpose(from, from_stride, to, to_stride, factor) }
    }
    #[inline(always)]
    fn sum(self, vector: __m512) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_reduce_add_ps(vector) }
    }
    #[inline(always)]
    fn largest(self, vector: __m512) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe {
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(vector, vector) != 0;
            if is_nan { f32::NAN } else { _mm512_reduce_max_ps(vector).max(f32::MIN) }
        }
    }
}
