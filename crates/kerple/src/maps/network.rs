//! DAPE's network over heads: `f = W2 act(W1 u + b1) + b2`, where `u` stacks scores and biases of one query and key. Zheng et
//! al. 2024, arXiv:2405.14722, Eq. 2 and 3.

use super::chunk::{self, Sums, WIDTH, add_product};
use crate::Number;
use crate::attention::product::Matrix;
use crate::cpu::lanes::Lanes;
use serde::{Deserialize, Serialize};

/// What the network sees, and what its result is added to; `s` are scores, `b` biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// `s + b + f(s, b)`: Eq. 3.
    #[default]
    ConcatResidual,
    /// `s + f(s, b)`: Eq. 2.
    Concat,
    /// `s + b + f(s + b)`
    AddResidual,
    /// `s + b + f(b)`: biases that do not adapt to the data.
    BiasOnly,
}

impl Variant {
    /// Inputs for each head where there is a bias.
    pub fn inputs(self) -> usize {
        match self {
            Variant::ConcatResidual | Variant::Concat => 2,
            Variant::AddResidual | Variant::BiasOnly => 1,
        }
    }

    /// Whether the bias itself is added to the scores.
    pub fn adds_bias(self) -> bool {
        self != Variant::Concat
    }

    /// Which block of H inputs the scores go through, if any.
    pub(super) fn scores(self) -> Option<usize> {
        (self != Variant::BiasOnly).then_some(0)
    }

    /// Which block of H inputs the biases go through.
    pub(super) fn biases(self) -> usize {
        self.inputs() - 1
    }
}

/// What a network that sees neighbours finds after the last key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// Hidden units as any longer sequence has them there: rows do not depend on what follows.
    #[default]
    Open,
    /// Zeros, as in the released code.
    Closed,
}

/// Slope of the hidden units below 0.
pub const SLOPE: f64 = 0.01;

/// Sizes and choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Hidden units, D.
    pub hidden: usize,
    /// Inputs and residual.
    pub variant: Variant,
    /// Keys that each layer sees, k; odd. More than 1: see [`convolved`](super::convolved).
    pub kernel: usize,
    /// What there is after the last key.
    pub edge: Edge,
}

impl Network {
    /// Inputs, C.
    pub fn inputs(&self, heads: usize, has_bias: bool) -> usize {
        heads * if has_bias { self.variant.inputs() } else { 1 }
    }

    /// Numbers it takes: `W1 [D, C, k]`, `b1 [D]`, `W2 [H, D, k]`, `b2 [H]`.
    pub fn len(&self, heads: usize, has_bias: bool) -> usize {
        self.hidden * (self.kernel * (self.inputs(heads, has_bias) + heads) + 1) + heads
    }

    /// Whether it has no hidden unit.
    pub fn is_empty(&self) -> bool {
        self.hidden == 0
    }
}

/// The network with its numbers.
#[derive(Debug)]
pub(super) struct Over<'a, T> {
    heads: usize,
    hidden: usize,
    inputs: usize,
    first: &'a [T],
    pub(super) first_bias: &'a [T],
    second: &'a [T],
    pub(super) second_bias: &'a [T],
    /// First inputs of the scores and of the biases.
    places: [Option<usize>; 2],
}

/// Scores or biases.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Scores = 0,
    Biases = 1,
}

/// Sums over chunks of the gradient in the numbers.
pub(super) struct Gradient<T> {
    parts: [Sums<T>; 2],
    first_bias: Sums<T>,
    second: Sums<T>,
    second_bias: Sums<T>,
}

impl<'a, T: Number> Over<'a, T> {
    pub(super) fn new(network: &Network, heads: usize, has_bias: bool, values: &'a [T]) -> Self {
        crate::check_shape!(values, P = network.len(heads, has_bias));
        let (hidden, inputs) = (network.hidden, network.inputs(heads, has_bias));
        let (first, rest) = values.split_at(hidden * inputs);
        let (first_bias, rest) = rest.split_at(hidden);
        let (second, second_bias) = rest.split_at(heads * hidden);
        let places = match has_bias {
            false => [Some(0), None],
            true => [network.variant.scores(), Some(network.variant.biases() * heads)],
        };
        Over { heads, hidden, inputs, first, first_bias, second, second_bias, places }
    }

    /// The columns of W1 for one part, `[D, H]`, or their transpose `[H, D]`.
    #[inline(always)]
    fn first(&self, part: Part, transposed: bool) -> Option<Matrix<'a, T>> {
        let data = &self.first[self.places[part as usize]?..];
        Some(match transposed {
            false => Matrix { data, row_stride: self.inputs, column_stride: 1 },
            true => Matrix { data, row_stride: 1, column_stride: self.inputs },
        })
    }

    /// `to += W1 u` for one part of u, `[H, stride]`; to `[D, WIDTH]`.
    #[inline(always)]
    pub(super) fn add_first<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        part: Part,
        from: (&[T], usize),
        to: &mut [T],
        columns: usize,
    ) {
        if let Some(weights) = self.first(part, false) {
            add_product(lanes, [self.hidden, self.heads], weights, from, to, columns);
        }
    }

    /// `to += W1^T d` for one part, d `[D, stride]`, to `[H, WIDTH]`.
    #[inline(always)]
    pub(super) fn add_first_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        part: Part,
        from: (&[T], usize),
        to: &mut [T],
        columns: usize,
    ) {
        if let Some(weights) = self.first(part, true) {
            add_product(lanes, [self.heads, self.hidden], weights, from, to, columns);
        }
    }

    /// `to += W2 act(z)`, z `[D, WIDTH]` becomes act(z); to `[H, WIDTH]`.
    #[inline(always)]
    pub(super) fn add_second<L: Lanes<Number = T>>(&self, lanes: L, z: &mut [T], to: &mut [T], columns: usize) {
        chunk::rectify(z, T::from_f64(SLOPE), columns);
        let second = Matrix { data: self.second, row_stride: self.hidden, column_stride: 1 };
        add_product(lanes, [self.heads, self.hidden], second, (z, WIDTH), to, columns);
    }

    /// Overwrites `d_z` by the gradient in z, given that in f and act(z).
    #[inline(always)]
    pub(super) fn second_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        a: &[T],
        d_f: &[T],
        d_z: &mut [T],
        columns: usize,
    ) {
        d_z.fill(T::ZERO);
        let second = Matrix { data: self.second, row_stride: 1, column_stride: self.hidden };
        add_product(lanes, [self.hidden, self.heads], second, (d_f, WIDTH), d_z, columns);
        chunk::rectify_backward(a, d_z, T::from_f64(SLOPE), columns);
    }

    pub(super) fn gradient<L: Lanes<Number = T>>(&self) -> Gradient<T> {
        let (hidden, heads) = (self.hidden, self.heads);
        let part = |place: Option<usize>| Sums::new::<L>([if place.is_some() { hidden } else { 0 }, heads]);
        Gradient {
            parts: self.places.map(part),
            first_bias: Sums::new::<L>([hidden, 1]),
            second: Sums::new::<L>([heads, hidden]),
            second_bias: Sums::new::<L>([heads, 1]),
        }
    }

    /// Adds the gradient of W2 and b2.
    #[inline(always)]
    pub(super) fn add_to_second<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        d_f: &[T],
        a: &[T],
        gradient: &mut Gradient<T>,
        columns: usize,
    ) {
        gradient.second.add(lanes, (d_f, WIDTH), (a, WIDTH), columns);
        gradient.second_bias.add(lanes, (d_f, WIDTH), (&[T::ONE; WIDTH], WIDTH), columns);
    }

    /// Adds the gradient of W1 through one part of u.
    #[inline(always)]
    pub(super) fn add_to_first<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        part: Part,
        d_z: (&[T], usize),
        u: (&[T], usize),
        gradient: &mut Gradient<T>,
        columns: usize,
    ) {
        if self.places[part as usize].is_some() {
            gradient.parts[part as usize].add(lanes, d_z, u, columns);
        }
    }

    /// Adds the gradient of b1.
    #[inline(always)]
    pub(super) fn add_to_first_bias<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        d_z: (&[T], usize),
        gradient: &mut Gradient<T>,
        columns: usize,
    ) {
        gradient.first_bias.add(lanes, d_z, (&[T::ONE; WIDTH], WIDTH), columns);
    }

    /// Adds the sums to the gradient of all numbers.
    #[inline(always)]
    pub(super) fn finish<L: Lanes<Number = T>>(&self, lanes: L, gradient: &Gradient<T>, to: &mut [T]) {
        let (first, rest) = to.split_at_mut(self.hidden * self.inputs);
        let (first_bias, rest) = rest.split_at_mut(self.hidden);
        let (second, second_bias) = rest.split_at_mut(self.heads * self.hidden);
        for (place, sums) in self.places.into_iter().zip(&gradient.parts) {
            if let Some(place) = place {
                sums.finish(lanes, &mut first[place..], [self.inputs, 1]);
            }
        }
        gradient.first_bias.finish(lanes, first_bias, [1, 0]);
        gradient.second.finish(lanes, second, [self.hidden, 1]);
        gradient.second_bias.finish(lanes, second_bias, [1, 0]);
    }
}
