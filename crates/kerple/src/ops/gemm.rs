//! Matrix products of row-major slices, on the `gemm` crate's kernels.
//!
//! A product is cut into blocks of the result whose sizes depend on its shape only, one block a task, each computed by
//! one thread. So the bits do not depend on the number of threads, and a slow core delays one block, not half the work.
//! A block is tall and narrow: its columns of the right factor are packed once and used for every row, while the kernels
//! read a left factor that is not transposed where it lies.

use super::{Float, ROWS_PER_TASK, lanes};
use crate::check_shape;
use rayon::prelude::*;
use std::ops::Range;

/// Columns of a block: two of the kernel's tiles with AVX-512. Of few blocks, and so of small ones, half as many.
const BLOCK_COLUMNS: usize = 128;
/// Most rows of a block; in a product of fewer rows, everything is packed once.
const MOST_ROWS: usize = 2048;
/// Rows of the kernel's tile.
const TILE_ROWS: usize = 6;
/// Fewest blocks a large product is cut into.
const ENOUGH_BLOCKS: usize = 12;
/// Multiplications that are worth a task.
const WORTH_A_TASK: usize = 1 << 18;

/// Sizes and layout of one product `c = op(a) op(b)`: `op(a)` is `[m, k]`, `op(b)` is `[k, n]`, `c` is `[m, n]`.
///
/// ```
/// use kerple::ops::gemm::{Product, matmul};
/// let (a, b) = ([1.0f32, 2.0, 3.0, 4.0], [1.0f32, 0.0, 1.0, 1.0]);
/// let mut c = [0.0f32; 4];
/// matmul(&mut c, &a, &b, Product::new(2, 2, 2));
/// assert_eq!(c, [3.0, 2.0, 7.0, 4.0]);
/// matmul(&mut c, &a, &b, Product::new(2, 2, 2).transpose_b().add());
/// assert_eq!(c, [4.0, 5.0, 10.0, 11.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    m: usize,
    k: usize,
    n: usize,
    a_is_transposed: bool,
    b_is_transposed: bool,
    adds: bool,
}

impl Product {
    /// `c = a b`.
    pub fn new(m: usize, k: usize, n: usize) -> Product {
        Product { m, k, n, a_is_transposed: false, b_is_transposed: false, adds: false }
    }

    /// The slice of the left factor holds `[k, m]`.
    pub fn transpose_a(self) -> Product {
        Product { a_is_transposed: true, ..self }
    }

    /// The slice of the right factor holds `[n, k]`.
    pub fn transpose_b(self) -> Product {
        Product { b_is_transposed: true, ..self }
    }

    /// `c += op(a) op(b)`.
    pub fn add(self) -> Product {
        Product { adds: true, ..self }
    }

    fn check<T>(self, c: &[T], a: &[T], b: &[T]) {
        let Product { m, k, n, .. } = self;
        check_shape!(a, m = m, k = k);
        check_shape!(b, k = k, n = n);
        check_shape!(c, m = m, n = n);
    }

    /// Rows and columns of the blocks of the result; a function of the shape only.
    fn block(self) -> (usize, usize) {
        let Product { m, k, n, .. } = self;
        let worthwhile = m * k * n / WORTH_A_TASK;
        if worthwhile < ENOUGH_BLOCKS {
            return (m, n.div_ceil(worthwhile.max(1)).next_multiple_of(BLOCK_COLUMNS));
        }
        let (mut down, mut columns) = (m.div_ceil(MOST_ROWS), BLOCK_COLUMNS);
        if down * n.div_ceil(columns) < ENOUGH_BLOCKS {
            columns /= 2;
            down = down.max(ENOUGH_BLOCKS / n.div_ceil(columns.max(1)));
        }
        (m.div_ceil(down).next_multiple_of(TILE_ROWS), columns)
    }
}

/// `c = op(a) op(b)`, or `c += op(a) op(b)`, on the current rayon pool.
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul<T: Float>(c: &mut [T], a: &[T], b: &[T], product: Product) {
    matmul_then(c, &mut [], a, b, product, |_, _, _, _| {});
}

/// `c = op(a) op(b) + bias` with `bias`, `[n]`, added to each row: a linear layer.
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul_bias<T: Float>(c: &mut [T], a: &[T], b: &[T], bias: &[T], product: Product) {
    let n = product.n;
    check_shape!(bias, n = n);
    matmul_then(c, &mut [], a, b, product, |_, columns, c, _| lanes::add(c, &bias[columns]));
}

/// [`matmul`], and then `finish` on every piece of a row of `c` while it is in cache. It is given the row, the columns of
/// the piece, the piece, and the same piece of `beside`, a second matrix of the shape of `c` (or an empty slice).
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul_then<T: Float>(
    c: &mut [T],
    beside: &mut [T],
    a: &[T],
    b: &[T],
    product: Product,
    finish: impl Fn(usize, Range<usize>, &mut [T], &mut [T]) + Sync,
) {
    product.check(c, a, b);
    let Product { m, n, .. } = product;
    let has_beside = !beside.is_empty();
    if has_beside {
        check_shape!(beside, m = m, n = n);
    }
    let (rows, columns) = product.block();
    let (c, beside) = (Matrix::new(c, n), Matrix::new(beside, n));
    let block = |i: usize, j: usize| {
        let (i, j) = (i * rows..m.min((i + 1) * rows), j * columns..n.min((j + 1) * columns));
        // SAFETY: `check` saw that the slices hold the matrices; the blocks lie in them and do not overlap.
        unsafe { multiply_block(product, c, a, b, i.clone(), j.clone()) };
        for row in i {
            // SAFETY: the piece belongs to this block, which is this task's alone.
            let piece = |matrix: Matrix<T>| unsafe { matrix.piece(row, j.clone()) };
            let beside = if has_beside { piece(beside) } else { &mut [] };
            finish(row, j.clone(), piece(c), beside);
        }
    };
    let (down, across) = (m.div_ceil(rows.max(1)), n.div_ceil(columns.max(1)));
    match down * across {
        0 => {}
        1 => block(0, 0),
        blocks => (0..blocks).into_par_iter().with_max_len(1).for_each(|t| block(t / across, t % across)),
    }
}

/// A row-major matrix that threads write in disjoint pieces.
#[derive(Clone, Copy)]
struct Matrix<T> {
    start: *mut T,
    columns: usize,
}

// SAFETY: it is written only through `piece` and `multiply_block`, whose callers give every piece to one thread.
unsafe impl<T: Send> Send for Matrix<T> {}
// SAFETY: likewise.
unsafe impl<T: Send> Sync for Matrix<T> {}

impl<T> Matrix<T> {
    fn new(values: &mut [T], columns: usize) -> Matrix<T> {
        Matrix { start: values.as_mut_ptr(), columns }
    }

    /// # Safety
    /// The piece lies in the matrix, which outlives it, and nothing else uses it meanwhile.
    unsafe fn piece<'a>(self, row: usize, columns: Range<usize>) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.columns + columns.start), columns.len()) }
    }
}

/// The block of the result at these rows and columns.
///
/// # Safety
/// `c`, `a` and `b` hold the matrices of `product`, the block lies inside the result, and nothing else uses it meanwhile.
unsafe fn multiply_block<T: Float>(
    product: Product,
    c: Matrix<T>,
    a: &[T],
    b: &[T],
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let Product { m, k, n, a_is_transposed, b_is_transposed, adds } = product;
    let (a_row, a_column) = if a_is_transposed { (1, m) } else { (k, 1) };
    let (b_row, b_column) = if b_is_transposed { (1, k) } else { (n, 1) };
    // SAFETY: by the caller's promise every element the kernel touches lies in its matrix, and it alone writes the block.
    unsafe {
        gemm::gemm(
            rows.len(),
            columns.len(),
            k,
            c.start.add(rows.start * n + columns.start),
            1,
            n as isize,
            adds,
            a.as_ptr().add(rows.start * a_row),
            a_column as isize,
            a_row as isize,
            b.as_ptr().add(columns.start * b_column),
            b_column as isize,
            b_row as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Adds the sum of the rows of `rows`, `[_, columns]`, to `sum`, `[columns]`: the gradient of a bias.
///
/// # Panics
/// If `rows` is not a whole number of rows.
pub fn add_rows<T: Float>(rows: &[T], sum: &mut [T]) {
    let columns = sum.len();
    let count = rows.len().checked_div(columns).unwrap_or(0);
    check_shape!(rows, count = count, columns = columns);
    if count == 0 {
        return;
    }
    let mut partial = vec![T::ZERO; count.div_ceil(ROWS_PER_TASK) * columns];
    rows.par_chunks(ROWS_PER_TASK * columns)
        .zip(partial.par_chunks_mut(columns))
        .for_each(|(rows, sum)| rows.chunks_exact(columns).for_each(|row| lanes::add(sum, row)));
    partial.chunks_exact(columns).for_each(|partial| lanes::add(sum, partial));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    fn plain(product: Product, c: &[f64], a: &[f64], b: &[f64]) -> Vec<f64> {
        let Product { m, k, n, a_is_transposed, b_is_transposed, adds } = product;
        let a = |i: usize, l: usize| if a_is_transposed { a[l * m + i] } else { a[i * k + l] };
        let b = |l: usize, j: usize| if b_is_transposed { b[j * k + l] } else { b[l * n + j] };
        let element = |i, j| (0..k).map(|l| a(i, l) * b(l, j)).sum::<f64>() + if adds { c[i * n + j] } else { 0.0 };
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    fn layouts(product: Product) -> [Product; 6] {
        [
            product,
            product.add(),
            product.transpose_a(),
            product.transpose_b(),
            product.transpose_a().transpose_b(),
            product.transpose_b().add(),
        ]
    }

    fn check_against_plain(m: usize, k: usize, n: usize, seed: u64) {
        let (a, b, c) = (random(m * k, seed), random(k * n, seed + 1), random(m * n, seed + 2));
        for product in layouts(Product::new(m, k, n)) {
            let want = plain(product, &c, &a, &b);
            let (mut double, mut float) = (c.clone(), single(&c));
            matmul(&mut double, &a, &b, product);
            matmul(&mut float, &single(&a), &single(&b), product);
            for i in 0..m * n {
                // rounding of k + 1 terms of size below 1, and of the inputs for f32
                let size = (k + 1) as f64;
                assert!((double[i] - want[i]).abs() <= 1e-15 * size, "{product:?} {i}");
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

    #[test]
    fn large_products_equal_plain_loops() {
        for (m, k, n) in [(MOST_ROWS + 1, 70, 65), (386, 33, 130), (7, 100, 1500), (769, 20, 129)] {
            let (rows, columns) = Product::new(m, k, n).block();
            assert!(rows < m || columns < n, "more than one block");
            check_against_plain(m, k, n, 7);
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        for (m, k, n) in [(500, 300, 200), (64, 1100, 900)] {
            let (a, b) = (single(&random(m * k, 1)), single(&random(k * n, 2)));
            for product in layouts(Product::new(m, k, n)) {
                assert_same_at_any_threads(|| {
                    let mut c = vec![0.5f32; m * n];
                    matmul(&mut c, &a, &b, product);
                    c
                });
            }
        }
    }

    #[test]
    fn every_piece_is_finished_once() {
        for (m, k, n) in [(2, 3, 4), (385, 40, 130)] {
            let (a, b, bias) = (random(m * k, 1), random(k * n, 2), random(n, 3));
            let product = Product::new(m, k, n);
            let (mut c, mut biased, mut want) = (vec![f64::NAN; m * n], vec![f64::NAN; m * n], vec![0.0; m * n]);
            let mut beside = vec![0.5; m * n];
            matmul(&mut want, &a, &b, product);
            matmul_bias(&mut biased, &a, &b, &bias, product);
            matmul_then(&mut c, &mut beside, &a, &b, product, |row, columns, c, beside| {
                for ((c, beside), column) in c.iter_mut().zip(beside).zip(columns) {
                    *beside += *c;
                    *c = (row * n + column) as f64;
                }
            });
            for i in 0..m * n {
                assert_eq!((c[i], beside[i], biased[i]), (i as f64, want[i] + 0.5, want[i] + bias[i % n]));
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
    #[should_panic(expected = "b: expected [k, n] = [3, 4] (12 values), got 11")]
    fn wrong_size_panics() {
        matmul(&mut [0.0f32; 8], &[0.0; 6], &[0.0; 11], Product::new(2, 3, 4));
    }
}
