//! Matrix products of row-major slices, on the `gemm` crate's kernels.
//!
//! A product is cut into blocks of the result whose sizes depend on its shape only, one block a task, each computed by
//! one thread. So the bits do not depend on the number of threads, and a slow core delays one block, not half the work.

use super::{Float, ROWS_PER_TASK, lanes};
use crate::check_shape;
use rayon::prelude::*;

/// Rows of a block of the result. A multiple of the kernel's tile (6 by 64 with AVX-512), and enough for packing the
/// right factor to be cheap.
const BLOCK_ROWS: usize = 192;
/// Rows and most columns of a block when the left factor is transposed: then packing the left factor costs as well.
const BLOCK_SIDE: usize = 768;
/// Fewest blocks a large product is cut into, and the narrowest they may be.
const ENOUGH_BLOCKS: usize = 12;
const NARROWEST_BLOCK: usize = 64;
/// Products of fewer multiplications than this run as one block.
const SMALL: usize = 64 * 64 * 64;

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
        if m * k * n < SMALL {
            return (m, n);
        }
        let (rows, mut columns) = if self.a_is_transposed { (BLOCK_SIDE, n.min(BLOCK_SIDE)) } else { (BLOCK_ROWS, n) };
        while m.div_ceil(rows) * n.div_ceil(columns) < ENOUGH_BLOCKS && columns > NARROWEST_BLOCK {
            columns = (columns / 2).next_multiple_of(NARROWEST_BLOCK);
        }
        (rows, columns)
    }
}

/// `c = op(a) op(b)`, or `c += op(a) op(b)`, on the current rayon pool.
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul<T: Float>(c: &mut [T], a: &[T], b: &[T], product: Product) {
    multiply(c, a, b, None, product);
}

/// `c = op(a) op(b) + bias` with `bias`, `[n]`, added to each row: a linear layer.
///
/// # Panics
/// If a slice has the wrong size, or the product is one that adds to `c`.
pub fn matmul_bias<T: Float>(c: &mut [T], a: &[T], b: &[T], bias: &[T], product: Product) {
    let n = product.n;
    check_shape!(bias, n = n);
    assert!(!product.adds, "matmul_bias overwrites: the bias starts the sums");
    multiply(c, a, b, Some(bias), product.add());
}

fn multiply<T: Float>(c: &mut [T], a: &[T], b: &[T], bias: Option<&[T]>, product: Product) {
    product.check(c, a, b);
    if product.b_is_transposed && product.m > BLOCK_ROWS {
        // the kernels pack a transposed right factor slowly, and anew for each block
        let b = transposed(b, product.n, product.k);
        return multiply(c, a, &b, bias, Product { b_is_transposed: false, ..product });
    }
    let Product { m, n, .. } = product;
    let (rows, columns) = product.block();
    let c = Address(c.as_mut_ptr());
    let block = |i: usize, j: usize| {
        let corner = (i * rows, j * columns);
        let size = (rows.min(m - corner.0), columns.min(n - corner.1));
        // SAFETY: `check` saw that the slices hold the matrices; the blocks lie in them and do not overlap.
        unsafe { multiply_block(product, c, a, b, bias, corner, size) }
    };
    let (down, across) = (m.div_ceil(rows.max(1)), n.div_ceil(columns.max(1)));
    match down * across {
        0 => {}
        1 => block(0, 0),
        blocks => (0..blocks).into_par_iter().with_max_len(1).for_each(|t| block(t / across, t % across)),
    }
}

/// [`matmul`] by the calling thread alone, for callers that are one of many tasks.
///
/// # Panics
/// If a slice has the wrong size.
pub fn matmul_serial<T: Float>(c: &mut [T], a: &[T], b: &[T], product: Product) {
    product.check(c, a, b);
    if product.m * product.n > 0 {
        // SAFETY: `check` saw that the slices hold the matrices; the block is all of `c`.
        unsafe { multiply_block(product, Address(c.as_mut_ptr()), a, b, None, (0, 0), (product.m, product.n)) }
    }
}

/// Where the result starts; threads write disjoint blocks of it.
#[derive(Clone, Copy)]
struct Address<T>(*mut T);

// SAFETY: only `multiply_block` writes through it, and its callers give every block to one thread.
unsafe impl<T: Send> Send for Address<T> {}
// SAFETY: likewise.
unsafe impl<T: Send> Sync for Address<T> {}

/// The block of the result with this corner and size, started from `bias` if there is one.
///
/// # Safety
/// `c`, `a`, `b` and `bias` hold the matrices of `product`, the block lies inside the result, and nothing else uses it meanwhile.
unsafe fn multiply_block<T: Float>(
    product: Product,
    c: Address<T>,
    a: &[T],
    b: &[T],
    bias: Option<&[T]>,
    (i, j): (usize, usize),
    (rows, columns): (usize, usize),
) {
    let Product { m, k, n, a_is_transposed, b_is_transposed, adds } = product;
    let (a_row, a_column) = if a_is_transposed { (1, m) } else { (k, 1) };
    let (b_row, b_column) = if b_is_transposed { (1, k) } else { (n, 1) };
    if let Some(bias) = bias {
        for row in i..i + rows {
            // SAFETY: the block lies inside the result and is this call's alone, by the caller's promise.
            let row = unsafe { std::slice::from_raw_parts_mut(c.0.add(row * n + j), columns) };
            row.copy_from_slice(&bias[j..j + columns]);
        }
    }
    // SAFETY: by the caller's promise every element the kernel touches lies in its matrix, and it alone writes the block.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            k,
            c.0.add(i * n + j),
            1,
            n as isize,
            adds,
            a.as_ptr().add(i * a_row),
            a_column as isize,
            a_row as isize,
            b.as_ptr().add(j * b_column),
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

/// The transpose of a `[rows, columns]` matrix.
///
/// # Panics
/// If the slice has the wrong size.
pub fn transposed<T: Float>(matrix: &[T], rows: usize, columns: usize) -> Vec<T> {
    /// Side of the squares that are moved at once: a cache line of `f32`.
    const TILE: usize = 16;
    /// Columns of a task: neighbouring lines of a row are read one after the other.
    const STRIP: usize = 8 * TILE;
    check_shape!(matrix, rows = rows, columns = columns);
    let mut result = vec![T::ZERO; matrix.len()];
    if matrix.is_empty() {
        return result;
    }
    result.par_chunks_mut(STRIP * rows).enumerate().for_each(|(strip, result)| {
        for first_row in (0..rows).step_by(TILE) {
            let height = TILE.min(rows - first_row);
            for (tile, result) in result.chunks_mut(TILE * rows).enumerate() {
                let (first_column, width) = (strip * STRIP + tile * TILE, result.len() / rows);
                let mut square = [[T::ZERO; TILE]; TILE];
                for row in 0..height {
                    let from = &matrix[(first_row + row) * columns + first_column..][..width];
                    for (column, value) in from.iter().enumerate() {
                        square[column][row] = *value;
                    }
                }
                for (line, to) in square.iter().zip(result.chunks_exact_mut(rows)) {
                    to[first_row..first_row + height].copy_from_slice(&line[..height]);
                }
            }
        }
    });
    result
}

/// The sum of the rows of `rows`, `[_, columns]`, into `sum`, `[columns]`: the gradient of a bias.
///
/// # Panics
/// If `rows` is not a whole number of rows.
pub fn sum_rows<T: Float>(rows: &[T], sum: &mut [T]) {
    let columns = sum.len();
    let count = rows.len().checked_div(columns).unwrap_or(0);
    check_shape!(rows, count = count, columns = columns);
    sum.fill(T::ZERO);
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
            let (mut double, mut serial, mut float) = (c.clone(), c.clone(), single(&c));
            matmul(&mut double, &a, &b, product);
            matmul_serial(&mut serial, &a, &b, product);
            matmul(&mut float, &single(&a), &single(&b), product);
            for i in 0..m * n {
                // rounding of k + 1 terms of size below 1, and of the inputs for f32
                let size = (k + 1) as f64;
                assert!((double[i] - want[i]).abs() <= 1e-15 * size, "{product:?} {i}");
                assert!((serial[i] - want[i]).abs() <= 1e-15 * size, "{product:?} {i}");
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

        #[test]
        fn transposing_moves_every_element(rows in 0usize..70, columns in 0usize..70) {
            let matrix: Vec<f64> = (0..rows * columns).map(|i| i as f64).collect();
            let result = transposed(&matrix, rows, columns);
            for (i, value) in matrix.iter().enumerate() {
                prop_assert_eq!(result[i % columns * rows + i / columns], *value);
            }
        }
    }

    #[test]
    fn large_products_equal_plain_loops() {
        for (m, k, n) in
            [(BLOCK_ROWS + 1, 70, 65), (2 * BLOCK_ROWS - 1, 33, 130), (7, 100, 1500), (BLOCK_SIDE + 1, 20, 129)]
        {
            assert!(Product::new(m, k, n).block() != (m, n), "more than one block");
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
    fn bias_starts_each_row() {
        for (m, k, n) in [(2, 3, 4), (2 * BLOCK_ROWS + 1, 40, 130)] {
            let (a, b, bias) = (random(m * k, 1), random(k * n, 2), random(n, 3));
            for product in [Product::new(m, k, n), Product::new(m, k, n).transpose_b()] {
                let (mut c, mut want) = (vec![f64::NAN; m * n], vec![0.0; m * n]);
                matmul_bias(&mut c, &a, &b, &bias, product);
                matmul(&mut want, &a, &b, product);
                for (i, (c, want)) in c.iter().zip(&want).enumerate() {
                    // the bias comes first or last in a sum of k + 1 terms below 1
                    assert!((c - want - bias[i % n]).abs() < 1e-14, "{i}");
                }
            }
        }
    }

    #[test]
    fn rows_are_summed() {
        let rows: Vec<f32> = (0..7 * 201).map(|i| i as f32).collect();
        let mut sum = [f32::NAN; 7];
        sum_rows(&rows, &mut sum);
        // 201 rows of 7 whole numbers: exact
        assert_eq!(sum, std::array::from_fn(|j| (201 * 200 / 2 * 7 + 201 * j) as f32));
        sum_rows(&[], &mut sum);
        assert_eq!(sum, [0.0; 7]);
        assert_same_at_any_threads(|| {
            let mut sum = [0.0f32; 7];
            sum_rows(&single(&random(7 * 1000, 1)), &mut sum);
            sum
        });
    }

    #[test]
    #[should_panic(expected = "b: expected [k, n] = [3, 4] (12 values), got 11")]
    fn wrong_size_panics() {
        matmul(&mut [0.0f32; 8], &[0.0; 6], &[0.0; 11], Product::new(2, 3, 4));
    }
}
