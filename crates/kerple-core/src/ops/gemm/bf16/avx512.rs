//! Tiles of `bf16` by AVX512-BF16.

use super::{SIDE, Tile, TileUnit};
use crate::cpu::Bf16Unit;
use std::arch::x86_64::*;
use std::mem::transmute;

/// Proof of AVX512-BF16, and of AVX-512 F and BW.
#[derive(Clone, Copy)]
pub(super) struct Avx512Bf16(());

impl Avx512Bf16 {
    pub(super) fn detect() -> Option<Self> {
        (Bf16Unit::detected() >= Bf16Unit::Avx512Bf16).then_some(Avx512Bf16(()))
    }
}

impl TileUnit for Avx512Bf16 {
    #[inline(always)]
    unsafe fn round_rows(self, from: *const f32, stride: usize, to: &mut Tile) {
        // SAFETY: the caller's promise; the token proves the instructions.
        unsafe { round_rows(from, stride, to) }
    }

    #[inline(always)]
    unsafe fn round_columns(self, from: *const f32, stride: usize, to: &mut Tile) {
        // SAFETY: as above.
        unsafe { round_columns(from, stride, to) }
    }

    #[inline(always)]
    fn transpose(self, tile: &mut Tile) {
        // SAFETY: the token proves the instructions.
        unsafe { transpose(tile) }
    }

    #[inline(always)]
    unsafe fn multiply(
        self,
        left: [*const Tile; 2],
        right: [*const Tile; 2],
        depth: usize,
        c: *mut f32,
        stride: usize,
        adds: bool,
    ) {
        for (half, left) in left.into_iter().enumerate() {
            for row in [0, ROWS] {
                // SAFETY: the caller's promise; the token proves the instructions.
                unsafe { multiply(left, row, right, depth, c.add((half * SIDE + row) * stride), stride, adds) }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round_rows(from: *const f32, stride: usize, to: &mut Tile) {
    for (i, row) in to.0.iter_mut().enumerate() {
        // SAFETY: the caller's promise, and a row has 16 pairs.
        unsafe {
            let from = from.add(i * stride);
            let pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(SIDE)), _mm512_loadu_ps(from));
            _mm512_store_si512(row.as_mut_ptr().cast(), transmute::<__m512bh, __m512i>(pairs));
        }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round_columns(from: *const f32, stride: usize, to: &mut Tile) {
    for (p, row) in to.0.iter_mut().enumerate() {
        // SAFETY: the caller's promise, and a row has 16 pairs.
        unsafe {
            let [first, second] = [2 * p, 2 * p + 1].map(|i| {
                let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from.add(i * stride)));
                _mm512_cvtepu16_epi32(transmute::<__m256bh, __m256i>(rounded))
            });
            let pairs = _mm512_or_si512(first, _mm512_slli_epi32::<16>(second));
            _mm512_store_si512(row.as_mut_ptr().cast(), pairs);
        }
    }
}

/// Pieces of rows are exchanged four times: neighbours of 1, 2, 4 and 8 columns.
#[target_feature(enable = "avx512f")]
fn transpose(tile: &mut Tile) {
    // SAFETY: a tile is 16 vectors, aligned.
    let rows: &mut [__m512i; SIDE] = unsafe { &mut *tile.0.as_mut_ptr().cast() };
    let mut one = *rows;
    for i in (0..SIDE).step_by(2) {
        one[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        one[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // of rows 4i to 4i + 3, a vector for each column of every group of four
    let mut four = one;
    for i in (0..SIDE).step_by(4) {
        four[i] = _mm512_unpacklo_epi64(one[i], one[i + 2]);
        four[i + 1] = _mm512_unpackhi_epi64(one[i], one[i + 2]);
        four[i + 2] = _mm512_unpacklo_epi64(one[i + 1], one[i + 3]);
        four[i + 3] = _mm512_unpackhi_epi64(one[i + 1], one[i + 3]);
    }
    for column in 0..4 {
        let [a, b, c, d] = [0, 4, 8, 12].map(|i| four[i + column]);
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
        let (even_below, odd_below) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
        rows[column] = _mm512_shuffle_i32x4::<0x88>(even, even_below);
        rows[column + 4] = _mm512_shuffle_i32x4::<0x88>(odd, odd_below);
        rows[column + 8] = _mm512_shuffle_i32x4::<0xdd>(even, even_below);
        rows[column + 12] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_below);
    }
}

/// Rows of sums that are held in registers, of two vectors each.
const ROWS: usize = 8;

/// Some rows of a left strip, from `row` on, with two right ones.
///
/// # Safety
/// As [`TileUnit::multiply`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply(
    left: *const Tile,
    row: usize,
    right: [*const Tile; 2],
    depth: usize,
    c: *mut f32,
    stride: usize,
    adds: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        for at in 0..depth {
            let (left, right) = (&(&*left.add(at)).0, right.map(|right| &(&*right.add(at)).0));
            for pair in 0..SIDE {
                let right =
                    right.map(|right| transmute::<__m512i, __m512bh>(_mm512_load_si512(right[pair].as_ptr().cast())));
                for (i, sums) in sums.iter_mut().enumerate() {
                    let left = transmute::<__m512i, __m512bh>(_mm512_set1_epi32(left[row + i][pair] as i32));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = _mm512_dpbf16_ps(*sum, left, right);
                    }
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                let c = c.add(i * stride + j * SIDE);
                let sum = if adds { _mm512_add_ps(_mm512_loadu_ps(c), sum) } else { sum };
                _mm512_storeu_ps(c, sum);
            }
        }
    }
}
