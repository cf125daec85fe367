//! The encoder: the decoder's blocks with bidirectional attention over padded sequences.

use super::TokenBatch;
use super::trunk::{self, Trunk, TrunkParts};
use crate::plan::Plan;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kerple_burn::attention_context::AttentionContext;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::LayerInit;
use kerple_burn::parameters::{ParamGroupOverrides, ParamGroups};
use kerple_core::seed::{Purpose, stream};
use rand::Rng;
use std::sync::Arc;

/// An encoder with its positional encoding; distance tables count the absolute distance.
#[derive(Module, Debug)]
pub struct Encoder {
    /// All of the model; nothing follows the norm.
    pub trunk: Trunk,
}

impl ParamGroupOverrides for Encoder {
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        self.trunk.override_param_groups(groups);
    }
}

impl Encoder {
    /// A fresh model, initialised as [`Decoder::new`](super::Decoder::new) does. The plan's output projection has no part.
    pub fn new(plan: &Plan, device: &Device) -> Encoder {
        let mut rng = stream(plan.seed, Purpose::Weights);
        Encoder::draw(plan, &mut trunk::init(plan, Some(&mut rng), device))
    }

    pub(super) fn draw(plan: &Plan, init: &mut LayerInit<impl Rng>) -> Encoder {
        let embedding = trunk::embedding(plan, init);
        let embedding_norm = trunk::embedding_norm(plan, init);
        let blocks = trunk::blocks(plan, init);
        let norm = trunk::norm(plan, init);
        Encoder { trunk: Trunk::of(plan, init.device, TrunkParts { embedding, embedding_norm, blocks, norm }) }
    }

    /// The same model, computing with this implementation.
    pub fn with_implementation(self, implementation: Impl) -> Encoder {
        Encoder { trunk: self.trunk.with_implementation(implementation) }
    }

    /// `[B, L, M]`, after the final norm. With `lengths` the tokens of each sequence from its length on are padding: nothing
    /// looks at them, and their own rows mean nothing.
    ///
    /// # Panics
    /// When there are not as many lengths as sequences, or one exceeds L.
    pub fn forward(&self, tokens: TokenBatch, lengths: Option<&[usize]>, pass: &ForwardContext) -> Tensor<3> {
        self.forward_with_cls(None, tokens, lengths, pass)
    }

    /// The same with a row `[M]` in front of the embeddings of every sequence: `[B, 1 + L, M]`. Lengths do not count it.
    ///
    /// # Panics
    /// As [`Encoder::forward`].
    pub fn forward_with_cls(
        &self,
        first: Option<Tensor<1>>,
        tokens: TokenBatch,
        lengths: Option<&[usize]>,
        pass: &ForwardContext,
    ) -> Tensor<3> {
        if let Some(lengths) = lengths {
            let TokenBatch { batch, len, .. } = tokens;
            let longest = lengths.iter().max().copied().unwrap_or(0);
            assert!(lengths.len() == batch && longest <= len, "lengths: {lengths:?} of {batch} sequences of {len}");
        }
        let more = usize::from(first.is_some());
        let lengths: Option<Arc<[usize]>> = lengths.map(|all| all.iter().map(|length| length + more).collect());
        let x = self.trunk.embed(first, tokens, 0, pass);
        let adapt = |positions: AttentionContext| positions.bidirectional().with_lengths(lengths.clone());
        let x = self.trunk.each_layer(x, None, pass, adapt, |_, _, _| {});
        self.trunk.norm.forward(x, self.trunk.implementation)
    }
}
