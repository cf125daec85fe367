//! The score modification with a bias per query and key, and optionally a network over heads that
//! sees scores and biases.
//!
//! ```text
//! y = s + b                          without a network: FIRE
//! y = s + [b] + f(s, b)              with one: DAPE, whose variants say what f sees and whether b is added
//! ```
//!
//! Where the bias is a table over distances, so is its share of the network's first layer, `t[d] = W1b b[d] + b1`: it is made
//! once a call, and its gradient is summed by distance over all blocks before W1b and b see it. So a pair costs the scores'
//! share, `2 H D` multiply-adds, whatever the bias.

use super::bias::{BiasSource, Diagonals};
use super::chunk::{self, WIDTH, channels};
use super::fire::{self, Fire, KeyPairs};
use super::network::{self, Channels, Network, NetworkInput};
use super::{ScoreModExtent, ScoreModSpec};
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel, run};
use crate::forms::{ScoreBlock, ScoreDependency, ScoreMod, ScoreModGradients, SoftmaxMod, SoftmaxRows};
use crate::tiles::microkernel::StoreMode;
use crate::tiles::rows::Transpose;
use crate::tiles::softmax::SoftmaxBackward;
use std::ops::Range;

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

impl From<Mixed> for ScoreModSpec {
    fn from(mixed: Mixed) -> ScoreModSpec {
        ScoreModSpec::Mixed(mixed)
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
    pub(super) fn sizes(&self, extent: ScoreModExtent) -> [usize; 3] {
        let table = if self.bias == Bias::Table { self.heads * extent.sides.columns(extent.len) } else { 0 };
        let fire = if let Bias::Fire(fire) = &self.bias { fire.len(self.heads) } else { 0 };
        let network = self.network.as_ref().map_or(0, |network| network.len(self.heads, self.has_bias()));
        [table, fire, network]
    }

    pub(super) fn over<'a, T: Number>(&'a self, values: &'a [T], extent: ScoreModExtent) -> MixedMod<'a, T> {
        let sizes = self.sizes(extent);
        crate::check_shape!(values, P = sizes.iter().sum::<usize>());
        let (of_bias, of_network) = values.split_at(sizes[0] + sizes[1]);
        let network = self.network.as_ref();
        let network =
            network.map(|network| network::NetworkUnits::new(network, self.heads, self.has_bias(), of_network));
        let source = BiasSource::new(self, of_bias, sizes, extent, network.as_ref());
        MixedMod { mixed: self, sizes, source, network }
    }
}

/// The map with its numbers.
#[derive(Debug)]
pub(super) struct MixedMod<'a, T> {
    mixed: &'a Mixed,
    sizes: [usize; 3],
    source: BiasSource<'a, T>,
    network: Option<network::NetworkUnits<'a, T>>,
}

impl<T: Number> ScoreMod<T> for MixedMod<'_, T> {
    fn parameters(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn reach(&self) -> ScoreDependency {
        ScoreDependency::Pair
    }

    fn forward(&self, block: &ScoreBlock<T>, scores: &mut [T]) {
        run(MixedForward { over: self, block, scores });
    }

    fn backward(&self, block: &ScoreBlock<T>, scores: &[T], gradients: ScoreModGradients<T>) {
        let ScoreModGradients { d_scores, d_q: _, sums } = gradients;
        run(MixedBackward { over: self, block, scores, softmax: None, d_scores, sums });
    }

    fn sums(&self) -> usize {
        self.lengths().iter().sum()
    }

    fn finish(&self, sums: &[T], d_parameters: &mut [T]) {
        run(MixedFinish { over: self, sums, to: d_parameters });
    }

    fn softmax(&self) -> Option<&dyn SoftmaxMod<T>> {
        self.network.is_some().then_some(self)
    }
}

impl<T: Number> SoftmaxMod<T> for MixedMod<'_, T> {
    fn softmax_backward(
        &self,
        block: &ScoreBlock<T>,
        rows: SoftmaxRows<T>,
        scores: &[T],
        weights: &mut [T],
        gradients: ScoreModGradients<T>,
    ) {
        let ScoreModGradients { d_scores, d_q: _, sums } = gradients;
        let softmax = Some(MixedSoftmax { rows, weights });
        run(MixedBackward { over: self, block, scores, softmax, d_scores, sums });
    }
}

/// The pairs of one row that are handled at a time: whole vectors of keys, unseen ones at both ends.
#[derive(Clone)]
struct KeyChunk {
    row: usize,
    /// Where they start in the scores of the first head.
    at: usize,
    keys: usize,
    /// Those that the row sees.
    seen: Range<usize>,
    /// Distance of the first.
    distance: isize,
    /// Without the unseen keys after the last.
    pairs: KeyPairs,
}

/// Calls `f` with each chunk of what the rows see. Columns are whole vectors.
#[inline(always)]
fn each_chunk<L: Lanes>(block: &ScoreBlock<L::Number>, mut f: impl FnMut(KeyChunk)) {
    for row in 0..block.rows {
        let visible = block.visible(row);
        let (start, end) = (visible.start / L::COUNT * L::COUNT, visible.end.next_multiple_of(L::COUNT));
        for first in (start..end).step_by(WIDTH) {
            let query = block.first_position + row as isize;
            let keys = (end - first).min(WIDTH);
            let pairs = KeyPairs { query, first_key: block.first_key + first, count: keys.min(visible.end - first) };
            let seen = visible.start.saturating_sub(first)..pairs.count;
            let (at, distance) = (row * block.columns + first, block.distance(row, first));
            f(KeyChunk { row, at, keys, seen, distance, pairs });
        }
    }
}

/// A row of each head, `keys` long: `f(head, row)`.
#[inline(always)]
fn each_head<T>(all: &mut [T], chunk: &KeyChunk, stride: usize, mut f: impl FnMut(usize, &mut [T])) {
    for (head, row) in all[chunk.at..].chunks_mut(stride).enumerate() {
        f(head, &mut row[..chunk.keys]);
    }
}

/// What a chunk is computed in.
struct MixedScratch<T> {
    /// Scores and the gradient in f, copied: `[H, WIDTH]`. In their block, the heads of a pair lie in the same few lines of the cache.
    scores: Vec<T>,
    d_f: Vec<T>,
    /// `[H, WIDTH]`
    mapped: Vec<T>,
    /// `[H, WIDTH]` and a vector more.
    bias: Vec<T>,
    /// `[H, WIDTH]`
    d_bias: Vec<T>,
    /// With keys as lanes, `[room, WIDTH]`.
    hidden: Vec<T>,
    /// With units as lanes, `[WIDTH, room]`.
    units: Vec<T>,
    d_units: Vec<T>,
    fire: Option<fire::FireScratch<T>>,
}

/// The parts of an array of these lengths.
pub(super) fn cut<T, const N: usize>(mut all: &[T], lengths: [usize; N]) -> [&[T]; N] {
    lengths.map(|length| {
        let (part, rest) = all.split_at(length);
        all = rest;
        part
    })
}

pub(super) fn cut_mut<T, const N: usize>(mut all: &mut [T], lengths: [usize; N]) -> [&mut [T]; N] {
    lengths.map(|length| {
        let (part, rest) = std::mem::take(&mut all).split_at_mut(length);
        all = rest;
        part
    })
}

impl<T: Number> MixedMod<'_, T> {
    fn scratch(&self) -> MixedScratch<T> {
        let room = self.network.as_ref().map_or(0, |network| network.room);
        let [scores, d_f, mapped, d_bias] = [(); 4].map(|()| channels(self.mixed.heads));
        let bias = chunk::channels_and_vector(self.mixed.heads);
        let [hidden, units, d_units] = [(); 3].map(|()| channels(room));
        MixedScratch { scores, d_f, mapped, bias, d_bias, hidden, units, d_units, fire: self.source.scratch() }
    }

    /// Columns of what is summed by distance; where there is no table, by the place in a chunk.
    fn stride(&self) -> usize {
        if let BiasSource::Table(table) = &self.source { table.stride } else { WIDTH }
    }

    fn column(&self, distance: isize) -> usize {
        if let BiasSource::Table(table) = &self.source { table.column(distance) as usize } else { 0 }
    }

    /// Lengths of what the backward sums: FIRE's; by distance the gradient in f, `[H, stride]`, and in z, `[stride, room]`;
    /// that in W1 of scores, in W1 of biases unless they are a table's, and in W2, `[H, room]` each.
    fn lengths(&self) -> [usize; 6] {
        let (heads, stride) = (self.mixed.heads, self.stride());
        let fire = if let BiasSource::Fire(fire) = &self.source { fire.sums() } else { 0 };
        let by_distance = if self.network.is_some() || self.sizes[0] > 0 { heads * stride } else { 0 };
        let Some(network) = &self.network else { return [fire, by_distance, 0, 0, 0, 0] };
        let weights = heads * network.room;
        let of_biases = if fire > 0 { weights } else { 0 };
        [fire, by_distance, stride * network.room, weights, of_biases, weights]
    }
}

/// Rows of `from` columns copied to rows of `to`, as far as both go.
fn copy_columns<T: Copy>((values, from): (&[T], usize), (to, columns): (&mut [T], usize)) {
    let both = from.min(columns);
    for (to, from) in to.chunks_exact_mut(columns).zip(values.chunks_exact(from)) {
        to[..both].copy_from_slice(&from[..both]);
    }
}

/// A block whose columns are whole vectors, and its values.
struct WideBlock<'q, T> {
    block: ScoreBlock<'q, T>,
    values: Vec<T>,
}

/// The block and its values with columns that are whole vectors, where they are not so already.
fn widened<'q, L: Lanes>(block: &ScoreBlock<'q, L::Number>, values: &[L::Number]) -> Option<WideBlock<'q, L::Number>> {
    let columns = block.columns.next_multiple_of(L::COUNT);
    (columns != block.columns).then(|| {
        let mut to = vec![L::Number::ZERO; block.heads * block.rows * columns];
        copy_columns((values, block.columns), (&mut to, columns));
        WideBlock { block: ScoreBlock { columns, ..*block }, values: to }
    })
}

struct MixedForward<'a, T> {
    over: &'a MixedMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    scores: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for MixedForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let MixedForward { over, block, scores } = self;
        if let Some(WideBlock { block: wide, values: mut all }) = widened::<L>(block, scores) {
            over.forward(&wide, &mut all);
            return copy_columns((&all, wide.columns), (scores, block.columns));
        }
        let mut scratch = over.scratch();
        each_chunk::<L>(block, |chunk| over.chunk(lanes, block, scores, chunk, &mut scratch));
    }
}

impl<T: Number> MixedMod<'_, T> {
    /// Maps a chunk of scores.
    #[inline(always)]
    fn chunk<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        block: &ScoreBlock<T>,
        scores: &mut [T],
        chunk: KeyChunk,
        scratch: &mut MixedScratch<T>,
    ) {
        let (keys, stride, column) = (chunk.keys, block.rows * block.columns, self.column(chunk.distance));
        let MixedScratch { scores: copied, bias, hidden, fire, .. } = scratch;
        let (bias, bias_stride) = match (&self.source, fire) {
            (BiasSource::Table(table), _) => (&table.bias[column..], table.stride),
            (BiasSource::Fire(of), Some(fire)) => {
                of.bias(lanes, chunk.pairs, fire, bias);
                (&bias[..], WIDTH)
            }
            _ => (&bias[..], WIDTH),
        };
        let Some(network) = &self.network else {
            if self.mixed.adds_bias() {
                each_head(scores, &chunk, stride, |head, row| {
                    row.iter_mut().zip(&bias[head * bias_stride..]).for_each(|(to, bias)| *to += *bias);
                });
            }
            return;
        };
        chunk::load(lanes, &scores[chunk.at..], stride, copied, keys);
        let store = match &self.source {
            BiasSource::Table(table) => StoreMode::AddTo(&table.hidden[0][column..], table.stride),
            BiasSource::Fire(_) | BiasSource::None => StoreMode::AddTo(&network.constant[0], WIDTH),
        };
        network.first_onto(lanes, NetworkInput::Scores, (copied, WIDTH), store, hidden, keys);
        if let BiasSource::Fire(_) = self.source {
            network.add_first(lanes, NetworkInput::Biases, (bias, WIDTH), hidden, keys);
        }
        for units in hidden.chunks_exact_mut(WIDTH) {
            chunk::rectify(&mut units[..keys], T::from_f64(network::SLOPE));
        }
        self.add_result(lanes, network, (bias, bias_stride), hidden, copied, keys);
        each_head(scores, &chunk, stride, |head, row| row.copy_from_slice(&copied[head * WIDTH..][..keys]));
    }

    /// Adds the bias, where it is added, and f to scores, `[H, WIDTH]`; `hidden` are units with keys as lanes.
    #[inline(always)]
    fn add_result<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        network: &network::NetworkUnits<T>,
        (bias, stride): Channels<T>,
        hidden: &[T],
        to: &mut [T],
        keys: usize,
    ) {
        for (head, row) in to.chunks_exact_mut(WIDTH).enumerate() {
            let (row, constant) = (&mut row[..keys], network.second_bias[head]);
            if self.mixed.adds_bias() {
                row.iter_mut().zip(&bias[head * stride..]).for_each(|(to, bias)| *to += *bias + constant);
            } else {
                row.iter_mut().for_each(|to| *to += constant);
            }
        }
        network.add_second(lanes, hidden, (to, WIDTH), keys);
    }
}

struct MixedBackward<'a, T> {
    over: &'a MixedMod<'a, T>,
    block: &'a ScoreBlock<'a, T>,
    scores: &'a [T],
    softmax: Option<MixedSoftmax<'a, T>>,
    /// The gradient in mapped scores, or with a softmax in weights.
    d_scores: &'a mut [T],
    sums: &'a mut [T],
}

/// The softmax that a backward goes through.
struct MixedSoftmax<'a, T> {
    rows: SoftmaxRows<'a, T>,
    /// `[H, rows, columns]`
    weights: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for MixedBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let MixedBackward { over, block, scores, mut softmax, d_scores, sums } = self;
        if let Some(WideBlock { block: wide, values: mut d_all }) = widened::<L>(block, d_scores) {
            assert!(softmax.is_none(), "columns are whole vectors where a backward goes through the softmax");
            let (mut all, columns) = (vec![T::ZERO; d_all.len()], wide.columns);
            copy_columns((scores, block.columns), (&mut all, columns));
            over.backward(&wide, &all, ScoreModGradients { d_scores: &mut d_all, d_q: &mut [], sums });
            return copy_columns((&d_all, columns), (d_scores, block.columns));
        }
        let mut sums = cut_mut(sums, over.lengths());
        let (mut scratch, stride) = (over.scratch(), block.rows * block.columns);
        let strided = |array: &[T], chunk: &KeyChunk, to: &mut [T]| {
            chunk::load(lanes, &array[chunk.at..], stride, to, chunk.keys);
        };
        each_chunk::<L>(block, |chunk| {
            strided(d_scores, &chunk, &mut scratch.d_f);
            let Some(network) = &over.network else {
                over.add_by_distance(&chunk, &scratch.d_f, sums[1]);
                if let (BiasSource::Fire(of), Some(fire)) = (&over.source, &mut scratch.fire) {
                    of.place(chunk.pairs, fire);
                    of.backward(lanes, chunk.pairs, &scratch.d_f, fire, sums[0]);
                }
                return;
            };
            strided(scores, &chunk, &mut scratch.scores);
            if let (BiasSource::Fire(of), Some(fire)) = (&over.source, &mut scratch.fire) {
                of.bias(lanes, chunk.pairs, fire, &mut scratch.bias);
            }
            over.units(lanes, network, &chunk, &mut scratch);
            if let Some(MixedSoftmax { rows, weights }) = &mut softmax {
                over.softmax_of_chunk(lanes, network, &chunk, (block.rows, *rows), &mut scratch);
                each_head(weights, &chunk, stride, |head, row| {
                    row.copy_from_slice(&scratch.mapped[head * WIDTH..][..row.len()]);
                });
            }
            over.add_by_distance(&chunk, &scratch.d_f, sums[1]);
            over.network_backward(lanes, network, &chunk, &mut sums, &mut scratch);
            each_head(d_scores, &chunk, stride, |head, row| {
                row.copy_from_slice(&scratch.d_f[head * WIDTH..][..row.len()]);
            });
            if let (BiasSource::Fire(of), Some(fire)) = (&over.source, &mut scratch.fire) {
                of.backward(lanes, chunk.pairs, &scratch.d_bias, fire, sums[0]);
            }
        });
    }
}

impl<T: Number> MixedMod<'_, T> {
    /// Adds the gradient in f of a chunk, `[H, WIDTH]`, to what is summed by distance, `[H, stride]`, if that is.
    #[inline(always)]
    fn add_by_distance(&self, chunk: &KeyChunk, d_f: &[T], sums: &mut [T]) {
        if sums.is_empty() {
            return;
        }
        let (width, column) = (self.stride(), self.column(chunk.distance));
        for (sums, row) in sums.chunks_exact_mut(width).zip(d_f.chunks_exact(WIDTH)) {
            sums[column..].iter_mut().zip(&row[..chunk.keys]).for_each(|(to, d)| *to += *d);
        }
    }

    /// The hidden units of a chunk, `[keys, room]`.
    #[inline(always)]
    fn units<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        network: &network::NetworkUnits<T>,
        chunk: &KeyChunk,
        scratch: &mut MixedScratch<T>,
    ) {
        let (keys, room) = (chunk.keys, network.room);
        let MixedScratch { scores, bias, units, .. } = scratch;
        let store = match &self.source {
            BiasSource::Table(table) => StoreMode::AddTo(&table.hidden[1][self.column(chunk.distance) * room..], room),
            BiasSource::Fire(_) | BiasSource::None => StoreMode::AddTo(&network.constant[1], room),
        };
        network.units(lanes, NetworkInput::Scores, (scores, WIDTH), store, units, keys);
        if let BiasSource::Fire(_) = self.source {
            network.units(lanes, NetworkInput::Biases, (bias, WIDTH), StoreMode::Accumulate, units, keys);
        }
        chunk::rectify(&mut units[..keys * room], T::from_f64(network::SLOPE));
    }

    /// Weights, in `mapped`, of a chunk whose units are there, and from the gradient in them, in `d_f`, that in f.
    #[inline(always)]
    fn softmax_of_chunk<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        network: &network::NetworkUnits<T>,
        chunk: &KeyChunk,
        (block_rows, SoftmaxRows { lse, delta }): (usize, SoftmaxRows<T>),
        scratch: &mut MixedScratch<T>,
    ) {
        let MixedScratch { scores, d_f, mapped, bias, hidden, units, .. } = scratch;
        let (keys, room) = (chunk.keys, network.room);
        lanes.run(Transpose {
            from: units,
            stride: room,
            rows: keys,
            head_dim: room,
            factor: T::ONE,
            to: hidden,
            width: WIDTH,
        });
        let bias = match &self.source {
            BiasSource::Table(table) => (&table.bias[self.column(chunk.distance)..], table.stride),
            BiasSource::Fire(_) | BiasSource::None => (&bias[..], WIDTH),
        };
        mapped.copy_from_slice(scores);
        self.add_result(lanes, network, bias, hidden, mapped, keys);
        for (head, (scores, d_scores)) in mapped.chunks_exact_mut(WIDTH).zip(d_f.chunks_exact_mut(WIDTH)).enumerate() {
            let (row, scores, d_scores) = (head * block_rows + chunk.row, &mut scores[..keys], &mut d_scores[..keys]);
            lanes.run(SoftmaxBackward { scores, d_scores: &mut *d_scores, lse: lse[row], delta: delta[row] });
            d_scores[..chunk.seen.start].fill(T::ZERO);
            d_scores[chunk.seen.end..].fill(T::ZERO);
        }
    }

    /// From the gradient in f of a chunk whose units are there to that in its scores, both in `d_f`, and to that in its biases where
    /// they are no table's.
    #[inline(always)]
    fn network_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        network: &network::NetworkUnits<T>,
        chunk: &KeyChunk,
        [_, _, of_z, of_scores, of_biases, second]: &mut [&mut [T]; 6],
        scratch: &mut MixedScratch<T>,
    ) {
        let (keys, room, column) = (chunk.keys, network.room, self.column(chunk.distance));
        let MixedScratch { scores, d_f, bias, d_bias, hidden, units, d_units, .. } = scratch;
        network.units_backward(lanes, (d_f, WIDTH), d_units, keys);
        network.add_weights(lanes, (d_f, WIDTH), units, second, keys);
        let by_distance = &mut of_z[column * room..][..keys * room];
        let slope = T::from_f64(network::SLOPE);
        for ((value, d), sum) in units.iter().zip(&mut d_units[..]).zip(by_distance) {
            *d = chunk::factor(*value, slope) * *d;
            *sum += *d;
        }
        if network.sees(NetworkInput::Scores) {
            network.add_weights(lanes, (scores, WIDTH), d_units, of_scores, keys);
        }
        let (from, to) = (&d_units[..], &mut hidden[..]);
        lanes.run(Transpose { from, stride: room, rows: keys, head_dim: room, factor: T::ONE, to, width: WIDTH });
        if let BiasSource::Fire(_) = self.source {
            network.add_weights(lanes, (bias, WIDTH), d_units, of_biases, keys);
            d_bias.fill(T::ZERO);
            if self.mixed.adds_bias() {
                d_bias.copy_from_slice(d_f);
            }
            network.add_first_backward(lanes, NetworkInput::Biases, hidden, (d_bias, WIDTH), keys);
        }
        network.add_first_backward(lanes, NetworkInput::Scores, hidden, (d_f, WIDTH), keys);
    }
}

/// Makes the gradient in the numbers of what was summed.
struct MixedFinish<'a, T> {
    over: &'a MixedMod<'a, T>,
    sums: &'a [T],
    to: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for MixedFinish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let MixedFinish { over, sums, to } = self;
        let [fire, of_f, of_z, of_scores, of_biases, second] = cut(sums, over.lengths());
        to.fill(T::ZERO);
        let [to_table, to_fire, to_network] = cut_mut(to, over.sizes);
        let mut of_biases = of_biases.to_vec();
        match &over.source {
            BiasSource::None => {}
            BiasSource::Fire(of) => of.finish(fire, to_fire),
            BiasSource::Table(table) => over.finish_table(lanes, table, of_f, of_z, &mut of_biases, to_table),
        }
        if let Some(network) = &over.network {
            network.finish([of_scores, &of_biases, second, of_z, of_f], to_network);
        }
    }
}

impl<T: Number> MixedMod<'_, T> {
    /// From sums by distance to the gradient in the table, and in W1 through it.
    #[inline(always)]
    fn finish_table<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        table: &Diagonals<T>,
        of_f: &[T],
        of_z: &[T],
        of_biases: &mut Vec<T>,
        to: &mut [T],
    ) {
        let mut d_bias = channels(self.mixed.heads);
        let mut d_hidden = channels(self.network.as_ref().map_or(0, |network| network.room));
        of_biases.resize(d_hidden.len() / WIDTH * self.mixed.heads, T::ZERO);
        for column in (0..table.columns).step_by(WIDTH) {
            d_bias.fill(T::ZERO);
            if self.mixed.adds_bias() {
                chunk::load(lanes, &of_f[column..], table.stride, &mut d_bias, WIDTH);
            }
            if let Some(network) = &self.network {
                let (room, bias) = (network.room, (&table.bias[column..], table.stride));
                let (from, to) = (&of_z[column * room..], &mut d_hidden[..]);
                lanes.run(Transpose {
                    from,
                    stride: room,
                    rows: WIDTH,
                    head_dim: room,
                    factor: T::ONE,
                    to,
                    width: WIDTH,
                });
                network.add_first_backward(lanes, NetworkInput::Biases, &d_hidden, (&mut d_bias, WIDTH), WIDTH);
                network.add_weights(lanes, bias, from, of_biases, WIDTH);
            }
            let count = WIDTH.min(table.columns - column);
            table.add_gradient(column, (&d_bias, WIDTH), count, to);
        }
    }
}
