//! Steps between the projection of queries and keys and their rotation, in place on packed rows.
//!
//! ```text
//! shift   y_t = (1 - m[h]) x_t + m[h] x_{t-1}         x_{t-1}: of the token before, 0 where a sequence begins
//!         d_x_t = (1 - m[h]) d_y_t + m[h] d_y_{t+1}
//!         d_m[h] = sum over rows of d_y_t.(x_{t-1} - x_t)
//! norm    y = gamma x / sqrt(mean(x^2) + epsilon)     over the D features of each head
//!         d_x = rstd (g - u mean(g u))                u = x rstd,  g = gamma d_y
//!         d_gamma = sum over rows and heads of d_y u
//! scale   y = slope[h] log[i] x                       log[i]: of the number of keys that the query of row i sees
//!         d_slope[h] = sum over rows of log[i] d_y.x
//! ```

use super::ROWS_PER_TASK;
use crate::Number;
use crate::check_shape;
use crate::cpu::reduce;
use crate::cpu::vectorized;
use crate::tiles::workers::for_each_task;

/// Where the heads of one kind lie in each packed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// Values of a row.
    pub row: usize,
    /// Where the first head begins.
    pub start: usize,
    /// From the start of one head to the start of the next.
    pub stride: usize,
    /// Heads.
    pub heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
}

impl HeadLayout {
    pub(super) fn check(&self, values: usize) {
        let HeadLayout { row, start, stride, heads, head_dim } = *self;
        assert!(row > 0 && values.is_multiple_of(row), "rows: {values} values are not a multiple of {row}");
        assert!(head_dim > 0 && (heads < 2 || stride >= head_dim), "heads of {head_dim} at a stride of {stride}");
        let end = heads.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(start + head_dim));
        assert!(end.is_some_and(|end| end <= row), "{heads} heads of {self:?} exceed the row");
    }

    /// One head of the first of some rows.
    pub(super) fn head<'x, T>(&self, rows: &'x [T], head: usize) -> &'x [T] {
        &rows[self.start + head * self.stride..][..self.head_dim]
    }

    pub(super) fn head_mut<'x, T>(&self, rows: &'x mut [T], head: usize) -> &'x mut [T] {
        &mut rows[self.start + head * self.stride..][..self.head_dim]
    }

    /// The heads of one row, each with its number.
    #[inline(always)]
    pub(super) fn of_row<'x, T>(&self, row: &'x [T]) -> impl Iterator<Item = &'x [T]> + use<'x, T> {
        let HeadLayout { start, stride, heads, head_dim, .. } = *self;
        row[start..].chunks(stride.max(1)).take(heads).map(move |head| &head[..head_dim])
    }

    #[inline(always)]
    pub(super) fn of_row_mut<'x, T>(&self, row: &'x mut [T]) -> impl Iterator<Item = &'x mut [T]> + use<'x, T> {
        let HeadLayout { start, stride, heads, head_dim, .. } = *self;
        row[start..].chunks_mut(stride.max(1)).take(heads).map(move |head| &mut head[..head_dim])
    }
}

/// The norm of each head.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a, T> {
    /// Scale, `[D]`, of all heads.
    pub gamma: &'a [T],
    /// Added to the mean square.
    pub epsilon: f64,
}

/// A factor on each row of each head.
#[derive(Clone, Copy, Debug)]
pub struct ScalableSoftmax<'a, T> {
    /// `[H]`
    pub slopes: &'a [T],
    /// Of rows, which begin again after the last: `[L]`, or `[B, L]`.
    pub logs: &'a [T],
}

/// The share that each row takes of the row before it.
#[derive(Clone, Copy, Debug)]
pub struct TokenShift<'a, T> {
    /// `[H]`
    pub shares: &'a [T],
    /// Whether a row begins a sequence. Of rows, which begin again after the last: `[L]`, or `[B, L]`.
    pub is_first: &'a [bool],
}

/// Mixes the heads of rows `[rows, row]` with those of the rows before them.
///
/// # Panics
/// If a slice has the wrong size.
pub fn shift<T: Number>(x: &mut [T], place: HeadLayout, by: TokenShift<'_, T>) {
    by.check(place, x.len());
    let piece = ROWS_PER_TASK * place.row;
    // the last row of every task, as it was
    let last: Vec<T> = x.chunks(piece).flat_map(|rows| &rows[rows.len() - place.row..]).copied().collect();
    for_each_task(x.chunks_mut(piece), |task, rows| {
        for i in (0..rows.len() / place.row).rev() {
            let (earlier, row) = rows.split_at_mut(i * place.row);
            let before = match i {
                _ if by.begins(task * ROWS_PER_TASK + i) => None,
                0 => Some(&last[(task - 1) * place.row..]),
                _ => Some(&earlier[(i - 1) * place.row..]),
            };
            for (at, share) in by.shares.iter().enumerate() {
                mix(place.head_mut(row, at), before.map(|before| place.head(before, at)), *share);
            }
        }
    });
}

/// `(1 - share) x + share other`, in the place of `x`.
fn mix<T: Number>(x: &mut [T], other: Option<&[T]>, share: T) {
    x.iter_mut().for_each(|x| *x = *x * (T::ONE - share));
    let Some(other) = other else { return };
    x.iter_mut().zip(other).for_each(|(x, other)| *x += *other * share);
}

/// Turns the gradient in the result of [`shift`] into that in `x`, what it was given; returns that in the shares.
///
/// # Panics
/// If a slice has the wrong size.
pub fn shift_backward<T: Number>(x: &[T], d: &mut [T], place: HeadLayout, by: TokenShift<'_, T>) -> Vec<T> {
    by.check(place, x.len());
    check_shape!(d, all = x.len());
    let piece = ROWS_PER_TASK * place.row;
    let mut partial = vec![T::ZERO; x.len().div_ceil(piece) * place.heads];
    // the first row of every task, as it was
    let first: Vec<T> = d.chunks(piece).flat_map(|rows| &rows[..place.row]).copied().collect();
    let tasks = d.chunks_mut(piece).zip(partial.chunks_mut(place.heads.max(1)));
    for_each_task(tasks, |task, (d, d_shares)| {
        for i in 0..d.len() / place.row {
            let number = task * ROWS_PER_TASK + i;
            let (row, later) = d[i * place.row..].split_at_mut(place.row);
            let later = if later.is_empty() { &first[((task + 1) * place.row).min(first.len())..] } else { later };
            let later = (!later.is_empty() && !by.begins(number + 1)).then_some(later);
            let before = (!by.begins(number)).then(|| &x[(number - 1) * place.row..]);
            for (at, (share, d_share)) in by.shares.iter().zip(&mut *d_shares).enumerate() {
                let d = place.head_mut(row, at);
                let found = before.map_or(T::ZERO, |before| reduce::dot(d, place.head(before, at)));
                *d_share += found - reduce::dot(d, place.head(&x[number * place.row..], at));
                mix(d, later.map(|later| place.head(later, at)), *share);
            }
        }
    });
    in_order(&partial, place.heads)
}

impl<T: Number> TokenShift<'_, T> {
    fn begins(&self, row: usize) -> bool {
        self.is_first[row % self.is_first.len()]
    }

    fn check(&self, place: HeadLayout, values: usize) {
        place.check(values);
        check_shape!(self.shares, H = place.heads);
        let rows = values / place.row;
        let whole = rows == 0 || (!self.is_first.is_empty() && rows.is_multiple_of(self.is_first.len()));
        assert!(whole, "is_first: {} values do not fit {rows} rows", self.is_first.len());
        assert!(rows == 0 || self.is_first[0], "the first row begins a sequence");
    }
}

/// Normalises the heads of rows `[rows, row]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn norm<T: Number>(x: &mut [T], place: HeadLayout, by: HeadNorm<'_, T>) {
    place.check(x.len());
    check_shape!(by.gamma, D = place.head_dim);
    for_each_task(x.chunks_mut(ROWS_PER_TASK * place.row), |_, rows| norm_rows(rows, place, by));
}

/// Turns the gradient in the result of [`norm`] into that in `x`, what it was given; returns that in gamma.
///
/// # Panics
/// If a slice has the wrong size.
pub fn norm_backward<T: Number>(x: &[T], d: &mut [T], place: HeadLayout, by: HeadNorm<'_, T>) -> Vec<T> {
    place.check(x.len());
    check_shape!(d, all = x.len());
    check_shape!(by.gamma, D = place.head_dim);
    let piece = ROWS_PER_TASK * place.row;
    let mut partial = vec![T::ZERO; x.len().div_ceil(piece) * place.head_dim];
    let tasks = d.chunks_mut(piece).zip(x.chunks(piece)).zip(partial.chunks_mut(place.head_dim));
    for_each_task(tasks, |_, ((d, x), d_gamma)| norm_rows_backward(x, d, place, by, d_gamma));
    in_order(&partial, place.head_dim)
}

/// Multiplies the heads of rows `[rows, row]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn scale<T: Number>(x: &mut [T], place: HeadLayout, by: ScalableSoftmax<'_, T>) {
    by.check(place, x.len());
    for_each_task(x.chunks_mut(ROWS_PER_TASK * place.row), |task, rows| {
        for (i, row) in rows.chunks_exact_mut(place.row).enumerate() {
            let log = by.logs[(task * ROWS_PER_TASK + i) % by.logs.len()];
            for (head, slope) in place.of_row_mut(row).zip(by.slopes) {
                head.iter_mut().for_each(|x| *x = *x * (*slope * log));
            }
        }
    });
}

/// Turns the gradient in the result of [`scale`] into that in `x`, what it was given; returns that in the slopes.
///
/// # Panics
/// If a slice has the wrong size.
pub fn scale_backward<T: Number>(x: &[T], d: &mut [T], place: HeadLayout, by: ScalableSoftmax<'_, T>) -> Vec<T> {
    by.check(place, x.len());
    check_shape!(d, all = x.len());
    let piece = ROWS_PER_TASK * place.row;
    let mut partial = vec![T::ZERO; x.len().div_ceil(piece) * place.heads];
    let tasks = d.chunks_mut(piece).zip(x.chunks(piece)).zip(partial.chunks_mut(place.heads.max(1)));
    for_each_task(tasks, |task, ((d, x), d_slopes)| {
        for (i, (d, x)) in d.chunks_exact_mut(place.row).zip(x.chunks_exact(place.row)).enumerate() {
            let log = by.logs[(task * ROWS_PER_TASK + i) % by.logs.len()];
            let heads = place.of_row_mut(d).zip(place.of_row(x));
            for ((d, x), (slope, d_slope)) in heads.zip(by.slopes.iter().zip(&mut *d_slopes)) {
                *d_slope += log * reduce::dot(d, x);
                d.iter_mut().for_each(|d| *d = *d * (*slope * log));
            }
        }
    });
    in_order(&partial, place.heads)
}

impl<T: Number> ScalableSoftmax<'_, T> {
    fn check(&self, place: HeadLayout, values: usize) {
        place.check(values);
        check_shape!(self.slopes, H = place.heads);
        let rows = values / place.row;
        let whole = rows == 0 || (!self.logs.is_empty() && rows.is_multiple_of(self.logs.len()));
        assert!(whole, "logs: {} values do not fit {rows} rows", self.logs.len());
    }
}

/// The sum of rows of `width`, from the first to the last.
pub(super) fn in_order<T: Number>(rows: &[T], width: usize) -> Vec<T> {
    let mut sum = vec![T::ZERO; width];
    rows.chunks_exact(width.max(1)).for_each(|row| reduce::add(&mut sum, row));
    sum
}

vectorized! {
    /// [`norm`] by one thread.
    fn norm_rows(rows: &mut [T], place: HeadLayout, by: HeadNorm<'_, T>) {
        let share = T::ONE / T::from_f64(place.head_dim as f64);
        for row in rows.chunks_exact_mut(place.row) {
            for head in place.of_row_mut(row) {
                let square = reduce::sum([&*head], |[x]| x * x) * share;
                let rstd = T::ONE / (square + T::from_f64(by.epsilon)).sqrt();
                for (x, gamma) in head.iter_mut().zip(by.gamma) {
                    *x = *x * rstd * *gamma;
                }
            }
        }
    }
}

vectorized! {
    /// [`norm_backward`] by one thread; adds to the gradient in gamma.
    fn norm_rows_backward(x: &[T], d: &mut [T], place: HeadLayout, by: HeadNorm<'_, T>, d_gamma: &mut [T]) {
        let share = T::ONE / T::from_f64(place.head_dim as f64);
        for (x, d) in x.chunks_exact(place.row).zip(d.chunks_exact_mut(place.row)) {
            for (x, d) in place.of_row(x).zip(place.of_row_mut(d)) {
                let square = reduce::sum([x], |[x]| x * x) * share;
                let rstd = T::ONE / (square + T::from_f64(by.epsilon)).sqrt();
                let along = reduce::sum([x, &*d, by.gamma], |[x, d, gamma]| d * gamma * (x * rstd)) * share;
                for (((x, d), gamma), d_gamma) in x.iter().zip(d).zip(by.gamma).zip(&mut *d_gamma) {
                    let u = *x * rstd;
                    *d_gamma = d.mul_add(u, *d_gamma);
                    *d = rstd * (*d * *gamma - u * along);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};

    /// Heads of packed rows, side by side and with others between them, and numbers of rows.
    const PLACES: [(HeadLayout, usize); 3] = [
        (HeadLayout { row: 24, start: 4, stride: 12, heads: 2, head_dim: 4 }, 6),
        (HeadLayout { row: 21, start: 6, stride: 3, heads: 5, head_dim: 3 }, 150),
        (HeadLayout { row: 70, start: 2, stride: 68, heads: 1, head_dim: 68 }, 3),
    ];

    fn logs(rows: usize) -> Vec<f64> {
        (0..rows / 3).map(|i| ((i + 1) as f64).ln()).collect()
    }

    #[test]
    fn heads_are_divided_by_their_root_mean_square() {
        for (place, rows) in PLACES {
            let (x, gamma) = (random(rows * place.row, 1), random(place.head_dim, 2));
            let mut y = x.clone();
            norm(&mut y, place, HeadNorm { gamma: &gamma, epsilon: 0.01 });
            for (at, (x_at, y_at)) in x.iter().zip(&y).enumerate() {
                let inside = (at % place.row).checked_sub(place.start).filter(|in_heads| {
                    in_heads / place.stride < place.heads && in_heads % place.stride < place.head_dim
                });
                let Some(in_heads) = inside else {
                    assert_eq!(x_at, y_at, "{place:?} {at}: not of these heads");
                    continue;
                };
                let feature = in_heads % place.stride;
                let square = x[at - feature..][..place.head_dim].iter().map(|x| x * x).sum::<f64>();
                let expected = gamma[feature] * x_at / (square / place.head_dim as f64 + 0.01).sqrt();
                assert!((y_at - expected).abs() < 1e-12, "{place:?} {at}: {y_at} {expected}");
            }
        }
    }

    /// Sequences of a third of the rows, in which a second document begins.
    fn starts(rows: usize) -> Vec<bool> {
        (0..rows / 3).map(|i| i == 0 || i == 17).collect()
    }

    #[test]
    fn rows_are_mixed_with_those_before_them() {
        for (place, rows) in PLACES {
            let (x, shares, is_first) = (random(rows * place.row, 1), random(place.heads, 2), starts(rows));
            let mut y = x.clone();
            shift(&mut y, place, TokenShift { shares: &shares, is_first: &is_first });
            let mut expected = x.clone();
            for row in 0..rows {
                for (head, share) in shares.iter().enumerate() {
                    for feature in 0..place.head_dim {
                        let at = row * place.row + place.start + head * place.stride + feature;
                        let before = if is_first[row % (rows / 3)] { 0.0 } else { x[at - place.row] };
                        expected[at] = (1.0 - share) * x[at] + share * before;
                    }
                }
            }
            assert!(y.iter().zip(&expected).all(|(y, expected)| (y - expected).abs() < 1e-14), "{place:?}");
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for (place, rows) in PLACES {
            let (x, up) = (random(rows * place.row, 1), random(rows * place.row, 2));
            let (gamma, slopes, logs) = (random(place.head_dim, 3), random(place.heads, 4), logs(rows));
            let total = |y: &[f64]| y.iter().zip(&up).map(|(y, up)| y * up).sum::<f64>();
            let normed = |x: &[f64], gamma: &[f64]| {
                let mut y = x.to_vec();
                norm(&mut y, place, HeadNorm { gamma, epsilon: 0.01 });
                total(&y)
            };
            let scaled = |x: &[f64], slopes: &[f64]| {
                let mut y = x.to_vec();
                scale(&mut y, place, ScalableSoftmax { slopes, logs: &logs });
                total(&y)
            };
            let mut d_x = up.clone();
            let d_gamma = norm_backward(&x, &mut d_x, place, HeadNorm { gamma: &gamma, epsilon: 0.01 });
            assert_gradient("x of norm", &x, &d_x, |x| normed(x, &gamma));
            assert_gradient("gamma", &gamma, &d_gamma, |gamma| normed(&x, gamma));
            let mut d_x = up.clone();
            let d_slopes = scale_backward(&x, &mut d_x, place, ScalableSoftmax { slopes: &slopes, logs: &logs });
            assert_gradient("x of scale", &x, &d_x, |x| scaled(x, &slopes));
            let (shares, is_first) = (random(place.heads, 5), starts(rows));
            let shifted = |x: &[f64], shares: &[f64]| {
                let mut y = x.to_vec();
                shift(&mut y, place, TokenShift { shares, is_first: &is_first });
                total(&y)
            };
            let mut d_x = up.clone();
            let d_shares = shift_backward(&x, &mut d_x, place, TokenShift { shares: &shares, is_first: &is_first });
            assert_gradient("x of shift", &x, &d_x, |x| shifted(x, &shares));
            assert_gradient("shares", &shares, &d_shares, |shares| shifted(&x, shares));
            assert_gradient("slopes", &slopes, &d_slopes, |slopes| scaled(&x, slopes));
        }
    }

    #[test]
    fn bits_do_not_depend_on_threads() {
        let (place, rows) = PLACES[1];
        let (x, up) = (single(&random(rows * place.row, 1)), single(&random(rows * place.row, 2)));
        let (gamma, slopes) = (single(&random(place.head_dim, 3)), single(&random(place.heads, 4)));
        let logs = single(&logs(rows));
        let (shares, is_first) = (single(&random(place.heads, 5)), starts(rows));
        let mixed = TokenShift { shares: &shares, is_first: &is_first };
        assert_same_at_any_threads(|| {
            let (mut y, mut d) = (x.clone(), up.clone());
            let (by, growth) =
                (HeadNorm { gamma: &gamma, epsilon: 0.01 }, ScalableSoftmax { slopes: &slopes, logs: &logs });
            shift(&mut y, place, mixed);
            norm(&mut y, place, by);
            scale(&mut y, place, growth);
            let d_slopes = scale_backward(&x, &mut d, place, growth);
            let d_gamma = norm_backward(&x, &mut d, place, by);
            let d_shares = shift_backward(&x, &mut d, place, mixed);
            (y, d, d_slopes, d_gamma, d_shares)
        });
    }
}
