//! Arithmetic on a chunk: the pairs of one query with a few dozen keys, channel by channel, `[channels, WIDTH]`.
//!
//! Channels are heads or hidden units, columns are keys. What lies after the last key of a chunk is zero or ignored.

use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::{RegisterBlock, StoreMode};

/// Keys of a chunk at most; whole vectors of every instruction set.
pub(super) const WIDTH: usize = 96;

/// Room for a vector of every instruction set.
pub(super) const ROOM: usize = 16;

/// An array `[channels, WIDTH]` of zeros.
pub(super) fn channels<T: Number>(count: usize) -> Vec<T> {
    vec![T::ZERO; count * WIDTH]
}

/// The same, and a vector more.
pub(super) fn channels_and_vector<T: Number>(count: usize) -> Vec<T> {
    vec![T::ZERO; count * WIDTH + ROOM]
}

/// Copies `[channels, stride]` to `[channels, WIDTH]` and clears up to a whole vector.
#[inline(always)]
pub(super) fn load<L: Lanes>(_: L, from: &[L::Number], stride: usize, to: &mut [L::Number], columns: usize) {
    for (to, from) in to.chunks_exact_mut(WIDTH).zip(from.chunks(stride)) {
        to[..columns].copy_from_slice(&from[..columns]);
        to[columns..columns.next_multiple_of(L::COUNT)].fill(L::Number::ZERO);
    }
}

/// What a hidden unit multiplies its input and its gradient by: 1 where `x`, its input or its value, is positive, `slope` elsewhere. A
/// factor, since a choice between a number and what is stored already becomes a masked store, which is slow on some processors.
#[inline(always)]
pub(super) fn factor<T: Number>(x: T, slope: T) -> T {
    if x > T::ZERO { T::ONE } else { slope }
}

/// `x` where it is positive, `slope x` elsewhere, in place.
#[inline(always)]
pub(super) fn rectify<T: Number>(values: &mut [T], slope: T) {
    values.iter_mut().for_each(|value| *value = factor(*value, slope) * *value);
}

/// Sums `sum over columns of a[m] b[n]`, `[M, N]`, each kept as a vector of partial sums until all chunks are in.
pub(super) struct ChunkSums<T> {
    shape: [usize; 2],
    partial: Vec<T>,
}

impl<T: Number> ChunkSums<T> {
    pub(super) fn new<L: Lanes>(shape: [usize; 2]) -> ChunkSums<T> {
        ChunkSums { shape, partial: vec![T::ZERO; shape[0] * shape[1] * L::COUNT] }
    }

    /// Adds a chunk: `a` is `[M, stride]`, `b` `[N, stride]`, both zero after the last column of at least one of them.
    #[inline(always)]
    pub(super) fn add<L: Lanes<Number = T>>(&mut self, lanes: L, a: (&[T], usize), b: (&[T], usize), columns: usize) {
        let columns = columns.next_multiple_of(L::COUNT);
        lanes.run(OuterProduct { a, b, columns, shape: self.shape, partial: &mut self.partial });
    }

    /// Adds the sums to `to[m * strides[0] + n * strides[1]]`.
    #[inline(always)]
    pub(super) fn finish<L: Lanes<Number = T>>(&self, lanes: L, to: &mut [T], strides: [usize; 2]) {
        for (at, partial) in self.partial.chunks_exact(L::COUNT).enumerate() {
            // SAFETY: a chunk is one vector long.
            let sum = lanes.sum(unsafe { lanes.load(partial.as_ptr()) });
            to[at / self.shape[1] * strides[0] + at % self.shape[1] * strides[1]] += sum;
        }
    }
}

struct OuterProduct<'a, T> {
    a: (&'a [T], usize),
    b: (&'a [T], usize),
    columns: usize,
    shape: [usize; 2],
    partial: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for OuterProduct<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let [m, n] = self.shape;
        let holds =
            |rows: usize, (data, stride): (&[T], usize)| rows == 0 || data.len() >= (rows - 1) * stride + self.columns;
        assert!(self.columns.is_multiple_of(L::COUNT) && holds(m, self.a) && holds(n, self.b));
        assert!(self.partial.len() >= m * n * L::COUNT);
        let partial = self.partial.as_mut_ptr();
        // sums that fill the registers, beside a vector of each channel
        let (rows, columns) = if L::BLOCK_ROWS.len() > 3 { (4, 4) } else { (2, 4) };
        for row in (0..m).step_by(rows) {
            for column in (0..n).step_by(columns) {
                // SAFETY: rows and columns of the blocks are below M and N, and the assertions bound the rest.
                unsafe {
                    match (m - row >= rows && n - column >= columns, rows) {
                        (true, 4) => block::<L, 4, 4>(lanes, &self, partial, row, column),
                        (true, _) => block::<L, 2, 4>(lanes, &self, partial, row, column),
                        (false, _) => {
                            for row in row..(row + rows).min(m) {
                                for column in column..(column + columns).min(n) {
                                    block::<L, 1, 1>(lanes, &self, partial, row, column);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// M by N sums.
///
/// # Safety
/// The operands hold `columns` numbers in rows below `row + M` and `column + N`; `partial` is `shape` whole vectors that
/// nothing else uses.
#[inline(always)]
unsafe fn block<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    outer: &OuterProduct<L::Number>,
    partial: *mut L::Number,
    row: usize,
    column: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let stride = outer.shape[1] * L::COUNT;
        let partial = partial.add(row * stride + column * L::COUNT);
        let mut sums = RegisterBlock::<L, M, N>::load(lanes, partial, stride);
        let (a, b) = (outer.a.0.as_ptr().add(row * outer.a.1), outer.b.0.as_ptr().add(column * outer.b.1));
        for key in (0..outer.columns).step_by(L::COUNT) {
            sums.add_vectors((a.add(key), outer.a.1), (b.add(key), outer.b.1));
        }
        sums.store(partial, stride, StoreMode::Overwrite);
    }
}
