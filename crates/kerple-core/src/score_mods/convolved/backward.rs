//! The network with neighbours, backwards.

use super::taps::Taps;
use super::{ConvolvedMod, ConvolvedRow, ConvolvedScratch, ROOM, each_chunk, put, rows};
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::forms::ScoreBlock;
use crate::score_mods::bias::BiasSource;
use crate::score_mods::chunk::{self, ChunkSums, WIDTH};
use crate::score_mods::mixed::{cut, cut_mut};
use crate::score_mods::network::SLOPE;
use crate::tiles::microkernel::StoreMode;

pub(super) struct ConvolvedBackward<'a, T> {
    pub(super) over: &'a ConvolvedMod<'a, T>,
    pub(super) block: &'a ScoreBlock<'a, T>,
    pub(super) scores: &'a [T],
    pub(super) d_scores: &'a mut [T],
    pub(super) sums: &'a mut [T],
}

/// The gradient in the network while it is summed, offset by offset.
struct ConvolvedGradient<T> {
    /// In W1 of scores and of those biases that go through the layer themselves.
    first: [Vec<ChunkSums<T>>; 2],
    /// In b1, of the columns of those biases.
    first_bias: ChunkSums<T>,
    second: Vec<ChunkSums<T>>,
    second_bias: ChunkSums<T>,
}

/// What the backward of a row is computed in.
struct ConvolvedBackwardScratch<T> {
    /// `[H, stride]`, keys from column `2 r`.
    mapped: Vec<T>,
    /// `[D, stride]`, keys from column `r`.
    hidden: Vec<T>,
    /// Its first columns, through which biases have gone themselves, and zeros.
    direct: Vec<T>,
    /// In scores or biases, `[H, stride]`, keys from column 0.
    inputs: Vec<T>,
    ones: Vec<T>,
}

impl<T: Number> ConvolvedMod<'_, T> {
    /// Lengths of what the backward sums: FIRE's; in the columns of the table the gradient in biases, `[H, stride]`, and in
    /// hidden units before they are rectified, `[D, stride]`; that in W1, b1, W2 and b2.
    pub(super) fn lengths(&self) -> [usize; 7] {
        let fire = if let BiasSource::Fire(fire) = &self.source { fire.sums() } else { 0 };
        let bias = if let BiasSource::Table(table) = &self.source { self.mixed.heads * table.stride } else { 0 };
        let shares = self.shares.as_ref().map_or(0, Vec::len);
        let network = [self.first, self.first_bias, self.second, self.second_bias].map(<[T]>::len);
        [fire, bias, shares, network[0], network[1], network[2], network[3]]
    }

    fn gradient<L: Lanes<Number = T>>(&self) -> ConvolvedGradient<T> {
        let (heads, units, taps) = (self.mixed.heads, self.network.hidden, 0..self.network.kernel);
        let sums = |shape: [usize; 2]| taps.clone().map(|_| ChunkSums::new::<L>(shape)).collect::<Vec<ChunkSums<T>>>();
        ConvolvedGradient {
            first: [sums([units, heads]), sums([units, heads])],
            first_bias: ChunkSums::new::<L>([units, 1]),
            second: sums([heads, units]),
            second_bias: ChunkSums::new::<L>([heads, 1]),
        }
    }

    fn down(&self, scratch: &ConvolvedScratch<T>) -> ConvolvedBackwardScratch<T> {
        let stride = scratch.stride;
        let [mapped, inputs] = [(); 2].map(|()| vec![T::ZERO; self.mixed.heads * stride]);
        let [hidden, direct] = [(); 2].map(|()| vec![T::ZERO; self.network.hidden * stride]);
        ConvolvedBackwardScratch { mapped, hidden, direct, inputs, ones: vec![T::ONE; stride] }
    }

    /// From the gradient in the network's result to that in its hidden units before they are rectified, and in W2 and b2.
    #[inline(always)]
    fn second_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        row: &ConvolvedRow,
        scratch: &ConvolvedScratch<T>,
        down: &mut ConvolvedBackwardScratch<T>,
        sums: &mut ConvolvedGradient<T>,
    ) {
        let (heads, units, k, stride) = (self.mixed.heads, self.network.hidden, self.network.kernel, scratch.stride);
        let (count, ConvolvedBackwardScratch { mapped, hidden, ones, .. }) = (row.seen.len(), down);
        lanes.run(Taps {
            rows: units,
            channels: heads,
            taps: k,
            columns: row.wide.next_multiple_of(L::COUNT),
            a: self.second,
            a_strides: [k, units * k],
            b: mapped,
            b_stride: stride,
            backwards: true,
            c: hidden,
            c_stride: stride,
            store: StoreMode::Overwrite,
        });
        let d_mapped = (&mapped[2 * self.reach()..], stride);
        for (tap, sums) in sums.second.iter_mut().enumerate() {
            sums.add(lanes, d_mapped, (&scratch.hidden[tap..], stride), count);
        }
        sums.second_bias.add(lanes, d_mapped, (ones, 0), count);
        row.clear(hidden, stride);
        let slope = T::from_f64(SLOPE);
        for (d, of) in hidden.chunks_exact_mut(stride).zip(scratch.hidden.chunks_exact(stride)) {
            for (d, of) in d[row.hidden.clone()].iter_mut().zip(&of[row.hidden.clone()]) {
                *d = chunk::factor(*of, slope) * *d;
            }
        }
    }

    /// The gradient in one part of the inputs, of the first `keys`, given that in hidden units.
    #[inline(always)]
    fn first_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        place: usize,
        hidden: &[T],
        (to, stride): (&mut [T], usize),
        keys: usize,
    ) {
        let k = self.network.kernel;
        lanes.run(Taps {
            rows: self.mixed.heads,
            channels: self.network.hidden,
            taps: k,
            columns: keys.next_multiple_of(L::COUNT),
            a: &self.first[place * k..],
            a_strides: [k, self.inputs * k],
            b: hidden,
            b_stride: stride,
            backwards: true,
            c: to,
            c_stride: stride,
            store: StoreMode::Overwrite,
        });
    }

    /// From the gradient in hidden units to that in the biases of a row, and in their share of W1 and b1.
    #[allow(clippy::too_many_arguments, reason = "a row, what it is computed in, and what its sums are added to")]
    #[inline(always)]
    fn bias_backward<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        block: &ScoreBlock<T>,
        row: &ConvolvedRow,
        scratch: &mut ConvolvedScratch<T>,
        down: &mut ConvolvedBackwardScratch<T>,
        sums: &mut ConvolvedGradient<T>,
        [of_fire, of_table, of_shares]: [&mut [T]; 3],
    ) {
        let (reach, count, stride) = (self.reach(), row.seen.len(), scratch.stride);
        let ConvolvedBackwardScratch { mapped, hidden, direct, inputs, ones } = down;
        let keys = count.min(row.direct);
        if row.direct < row.wide {
            for (to, from) in direct.chunks_exact_mut(stride).zip(hidden.chunks_exact(stride)) {
                put(to, 0, &from[..row.direct]);
            }
        }
        let hidden_direct = if row.direct < row.wide { &*direct } else { &*hidden };
        sums.first_bias.add(lanes, (hidden_direct, stride), (ones, 0), row.direct);
        if let Some((table, _)) = self.table() {
            let [own, shared] = row.shared(reach);
            for (to, from) in of_shares.chunks_exact_mut(table.stride).zip(hidden.chunks_exact(stride)) {
                to[shared.clone()].iter_mut().zip(&from[own.clone()]).for_each(|(to, d)| *to += *d);
            }
        }
        let Some(place) = self.places[1] else { return };
        for (tap, sums) in sums.first[1].iter_mut().enumerate() {
            sums.add(lanes, (hidden_direct, stride), (&scratch.bias[tap..], stride), row.direct);
        }
        self.first_backward(lanes, place, hidden_direct, (inputs, stride), keys);
        for (through, own) in inputs.chunks_exact_mut(stride).zip(mapped.chunks_exact(stride)) {
            through[keys..count].fill(T::ZERO);
            if self.mixed.adds_bias() {
                through[..count].iter_mut().zip(&own[2 * reach..]).for_each(|(to, own)| *to += *own);
            }
        }
        match &self.source {
            BiasSource::None => {}
            BiasSource::Table(table) => {
                let column = table.column(block.distance(row.row, row.seen.start)) as usize;
                for (to, from) in of_table.chunks_exact_mut(table.stride).zip(inputs.chunks_exact(stride)) {
                    to[column..column + count].iter_mut().zip(from).for_each(|(to, d)| *to += *d);
                }
            }
            BiasSource::Fire(of) => {
                let ConvolvedScratch { fire: Some(fire), chunk, .. } = scratch else { return };
                each_chunk(block, row, count, |first, pairs| {
                    of.place(pairs, fire);
                    chunk.fill(T::ZERO);
                    for (to, from) in chunk.chunks_exact_mut(WIDTH).zip(inputs.chunks_exact(stride)) {
                        to[..pairs.count].copy_from_slice(&from[first..first + pairs.count]);
                    }
                    of.backward(lanes, pairs, chunk, fire, &mut *of_fire);
                });
            }
        }
    }

    /// Adds the network's sums to the gradient of its numbers: W1, b1, W2, b2.
    #[inline(always)]
    fn add_network<L: Lanes<Number = T>>(&self, lanes: L, sums: &ConvolvedGradient<T>, to: [&mut [T]; 4]) {
        let (k, units, [first, first_bias, second, second_bias]) = (self.network.kernel, self.network.hidden, to);
        for (place, sums) in self.places.into_iter().zip(&sums.first) {
            let Some(place) = place else { continue };
            for (tap, sums) in sums.iter().enumerate() {
                sums.finish(lanes, &mut first[place * k + tap..], [self.inputs * k, k]);
            }
        }
        for (tap, sums) in sums.second.iter().enumerate() {
            sums.finish(lanes, &mut second[tap..], [units * k, k]);
        }
        sums.first_bias.finish(lanes, first_bias, [1, 0]);
        sums.second_bias.finish(lanes, second_bias, [1, 0]);
    }
}

impl<T: Number> SimdKernel<T> for ConvolvedBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let ConvolvedBackward { over, block, scores: all, d_scores, sums } = self;
        let mut scratch = over.scratch(block.columns);
        let (stride, mut down, mut of_network) = (scratch.stride, over.down(&scratch), over.gradient::<L>());
        let [of_fire, of_table, of_shares, first, first_bias, second, second_bias] = cut_mut(sums, over.lengths());
        for row in rows::<L>(over, block) {
            over.load(lanes, block, all, &row, &mut scratch);
            let count = row.seen.len();
            let at = |head: usize| (head * block.rows + row.row) * block.columns + row.seen.start;
            for (head, to) in down.mapped.chunks_exact_mut(stride).enumerate() {
                put(to, 2 * over.reach(), &d_scores[at(head)..][..count]);
            }
            over.second_backward(lanes, &row, &scratch, &mut down, &mut of_network);
            if let Some(place) = over.places[0] {
                for (tap, sums) in of_network.first[0].iter_mut().enumerate() {
                    sums.add(lanes, (&down.hidden, stride), (&scratch.scores[tap..], stride), row.wide);
                }
                over.first_backward(lanes, place, &down.hidden, (&mut down.inputs, stride), count);
                for (head, from) in down.inputs.chunks_exact(stride).enumerate() {
                    let to = &mut d_scores[at(head)..][..count];
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
                }
            }
            let by_source = [&mut *of_fire, &mut *of_table, &mut *of_shares];
            over.bias_backward(lanes, block, &row, &mut scratch, &mut down, &mut of_network, by_source);
        }
        over.add_network(lanes, &of_network, [first, first_bias, second, second_bias]);
    }
}

/// Makes the gradient in the numbers of what was summed.
pub(super) struct ConvolvedFinish<'a, T> {
    pub(super) over: &'a ConvolvedMod<'a, T>,
    pub(super) sums: &'a [T],
    pub(super) to: &'a mut [T],
}

impl<T: Number> SimdKernel<T> for ConvolvedFinish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let ConvolvedFinish { over, sums, to } = self;
        let lengths = over.lengths();
        let of_network = lengths[3..].iter().sum::<usize>();
        let [of_fire, of_table, of_shares, of_network] = cut(sums, [lengths[0], lengths[1], lengths[2], of_network]);
        to.fill(T::ZERO);
        let [to_table, to_fire, to_network] = cut_mut(to, over.sizes);
        to_network.copy_from_slice(of_network);
        match &over.source {
            BiasSource::None => {}
            BiasSource::Fire(of) => of.finish(of_fire, to_fire),
            BiasSource::Table(table) => {
                let mut by_column = of_table.to_vec();
                if over.shares.is_some() {
                    over.finish_shares(lanes, of_shares, &mut by_column, to_network);
                }
                table.add_gradient(0, (&by_column, table.stride), table.columns, to_table);
            }
        }
    }
}

impl<T: Number> ConvolvedMod<'_, T> {
    /// From the gradient in the shares of a table to that in the table, by column, and in W1 and b1.
    #[inline(always)]
    fn finish_shares<L: Lanes<Number = T>>(&self, lanes: L, shares: &[T], by_column: &mut [T], to_network: &mut [T]) {
        let Some((table, _)) = self.table() else { return };
        let (k, units, columns) = (self.network.kernel, self.network.hidden, table.stride);
        let (first, rest) = to_network.split_at_mut(self.first.len());
        for (to, d) in rest.iter_mut().zip(shares.chunks_exact(columns)) {
            *to += T::from_f64(d.iter().map(|d| d.to_f64()).sum::<f64>());
        }
        let Some(place) = self.places[1] else { return };
        let (padded, stride) = self.padded(table);
        for tap in 0..k {
            let mut sums = ChunkSums::new::<L>([units, self.mixed.heads]);
            sums.add(lanes, (shares, columns), (&padded[tap..], stride), columns);
            sums.finish(lanes, &mut first[place * k + tap..], [self.inputs * k, k]);
        }
        let wide = columns + ROOM;
        let mut d_hidden = vec![T::ZERO; units * wide];
        for (to, from) in d_hidden.chunks_exact_mut(wide).zip(shares.chunks_exact(columns)) {
            to[self.reach()..][..columns].copy_from_slice(from);
        }
        lanes.run(Taps {
            rows: self.mixed.heads,
            channels: units,
            taps: k,
            columns,
            a: &self.first[place * k..],
            a_strides: [k, self.inputs * k],
            b: &d_hidden,
            b_stride: wide,
            backwards: true,
            c: by_column,
            c_stride: columns,
            store: StoreMode::Accumulate,
        });
    }
}
