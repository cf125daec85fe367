//! The decoder: token embeddings, blocks with a positional encoding, and an output projection,
//! built from the plan.
//!
//! An [`Encoder`] shares the same [`Trunk`].

mod chunked_loss;
mod classifier;
mod decode;
mod encoder;
mod transducer;
mod trunk;

pub(crate) use chunked_loss::MOST_STATES;
pub use classifier::Classifier;
pub use decode::Sequence;
pub use encoder::Encoder;
pub use transducer::Transducer;
pub use trunk::Trunk;
use trunk::TrunkParts;
pub(crate) use trunk::encoding;

use crate::error::{Error, Result};
use crate::plan::{ModelPlan, Plan};
use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use kerple_burn::attention_context::AttentionContext;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::kv_cache::KvCache;
use kerple_burn::layers::{SelfAttention, normal_matrix, shortened, with_short_matrices};
use kerple_burn::ops::attention::AttentionScores;
use kerple_burn::ops::loss::{self, LmHeadTensors, LossTargets};
use kerple_burn::parameters::{ParamGroupOverrides, ParamGroups};
use kerple_core::attention::PackedDocuments;
use kerple_core::seed::{Purpose, stream};

use std::ops::Range;
use std::sync::Arc;

/// A decoder with its positional encoding.
#[derive(Module, Debug)]
pub struct Decoder {
    /// Everything before the output projection.
    pub trunk: Trunk,
    /// Output projection, `[M, V]`; the embedding serves when it is tied.
    pub head: Option<Param<Tensor<2>>>,
    /// Added to the logits, `[V]`, where the plan has it; starts at 0.
    pub head_bias: Option<Param<Tensor<1>>>,
}

impl ParamGroupOverrides for Decoder {
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        self.trunk.override_param_groups(groups);
    }
}

/// Most positions that [`Decoder::extend`] takes through the layers at once, in all sequences together.
pub(crate) const MOST_PREFILLED: usize = 4096;

impl Decoder {
    /// A fresh model whose matrices are initialised by the plan's
    /// [`InitKind`](kerple_burn::plan::InitKind).
    ///
    /// The same seed gives every encoding the same initial weights: weights and encoding draw from streams of their own.
    pub fn new(plan: &Plan, device: &Device) -> Decoder {
        Decoder::made(plan, true, device)
    }

    /// The same with zeros in the place of every matrix, for weights that are read next: nothing is drawn.
    pub fn empty(plan: &Plan, device: &Device) -> Decoder {
        Decoder::made(plan, false, device)
    }

    fn made(plan: &Plan, drawn: bool, device: &Device) -> Decoder {
        let (ModelPlan { d_model, block, .. }, rows) = (&plan.model, plan.model.n_logits());
        let mut rng = stream(plan.seed, Purpose::Weights);
        let mut init = trunk::init(plan, drawn.then_some(&mut rng), device);
        let embedding = trunk::embedding(plan, &mut init);
        let blocks = trunk::blocks(plan, &mut init);
        let head = (!block.tie_embeddings).then(|| normal_matrix([*d_model, rows], init.std, &mut init));
        let head_bias = block.lm_head_bias.then(|| init.zeros(rows));
        let embedding_norm = trunk::embedding_norm(plan, &mut init);
        let norm = trunk::norm(plan, &mut init);
        let trunk = Trunk::of(plan, device, TrunkParts { embedding, embedding_norm, blocks, norm });
        Decoder { trunk, head, head_bias }
    }

    /// The same model, computing with this implementation.
    pub fn with_implementation(self, implementation: Impl) -> Decoder {
        Decoder { trunk: self.trunk.with_implementation(implementation), ..self }
    }

    /// The same model with its matrices held as `bf16`, in half the memory: those of the layers, the embedding and the output
    /// projection. To generate with, where a token takes the time in which they are read.
    pub fn with_short_matrices(self) -> Decoder {
        let Decoder { mut trunk, head, head_bias } = self;
        trunk.blocks = trunk.blocks.into_iter().map(with_short_matrices).collect();
        trunk.embedding = shortened(trunk.embedding);
        Decoder { trunk, head: head.map(shortened), head_bias }
    }
}

/// Token ids of `[batch, len]` sequences.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// Row-major ids.
    pub ids: &'a [u32],
    /// Sequences, B.
    pub batch: usize,
    /// Tokens a sequence, L.
    pub len: usize,
    /// Documents that the sequences consist of, which do not attend to each other; each is one document when absent.
    pub documents: Option<&'a Arc<PackedDocuments>>,
}

impl Decoder {
    /// Refuses lengths beyond what the encoding is defined for.
    ///
    /// # Errors
    /// The length, the limit and what to use instead.
    pub fn check_len(&self, len: usize) -> Result<()> {
        match self.trunk.encoding.longest() {
            Some((longest, encoding)) if len > longest => Err(Error::refused(
                format!("{} is defined for {longest} positions, {len} were requested", encoding.label()),
                match encoding.randomized {
                    Some(most) if most == longest => "use a shorter length, or train with a larger `randomized`",
                    _ => "use a shorter length, or an encoding that extrapolates: `kerple describe` lists them",
                },
            )),
            _ => Ok(()),
        }
    }

    /// The residual stream after the last layer, `[B, L, M]`, before the final norm.
    pub fn hidden(&self, tokens: TokenBatch, pass: &ForwardContext) -> Tensor<3> {
        let x = self.trunk.embed(None, tokens, 0, pass);
        self.trunk.each_layer(x, tokens.documents, pass, |positions| positions, |_, _, _| {})
    }

    /// The weight of every key for every query in each layer, `[B, H, L, L]`, by the definition: for short sequences.
    pub fn attention_weights(&self, tokens: TokenBatch, pass: &ForwardContext) -> Vec<Tensor<4>> {
        self.in_layers(tokens, pass, |attention, x, positions| attention.weights(x, positions))
    }

    /// What is found of the attention of each layer, given the layer's input.
    fn in_layers<R>(
        &self,
        tokens: TokenBatch,
        pass: &ForwardContext,
        find: impl Fn(&SelfAttention, Tensor<3>, &AttentionContext) -> R,
    ) -> Vec<R> {
        let mut found = Vec::with_capacity(self.trunk.blocks.len());
        self.trunk.each_layer(
            self.trunk.embed(None, tokens, 0, pass),
            tokens.documents,
            pass,
            |positions| positions,
            |block, x, positions| found.push(find(&block.attention, x.clone(), positions)),
        );
        found
    }

    fn output(&self) -> LmHeadTensors {
        let (weight, tied) = match &self.head {
            Some(head) => (head.val(), false),
            None => (self.trunk.embedding.val(), true),
        };
        LmHeadTensors { norm: self.trunk.norm.tensors(), weight, tied, bias: self.head_bias.as_ref().map(Param::val) }
    }

    /// Negative log-likelihood in nats of each target, `[B, L]`.
    pub fn nll(&self, tokens: TokenBatch, targets: &[u32], pass: &ForwardContext) -> Tensor<2> {
        self.losses(tokens, LossTargets { ids: targets, scored: None }, pass)
    }

    /// The same where some targets are not scored; theirs is 0.
    pub fn losses(&self, tokens: TokenBatch, targets: LossTargets, pass: &ForwardContext) -> Tensor<2> {
        loss::losses(self.hidden(tokens, pass), self.output(), targets, self.trunk.implementation)
    }

    /// The mean of [`Decoder::nll`], `[1]`: what training minimises.
    pub fn loss(&self, tokens: TokenBatch, targets: &[u32], pass: &ForwardContext) -> Tensor<1> {
        let targets = LossTargets { ids: targets, scored: None };
        self.weighted_loss(tokens, targets, loss::mean_share(targets), pass)
    }

    /// `share` times the sum of [`Decoder::losses`], `[1]`: the part of a batch's mean that these sequences bring when the
    /// share is one over all the batch's scored targets.
    pub fn weighted_loss(
        &self,
        tokens: TokenBatch,
        targets: LossTargets,
        share: f64,
        pass: &ForwardContext,
    ) -> Tensor<1> {
        loss::loss(self.hidden(tokens, pass), self.output(), targets, share, self.trunk.implementation)
    }

    /// [`Decoder::nll`] as numbers. Where layers keep a state of fixed size, long sequences are taken in pieces, and what is
    /// held does not grow with their length; documents are taken at once.
    pub fn token_losses(&self, tokens: TokenBatch, targets: &[u32], pass: &ForwardContext) -> Vec<f64> {
        let TokenBatch { ids, batch, len, documents } = tokens;
        let most = (MOST_PREFILLED / batch.max(1)).max(1);
        if len <= most || documents.is_some() || !self.trunk.blocks.iter().all(|block| block.attention.is_linear()) {
            return self.nll(tokens, targets, pass).into_data().iter::<f64>().collect();
        }
        let (mut caches, pass) = (self.kv_caches(batch), pass.over(len));
        let mut scored = vec![0.0; batch * len];
        for from in (0..len).step_by(most) {
            let count = most.min(len - from);
            let [ids, targets] = [ids, targets].map(|all| columns(all, len, from..from + count));
            let x =
                self.extend_caches(TokenBatch { ids: &ids, batch, len: count, documents: None }, &mut caches, &pass);
            let losses =
                loss::losses(x, self.output(), LossTargets { ids: &targets, scored: None }, self.trunk.implementation);
            for (at, loss) in losses.into_data().iter::<f64>().enumerate() {
                scored[at / count * len + from + at % count] = loss;
            }
        }
        scored
    }

    /// Logits of every position, `[B, L, V]`: for short sequences and tests.
    pub fn logits(&self, tokens: TokenBatch, pass: &ForwardContext) -> Tensor<3> {
        loss::logits(self.hidden(tokens, pass), self.output(), self.trunk.implementation)
    }

    /// Logits at some of the `B L` tokens, counted row by row, `[places, V]`.
    ///
    /// # Panics
    /// When there are not as many tokens.
    pub fn logits_at(&self, tokens: TokenBatch, places: &[usize], pass: &ForwardContext) -> Tensor<2> {
        let x = self.hidden(tokens, pass);
        let [batch, len, width] = x.dims();
        let index: Vec<i64> = places.iter().map(|place| *place as i64).collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [places.len()]), &x.device());
        let rows = x.reshape([batch * len, width]).select(0, index);
        loss::logits(rows.unsqueeze_dim(0), self.output(), self.trunk.implementation).squeeze_dim(0)
    }

    /// Scores of the last token's queries in every layer, `[B, H, 1, L]`; `None` where attention is linear.
    pub fn last_scores(&self, tokens: TokenBatch, pass: &ForwardContext) -> Vec<Option<AttentionScores>> {
        self.in_layers(tokens, pass, |attention, x, positions| attention.last_scores(x, positions))
    }

    /// Logits of the token after the last of `tokens`, `[B, V]`, given the KV `caches` of the layers,
    /// to which `tokens` are added.
    ///
    /// Long sequences are processed in chunks: beyond the caches, memory does not grow with their
    /// length. One pass serves a whole sequence; encodings that draw for all positions together
    /// need the final number of positions, see [`ForwardContext::over`].
    ///
    /// # Panics
    /// When there are no tokens, or `caches` were created for another number of sequences.
    pub fn extend(&self, tokens: TokenBatch, caches: &mut [KvCache], pass: &ForwardContext) -> Tensor<2> {
        let TokenBatch { ids, batch, len, documents } = tokens;
        assert!(documents.is_none(), "a KV cache holds one document per sequence");
        assert!(len > 0, "the prompt has no token to continue from");
        let most = (MOST_PREFILLED / batch.max(1)).max(1);
        let pieces = (0..len).step_by(most).map(|from| {
            let ids = columns(ids, len, from..len.min(from + most));
            self.extend_caches(TokenBatch { ids: &ids, batch, len: ids.len() / batch, documents: None }, caches, pass)
        });
        let x = pieces.last().expect("there is a token");
        let last = x.dims()[1] - 1;
        loss::logits(x.narrow(1, last, 1), self.output(), self.trunk.implementation).squeeze_dim(1)
    }

    /// Tokens after `before` positions as they enter the layers, with each layer's input about
    /// their positions; tables are kept in KV caches, where there are some.
    fn embedded(
        &self,
        tokens: TokenBatch,
        before: usize,
        pass: &ForwardContext,
        caches: &mut [KvCache],
    ) -> (Tensor<3>, Vec<AttentionContext>) {
        let x = self.trunk.embed(None, tokens, before, pass);
        let (lens, device, dtype) = ([tokens.len, before + tokens.len], x.device(), x.dtype());
        let (now, implementation) = (self.trunk.encoding.snapshot(), self.trunk.implementation);
        let positions = |layer: usize| match caches.get_mut(layer) {
            Some(cache) => now.context_after(layer, lens, (&device, dtype), (implementation, pass), cache),
            None => now.attention_context(layer, lens, (&device, dtype), implementation, pass),
        };
        (x, self.trunk.encoding.every_layer(positions).collect())
    }

    /// The residual stream of new positions after the last layer, `[B, L, M]`.
    fn extend_caches(&self, tokens: TokenBatch, caches: &mut [KvCache], pass: &ForwardContext) -> Tensor<3> {
        let (x, positions) = self.embedded(tokens, caches.first().map_or(0, KvCache::len), pass, caches);
        let layers = self.trunk.blocks.iter().zip(&positions).zip(caches);
        layers.fold(x, |x, ((block, positions), cache)| block.extend(x, positions, cache, self.trunk.implementation))
    }

    /// Empty KV caches, one per layer, for `batch` sequences.
    pub fn kv_caches(&self, batch: usize) -> Vec<KvCache> {
        self.trunk.blocks.iter().map(|block| block.attention.kv_cache(batch, self.trunk.implementation)).collect()
    }
}

/// Some of the columns of rows of `len` values, row by row.
fn columns<T: Copy>(rows: &[T], len: usize, range: Range<usize>) -> Vec<T> {
    rows.chunks_exact(len).flat_map(|row| &row[range.clone()]).copied().collect()
}
