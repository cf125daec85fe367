//! Products of factors that are rounded to `bf16`, with sums in `f32`.
//!
//! Both factors are rounded and copied once, as tiles of 16 rows or columns by 32 numbers of the sum, which AMX and
//! AVX512-BF16 read alike: pairs of numbers that follow each other in the sum lie next to each other. A block of 32 by 32
//! sums stays in registers from the first number to the last. Without such instructions the same tiles are multiplied as `f32`.
//!
//! The bits depend on the instructions, which add pairs in their own order and take numbers below 1.2e-38 for 0, and on nothing else.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::kernel::OutBlock;
use super::{MatmulShape, OutMatrix, room};
use crate::cpu::Bf16Unit;
use crate::tiles::workers::for_each_number;
use std::ops::Range;

/// Rows of a left tile, columns of a right one, and pairs of numbers of both.
const SIDE: usize = 16;
/// Numbers of the sum in a tile.
const DEPTH: usize = 2 * SIDE;
/// Rows and columns of the sums that are held in registers.
pub(super) const BLOCK: usize = 2 * SIDE;

/// Pairs of `bf16`, the first of a pair in the low half: `[row, pair]` of a left factor, `[pair, column]` of a right one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Tile([[u32; SIDE]; SIDE]);

/// What multiplies tiles. A value of such a type is proof that the instructions are there.
trait TileUnit: Copy + Send + Sync {
    /// Rounds 16 rows, `stride` numbers apart, of 32 numbers each to `[row, pair]`.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn round_rows(self, from: *const f32, stride: usize, to: &mut Tile);

    /// Rounds 32 rows, `stride` numbers apart, of 16 numbers each to `[pair, column]`.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn round_columns(self, from: *const f32, stride: usize, to: &mut Tile);

    /// Turns rows of pairs to columns of pairs.
    fn transpose(self, tile: &mut Tile);

    /// Writes a block of sums, or adds them to what is there: of two left strips, two right ones and `depth` tiles of each.
    /// To be called within [`TileUnit::prepared`].
    ///
    /// # Safety
    /// The tiles can be read, and the block at `c`, whose rows are `stride` numbers apart, can be written and, if it is added to, read.
    unsafe fn multiply(
        self,
        left: [*const Tile; 2],
        right: [*const Tile; 2],
        depth: usize,
        c: *mut f32,
        stride: usize,
        adds: bool,
    );

    /// Does work of this thread that multiplies.
    fn prepared(self, work: impl FnOnce()) {
        work();
    }
}

/// Calls a function of a unit with the one that is in use.
macro_rules! with_unit {
    ($unit:expr, |$name:ident| $body:expr) => {
        match $unit {
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Amx if let Some($name) = amx::Amx::detect() => $body,
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16 if let Some($name) = avx512::Avx512Bf16::detect() => $body,
            _ => {
                let $name = portable::Portable;
                $body
            }
        }
    };
}

/// Two factors, rounded and copied.
pub(super) struct RoundedFactors {
    left: Strips,
    right: Strips,
    unit: Bf16Unit,
}

impl RoundedFactors {
    /// Copies the factors of a product.
    ///
    /// # Panics
    /// If they do not have its sizes.
    pub(super) fn new(unit: Bf16Unit, a: &[f32], b: &[f32], product: MatmulShape) -> RoundedFactors {
        let MatmulShape { m, k, n, a_is_transposed, b_is_transposed, .. } = product;
        assert!(a.len() == m * k && b.len() == k * n, "factors of these sizes");
        let factor = |values, across, sums_in_rows| Factor { values, across, depth: k, sums_in_rows };
        let left = factor(a, m, !a_is_transposed);
        let right = factor(b, n, b_is_transposed);
        with_unit!(unit, |by| RoundedFactors {
            left: left.round(by, Side::Left),
            right: right.round(by, Side::Right),
            unit
        })
    }

    /// Writes the block of the result at these rows and columns, which begin at multiples of [`BLOCK`], to `c`.
    ///
    /// # Safety
    /// The block lies inside the result, `c` has room for it and has been written if the product is added to it, and nothing else uses it
    /// meanwhile.
    pub(super) unsafe fn multiply_block(&self, c: OutBlock<f32>, rows: Range<usize>, columns: Range<usize>) {
        let RoundedFactors { left, right, unit } = self;
        assert!(
            rows.start.is_multiple_of(BLOCK) && columns.start.is_multiple_of(BLOCK),
            "blocks of registers begin here"
        );
        // SAFETY: the caller's promise.
        with_unit!(*unit, |by| by.prepared(|| unsafe { multiply_block(by, left, right, c, rows, columns) }));
    }
}

/// # Safety
/// As [`RoundedFactors::multiply_block`]; the unit is prepared.
unsafe fn multiply_block(
    unit: impl TileUnit,
    left: &Strips,
    right: &Strips,
    c: OutBlock<f32>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let OutBlock { start, row_stride, accumulate } = c;
    let (down, across) = (rows.len().div_ceil(BLOCK), columns.len().div_ceil(BLOCK));
    let one = |i: usize, j: usize| {
        let (i, j) = (i * BLOCK, j * BLOCK);
        let (height, width) = (BLOCK.min(rows.len() - i), BLOCK.min(columns.len() - j));
        let (a, b) = (left.pair(rows.start + i), right.pair(columns.start + j));
        // SAFETY: the caller's promise.
        unsafe {
            let c = start.add(i * row_stride + j);
            if height == BLOCK && width == BLOCK {
                return unit.multiply(a, b, left.depth, c, row_stride, accumulate);
            }
            let mut whole = [0.0f32; BLOCK * BLOCK];
            unit.multiply(a, b, left.depth, whole.as_mut_ptr(), BLOCK, false);
            for (row, sums) in whole.chunks_exact(BLOCK).take(height).enumerate() {
                for (column, sum) in sums[..width].iter().enumerate() {
                    let c = c.add(row * row_stride + column);
                    *c = if accumulate { *c + sum } else { *sum };
                }
            }
        }
    };
    // the strips of the inner loop are read again and again, so they are the fewer ones
    if across <= down {
        (0..down).for_each(|i| (0..across).for_each(|j| one(i, j)));
    } else {
        (0..across).for_each(|j| (0..down).for_each(|i| one(i, j)));
    }
}

/// Which factor it is, and so how its tiles lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A factor before it is copied: `[across, depth]` if sums run along its rows, else `[depth, across]`.
struct Factor<'a> {
    values: &'a [f32],
    across: usize,
    depth: usize,
    sums_in_rows: bool,
}

/// Tiles of a factor, `[strip, depth]`, filled up with zeros.
struct Strips {
    tiles: Vec<Tile>,
    /// Tiles of a strip.
    depth: usize,
}

impl Strips {
    /// The strip at this row or column, and the next one, or itself where it is the last.
    fn pair(&self, at: usize) -> [*const Tile; 2] {
        let (first, strips) = (at / SIDE, self.tiles.len() / self.depth.max(1));
        [first, (first + 1).min(strips.saturating_sub(1))].map(|strip| self.tiles[strip * self.depth..].as_ptr())
    }
}

impl Factor<'_> {
    fn round(&self, unit: impl TileUnit, side: Side) -> Strips {
        let (strips, depth) = (self.across.div_ceil(SIDE), self.depth.div_ceil(DEPTH));
        let mut tiles: Vec<Tile> = Vec::new();
        let to = OutMatrix { start: room(&mut tiles, strips * depth), columns: depth };
        // a task reads whole rows of the factor
        for_each_number(if self.sums_in_rows { strips } else { depth }, &|task| {
            for i in 0..if self.sums_in_rows { depth } else { strips } {
                let (strip, at) = if self.sums_in_rows { (task, i) } else { (i, task) };
                let mut tile = Tile([[0; SIDE]; SIDE]);
                self.round_tile(unit, [strip * SIDE, at * DEPTH], &mut tile);
                if self.sums_in_rows != (side == Side::Left) {
                    unit.transpose(&mut tile);
                }
                // SAFETY: the tile lies in the room, and no other task writes it.
                unsafe { to.at(strip, at).write(tile) };
            }
        });
        // SAFETY: the tasks have written all of them.
        unsafe { tiles.set_len(strips * depth) };
        Strips { tiles, depth }
    }

    /// Rounds the numbers of one tile, which begins here, as they lie in the factor.
    fn round_tile(&self, unit: impl TileUnit, [across, depth]: [usize; 2], to: &mut Tile) {
        let (stride, [row, column], [rows, columns]) = match self.sums_in_rows {
            true => (self.depth, [across, depth], [SIDE, DEPTH]),
            false => (self.across, [depth, across], [DEPTH, SIDE]),
        };
        let from = &self.values[row * stride + column..];
        let (there, width) = ((self.values.len() / stride - row).min(rows), columns.min(stride - column));
        let mut whole = [0.0f32; SIDE * DEPTH];
        let (from, stride) = if there == rows && width == columns {
            assert!(from.len() >= (rows - 1) * stride + columns);
            (from, stride)
        } else {
            for (to, from) in whole.chunks_exact_mut(columns).zip(from.chunks(stride)).take(there) {
                to[..width].copy_from_slice(&from[..width]);
            }
            (&whole[..], columns)
        };
        // SAFETY: the numbers can be read: of whole tiles in the factor, of others in a copy that is filled up.
        unsafe {
            match self.sums_in_rows {
                true => unit.round_rows(from.as_ptr(), stride, to),
                false => unit.round_columns(from.as_ptr(), stride, to),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Out, matmul, matmul_blocks, matmul_then};
    use super::*;
    use crate::ops::testing::{assert_same_at_any_threads, random, single};
    use crate::precision::Precision;
    use proptest::prelude::*;

    /// The product of rounded factors in `f64`, and the sum of the sizes of its terms.
    fn plain(product: MatmulShape, a: &[f32], b: &[f32]) -> Vec<[f64; 2]> {
        let MatmulShape { m, k, n, a_is_transposed, b_is_transposed, .. } = product;
        let rounded = |value: f32| f64::from(Precision::Bf16.round(value));
        let a = |i: usize, l: usize| rounded(if a_is_transposed { a[l * m + i] } else { a[i * k + l] });
        let b = |l: usize, j: usize| rounded(if b_is_transposed { b[j * k + l] } else { b[l * n + j] });
        let element = |i, j| {
            (0..k).map(|l| a(i, l) * b(l, j)).fold([0.0, 0.0], |[sum, size], term: f64| [sum + term, size + term.abs()])
        };
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    fn layouts(m: usize, k: usize, n: usize) -> [MatmulShape; 4] {
        let product = MatmulShape::new(m, k, n).at(Precision::Bf16);
        [product, product.transpose_a(), product.transpose_b(), product.transpose_a().transpose_b()]
    }

    /// All blocks of a product by this unit, added to what is there or not.
    fn by_unit(unit: Bf16Unit, a: &[f32], b: &[f32], product: MatmulShape, c: &mut [f32], accumulate: bool) {
        let MatmulShape { m, n, .. } = product;
        let factors = RoundedFactors::new(unit, a, b, product);
        for i in (0..m).step_by(3 * BLOCK) {
            for j in (0..n).step_by(BLOCK) {
                // SAFETY: the block lies inside of `c`, which holds the result.
                unsafe {
                    let start = c.as_mut_ptr().add(i * n + j);
                    let c = OutBlock { start, row_stride: n, accumulate };
                    factors.multiply_block(c, i..m.min(i + 3 * BLOCK), j..n.min(j + BLOCK));
                }
            }
        }
    }

    fn check(m: usize, k: usize, n: usize, seed: u64) {
        let (a, b, c) =
            (single(&random(m * k, seed)), single(&random(k * n, seed + 1)), single(&random(m * n, seed + 2)));
        for product in layouts(m, k, n) {
            let want = plain(product, &a, &b);
            for unit in Bf16Unit::available() {
                let (mut over, mut sum) = (vec![f32::NAN; m * n], c.clone());
                by_unit(unit, &a, &b, product, &mut over, false);
                by_unit(unit, &a, &b, product, &mut sum, true);
                for (i, [want, size]) in want.iter().enumerate() {
                    // each of k + 1 additions rounds once
                    let bound = 6e-8 * (k + 1) as f64 * (size + f64::from(c[i]).abs());
                    let close = |found: f32, want: f64| (f64::from(found) - want).abs() <= bound;
                    let [over, sum] = [over[i], sum[i]];
                    assert!(
                        close(over, *want) && close(sum, want + f64::from(c[i])),
                        "{unit:?} {product:?} {i}: {over}, {sum}, expected {want}"
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        #[test]
        fn every_unit_multiplies_rounded_factors(m in 1usize..100, k in 0usize..100, n in 1usize..100, seed in 0u64..1000) {
            check(m, k, n, seed);
        }
    }

    #[test]
    fn products_round_their_factors() {
        let (m, k, n) = (200, 70, 300);
        let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
        for product in layouts(m, k, n) {
            let (mut whole, mut beside, mut finished) = (Vec::new(), Vec::new(), Vec::new());
            matmul(Out::Append(&mut whole), &a, &b, product);
            for (found, [want, size]) in whole.iter().zip(plain(product, &a, &b)) {
                assert!((f64::from(*found) - want).abs() <= 6e-8 * (k + 1) as f64 * size);
            }
            matmul_then(Out::Append(&mut finished), Some(&mut beside), &a, &b, product, |row, columns, c, beside| {
                for ((c, beside), column) in c.iter_mut().zip(beside).zip(columns) {
                    *beside = *c;
                    *c = (row * n + column) as f32;
                }
            });
            assert!(beside == whole && finished.iter().enumerate().all(|(i, c)| *c == i as f32), "{product:?}");
            let mut found = vec![f32::NAN; m * n];
            for (rows, columns, block) in
                matmul_blocks(&a, &b, product, 128, |rows, columns, block| (rows, columns, block.to_vec()))
            {
                for (row, from) in rows.zip(block.chunks(columns.len())) {
                    found[row * n..][columns.clone()].copy_from_slice(from);
                }
            }
            assert!(found == whole, "{product:?}");
        }
    }

    #[test]
    fn small_products_and_doubles_are_not_rounded() {
        for (m, k, n) in [(BLOCK - 1, 40, 40), (40, BLOCK - 1, 40), (40, 40, BLOCK - 1)] {
            let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
            let of = |precision| {
                let mut c = Vec::new();
                matmul(Out::Append(&mut c), &a, &b, MatmulShape::new(m, k, n).at(precision));
                c
            };
            assert_eq!(of(Precision::Bf16), of(Precision::F32));
        }
        let (a, b) = (random(40 * 40, 1), random(40 * 40, 2));
        let of = |precision| {
            let mut c = Vec::new();
            matmul(Out::Append(&mut c), &a, &b, MatmulShape::new(40, 40, 40).at(precision));
            c
        };
        assert_eq!(of(Precision::Bf16), of(Precision::F32));
    }

    #[test]
    fn threads_do_not_change_bits() {
        let (m, k, n) = (500, 300, 200);
        let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
        for product in layouts(m, k, n) {
            assert_same_at_any_threads(|| {
                let mut c = vec![0.5f32; m * n];
                matmul(Out::Accumulate(&mut c), &a, &b, product);
                c
            });
        }
    }

    #[test]
    fn rows_do_not_depend_on_others() {
        let (m, k, n) = (150, 96, 64);
        let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
        let rows = |count: usize| {
            let mut c = Vec::new();
            matmul(Out::Append(&mut c), &a[..count * k], &b, MatmulShape::new(count, k, n).at(Precision::Bf16));
            c
        };
        assert_eq!(rows(m)[..40 * n], rows(40));
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let size = 40;
        for unit in Bf16Unit::available() {
            for bad in [f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::MAX] {
                let (mut a, b) = (vec![1.0f32; size * size], vec![1.0f32; size * size]);
                a[5 * size + 7] = bad;
                let mut c = vec![0.0; size * size];
                by_unit(unit, &a, &b, MatmulShape::new(size, size, size), &mut c, false);
                let of_row = |row: usize| &c[row * size..][..size];
                assert!(of_row(5).iter().all(|c| !c.is_finite()), "{unit:?} {bad}");
                assert!(of_row(4).iter().all(|c| *c == size as f32), "{unit:?} {bad}");
            }
        }
    }
}
