//! The part that decoders and encoders share: token embeddings, blocks with a positional encoding,
//! and the final norm.

use super::TokenBatch;
use crate::plan::{ModelPlan, Plan};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use kerple_burn::attention_context::AttentionContext;
use kerple_burn::block::TransformerBlock;
use kerple_burn::forward_context::{EMBEDDINGS, ForwardContext};
use kerple_burn::implementation::Impl;
use kerple_burn::layers::{LayerInit, Norm, normal_matrix};
use kerple_burn::ops::dropout::{Dropout, dropout};
use kerple_burn::ops::embedding::embed;
use kerple_burn::parameters::{ParamGroupOverrides, ParamGroups};
use kerple_burn::plan::EmbeddingDropout;
use kerple_burn::positional_encoding::{LayerEncoding, PositionalEncoding};
use kerple_core::attention::PackedDocuments;
use kerple_core::encoding::{Encoding, Geometry};
use rand::Rng;
use std::sync::Arc;

/// Embeddings, layers and the final norm. Its parameters are named like the model's own.
#[derive(Module, Debug)]
pub struct Trunk {
    /// Token embeddings, `[V, M]`.
    pub embedding: Param<Tensor<2>>,
    /// Right after the embedding, where the plan has it.
    pub embedding_norm: Option<Norm>,
    /// The encoding, with one set of learned parameters for all layers or one per layer.
    pub encoding: PositionalEncoding,
    /// Layers.
    pub blocks: Vec<TransformerBlock>,
    /// Of the result.
    pub norm: Norm,
    #[module(skip)]
    embedded: EmbeddingSteps,
    #[module(skip)]
    pub(crate) implementation: Impl,
}

impl ParamGroupOverrides for Trunk {
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        self.encoding.override_param_groups(groups);
    }
}

/// What becomes of embeddings besides their norm.
#[derive(Clone, Copy, Debug)]
struct EmbeddingSteps {
    /// Factor on them.
    scale: f64,
    /// Share that training drops.
    share: f64,
    /// Where it drops.
    dropped: EmbeddingDropout,
}

impl EmbeddingSteps {
    fn of(plan: &Plan) -> EmbeddingSteps {
        let ModelPlan { d_model, block, .. } = &plan.model;
        let scale = if block.scale_embeddings { (*d_model as f64).sqrt() } else { 1.0 };
        EmbeddingSteps { scale, share: block.dropout, dropped: block.embedding_dropout }
    }
}

/// How the matrices of a plan's model begin: drawn, or as zeros.
pub(super) fn init<'a, R>(plan: &Plan, rng: Option<&'a mut R>, device: &'a Device) -> LayerInit<'a, R> {
    let ModelPlan { d_model, n_layers, block, .. } = &plan.model;
    let [std, std_out] = block.init.deviations(*d_model, *n_layers);
    LayerInit { rng, kind: block.init, std, std_out, device, dtype: device.settings().float_dtype.into() }
}

/// The encodings of a plan's model.
pub(crate) fn encoding(plan: &Plan, device: &Device) -> PositionalEncoding {
    let layers: Vec<LayerEncoding> =
        plan.model.every_layer(&plan.encoding).map(|layer| layer.layer_encoding()).collect();
    let geometry = plan.geometry();
    let others = plan.model.other_encodings().into_iter().map(|(name, other)| {
        let own = plan.model.kind_geometry(&name, &geometry);
        (name, other, own)
    });
    let others: Vec<(String, Encoding, Geometry)> = others.collect();
    PositionalEncoding::of_layers(&plan.encoding, &others, &layers, &geometry, (plan.seed, device))
}

/// The parts of a trunk whose initial values are drawn.
pub(super) struct TrunkParts {
    pub(super) embedding: Param<Tensor<2>>,
    pub(super) embedding_norm: Option<Norm>,
    pub(super) blocks: Vec<TransformerBlock>,
    pub(super) norm: Norm,
}

pub(super) fn embedding(plan: &Plan, init: &mut LayerInit<impl Rng>) -> Param<Tensor<2>> {
    let ModelPlan { d_model, vocab_size, block, .. } = &plan.model;
    normal_matrix([*vocab_size, *d_model], block.init.embedding_std(init.std), init)
}

pub(super) fn embedding_norm(plan: &Plan, init: &mut LayerInit<impl Rng>) -> Option<Norm> {
    plan.model.block.embedding_norm.then(|| norm(plan, init))
}

pub(super) fn norm(plan: &Plan, init: &mut LayerInit<impl Rng>) -> Norm {
    Norm::new(&plan.model.block, plan.model.d_model, init)
}

pub(super) fn blocks(plan: &Plan, init: &mut LayerInit<impl Rng>) -> Vec<TransformerBlock> {
    let model = &plan.model;
    let block = |layer| TransformerBlock::new(&model.block_of(layer), &model.layer_sizes(layer), layer, init);
    (0..model.n_layers).map(block).collect()
}

impl Trunk {
    /// Of parts that were drawn. In which order, decides the weights of a seed, so decoders and encoders keep their own.
    pub(super) fn of(plan: &Plan, device: &Device, drawn: TrunkParts) -> Trunk {
        let TrunkParts { embedding, embedding_norm, blocks, norm } = drawn;
        let (encoding, embedded) = (encoding(plan, device), EmbeddingSteps::of(plan));
        Trunk { embedding, embedding_norm, encoding, blocks, norm, embedded, implementation: Impl::Kernel }
    }

    /// The same, computing with this implementation.
    pub(super) fn with_implementation(self, implementation: Impl) -> Trunk {
        Trunk { implementation, ..self }
    }

    /// Embeddings of tokens from position `start` on, `[B, L, M]`, with what the encoding adds to them; one more where there is
    /// a row `[M]` to stand in front of every sequence.
    pub(super) fn embed(
        &self,
        first: Option<Tensor<1>>,
        tokens: TokenBatch,
        start: usize,
        pass: &ForwardContext,
    ) -> Tensor<3> {
        let TokenBatch { ids, batch, len, documents } = tokens;
        let table = self.embedding.val();
        let device = table.device();
        let mut x = embed(table, ids, [batch, len], self.implementation);
        if self.embedded.scale != 1.0 {
            x = x * self.embedded.scale;
        }
        if let Some(norm) = &self.embedding_norm {
            x = norm.forward(x, self.implementation);
        }
        if let Some(first) = first {
            let width = x.dims()[2];
            x = Tensor::cat(vec![first.reshape([1, 1, width]).expand([batch, 1, width]), x], 1);
        }
        let EmbeddingSteps { share, dropped, .. } = self.embedded;
        let drop = |x| dropout(x, Dropout { share, pass, place: EMBEDDINGS }, self.implementation);
        if dropped == EmbeddingDropout::Before {
            x = drop(x);
        }
        let options = (&device, x.dtype());
        let rows = match documents {
            Some(documents) => self.encoding.absolute_of_documents(documents, options, pass),
            None => self.encoding.absolute(start, x.dims()[1], options, pass),
        };
        match rows {
            Some(rows) if dropped == EmbeddingDropout::Before => x + rows,
            Some(rows) => drop(x + rows),
            None if dropped == EmbeddingDropout::After => drop(x),
            None => x,
        }
    }

    /// The rows `x` of embeddings after the last layer, `[B, L, M]`, before the norm; `adapt` says how these layers see, and
    /// `look` is shown every layer with what goes into it. Sequences may consist of documents.
    pub(super) fn each_layer(
        &self,
        x: Tensor<3>,
        documents: Option<&Arc<PackedDocuments>>,
        pass: &ForwardContext,
        adapt: impl Fn(AttentionContext) -> AttentionContext,
        mut look: impl FnMut(&TransformerBlock, &Tensor<3>, &AttentionContext),
    ) -> Tensor<3> {
        let (device, dtype) = (x.device(), x.dtype());
        let len = documents.map_or(x.dims()[1], |documents| documents.longest_len().max(1));
        let now = self.encoding.snapshot();
        let positions = |layer| now.attention_context(layer, [len, len], (&device, dtype), self.implementation, pass);
        let positions = self.encoding.every_layer(|layer| adapt(positions(layer)).with_documents(documents));
        let layers = self.blocks.iter().zip(positions);
        layers.fold(x, |x, (block, positions)| {
            look(block, &x, &positions);
            block.forward(x, &positions, pass, self.implementation)
        })
    }
}
