//! The stored parameters of all layers, read at once: the host computes the forms of a pass from
//! them, and waits for the device once instead of once per parameter.

use super::PositionalEncoding;
use crate::forms::Positions;
use crate::fused::Engine;
use crate::memory::Memory;
use crate::parameters::plain;
use crate::pass::Pass;
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use kerple_core::encoding::{Injection, Share};
use std::cell::OnceCell;

/// An encoding with its numbers as they are now.
pub struct Now<'a> {
    encoding: &'a PositionalEncoding,
    /// Of this one and the others.
    read: OnceCell<Vec<Read>>,
}

/// The numbers of one encoding, where forms are made of them.
#[derive(Default)]
struct Read {
    values: Vec<Vec<f64>>,
    layers: Vec<Vec<Vec<f64>>>,
}

impl PositionalEncoding {
    /// This encoding with its numbers as they are now, which are read when the first of them is needed.
    pub fn now(&self) -> Now<'_> {
        Now { encoding: self, read: OnceCell::new() }
    }

    /// All numbers that forms are made of.
    fn read(&self) -> Vec<Read> {
        let forms =
            || self.each().map(|one| matches!(one.encoding.entry(), Injection::Scores(_) | Injection::ScoreMod { .. }));
        let read: Vec<&PositionalEncoding> =
            self.each().zip(forms()).filter(|(_, is)| *is).map(|(one, _)| one).collect();
        let all = read.iter().flat_map(|one| one.values.iter().chain(one.layers.iter().flatten()));
        let tensors: Vec<Tensor<1>> = all.map(|param| plain(param.val())).collect();
        let numbers: Vec<f64> = match tensors.is_empty() {
            true => Vec::new(),
            false => Tensor::cat(tensors, 0).into_data().iter::<f64>().collect(),
        };
        let mut rest = &numbers[..];
        let mut take = |param: &Param<Tensor<1>>| {
            let (own, others) = rest.split_at(param.val().dims()[0]);
            rest = others;
            own.to_vec()
        };
        let mut of = |(one, is): (&PositionalEncoding, bool)| match is {
            true => Read {
                values: one.values.iter().map(&mut take).collect(),
                layers: one.layers.iter().map(|own| own.iter().map(&mut take).collect()).collect(),
            },
            false => Read::default(),
        };
        self.each().zip(forms()).map(&mut of).collect()
    }

    /// The tensors of one layer, in the order of [`kerple_core::encoding::Encoding::parameters`].
    pub(super) fn stored(&self, layer: usize) -> Vec<Tensor<1>> {
        self.select(layer, &self.values, &self.layers).into_iter().map(Param::val).collect()
    }

    /// Raw parameters of one layer, in the order of [`kerple_core::encoding::Encoding::parameters`].
    pub fn numbers(&self, layer: usize) -> Vec<Vec<f64>> {
        let stored = self.of_layer(layer).stored(layer).into_iter();
        stored.map(|values| values.into_data().iter::<f64>().collect()).collect()
    }

    /// Of one layer, in the order of [`kerple_core::encoding::Encoding::parameters`]: of what all layers share, and of what each has.
    fn select<'a, T>(&self, layer: usize, shared: &'a [T], each: &'a [Vec<T>]) -> Vec<&'a T> {
        let place = self.own.iter().position(|own| *own == layer);
        let (mut shared, mut own) = (shared.iter(), place.and_then(|place| each.get(place)).into_iter().flatten());
        let parameters = self.encoding.parameters(&self.geometry).into_iter();
        let find = |share| if share == Share::Model { shared.next() } else { own.next() };
        parameters.map(|parameter| parameter.share).filter_map(find).collect()
    }
}

impl Now<'_> {
    /// [`PositionalEncoding::positions`].
    pub fn positions(
        &self,
        layer: usize,
        lens: [usize; 2],
        options: (&Device, DType),
        engine: Engine,
        pass: &Pass,
    ) -> Positions {
        self.encoding.positions_of(layer, lens, options, (engine, pass), &|| self.numbers(layer))
    }

    /// The same for positions behind those that `memory` holds. A table is made for more keys than there are and kept there:
    /// those for fewer keys are its beginning.
    pub fn behind(
        &self,
        layer: usize,
        [queries, keys]: [usize; 2],
        options: (&Device, DType),
        (engine, pass): (Engine, &Pass),
        memory: &mut Memory,
    ) -> Positions {
        let one = self.encoding.of_layer(layer);
        let is_table = matches!(one.encoding.entry(), Injection::Scores(_)) && one.encoding.randomized.is_none();
        let Some(told) = memory.told().filter(|_| is_table) else {
            return self.positions(layer, [queries, keys], options, engine, pass);
        };
        if let Some((_, positions)) = told.as_ref().filter(|(reach, _)| *reach >= keys) {
            return Positions { pass: *pass, ..positions.clone() };
        }
        let most = one.encoding.longest(&one.geometry).unwrap_or(usize::MAX);
        let reach = keys.next_power_of_two().min(most).max(keys);
        // no table depends on the span
        let positions = self.positions(layer, [queries, reach], options, engine, &pass.over(reach));
        *told = Some((reach, positions.clone()));
        Positions { pass: *pass, ..positions }
    }

    fn numbers(&self, layer: usize) -> Vec<Vec<f64>> {
        let read = &self.read.get_or_init(|| self.encoding.read())
            [self.encoding.standing[layer].other.map_or(0, |other| other + 1)];
        let numbers = self.encoding.of_layer(layer).select(layer, &read.values, &read.layers);
        numbers.into_iter().cloned().collect()
    }
}
