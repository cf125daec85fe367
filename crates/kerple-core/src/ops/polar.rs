//! Queries and keys of packed rows as lengths and angles, see [`PolarMap`](crate::forms::PolarMap).
//!
//! ```text
//! y_n = softplus(x_n) cos(phi_n)     y_{R+n} = softplus(x_n) sin(phi_n)     n < R         y_{R+n} = x_n     n >= R
//! phi_n = t f_n - delta_n of a query at position t, t f_n of a key
//! d_x_n = sigmoid(x_n) (d_y_n cos + d_y_{R+n} sin)     d_delta_n = sum over queries of softplus(x_n) (d_y_n sin - d_y_{R+n} cos)
//! ```
//!
//! Values are copied; they have room for as many features as queries.

use super::heads::{HeadLayout, in_order};
use super::{ROWS_PER_TASK, zeros};
use crate::cpu::vectorized;
use crate::tiles::workers::for_each_task;
use crate::{Number, check_shape};

/// Where queries, keys and values lie in a row before and after, and what queries and keys turn by.
#[derive(Clone, Copy, Debug)]
pub struct PolarRows<'a, T> {
    /// Before, D features per head.
    pub from: [HeadLayout; 3],
    /// After, D + R features per head.
    pub to: [HeadLayout; 3],
    /// Features with a length and an angle, R.
    pub width: usize,
    /// Cosines of `t f`, of rows, which begin again after the last: `[L, R]`, or `[B, L, R]`.
    pub cos: &'a [T],
    /// Sines likewise.
    pub sin: &'a [T],
    /// Cosines and sines of delta, `[H, R]`.
    pub delta: [&'a [T]; 2],
}

impl<'a, T: Number> PolarRows<'a, T> {
    fn check(&self, rows: usize) {
        let PolarRows { from, to, width, cos, sin, delta } = self;
        for (part, (from, to)) in from.iter().zip(to).enumerate() {
            let sizes = [from.heads, from.head_dim + width];
            assert_eq!([to.heads, to.head_dim], sizes, "part {part} has other heads after");
            from.check(rows * from.row);
            to.check(rows * to.row);
            assert!(*width > 0 && *width <= from.head_dim, "{width} polar features of {from:?}");
        }
        delta.iter().for_each(|of| check_shape!(of, H = from[0].heads, R = *width));
        check_shape!(sin, all = cos.len());
        let tokens = cos.len() / width;
        let whole = rows == 0 || (tokens > 0 && rows.is_multiple_of(tokens));
        assert!(whole && cos.len().is_multiple_of(*width), "angles of {tokens} tokens for {rows} rows");
    }

    /// Cosines and sines of the positions of a row.
    #[inline(always)]
    fn angles(&self, row: usize) -> [&'a [T]; 2] {
        let at = row * self.width % self.cos.len();
        [self.cos, self.sin].map(|of| &of[at..][..self.width])
    }

    /// Cosines and sines of a head's delta.
    #[inline(always)]
    fn delta(&self, head: usize) -> [&'a [T]; 2] {
        self.delta.map(|of| &of[head * self.width..][..self.width])
    }
}

/// Packed rows of queries, keys and values with room for their new features.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Number>(x: &[T], by: PolarRows<'_, T>) -> Vec<T> {
    let rows = x.len() / by.from[0].row.max(1);
    by.check(rows);
    check_shape!(x, rows = rows, width = by.from[0].row);
    let mut y = zeros(rows * by.to[0].row);
    let tasks = y.chunks_mut(ROWS_PER_TASK * by.to[0].row).zip(x.chunks(ROWS_PER_TASK * by.from[0].row));
    for_each_task(tasks, |task, (y, x)| polar_rows(x, y, by, task * ROWS_PER_TASK));
    y
}

/// The gradients in `x`, what [`forward`] was given, and in delta, `[H, R]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(x: &[T], d_y: &[T], by: PolarRows<'_, T>) -> [Vec<T>; 2] {
    let rows = x.len() / by.from[0].row.max(1);
    by.check(rows);
    check_shape!(x, rows = rows, width = by.from[0].row);
    check_shape!(d_y, rows = rows, width = by.to[0].row);
    let learned = by.delta[0].len();
    let mut d_x = zeros(x.len());
    let mut partial = vec![T::ZERO; rows.div_ceil(ROWS_PER_TASK) * learned];
    let pieces = d_x.chunks_mut(ROWS_PER_TASK * by.from[0].row).zip(x.chunks(ROWS_PER_TASK * by.from[0].row));
    let tasks = pieces.zip(d_y.chunks(ROWS_PER_TASK * by.to[0].row)).zip(partial.chunks_mut(learned.max(1)));
    for_each_task(tasks, |task, (((d_x, x), d_y), d_delta)| {
        polar_rows_backward(x, d_y, d_x, by, task * ROWS_PER_TASK, d_delta);
    });
    [d_x, in_order(&partial, learned)]
}

#[inline(always)]
fn softplus<T: Number>(x: T) -> T {
    let magnitude = if x < T::ZERO { -x } else { x };
    x.max(T::ZERO) + (-magnitude).exp().log_1p()
}

#[inline(always)]
fn sigmoid<T: Number>(x: T) -> T {
    let e = (if x < T::ZERO { x } else { -x }).exp();
    (if x < T::ZERO { e } else { T::ONE }) / (T::ONE + e)
}

vectorized! {
    /// [`forward`] of the rows from this one on, by one thread.
    fn polar_rows(x: &[T], y: &mut [T], by: PolarRows<'_, T>, first: usize) {
        let width = by.width;
        let rows = x.chunks_exact(by.from[0].row).zip(y.chunks_exact_mut(by.to[0].row));
        for (row, (x, y)) in rows.enumerate() {
            let [cos, sin] = by.angles(first + row);
            for (head, (x, y)) in by.from[0].of_row(x).zip(by.to[0].of_row_mut(y)).enumerate() {
                let [c, s] = by.delta(head);
                let (along, rest) = y.split_at_mut(width);
                let (across, others) = rest.split_at_mut(width);
                for n in 0..width {
                    let length = softplus(x[n]);
                    along[n] = length * (cos[n] * c[n] + sin[n] * s[n]);
                    across[n] = length * (sin[n] * c[n] - cos[n] * s[n]);
                }
                others.copy_from_slice(&x[width..]);
            }
            for (x, y) in by.from[1].of_row(x).zip(by.to[1].of_row_mut(y)) {
                let (along, rest) = y.split_at_mut(width);
                let (across, others) = rest.split_at_mut(width);
                for n in 0..width {
                    let length = softplus(x[n]);
                    along[n] = length * cos[n];
                    across[n] = length * sin[n];
                }
                others.copy_from_slice(&x[width..]);
            }
            for (x, y) in by.from[2].of_row(x).zip(by.to[2].of_row_mut(y)) {
                y[..x.len()].copy_from_slice(x);
            }
        }
    }
}

vectorized! {
    /// [`backward`] of the rows from this one on, by one thread; adds to the gradient in delta.
    fn polar_rows_backward(x: &[T], d_y: &[T], d_x: &mut [T], by: PolarRows<'_, T>, first: usize, d_delta: &mut [T]) {
        let width = by.width;
        let rows = x.chunks_exact(by.from[0].row).zip(d_x.chunks_exact_mut(by.from[0].row));
        for (row, ((x, d_x), d_y)) in rows.zip(d_y.chunks_exact(by.to[0].row)).enumerate() {
            let [cos, sin] = by.angles(first + row);
            let of_queries = by.from[0].of_row(x).zip(by.from[0].of_row_mut(d_x)).zip(by.to[0].of_row(d_y));
            for (head, ((x, d_x), d_y)) in of_queries.enumerate() {
                let ([c, s], d_delta) = (by.delta(head), &mut d_delta[head * width..][..width]);
                let (d_along, d_across) = (&d_y[..width], &d_y[width..][..width]);
                for n in 0..width {
                    let (cos, sin) = (cos[n] * c[n] + sin[n] * s[n], sin[n] * c[n] - cos[n] * s[n]);
                    d_x[n] = sigmoid(x[n]) * (d_along[n] * cos + d_across[n] * sin);
                    d_delta[n] += softplus(x[n]) * (d_along[n] * sin - d_across[n] * cos);
                }
                d_x[width..].copy_from_slice(&d_y[2 * width..]);
            }
            let of_keys = by.from[1].of_row(x).zip(by.from[1].of_row_mut(d_x)).zip(by.to[1].of_row(d_y));
            for ((x, d_x), d_y) in of_keys {
                let (d_along, d_across) = (&d_y[..width], &d_y[width..][..width]);
                for n in 0..width {
                    d_x[n] = sigmoid(x[n]) * (d_along[n] * cos[n] + d_across[n] * sin[n]);
                }
                d_x[width..].copy_from_slice(&d_y[2 * width..]);
            }
            for (d_x, d_y) in by.from[2].of_row_mut(d_x).zip(by.to[2].of_row(d_y)) {
                d_x.copy_from_slice(&d_y[..d_x.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_gradient, random};

    /// Rows of two query heads and one key head, 4 features of which 3 are polar.
    fn places(head_dim: usize) -> [HeadLayout; 3] {
        let row = 4 * head_dim;
        let place = |start, heads| HeadLayout { row, start, stride: head_dim, heads, head_dim };
        [place(0, 2), place(2 * head_dim, 1), place(3 * head_dim, 1)]
    }

    #[test]
    fn rows_are_lengths_and_angles_and_gradients_their_differences() {
        let (rows, width) = (ROWS_PER_TASK + 6, 3);
        assert!(rows.is_multiple_of(2));
        let (x, delta) = (random(rows * 16, 1), random(2 * width, 2));
        let angles: Vec<f64> =
            (0..rows / 2 * width).map(|at| (at / width) as f64 * 0.3f64.powi((at % width) as i32)).collect();
        let of = |values: &[f64], turn: fn(f64) -> f64| values.iter().map(|x| turn(*x)).collect::<Vec<f64>>();
        let (cos, sin) = (of(&angles, f64::cos), of(&angles, f64::sin));
        let run = |x: &[f64], delta: &[f64]| {
            let (c, s) = (of(delta, f64::cos), of(delta, f64::sin));
            let by = PolarRows { from: places(4), to: places(7), width, cos: &cos, sin: &sin, delta: [&c, &s] };
            forward(x, by)
        };
        let y = run(&x, &delta);
        for (row, y) in y.chunks_exact(28).enumerate() {
            let x = &x[row * 16..][..16];
            for head in 0..3 {
                for n in 0..4 {
                    let (x, got) = (x[head * 4 + n], |at: usize| y[head * 7 + at]);
                    if n == 3 {
                        assert_eq!(got(6), x);
                        continue;
                    }
                    let own = if head < 2 { delta[head * width + n] } else { 0.0 };
                    let (length, angle) = (x.exp().ln_1p(), angles[row % (rows / 2) * width + n] - own);
                    let error = (got(n) - length * angle.cos()).abs() + (got(width + n) - length * angle.sin()).abs();
                    assert!(error < 1e-12, "{row} {head} {n}");
                }
            }
            assert_eq!((&y[21..25], &y[25..]), (&x[12..], &[0.0; 3][..]));
        }
        let up = random(y.len(), 3);
        let loss = |x: &[f64], delta: &[f64]| run(x, delta).iter().zip(&up).map(|(y, up)| y * up).sum::<f64>();
        let (c, s) = (of(&delta, f64::cos), of(&delta, f64::sin));
        let by = PolarRows { from: places(4), to: places(7), width, cos: &cos, sin: &sin, delta: [&c, &s] };
        let [d_x, d_delta] = backward(&x, &up, by);
        assert_gradient("x", &x, &d_x, |x| loss(x, &delta));
        assert_gradient("delta", &delta, &d_delta, |delta| loss(&x, delta));
    }

    #[test]
    fn large_numbers_have_finite_lengths_and_slopes() {
        for x in [-1e4f32, -90.0, -1e-3, 0.0, 1e-3, 90.0, 1e4] {
            let (length, slope) = (softplus(x), sigmoid(x));
            assert!(length.is_finite() && length >= 0.0 && length >= x && (0.0..=1.0).contains(&slope), "{x}");
        }
    }
}
