//! Tiles of `bf16` by plain Rust: their numbers become `f32` again.

use super::{BLOCK, DEPTH, SIDE, Tile, TileUnit};
use crate::cpu::Number;
use crate::cpu::lanes::{self, Lanes, SimdKernel};
use std::array::from_fn;

#[derive(Clone, Copy)]
pub(super) struct Portable;

fn pair(first: f32, second: f32) -> u32 {
    u32::from(first.to_bf16()) | u32::from(second.to_bf16()) << 16
}

impl TileUnit for Portable {
    unsafe fn round_rows(self, from: *const f32, stride: usize, to: &mut Tile) {
        for (i, row) in to.0.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let from: &[f32; DEPTH] = unsafe { &*from.add(i * stride).cast() };
            *row = from_fn(|p| pair(from[2 * p], from[2 * p + 1]));
        }
    }

    unsafe fn round_columns(self, from: *const f32, stride: usize, to: &mut Tile) {
        for (p, row) in to.0.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let [first, second]: [&[f32; SIDE]; 2] =
                [2 * p, 2 * p + 1].map(|i| unsafe { &*from.add(i * stride).cast() });
            *row = from_fn(|column| pair(first[column], second[column]));
        }
    }

    fn transpose(self, tile: &mut Tile) {
        let from = tile.0;
        tile.0 = from_fn(|i| from_fn(|j| from[j][i]));
    }

    unsafe fn multiply(
        self,
        left: [*const Tile; 2],
        right: [*const Tile; 2],
        depth: usize,
        c: *mut f32,
        stride: usize,
        adds: bool,
    ) {
        for block in 0..4 {
            let (i, j) = (block / 2, block % 2);
            // SAFETY: the caller's promise.
            unsafe {
                let tiles = |of: *const Tile| std::slice::from_raw_parts(of, depth);
                let mut sums = [[0.0; SIDE]; SIDE];
                lanes::run(TileProduct { left: tiles(left[i]), right: tiles(right[j]), sums: &mut sums });
                for (row, sums) in sums.iter().enumerate() {
                    let c: &mut [f32; SIDE] = &mut *c.add((i * SIDE + row) * stride + j * SIDE).cast();
                    *c = if adds { from_fn(|column| c[column] + sums[column]) } else { *sums };
                }
            }
        }
        const { assert!(BLOCK == 2 * SIDE) };
    }
}

/// Adds the products of tiles to the sums.
struct TileProduct<'a> {
    left: &'a [Tile],
    right: &'a [Tile],
    sums: &'a mut [[f32; SIDE]; SIDE],
}

impl SimdKernel<f32> for TileProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = f32>>(self, _: L) {
        let first = |pair: u32| f32::from_bits(pair << 16);
        let second = |pair: u32| f32::from_bits(pair & 0xffff_0000);
        for (left, right) in self.left.iter().zip(self.right) {
            for (sums, left) in self.sums.iter_mut().zip(&left.0) {
                for (a, right) in left.iter().zip(&right.0) {
                    for (sum, b) in sums.iter_mut().zip(right) {
                        *sum = second(*a).mul_add(second(*b), first(*a).mul_add(first(*b), *sum));
                    }
                }
            }
        }
    }
}
