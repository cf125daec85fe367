//! The stored parameters of all layers, read at once: the host computes the contexts of a pass
//! from them, and waits for the device once instead of once per parameter.

use super::PositionalEncoding;
use crate::attention_context::{AttentionContext, LinearContext};
use crate::forward_context::ForwardContext;
use crate::implementation::Impl;
use crate::kv_cache::KvCache;
use crate::parameters::plain;
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use kerple_core::encoding::{Injection, ParameterShare};
use std::cell::OnceCell;

/// An encoding with its numbers as they are now.
pub struct EncodingSnapshot<'a> {
    encoding: &'a PositionalEncoding,
    /// Of this one and the others.
    read: OnceCell<Vec<EncodingValues>>,
}

/// The numbers of one encoding, where its context is computed from them.
#[derive(Default)]
struct EncodingValues {
    values: Vec<Vec<f64>>,
    layers: Vec<Vec<Vec<f64>>>,
}

impl PositionalEncoding {
    /// This encoding with its numbers as they are now, which are read when the first of them is needed.
    pub fn snapshot(&self) -> EncodingSnapshot<'_> {
        EncodingSnapshot { encoding: self, read: OnceCell::new() }
    }

    /// All numbers that contexts are computed from.
    fn read(&self) -> Vec<EncodingValues> {
        let forms =
            || self.each().map(|one| matches!(one.encoding.entry(), Injection::Scores(_) | Injection::ScoreMod { .. }));
        let read: Vec<&PositionalEncoding> =
            self.each().zip(forms()).filter(|(_, is)| *is).map(|(one, _)| one).collect();
        let all = read.iter().flat_map(|one| one.values.iter().chain(one.layers.iter().flatten()));
        let tensors: Vec<Tensor<1>> = all.map(|param| plain(param.val())).collect();
        let numbers: Vec<f64> =
            if tensors.is_empty() { Vec::new() } else { Tensor::cat(tensors, 0).into_data().iter::<f64>().collect() };
        let mut rest = &numbers[..];
        let mut take = |param: &Param<Tensor<1>>| {
            let (own, others) = rest.split_at(param.val().dims()[0]);
            rest = others;
            own.to_vec()
        };
        let mut of = |(one, is): (&PositionalEncoding, bool)| {
            if is {
                EncodingValues {
                    values: one.values.iter().map(&mut take).collect(),
                    layers: one.layers.iter().map(|own| own.iter().map(&mut take).collect()).collect(),
                }
            } else {
                EncodingValues::default()
            }
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
        let find = |share| if share == ParameterShare::Model { shared.next() } else { own.next() };
        parameters.map(|parameter| parameter.share).filter_map(find).collect()
    }
}

impl EncodingSnapshot<'_> {
    /// [`PositionalEncoding::attention_context`].
    pub fn attention_context(
        &self,
        layer: usize,
        lens: [usize; 2],
        options: (&Device, DType),
        implementation: Impl,
        pass: &ForwardContext,
    ) -> AttentionContext {
        self.encoding.context_of(layer, lens, options, (implementation, pass), &|| self.numbers(layer))
    }

    /// The same for positions after those of the KV cache. A table is computed for more keys than there are and kept there:
    /// tables for fewer keys are its beginning.
    pub fn context_after(
        &self,
        layer: usize,
        [queries, keys]: [usize; 2],
        options: (&Device, DType),
        (implementation, pass): (Impl, &ForwardContext),
        cache: &mut KvCache,
    ) -> AttentionContext {
        let one = self.encoding.of_layer(layer);
        let is_table = matches!(one.encoding.entry(), Injection::Scores(_)) && one.encoding.randomized.is_none();
        let Some(kept) = cache.cached_context().filter(|_| is_table) else {
            return self.attention_context(layer, [queries, keys], options, implementation, pass);
        };
        let in_this_pass = |context: AttentionContext| AttentionContext {
            linear: LinearContext { pass: *pass, ..context.linear },
            ..context
        };
        if let Some((_, context)) = kept.as_ref().filter(|(reach, _)| *reach >= keys) {
            return in_this_pass(context.clone());
        }
        let most = one.encoding.longest(&one.geometry).unwrap_or(usize::MAX);
        let reach = keys.next_power_of_two().min(most).max(keys);
        // no table depends on the span
        let context = self.attention_context(layer, [queries, reach], options, implementation, &pass.over(reach));
        *kept = Some((reach, context.clone()));
        in_this_pass(context)
    }

    fn numbers(&self, layer: usize) -> Vec<Vec<f64>> {
        let read = &self.read.get_or_init(|| self.encoding.read())
            [self.encoding.layer_encodings[layer].other.map_or(0, |other| other + 1)];
        let numbers = self.encoding.of_layer(layer).select(layer, &read.values, &read.layers);
        numbers.into_iter().cloned().collect()
    }
}
