//! 16 f32 at a time, AVX-512.

use super::{Kernel, Lanes, intrinsics};
use std::arch::x86_64::*;

/// Proof that AVX-512 F is there.
#[derive(Clone, Copy)]
pub(in crate::attention::tiled) struct Avx512(());

impl Avx512 {
    pub(in crate::attention::tiled) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Avx512(()))
    }
}

#[target_feature(enable = "avx512f")]
fn enabled<K: Kernel<f32>>(lanes: Avx512, kernel: K) -> K::Output {
    kernel.run(lanes)
}

impl Lanes for Avx512 {
    type Real = f32;
    type Vector = __m512;
    const COUNT: usize = 16;
    const BLOCK_VECTORS: usize = 4;

    #[inline]
    fn run<K: Kernel<f32>>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves the instructions.
        unsafe { enabled(self, kernel) }
    }

    intrinsics!(_mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_fmadd_ps
        _mm512_max_ps to_bits _mm512_castps_si512 from_bits _mm512_castsi512_ps shift _mm512_slli_epi32
        add_bits _mm512_add_epi32);

    #[inline(always)]
    fn sum(self, vector: Self::Vector) -> f32 {
        // SAFETY: the token proves the instructions.
        unsafe { _mm512_reduce_add_ps(vector) }
    }
}
