//! The one matrix product behind all seven of attention: a small `C = A B` on scratch tiles.

use crate::Number;
use crate::cpu::lanes::{Kernel, Lanes};

/// Rows of C that a block of registers holds.
const BLOCK_ROWS: usize = 6;

/// What happens to the old C.
#[derive(Clone, Copy)]
pub(super) enum Keep<'a, R> {
    /// Nothing of it is kept.
    Overwrite,
    /// `C += A B`
    Add,
    /// `C[i] = factor[i] C[i] + (A B)[i]`
    Scale(&'a [R]),
}

/// `C = A B`: A is `[rows, inner]` with any strides, B `[inner, columns]` and C `[rows, columns]` have contiguous rows.
///
/// Each number of A is read once per block of columns and multiplies whole vectors of B, so A needs no packing.
pub(super) struct Product<'a, R> {
    pub(super) rows: usize,
    pub(super) inner: usize,
    /// A multiple of the lanes.
    pub(super) columns: usize,
    pub(super) a: Matrix<'a, R>,
    pub(super) b: &'a [R],
    pub(super) b_stride: usize,
    pub(super) c: &'a mut [R],
    pub(super) c_stride: usize,
    pub(super) keep: Keep<'a, R>,
}

/// Numbers at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, R> {
    pub(super) data: &'a [R],
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<R: Number> Product<'_, R> {
    /// Panics unless every index that `run` forms lies in its slice.
    fn check(&self, lanes: usize) {
        let Self { rows, inner, columns, a, .. } = *self;
        let end = |rows: usize, stride: usize, length: usize| {
            if rows * length == 0 { 0 } else { (rows - 1) * stride + length }
        };
        assert!(columns.is_multiple_of(lanes) && self.b_stride >= columns && self.c_stride >= columns);
        assert!(a.data.len() >= end(rows, a.row_stride, end(inner, a.column_stride, 1)));
        assert!(self.b.len() >= end(inner, self.b_stride, columns));
        assert!(self.c.len() >= end(rows, self.c_stride, columns));
        if let Keep::Scale(factors) = self.keep {
            assert!(factors.len() >= rows);
        }
    }
}

impl<R: Number> Kernel<R> for Product<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        self.check(L::COUNT);
        let c = self.c.as_mut_ptr();
        let vectors = self.columns / L::COUNT;
        for vector in (0..vectors).step_by(L::BLOCK_VECTORS) {
            for row in (0..self.rows).step_by(BLOCK_ROWS) {
                let (rows, vectors) = ((self.rows - row).min(BLOCK_ROWS), (vectors - vector).min(L::BLOCK_VECTORS));
                macro_rules! block_of {
                    ($($m:literal $n:literal),+) => {
                        match (rows, vectors) {
                            // SAFETY: `check` has passed, and rows and columns of the block lie inside C.
                            $(($m, $n) if $n <= L::BLOCK_VECTORS => unsafe { block::<L, $m, $n>(lanes, &self, c, row, vector * L::COUNT) },)+
                            _ => unreachable!("blocks are at most {BLOCK_ROWS} x 4"),
                        }
                    };
                }
                block_of!(6 4, 5 4, 4 4, 3 4, 2 4, 1 4, 6 3, 5 3, 4 3, 3 3, 2 3, 1 3, 6 2, 5 2, 4 2, 3 2, 2 2, 1 2, 6 1, 5 1, 4 1, 3 1, 2 1, 1 1);
            }
        }
    }
}

/// M rows and N vectors of columns of C, held in registers while the inner dimension runs.
///
/// # Safety
/// `product` is checked and holds the block at (`row`, `column`); `c` is its C.
#[allow(clippy::needless_range_loop, reason = "three arrays walk together")]
#[inline(always)]
unsafe fn block<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    product: &Product<L::Number>,
    c: *mut L::Number,
    row: usize,
    column: usize,
) {
    let mut sums = [[lanes.splat(L::Number::ZERO); N]; M];
    let Matrix { data, row_stride, column_stride } = product.a;
    // SAFETY: `check` bounds every index below; C is borrowed mutably by the product.
    unsafe {
        let mut a = data.as_ptr().add(row * row_stride);
        let mut b = product.b.as_ptr().add(column);
        for _ in 0..product.inner {
            let mut vectors = [lanes.splat(L::Number::ZERO); N];
            for n in 0..N {
                vectors[n] = lanes.load(b.add(n * L::COUNT));
            }
            for m in 0..M {
                let factor = lanes.splat(*a.add(m * row_stride));
                for n in 0..N {
                    sums[m][n] = lanes.mul_add(factor, vectors[n], sums[m][n]);
                }
            }
            a = a.wrapping_add(column_stride);
            b = b.wrapping_add(product.b_stride);
        }
        let c = c.add(row * product.c_stride + column);
        for m in 0..M {
            for n in 0..N {
                let at = c.add(m * product.c_stride + n * L::COUNT);
                let value = match product.keep {
                    Keep::Overwrite => sums[m][n],
                    Keep::Add => lanes.add(lanes.load(at), sums[m][n]),
                    Keep::Scale(factors) => {
                        lanes.mul_add(lanes.load(at), lanes.splat(*factors.get_unchecked(row + m)), sums[m][n])
                    }
                };
                lanes.store(at, value);
            }
        }
    }
}
