//! 8 f32 at a time, AVX2 with fused multiply-add.

use super::{Kernel, Lanes, intrinsics};
use std::arch::x86_64::*;

/// Proof that AVX2 and FMA are there.
#[derive(Clone, Copy)]
pub(in crate::attention::tiled) struct Avx2(());

impl Avx2 {
    pub(in crate::attention::tiled) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }
}

#[target_feature(enable = "avx2,fma")]
fn enabled<K: Kernel<f32>>(lanes: Avx2, kernel: K) -> K::Output {
    kernel.run(lanes)
}

impl Lanes for Avx2 {
    type Real = f32;
    type Vector = __m256;
    const COUNT: usize = 8;
    const BLOCK_VECTORS: usize = 2;

    #[inline]
    fn run<K: Kernel<f32>>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the instructions.
        unsafe { enabled(self, kernel) }
    }

    intrinsics!(_mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_fmadd_ps
        _mm256_max_ps to_bits _mm256_castps_si256 from_bits _mm256_castsi256_ps shift _mm256_slli_epi32
        add_bits _mm256_add_epi32);

    #[inline(always)]
    fn sum(self, vector: Self::Vector) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
}
