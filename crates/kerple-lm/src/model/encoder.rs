//! The encoder: the decoder's blocks, seeing in both directions, over padded sequences.

use super::{Embedded, Tokens, Trunk};
use crate::plan::Plan;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use kerple::seed::{Purpose, stream};
use kerple_burn::block::Block;
use kerple_burn::forms::Positions;
use kerple_burn::fused::Engine;
use kerple_burn::layers::{Norm, normal_matrix};
use kerple_burn::parameters::{Describe, Groups};
use kerple_burn::pass::Pass;
use kerple_burn::positions::PositionalEncoding;
use std::sync::Arc;

/// An encoder with its positional encoding; distance tables count the absolute distance.
#[derive(Module, Debug)]
pub struct Encoder {
    /// Token embeddings, `[V, M]`.
    pub embedding: Param<Tensor<2>>,
    /// Right after the embedding, where the plan has it.
    pub embedding_norm: Option<Norm>,
    /// The encoding, with a set of learned values for all layers or one a layer.
    pub encoding: PositionalEncoding,
    /// Layers.
    pub blocks: Vec<Block>,
    /// Of the result.
    pub norm: Norm,
    #[module(skip)]
    embedded: Embedded,
    #[module(skip)]
    engine: Engine,
}

impl Describe for Encoder {
    fn describe(&self, groups: &mut Groups) {
        self.encoding.describe(groups);
    }
}

impl Encoder {
    /// A fresh model, initialised as [`Decoder::new`](super::Decoder::new) does. The plan's output projection has no part.
    pub fn new(plan: &Plan, device: &Device) -> Encoder {
        Encoder::draw(plan, device, &mut stream(plan.seed, Purpose::Weights))
    }

    pub(super) fn draw(plan: &Plan, device: &Device, rng: &mut impl rand::Rng) -> Encoder {
        let (model, mut init) = (&plan.model, super::init(plan, rng, device));
        Encoder {
            embedding: normal_matrix(
                [model.vocab_size, model.d_model],
                model.block.init.embedding_std(init.std),
                &mut init,
            ),
            embedding_norm: model.block.embedding_norm.then(|| Norm::new(&model.block, model.d_model, &mut init)),
            encoding: super::encoding(plan, device),
            blocks: super::blocks(plan, &mut init),
            norm: Norm::new(&model.block, model.d_model, &mut init),
            embedded: Embedded::of(plan),
            engine: Engine::Fused,
        }
    }

    /// The same model, computing with this engine.
    pub fn with_engine(self, engine: Engine) -> Encoder {
        Encoder { engine, ..self }
    }

    /// `[B, L, M]`, after the final norm. With `lengths` the tokens of each sequence from its length on are padding: nothing
    /// looks at them, and their own rows mean nothing.
    ///
    /// # Panics
    /// When there are not as many lengths as sequences, or one exceeds L.
    pub fn forward(&self, tokens: Tokens, lengths: Option<&[usize]>, pass: &Pass) -> Tensor<3> {
        self.forward_behind(None, tokens, lengths, pass)
    }

    /// The same with a row `[M]` in front of the embeddings of every sequence: `[B, 1 + L, M]`. Lengths do not count it.
    ///
    /// # Panics
    /// As [`Encoder::forward`].
    pub fn forward_behind(
        &self,
        first: Option<Tensor<1>>,
        tokens: Tokens,
        lengths: Option<&[usize]>,
        pass: &Pass,
    ) -> Tensor<3> {
        if let Some(lengths) = lengths {
            let Tokens { batch, len, .. } = tokens;
            let longest = lengths.iter().max().copied().unwrap_or(0);
            assert!(lengths.len() == batch && longest <= len, "lengths: {lengths:?} of {batch} sequences of {len}");
        }
        let more = usize::from(first.is_some());
        let trunk = Trunk {
            first,
            embedding: &self.embedding,
            embedding_norm: &self.embedding_norm,
            encoding: &self.encoding,
            blocks: &self.blocks,
            embedded: self.embedded,
            engine: self.engine,
        };
        let lengths: Option<Arc<[usize]>> = lengths.map(|all| all.iter().map(|length| length + more).collect());
        let x = trunk
            .hidden(tokens, pass, |positions| Positions { lengths: lengths.clone(), ..positions.in_both_directions() });
        self.norm.forward(x, self.engine)
    }
}
