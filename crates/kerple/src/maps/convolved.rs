//! DAPE's network with layers that also see the neighbours of a key: `1 x k` convolutions along the keys of a query. Zheng et
//! al. 2024, arXiv:2410.04798 (DAPE V2).
//!
//! ```text
//! u[c]    scores and biases of key c, 0 where the query does not see it          C channels
//! h[c]    act(sum over t of W1[t] u[c + t] + b1)                                 D channels, t = -r..=r, r = (k - 1) / 2
//! f[c]    sum over t of W2[t] h[c + t] + b2                                      H channels
//! ```
//!
//! Nothing comes before key 0: there h is 0. After the last key that a query sees h is computed from the keys before, as in
//! any longer sequence, so a row does not depend on what follows it. An [`Edge::Closed`] end is as the released code has it:
//! h is 0 after the last key of the sequence, so the last r rows of a sequence differ from the same rows of a longer one.
//! Encoders know the end of their sequence and are closed always.

use super::Extent;
use super::bias::{BiasSums, Source};
use super::chunk::{Sums, WIDTH, channels};
use super::fire::Pairs;
use super::mixed::Mixed;
use super::network::{Edge, Network, SLOPE, Variant};
use crate::Number;
use crate::attention::product::{Keep, Matrix, Product};
use crate::cpu::lanes::{Kernel, Lanes, run};
use crate::forms::{Block, MapGradients, Reach, ScoreMap, Sight};
use std::ops::Range;

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct Over<'a, T> {
    mixed: &'a Mixed,
    network: &'a Network,
    /// How many numbers belong to the table, to FIRE and to the network.
    sizes: [usize; 3],
    source: Source<'a, T>,
    /// `[D, C, k]`, `[D]`, `[H, D, k]`, `[H]`
    first: &'a [T],
    first_bias: &'a [T],
    second: &'a [T],
    second_bias: &'a [T],
    /// C
    inputs: usize,
}

impl<'a, T: Number> Over<'a, T> {
    pub(super) fn new(mixed: &'a Mixed, network: &'a Network, values: &'a [T], extent: Extent) -> Self {
        let sizes = mixed.sizes(extent);
        crate::check_shape!(values, P = sizes.iter().sum::<usize>());
        let (of_bias, of_network) = values.split_at(sizes[0] + sizes[1]);
        let inputs = network.inputs(mixed.heads, mixed.has_bias());
        let (first, rest) = of_network.split_at(network.hidden * inputs * network.kernel);
        let (first_bias, rest) = rest.split_at(network.hidden);
        let (second, second_bias) = rest.split_at(mixed.heads * network.hidden * network.kernel);
        let source = Source::new(mixed, of_bias, sizes, extent, None);
        Over { mixed, network, sizes, source, first, first_bias, second, second_bias, inputs }
    }

    /// W1 at one offset, `[D, C]`, or its transpose.
    fn first(&self, tap: usize, transposed: bool) -> Matrix<'a, T> {
        let (k, data) = (self.network.kernel, &self.first[tap..]);
        match transposed {
            false => Matrix { data, row_stride: self.inputs * k, column_stride: k },
            true => Matrix { data, row_stride: k, column_stride: self.inputs * k },
        }
    }

    /// W2 at one offset, `[H, D]`, or its transpose.
    fn second(&self, tap: usize, transposed: bool) -> Matrix<'a, T> {
        let (k, data) = (self.network.kernel, &self.second[tap..]);
        match transposed {
            false => Matrix { data, row_stride: self.network.hidden * k, column_stride: k },
            true => Matrix { data, row_stride: k, column_stride: self.network.hidden * k },
        }
    }

    /// How far a layer sees to each side.
    fn reach(&self) -> usize {
        self.network.kernel / 2
    }
}

/// The keys that one query sees, and where its hidden units are; columns of the hidden array start r before the keys.
struct Row {
    row: usize,
    seen: Range<usize>,
    /// Columns of the hidden array that stand for keys; the others are 0.
    hidden: Range<usize>,
}

impl Row {
    fn new<T: Number>(over: &Over<T>, block: &Block<T>, row: usize) -> Row {
        let (seen, reach) = (block.visible(row), over.reach());
        let (first, last) = (block.first_key + seen.start, block.first_key + seen.end);
        let closed = over.network.edge == Edge::Closed || matches!(block.sight, Sight::Both { .. });
        let before = first.min(reach);
        let after = if closed { block.keys.saturating_sub(last).min(reach) } else { reach };
        let hidden = reach - before..reach + seen.len() + after;
        Row { row, seen, hidden }
    }
}

/// What a row is computed in: arrays of `stride` columns whose first `2 r` and what lies after a row's keys are 0.
struct Scratch<T> {
    stride: usize,
    /// `[H, stride]`, keys from column 0.
    scores: Vec<T>,
    bias: Vec<T>,
    mapped: Vec<T>,
    /// `[C, stride]`, keys from column `2 r`.
    inputs: Vec<T>,
    /// `[D, stride]`, keys from column `r`.
    hidden: Vec<T>,
    fire: Option<super::fire::Scratch<T>>,
    chunk: Vec<T>,
}

/// `to[.., 0..columns] += weights from[.., from_column..]`, with arrays of `stride` columns.
#[inline(always)]
fn add_tap<L: Lanes>(
    lanes: L,
    [rows, inner]: [usize; 2],
    a: Matrix<L::Number>,
    b: &[L::Number],
    c: &mut [L::Number],
    [columns, stride]: [usize; 2],
) {
    let columns = columns.next_multiple_of(L::COUNT);
    lanes.run(Product { rows, inner, columns, a, b, b_stride: stride, c, c_stride: stride, keep: Keep::Add });
}

impl<T: Number> Over<'_, T> {
    fn scratch(&self, columns: usize) -> Scratch<T> {
        let (heads, reach) = (self.mixed.heads, self.reach());
        let stride = (columns + 4 * reach + WIDTH).next_multiple_of(WIDTH);
        let array = |channels: usize| vec![T::ZERO; channels * stride];
        Scratch {
            stride,
            scores: array(heads),
            bias: array(heads),
            mapped: array(heads),
            inputs: array(self.inputs),
            hidden: array(self.network.hidden),
            fire: self.source.scratch(),
            chunk: channels(heads),
        }
    }

    /// Loads scores, biases, inputs and hidden units of a row.
    #[inline(always)]
    fn load<L: Lanes<Number = T>>(&self, lanes: L, block: &Block<T>, all: &[T], row: &Row, scratch: &mut Scratch<T>) {
        let (heads, reach, count, stride) = (self.mixed.heads, self.reach(), row.seen.len(), scratch.stride);
        let Scratch { scores, bias, inputs, hidden, fire, chunk, .. } = scratch;
        for (head, to) in scores.chunks_exact_mut(stride).enumerate() {
            let at = (head * block.rows + row.row) * block.columns + row.seen.start;
            to[..count].copy_from_slice(&all[at..at + count]);
        }
        each_chunk(block, row, |first, pairs| {
            let distance = pairs.query - pairs.first_key as isize;
            self.source.load(lanes, pairs, distance, fire.as_mut(), chunk);
            for (to, from) in bias.chunks_exact_mut(stride).zip(chunk.chunks_exact(WIDTH)) {
                to[first..first + pairs.count].copy_from_slice(&from[..pairs.count]);
            }
        });
        inputs.fill(T::ZERO);
        let mut put = |channel: usize, from: &[T]| {
            let to = &mut inputs[channel * stride + 2 * reach..][..count];
            to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
        };
        for (head, (scores, bias)) in scores.chunks_exact(stride).zip(bias.chunks_exact(stride)).enumerate() {
            let [of_scores, of_bias] = places(self.network.variant, self.mixed.has_bias());
            if let Some(first) = of_scores {
                put(first * heads + head, scores);
            }
            if let Some(first) = of_bias {
                put(first * heads + head, bias);
            }
        }
        for (to, from) in hidden.chunks_exact_mut(stride).zip(self.first_bias) {
            to.fill(*from);
        }
        let columns = [count + 2 * reach, stride];
        for tap in 0..self.network.kernel {
            let sizes = [self.network.hidden, self.inputs];
            add_tap(lanes, sizes, self.first(tap, false), &inputs[tap..], hidden, columns);
        }
        let slope = T::from_f64(SLOPE);
        for hidden in hidden.chunks_exact_mut(stride) {
            hidden[..row.hidden.start].fill(T::ZERO);
            hidden[row.hidden.end..].fill(T::ZERO);
            for value in &mut hidden[row.hidden.clone()] {
                *value = if *value > T::ZERO { *value } else { slope * *value };
            }
        }
    }
}

/// Blocks of H inputs that take scores and biases.
fn places(variant: Variant, has_bias: bool) -> [Option<usize>; 2] {
    if !has_bias {
        return [Some(0), None];
    }
    [variant.scores(), Some(variant.biases())]
}

/// Calls `f` with the first key of each chunk, counted from the first that is seen, and its pairs.
#[inline(always)]
fn each_chunk<T>(block: &Block<T>, row: &Row, mut f: impl FnMut(usize, Pairs)) {
    let query = block.first_position + row.row as isize;
    for first in (0..row.seen.len()).step_by(WIDTH) {
        let count = (row.seen.len() - first).min(WIDTH);
        f(first, Pairs { query, first_key: block.first_key + row.seen.start + first, count });
    }
}

impl<T: Number> ScoreMap<T> for Over<'_, T> {
    fn parameters(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn reach(&self) -> Reach {
        Reach::Row
    }

    fn forward(&self, block: &Block<T>, scores: &mut [T]) {
        run(Forward { over: self, block, scores });
    }

    fn backward(&self, block: &Block<T>, scores: &[T], gradients: MapGradients<T>) {
        let MapGradients { d_scores, d_q: _, sums: d_parameters } = gradients;
        run(Backward { over: self, block, scores, d_scores, d_parameters });
    }
}

struct Forward<'a, T> {
    over: &'a Over<'a, T>,
    block: &'a Block<'a, T>,
    scores: &'a mut [T],
}

impl<T: Number> Kernel<T> for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Forward { over, block, scores: all } = self;
        let mut scratch = over.scratch(block.columns);
        let (heads, units) = (over.mixed.heads, over.network.hidden);
        for row in (0..block.rows).map(|row| Row::new(over, block, row)).filter(|row| !row.seen.is_empty()) {
            over.load(lanes, block, all, &row, &mut scratch);
            let Scratch { stride, scores, bias, mapped, hidden, .. } = &mut scratch;
            let (stride, count) = (*stride, row.seen.len());
            mapped.copy_from_slice(scores);
            if over.mixed.adds_bias() {
                mapped.iter_mut().zip(&*bias).for_each(|(to, bias)| *to += *bias);
            }
            for (to, bias) in mapped.chunks_exact_mut(stride).zip(over.second_bias) {
                to[..count].iter_mut().for_each(|to| *to += *bias);
            }
            for tap in 0..over.network.kernel {
                let weights = over.second(tap, false);
                add_tap(lanes, [heads, units], weights, &hidden[tap..], mapped, [count, stride]);
            }
            for (head, from) in mapped.chunks_exact(stride).enumerate() {
                let at = (head * block.rows + row.row) * block.columns + row.seen.start;
                all[at..at + count].copy_from_slice(&from[..count]);
            }
        }
    }
}

struct Backward<'a, T> {
    over: &'a Over<'a, T>,
    block: &'a Block<'a, T>,
    scores: &'a [T],
    d_scores: &'a mut [T],
    d_parameters: &'a mut [T],
}

/// The gradient in the network while it is summed, offset by offset.
struct Gradient<T> {
    first: Vec<Sums<T>>,
    first_bias: Sums<T>,
    second: Vec<Sums<T>>,
    second_bias: Sums<T>,
}

/// What the backward of a row is computed in.
struct Down<T> {
    /// `[H, stride]`, keys from column `2 r`.
    mapped: Vec<T>,
    /// `[D, stride]`, keys from column `r`.
    hidden: Vec<T>,
    /// `[C, stride]`, keys from column 0.
    inputs: Vec<T>,
    ones: Vec<T>,
}

impl<T: Number> Over<'_, T> {
    fn gradient<L: Lanes<Number = T>>(&self) -> Gradient<T> {
        let (heads, units, taps) = (self.mixed.heads, self.network.hidden, 0..self.network.kernel);
        Gradient {
            first: taps.clone().map(|_| Sums::new::<L>([units, self.inputs])).collect(),
            first_bias: Sums::new::<L>([units, 1]),
            second: taps.map(|_| Sums::new::<L>([heads, units])).collect(),
            second_bias: Sums::new::<L>([heads, 1]),
        }
    }

    /// From the gradient in the network's result to those in its inputs and its numbers.
    #[inline(always)]
    fn network_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        row: &Row,
        scratch: &Scratch<T>,
        down: &mut Down<T>,
        sums: &mut Gradient<T>,
    ) {
        let (heads, units, reach, stride) = (self.mixed.heads, self.network.hidden, self.reach(), scratch.stride);
        let (count, wide) = (row.seen.len(), row.seen.len() + 2 * reach);
        let Down { mapped, hidden, inputs, ones } = down;
        hidden.fill(T::ZERO);
        for tap in 0..self.network.kernel {
            let (weights, from) = (self.second(tap, true), &mapped[2 * reach - tap..]);
            add_tap(lanes, [units, heads], weights, from, hidden, [wide, stride]);
            let (d_mapped, of_hidden) = (&mapped[2 * reach..], &scratch.hidden[tap..]);
            sums.second[tap].add(lanes, (d_mapped, stride), (of_hidden, stride), count);
        }
        sums.second_bias.add(lanes, (&mapped[2 * reach..], stride), (ones, 0), count);
        let slope = T::from_f64(SLOPE);
        for (d, of) in hidden.chunks_exact_mut(stride).zip(scratch.hidden.chunks_exact(stride)) {
            d[..row.hidden.start].fill(T::ZERO);
            d[row.hidden.end..].fill(T::ZERO);
            for (d, of) in d[row.hidden.clone()].iter_mut().zip(&of[row.hidden.clone()]) {
                *d = if *of > T::ZERO { *d } else { slope * *d };
            }
        }
        inputs.fill(T::ZERO);
        for tap in 0..self.network.kernel {
            let (weights, from) = (self.first(tap, true), &hidden[2 * reach - tap..]);
            add_tap(lanes, [self.inputs, units], weights, from, inputs, [count, stride]);
            sums.first[tap].add(lanes, (hidden, stride), (&scratch.inputs[tap..], stride), wide);
        }
        sums.first_bias.add(lanes, (hidden, stride), (ones, 0), wide);
    }

    /// Adds the network's sums to the gradient of all its numbers.
    #[inline(always)]
    fn finish<L: Lanes<Number = T>>(&self, lanes: L, sums: &Gradient<T>, to: &mut [T]) {
        let k = self.network.kernel;
        let (first, rest) = to.split_at_mut(self.first.len());
        let (first_bias, rest) = rest.split_at_mut(self.first_bias.len());
        let (second, second_bias) = rest.split_at_mut(self.second.len());
        for tap in 0..k {
            sums.first[tap].finish(lanes, &mut first[tap..], [self.inputs * k, k]);
            sums.second[tap].finish(lanes, &mut second[tap..], [self.network.hidden * k, k]);
        }
        sums.first_bias.finish(lanes, first_bias, [1, 0]);
        sums.second_bias.finish(lanes, second_bias, [1, 0]);
    }
}

impl<T: Number> Kernel<T> for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Backward { over, block, scores: all, d_scores, d_parameters } = self;
        let (heads, reach) = (over.mixed.heads, over.reach());
        let mut scratch = over.scratch(block.columns);
        let stride = scratch.stride;
        let mut down = Down {
            mapped: vec![T::ZERO; heads * stride],
            hidden: scratch.hidden.clone(),
            inputs: scratch.inputs.clone(),
            ones: vec![T::ONE; stride],
        };
        let mut of_network = over.gradient::<L>();
        let mut of_bias = over.source.sums(block);
        let [of_scores, of_biases] = places(over.network.variant, over.mixed.has_bias());
        for row in (0..block.rows).map(|row| Row::new(over, block, row)).filter(|row| !row.seen.is_empty()) {
            over.load(lanes, block, all, &row, &mut scratch);
            let count = row.seen.len();
            let at = |head: usize| (head * block.rows + row.row) * block.columns + row.seen.start;
            down.mapped.fill(T::ZERO);
            for (head, to) in down.mapped.chunks_exact_mut(stride).enumerate() {
                to[2 * reach..][..count].copy_from_slice(&d_scores[at(head)..][..count]);
            }
            over.network_backward(lanes, &row, &scratch, &mut down, &mut of_network);
            if let Some(first) = of_scores {
                for (head, from) in down.inputs.chunks_exact(stride).skip(first * heads).take(heads).enumerate() {
                    let to = &mut d_scores[at(head)..][..count];
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
                }
            }
            let Some(first) = of_biases else { continue };
            let Scratch { fire, chunk, .. } = &mut scratch;
            each_chunk(block, &row, |column, pairs| {
                let distance = pairs.query - pairs.first_key as isize;
                if let BiasSums::Fire(_) = of_bias {
                    over.source.load(lanes, pairs, distance, fire.as_mut(), chunk);
                }
                chunk.fill(T::ZERO);
                for (head, to) in chunk.chunks_exact_mut(WIDTH).enumerate() {
                    let through = &down.inputs[(first * heads + head) * stride + column..][..pairs.count];
                    to[..pairs.count].copy_from_slice(through);
                    if over.mixed.adds_bias() {
                        let own = &down.mapped[head * stride + 2 * reach + column..][..pairs.count];
                        to.iter_mut().zip(own).for_each(|(to, own)| *to += *own);
                    }
                }
                over.source.backward(lanes, pairs, distance, chunk, fire.as_mut(), &mut of_bias);
            });
        }
        let (to_bias, to_network) = d_parameters.split_at_mut(over.sizes[0] + over.sizes[1]);
        over.source.finish(&of_bias, to_bias);
        over.finish(lanes, &of_network, to_network);
    }
}
