//! Rotations by angles that the content sets, in place on packed rows: each token adds increments to the angles of all pairs of
//! all heads.
//!
//! ```text
//! angle[t] = sum over n <= t of increment[n]        pairs as in [`rotary`](super::rotary)
//! d_angle[t] = sum over what turns of y[t] * d_y[t]        a * b = a1 b2 - a2 b1, of the pair after it has turned, or before
//! d_increment[t] = sum over n >= t of d_angle[n]
//! ```
//!
//! Sums are f64 and counted in turns, whole turns left out, so that angles are as exact at a million tokens as at ten.

use super::ROWS_PER_TASK;
use super::heads::HeadLayout;
use super::rotary::{Turn, rotate_rows};
use crate::cpu::elementary::sin_cos;
use crate::cpu::vectorized;
use crate::tiles::workers::{for_each_number, for_each_task};
use crate::tiles::{Strides, ViewMut};
use crate::{Number, check_shape};
use std::f64::consts::TAU;

/// Angles whose sums a task takes, of all tokens of a sequence.
const COLUMNS: usize = 64;

/// Sequences of increments.
#[derive(Clone, Copy, Debug)]
pub struct Increments<'a> {
    /// Sequences, B.
    pub batch: usize,
    /// Tokens, L.
    pub len: usize,
    /// Angles of a token: of all pairs of all heads, `H P`.
    pub width: usize,
    /// How many tokens of its document are before each, `[B, L]`; empty where a sequence is one document.
    pub positions: &'a [usize],
}

impl Increments<'_> {
    fn check(&self, values: usize) {
        let Increments { batch, len, width, positions } = *self;
        assert!(
            [batch, len, width].iter().try_fold(1usize, |product, size| product.checked_mul(*size)) == Some(values),
            "{values} increments are not [B, L, H P] = [{batch}, {len}, {width}]"
        );
        assert!(positions.is_empty() || positions.len() == batch * len, "{} positions", positions.len());
    }

    /// The numbers of each sequence and block of columns, token by token.
    fn columns<'t, T>(&self, values: &'t mut [T]) -> ViewMut<'t, T> {
        ViewMut::new(values, Strides { batch: self.len * self.width, head: COLUMNS, row: self.width })
    }

    /// Calls `work` with each sequence, block and its number of columns.
    fn for_each_columns(&self, work: impl Fn([usize; 2], usize) + Sync) {
        let blocks = self.width.div_ceil(COLUMNS);
        for_each_number(self.batch * blocks, &|number| {
            let [sequence, block] = [number / blocks, number % blocks];
            work([sequence, block], (self.width - block * COLUMNS).min(COLUMNS));
        });
    }

    /// Whether a document begins at this token, other than the first of its sequence.
    fn restarts(&self, sequence: usize, token: usize) -> bool {
        token > 0 && self.positions.get(sequence * self.len + token) == Some(&0)
    }
}

/// Cosines and sines of the sums of increments `[B, L, H P]` in radians. The sums of the tokens before, `[B, H P]` in turns from 0 to 1,
/// are gone on from and replaced by the last.
///
/// # Panics
/// If there are not as many of either.
pub fn cos_sin<T: Number>(increments: &[T], of: Increments, before: &mut [f64]) -> [Vec<T>; 2] {
    let Increments { batch, len, width, .. } = of;
    of.check(increments.len());
    check_shape!(before, B = batch, W = width);
    let mut both = [(); 2].map(|()| vec![T::ZERO; increments.len()]);
    let [to_cos, to_sin] = both.each_mut().map(|to| of.columns(to));
    let sums = ViewMut::new(before, Strides { batch: width, head: COLUMNS, row: 0 });
    of.for_each_columns(|[sequence, block], columns| {
        // SAFETY: this number alone has these columns of the sequence.
        let turns = unsafe { sums.row(sequence, block, 0, columns) };
        for token in 0..len {
            if of.restarts(sequence, token) {
                turns.fill(0.0);
            }
            let from = &increments[(sequence * len + token) * width + block * COLUMNS..][..columns];
            // SAFETY: as above.
            let [cos, sin] = unsafe { [&to_cos, &to_sin].map(|to| to.row(sequence, block, token, columns)) };
            advance(from, turns, cos, sin);
        }
    });
    both
}

vectorized! {
    fn advance(increments: &[T], turns: &mut [f64], cos: &mut [T], sin: &mut [T]) {
        for (((increment, turns), cos), sin) in increments.iter().zip(turns).zip(cos).zip(sin) {
            let next = *turns + increment.to_f64() * (1.0 / TAU);
            *turns = next - next.floor();
            let (s, c) = sin_cos(*turns);
            (*cos, *sin) = (T::from_f64(c), T::from_f64(s));
        }
    }
}

/// Turns the pairs of each head of these places of rows `[rows, row]` by cosines and sines, `[rows, H, P]`. A head has `2 P` features.
///
/// # Panics
/// If a slice has the wrong size.
pub fn rotate<T: Number>(x: &mut [T], places: &[HeadLayout], [cos, sin]: [&[T]; 2]) {
    let (row, width) = row_and_angles(places, x.len(), cos.len());
    check_shape!(sin, as_cosines = cos.len());
    let (rows, angles) = (ROWS_PER_TASK * row, ROWS_PER_TASK * width);
    let tasks = x.chunks_mut(rows).zip(cos.chunks(angles)).zip(sin.chunks(angles));
    for_each_task(tasks, |_, ((x, cos), sin)| {
        for (x, turns) in x.chunks_exact_mut(row).zip(cos.chunks(width).zip(sin.chunks(width))) {
            places.iter().for_each(|place| rotate_heads(x, place, turns, Turn::Forward));
        }
    });
}

/// The gradient in the angles, `[rows, H, P]`, given rows that have turned and the gradient in them, which becomes that in the rows
/// before they turned.
///
/// # Panics
/// If a slice has the wrong size.
pub fn backward<T: Number>(y: &[T], d_rows: &mut [T], places: &[HeadLayout], [cos, sin]: [&[T]; 2]) -> Vec<f64> {
    let (row, width) = row_and_angles(places, y.len(), cos.len());
    check_shape!(sin, as_cosines = cos.len());
    check_shape!(d_rows, all = y.len());
    let mut d_angles = vec![0.0; cos.len()];
    let (rows, angles) = (ROWS_PER_TASK * row, ROWS_PER_TASK * width);
    let turns = cos.chunks(angles).zip(sin.chunks(angles));
    let tasks = d_angles.chunks_mut(angles).zip(y.chunks(rows).zip(d_rows.chunks_mut(rows))).zip(turns);
    for_each_task(tasks, |_, ((d_angles, (y, d_rows)), (cos, sin))| {
        let of_rows = y.chunks_exact(row).zip(d_rows.chunks_exact_mut(row));
        let turns = cos.chunks(width).zip(sin.chunks(width));
        for ((d_angles, (y, d_row)), turns) in d_angles.chunks_mut(width).zip(of_rows).zip(turns) {
            for place in places {
                add_cross_products(
                    &y[place.start..],
                    &d_row[place.start..],
                    place.stride,
                    place.head_dim / 2,
                    d_angles,
                );
                rotate_heads(d_row, place, turns, Turn::Inverse);
            }
        }
    });
    d_angles
}

/// Turns the heads of a row in place.
fn rotate_heads<T: Number>(row: &mut [T], place: &HeadLayout, (cos, sin): (&[T], &[T]), turn: Turn) {
    let pairs = place.head_dim / 2;
    rotate_rows(&mut row[place.start..], place.heads, place.stride, cos, sin, pairs, pairs, turn);
}

vectorized! {
    fn add_cross_products(x: &[T], d_x: &[T], stride: usize, pairs: usize, to: &mut [f64]) {
        for (head, to) in to.chunks_exact_mut(pairs).enumerate() {
            let of_head = head * stride..head * stride + 2 * pairs;
            let ((x_low, x_high), (d_low, d_high)) = (x[of_head.clone()].split_at(pairs), d_x[of_head].split_at(pairs));
            for ((((to, x1), x2), d1), d2) in to.iter_mut().zip(x_low).zip(x_high).zip(d_low).zip(d_high) {
                *to += x1.to_f64() * d2.to_f64() - x2.to_f64() * d1.to_f64();
            }
        }
    }
}

/// The gradient in the increments, `[B, L, H P]`, given that in the angles.
///
/// # Panics
/// If there are not as many.
pub fn d_increments<T: Number>(d_angles: &[f64], of: Increments) -> Vec<T> {
    of.check(d_angles.len());
    let Increments { len, width, .. } = of;
    let mut d_increments = vec![T::ZERO; d_angles.len()];
    let to = of.columns(&mut d_increments);
    of.for_each_columns(|[sequence, block], columns| {
        let mut sums = [0.0; COLUMNS];
        let sums = &mut sums[..columns];
        for token in (0..len).rev() {
            let from = &d_angles[(sequence * len + token) * width + block * COLUMNS..][..columns];
            // SAFETY: this number alone has these columns of the sequence.
            add_and_store(from, sums, unsafe { to.row(sequence, block, token, columns) });
            if of.restarts(sequence, token) {
                sums.fill(0.0);
            }
        }
    });
    d_increments
}

vectorized! {
    fn add_and_store(d_angles: &[f64], sums: &mut [f64], to: &mut [T]) {
        for ((to, sum), d_angle) in to.iter_mut().zip(sums).zip(d_angles) {
            *sum += d_angle;
            *to = T::from_f64(*sum);
        }
    }
}

/// Values of a row, and its angles, `H P`, having checked that each of these places has as many pairs.
fn row_and_angles(places: &[HeadLayout], values: usize, angles: usize) -> (usize, usize) {
    let mut found = None;
    for place in places {
        place.check(values);
        assert!(place.head_dim.is_multiple_of(2), "heads of {} features are not pairs", place.head_dim);
        let (rows, width) = (values / place.row, place.heads * place.head_dim / 2);
        assert!(rows * width == angles, "{angles} angles are not [rows, H P] = [{rows}, {width}]");
        assert!(*found.get_or_insert((place.row, width)) == (place.row, width), "places of other rows: {places:?}");
    }
    let (row, width) = found.expect("a place");
    (row, width.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::on_every_set;
    use crate::ops::testing::{assert_gradient, assert_same_at_any_threads, random, single};

    const PLACE: HeadLayout = HeadLayout { row: 23, start: 3, stride: 7, heads: 3, head_dim: 6 };
    const POSITIONS: [usize; 14] = [0, 1, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 0];

    fn of(positions: &[usize]) -> Increments<'_> {
        Increments { batch: 2, len: 7, width: 9, positions }
    }

    fn turned(x: &[f64], increments: &[f64], positions: &[usize]) -> Vec<f64> {
        let [cos, sin] = cos_sin(increments, of(positions), &mut [0.0; 18]);
        let mut y = x.to_vec();
        rotate(&mut y, &[PLACE], [&cos, &sin]);
        y
    }

    #[test]
    fn pairs_turn_by_running_sums() {
        let (x, increments) = (random(14 * 23, 1), random(14 * 9, 2));
        for positions in [&[][..], &POSITIONS] {
            for found in on_every_set(|| turned(&x, &increments, positions)) {
                let mut expected = x.clone();
                for (row, head, pair) in (0..14).flat_map(|r| (0..3).flat_map(move |h| (0..3).map(move |p| (r, h, p))))
                {
                    let token = row % 7;
                    let first = row - positions.get(row).copied().unwrap_or(token);
                    let angle: f64 = (first..=row).map(|row| increments[row * 9 + head * 3 + pair]).sum();
                    let at = row * 23 + 3 + 7 * head + pair;
                    let (a, b) = (x[at], x[at + 3]);
                    expected[at] = a * angle.cos() - b * angle.sin();
                    expected[at + 3] = b * angle.cos() + a * angle.sin();
                }
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found - expected).abs() < 1e-12, "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn gradients_match_central_differences() {
        let (x, increments, up) = (random(14 * 23, 3), random(14 * 9, 4), random(14 * 23, 5));
        for positions in [&[][..], &POSITIONS] {
            let loss = |x: &[f64], increments: &[f64]| -> f64 {
                turned(x, increments, positions).iter().zip(&up).map(|(x, up)| x * up).sum()
            };
            let [cos, sin] = cos_sin(&increments, of(positions), &mut [0.0; 18]);
            let mut d_x = up.clone();
            let d_angles = backward(&turned(&x, &increments, positions), &mut d_x, &[PLACE], [&cos, &sin]);
            assert_gradient("x", &x, &d_x, |x| loss(x, &increments));
            let found: Vec<f64> = d_increments(&d_angles, of(positions));
            assert_gradient("increments", &increments, &found, |increments| loss(&x, increments));
        }
    }

    #[test]
    fn a_million_tokens_are_as_exact_as_ten() {
        let increments: Vec<f32> = single(&random(1 << 20, 6)).into_iter().map(|x| x + 1.0).collect();
        let of = Increments { batch: 1, len: 1 << 20, width: 1, positions: &[] };
        // sums of f32 numbers below 2 are exact in integers of 2^-24 and less
        let exact = increments.iter().map(|x| (f64::from(*x) * 2f64.powi(40)) as i128).sum::<i128>();
        let turn = TAU * 2f64.powi(40);
        let turns_of = exact as f64 / turn;
        for [cos, _] in on_every_set(|| cos_sin(&increments, of, &mut [0.0])) {
            let expected = (TAU * (turns_of - turns_of.floor())).cos();
            assert!((f64::from(*cos.last().unwrap()) - expected).abs() < 1e-6, "{turns_of}");
        }
    }

    #[test]
    fn pieces_go_on_where_others_end() {
        let increments = random(14 * 9, 7);
        let whole = cos_sin(&increments, of(&[]), &mut [0.0; 18]);
        let mut before = vec![0.0; 18];
        for (first, len) in [(0, 3), (3, 1), (4, 3)] {
            let piece = |values: &[f64]| -> Vec<f64> {
                values.chunks(63).flat_map(|sequence| &sequence[first * 9..][..len * 9]).copied().collect()
            };
            let own = Increments { len, ..of(&[]) };
            let found = cos_sin(&piece(&increments), own, &mut before);
            assert_eq!(found, whole.each_ref().map(|of| piece(of)));
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let places = [0, 12].map(|start| HeadLayout { row: 101, start, stride: 24, heads: 4, head_dim: 12 });
        let (x, increments) = (single(&random(400 * 101, 8)), single(&random(400 * 24, 9)));
        let of = Increments { batch: 2, len: 200, width: 24, positions: &[] };
        assert_same_at_any_threads(|| {
            let [cos, sin] = cos_sin(&increments, of, &mut [0.0; 48]);
            let (mut y, mut d_rows) = (x.clone(), x.clone());
            rotate(&mut y, &places, [&cos, &sin]);
            let d_angles = backward(&y, &mut d_rows, &places, [&cos, &sin]);
            (y, d_rows, d_increments::<f32>(&d_angles, of))
        });
    }

    #[test]
    #[should_panic(expected = "126 angles are not [rows, H P] = [14, 6]")]
    fn heads_without_angles_panic() {
        rotate(&mut [0.0; 14 * 23], &[HeadLayout { heads: 2, ..PLACE }], [&[0.0; 126] as &[f64]; 2]);
    }
}
