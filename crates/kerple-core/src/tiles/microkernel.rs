//! The microkernel: sums in registers, the one inner loop of all products in this crate. Callers
//! define how factors are laid out, which rows and vectors are taken together, and what is summed.

use crate::Number;
use crate::cpu::lanes::Lanes;

/// What sums do to the numbers of C that they are written over.
#[derive(Clone, Copy)]
pub(crate) enum StoreMode<'a, R> {
    /// `C = sums`
    Overwrite,
    /// `C += sums`
    Accumulate,
    /// `C[i] = factor[i] C[i] + sums[i]`
    Rescale(&'a [R]),
    /// `C = D + sums`, with D of the shape of C but its own stride.
    AddTo(&'a [R], usize),
}

impl<R> StoreMode<'_, R> {
    /// The same for a part of C that begins here.
    #[inline(always)]
    pub(crate) fn at(self, row: usize, column: usize) -> Self {
        match self {
            StoreMode::Overwrite | StoreMode::Accumulate => self,
            StoreMode::Rescale(factors) => StoreMode::Rescale(&factors[row..]),
            StoreMode::AddTo(from, stride) => StoreMode::AddTo(&from[row * stride + column..], stride),
        }
    }
}

/// M rows of N vectors, few enough to stay in registers while they add up (see [`Lanes::BLOCK_ROWS`]).
pub(crate) struct RegisterBlock<L: Lanes, const M: usize, const N: usize> {
    lanes: L,
    sums: [[L::Vector; N]; M],
}

#[allow(clippy::needless_range_loop, reason = "arrays walk together")]
impl<L: Lanes, const M: usize, const N: usize> RegisterBlock<L, M, N> {
    #[inline(always)]
    pub(crate) fn zeros(lanes: L) -> Self {
        RegisterBlock { lanes, sums: [[lanes.splat(L::Number::ZERO); N]; M] }
    }

    /// Sums as they were stored.
    ///
    /// # Safety
    /// N vectors can be read of each of M rows.
    #[inline(always)]
    pub(crate) unsafe fn load(lanes: L, from: *const L::Number, stride: usize) -> Self {
        let mut registers = Self::zeros(lanes);
        for m in 0..M {
            for n in 0..N {
                // SAFETY: the caller's promise.
                registers.sums[m][n] = unsafe { lanes.load(from.add(m * stride + n * L::COUNT)) };
            }
        }
        registers
    }

    /// Adds `a[m] b[n]`, of M numbers and of N vectors next to each other.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    pub(crate) unsafe fn add(&mut self, a: *const L::Number, a_stride: usize, b: *const L::Number) {
        let lanes = self.lanes;
        // SAFETY: the caller's promise.
        unsafe {
            let mut vectors = [lanes.splat(L::Number::ZERO); N];
            for n in 0..N {
                vectors[n] = lanes.load(b.add(n * L::COUNT));
            }
            for m in 0..M {
                self.add_row(m, lanes.splat(*a.add(m * a_stride)), vectors);
            }
        }
    }

    /// Adds `a[m] b[n]`, of M and N vectors, number by number.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    pub(crate) unsafe fn add_vectors(
        &mut self,
        (a, a_stride): (*const L::Number, usize),
        (b, b_stride): (*const L::Number, usize),
    ) {
        let lanes = self.lanes;
        // SAFETY: the caller's promise.
        unsafe {
            let mut vectors = [lanes.splat(L::Number::ZERO); N];
            for n in 0..N {
                vectors[n] = lanes.load(b.add(n * b_stride));
            }
            for m in 0..M {
                self.add_row(m, lanes.load(a.add(m * a_stride)), vectors);
            }
        }
    }

    #[inline(always)]
    fn add_row(&mut self, m: usize, a: L::Vector, b: [L::Vector; N]) {
        for n in 0..N {
            self.sums[m][n] = self.lanes.mul_add(a, b[n], self.sums[m][n]);
        }
    }

    /// Writes the sums to C.
    ///
    /// # Safety
    /// N vectors of each of M rows of C can be read and written, and what is kept is as long.
    #[inline(always)]
    pub(crate) unsafe fn store(self, c: *mut L::Number, c_stride: usize, store: StoreMode<L::Number>) {
        let RegisterBlock { lanes, sums } = self;
        // one form for all that is kept, without branches: so the loops unroll, and the sums stay in registers
        let one = L::Number::ONE;
        let (from, stride, factors, step) = match store {
            StoreMode::Overwrite => {
                for m in 0..M {
                    for n in 0..N {
                        // SAFETY: the caller's promise.
                        unsafe { lanes.store(c.add(m * c_stride + n * L::COUNT), sums[m][n]) };
                    }
                }
                return;
            }
            StoreMode::Accumulate => (c.cast_const(), c_stride, &raw const one, 0),
            StoreMode::Rescale(factors) => (c.cast_const(), c_stride, factors.as_ptr(), 1),
            StoreMode::AddTo(from, stride) => (from.as_ptr(), stride, &raw const one, 0),
        };
        for m in 0..M {
            // SAFETY: the caller's promise.
            unsafe {
                let factor = lanes.splat(*factors.add(m * step));
                for n in 0..N {
                    let kept = lanes.load(from.add(m * stride + n * L::COUNT));
                    lanes.store(c.add(m * c_stride + n * L::COUNT), lanes.mul_add(kept, factor, sums[m][n]));
                }
            }
        }
    }
}
