//! FIRE's bias: a small network over a distance that is measured against the query's position. Li et al. 2023,
//! arXiv:2310.04418, Eq. 2.
//!
//! ```text
//! b(i, j) = W2 act(w1 t + b1) + b2        t = psi(|i - j|) / (psi(max(i, j, P)) + 1e-6)
//! psi(x) = ln(1 + |c x|)                  P = |m p|, p the threshold
//! ```
//!
//! `max(i, j)` is `i` for a decoder. `psi` is made in f64 at every distance and position once a call, so a pair costs one
//! product before the network. Where a position equals P, half of the derivative goes to P, as in the released code.

use super::Extent;
use super::chunk::{self, Sums, WIDTH, add_product, channels};
use crate::Number;
use crate::attention::product::Matrix;
use crate::cpu::lanes::Lanes;

/// Sizes and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Fire {
    /// Hidden units, W.
    pub width: usize,
    /// p: positions below `|m p|` share one measure.
    pub threshold: f64,
    /// Slope of the hidden units below 0.
    pub slope: f64,
}

/// Added to the divisor.
pub const EPSILON: f64 = 1e-6;

impl Fire {
    /// Numbers it takes: `c`, `m`, `w1 [W]`, `b1 [W]`, `W2 [H, W]`, `b2 [H]`.
    pub fn len(&self, heads: usize) -> usize {
        2 + 2 * self.width + heads * self.width + heads
    }

    /// Whether it takes none: never.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// The bias with its numbers.
#[derive(Debug)]
pub(super) struct Over<'a, T> {
    fire: &'a Fire,
    heads: usize,
    first: &'a [T],
    first_bias: &'a [T],
    second: &'a [T],
    second_bias: &'a [T],
    /// Of each distance: psi and its derivative in c.
    psi: [Vec<T>; 2],
    /// Of each position: one over the divisor, and its derivatives in c and in m.
    inverse: [Vec<T>; 3],
}

/// The pairs of one query with consecutive keys.
#[derive(Clone, Copy)]
pub(super) struct Pairs {
    pub(super) query: isize,
    pub(super) first_key: usize,
    pub(super) count: usize,
}

impl Pairs {
    /// Distance and larger position of each.
    #[inline(always)]
    fn each(self) -> impl Iterator<Item = (usize, usize)> {
        let at = move |key: usize| (self.query.abs_diff(key as isize), self.query.max(key as isize) as usize);
        (self.first_key..self.first_key + self.count).map(at)
    }
}

/// What a chunk needs: the inputs of the network, and its hidden units.
pub(super) struct Scratch<T> {
    t: Vec<T>,
    /// `[W, WIDTH]`
    hidden: Vec<T>,
    d_hidden: Vec<T>,
    d_t: Vec<T>,
}

/// Sums over chunks of the gradient in the numbers.
pub(super) struct Gradient<T> {
    scalars: [f64; 2],
    first: Sums<T>,
    first_bias: Sums<T>,
    second: Sums<T>,
    second_bias: Sums<T>,
}

impl<'a, T: Number> Over<'a, T> {
    pub(super) fn new(fire: &'a Fire, heads: usize, values: &'a [T], extent: Extent) -> Self {
        crate::check_shape!(values, P = fire.len(heads));
        let (scalars, rest) = values.split_at(2);
        let (first, rest) = rest.split_at(fire.width);
        let (first_bias, rest) = rest.split_at(fire.width);
        let (second, second_bias) = rest.split_at(heads * fire.width);
        let [c, m] = [scalars[0].to_f64(), scalars[1].to_f64()];
        let psi = |x: f64| (c * x).abs().ln_1p();
        let psi_in_c = |x: f64| sign(c) * x / (1.0 + (c * x).abs());
        let psi_in_x = |x: f64| c.abs() / (1.0 + (c * x).abs());
        let threshold = (m * fire.threshold).abs();
        let threshold_in_m = sign(m * fire.threshold) * fire.threshold;
        let cast = |value: f64| T::from_f64(value);
        let mut inverse = [const { Vec::new() }; 3];
        for position in (0..extent.len).map(|position| position as f64) {
            let largest = position.max(threshold);
            let share = if threshold > position { 1.0 } else { 0.0 } + if threshold == position { 0.5 } else { 0.0 };
            let one_over = 1.0 / (psi(largest) + EPSILON);
            let slope = -one_over * one_over;
            let own = [one_over, slope * psi_in_c(largest), slope * psi_in_x(largest) * share * threshold_in_m];
            inverse.iter_mut().zip(own).for_each(|(all, own)| all.push(cast(own)));
        }
        let distances = || (0..extent.len).map(|d| d as f64);
        let psi = [distances().map(|d| cast(psi(d))).collect(), distances().map(|d| cast(psi_in_c(d))).collect()];
        Over { fire, heads, first, first_bias, second, second_bias, psi, inverse }
    }

    pub(super) fn scratch(&self) -> Scratch<T> {
        let width = self.fire.width;
        Scratch { t: channels(1), hidden: channels(width), d_hidden: channels(width), d_t: channels(1) }
    }

    /// The bias of a chunk, `[H, WIDTH]`.
    #[inline(always)]
    pub(super) fn bias<L: Lanes<Number = T>>(&self, lanes: L, pairs: Pairs, scratch: &mut Scratch<T>, to: &mut [T]) {
        let columns = pairs.count.next_multiple_of(L::COUNT);
        scratch.t[pairs.count..columns].fill(T::ZERO);
        for (t, (distance, position)) in scratch.t.iter_mut().zip(pairs.each()) {
            *t = self.psi[0][distance] * self.inverse[0][position];
        }
        for (unit, row) in scratch.hidden.chunks_exact_mut(WIDTH).enumerate() {
            for (hidden, &t) in row[..columns].iter_mut().zip(&scratch.t) {
                *hidden = self.first[unit] * t + self.first_bias[unit];
            }
        }
        chunk::rectify(&mut scratch.hidden, T::from_f64(self.fire.slope), columns);
        chunk::spread(self.second_bias, to, columns);
        let (data, row_stride, hidden) = (self.second, self.fire.width, (&scratch.hidden[..], WIDTH));
        let second = Matrix { data, row_stride, column_stride: 1 };
        add_product(lanes, [self.heads, self.fire.width], second, hidden, to, columns);
    }

    pub(super) fn gradient<L: Lanes<Number = T>>(&self) -> Gradient<T> {
        let (heads, width) = (self.heads, self.fire.width);
        Gradient {
            scalars: [0.0; 2],
            first: Sums::new::<L>([width, 1]),
            first_bias: Sums::new::<L>([width, 1]),
            second: Sums::new::<L>([heads, width]),
            second_bias: Sums::new::<L>([heads, 1]),
        }
    }

    /// Adds the gradient of a chunk, given that in its bias, `[H, WIDTH]` with zeros up to a whole vector; `scratch` is as
    /// [`Over::bias`] left it.
    #[inline(always)]
    pub(super) fn backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        pairs: Pairs,
        d_bias: &[T],
        scratch: &mut Scratch<T>,
        gradient: &mut Gradient<T>,
    ) {
        let (columns, width) = (pairs.count.next_multiple_of(L::COUNT), self.fire.width);
        let Scratch { t, hidden, d_hidden, d_t } = scratch;
        let ones = [T::ONE; WIDTH];
        gradient.second.add(lanes, (d_bias, WIDTH), (hidden, WIDTH), columns);
        gradient.second_bias.add(lanes, (d_bias, WIDTH), (&ones, WIDTH), columns);
        d_hidden.fill(T::ZERO);
        let second = Matrix { data: self.second, row_stride: 1, column_stride: width };
        add_product(lanes, [width, self.heads], second, (d_bias, WIDTH), d_hidden, columns);
        chunk::rectify_backward(hidden, d_hidden, T::from_f64(self.fire.slope), columns);
        gradient.first.add(lanes, (d_hidden, WIDTH), (t, WIDTH), columns);
        gradient.first_bias.add(lanes, (d_hidden, WIDTH), (&ones, WIDTH), columns);
        d_t.fill(T::ZERO);
        let first = Matrix { data: self.first, row_stride: width, column_stride: 1 };
        add_product(lanes, [1, width], first, (d_hidden, WIDTH), d_t, columns);
        let ([psi, psi_in_c], [inverse, in_c, in_m]) = (&self.psi, &self.inverse);
        let mut scalars = [T::ZERO; 2];
        for (&d_t, (distance, position)) in d_t.iter().zip(pairs.each()) {
            let of_c = psi_in_c[distance] * inverse[position] + psi[distance] * in_c[position];
            scalars[0] += d_t * of_c;
            scalars[1] += d_t * psi[distance] * in_m[position];
        }
        gradient.scalars.iter_mut().zip(scalars).for_each(|(sum, part)| *sum += part.to_f64());
    }
}

impl<T: Number> Gradient<T> {
    /// Adds the sums to the gradient of all numbers.
    #[inline(always)]
    pub(super) fn finish<L: Lanes<Number = T>>(&self, lanes: L, to: &mut [T]) {
        let width = self.first.len();
        to.iter_mut().zip(self.scalars).for_each(|(to, sum)| *to += T::from_f64(sum));
        let mut at = 2;
        for (sums, strides) in
            [(&self.first, [1, 0]), (&self.first_bias, [1, 0]), (&self.second, [width, 1]), (&self.second_bias, [1, 0])]
        {
            sums.finish(lanes, &mut to[at..at + sums.len()], strides);
            at += sums.len();
        }
    }
}

/// -1, 0 or 1.
fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}
