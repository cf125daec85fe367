//! The encoder: the decoder's blocks, seeing in both directions, over padded sequences; and a classifier on top of it.

use super::{Embedded, Tokens, Trunk};
use crate::plan::Plan;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use kerple::seed::{Purpose, stream};
use kerple_burn::block::Block;
use kerple_burn::forms::Positions;
use kerple_burn::fused::Engine;
use kerple_burn::layers::{Linear, Norm, normal_matrix};
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
            embedding: normal_matrix([model.vocab_size, model.d_model], super::STD, &mut init),
            embedding_norm: model.block.embedding_norm.then(|| Norm::new(&model.block, model.d_model, &init)),
            encoding: super::encoding(plan, device),
            blocks: super::blocks(plan, &mut init),
            norm: Norm::new(&model.block, model.d_model, &init),
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
        if let Some(lengths) = lengths {
            let Tokens { batch, len, .. } = tokens;
            let longest = lengths.iter().max().copied().unwrap_or(0);
            assert!(lengths.len() == batch && longest <= len, "lengths: {lengths:?} of {batch} sequences of {len}");
        }
        let trunk = Trunk {
            embedding: &self.embedding,
            embedding_norm: &self.embedding_norm,
            encoding: &self.encoding,
            blocks: &self.blocks,
            embedded: self.embedded,
            engine: self.engine,
        };
        let lengths: Option<Arc<[usize]>> = lengths.map(Arc::from);
        let x = trunk
            .hidden(tokens, pass, |positions| Positions { lengths: lengths.clone(), ..positions.in_both_directions() });
        self.norm.forward(x, self.engine)
    }
}

/// An encoder, the mean of its rows, and a linear layer over classes.
#[derive(Module, Debug)]
pub struct Classifier {
    /// Makes the rows.
    pub encoder: Encoder,
    /// `[M, C]`
    pub head: Linear,
}

impl Describe for Classifier {
    fn describe(&self, groups: &mut Groups) {
        self.encoder.describe(groups);
    }
}

impl Classifier {
    /// A fresh classifier of this many classes.
    pub fn new(plan: &Plan, classes: usize, device: &Device) -> Classifier {
        let mut rng = stream(plan.seed, Purpose::Weights);
        let encoder = Encoder::draw(plan, device, &mut rng);
        let mut init = super::init(plan, &mut rng, device);
        Classifier { encoder, head: Linear::new([plan.model.d_model, classes], true, super::STD, &mut init) }
    }

    /// The same model, computing with this engine.
    pub fn with_engine(self, engine: Engine) -> Classifier {
        Classifier { encoder: self.encoder.with_engine(engine), ..self }
    }

    /// Logits over the classes, `[B, C]`: of the mean over each sequence's rows, padding left out.
    ///
    /// # Panics
    /// As [`Encoder::forward`], or when a sequence is empty.
    pub fn logits(&self, tokens: Tokens, lengths: Option<&[usize]>, pass: &Pass) -> Tensor<2> {
        let rows = self.encoder.forward(tokens, lengths, pass);
        let [batch, len, width] = rows.dims();
        let lengths = lengths.map_or_else(|| vec![len; batch], <[usize]>::to_vec);
        assert!(!lengths.contains(&0), "lengths: a sequence without tokens has no class");
        let share = |length: &usize| {
            let share = (*length as f64).recip();
            (0..len).map(|at| if at < *length { share } else { 0.0 }).collect::<Vec<f64>>()
        };
        let shares = TensorData::new(lengths.iter().flat_map(share).collect::<Vec<f64>>(), [batch, 1, len]);
        let shares = Tensor::<3>::from_data(shares, (&rows.device(), rows.dtype()));
        let mean = shares.matmul(rows).reshape([1, batch, width]);
        self.head.forward(mean).squeeze_dim(0)
    }
}
