//! Gradients of weights, `c = a^T b` with `a` `[k, m]` and `b` `[k, n]`: both factors are read down
//! their columns.
//!
//! The sum over `k`, all rows of a batch, is long, and the result small. So blocks of the result are
//! large, and each packs its part of some rows first, as tiles that are read from one end to the
//! other. Where there are few blocks, their sums are cut along `k` as well, by shape alone, and added
//! in order. Within the rows that are packed together an element is one chain of fused additions:
//! AVX2 and AVX-512 give the same bits. The module [`gemm`](super) says why.

use super::{ENOUGH_BLOCKS, OutMatrix, room};
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::cpu::{InstructionSet, prefetch, reduce};
use crate::tiles::microkernel::{RegisterBlock, StoreMode};
use crate::tiles::workers::{for_each_number, for_each_task};
use std::ops::Range;

/// Most rows and columns of a block of the result.
const BLOCK: usize = 256;
/// Most rows of both factors that are copied together.
const DEPTH: usize = 128;
/// Rows worth a cut along `k`.
const WORTH_A_CUT: usize = 256;
/// Elements of the result that a task adds the later sums to.
const ADDED: usize = 1 << 14;
/// Vectors of columns in a tile.
const VECTORS: usize = 2;

/// Part `i` of `count` nearly equal ones.
fn part(whole: Range<usize>, count: usize, i: usize) -> Range<usize> {
    whole.start + whole.len() * i / count..whole.start + whole.len() * (i + 1) / count
}

/// Writes the product to `c`, or adds it.
///
/// # Safety
/// `a`, `b` and `c` have these sizes, `c` has been written if it is added to, and nothing else uses it meanwhile.
pub(super) unsafe fn multiply<T: Number>(c: OutMatrix<T>, adds: bool, a: &[T], b: &[T], [m, k, n]: [usize; 3]) {
    let (down, across) = (m.div_ceil(BLOCK), n.div_ceil(BLOCK));
    let blocks = down * across;
    let along = ENOUGH_BLOCKS.div_ceil(blocks.max(1)).min(k.div_ceil(WORTH_A_CUT)).max(1);
    // the sums of the first rows go to `c`, the others here
    let mut later = Vec::new();
    let later_sums = OutMatrix { start: room(&mut later, (along - 1) * m * n), columns: n };
    for_each_number(along * blocks, &|t| {
        let (cut, i, j) = (t / blocks, t % blocks / across, t % across);
        let (rows, columns) = (part(0..m, down, i), part(0..n, across, j));
        let a = FactorColumns { factor: a, width: m, columns: rows.clone() };
        let b = FactorColumns { factor: b, width: n, columns: columns.clone() };
        let (sums, stride) = T::dispatch(InstructionSet::current(), PanelBlock { a, b, depth: part(0..k, along, cut) });
        for (row, sums) in rows.zip(sums.chunks(stride)) {
            let (columns, sums) = (columns.clone(), &sums[..columns.len()]);
            // SAFETY: this row of the block lies in its matrix and is this task's alone; what is added to has been written.
            unsafe {
                match cut {
                    0 if adds => reduce::add(c.piece(row, columns), sums),
                    0 => c.copy_piece(row, columns, sums),
                    _ => later_sums.copy_piece((cut - 1) * m + row, columns, sums),
                }
            }
        }
    });
    // SAFETY: the tasks have written all of both.
    let (c, later) = unsafe {
        later.set_len((along - 1) * m * n);
        (std::slice::from_raw_parts_mut(c.start, m * n), later)
    };
    if along > 1 {
        for_each_task(c.chunks_mut(ADDED), |i, c| {
            later.chunks_exact(m * n).for_each(|sums| reduce::add(c, &sums[i * ADDED..][..c.len()]));
        });
    }
}

/// Some columns of a factor.
struct FactorColumns<'a, T> {
    factor: &'a [T],
    /// Of the factor's rows.
    width: usize,
    columns: Range<usize>,
}

/// One block of the result for some rows of the factors; gives the sums, and how far apart their rows are.
struct PanelBlock<'a, T> {
    a: FactorColumns<'a, T>,
    b: FactorColumns<'a, T>,
    depth: Range<usize>,
}

impl<T: Number> SimdKernel<T> for PanelBlock<'_, T> {
    type Output = (Vec<T>, usize);

    fn run<L: Lanes<Number = T>>(self, lanes: L) -> (Vec<T>, usize) {
        let PanelBlock { a, b, depth } = self;
        let stride = b.columns.len().next_multiple_of(VECTORS * L::COUNT);
        let mut sums = vec![T::ZERO; a.columns.len().next_multiple_of(L::TILE_ROWS) * stride];
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let panels = depth.len().div_ceil(DEPTH);
        for panel in 0..panels {
            let rows = part(depth.clone(), panels, panel);
            lanes.run(PackPanel { to: &mut left, from: &a, rows: rows.clone(), side: PanelSide::Left });
            lanes.run(PackPanel { to: &mut right, from: &b, rows: rows.clone(), side: PanelSide::Right });
            lanes.run(PanelProduct { left: &left, right: &right, depth: rows.len(), sums: &mut sums, stride });
        }
        (sums, stride)
    }
}

/// Adds a product of tiles, of `left` `[tiles, depth, TILE_ROWS]` and `right` `[tiles, depth, VECTORS COUNT]`, to the sums.
struct PanelProduct<'a, T> {
    left: &'a [T],
    right: &'a [T],
    depth: usize,
    sums: &'a mut [T],
    stride: usize,
}

impl<T: Number> SimdKernel<T> for PanelProduct<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let PanelProduct { left, right, depth, sums, stride } = self;
        let (rows, columns) = (L::TILE_ROWS, VECTORS * L::COUNT);
        for (j, right) in right.chunks_exact(depth * columns).enumerate() {
            for (i, left) in left.chunks_exact(depth * rows).enumerate() {
                let sums = &mut sums[i * rows * stride + j * columns..];
                assert!(sums.len() >= (rows - 1) * stride + columns);
                // SAFETY: the factors are tiles of this depth, and the sums have room for the result.
                unsafe {
                    match rows {
                        6 => add_tile::<L, 6>(lanes, [left.as_ptr(), right.as_ptr()], depth, sums.as_mut_ptr(), stride),
                        12 => {
                            add_tile::<L, 12>(lanes, [left.as_ptr(), right.as_ptr()], depth, sums.as_mut_ptr(), stride)
                        }
                        _ => unreachable!("tiles have 6 or 12 rows"),
                    }
                }
            }
        }
    }
}

/// Adds the product of two tiles, held in registers while the rows of the factors run, to the sums.
///
/// # Safety
/// The factors are `[depth, M]` and `[depth, VECTORS COUNT]`; `M` rows of so many sums, `stride` apart, can be written.
#[inline(always)]
unsafe fn add_tile<L: Lanes, const M: usize>(
    lanes: L,
    [mut left, mut right]: [*const L::Number; 2],
    depth: usize,
    sums: *mut L::Number,
    stride: usize,
) {
    let mut tile = RegisterBlock::<L, M, VECTORS>::zeros(lanes);
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..depth {
            tile.add(left, 1, right);
            (left, right) = (left.add(M), right.add(VECTORS * L::COUNT));
        }
        tile.store(sums, stride, StoreMode::Accumulate);
    }
}

/// Copies the columns of some rows to tiles, `[tiles, rows, tile]`; the last is filled up with zeros.
struct PackPanel<'a, T> {
    to: &'a mut Vec<T>,
    from: &'a FactorColumns<'a, T>,
    rows: Range<usize>,
    side: PanelSide,
}

/// Which factor it is, and so how wide its tiles are.
#[derive(Clone, Copy)]
enum PanelSide {
    Left,
    Right,
}

impl<T: Number> SimdKernel<T> for PackPanel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, _: L) {
        // two calls, in each of which the compiler knows the width
        match self.side {
            PanelSide::Left => self.copy(L::TILE_ROWS),
            PanelSide::Right => self.copy(VECTORS * L::COUNT),
        }
    }
}

impl<T: Number> PackPanel<'_, T> {
    #[inline(always)]
    fn copy(self, tile: usize) {
        /// Rows taken together, so that a few cache lines at least are written one after the other.
        const ROWS: usize = 8;
        let PackPanel { to, from: FactorColumns { factor, width, columns }, rows, .. } = self;
        let depth = rows.len();
        to.resize(columns.len().div_ceil(tile) * depth * tile, T::ZERO);
        for first in (0..depth).step_by(ROWS) {
            for (i, to) in to.chunks_exact_mut(depth * tile).enumerate() {
                let (start, length) = (columns.start + i * tile, tile.min(columns.len() - i * tile));
                let from = (first..depth.min(first + ROWS)).map(|row| &factor[(rows.start + row) * width + start..]);
                for (to, from) in to[first * tile..].chunks_exact_mut(tile).zip(from) {
                    if length == tile {
                        // each row may lie in another page, where the processor does not foresee what is read
                        prefetch(from.as_ptr().wrapping_add(ROWS * width));
                        to.copy_from_slice(&from[..tile]);
                    } else {
                        to[..length].copy_from_slice(&from[..length]);
                        to[length..].fill(T::ZERO);
                    }
                }
            }
        }
    }
}
