//! Copies between strided arrays and tiles: what a tile holds is contiguous and padded to whole vectors.

use crate::Number;
use crate::cpu::lanes::{Kernel, Lanes};

/// `to[r, d] = factor * from[r, d]`, and zeros up to `width`.
pub(super) struct CopyRows<'a, R> {
    pub(super) from: &'a [R],
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) head_dim: usize,
    pub(super) factor: R,
    pub(super) to: &'a mut [R],
    pub(super) width: usize,
}

impl<R: Number> Kernel<R> for CopyRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        for (r, to) in self.to.chunks_exact_mut(self.width).take(self.rows).enumerate() {
            let (to, padding) = to.split_at_mut(self.head_dim);
            for (to, &from) in to.iter_mut().zip(&self.from[r * self.stride..]) {
                *to = self.factor * from;
            }
            if !padding.is_empty() {
                padding.fill(R::ZERO);
            }
        }
    }
}

/// `to[d, r] = factor * from[r, d]`, and zeros from the last row up to `width`.
pub(super) struct Transpose<'a, R> {
    pub(super) from: &'a [R],
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) head_dim: usize,
    pub(super) factor: R,
    pub(super) to: &'a mut [R],
    pub(super) width: usize,
}

impl<R: Number> Kernel<R> for Transpose<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        for r in 0..self.width {
            let column = self.to[r..].iter_mut().step_by(self.width).take(self.head_dim);
            if r < self.rows {
                for (to, &from) in column.zip(&self.from[r * self.stride..]) {
                    *to = self.factor * from;
                }
            } else {
                column.for_each(|to| *to = R::ZERO);
            }
        }
    }
}

/// `to += from`, as far as `to` goes.
pub(super) struct AddRow<'a, R> {
    pub(super) to: &'a mut [R],
    pub(super) from: &'a [R],
}

impl<R: Number> Kernel<R> for AddRow<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        for (to, &from) in self.to.iter_mut().zip(self.from) {
            *to += from;
        }
    }
}

/// `to = factor * from`, as far as `to` goes.
pub(super) struct ScaleRow<'a, R> {
    pub(super) to: &'a mut [R],
    pub(super) factor: R,
    pub(super) from: &'a [R],
}

impl<R: Number> Kernel<R> for ScaleRow<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        for (to, &from) in self.to.iter_mut().zip(self.from) {
            *to = self.factor * from;
        }
    }
}

/// `to[j] = q.k[j]`
pub(super) struct Dots<'a, R> {
    pub(super) q: &'a [R],
    pub(super) k: &'a [R],
    pub(super) stride: usize,
    pub(super) to: &'a mut [R],
}

impl<R: Number> Kernel<R> for Dots<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        for (j, to) in self.to.iter_mut().enumerate() {
            let k = &self.k[j * self.stride..][..self.q.len()];
            let mut sums = lanes.splat(R::ZERO);
            let whole = k.len() / L::COUNT * L::COUNT;
            for d in (0..whole).step_by(L::COUNT) {
                // SAFETY: both slices hold `whole` numbers.
                sums =
                    unsafe { lanes.mul_add(lanes.load(self.q.as_ptr().add(d)), lanes.load(k.as_ptr().add(d)), sums) };
            }
            *to = lanes.sum(sums);
            for (&q, &k) in self.q[whole..].iter().zip(&k[whole..]) {
                *to += q * k;
            }
        }
    }
}
