//! Depthwise causal convolutions over a few tokens, in place on packed rows.
//!
//! ```text
//! y_t[c]   = x_t[c] + sum_{w<W} f[c, w] x_{t-W+1+w}[c]           0 before a sequence begins
//! d_x_t[c] = d_y_t[c] + sum_{w<W} f[c, w] d_y_{t+W-1-w}[c]       within the sequence
//! d_f[c, w] = sum_t d_y_t[c] x_{t-W+1+w}[c]
//! ```

use super::ROWS_PER_TASK;
use super::heads::{HeadLayout, in_order};
use crate::check_shape;
use crate::tiles::workers::for_each_task;
use crate::{Number, cpu::vectorized};

/// The filters of a convolution of channels, the features of heads one after another.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a, T> {
    /// `[channels, W]`; the last column is of the token itself.
    pub filters: &'a [T],
    /// Tokens, W.
    pub width: usize,
    /// How many rows of its sequence are before each row; rows begin again after the last: `[L]`, or `[B, L]`.
    pub positions: &'a [usize],
}

impl<T: Number> ShortConv<'_, T> {
    fn check(&self, place: HeadLayout, values: usize) {
        place.check(values);
        let (channels, rows) = (place.heads * place.head_dim, values / place.row);
        assert!(self.width > 0, "a convolution over no token");
        check_shape!(self.filters, filters = channels * self.width);
        let whole = rows == 0 || (!self.positions.is_empty() && rows.is_multiple_of(self.positions.len()));
        assert!(whole, "positions: {} values do not fit {rows} rows", self.positions.len());
    }

    /// Rows before this one that it is mixed with.
    fn seen(&self, row: usize) -> usize {
        self.positions[row % self.positions.len()].min(row).min(self.width - 1)
    }
}

/// Convolves the heads of rows `[rows, row]`.
///
/// # Panics
/// If a slice has the wrong size.
pub fn forward<T: Number>(x: &mut [T], place: HeadLayout, by: ShortConv<'_, T>) {
    let of = Convolution::new(place, by, x.len());
    let (piece, most) = (ROWS_PER_TASK * place.row, (by.width - 1) * place.row);
    // the rows before every task, as they were
    let before = |start: usize| x[start.saturating_sub(most)..start].to_vec();
    let earlier: Vec<Vec<T>> = (0..x.len()).step_by(piece).map(before).collect();
    for_each_task(x.chunks_mut(piece).zip(earlier), |task, (rows, earlier)| {
        convolve(rows, &earlier, task * ROWS_PER_TASK, &of);
    });
}

/// Turns the gradient in the result of [`forward`] into that in `x`, what it was given; returns that in the filters.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(x: &[T], d: &mut [T], place: HeadLayout, by: ShortConv<'_, T>) -> Vec<T> {
    let of = Convolution::new(place, by, x.len());
    check_shape!(d, all = x.len());
    let (piece, most) = (ROWS_PER_TASK * place.row, (by.width - 1) * place.row);
    let (end, channels, count) = (d.len(), of.channels(), of.taps.len());
    let mut partial = vec![T::ZERO; end.div_ceil(piece) * count];
    // the rows after every task, as they were
    let after = |start: usize| d[(start + piece).min(end)..(start + piece + most).min(end)].to_vec();
    let later: Vec<Vec<T>> = (0..end).step_by(piece).map(after).collect();
    let tasks = d.chunks_mut(piece).zip(later).zip(partial.chunks_mut(count.max(1)));
    for_each_task(tasks, |task, ((d, later), d_taps)| {
        convolve_backward(x, d, &later, task * ROWS_PER_TASK, &of, d_taps);
    });
    let d_taps = in_order(&partial, count);
    let of_filter = |at: usize| d_taps[(by.width - 1 - at % by.width) * channels + at / by.width];
    (0..count).map(of_filter).collect()
}

/// A convolution of packed rows.
struct Convolution<'a, T> {
    place: HeadLayout,
    by: ShortConv<'a, T>,
    /// Filters by how many tokens before, `[W, channels]`.
    taps: Vec<T>,
}

impl<T: Number> Convolution<'_, T> {
    fn new(place: HeadLayout, by: ShortConv<'_, T>, values: usize) -> Convolution<'_, T> {
        by.check(place, values);
        let (width, channels) = (by.width, place.heads * place.head_dim);
        let tap = |at: usize| by.filters[at % channels * width + width - 1 - at / channels];
        Convolution { place, by, taps: (0..by.filters.len()).map(tap).collect() }
    }

    fn channels(&self) -> usize {
        self.taps.len() / self.by.width
    }

    /// The factors of a head's channels on the row that is `back` tokens before.
    fn tap(&self, back: usize, head: usize) -> &[T] {
        &self.taps[back * self.channels() + head * self.place.head_dim..][..self.place.head_dim]
    }
}

/// `y += f x`
#[inline(always)]
fn add_product<T: Number>(y: &mut [T], f: &[T], x: &[T]) {
    for ((y, f), x) in y.iter_mut().zip(f).zip(x) {
        *y = f.mul_add(*x, *y);
    }
}

/// `y += f y`
#[inline(always)]
fn grow<T: Number>(y: &mut [T], f: &[T]) {
    for (y, f) in y.iter_mut().zip(f) {
        *y = f.mul_add(*y, *y);
    }
}

vectorized! {
    /// Rows from number `first` on, which lie behind `earlier` ones.
    fn convolve(rows: &mut [T], earlier: &[T], first: usize, of: &Convolution<'_, T>) {
        let place = of.place;
        for i in (0..rows.len() / place.row).rev() {
            let (before, row) = rows.split_at_mut(i * place.row);
            for head in 0..place.heads {
                let y = place.head_mut(row, head);
                grow(y, of.tap(0, head));
                for back in 1..=of.by.seen(first + i) {
                    let x = match i.checked_sub(back) {
                        Some(at) => &before[at * place.row..],
                        None => &earlier[earlier.len() - (back - i) * place.row..],
                    };
                    add_product(y, of.tap(back, head), place.head(x, head));
                }
            }
        }
    }
}

vectorized! {
    /// The gradient in rows from number `first` on of `x`, which lie before `later` ones; adds to that in the taps.
    fn convolve_backward(
        x: &[T],
        d: &mut [T],
        later: &[T],
        first: usize,
        of: &Convolution<'_, T>,
        d_taps: &mut [T],
    ) {
        let (place, by, count) = (of.place, of.by, d.len() / of.place.row);
        let (width, channels) = (place.head_dim, of.channels());
        for i in 0..count {
            let number = first + i;
            let (row, after) = d[i * place.row..].split_at_mut(place.row);
            for head in 0..place.heads {
                let d_y = place.head_mut(row, head);
                for back in 0..=by.seen(number) {
                    let d_tap = &mut d_taps[back * channels + head * width..][..width];
                    add_product(d_tap, d_y, place.head(&x[(number - back) * place.row..], head));
                }
                grow(d_y, of.tap(0, head));
                for ahead in 1..by.width.min(x.len() / place.row - number) {
                    // neither a row of another sequence sees this one, nor one after it
                    if by.seen(number + ahead) < ahead {
                        break;
                    }
                    let d_later = match (i + ahead).checked_sub(count) {
                        None => &after[(ahead - 1) * place.row..],
                        Some(at) => &later[at * place.row..],
                    };
                    add_product(d_y, of.tap(ahead, head), place.head(d_later, head));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};

    /// Heads of packed rows, numbers of rows, widths, and positions in sequences.
    fn settings() -> Vec<(HeadLayout, usize, usize, Vec<usize>)> {
        let of = |len: usize, begins: &[usize]| {
            let mut before = 0;
            let position = |at: usize| {
                before = if begins.contains(&at) { 0 } else { before + 1 };
                before
            };
            (0..len).map(position).collect::<Vec<usize>>()
        };
        vec![
            (HeadLayout { row: 24, start: 4, stride: 12, heads: 2, head_dim: 4 }, 6, 4, of(3, &[0])),
            (HeadLayout { row: 21, start: 6, stride: 3, heads: 5, head_dim: 3 }, 150, 4, of(75, &[0, 17, 18, 66])),
            (HeadLayout { row: 7, start: 0, stride: 7, heads: 1, head_dim: 7 }, 200, 3, of(100, &[0])),
            (HeadLayout { row: 5, start: 0, stride: 5, heads: 1, head_dim: 5 }, 4, 9, of(4, &[0])),
            (HeadLayout { row: 5, start: 1, stride: 2, heads: 2, head_dim: 2 }, 3, 1, of(3, &[0])),
        ]
    }

    fn filters(place: HeadLayout, width: usize) -> Vec<f64> {
        random(place.heads * place.head_dim * width, 2)
    }

    #[test]
    fn rows_are_mixed_with_those_before_them_in_their_sequence() {
        for (place, rows, width, positions) in settings() {
            let (x, filters) = (random(rows * place.row, 1), filters(place, width));
            let mut y = x.clone();
            forward(&mut y, place, ShortConv { filters: &filters, width, positions: &positions });
            for (at, (x_at, y_at)) in x.iter().zip(&y).enumerate() {
                let (row, column) = (at / place.row, at % place.row);
                let inside = column.checked_sub(place.start).filter(|in_heads| {
                    in_heads / place.stride < place.heads && in_heads % place.stride < place.head_dim
                });
                let mut expected = *x_at;
                if let Some(in_heads) = inside {
                    let channel = in_heads / place.stride * place.head_dim + in_heads % place.stride;
                    for back in 0..width.min(positions[row % positions.len()] + 1) {
                        expected += filters[channel * width + width - 1 - back] * x[at - back * place.row];
                    }
                }
                assert!((y_at - expected).abs() < 1e-12, "{place:?} {at}: {y_at} {expected}");
            }
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for (place, rows, width, positions) in settings() {
            let (x, filters, d_y) = (random(rows * place.row, 1), filters(place, width), random(rows * place.row, 3));
            let loss = |x: &[f64], filters: &[f64]| {
                let mut y = x.to_vec();
                forward(&mut y, place, ShortConv { filters, width, positions: &positions });
                y.iter().zip(&d_y).map(|(y, d)| y * d).sum::<f64>()
            };
            let mut d_x = d_y.clone();
            let by = ShortConv { filters: &filters, width, positions: &positions };
            let d_filters = backward(&x, &mut d_x, place, by);
            assert_gradient("x", &x, &d_x, |x| loss(x, &filters));
            assert_gradient("filters", &filters, &d_filters, |filters| loss(&x, filters));
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        for (place, rows, width, positions) in settings() {
            let (x, filters) = (single(&random(rows * place.row, 1)), single(&filters(place, width)));
            let d_y = single(&random(rows * place.row, 3));
            assert_same_at_any_threads(|| {
                let by = ShortConv { filters: &filters, width, positions: &positions };
                let (mut y, mut d) = (x.clone(), d_y.clone());
                forward(&mut y, place, by);
                let d_filters = backward(&x, &mut d, place, by);
                [y, d, d_filters].concat()
            });
        }
    }
}
