//! DAPE's network over heads: `f = W2 act(W1 u + b1) + b2`, where `u` stacks scores and biases of one query and key. Zheng et
//! al. 2024, arXiv:2405.14722, Eq. 2 and 3.

use super::chunk::{self, ROOM, WIDTH, channels};
use crate::Number;
use crate::cpu::lanes::Lanes;
use crate::tiles::microkernel::StoreMode;
use crate::tiles::product::{SmallGemm, StridedMatrix};
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

/// The network with its numbers, for keys as lanes and for hidden units as lanes.
///
/// The first layer of a forward has keys as lanes, like the scores. A backward has hidden units as lanes, `[keys, room]`: so
/// the products with scores and gradients that make the gradient in W1 and W2 keep their sums in registers, and what is summed
/// by distance lies in whole vectors.
#[derive(Debug)]
pub(super) struct NetworkUnits<'a, T> {
    heads: usize,
    pub(super) hidden: usize,
    inputs: usize,
    /// Hidden units, rounded up to whole vectors.
    pub(super) room: usize,
    first: &'a [T],
    second: &'a [T],
    pub(super) second_bias: &'a [T],
    /// First inputs of the scores and of the biases.
    places: [Option<usize>; 2],
    /// W1 of scores and of biases, `[H, room]`.
    first_rows: [Vec<T>; 2],
    /// W2, `[H, room]`.
    second_rows: Vec<T>,
    /// b1 for each key, `[D, WIDTH]` and `[WIDTH, room]`.
    pub(super) constant: [Vec<T>; 2],
}

/// Scores or biases.
#[derive(Clone, Copy)]
pub(super) enum NetworkInput {
    Scores = 0,
    Biases = 1,
}

/// Numbers at a distance of `stride` from channel to channel.
pub(super) type Channels<'a, T> = (&'a [T], usize);

impl<'a, T: Number> NetworkUnits<'a, T> {
    pub(super) fn new(network: &Network, heads: usize, has_bias: bool, values: &'a [T]) -> Self {
        crate::check_shape!(values, P = network.len(heads, has_bias));
        let (hidden, inputs) = (network.hidden, network.inputs(heads, has_bias));
        let (first, rest) = values.split_at(hidden * inputs);
        let (first_bias, rest) = rest.split_at(hidden);
        let (second, second_bias) = rest.split_at(heads * hidden);
        let places =
            if has_bias { [network.variant.scores(), Some(network.variant.biases() * heads)] } else { [Some(0), None] };
        let room = hidden.next_multiple_of(ROOM);
        let rows = |of: &dyn Fn(usize, usize) -> T| {
            let row = |head| (0..room).map(move |unit| if unit < hidden { of(head, unit) } else { T::ZERO });
            (0..heads).flat_map(row).collect::<Vec<T>>()
        };
        let first_rows = places
            .map(|place| place.map_or_else(Vec::new, |place| rows(&|head, unit| first[unit * inputs + place + head])));
        let second_rows = rows(&|head, unit| second[head * hidden + unit]);
        let mut constant = [channels(hidden), vec![T::ZERO; WIDTH * room]];
        constant[0].chunks_exact_mut(WIDTH).zip(first_bias).for_each(|(to, from)| to.fill(*from));
        constant[1].chunks_exact_mut(room.max(1)).for_each(|to| to[..hidden].copy_from_slice(first_bias));
        NetworkUnits {
            heads,
            hidden,
            inputs,
            room,
            first,
            second,
            second_bias,
            places,
            first_rows,
            second_rows,
            constant,
        }
    }

    /// The columns of W1 for one part, `[D, H]`, or their transpose `[H, D]`.
    #[inline(always)]
    fn first(&self, part: NetworkInput, transposed: bool) -> Option<StridedMatrix<'a, T>> {
        let data = &self.first[self.places[part as usize]?..];
        let [row_stride, column_stride] = if transposed { [1, self.inputs] } else { [self.inputs, 1] };
        Some(StridedMatrix { data, row_stride, column_stride })
    }

    /// `to += W1 u` for one part of u; to `[D, WIDTH]`.
    #[inline(always)]
    pub(super) fn add_first<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        part: NetworkInput,
        from: Channels<T>,
        to: &mut [T],
        columns: usize,
    ) {
        self.first_onto(lanes, part, from, StoreMode::Accumulate, to, columns);
    }

    /// The same, written as `store` says.
    #[inline(always)]
    pub(super) fn first_onto<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        part: NetworkInput,
        (b, b_stride): Channels<T>,
        store: StoreMode<T>,
        to: &mut [T],
        columns: usize,
    ) {
        if let Some(a) = self.first(part, false) {
            let (rows, inner, c_stride) = (self.hidden, self.heads, WIDTH);
            lanes.run(SmallGemm { rows, inner, columns, a, b, b_stride, c: to, c_stride, store });
        } else if let StoreMode::AddTo(from, stride) = store {
            chunk::load(lanes, from, stride, to, columns);
        }
    }

    /// `to += W2 u`, of hidden units u `[D, WIDTH]`; to `[H, stride]`.
    #[inline(always)]
    pub(super) fn add_second<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        units: &[T],
        (c, c_stride): (&mut [T], usize),
        columns: usize,
    ) {
        let a = StridedMatrix { data: self.second, row_stride: self.hidden, column_stride: 1 };
        let (rows, inner, store) = (self.heads, self.hidden, StoreMode::Accumulate);
        lanes.run(SmallGemm { rows, inner, columns, a, b: units, b_stride: WIDTH, c, c_stride, store });
    }

    /// `to = from W1^T` for one part of from, `[H, stride]`, with units as lanes; `[keys, room]`, written as `store` says.
    #[inline(always)]
    pub(super) fn units<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        part: NetworkInput,
        from: Channels<T>,
        store: StoreMode<T>,
        to: &mut [T],
        keys: usize,
    ) {
        let weights = &self.first_rows[part as usize];
        if self.places[part as usize].is_some() {
            self.to_units(lanes, weights, from, store, to, keys);
        } else if let StoreMode::AddTo(from, _) = store {
            to[..keys * self.room].copy_from_slice(&from[..keys * self.room]);
        }
    }

    /// The gradient in act(z), `[keys, room]`, given that in f, `[H, stride]`.
    #[inline(always)]
    pub(super) fn units_backward<L: Lanes<Number = T>>(&self, lanes: L, d_f: Channels<T>, to: &mut [T], keys: usize) {
        self.to_units(lanes, &self.second_rows, d_f, StoreMode::Overwrite, to, keys);
    }

    #[inline(always)]
    fn to_units<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        weights: &[T],
        (data, stride): Channels<T>,
        store: StoreMode<T>,
        to: &mut [T],
        keys: usize,
    ) {
        lanes.run(SmallGemm {
            rows: keys,
            inner: self.heads,
            columns: self.room,
            a: StridedMatrix { data, row_stride: 1, column_stride: stride },
            b: weights,
            b_stride: self.room,
            c: to,
            c_stride: self.room,
            store,
        });
    }

    /// `to += from^T units` over the keys of a chunk: the gradient in W1 or W2, `[H, room]`.
    #[inline(always)]
    pub(super) fn add_weights<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        (data, stride): Channels<T>,
        units: &[T],
        to: &mut [T],
        keys: usize,
    ) {
        lanes.run(SmallGemm {
            rows: self.heads,
            inner: keys,
            columns: self.room,
            a: StridedMatrix { data, row_stride: stride, column_stride: 1 },
            b: units,
            b_stride: self.room,
            c: to,
            c_stride: self.room,
            store: StoreMode::Accumulate,
        });
    }

    /// `to += W1^T d` for one part, d `[D, WIDTH]`, to `[H, stride]`.
    #[inline(always)]
    pub(super) fn add_first_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        part: NetworkInput,
        d_z: &[T],
        (c, c_stride): (&mut [T], usize),
        columns: usize,
    ) {
        if let Some(a) = self.first(part, true) {
            let (rows, inner, store) = (self.heads, self.hidden, StoreMode::Accumulate);
            lanes.run(SmallGemm { rows, inner, columns, a, b: d_z, b_stride: WIDTH, c, c_stride, store });
        }
    }

    /// Whether it sees one part of its possible inputs.
    pub(super) fn sees(&self, part: NetworkInput) -> bool {
        self.places[part as usize].is_some()
    }

    /// Adds the gradient in W1, b1, W2 and b2, given sums: those in W1 for each part and in W2, `[H, room]`, those in z,
    /// `[keys, room]`, and those in f, `[H, keys]`.
    pub(super) fn finish(&self, [scores, biases, second, of_z, of_f]: [&[T]; 5], to: &mut [T]) {
        let (first, rest) = to.split_at_mut(self.hidden * self.inputs);
        let (first_bias, rest) = rest.split_at_mut(self.hidden);
        let (to_second, second_bias) = rest.split_at_mut(self.heads * self.hidden);
        for (place, sums) in self.places.into_iter().zip([scores, biases]) {
            let Some(place) = place else { continue };
            for (at, sums) in sums.chunks_exact(self.room).take(self.heads).enumerate() {
                for (unit, sum) in sums[..self.hidden].iter().enumerate() {
                    first[unit * self.inputs + place + at] += *sum;
                }
            }
        }
        for (to, from) in to_second.chunks_exact_mut(self.hidden).zip(second.chunks_exact(self.room)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
        }
        let mut sums = vec![0.0; self.hidden];
        for row in of_z.chunks_exact(self.room) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.to_f64());
        }
        first_bias.iter_mut().zip(sums).for_each(|(to, sum)| *to += T::from_f64(sum));
        for (to, row) in second_bias.iter_mut().zip(of_f.chunks_exact(of_f.len() / self.heads)) {
            *to += T::from_f64(row.iter().map(|value| value.to_f64()).sum());
        }
    }
}
