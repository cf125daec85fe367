//! Where the biases of a [`Mixed`] map come from: a table over distances, read along its diagonals, or FIRE.

use super::ScoreModExtent;
use super::chunk::{self, WIDTH, channels};
use super::fire::{self, KeyPairs};
use super::mixed::{Bias, Mixed};
use super::network::{self, NetworkInput};
use crate::Number;
use crate::cpu::lanes::{Lanes, SimdKernel, run};
use crate::tiles::microkernel::StoreMode;

/// Where the bias comes from, with its numbers.
#[derive(Debug)]
pub(super) enum BiasSource<'a, T> {
    None,
    Table(Diagonals<T>),
    Fire(fire::FireBias<'a, T>),
}

impl<'a, T: Number> BiasSource<'a, T> {
    /// Over the numbers of table and FIRE; with the table's share of a network's hidden layer.
    pub(super) fn new(
        mixed: &'a Mixed,
        values: &'a [T],
        sizes: [usize; 3],
        extent: ScoreModExtent,
        network: Option<&network::NetworkUnits<T>>,
    ) -> Self {
        let (table, of_fire) = values.split_at(sizes[0]);
        match &mixed.bias {
            Bias::None => BiasSource::None,
            Bias::Table => BiasSource::Table(Diagonals::new(mixed.heads, table, extent, network)),
            Bias::Fire(fire) => BiasSource::Fire(fire::FireBias::new(fire, mixed.heads, of_fire, extent)),
        }
    }

    pub(super) fn scratch(&self) -> Option<fire::FireScratch<T>> {
        if let BiasSource::Fire(fire) = self { Some(fire.scratch()) } else { None }
    }

    /// The biases of pairs whose first has this distance, `[H, WIDTH]` and a vector more.
    #[inline(always)]
    pub(super) fn load<L: Lanes<Number = T>>(
        &self,
        lanes: L,
        pairs: KeyPairs,
        distance: isize,
        scratch: Option<&mut fire::FireScratch<T>>,
        to: &mut [T],
    ) {
        match (self, scratch) {
            (BiasSource::None, _) => {}
            (BiasSource::Table(table), _) => {
                let first = table.column(distance) as usize;
                chunk::load(lanes, &table.bias[first..], table.stride, to, pairs.count);
            }
            (BiasSource::Fire(fire), Some(scratch)) => fire.bias(lanes, pairs, scratch, to),
            (BiasSource::Fire(_), None) => unreachable!("scratch is made for the source"),
        }
    }
}

/// A table and its share of the hidden layer, from the largest distance down, so that the keys of a query lie in order.
#[derive(Debug)]
pub(super) struct Diagonals<T> {
    /// `[H, stride]`
    pub(super) bias: Vec<T>,
    /// `W1b b + b1`, `[D, stride]` and `[stride, room]`
    pub(super) hidden: [Vec<T>; 2],
    /// Columns of the table, C.
    pub(super) columns: usize,
    /// C, and room for whole vectors after it.
    pub(super) stride: usize,
    /// The largest distance, that of column 0.
    furthest: isize,
}

impl<T: Number> Diagonals<T> {
    fn new(heads: usize, table: &[T], extent: ScoreModExtent, network: Option<&network::NetworkUnits<T>>) -> Self {
        let columns = extent.sides.columns(extent.len);
        let stride = (columns + WIDTH).next_multiple_of(WIDTH);
        let mut bias = vec![T::ZERO; heads * stride];
        for (to, from) in bias.chunks_exact_mut(stride).zip(table.chunks_exact(columns.max(1))) {
            to.iter_mut().zip(from.iter().rev()).for_each(|(to, from)| *to = *from);
        }
        let hidden = network.map_or_else(Default::default, |network| {
            let of_table = HiddenOfTable { bias: &bias, stride, network };
            run(of_table)
        });
        Diagonals { bias, hidden, columns, stride, furthest: extent.len as isize - 1 }
    }

    /// The column of a distance; outside of the table where nothing is seen.
    pub(super) fn column(&self, distance: isize) -> isize {
        self.furthest - distance
    }

    /// Adds `[H, stride]` at this many columns from `column` on to the gradient of the table, `[H, C]`.
    #[inline(always)]
    pub(super) fn add_gradient(&self, column: usize, (from, stride): (&[T], usize), count: usize, to: &mut [T]) {
        for (to, from) in to.chunks_exact_mut(self.columns).zip(from.chunks(stride)) {
            let to = &mut to[self.columns - column - count..self.columns - column];
            to.iter_mut().rev().zip(from).for_each(|(to, from)| *to += *from);
        }
    }
}

struct HiddenOfTable<'a, T> {
    bias: &'a [T],
    stride: usize,
    network: &'a network::NetworkUnits<'a, T>,
}

impl<T: Number> SimdKernel<T> for HiddenOfTable<'_, T> {
    type Output = [Vec<T>; 2];

    #[inline(always)]
    fn run<L: Lanes<Number = T>>(self, lanes: L) -> [Vec<T>; 2] {
        let HiddenOfTable { bias, stride, network } = self;
        let (mut part, room) = (channels(network.hidden), network.room);
        let [mut hidden, mut units] = [network.hidden, room].map(|channels| vec![T::ZERO; channels * stride]);
        for first in (0..stride).step_by(WIDTH) {
            let bias = (&bias[first..], stride);
            part.copy_from_slice(&network.constant[0]);
            network.add_first(lanes, NetworkInput::Biases, bias, &mut part, WIDTH);
            for (to, from) in hidden.chunks_exact_mut(stride).zip(part.chunks_exact(WIDTH)) {
                to[first..first + WIDTH].copy_from_slice(from);
            }
            let (store, to) = (StoreMode::AddTo(&network.constant[1], room), &mut units[first * room..]);
            network.units(lanes, NetworkInput::Biases, bias, store, to, WIDTH);
        }
        [hidden, units]
    }
}
