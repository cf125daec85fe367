//! Products of few rows with a matrix, as a step of decoding has them: the matrix is read once, and little is computed with it.
//!
//! So its numbers are read in the order in which they lie, at the rate of the memory, while the kernels of the `gemm` crate read
//! a block of columns row after row. Of a matrix of `bf16` half as many bytes are read; its numbers are multiplied as `f32`.
//!
//! The bits of a row depend on the sizes of the matrix and on the instruction set: not on other rows, and not on the number of threads.

use super::MatmulShape;
use crate::Number;
use crate::cpu::lanes::{self, Lanes, SimdKernel};
use crate::cpu::reduce;
use crate::ops::kept::KeptSlice;
use crate::tiles::workers::for_each_task;
use std::array::from_fn;
use std::ops::Range;

/// Most rows.
pub(super) const MOST_ROWS: usize = 8;
/// Numbers of the matrix that are worth a task.
const WORTH_A_TASK: usize = 1 << 16;
/// Most tasks of a matrix whose rows are added up: each has sums of its own. It has so many rows at least.
const MOST_SUMS: usize = 16;
const ROWS_PER_SUM: usize = 32;
/// Columns whose sums stay in a cache while rows are added to them: many, since rows are read faster than pieces of them.
const COLUMNS: usize = 8192;
/// Rows that are added at once.
const AT_ONCE: usize = 4;

/// `a op(b)`, `[m, n]`.
pub(super) fn multiply<T: Number>(a: &[T], b: KeptSlice<T>, product: MatmulShape) -> Vec<T> {
    let MatmulShape { m, k, n, b_is_transposed, .. } = product;
    if b_is_transposed { dots(a, b, [m, k, n]) } else { sums_of_rows(a, b, [m, k, n]) }
}

/// Products with each row of a matrix `[n, k]`.
fn dots<T: Number>(a: &[T], b: KeptSlice<T>, [m, k, n]: [usize; 3]) -> Vec<T> {
    let rows = WORTH_A_TASK.div_ceil(k);
    let mut by_row = vec![T::ZERO; n * m];
    for_each_task(by_row.chunks_mut(rows * m), |task, dots| {
        let mut room = vec![T::ZERO; k];
        for (row, dots) in (task * rows..).zip(dots.chunks_exact_mut(m)) {
            let row = b.part(row * k..(row + 1) * k).read_all(&mut room);
            lanes::run(Dots { a, row, dots });
        }
    });
    if m == 1 { by_row } else { (0..m * n).map(|at| by_row[at % n * m + at / n]).collect() }
}

/// The sum of the rows of a matrix `[k, n]`, each times a number of each row of `a`.
fn sums_of_rows<T: Number>(a: &[T], b: KeptSlice<T>, [m, k, n]: [usize; 3]) -> Vec<T> {
    let tasks = (k * n / WORTH_A_TASK).min(k / ROWS_PER_SUM).clamp(1, MOST_SUMS);
    let rows = |task: usize| task * k / tasks..(task + 1) * k / tasks;
    let mut sums = vec![T::ZERO; tasks * m * n];
    for_each_task(sums.chunks_mut(m * n), |task, sums| match b {
        KeptSlice::Exact(b) => lanes::run(SumOfRows { a, b, k, rows: rows(task), n, sums }),
        KeptSlice::Bf16(b) => lanes::run(SumOfRows { a, b: Short(b), k, rows: rows(task), n, sums }),
    });
    let (all, others) = sums.split_at_mut(m * n);
    others.chunks_exact(m * n).for_each(|sums| reduce::add(all, sums));
    sums.truncate(m * n);
    sums
}

/// Dots of one row of a matrix with each row of `a`.
struct Dots<'a, R> {
    a: &'a [R],
    row: &'a [R],
    dots: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for Dots<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let Dots { a, row, dots } = self;
        let k = row.len();
        let (whole, quads) = (k / L::COUNT * L::COUNT, k / (4 * L::COUNT) * 4 * L::COUNT);
        for (a, dot) in a.chunks_exact(k).zip(dots) {
            let mut sums = [lanes.splat(R::ZERO); 4];
            // SAFETY: both rows have `k` numbers.
            let add = |at: usize, sum: L::Vector| unsafe {
                lanes.mul_add(lanes.load(a.as_ptr().add(at)), lanes.load(row.as_ptr().add(at)), sum)
            };
            for at in (0..quads).step_by(4 * L::COUNT) {
                sums = from_fn(|i| add(at + i * L::COUNT, sums[i]));
            }
            for at in (quads..whole).step_by(L::COUNT) {
                sums[0] = add(at, sums[0]);
            }
            let [even, odd] = [[0, 2], [1, 3]].map(|[i, j]| lanes.add(sums[i], sums[j]));
            let rest = (whole..k).fold(R::ZERO, |sum, at| sum + a[at] * row[at]);
            *dot = lanes.sum(lanes.add(even, odd)) + rest;
        }
    }
}

/// Numbers to read.
trait Matrix<R: Number>: Copy {
    /// How many there are.
    fn len(self) -> usize;

    /// The number at this place.
    fn at(self, place: usize) -> R;

    /// The numbers from this place on.
    ///
    /// # Safety
    /// There are as many as a vector has.
    unsafe fn load<L: Lanes<Number = R>>(self, lanes: L, place: usize) -> L::Vector;
}

impl<R: Number> Matrix<R> for &[R] {
    #[inline(always)]
    fn len(self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn at(self, place: usize) -> R {
        self[place]
    }
    #[inline(always)]
    unsafe fn load<L: Lanes<Number = R>>(self, lanes: L, place: usize) -> L::Vector {
        // SAFETY: the caller's promise.
        unsafe { lanes.load(self.as_ptr().add(place)) }
    }
}

/// The bits of `bf16`.
#[derive(Clone, Copy)]
struct Short<'a>(&'a [u16]);

impl<R: Number> Matrix<R> for Short<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.0.len()
    }
    #[inline(always)]
    fn at(self, place: usize) -> R {
        R::from_bf16(self.0[place])
    }
    #[inline(always)]
    unsafe fn load<L: Lanes<Number = R>>(self, lanes: L, place: usize) -> L::Vector {
        // SAFETY: the caller's promise.
        unsafe { lanes.load_bf16(self.0.as_ptr().add(place)) }
    }
}

/// Adds rows of a matrix `[k, n]`, times numbers of each row of `a`, to `sums`, `[m, n]`.
struct SumOfRows<'a, R, B> {
    a: &'a [R],
    b: B,
    k: usize,
    rows: Range<usize>,
    n: usize,
    sums: &'a mut [R],
}

impl<R: Number, B: Matrix<R>> SimdKernel<R> for SumOfRows<'_, R, B> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let SumOfRows { a, b, k, rows, n, sums } = self;
        let m = sums.len() / n;
        assert!(rows.end <= k && k * n <= b.len() && m * k == a.len(), "factors of these sizes");
        let fours = rows.start..rows.end - rows.len() % AT_ONCE;
        for left in (0..n).step_by(COLUMNS) {
            let columns = left..n.min(left + COLUMNS);
            let whole = columns.end - columns.len() % L::COUNT;
            for row in fours.clone().step_by(AT_ONCE) {
                for column in (columns.start..whole).step_by(L::COUNT) {
                    // SAFETY: the vectors lie within the rows of the matrix and of the sums, and the numbers in those of `a`.
                    unsafe {
                        let of_rows: [_; AT_ONCE] = from_fn(|i| b.load(lanes, (row + i) * n + column));
                        for i in 0..m {
                            let (a, sums) = (a.as_ptr().add(i * k + row), sums.as_mut_ptr().add(i * n + column));
                            let mut sum = lanes.load(sums);
                            for (j, of_row) in of_rows.into_iter().enumerate() {
                                sum = lanes.mul_add(lanes.splat(*a.add(j)), of_row, sum);
                            }
                            lanes.store(sums, sum);
                        }
                    }
                }
                add_numbers(a, b, k, row..row + AT_ONCE, n, whole..columns.end, sums);
            }
            add_numbers(a, b, k, fours.end..rows.end, n, columns, sums);
        }
    }
}

/// The same for what does not fill vectors.
#[inline(always)]
fn add_numbers<R: Number>(
    a: &[R],
    b: impl Matrix<R>,
    k: usize,
    rows: Range<usize>,
    n: usize,
    columns: Range<usize>,
    sums: &mut [R],
) {
    for row in rows {
        for (a, sums) in a.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
            for column in columns.clone() {
                sums[column] += a[row] * b.at(row * n + column);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MatmulShape, Out, matmul};
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_same_at_any_threads, random, single};

    /// Rows and columns that do not fill vectors, several tasks, and columns beyond those of a block.
    const SIZES: [[usize; 2]; 4] = [[1, 1], [37, 70], [41, COLUMNS + 100], [600, 500]];

    fn made<T: Number>(a: &[T], b: &[T], product: MatmulShape) -> Vec<T> {
        let mut c = Vec::new();
        matmul(Out::Append(&mut c), a, b, product);
        c
    }

    #[test]
    fn every_instruction_set_makes_the_sums() {
        for [k, n] in SIZES {
            for product in [MatmulShape::new(MOST_ROWS, k, n), MatmulShape::new(MOST_ROWS, k, n).transpose_b()] {
                let (a, b) = (random(MOST_ROWS * k, 1), random(k * n, 2));
                let want = made(&a, &b, product);
                let term = |i: usize, j: usize, l: usize| {
                    a[i * k + l] * b[if product.b_is_transposed { j * k + l } else { l * n + j }]
                };
                for (at, want) in want.iter().enumerate() {
                    let sum: f64 = (0..k).map(|l| term(at / n, at % n, l)).sum();
                    assert!((sum - want).abs() <= 1e-15 * (k + 1) as f64, "{product:?} {at}");
                }
                for found in on_every_set(|| made(&single(&a), &single(&b), product)) {
                    for (found, want) in found.iter().zip(&want) {
                        // rounding of k + 1 terms of size below 1, and of the inputs
                        assert!((f64::from(*found) - want).abs() <= 3e-7 * (k + 1) as f64, "{product:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_beside_others_and_at_any_threads() {
        for [k, n] in SIZES {
            let (a, b) = (single(&random(MOST_ROWS * k, 1)), single(&random(k * n, 2)));
            let of_rows = |m: usize| [MatmulShape::new(m, k, n), MatmulShape::new(m, k, n).transpose_b()];
            for (all, one) in of_rows(MOST_ROWS).into_iter().zip(of_rows(1)) {
                let all = made(&a, &b, all);
                assert_eq!(all, a.chunks(k).flat_map(|a| made(a, &b, one)).collect::<Vec<_>>());
                assert_same_at_any_threads(|| made(&a[..k], &b, one));
            }
        }
    }
}
