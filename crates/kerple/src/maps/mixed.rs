//! A bias for each query and key, and perhaps a network over heads that sees scores and biases.
//!
//! ```text
//! y = s + b                          without a network: FIRE
//! y = s + [b] + f(s, b)              with one: DAPE, whose variants say what f sees and whether b is added
//! ```
//!
//! Where the bias is a table over distances, so is its share of the network's first layer, `t[d] = W1b b[d] + b1`: it is made
//! once a call, and its gradient is summed over the diagonals of a block before W1b and b see it. So a pair costs the scores'
//! share, `2 H D` multiply-adds, whatever the bias.

use super::bias::{BiasSums, DiagonalSums, Diagonals, Source};
use super::chunk::{self, WIDTH, channels};
use super::fire::{self, Fire, Pairs};
use super::network::{self, Network, Part};
use super::{Extent, Map};
use crate::Number;
use crate::cpu::lanes::{Kernel, Lanes};
use crate::forms::{Block, MapGradients, Reach, ScoreMap};

/// A bias and perhaps a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// Heads, H.
    pub heads: usize,
    /// Where the bias comes from.
    pub bias: Bias,
    /// Over heads.
    pub network: Option<Network>,
}

/// Where the bias comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Bias {
    /// There is none.
    None,
    /// A table over distances, `[H, C]`.
    Table,
    /// FIRE's network.
    Fire(Fire),
}

impl From<Mixed> for Map {
    fn from(mixed: Mixed) -> Map {
        Map::Mixed(mixed)
    }
}

impl Mixed {
    /// Whether there is a bias.
    pub fn has_bias(&self) -> bool {
        self.bias != Bias::None
    }

    /// Whether the bias is added to the scores.
    pub fn adds_bias(&self) -> bool {
        self.has_bias() && self.network.as_ref().is_none_or(|network| network.variant.adds_bias())
    }

    /// How many numbers belong to the table, to FIRE and to the network, in this order.
    pub(super) fn sizes(&self, extent: Extent) -> [usize; 3] {
        let table = if self.bias == Bias::Table { self.heads * extent.sides.columns(extent.len) } else { 0 };
        let fire = if let Bias::Fire(fire) = &self.bias { fire.len(self.heads) } else { 0 };
        let network = self.network.as_ref().map_or(0, |network| network.len(self.heads, self.has_bias()));
        [table, fire, network]
    }

    pub(super) fn over<'a, T: Number>(&'a self, values: &'a [T], extent: Extent) -> Over<'a, T> {
        let sizes = self.sizes(extent);
        crate::check_shape!(values, P = sizes.iter().sum::<usize>());
        let (of_bias, of_network) = values.split_at(sizes[0] + sizes[1]);
        let network = self.network.as_ref();
        let network = network.map(|network| network::Over::new(network, self.heads, self.has_bias(), of_network));
        let source = Source::new(self, of_bias, sizes, extent, network.as_ref());
        Over { mixed: self, sizes, source, network }
    }
}

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct Over<'a, T> {
    mixed: &'a Mixed,
    sizes: [usize; 3],
    source: Source<'a, T>,
    network: Option<network::Over<'a, T>>,
}

impl<T: Number> ScoreMap<T> for Over<'_, T> {
    fn parameters(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn reach(&self) -> Reach {
        Reach::Pair
    }

    fn forward(&self, block: &Block<T>, scores: &mut [T]) {
        chunk::run(Forward { over: self, block, scores });
    }

    fn backward(&self, block: &Block<T>, scores: &[T], gradients: MapGradients<T>) {
        let MapGradients { d_scores, d_q: _, d_parameters } = gradients;
        chunk::run(Backward { over: self, block, scores, d_scores, d_parameters });
    }
}

/// The pairs of one row that are handled at a time.
#[derive(Clone, Copy)]
struct Chunk {
    /// Where they start in the scores of the first head.
    at: usize,
    pairs: Pairs,
    /// Distance of the first.
    distance: isize,
}

/// Calls `f` with each chunk of what the rows see.
#[inline(always)]
fn each_chunk<T>(block: &Block<T>, mut f: impl FnMut(Chunk)) {
    for row in 0..block.rows {
        let visible = block.visible(row);
        for first in visible.clone().step_by(WIDTH) {
            let query = block.first_position + row as isize;
            let pairs = Pairs { query, first_key: block.first_key + first, count: (visible.end - first).min(WIDTH) };
            f(Chunk { at: row * block.columns + first, pairs, distance: block.distance(row, first) });
        }
    }
}

/// What a chunk is computed in.
struct Scratch<T> {
    /// `[H, WIDTH]`
    scores: Vec<T>,
    bias: Vec<T>,
    mapped: Vec<T>,
    /// `[D, WIDTH]`
    hidden: Vec<T>,
    fire: Option<fire::Scratch<T>>,
}

impl<T: Number> Over<'_, T> {
    fn scratch(&self) -> Scratch<T> {
        let (heads, hidden) = (self.mixed.heads, self.mixed.network.as_ref().map_or(0, |network| network.hidden));
        let [scores, bias, mapped] = [(); 3].map(|()| channels(heads));
        Scratch { scores, bias, mapped, hidden: channels(hidden), fire: self.source.scratch() }
    }

    /// Loads scores, biases and the network's inputs to its hidden units.
    #[inline(always)]
    fn load<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        block: &Block<T>,
        all: &[T],
        chunk: Chunk,
        scratch: &mut Scratch<T>,
    ) {
        let (count, stride) = (chunk.pairs.count, block.rows * block.columns);
        let Scratch { scores, bias, hidden, fire, .. } = scratch;
        chunk::load(lanes, &all[chunk.at..], stride, scores, count);
        self.source.load(lanes, chunk.pairs, chunk.distance, fire.as_mut(), bias);
        let Some(network) = &self.network else { return };
        if let Source::Table(table) = &self.source {
            let first = table.column(chunk.distance) as usize;
            chunk::load(lanes, &table.hidden[first..], table.stride, hidden, count);
        } else {
            let columns = count.next_multiple_of(L::COUNT);
            chunk::spread(network.first_bias, hidden, columns);
            network.add_first(lanes, Part::Biases, (bias, WIDTH), hidden, count);
        }
        network.add_first(lanes, Part::Scores, (scores, WIDTH), hidden, count);
    }

    /// What the softmax gets of a loaded chunk, without the network's result.
    #[inline(always)]
    fn residual(&self, scratch: &mut Scratch<T>) {
        scratch.mapped.copy_from_slice(&scratch.scores);
        if self.mixed.adds_bias() {
            scratch.mapped.iter_mut().zip(&scratch.bias).for_each(|(to, bias)| *to += *bias);
        }
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
        let Forward { over, block, scores } = self;
        let (mut scratch, stride) = (over.scratch(), block.rows * block.columns);
        each_chunk(block, |chunk| {
            over.load(lanes, block, scores, chunk, &mut scratch);
            over.residual(&mut scratch);
            let (count, Scratch { mapped, hidden, .. }) = (chunk.pairs.count, &mut scratch);
            if let Some(network) = &over.network {
                for (to, bias) in mapped.chunks_exact_mut(WIDTH).zip(network.second_bias) {
                    to.iter_mut().for_each(|to| *to += *bias);
                }
                network.add_second(lanes, hidden, mapped, count);
            }
            for (to, from) in scores[chunk.at..].chunks_mut(stride).zip(mapped.chunks_exact(WIDTH)) {
                to[..count].copy_from_slice(&from[..count]);
            }
        });
    }
}

struct Backward<'a, T> {
    over: &'a Over<'a, T>,
    block: &'a Block<'a, T>,
    scores: &'a [T],
    d_scores: &'a mut [T],
    d_parameters: &'a mut [T],
}

impl<T: Number> Kernel<T> for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let Backward { over, block, scores, d_scores, d_parameters } = self;
        let stride = block.rows * block.columns;
        let mut scratch = over.scratch();
        let (mut d_mapped, mut d_hidden) = (channels(over.mixed.heads), scratch.hidden.clone());
        let mut of_network = over.network.as_ref().map(|network| network.gradient::<L>());
        let mut of_bias = over.source.sums::<L>(block, scratch.hidden.len() / WIDTH);
        each_chunk(block, |chunk| {
            let count = chunk.pairs.count;
            over.load(lanes, block, scores, chunk, &mut scratch);
            chunk::load(lanes, &d_scores[chunk.at..], stride, &mut d_mapped, count);
            let Scratch { scores, bias, mapped, hidden, fire } = &mut scratch;
            // `mapped` takes the gradient in the scores
            mapped.copy_from_slice(&d_mapped);
            if let (Some(network), Some(sums)) = (&over.network, &mut of_network) {
                chunk::rectify(hidden, T::from_f64(network::SLOPE), count.next_multiple_of(L::COUNT));
                network.second_backward(lanes, hidden, &d_mapped, &mut d_hidden, count);
                network.add_to_second(lanes, &d_mapped, hidden, sums, count);
                network.add_to_first(lanes, Part::Scores, (&d_hidden, WIDTH), (scores, WIDTH), sums, count);
                network.add_first_backward(lanes, Part::Scores, (&d_hidden, WIDTH), mapped, count);
            }
            for (to, from) in d_scores[chunk.at..].chunks_mut(stride).zip(mapped.chunks_exact(WIDTH)) {
                to[..count].copy_from_slice(&from[..count]);
            }
            if let (Source::Table(table), BiasSums::Table(sums)) = (&over.source, &mut of_bias) {
                let at = (table.column(chunk.distance) - sums.first) as usize;
                DiagonalSums::add(&mut sums.mapped, sums.width, at, &d_mapped, count);
                DiagonalSums::add(&mut sums.hidden, sums.width, at, &d_hidden, count);
                return;
            }
            over.hidden_backward(lanes, &d_hidden, bias, &mut of_network, count);
            if let Source::Fire(_) = over.source {
                over.bias_backward(lanes, (&d_mapped, WIDTH), (&d_hidden, WIDTH), bias, count);
                over.source.backward(lanes, chunk.pairs, chunk.distance, bias, fire.as_mut(), &mut of_bias);
            }
        });
        let (to_bias, to_network) = d_parameters.split_at_mut(over.sizes[0] + over.sizes[1]);
        match (&over.source, &of_bias) {
            (Source::Table(table), BiasSums::Table(sums)) => {
                over.finish_table(lanes, table, sums, to_bias, &mut of_network);
            }
            (source, sums) => source.finish(lanes, sums, to_bias),
        }
        if let (Some(network), Some(sums)) = (&over.network, &of_network) {
            network.finish(lanes, sums, to_network);
        }
    }
}

impl<T: Number> Over<'_, T> {
    /// Adds the gradient of b1, and of W1 through the biases of a chunk.
    #[inline(always)]
    fn hidden_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        d_hidden: &[T],
        bias: &[T],
        sums: &mut Option<network::Gradient<T>>,
        count: usize,
    ) {
        if let (Some(network), Some(sums)) = (&self.network, sums) {
            network.add_to_first_bias(lanes, (d_hidden, WIDTH), sums, count);
            network.add_to_first(lanes, Part::Biases, (d_hidden, WIDTH), (bias, WIDTH), sums, count);
        }
    }

    /// The gradient in the bias, given that in the mapped scores and in the hidden layer; overwrites `to`, `[H, WIDTH]`.
    #[inline(always)]
    fn bias_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        d_mapped: (&[T], usize),
        d_hidden: (&[T], usize),
        to: &mut [T],
        count: usize,
    ) {
        to.fill(T::ZERO);
        if self.mixed.adds_bias() {
            chunk::load(lanes, d_mapped.0, d_mapped.1, to, count);
        }
        if let Some(network) = &self.network {
            network.add_first_backward(lanes, Part::Biases, d_hidden, to, count);
        }
    }

    /// From sums over diagonals to the gradient in the table and in the network.
    #[inline(always)]
    fn finish_table<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        table: &Diagonals<T>,
        sums: &DiagonalSums<T>,
        d_table: &mut [T],
        of_network: &mut Option<network::Gradient<T>>,
    ) {
        let mut d_bias = channels(self.mixed.heads);
        let (start, end) = sums.within(table);
        for column in (start..end).step_by(WIDTH) {
            let (count, at) = ((end - column).min(WIDTH as isize) as usize, (column - sums.first) as usize);
            let (column, of_hidden) = (column as usize, &sums.hidden[at.min(sums.hidden.len())..]);
            let (d_mapped, d_hidden) = ((&sums.mapped[at..], sums.width), (of_hidden, sums.width));
            self.bias_backward(lanes, d_mapped, d_hidden, &mut d_bias, count);
            table.add_gradient(column, (&d_bias, WIDTH), count, d_table);
            if let (Some(network), Some(sums)) = (&self.network, &mut *of_network) {
                network.add_to_first_bias(lanes, d_hidden, sums, count);
                let bias = (&table.bias[column..], table.stride);
                network.add_to_first(lanes, Part::Biases, d_hidden, bias, sums, count);
            }
        }
    }
}
