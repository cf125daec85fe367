//! Products over channels and neighbouring columns.

use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::microkernel::{RegisterBlock, StoreMode};
use crate::tiles::product::parts;

/// `c[m, x] = sum over channels and taps of a[m, channel, tap] b[channel, x + tap]`, written as `store` says; or, backwards,
/// of `b[channel, x + taps - 1 - tap]`. Sums stay in registers over all channels and taps.
pub(super) struct Taps<'a, T> {
    pub(super) rows: usize,
    pub(super) channels: usize,
    pub(super) taps: usize,
    /// A multiple of the lanes.
    pub(super) columns: usize,
    /// Taps lie side by side, rows and channels at these distances.
    pub(super) a: &'a [T],
    pub(super) a_strides: [usize; 2],
    pub(super) b: &'a [T],
    pub(super) b_stride: usize,
    pub(super) backwards: bool,
    pub(super) c: &'a mut [T],
    pub(super) c_stride: usize,
    pub(super) store: StoreMode<'a, T>,
}

impl<T: Number> Taps<'_, T> {
    /// Panics unless every index that `run` forms is within its slice.
    fn check(&self, lanes: usize) {
        let Self { rows, channels, taps, columns, a_strides: [row, channel], b_stride, c_stride, .. } = *self;
        let end = |count: usize, stride: usize, length: usize| {
            if count == 0 || length == 0 { 0 } else { (count - 1).saturating_mul(stride).saturating_add(length) }
        };
        assert!(columns.is_multiple_of(lanes) && taps > 0);
        assert!(self.a.len() >= end(rows, row, end(channels, channel, taps)));
        assert!(columns == 0 || self.b.len() >= end(channels, b_stride, columns + taps - 1));
        assert!(self.c.len() >= end(rows, c_stride, columns) && c_stride >= columns);
        match self.store {
            StoreMode::Overwrite | StoreMode::Accumulate => {}
            StoreMode::Rescale(factors) => assert!(factors.len() >= rows),
            StoreMode::AddTo(from, stride) => assert!(from.len() >= end(rows, stride, columns)),
        }
    }
}

impl<T: Number> SimdKernel<T> for Taps<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        self.check(L::COUNT);
        let c = self.c.as_mut_ptr();
        // sums that fill the registers, beside a vector of each column and a factor
        let vectors = if L::BLOCK_ROWS.len() > 3 { 4 } else { 2 };
        for (first, vectors) in parts(self.columns / L::COUNT, vectors) {
            let column = first * L::COUNT;
            for (row, rows) in parts(self.rows, L::BLOCK_ROWS[vectors - 1].min(6)) {
                macro_rules! block_of {
                    ($($m:literal $n:literal),+) => {
                        match (rows, vectors) {
                            // SAFETY: `check` has passed, and rows and columns of the block lie inside C.
                            $(($m, $n) if $n <= L::BLOCK_ROWS.len() => unsafe { block::<L, $m, $n>(lanes, &self, c, row, column) },)+
                            _ => unreachable!("blocks are at most 6 x 4"),
                        }
                    };
                }
                block_of!(
                    6 4, 5 4, 4 4, 3 4, 2 4, 1 4, 6 3, 5 3, 4 3, 3 3, 2 3, 1 3, 6 2, 5 2, 4 2, 3 2, 2 2, 1 2, 6 1, 5 1, 4 1, 3 1, 2 1,
                    1 1
                );
            }
        }
    }
}

/// M rows and N vectors of columns.
///
/// # Safety
/// `taps` is checked and holds the block at (`row`, `column`); `c` is its C.
#[inline(always)]
unsafe fn block<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    taps: &Taps<L::Number>,
    c: *mut L::Number,
    row: usize,
    column: usize,
) {
    let mut sums = RegisterBlock::<L, M, N>::zeros(lanes);
    let [row_stride, channel_stride] = taps.a_strides;
    // SAFETY: `check` bounds every index below; C is borrowed mutably by the product.
    unsafe {
        for channel in 0..taps.channels {
            let a = taps.a.as_ptr().add(row * row_stride + channel * channel_stride);
            let b = taps.b.as_ptr().add(channel * taps.b_stride + column);
            for tap in 0..taps.taps {
                sums.add(a.add(tap), row_stride, b.add(if taps.backwards { taps.taps - 1 - tap } else { tap }));
            }
        }
        sums.store(c.add(row * taps.c_stride + column), taps.c_stride, taps.store.at(row, column));
    }
}
