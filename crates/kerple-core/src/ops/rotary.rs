//! Rotary position embedding in place on strided rows. Su et al. 2021, arXiv:2104.09864, in the half-split form.
//!
//! ```text
//! (x[j], x[j + R/2])  ->  (x[j] cos - x[j + R/2] sin,  x[j + R/2] cos + x[j] sin)       j < R/2
//! ```
//!
//! The first R features of a head turn, the others stay. The backward pass is the inverse rotation.

use crate::Number;
use crate::cpu::vectorized;
use crate::tiles::Strides;
use crate::{check_shape, elements};
use rayon::prelude::*;

/// Outer rows a task takes at least.
const FEWEST_ROWS_PER_TASK: usize = 16;

/// Which way to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// By the angle: the forward pass.
    Forward,
    /// By minus the angle: the backward pass, or undoing.
    Inverse,
}

/// Cosines and sines of the angles, a row a position.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a, T> {
    /// `[L, R/2]`
    pub cos: &'a [T],
    /// `[L, R/2]`
    pub sin: &'a [T],
    /// Pairs a row, R/2.
    pub pairs: usize,
}

/// Sequences, positions and heads of what is rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// B
    pub batch: usize,
    /// L
    pub len: usize,
    /// H
    pub heads: usize,
}

/// Rotates the first R features of each head of `x`, a strided `[B, H, L, D]`, in place, by the angles of its position.
///
/// For the queries and keys of a packed projection `[B, L, H, q|k|v, D]`, call it on the slice from the first query and
/// on the slice from the first key.
///
/// # Panics
/// If there are fewer angles than positions, if `x` ends before its last row, or if rows overlap.
pub fn rotate<T: Number>(x: &mut [T], strides: Strides, sizes: Rotated, angles: Angles<'_, T>, turn: Turn) {
    let Rotated { batch, len, heads } = sizes;
    let Angles { cos, sin, pairs } = angles;
    check_shape!(sin, positions = cos.len() / pairs.max(1), pairs = pairs);
    let reached = elements(&[len, pairs]);
    assert!(
        reached.is_some_and(|reached| cos.len() >= reached),
        "cos: expected [L, R/2] = [{len}, {pairs}], got {} values",
        cos.len()
    );
    if [batch, len, heads, pairs].contains(&0) {
        return;
    }
    let Strides { batch: per_batch, head: per_head, row: per_row } = strides;
    let by_row = per_row >= per_head;
    // the larger of the two strides steps the outer axis
    let (outer, inner) = if by_row { ((len, per_row), (heads, per_head)) } else { ((heads, per_head), (len, per_row)) };
    check_layout(x.len(), &[(batch, per_batch), outer, inner], 2 * pairs);
    let sequence_len = (outer.0 - 1) * outer.1 + (inner.0 - 1) * inner.1 + 2 * pairs;
    let outer_len = (inner.0 - 1) * inner.1 + 2 * pairs;
    x.par_chunks_mut(per_batch.max(sequence_len)).take(batch).for_each(|sequence| {
        let outer_rows = sequence.par_chunks_mut(outer.1.max(outer_len)).take(outer.0).enumerate();
        outer_rows.with_min_len(FEWEST_ROWS_PER_TASK).for_each(|(i, data)| {
            let (first, step) = if by_row { (i * pairs, 0) } else { (0, pairs) };
            rotate_rows(data, inner.0, inner.1, &cos[first..], &sin[first..], pairs, step, turn);
        });
    });
}

/// Checks that the axes, outermost first, nest without overlap and that the data reach their end.
fn check_layout(len: usize, axes: &[(usize, usize)], width: usize) {
    let mut end = width;
    for (count, stride) in axes.iter().rev() {
        assert!(*count == 1 || *stride >= end, "strides: rows of {end} values overlap at a stride of {stride}");
        let steps = (count - 1).checked_mul(*stride).and_then(|steps| end.checked_add(steps));
        end = steps.unwrap_or_else(|| panic!("strides: {count} steps of {stride} overflow"));
    }
    assert!(len >= end, "data: expected at least {end} values, got {len}");
}

vectorized! {
    /// Rotates rows a stride apart, each by angles a step after those of the row before.
    #[allow(clippy::too_many_arguments, reason = "a loop alone, so that the instruction set is chosen once")]
    pub(super) fn rotate_rows(x: &mut [T], rows: usize, stride: usize, cos: &[T], sin: &[T], pairs: usize, step: usize, turn: Turn) {
        let sign = if turn == Turn::Forward { T::ONE } else { -T::ONE };
        for row in 0..rows {
            let at = row * step;
            rotate_pairs(&mut x[row * stride..][..2 * pairs], [&cos[at..][..pairs], &sin[at..][..pairs]], sign);
        }
    }
}

/// Turns the pairs of a row; the sign is that of the angles.
#[inline(always)]
pub(super) fn rotate_pairs<T: Number>(row: &mut [T], [cos, sin]: [&[T]; 2], sign: T) {
    let (low, high) = row.split_at_mut(cos.len());
    for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (a, b, sin) = (*low, *high, *sin * sign);
        *low = a * *cos - b * sin;
        *high = b * *cos + a * sin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    /// cos and sin `[len, pairs]` at rates `10000^(-j / pairs)` from position `offset`.
    fn tables(len: usize, pairs: usize, offset: usize) -> (Vec<f64>, Vec<f64>) {
        let angle = |i: usize| (offset + i / pairs) as f64 * 10_000f64.powf(-((i % pairs) as f64) / pairs as f64);
        (0..len * pairs).map(|i| (angle(i).cos(), angle(i).sin())).unzip()
    }

    /// Strides of packed `[B, L, H, 3, D]` or of `[B, H, L, D]`.
    fn strides(sizes: Rotated, d: usize, packed: bool) -> Strides {
        let Rotated { len, heads, .. } = sizes;
        if packed {
            Strides { batch: len * heads * 3 * d, row: heads * 3 * d, head: 3 * d }
        } else {
            Strides { batch: heads * len * d, row: d, head: len * d }
        }
    }

    proptest! {
        #[test]
        fn rotates_the_pairs_of_every_head_and_nothing_else(
            batch in 1usize..4, len in 1usize..40, heads in 1usize..4, pairs in 0usize..5, rest in 0usize..4, packed: bool, part in 0usize..3,
        ) {
            let (sizes, d) = (Rotated { batch, len, heads }, 2 * pairs + rest + 1);
            let strides = strides(sizes, d, packed);
            let start = if packed { part * d } else { 0 };
            let data = random(batch * strides.batch, 3);
            let (cos, sin) = tables(len + 2, pairs.max(1), 5);
            let angles = Angles { cos: &cos[..(len + 2) * pairs], sin: &sin[..(len + 2) * pairs], pairs };
            let mut turned = data.clone();
            rotate(&mut turned[start..], strides, sizes, angles, Turn::Forward);
            let mut want = data.clone();
            for (b, h, l) in (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..len).map(move |l| (b, h, l)))) {
                for j in 0..pairs {
                    let low = start + b * strides.batch + h * strides.head + l * strides.row + j;
                    // multiplication of complex numbers, by modulus and argument
                    let (x, y) = (data[low], data[low + pairs]);
                    let argument = y.atan2(x) + (5 + l) as f64 * 10_000f64.powf(-(j as f64) / pairs as f64);
                    (want[low], want[low + pairs]) = (x.hypot(y) * argument.cos(), x.hypot(y) * argument.sin());
                }
            }
            for (i, (got, want)) in turned.iter().zip(&want).enumerate() {
                prop_assert!((got - want).abs() < 1e-13, "{i}: {got} {want}");
            }
            rotate(&mut turned[start..], strides, sizes, angles, Turn::Inverse);
            for (got, was) in turned.iter().zip(&data) {
                prop_assert!((got - was).abs() < 1e-15);
            }
        }
    }

    #[test]
    fn scores_depend_on_the_distance_only() {
        let (len, pairs) = (50, 8);
        let (q, k) = (random(2 * pairs, 1), random(2 * pairs, 2));
        let (cos, sin) = tables(len, pairs, 0);
        let all = |row: &[f64]| {
            let mut rows = row.repeat(len);
            let strides = Strides { batch: len * 2 * pairs, head: 2 * pairs, row: 2 * pairs };
            let sizes = Rotated { batch: 1, len, heads: 1 };
            let angles = Angles { cos: &cos, sin: &sin, pairs };
            rotate(&mut rows, strides, sizes, angles, Turn::Forward);
            rows
        };
        let (q, k) = (all(&q), all(&k));
        let score =
            |i: usize, j: usize| (0..2 * pairs).map(|c| q[i * 2 * pairs + c] * k[j * 2 * pairs + c]).sum::<f64>();
        for i in 7..len {
            assert!((score(i, i - 7) - score(7, 0)).abs() < 1e-13);
        }
    }

    /// Positions around a million, as `Rotary::tables` makes them, turned in f32, against the definition in f64.
    #[test]
    fn a_million_positions_are_as_exact_as_ten() {
        let (pairs, len) = (32, 40);
        let rotary =
            crate::encoding::rotary::RotaryConfig::default().rotary(2 * pairs, crate::encoding::Emulate::Exact);
        let x = random(len * 2 * pairs, 1);
        for start in [0, 1_000_000 - len / 2, 16_777_216] {
            let (cos, sin) = rotary.tables(start..start + len);
            let (cos, sin) = (single(&cos), single(&sin));
            let mut turned = single(&x);
            let strides = Strides { batch: x.len(), head: x.len(), row: 2 * pairs };
            let angles = Angles { cos: &cos, sin: &sin, pairs };
            rotate(&mut turned, strides, Rotated { batch: 1, len, heads: 1 }, angles, Turn::Forward);
            for (i, got) in turned.iter().enumerate() {
                let (position, j) = (start + i / (2 * pairs), i % (2 * pairs));
                let angle = position as f64 * 10_000f64.powf(-((j % pairs) as f64) / pairs as f64);
                let (a, b) = (x[i - j + j % pairs], x[i - j + j % pairs + pairs]);
                let want =
                    if j < pairs { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() };
                // five roundings to f32 of values below sqrt 2: of x, cos or sin, the two products and their sum
                assert!((f64::from(*got) - want).abs() < 3e-7, "position {position}, feature {j}: {got} {want}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        let (sizes, d) = (Rotated { batch: 2, len: 90, heads: 3 }, 14);
        let (cos, sin) = tables(90, 6, 0);
        let (cos, sin) = (single(&cos), single(&sin));
        let data = single(&random(2 * 90 * 3 * 3 * d, 4));
        assert_same_at_any_threads(|| {
            let mut data = data.clone();
            rotate(
                &mut data[d..],
                strides(sizes, d, true),
                sizes,
                Angles { cos: &cos, sin: &sin, pairs: 6 },
                Turn::Forward,
            );
            data
        });
    }

    #[test]
    #[should_panic(expected = "overflow")]
    fn strides_that_wrap_panic() {
        let strides = Strides { batch: 1 << 63, head: 1 << 20, row: 2 };
        let angles = Angles { cos: &[1.0f32], sin: &[0.0], pairs: 1 };
        rotate(&mut [0.0; 2], strides, Rotated { batch: 3, len: 1, heads: 1 }, angles, Turn::Forward);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn overlapping_rows_panic() {
        let strides = Strides { batch: 100, head: 4, row: 3 };
        let angles = Angles { cos: &[1.0f32; 10], sin: &[0.0; 10], pairs: 2 };
        rotate(&mut [0.0; 100], strides, Rotated { batch: 1, len: 5, heads: 2 }, angles, Turn::Forward);
    }
}
