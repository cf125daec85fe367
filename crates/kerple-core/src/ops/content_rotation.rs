//! Rotations by angles that the content sets, in place on packed rows: each token adds increments to the angles of all pairs of
//! all heads.
//!
//! ```text
//! angle[t] = sum over n <= t of increment[n]        pairs as in [`rotary`](super::rotary)
//! d_angle[t] = sum over what turns of x[t] * d_x[t]        a * b = a1 b2 - a2 b1, of the pair before it turns
//! d_increment[t] = sum over n >= t of d_angle[n]
//! ```
//!
//! Sums are f64 and counted in turns, whole turns left out, so that angles are as exact at a million tokens as at ten.

use super::ROWS_PER_TASK;
use super::heads::HeadLayout;
use super::rotary::{Turn, rotate_row};
use crate::cpu::elementary::sin_cos;
use crate::cpu::vectorized;
use crate::tiles::workers::for_each_task;
use crate::{Number, check_shape};
use std::f64::consts::TAU;

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

    /// Whether a document begins at this token, other than the first of its sequence.
    fn restarts(&self, sequence: usize, token: usize) -> bool {
        token > 0 && self.positions.get(sequence * self.len + token) == Some(&0)
    }
}

/// Angles in turns, from 0 to 1, of increments `[B, L, H P]` in radians. Those of the tokens before, `[B, H P]`, are gone on from and
/// replaced by the last.
///
/// # Panics
/// If there are not as many of either.
pub fn turns<T: Number>(increments: &[T], of: Increments, before: &mut [f64]) -> Vec<f64> {
    let Increments { batch, len, width, .. } = of;
    of.check(increments.len());
    check_shape!(before, B = batch, W = width);
    let mut turns = vec![0.0; increments.len()];
    let sequence = (len * width).max(1);
    let tasks = turns.chunks_exact_mut(sequence).zip(increments.chunks_exact(sequence));
    for_each_task(tasks.zip(before.chunks_exact_mut(width.max(1))), |number, ((turns, increments), sum)| {
        for (token, (turns, increments)) in
            turns.chunks_exact_mut(width).zip(increments.chunks_exact(width)).enumerate()
        {
            if of.restarts(number, token) {
                sum.fill(0.0);
            }
            advance(increments, sum, turns);
        }
    });
    turns
}

vectorized! {
    fn advance(increments: &[T], sum: &mut [f64], turns: &mut [f64]) {
        for ((increment, sum), turns) in increments.iter().zip(sum).zip(turns) {
            let next = *sum + increment.to_f64() * (1.0 / TAU);
            *sum = next - next.floor();
            *turns = *sum;
        }
    }
}

/// Cosines and sines of angles in turns.
pub fn cos_sin<T: Number>(turns: &[f64]) -> [Vec<T>; 2] {
    /// Angles that a task takes.
    const PIECE: usize = 1 << 13;
    let [mut cos, mut sin] = [(); 2].map(|()| vec![T::ZERO; turns.len()]);
    let pieces = cos.chunks_mut(PIECE).zip(sin.chunks_mut(PIECE)).zip(turns.chunks(PIECE));
    for_each_task(pieces, |_, ((cos, sin), turns)| cos_sin_of(turns, cos, sin));
    [cos, sin]
}

vectorized! {
    fn cos_sin_of(turns: &[f64], cos: &mut [T], sin: &mut [T]) {
        for ((turns, cos), sin) in turns.iter().zip(cos).zip(sin) {
            let (s, c) = sin_cos(*turns);
            (*cos, *sin) = (T::from_f64(c), T::from_f64(s));
        }
    }
}

/// Turns the pairs of each head of rows `[rows, row]` by these cosines and sines, `[rows, H, P]`. A head has `2 P` features.
///
/// # Panics
/// If a slice has the wrong size.
pub fn rotate<T: Number>(x: &mut [T], place: HeadLayout, [cos, sin]: [&[T]; 2], turn: Turn) {
    let width = angles_per_row(place, x.len(), cos.len());
    check_shape!(sin, as_cosines = cos.len());
    let (rows, angles) = (ROWS_PER_TASK * place.row, ROWS_PER_TASK * width);
    let tasks = x.chunks_mut(rows).zip(cos.chunks(angles)).zip(sin.chunks(angles));
    for_each_task(tasks, |_, ((rows, cos), sin)| {
        let pairs = place.head_dim / 2;
        for ((row, cos), sin) in rows.chunks_exact_mut(place.row).zip(cos.chunks(width)).zip(sin.chunks(width)) {
            for (head, (cos, sin)) in cos.chunks(pairs).zip(sin.chunks(pairs)).enumerate() {
                rotate_row(place.head_mut(row, head), cos, sin, turn);
            }
        }
    });
}

/// Adds the gradient in the angles, `[rows, H, P]`, given the rows before they turned and the gradient in them.
///
/// # Panics
/// If a slice has the wrong size.
pub fn add_d_angles<T: Number>([x, d_x]: [&[T]; 2], place: HeadLayout, d_angles: &mut [f64]) {
    let width = angles_per_row(place, x.len(), d_angles.len());
    check_shape!(d_x, all = x.len());
    let (rows, angles) = (ROWS_PER_TASK * place.row, ROWS_PER_TASK * width);
    let tasks = d_angles.chunks_mut(angles).zip(x.chunks(rows)).zip(d_x.chunks(rows));
    for_each_task(tasks, |_, ((d_angles, x), d_x)| {
        let of_rows = x.chunks_exact(place.row).zip(d_x.chunks_exact(place.row));
        for (d_angles, (x, d_x)) in d_angles.chunks_mut(width).zip(of_rows) {
            for (head, d_angles) in d_angles.chunks_mut(place.head_dim / 2).enumerate() {
                add_cross_products(place.head(x, head), place.head(d_x, head), d_angles);
            }
        }
    });
}

vectorized! {
    fn add_cross_products(x: &[T], d_x: &[T], to: &mut [f64]) {
        let ((x_low, x_high), (d_low, d_high)) = (x.split_at(to.len()), d_x.split_at(to.len()));
        for ((((to, x1), x2), d1), d2) in to.iter_mut().zip(x_low).zip(x_high).zip(d_low).zip(d_high) {
            *to += x1.to_f64() * d2.to_f64() - x2.to_f64() * d1.to_f64();
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
    let (mut d_increments, sequence) = (vec![T::ZERO; d_angles.len()], (len * width).max(1));
    let tasks = d_increments.chunks_exact_mut(sequence).zip(d_angles.chunks_exact(sequence));
    for_each_task(tasks, |number, (to, d_angles)| {
        let mut sum = vec![0.0; width];
        for (token, (to, d_angles)) in to.chunks_exact_mut(width).zip(d_angles.chunks_exact(width)).enumerate().rev() {
            for ((to, sum), d_angle) in to.iter_mut().zip(&mut sum).zip(d_angles) {
                *sum += d_angle;
                *to = T::from_f64(*sum);
            }
            if of.restarts(number, token) {
                sum.fill(0.0);
            }
        }
    });
    d_increments
}

/// Angles of a row, `H P`, having checked that there are as many as its pairs.
fn angles_per_row(place: HeadLayout, values: usize, angles: usize) -> usize {
    place.check(values);
    assert!(place.head_dim.is_multiple_of(2), "heads of {} features are not pairs", place.head_dim);
    let (rows, width) = (values / place.row, place.heads * place.head_dim / 2);
    assert!(rows * width == angles, "{angles} angles are not [rows, H P] = [{rows}, {width}]");
    width.max(1)
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
        let turns = turns(increments, of(positions), &mut [0.0; 18]);
        let [cos, sin] = cos_sin::<f64>(&turns);
        let mut x = x.to_vec();
        rotate(&mut x, PLACE, [&cos, &sin], Turn::Forward);
        x
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
            let [cos, sin] = cos_sin::<f64>(&turns(&increments, of(positions), &mut [0.0; 18]));
            let (mut d_x, mut d_angles) = (up.clone(), vec![0.0; 14 * 9]);
            rotate(&mut d_x, PLACE, [&cos, &sin], Turn::Inverse);
            add_d_angles([&x, &d_x], PLACE, &mut d_angles);
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
        for turns in on_every_set(|| turns(&increments, of, &mut [0.0])) {
            let [cos, _] = cos_sin::<f32>(&turns);
            let expected = (TAU * (turns_of - turns_of.floor())).cos();
            assert!((f64::from(*cos.last().unwrap()) - expected).abs() < 1e-6, "{turns_of}");
        }
    }

    #[test]
    fn pieces_go_on_where_others_end() {
        let increments = random(14 * 9, 7);
        let whole = turns(&increments, of(&[]), &mut [0.0; 18]);
        let mut before = vec![0.0; 18];
        for (first, len) in [(0, 3), (3, 1), (4, 3)] {
            let piece = |values: &[f64]| -> Vec<f64> {
                values.chunks(63).flat_map(|sequence| &sequence[first * 9..][..len * 9]).copied().collect()
            };
            let own = Increments { len, ..of(&[]) };
            assert_eq!(turns(&piece(&increments), own, &mut before), piece(&whole));
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let place = HeadLayout { row: 50, start: 1, stride: 12, heads: 4, head_dim: 12 };
        let (x, increments) = (single(&random(400 * 50, 8)), single(&random(400 * 24, 9)));
        let of = Increments { batch: 2, len: 200, width: 24, positions: &[] };
        assert_same_at_any_threads(|| {
            let [cos, sin] = cos_sin::<f32>(&turns(&increments, of, &mut [0.0; 48]));
            let (mut turned, mut d_angles) = (x.clone(), vec![0.0; increments.len()]);
            rotate(&mut turned, place, [&cos, &sin], Turn::Forward);
            add_d_angles([&x, &turned], place, &mut d_angles);
            (turned, d_increments::<f32>(&d_angles, of))
        });
    }

    #[test]
    #[should_panic(expected = "126 angles are not [rows, H P] = [14, 6]")]
    fn heads_without_angles_panic() {
        rotate(&mut [0.0; 14 * 23], HeadLayout { heads: 2, ..PLACE }, [&[0.0; 126] as &[f64]; 2], Turn::Forward);
    }
}
