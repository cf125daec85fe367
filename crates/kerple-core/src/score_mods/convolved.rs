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
//!
//! Where a decoder's bias is a table over distances, so is its share of the first layer, `sum over t of W1b[t] b[d - t] + b1` with
//! b 0 ahead of the query: it is made once a call, and its gradient is summed by distance before W1b and b see it. Only the
//! first keys of a row, beside which something is not seen that the table has, go through the layer themselves.
//!
//! # Why whole rows in one pass, and what was rejected
//!
//! A layer reads neighbouring keys, so a row cannot be split into tiles of keys, as FIRE and DAPE's
//! first version can ([`ScoreDependency`]). One pass per neighbour was rejected for one product over
//! channels and neighbours (`Taps`), whose sums stay in registers over all of them. Ends as in the
//! released code were rejected as the default: the last rows of a sequence change when it grows, so
//! decoding would not give what training computes.

mod backward;
mod taps;

use super::ScoreModExtent;
use super::bias::{BiasSource, Diagonals};
use super::chunk::{self, WIDTH, channels_and_vector};
use super::fire::{self, KeyPairs};
use super::mixed::{Mixed, cut};
use super::network::{Edge, Network, SLOPE, Variant};
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel, run};
use crate::forms::{Mask, ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients, Sides};
use crate::tiles::microkernel::StoreMode;
use std::ops::Range;
use taps::Taps;

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct ConvolvedMod<'a, T> {
    mixed: &'a Mixed,
    network: &'a Network,
    /// How many numbers belong to the table, to FIRE and to the network.
    sizes: [usize; 3],
    source: BiasSource<'a, T>,
    /// `[D, C, k]`, `[D]`, `[H, D, k]`, `[H]`
    first: &'a [T],
    first_bias: &'a [T],
    second: &'a [T],
    second_bias: &'a [T],
    /// C
    inputs: usize,
    /// First inputs of the scores and of the biases.
    places: [Option<usize>; 2],
    /// What a decoder's table brings to hidden units, `[D, stride]` in the columns of the table.
    shares: Option<Vec<T>>,
}

impl<'a, T: Number> ConvolvedMod<'a, T> {
    pub(super) fn new(mixed: &'a Mixed, network: &'a Network, values: &'a [T], extent: ScoreModExtent) -> Self {
        let (sizes, heads, units) = (mixed.sizes(extent), mixed.heads, network.hidden);
        crate::check_shape!(values, P = sizes.iter().sum::<usize>());
        let (of_bias, of_network) = values.split_at(sizes[0] + sizes[1]);
        let inputs = network.inputs(heads, mixed.has_bias());
        let [first, first_bias, second, second_bias] =
            cut(of_network, [units * inputs * network.kernel, units, heads * units * network.kernel, heads]);
        let source = BiasSource::new(mixed, of_bias, sizes, extent, None);
        let places = first_inputs(network.variant, mixed.has_bias()).map(|place| place.map(|block| block * heads));
        let (is_table, shares) = (matches!(source, BiasSource::Table(_)) && extent.sides == Sides::OneSided, None);
        let mut over = ConvolvedMod {
            mixed,
            network,
            sizes,
            source,
            first,
            first_bias,
            second,
            second_bias,
            inputs,
            places,
            shares,
        };
        if is_table {
            over.shares = Some(run(TableShares(&over)));
        }
        over
    }

    /// How far a layer sees to each side.
    fn reach(&self) -> usize {
        self.network.kernel / 2
    }

    /// The table, where its share of hidden units is one too.
    fn table(&self) -> Option<(&Diagonals<T>, &[T])> {
        match (&self.source, &self.shares) {
            (BiasSource::Table(table), Some(shares)) => Some((table, shares)),
            _ => None,
        }
    }

    /// The columns of a table before whose first there is room for the reach, `[H, stride + k]`.
    fn padded(&self, table: &Diagonals<T>) -> (Vec<T>, usize) {
        let stride = table.stride + self.network.kernel;
        let mut padded = vec![T::ZERO; self.mixed.heads * stride];
        for (to, from) in padded.chunks_exact_mut(stride).zip(table.bias.chunks_exact(table.stride)) {
            to[self.reach()..][..table.stride].copy_from_slice(from);
        }
        (padded, stride)
    }

    /// Adds what one part of the inputs brings to hidden units: `[H, stride]` to `[D, stride]`.
    #[inline(always)]
    fn add_first<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        place: Option<usize>,
        (b, b_stride): (&[T], usize),
        store: StoreMode<T>,
        (c, c_stride): (&mut [T], usize),
        columns: usize,
    ) {
        let k = self.network.kernel;
        let Some(place) = place else {
            if let StoreMode::AddTo(from, stride) = store {
                for (to, from) in c.chunks_mut(c_stride).zip(from.chunks(stride)).take(self.network.hidden) {
                    to[..columns].copy_from_slice(&from[..columns]);
                }
            }
            return;
        };
        let (a, a_strides) = (&self.first[place * k..], [self.inputs * k, k]);
        let (rows, channels, taps, backwards) = (self.network.hidden, self.mixed.heads, k, false);
        lanes.run(Taps { rows, channels, taps, columns, a, a_strides, b, b_stride, backwards, c, c_stride, store });
    }
}

/// Blocks of H inputs that take scores and biases.
fn first_inputs(variant: Variant, has_bias: bool) -> [Option<usize>; 2] {
    if !has_bias {
        return [Some(0), None];
    }
    [variant.scores(), Some(variant.biases())]
}

/// Makes the shares of a table.
struct TableShares<'a, 'b, T>(&'b ConvolvedMod<'a, T>);

impl<T: Number> SimdKernel<T> for TableShares<'_, '_, T> {
    type Output = Vec<T>;

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) -> Vec<T> {
        let over = self.0;
        let BiasSource::Table(table) = &over.source else { return Vec::new() };
        let ((padded, stride), columns) = (over.padded(table), table.stride);
        let mut shares: Vec<T> = over.first_bias.iter().flat_map(|bias| std::iter::repeat_n(*bias, columns)).collect();
        over.add_first(
            lanes,
            over.places[1],
            (&padded, stride),
            StoreMode::Accumulate,
            (&mut shares, columns),
            columns,
        );
        shares
    }
}

/// The keys that one query sees, and where its hidden units are; columns of the hidden array start r before the keys.
struct ConvolvedRow {
    row: usize,
    seen: Range<usize>,
    /// Columns of the hidden array that stand for keys; the others are 0.
    hidden: Range<usize>,
    /// Columns of the hidden array, with r on both sides of the keys.
    wide: usize,
    /// The first of them, in which biases go through the layer themselves; whole vectors where others follow.
    direct: usize,
    /// Column of the table that stands for the first key.
    column: usize,
}

impl ConvolvedRow {
    fn new<L: Lanes>(over: &ConvolvedMod<L::Number>, block: &ScoreBlock<L::Number>, row: usize) -> ConvolvedRow {
        let (seen, reach) = (block.visible(row), over.reach());
        let (first, last) = (block.first_key + seen.start, block.first_key + seen.end);
        let closed = over.network.edge == Edge::Closed || matches!(block.mask, Mask::Bidirectional { .. });
        let before = first.min(reach);
        let after = if closed { block.keys.saturating_sub(last).min(reach) } else { reach };
        let (hidden, wide) = (reach - before..reach + seen.len() + after, seen.len() + 2 * reach);
        let (direct, column) = match over.table() {
            Some((table, _)) if !seen.is_empty() => {
                let column = table.column(block.distance(row, seen.start)) as usize;
                // a share counts all keys up to the query's own
                let is_shared = block.distance(row, seen.end - 1) == 0;
                (if is_shared { (2 * reach).next_multiple_of(L::COUNT).min(wide) } else { wide }, column)
            }
            _ => (wide, 0),
        };
        ConvolvedRow { row, seen, hidden, wide, direct, column }
    }

    /// Clears what stands for no key, up to what neighbours of whole vectors read.
    #[inline(always)]
    fn clear<T: Number>(&self, hidden: &mut [T], stride: usize) {
        let end = (self.wide + ROOM).min(stride);
        for hidden in hidden.chunks_exact_mut(stride) {
            hidden[..self.hidden.start].fill(T::ZERO);
            hidden[self.hidden.end..end].fill(T::ZERO);
        }
    }

    /// The columns of a hidden array and of the table that stand for the same keys, without those that biases reach themselves.
    fn shared(&self, reach: usize) -> [Range<usize>; 2] {
        let from = (self.column + self.direct).saturating_sub(reach);
        [self.direct..self.wide, from..from + (self.wide - self.direct)]
    }
}

/// Columns after a row that are read in whole vectors with their neighbours.
const ROOM: usize = 48;

/// What a row is computed in: arrays of `stride` columns whose first `2 r` and what lies after a row's keys are 0.
struct ConvolvedScratch<T> {
    stride: usize,
    /// `[H, stride]`, keys from column `2 r`.
    scores: Vec<T>,
    /// The same of those keys whose biases go through the layer themselves.
    bias: Vec<T>,
    /// `[H, stride]`, keys from column 0.
    mapped: Vec<T>,
    /// `[D, stride]`, keys from column `r`.
    hidden: Vec<T>,
    fire: Option<fire::FireScratch<T>>,
    chunk: Vec<T>,
}

/// Puts the keys of a row at column `at` and clears what follows.
#[inline(always)]
fn put<T: Number>(to: &mut [T], at: usize, from: &[T]) {
    to[at..at + from.len()].copy_from_slice(from);
    let end = (at + from.len() + ROOM).min(to.len());
    to[at + from.len()..end].fill(T::ZERO);
}

impl<T: Number> ConvolvedMod<'_, T> {
    fn scratch(&self, columns: usize) -> ConvolvedScratch<T> {
        let (heads, reach) = (self.mixed.heads, self.reach());
        let stride = (columns + 4 * reach + ROOM).next_multiple_of(WIDTH);
        let array = |channels: usize| vec![T::ZERO; channels * stride];
        ConvolvedScratch {
            stride,
            scores: array(heads),
            bias: array(heads),
            mapped: array(heads),
            hidden: array(self.network.hidden),
            fire: self.source.scratch(),
            chunk: channels_and_vector(heads),
        }
    }

    /// Loads the biases of the keys that have them in the inputs themselves.
    #[inline(always)]
    fn load_bias<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        block: &ScoreBlock<T>,
        row: &ConvolvedRow,
        scratch: &mut ConvolvedScratch<T>,
    ) {
        let (at, keys) = (2 * self.reach(), row.seen.len().min(row.direct));
        let ConvolvedScratch { stride, bias, fire, chunk, .. } = scratch;
        each_chunk(block, row, keys, |first, pairs| {
            let distance = pairs.query - pairs.first_key as isize;
            self.source.load(lanes, pairs, distance, fire.as_mut(), chunk);
            for (to, from) in bias.chunks_exact_mut(*stride).zip(chunk.chunks_exact(WIDTH)) {
                put(to, at + first, &from[..pairs.count]);
            }
        });
    }

    /// Loads scores, biases and hidden units of a row.
    #[inline(always)]
    fn load<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        block: &ScoreBlock<T>,
        all: &[T],
        row: &ConvolvedRow,
        scratch: &mut ConvolvedScratch<T>,
    ) {
        let (reach, count, stride) = (self.reach(), row.seen.len(), scratch.stride);
        for (head, to) in scratch.scores.chunks_exact_mut(stride).enumerate() {
            let at = (head * block.rows + row.row) * block.columns + row.seen.start;
            put(to, 2 * reach, &all[at..at + count]);
        }
        if self.mixed.has_bias() {
            self.load_bias(lanes, block, row, scratch);
        }
        let ConvolvedScratch { scores, bias, hidden, .. } = scratch;
        let [of_scores, of_bias] = self.places;
        let direct = row.direct.next_multiple_of(L::COUNT);
        for (to, from) in hidden.chunks_exact_mut(stride).zip(self.first_bias) {
            to[..direct].fill(*from);
        }
        self.add_first(lanes, of_scores, (scores, stride), StoreMode::Accumulate, (hidden, stride), direct);
        self.add_first(lanes, of_bias, (bias, stride), StoreMode::Accumulate, (hidden, stride), direct);
        let [own, shared] = row.shared(reach);
        if let (Some((table, shares)), false) = (self.table(), own.is_empty()) {
            let columns = own.len().next_multiple_of(L::COUNT);
            let store = StoreMode::AddTo(&shares[shared.start..], table.stride);
            self.add_first(
                lanes,
                of_scores,
                (&scores[own.start..], stride),
                store,
                (&mut hidden[own.start..], stride),
                columns,
            );
        }
        row.clear(hidden, stride);
        let slope = T::from_f64(SLOPE);
        for hidden in hidden.chunks_exact_mut(stride) {
            chunk::rectify(&mut hidden[row.hidden.clone()], slope);
        }
    }

    /// Adds the biases of a row to `[H, stride]`, keys from column `at`.
    #[inline(always)]
    fn add_bias(&self, row: &ConvolvedRow, (bias, stride): (&[T], usize), at: usize, to: &mut [T]) {
        let (from, from_stride) = match self.table() {
            Some((table, _)) => (&table.bias[row.column..], table.stride),
            None => (&bias[2 * self.reach()..], stride),
        };
        for (to, from) in to.chunks_exact_mut(stride).zip(from.chunks(from_stride)) {
            to[at..at + row.seen.len()].iter_mut().zip(from).for_each(|(to, bias)| *to += *bias);
        }
    }
}

/// Calls `f` with the first key of each chunk of the first `keys`, counted from the first that is seen, and its pairs.
#[inline(always)]
fn each_chunk<T>(block: &ScoreBlock<T>, row: &ConvolvedRow, keys: usize, mut f: impl FnMut(usize, KeyPairs)) {
    let query = block.first_position + row.row as isize;
    for first in (0..keys).step_by(WIDTH) {
        let count = (keys - first).min(WIDTH);
        f(first, KeyPairs { query, first_key: block.first_key + row.seen.start + first, count });
    }
}

/// The rows of a block that see something.
fn rows<L: Lanes>(over: &ConvolvedMod<L::Number>, block: &ScoreBlock<L::Number>) -> impl Iterator<Item = ConvolvedRow> {
    (0..block.rows).map(|row| ConvolvedRow::new::<L>(over, block, row)).filter(|row| !row.seen.is_empty())
}

impl<T: Number> ScoreMod<T> for ConvolvedMod<'_, T> {
    fn parameters(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn reach(&self) -> ScoreDependency {
        ScoreDependency::Row
    }

    fn forward(&self, block: &ScoreBlock<T>, scores: &mut [T]) {
        run(ConvolvedForward { over: self, block, scores });
    }

    fn backward(&self, block: &ScoreBlock<T>, scores: &[T], gradients: ScoreModGradients<T>) {
        let ScoreModGradients { d_scores, d_q: _, sums } = gradients;
        run(backward::ConvolvedBackward { over: self, block, scores, d_scores, sums });
    }

    fn sums(&self) -> usize {
        self.lengths().iter().sum()
    }

    fn finish(&self, sums: &[T], d_parameters: &mut [T]) {
        run(backward::ConvolvedFinish { over: self, sums, to: d_parameters });
    }
}

struct ConvolvedForward<'a, T> {
    over: &'a ConvolvedMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    scores: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for ConvolvedForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let ConvolvedForward { over, block, scores: all } = self;
        let mut scratch = over.scratch(block.columns);
        let (stride, at) = (scratch.stride, 2 * over.reach());
        let (k, units) = (over.network.kernel, over.network.hidden);
        for row in rows::<L>(over, block) {
            over.load(lanes, block, all, &row, &mut scratch);
            let ConvolvedScratch { scores, bias, mapped, hidden, .. } = &mut scratch;
            let count = row.seen.len();
            let each = mapped.chunks_exact_mut(stride).zip(scores.chunks_exact(stride)).zip(over.second_bias);
            for ((to, from), constant) in each {
                to[..count].iter_mut().zip(&from[at..]).for_each(|(to, score)| *to = *score + *constant);
            }
            if over.mixed.adds_bias() {
                over.add_bias(&row, (bias, stride), 0, mapped);
            }
            lanes.run(Taps {
                rows: over.mixed.heads,
                channels: units,
                taps: k,
                columns: count.next_multiple_of(L::COUNT),
                a: over.second,
                a_strides: [units * k, k],
                b: hidden,
                b_stride: stride,
                backwards: false,
                c: mapped,
                c_stride: stride,
                store: StoreMode::Accumulate,
            });
            for (head, from) in mapped.chunks_exact(stride).enumerate() {
                let at = (head * block.rows + row.row) * block.columns + row.seen.start;
                all[at..at + count].copy_from_slice(&from[..count]);
            }
        }
    }
}
