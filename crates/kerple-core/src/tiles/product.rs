//! The one matrix product that all seven products of attention use: a small `C = A B` on scratch
//! tiles.

use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::{RegisterBlock, StoreMode};

/// `C = A B`: A is `[rows, inner]` with any strides, B `[inner, columns]` and C `[rows, columns]` have contiguous rows.
///
/// Each number of A is read once per block of columns and multiplies whole vectors of B, so A needs no packing.
pub(crate) struct SmallGemm<'a, R> {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    /// A multiple of the lanes.
    pub(crate) columns: usize,
    pub(crate) a: StridedMatrix<'a, R>,
    pub(crate) b: &'a [R],
    pub(crate) b_stride: usize,
    pub(crate) c: &'a mut [R],
    pub(crate) c_stride: usize,
    pub(crate) store: StoreMode<'a, R>,
}

/// Numbers at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct StridedMatrix<'a, R> {
    pub(crate) data: &'a [R],
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

impl<'a, R> StridedMatrix<'a, R> {
    /// An array as it is in memory, its rows `stride` apart.
    #[inline(always)]
    pub(crate) fn row_major(data: &'a [R], stride: usize) -> Self {
        StridedMatrix { data, row_stride: stride, column_stride: 1 }
    }

    /// The transpose of an array whose rows are `stride` apart.
    #[inline(always)]
    pub(crate) fn transposed(data: &'a [R], stride: usize) -> Self {
        StridedMatrix { data, row_stride: 1, column_stride: stride }
    }
}

impl<R: Number> SmallGemm<'_, R> {
    /// Panics unless every index that `run` forms is within its slice.
    fn check(&self, lanes: usize) {
        let Self { rows, inner, columns, a, .. } = *self;
        // from the first element to the last of `rows` pieces of `length`; saturating is beyond every slice
        let end = |rows: usize, stride: usize, length: usize| {
            if rows == 0 || length == 0 { 0 } else { (rows - 1).saturating_mul(stride).saturating_add(length) }
        };
        assert!(columns.is_multiple_of(lanes) && self.b_stride >= columns && self.c_stride >= columns);
        assert!(a.data.len() >= end(rows, a.row_stride, end(inner, a.column_stride, 1)));
        assert!(self.b.len() >= end(inner, self.b_stride, columns));
        assert!(self.c.len() >= end(rows, self.c_stride, columns));
        match self.store {
            StoreMode::Overwrite | StoreMode::Accumulate => {}
            StoreMode::Rescale(factors) => assert!(factors.len() >= rows),
            StoreMode::AddTo(from, stride) => assert!(from.len() >= end(rows, stride, columns)),
        }
    }
}

impl<R: Number> SimdKernel<R> for SmallGemm<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        self.check(L::COUNT);
        let c = self.c.as_mut_ptr();
        for (vector, vectors) in parts(self.columns / L::COUNT, L::BLOCK_ROWS.len()) {
            for (row, rows) in parts(self.rows, L::BLOCK_ROWS[vectors - 1]) {
                macro_rules! block_of {
                    ($($m:literal $n:literal),+) => {
                        match (rows, vectors) {
                            // SAFETY: `check` has passed, and rows and columns of the block lie inside C.
                            $(($m, $n) if holds::<L>($m, $n) => unsafe { block::<L, $m, $n>(lanes, &self, c, row, vector * L::COUNT) },)+
                            _ => unreachable!("blocks are at most 8 x 4"),
                        }
                    };
                }
                block_of!(
                    6 4, 5 4, 4 4, 3 4, 2 4, 1 4, 8 3, 7 3, 6 3, 5 3, 4 3, 3 3, 2 3, 1 3, 8 2, 7 2, 6 2, 5 2, 4 2, 3 2, 2 2, 1 2,
                    8 1, 7 1, 6 1, 5 1, 4 1, 3 1, 2 1, 1 1
                );
            }
        }
    }
}

/// Whether registers hold a block of these rows and vectors; known when the program is compiled.
#[inline(always)]
fn holds<L: Lanes>(rows: usize, vectors: usize) -> bool {
    vectors <= L::BLOCK_ROWS.len() && rows <= L::BLOCK_ROWS[vectors - 1]
}

/// Start and length of as few parts of `0..whole` as are at most `most` long, their lengths as equal as can be: a short last
/// part would wait for its sums instead of computing.
#[inline(always)]
pub(crate) fn parts(whole: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = whole.div_ceil(most);
    let (length, longer) = (whole / count.max(1), whole % count.max(1));
    (0..count).map(move |part| (part * length + part.min(longer), length + usize::from(part < longer)))
}

/// M rows and N vectors of columns of C, held in registers while the inner dimension runs.
///
/// # Safety
/// `product` is checked and holds the block at (`row`, `column`); `c` is its C.
#[inline(always)]
unsafe fn block<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    product: &SmallGemm<L::Number>,
    c: *mut L::Number,
    row: usize,
    column: usize,
) {
    let mut sums = RegisterBlock::<L, M, N>::zeros(lanes);
    let StridedMatrix { data, row_stride, column_stride } = product.a;
    // SAFETY: `check` bounds every index below; C is borrowed mutably by the product.
    unsafe {
        let mut a = data.as_ptr().add(row * row_stride);
        let mut b = product.b.as_ptr().add(column);
        for _ in 0..product.inner {
            sums.add(a, row_stride, b);
            a = a.wrapping_add(column_stride);
            b = b.wrapping_add(product.b_stride);
        }
        sums.store(c.add(row * product.c_stride + column), product.c_stride, product.store.at(row, column));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::InstructionSet;
    use crate::cpu::lanes::Dispatch;

    #[test]
    fn parts_cover_in_order_and_are_even() {
        for (whole, most) in (0..40).flat_map(|whole| (1..9).map(move |most| (whole, most))) {
            let all: Vec<_> = parts(whole, most).collect();
            assert_eq!(all.len(), whole.div_ceil(most));
            assert_eq!(
                all.iter().fold(0, |end, &(start, length)| if start == end { end + length } else { usize::MAX }),
                whole
            );
            let lengths = || all.iter().map(|part| part.1);
            assert!(lengths().all(|length| (1..=most).contains(&length)));
            assert!(lengths().max().unwrap_or(0) - lengths().min().unwrap_or(0) <= 1);
        }
    }

    /// Every shape of block, in whole numbers, which add exactly in any order.
    #[test]
    fn every_block_multiplies() {
        let number = |i: usize| (i * i % 7) as f32 - 3.0;
        for (rows, columns) in (0..20).flat_map(|rows| (0..9).map(move |vectors| (rows, 16 * vectors))) {
            let (inner, a_stride, stride) = (5, 7, columns + 16);
            let a: Vec<f32> = (0..rows * a_stride).map(number).collect();
            let b: Vec<f32> = (0..inner * stride).map(|i| number(i + 3)).collect();
            let factors: Vec<f32> = (0..rows).map(number).collect();
            let onto: Vec<f32> = (0..rows * (stride + 1)).map(number).collect();
            let stores = [
                StoreMode::Overwrite,
                StoreMode::Accumulate,
                StoreMode::Rescale(&factors),
                StoreMode::AddTo(&onto, stride + 1),
            ];
            for (store, old) in stores.into_iter().zip([0.0, 1.0, 1.0, 5.0]) {
                for set in InstructionSet::available() {
                    let mut c = vec![old; rows * stride];
                    let a = StridedMatrix { data: &a, row_stride: a_stride, column_stride: 1 };
                    let (b, c_slice) = (&b[..], &mut c[..]);
                    f32::dispatch(
                        set,
                        SmallGemm { rows, inner, columns, a, b, b_stride: stride, c: c_slice, c_stride: stride, store },
                    );
                    for (i, got) in c.iter().enumerate() {
                        let (row, column) = (i / stride, i % stride);
                        let sum: f32 = (0..inner).map(|l| a.data[row * a_stride + l] * b[l * stride + column]).sum();
                        let want = match store {
                            _ if column >= columns => old,
                            StoreMode::Overwrite => sum,
                            StoreMode::Accumulate => old + sum,
                            StoreMode::Rescale(factors) => factors[row] * old + sum,
                            StoreMode::AddTo(from, stride) => from[row * stride + column] + sum,
                        };
                        assert_eq!(*got, want, "{set:?} {rows} x {columns} at {row}, {column}");
                    }
                }
            }
        }
    }
}
