//! Copies between strided arrays and tiles: what a tile holds is contiguous and padded to whole vectors.

use super::lanes::{Kernel, Lanes};
use crate::attention::Real;

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

impl<R: Real> Kernel<R> for CopyRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Real = R>>(self, _: L) {
        for (r, to) in self.to.chunks_exact_mut(self.width).take(self.rows).enumerate() {
            let (to, padding) = to.split_at_mut(self.head_dim);
            for (to, &from) in to.iter_mut().zip(&self.from[r * self.stride..]) {
                *to = self.factor * from;
            }
            padding.fill(R::ZERO);
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

impl<R: Real> Kernel<R> for Transpose<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Real = R>>(self, _: L) {
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

impl<R: Real> Kernel<R> for AddRow<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Real = R>>(self, _: L) {
        for (to, &from) in self.to.iter_mut().zip(self.from) {
            *to += from;
        }
    }
}
