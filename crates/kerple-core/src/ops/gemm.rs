//! Matrix products of row-major slices, on the kernels of the `gemm` crate.
//!
//! The result is cut into blocks whose sizes depend on its shape only. Each block is one task,
//! computed by one thread, so the bits do not depend on the number of threads, and a slow core delays
//! one block, not half the work. An epilogue (bias, activation, residual) is applied to each block
//! while it is in cache, see [`matmul_then`].
//!
//! # Why tall, narrow blocks, and packing of our own for gradients of weights
//!
//! A profile of a training step spent 77 % of its cycles in the product kernel and 9 % in packing.
//! The kernel reads a left factor in place unless it is transposed, but packs the right factor once
//! per block. So a block has up to 2048 rows and 128 columns: a right factor is packed once, and the
//! transposed copies of weights that smaller blocks needed are gone. The crate's own threads are not
//! used, since bits must not depend on their number. The gradient of a weight, `a^T b`, breaks this: both factors are read down
//! their columns, each row on another page. There `panels` copies both once, in the order
//! in which the microkernel reads them, in blocks of 256 by 256. Copying panels for the `gemm`
//! crate's kernels was tried first, and the crate packed the copies again. Rejected there, as measured:
//! prefetching the next panel while this one is multiplied, and panels of 256 rows.

mod bf16;
mod blocks;
mod few_rows;
mod kernel;
mod panels;

pub use blocks::matmul_blocks;

use super::kept::KeptSlice;
use super::{ROWS_PER_TASK, zeros};
use crate::Number;
use crate::cpu::{Bf16Unit, reduce};
use crate::precision::Precision;
use crate::tiles::workers::{for_each_number, for_each_task};
use crate::{check_shape, elements};
use bf16::RoundedFactors;
use kernel::{GemmFactor, OutBlock};
use std::any::TypeId;
use std::ops::Range;

/// Columns of a block: two of the kernel's tiles with AVX-512. Of few blocks, and so of small ones, half as many.
const BLOCK_COLUMNS: usize = 128;
/// Most rows of a block; in a product of fewer rows, everything is packed once.
const MOST_ROWS: usize = 2048;
/// Rows of two factors that both run down, from which on they are copied first.
const WORTH_PANELS: usize = 256;
/// Rows of the kernel's tile.
const TILE_ROWS: usize = 6;
/// Fewest blocks a large product is cut into.
const ENOUGH_BLOCKS: usize = 12;
/// Most rows and columns of a block that is finished into a second matrix, and the fewest rows that are worth it. Such a
/// block has whole rows if it can: narrow pieces at strides of a power of two use few sets of the cache, and reads of one
/// matrix wait for writes at the same place in a page of the other.
const FINISHED_ROWS: usize = 256;
const FINISHED_COLUMNS: usize = 1024;
const FEWEST_FINISHED_ROWS: usize = 96;
/// Multiplications that are worth a task.
const WORTH_A_TASK: usize = 1 << 18;

/// Sizes and layout of one product `c = op(a) op(b)`: `op(a)` is `[m, k]`, `op(b)` is `[k, n]`, `c` is `[m, n]`.
///
/// ```
/// use kerple_core::ops::gemm::{MatmulShape, Out, matmul};
/// let (a, b) = ([1.0f32, 2.0, 3.0, 4.0], [1.0f32, 0.0, 1.0, 1.0]);
/// let mut c = Vec::new();
/// matmul(Out::Append(&mut c), &a, &b, MatmulShape::new(2, 2, 2));
/// assert_eq!(c, [3.0, 2.0, 7.0, 4.0]);
/// matmul(Out::Accumulate(&mut c), &a, &b, MatmulShape::new(2, 2, 2).transpose_b());
/// assert_eq!(c, [4.0, 5.0, 10.0, 11.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulShape {
    m: usize,
    k: usize,
    n: usize,
    a_is_transposed: bool,
    b_is_transposed: bool,
    precision: Precision,
    among_many: bool,
}

impl MatmulShape {
    /// `c = a b`.
    pub fn new(m: usize, k: usize, n: usize) -> MatmulShape {
        let (a_is_transposed, b_is_transposed, among_many) = (false, false, false);
        MatmulShape { m, k, n, a_is_transposed, b_is_transposed, precision: Precision::F32, among_many }
    }

    /// The slice of the left factor holds `[k, m]`.
    pub fn transpose_a(self) -> MatmulShape {
        MatmulShape { a_is_transposed: true, ..self }
    }

    /// The slice of the right factor holds `[n, k]`.
    pub fn transpose_b(self) -> MatmulShape {
        MatmulShape { b_is_transposed: true, ..self }
    }

    /// With `f32` factors rounded to this precision, if it is `bf16`, which processors have instructions for, and if the result has
    /// 32 rows and columns or more and sums 32 terms: rounding costs more than smaller products.
    pub fn at(self, precision: Precision) -> MatmulShape {
        MatmulShape { precision, ..self }
    }

    /// Few rows as if they were among many, whose sums are added up in another order.
    pub fn among_many(self) -> MatmulShape {
        MatmulShape { among_many: true, ..self }
    }

    /// Whether it is made by one reading of the right factor.
    fn is_of_few_rows(self) -> bool {
        !self.among_many
            && !self.a_is_transposed
            && (1..=few_rows::MOST_ROWS).contains(&self.m)
            && self.k > 0
            && self.n > 0
    }

    /// Whether factors of this type are rounded.
    fn rounds<T: Number>(self) -> bool {
        let is_large = [self.m, self.k, self.n].into_iter().all(|size| size >= bf16::BLOCK);
        self.precision == Precision::Bf16 && is_large && TypeId::of::<T>() == TypeId::of::<f32>()
    }

    /// Rows and columns of the blocks of the result; a function of the shape and of whether there is a second matrix.
    fn block(self, beside: bool) -> (usize, usize) {
        let MatmulShape { m, k, n, .. } = self;
        let worthwhile = m.saturating_mul(k).saturating_mul(n) / WORTH_A_TASK;
        if worthwhile < ENOUGH_BLOCKS {
            return (m, n.div_ceil(worthwhile.max(1)).next_multiple_of(BLOCK_COLUMNS));
        }
        if beside {
            let across = n.div_ceil(FINISHED_COLUMNS);
            let down = m.div_ceil(FINISHED_ROWS).max(ENOUGH_BLOCKS.div_ceil(across));
            let rows = m.div_ceil(down).next_multiple_of(TILE_ROWS);
            if rows >= FEWEST_FINISHED_ROWS {
                return (rows, n.div_ceil(across).next_multiple_of(BLOCK_COLUMNS));
            }
        }
        let (mut down, mut columns) = (m.div_ceil(MOST_ROWS), BLOCK_COLUMNS);
        if down * n.div_ceil(columns) < ENOUGH_BLOCKS {
            columns /= 2;
            down = down.max(ENOUGH_BLOCKS / n.div_ceil(columns));
        }
        (m.div_ceil(down).next_multiple_of(TILE_ROWS), columns)
    }
}

/// Where a product is written.
#[derive(Debug)]
pub enum Out<'a, T> {
    /// Over the matrix there.
    Store(&'a mut [T]),
    /// Added to the matrix there.
    Accumulate(&'a mut [T]),
    /// After the last value of a vector, in memory that need not be cleared before.
    Append(&'a mut Vec<T>),
}

impl<'a, T> Out<'a, T> {
    /// Appends to an empty vector and accumulates into any other: the first and the later terms of a sum.
    pub fn accumulate_into(to: &'a mut Vec<T>) -> Out<'a, T> {
        if to.is_empty() { Out::Append(to) } else { Out::Accumulate(to) }
    }
}

/// Columns of a right factor of this product, of which no others are kept: `[columns, k]` if it is transposed, else `[k, columns]`.
fn columns_of<T: Number>(b: KeptSlice<T>, columns: Range<usize>, product: MatmulShape) -> Vec<T> {
    let (MatmulShape { k, n, .. }, width) = (product, columns.len());
    let mut found = zeros(k * width);
    if product.b_is_transposed {
        b.part(columns.start * k..columns.end * k).write_to(&mut found);
    } else {
        for (row, found) in found.chunks_exact_mut(width).enumerate() {
            b.part(row * n + columns.start..row * n + columns.end).write_to(found);
        }
    }
    found
}

/// Writes `op(a) op(b)` to `c`, on the current rayon pool.
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul<'b, T: Number>(c: Out<'_, T>, a: &[T], b: impl Into<KeptSlice<'b, T>>, product: MatmulShape) {
    let b = b.into();
    let MatmulShape { m, k, n, a_is_transposed, b_is_transposed, .. } = product;
    let is_gradient = a_is_transposed && !b_is_transposed && k >= WORTH_PANELS;
    // elsewhere the kernels of the `gemm` crate are the better ones
    if cfg!(target_arch = "x86_64")
        && is_gradient
        && !product.rounds::<T>()
        && let KeptSlice::Exact(b) = b
    {
        check_shape!(a, k = k, m = m);
        check_shape!(b, k = k, n = n);
        // SAFETY: the factors and the result have these sizes, and this call alone writes it.
        return write(c, [m, n], |c, adds| unsafe { panels::multiply(c, adds, a, b, [m, k, n]) });
    }
    matmul_then(c, None::<&mut Vec<T>>, a, b, product, |_, _, _, _| {});
}

/// [`matmul`] with `bias`, `[n]`, added to each row: a linear layer.
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul_bias<'b, T: Number>(
    c: Out<'_, T>,
    a: &[T],
    b: impl Into<KeptSlice<'b, T>>,
    bias: &[T],
    product: MatmulShape,
) {
    let n = product.n;
    check_shape!(bias, n = n);
    matmul_then(c, None::<&mut Vec<T>>, a, b, product, |_, columns, c, _| reduce::add(c, &bias[columns]));
}

/// [`matmul`], and then `finish` on every piece of a row of `c` while it is in cache. It is given the row, the columns of
/// the piece, the piece, and the same piece of a new matrix of the shape of `c` that is appended to `beside`; it holds
/// zeros, or is empty if there is no `beside`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul_then<'b, T: Number, U: Copy + Default + Send>(
    c: Out<'_, T>,
    beside: Option<&mut Vec<U>>,
    a: &[T],
    b: impl Into<KeptSlice<'b, T>>,
    product: MatmulShape,
    finish: impl Fn(usize, Range<usize>, &mut [T], &mut [U]) + Sync,
) {
    let b = b.into();
    let MatmulShape { m, k, n, .. } = product;
    check_shape!(a, m = m, k = k);
    check_shape!(b, k = k, n = n);
    let (factors, [rows, columns]) = Factors::new(a, b, product, product.block(beside.is_some()));
    let (down, across) = (m.div_ceil(rows.max(1)), n.div_ceil(columns.max(1)));
    let work = |c: OutMatrix<T>, adds: bool, beside: Option<OutMatrix<U>>| {
        let block = |t: usize| {
            let (i, j) = (t / across, t % across);
            let (i, j) = (i * rows..m.min((i + 1) * rows), j * columns..n.min((j + 1) * columns));
            // SAFETY: `c` has room for the matrix; this block of it is written by this task alone, and where it is not added to,
            // every element of it.
            unsafe {
                let start = c.start.add(i.start * n + j.start);
                let c = OutBlock { start, row_stride: n, accumulate: adds };
                factors.multiply_block(c, i.clone(), j.clone());
            }
            for row in i {
                // SAFETY: the pieces lie in this block, which is this task's alone, and that of `c` has been written.
                let pieces =
                    unsafe { (c.piece(row, j.clone()), beside.map(|beside| beside.cleared_piece(row, j.clone()))) };
                finish(row, j.clone(), pieces.0, pieces.1.unwrap_or_default());
            }
        };
        match down * across {
            1 => block(0),
            blocks => for_each_number(blocks, &block),
        }
    };
    write(c, [m, n], |c, adds| match beside {
        Some(beside) => write(Out::Append(beside), [m, n], |beside, _| work(c, adds, Some(beside))),
        None => work(c, adds, None),
    });
}

/// Has all of a matrix `[m, n]` written where it goes, or added to what is there if it is told so.
///
/// # Panics
/// If there is no room of this size.
fn write<T>(c: Out<'_, T>, [m, n]: [usize; 2], by: impl FnOnce(OutMatrix<T>, bool)) {
    let values = elements(&[m, n]).unwrap_or_else(|| panic!("c: [m, n] = [{m}, {n}] are too many values"));
    let matrix = |start| OutMatrix { start, columns: n };
    let adds = matches!(c, Out::Accumulate(_));
    match c {
        Out::Store(c) | Out::Accumulate(c) => {
            check_shape!(c, m = m, n = n);
            by(matrix(c.as_mut_ptr()), adds);
        }
        Out::Append(c) => {
            by(matrix(room(c, values)), false);
            // SAFETY: all of the values after the last one have been written.
            unsafe { c.set_len(c.len() + values) }
        }
    }
}

/// Where a vector goes on, with room for this many values.
fn room<T>(vector: &mut Vec<T>, values: usize) -> *mut T {
    vector.reserve_exact(values);
    vector.spare_capacity_mut().as_mut_ptr().cast()
}

/// A row-major matrix that threads write in disjoint pieces.
#[derive(Clone, Copy)]
struct OutMatrix<T> {
    start: *mut T,
    columns: usize,
}

// SAFETY: it is used only through its methods and `multiply_block`, whose callers give every piece to one thread.
unsafe impl<T: Send> Send for OutMatrix<T> {}
// SAFETY: likewise.
unsafe impl<T: Send> Sync for OutMatrix<T> {}

impl<T> OutMatrix<T> {
    /// Where this element is.
    fn at(self, row: usize, column: usize) -> *mut T {
        self.start.wrapping_add(row * self.columns + column)
    }
}

impl<T: Copy + Default> OutMatrix<T> {
    /// # Safety
    /// The piece lies in the matrix, which outlives it, has been written, and nothing else uses it meanwhile.
    unsafe fn piece<'a>(self, row: usize, columns: Range<usize>) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.columns + columns.start), columns.len()) }
    }

    /// # Safety
    /// As [`OutMatrix::piece`], but it need not have been written.
    unsafe fn cleared_piece<'a>(self, row: usize, columns: Range<usize>) -> &'a mut [T] {
        // SAFETY: the caller's promise, and the piece is written before it is taken for numbers.
        unsafe {
            let start = self.start.add(row * self.columns + columns.start);
            (0..columns.len()).for_each(|i| start.add(i).write(T::default()));
            self.piece(row, columns)
        }
    }

    /// # Safety
    /// As [`OutMatrix::piece`], but it need not have been written.
    unsafe fn copy_piece(self, row: usize, columns: Range<usize>, from: &[T]) {
        assert_eq!(from.len(), columns.len());
        // SAFETY: the caller's promise; the piece and what may be read of `from` are apart, since the piece is used by nobody.
        unsafe {
            let start = self.start.add(row * self.columns + columns.start);
            std::ptr::copy_nonoverlapping(from.as_ptr(), start, from.len());
        }
    }
}

/// The factors of a product.
enum Factors<'a, T> {
    /// As they are.
    Exact { a: &'a [T], b: KeptSlice<'a, T>, product: MatmulShape },
    /// Copies of `f32`.
    Rounded(RoundedFactors),
    /// Their product, `[m, n]`.
    Multiplied { product: Vec<T>, n: usize },
}

impl<'a, T: Number> Factors<'a, T> {
    /// Those of a product, and the rows and columns of its blocks, which were to have so many.
    fn new(a: &'a [T], b: KeptSlice<'a, T>, product: MatmulShape, block: (usize, usize)) -> (Self, [usize; 2]) {
        let MatmulShape { m, n, .. } = product;
        if product.is_of_few_rows() {
            return (Factors::Multiplied { product: few_rows::multiply(a, b, product), n }, [m, n]);
        }
        if !product.rounds::<T>() {
            return (Factors::Exact { a, b, product }, block.into());
        }
        let b = b.values();
        // SAFETY: only `f32` is rounded.
        let [a, b] = [a, &b].map(|factor| unsafe { std::slice::from_raw_parts(factor.as_ptr().cast(), factor.len()) });
        let block = [block.0, block.1].map(|side| side.next_multiple_of(bf16::BLOCK));
        (Factors::Rounded(RoundedFactors::new(Bf16Unit::current(), a, b, product)), block)
    }

    /// Writes the block of the result at these rows and columns to `c`.
    ///
    /// # Safety
    /// The factors have the sizes of their product, the block lies inside the result, `c` has room for it and has been written if
    /// the product is to be added to it, and nothing else uses it meanwhile.
    unsafe fn multiply_block(&self, c: OutBlock<T>, rows: Range<usize>, columns: Range<usize>) {
        let (a, b, product) = match self {
            Factors::Exact { a, b, product } => (a, b, product),
            Factors::Rounded(factors) => {
                let OutBlock { start, row_stride, accumulate } = c;
                let c = OutBlock { start: start.cast(), row_stride, accumulate };
                // SAFETY: the caller's promise; only `f32` is rounded.
                return unsafe { factors.multiply_block(c, rows, columns) };
            }
            Factors::Multiplied { product, n } => {
                for (to, row) in rows.enumerate() {
                    let from = &product[row * n..][columns.clone()];
                    // SAFETY: the caller's promise.
                    unsafe {
                        let to = c.start.add(to * c.row_stride);
                        match c.accumulate {
                            true => reduce::add(std::slice::from_raw_parts_mut(to, from.len()), from),
                            false => std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()),
                        }
                    }
                }
                return;
            }
        };
        let MatmulShape { m, k, n, a_is_transposed, b_is_transposed, .. } = *product;
        let (a_row, a_column) = if a_is_transposed { (1, m) } else { (k, 1) };
        // with k = 0 the factors have no elements, and the starts of their blocks may lie outside of them: `wrapping_add`
        let a = GemmFactor {
            start: a.as_ptr().wrapping_add(rows.start * a_row),
            row_stride: a_row,
            column_stride: a_column,
        };
        let long;
        let (start, width) = match b {
            KeptSlice::Exact(b) => (b.as_ptr().wrapping_add(columns.start * if b_is_transposed { k } else { 1 }), n),
            KeptSlice::Bf16(_) => {
                long = columns_of(*b, columns.clone(), *product);
                (long.as_ptr(), columns.len())
            }
        };
        let (row_stride, column_stride) = if b_is_transposed { (1, k) } else { (width, 1) };
        let b = GemmFactor { start, row_stride, column_stride };
        // SAFETY: by the caller's promise every element the kernel touches lies in its matrix, and it alone writes the block.
        unsafe { kernel::multiply([rows.len(), k, columns.len()], c, a, b) };
    }
}

/// Adds the sum of the rows of `rows`, `[_, columns]`, to `sum`, `[columns]`: the gradient of a bias.
///
/// # Panics
/// If `rows` is not a whole number of rows.
pub fn add_rows<T: Number>(rows: &[T], sum: &mut [T]) {
    let columns = sum.len();
    let count = rows.len().checked_div(columns).unwrap_or(0);
    check_shape!(rows, count = count, columns = columns);
    if count == 0 {
        return;
    }
    let mut partial = vec![T::ZERO; count.div_ceil(ROWS_PER_TASK) * columns];
    for_each_task(rows.chunks(ROWS_PER_TASK * columns).zip(partial.chunks_mut(columns)), |_, (rows, sum)| {
        rows.chunks_exact(columns).for_each(|row| reduce::add(sum, row));
    });
    partial.chunks_exact(columns).for_each(|partial| reduce::add(sum, partial));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::InstructionSet;
    use crate::cpu::tests::on_every_set;
    use crate::ops::kept::KeptRows;
    use crate::ops::testing::{assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    fn plain(product: MatmulShape, a: &[f64], b: &[f64]) -> Vec<f64> {
        let MatmulShape { m, k, n, a_is_transposed, b_is_transposed, .. } = product;
        let a = |i: usize, l: usize| if a_is_transposed { a[l * m + i] } else { a[i * k + l] };
        let b = |l: usize, j: usize| if b_is_transposed { b[j * k + l] } else { b[l * n + j] };
        let element = |i, j| (0..k).map(|l| a(i, l) * b(l, j)).sum::<f64>();
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    fn layouts(product: MatmulShape) -> [MatmulShape; 4] {
        [product, product.transpose_a(), product.transpose_b(), product.transpose_a().transpose_b()]
    }

    fn check_against_plain(m: usize, k: usize, n: usize, seed: u64) {
        let (a, b, c) = (random(m * k, seed), random(k * n, seed + 1), random(m * n, seed + 2));
        for product in layouts(MatmulShape::new(m, k, n)) {
            let want = plain(product, &a, &b);
            let (mut over, mut sum, mut end) = (vec![f64::NAN; m * n], c.clone(), vec![0.5; 3]);
            let mut float = Vec::new();
            matmul(Out::Store(&mut over), &a, &b, product);
            matmul(Out::Accumulate(&mut sum), &a, &b, product);
            matmul(Out::Append(&mut end), &a, &b, product);
            matmul(Out::accumulate_into(&mut float), &single(&a), &single(&b), product);
            assert_eq!((&end[..3], &end[3..]), (&[0.5; 3][..], &over[..]));
            for i in 0..m * n {
                // rounding of k + 1 terms of size below 1, and of the inputs for f32
                let size = (k + 1) as f64;
                assert!((over[i] - want[i]).abs() <= 1e-15 * size, "{product:?} {i}");
                assert!((sum[i] - c[i] - want[i]).abs() <= 1e-15 * size, "{product:?} {i}");
                assert!((f64::from(float[i]) - want[i]).abs() <= 3e-7 * size, "{product:?} {i}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn product_equals_plain_loops(m in 0usize..40, k in 0usize..40, n in 0usize..40, seed: u64) {
            check_against_plain(m, k, n, seed % 1000);
        }
    }

    /// Blocks of many columns and of few, and few rows.
    #[test]
    fn short_factors_are_the_numbers_they_stand_for() {
        for (m, k, n) in [(1, 70, 1500), (5, 300, 64), (20, 40, 30), (400, 20, 131), (40, 33, 1700), (3, 0, 4)] {
            let (a, b) = (single(&random(m * k, 1)), KeptRows::of(single(&random(k * n, 2)), Precision::Bf16));
            let product = MatmulShape::new(m, k, n);
            for product in [product, product.transpose_b(), product.at(Precision::Bf16)] {
                let (mut short, mut long) = (Vec::new(), Vec::new());
                matmul(Out::Append(&mut short), &a, b.all(), product);
                matmul(Out::Append(&mut long), &a, &*b.values(), product);
                assert_eq!(short, long, "{product:?}");
            }
        }
    }

    #[test]
    fn large_products_equal_plain_loops() {
        // the last ones are cut along k where both factors run down, within blocks and with many of them
        for (m, k, n) in
            [(MOST_ROWS + 1, 70, 65), (386, 33, 130), (7, 100, 1500), (769, 20, 129), (100, 519, 131), (257, 1000, 300)]
        {
            let (rows, columns) = MatmulShape::new(m, k, n).block(false);
            assert!(rows < m || columns < n, "more than one block");
            check_against_plain(m, k, n, 7);
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        for (m, k, n) in [(500, 300, 200), (64, 1100, 900)] {
            let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
            for product in layouts(MatmulShape::new(m, k, n)) {
                assert_same_at_any_threads(|| {
                    let mut c = vec![0.5f32; m * n];
                    matmul(Out::Accumulate(&mut c), &a, &b, product);
                    c
                });
            }
        }
    }

    #[test]
    fn every_piece_is_finished_once() {
        // the last two in blocks of many columns, one across and two
        for (m, k, n) in [(2, 3, 4), (385, 40, 130), (1300, 40, 130), (1300, 20, 1100)] {
            let (a, b, bias) = (random(m * k, 1), random(k * n, 2), random(n, 3));
            let product = MatmulShape::new(m, k, n);
            let (mut c, mut beside, mut biased, mut want) = (Vec::new(), vec![0.5], Vec::new(), Vec::new());
            matmul(Out::Append(&mut want), &a, &b, product);
            matmul_bias(Out::Append(&mut biased), &a, &b, &bias, product);
            matmul_then(Out::Append(&mut c), Some(&mut beside), &a, &b, product, |row, columns, c, beside| {
                for ((c, beside), column) in c.iter_mut().zip(beside).zip(columns) {
                    *beside += *c;
                    *c = (row * n + column) as f64;
                }
            });
            assert_eq!((c.len(), beside.len(), beside[0]), (m * n, m * n + 1, 0.5));
            for i in 0..m * n {
                assert_eq!((c[i], beside[i + 1], biased[i]), (i as f64, want[i], want[i] + bias[i % n]));
            }
        }
    }

    #[test]
    fn rows_are_summed() {
        let rows: Vec<f32> = (0..7 * 201).map(|i| i as f32).collect();
        let mut sum = [1.0f32; 7];
        add_rows(&rows, &mut sum);
        // 201 rows of 7 whole numbers: exact
        assert_eq!(sum, std::array::from_fn(|j| (1 + 201 * 200 / 2 * 7 + 201 * j) as f32));
        let before = sum;
        add_rows(&[], &mut sum);
        assert_eq!(sum, before);
        assert_same_at_any_threads(|| {
            let mut sum = [0.0f32; 7];
            add_rows(&single(&random(7 * 1000, 1)), &mut sum);
            sum
        });
    }

    #[test]
    fn every_instruction_set_multiplies() {
        // one block, which this thread computes; rows and columns that end within the kernels' tiles
        let (m, k, n) = (29, 67, 71);
        let (a, b, c) = (random(m * k, 1), random(k * n, 2), random(m * n, 3));
        for product in layouts(MatmulShape::new(m, k, n)) {
            let want = plain(product, &a, &b);
            let on_sets = on_every_set(|| {
                let (mut over, mut sum) = (vec![f32::NAN; m * n], single(&c));
                matmul(Out::Store(&mut over), &single(&a), &single(&b), product);
                matmul(Out::Accumulate(&mut sum), &single(&a), &single(&b), product);
                (over, sum)
            });
            for (set, (over, sum)) in InstructionSet::available().zip(&on_sets) {
                for i in 0..m * n {
                    // rounding of k + 1 terms of size below 1, and of the inputs
                    let close = |got: f32, want: f64| (f64::from(got) - want).abs() <= 3e-7 * (k + 1) as f64;
                    assert!(close(over[i], want[i]) && close(sum[i], c[i] + want[i]), "{set:?} {product:?} {i}");
                }
            }
            // without fused multiply-add, sums round otherwise: so it was another kernel
            assert!(on_sets.len() == 1 || on_sets[0] != on_sets[1], "{product:?}");
        }
    }

    #[test]
    fn panels_give_the_same_bits_on_wide_instruction_sets() {
        let (m, k, n) = (67, 700, 71);
        let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
        // of this thread alone, which the set is for
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap();
        let on_sets = on_every_set(|| {
            let mut c = vec![f32::NAN; m * n];
            pool.install(|| matmul(Out::Store(&mut c), &a, &b, MatmulShape::new(m, k, n).transpose_a()));
            c
        });
        assert!(on_sets.len() < 3 || on_sets[1] == on_sets[2]);
        assert!(on_sets.len() == 1 || on_sets[0] != on_sets[1], "without fused multiply-add, sums round otherwise");
    }

    #[test]
    fn products_of_nothing_are_zero() {
        // many blocks of a result whose factors have no elements
        let (m, n) = (3000, 300);
        for product in layouts(MatmulShape::new(m, 0, n)) {
            let (mut over, mut end) = (vec![f32::NAN; m * n], vec![1.0]);
            matmul(Out::Store(&mut over), &[], &[], product);
            matmul(Out::Append(&mut end), &[], &[], product);
            assert!(over.iter().chain(&end[1..]).all(|value| *value == 0.0) && end.len() == 1 + m * n);
        }
    }

    #[test]
    #[should_panic(expected = "c: [m, n] = [8589934592, 2147483648] are too many values")]
    fn results_that_wrap_are_refused() {
        matmul(Out::Append(&mut Vec::new()), &[0.0f32; 0], &[], MatmulShape::new(1 << 33, 0, 1 << 31));
    }

    #[test]
    #[should_panic(expected = "a: expected [m, k] = [8589934592, 2147483648] (too many values), got 0")]
    fn factors_that_wrap_are_refused() {
        matmul(Out::Store(&mut [0.0f32; 0]), &[], &[], MatmulShape::new(1 << 33, 1 << 31, 0));
    }

    #[test]
    #[should_panic(expected = "b: expected [k, n] = [3, 4] (12 values), got 11")]
    fn wrong_size_panics() {
        matmul(Out::Store(&mut [0.0f32; 8]), &[0.0; 6], &[0.0; 11], MatmulShape::new(2, 3, 4));
    }
}
