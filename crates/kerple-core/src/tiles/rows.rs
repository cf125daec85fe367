//! Copies between strided arrays and tiles: what a tile holds is contiguous and padded to whole vectors.

use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};

/// `to[r, d] = factor * from[r, d]`, and zeros up to `width`.
pub(crate) struct CopyRows<'a, R> {
    pub(crate) from: &'a [R],
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) head_dim: usize,
    pub(crate) factor: R,
    pub(crate) to: &'a mut [R],
    pub(crate) width: usize,
}

impl<R: Number> SimdKernel<R> for CopyRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        for (r, to) in self.to.chunks_exact_mut(self.width).take(self.rows).enumerate() {
            let (to, padding) = to.split_at_mut(self.head_dim);
            scale_row(lanes, to, self.factor, &self.from[r * self.stride..]);
            padding.fill(R::ZERO);
        }
    }
}

/// `to[d, r] = factor * from[r, d]`, and zeros from the last row up to `width`.
pub(crate) struct Transpose<'a, R> {
    pub(crate) from: &'a [R],
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) head_dim: usize,
    pub(crate) factor: R,
    pub(crate) to: &'a mut [R],
    pub(crate) width: usize,
}

impl<R: Number> SimdKernel<R> for Transpose<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let Self { from, stride, rows, head_dim, factor, to, width } = self;
        let (whole_rows, whole_dim) = (rows / L::SIDE * L::SIDE, head_dim / L::SIDE * L::SIDE);
        assert!(rows <= width && to.len() >= head_dim * width);
        for r in (0..whole_rows).step_by(L::SIDE) {
            let from = &from[r * stride..];
            assert!(from.len() >= (L::SIDE - 1) * stride + head_dim);
            for d in (0..whole_dim).step_by(L::SIDE) {
                // SAFETY: `r + SIDE <= width` and `d + SIDE <= head_dim`, so the assertions bound both squares.
                unsafe {
                    lanes.transpose(from.as_ptr().add(d), stride, to.as_mut_ptr().add(d * width + r), width, factor)
                };
            }
        }
        for r in 0..rows {
            let done = if r < whole_rows { whole_dim } else { 0 };
            for (d, &from) in from[r * stride..][..head_dim].iter().enumerate().skip(done) {
                to[d * width + r] = factor * from;
            }
        }
        to.chunks_exact_mut(width).take(head_dim).for_each(|to| to[rows..].fill(R::ZERO));
    }
}

/// `to[d, r] += from[r, d]`
pub(crate) struct AddTransposed<'a, R> {
    pub(crate) from: &'a [R],
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) to: &'a mut [R],
    pub(crate) width: usize,
}

impl<R: Number> SimdKernel<R> for AddTransposed<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        /// The most numbers of a square of any lanes.
        const SQUARE: usize = 64;
        let Self { from, stride, rows, columns, to, width } = self;
        let (whole_rows, whole_columns) = (rows / L::SIDE * L::SIDE, columns / L::SIDE * L::SIDE);
        assert!(L::SIDE * L::SIDE <= SQUARE && rows <= width && to.len() >= columns * width);
        let mut square = [R::ZERO; SQUARE];
        for r in (0..whole_rows).step_by(L::SIDE) {
            let from = &from[r * stride..];
            assert!(from.len() >= (L::SIDE - 1) * stride + columns);
            for d in (0..whole_columns).step_by(L::SIDE) {
                // SAFETY: `d + SIDE <= columns`, so the assertions bound both squares.
                unsafe { lanes.transpose(from.as_ptr().add(d), stride, square.as_mut_ptr(), L::SIDE, R::ONE) };
                for (row, square) in square.chunks_exact(L::SIDE).take(L::SIDE).enumerate() {
                    let to = &mut to[(d + row) * width + r..][..L::SIDE];
                    to.iter_mut().zip(square).for_each(|(to, from)| *to += *from);
                }
            }
        }
        for r in 0..rows {
            let done = if r < whole_rows { whole_columns } else { 0 };
            for (d, &from) in from[r * stride..][..columns].iter().enumerate().skip(done) {
                to[d * width + r] += from;
            }
        }
    }
}

/// `to += from`, as far as `to` goes.
pub(crate) struct AddRow<'a, R> {
    pub(crate) to: &'a mut [R],
    pub(crate) from: &'a [R],
}

impl<R: Number> SimdKernel<R> for AddRow<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        let from = &self.from[..self.to.len()];
        let whole = from.len() / L::COUNT * L::COUNT;
        for d in (0..whole).step_by(L::COUNT) {
            // SAFETY: both slices hold `whole` numbers.
            unsafe {
                let to = self.to.as_mut_ptr().add(d);
                lanes.store(to, lanes.add(lanes.load(to), lanes.load(from.as_ptr().add(d))));
            }
        }
        for (to, &from) in self.to[whole..].iter_mut().zip(&from[whole..]) {
            *to += from;
        }
    }
}

/// `to += factor * from`, as far as `to` goes.
pub(crate) struct AddScaledRow<'a, R> {
    pub(crate) to: &'a mut [R],
    pub(crate) factor: R,
    pub(crate) from: &'a [R],
}

impl<R: Number> SimdKernel<R> for AddScaledRow<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, _: L) {
        self.to.iter_mut().zip(self.from).for_each(|(to, &from)| *to += self.factor * from);
    }
}

/// `to = factor * from`, as far as `to` goes.
pub(crate) struct ScaleRow<'a, R> {
    pub(crate) to: &'a mut [R],
    pub(crate) factor: R,
    pub(crate) from: &'a [R],
}

impl<R: Number> SimdKernel<R> for ScaleRow<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = R>>(self, lanes: L) {
        scale_row(lanes, self.to, self.factor, self.from);
    }
}

/// `to = factor * from`, as far as `to` goes.
#[inline(always)]
fn scale_row<L: Lanes>(lanes: L, to: &mut [L::Number], factor: L::Number, from: &[L::Number]) {
    let from = &from[..to.len()];
    let whole = from.len() / L::COUNT * L::COUNT;
    for d in (0..whole).step_by(L::COUNT) {
        // SAFETY: both slices hold `whole` numbers.
        unsafe {
            let scaled = lanes.mul(lanes.splat(factor), lanes.load(from.as_ptr().add(d)));
            lanes.store(to.as_mut_ptr().add(d), scaled);
        }
    }
    for (to, &from) in to[whole..].iter_mut().zip(&from[whole..]) {
        *to = factor * from;
    }
}

/// `to[j] = q.k[j]`
pub(crate) struct Dots<'a, R> {
    pub(crate) q: &'a [R],
    pub(crate) k: &'a [R],
    pub(crate) stride: usize,
    pub(crate) to: &'a mut [R],
}

impl<R: Number> SimdKernel<R> for Dots<'_, R> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::InstructionSet;
    use crate::cpu::lanes::Dispatch;

    #[test]
    fn transposes_and_copies_pad_with_zeros() {
        for (rows, head_dim) in (0..20).flat_map(|rows| (1..20).map(move |head_dim| (rows, head_dim))) {
            let (stride, width) = (head_dim + 3, 24);
            let from: Vec<f32> = (0..(rows * stride + head_dim)).map(|i| i as f32).collect();
            for set in InstructionSet::available() {
                let mut turned = vec![f32::NAN; head_dim * width];
                let to = &mut turned[..];
                f32::dispatch(set, Transpose { from: &from, stride, rows, head_dim, factor: 2.0, to, width });
                let mut copied = vec![f32::NAN; rows * width];
                let to = &mut copied[..];
                f32::dispatch(set, CopyRows { from: &from, stride, rows, head_dim, factor: 2.0, to, width });
                for (r, d) in (0..width).flat_map(|r| (0..width).map(move |d| (r, d))) {
                    let want = if r < rows && d < head_dim { 2.0 * from[r * stride + d] } else { 0.0 };
                    assert!(d >= head_dim || turned[d * width + r] == want, "{set:?} {rows} x {head_dim} at {r}, {d}");
                    assert!(r >= rows || copied[r * width + d] == want, "{set:?} {rows} x {head_dim} at {r}, {d}");
                }
                let mut added = vec![1.0; head_dim * width];
                let to = &mut added[..];
                f32::dispatch(set, AddTransposed { from: &from, stride, rows, columns: head_dim, to, width });
                let is_added = |d: usize, r: usize| if r < rows { 1.0 + from[r * stride + d] } else { 1.0 };
                assert!((0..head_dim * width).all(|at| added[at] == is_added(at / width, at % width)), "{set:?}");
                if rows > 0 {
                    let mut sum = vec![1.0; head_dim];
                    f32::dispatch(set, AddRow { to: &mut sum, from: &from });
                    assert!(sum.iter().zip(&from).all(|(sum, from)| *sum == from + 1.0));
                }
            }
        }
    }
}
