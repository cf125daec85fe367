//! 8 f32 at a time, AVX2 with fused multiply-add.

use super::lanes::{Arithmetic, Lanes, SimdKernel, Single, arithmetic};
use super::{InstructionSet, elementary};
use std::arch::x86_64::*;

/// Proof that AVX2 and FMA are there.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (InstructionSet::detected() >= InstructionSet::Avx2).then_some(Avx2(()))
    }
}

#[target_feature(enable = "avx2,fma")]
fn enabled<K: SimdKernel<f32>>(lanes: Avx2, kernel: K) -> K::Output {
    kernel.run(lanes)
}

arithmetic!(Avx2 __m256: _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_fmadd_ps _mm256_max_ps _mm256_min_ps
    to_bits _mm256_castps_si256 from_bits _mm256_castsi256_ps shift _mm256_slli_epi32);

/// [`Lanes::transpose`] of 8 x 8.
///
/// # Safety
/// As there, on a processor with AVX2.
#[inline(always)]
pub(super) unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize, factor: f32) {
    for half in [0, 4] {
        // SAFETY: the caller's promise, for four of the columns.
        unsafe {
            // rows r and r + 4 in the halves of a vector, straight from memory: no shuffling across halves
            let row = |r: usize| from.add(r * from_stride + half);
            let mut rows = [_mm256_setzero_ps(); 4];
            for (r, both) in rows.iter_mut().enumerate() {
                let low = _mm256_castps128_ps256(_mm_loadu_ps(row(r)));
                *both = _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(row(r + 4)));
            }
            let pairs = [
                _mm256_unpacklo_ps(rows[0], rows[1]),
                _mm256_unpacklo_ps(rows[2], rows[3]),
                _mm256_unpackhi_ps(rows[0], rows[1]),
                _mm256_unpackhi_ps(rows[2], rows[3]),
            ];
            let columns = [
                _mm256_shuffle_ps::<0x44>(pairs[0], pairs[1]),
                _mm256_shuffle_ps::<0xee>(pairs[0], pairs[1]),
                _mm256_shuffle_ps::<0x44>(pairs[2], pairs[3]),
                _mm256_shuffle_ps::<0xee>(pairs[2], pairs[3]),
            ];
            for (c, column) in columns.into_iter().enumerate() {
                _mm256_storeu_ps(to.add((half + c) * to_stride), _mm256_mul_ps(column, _mm256_set1_ps(factor)));
            }
        }
    }
}

impl Lanes for Avx2 {
    const COUNT: usize = 8;
    const SIDE: usize = 8;
    const BLOCK_ROWS: &[usize] = &[8, 6];
    const TILE_ROWS: usize = 6;

    #[inline]
    fn run<K: SimdKernel<f32>>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the instructions.
        unsafe { enabled(self, kernel) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller's promise; the token proves the instructions.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m256 {
        // SAFETY: as for `load`.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())), 16)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: __m256) {
        // SAFETY: as for `load`.
        unsafe { _mm256_storeu_ps(to, vector) }
    }
    #[inline(always)]
    fn exp(self, x: __m256) -> __m256 {
        elementary::exp(self, x)
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize, factor: f32) {
        // SAFETY: the caller's promise; the token proves the instructions.
        unsafe { transpose(from, from_stride, to, to_stride, factor) }
    }
    #[inline(always)]
    fn sum(self, vector: __m256) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn largest(self, vector: __m256) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe {
            if _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(vector, vector)) != 0 {
                return f32::NAN;
            }
            let four = _mm_max_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two))).max(f32::MIN)
        }
    }
}
