//! The GPT-NeoX decoder: pre-norm, sequential residuals, untied output projection without bias.

use crate::error::{Error, Result};
use crate::plan::{ModelPlan, Plan};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};
use kerple::seed::{Purpose, stream};
use kerple_burn::cache::Cache;
use kerple_burn::composed;
use kerple_burn::layers::{self, Attention, LayerNorm, Mlp, normal_matrix};
use kerple_burn::parameters::{Describe, Groups};
use kerple_burn::positions::{PositionalEncoding, Positions};

/// One layer: attention, then feed-forward, each with its own norm and residual connection.
#[derive(Module, Debug)]
pub struct Block {
    /// Attention.
    pub attention: Attention,
    /// Feed-forward.
    pub mlp: Mlp,
}

/// A decoder with its positional encoding.
#[derive(Module, Debug)]
pub struct Decoder {
    /// Token embeddings, `[V, M]`.
    pub embedding: Param<Tensor<2>>,
    /// The encoding, shared by all layers.
    pub encoding: PositionalEncoding,
    /// Layers.
    pub blocks: Vec<Block>,
    /// Before the output projection.
    pub norm: LayerNorm,
    /// Output projection, `[M, V]`.
    pub head: Param<Tensor<2>>,
}

impl Describe for Decoder {
    fn describe(&self, groups: &mut Groups) {
        self.encoding.describe(groups);
    }
}

/// Standard deviation of initial weights.
const STD: f64 = 0.02;

/// Most positions that [`Decoder::extend`] takes through the layers at once, in all sequences together.
const MOST_PREFILLED: usize = 4096;

impl Decoder {
    /// A fresh model. Weights are N(0, 0.02^2), those that write to the residual stream N(0, (0.02 / sqrt(2 layers))^2).
    ///
    /// The same seed gives every encoding the same initial weights: weights and encoding draw from streams of their own.
    pub fn new(plan: &Plan, device: &Device) -> Decoder {
        let ModelPlan { n_layers, n_heads, d_model, d_hidden, vocab_size, .. } = plan.model;
        let mut rng = stream(plan.seed, Purpose::Weights);
        let std = [STD, STD / (2.0 * n_layers as f64).sqrt()];
        let embedding = normal_matrix([vocab_size, d_model], STD, &mut rng, device);
        let blocks = (0..n_layers)
            .map(|_| Block {
                attention: Attention::new(d_model, n_heads, std, &mut rng, device),
                mlp: Mlp::new(d_model, d_hidden, std, &mut rng, device),
            })
            .collect();
        let head = normal_matrix([d_model, vocab_size], STD, &mut rng, device);
        let encoding = PositionalEncoding::new(&plan.encoding, &plan.geometry(), plan.seed, device);
        Decoder { embedding, encoding, blocks, norm: LayerNorm::new(d_model, device), head }
    }
}

/// Token ids of `[batch, len]` sequences.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Row-major ids.
    pub ids: &'a [u32],
    /// Sequences, B.
    pub batch: usize,
    /// Tokens a sequence, L.
    pub len: usize,
}

impl Decoder {
    /// Refuses lengths beyond what the encoding is defined for.
    ///
    /// # Errors
    /// The length, the limit and what to use instead.
    pub fn check_len(&self, len: usize) -> Result<()> {
        match self.encoding.encoding().longest(self.encoding.geometry()) {
            Some(longest) if len > longest => Err(Error::refused(
                format!(
                    "{} is defined for {longest} positions, {len} were asked for",
                    self.encoding.encoding().label()
                ),
                "use a shorter length, or an encoding that extrapolates: `kerple describe` lists them",
            )),
            _ => Ok(()),
        }
    }

    /// The residual stream after the last layer, `[B, L, M]`, before the final norm.
    pub fn hidden(&self, tokens: Tokens) -> Tensor<3> {
        let embed = |ids: &[u32], shape| layers::embed(self.embedding.val(), ids, shape);
        self.stream(tokens, embed, |block, x, positions| block.mlp.forward(block.attention.forward(x, positions)))
    }

    /// [`Decoder::loss`] by composed operations only: the definition.
    pub fn composed_loss(&self, tokens: Tokens, targets: &[u32]) -> Tensor<1> {
        let embed = |ids: &[u32], shape| composed::embed(self.embedding.val(), ids, shape);
        let layer =
            |block: &Block, x, positions: &Positions| block.mlp.composed(block.attention.composed(x, positions));
        let x = self.norm.composed(self.stream(tokens, embed, layer));
        composed::cross_entropy(x, self.head.val(), targets).mean()
    }

    fn stream(
        &self,
        Tokens { ids, batch, len }: Tokens,
        embed: impl Fn(&[u32], [usize; 2]) -> Tensor<3>,
        layer: impl Fn(&Block, Tensor<3>, &Positions) -> Tensor<3>,
    ) -> Tensor<3> {
        let device = self.embedding.val().device();
        let positions = self.encoding.positions(len, len, (&device, DType::F32));
        let mut x = embed(ids, [batch, len]);
        if let Some(rows) = self.encoding.absolute(0, len, &device) {
            x = x + rows;
        }
        self.blocks.iter().fold(x, |x, block| layer(block, x, &positions))
    }

    /// Negative log-likelihood in nats of each target, `[B, L]`.
    pub fn nll(&self, tokens: Tokens, targets: &[u32]) -> Tensor<2> {
        layers::cross_entropy(self.hidden(tokens), &self.norm, self.head.val(), targets)
    }

    /// The mean of [`Decoder::nll`], `[1]`: what training minimises.
    pub fn loss(&self, tokens: Tokens, targets: &[u32]) -> Tensor<1> {
        layers::mean_cross_entropy(self.hidden(tokens), &self.norm, self.head.val(), targets)
    }

    /// Logits of every position, `[B, L, V]`: for short sequences and tests.
    pub fn logits(&self, tokens: Tokens) -> Tensor<3> {
        self.project(self.hidden(tokens))
    }

    /// Logits `[B, L, V]` of the residual stream after the last layer.
    pub fn project(&self, hidden: Tensor<3>) -> Tensor<3> {
        let x = self.norm.composed(hidden);
        let [batch, len, width] = x.dims();
        let head = self.head.val();
        let vocab = head.dims()[1];
        x.reshape([batch * len, width]).matmul(head).reshape([batch, len, vocab])
    }

    /// Logits of the token after the last of `tokens`, `[B, V]`, behind all that `memory` holds; it then holds `tokens` too.
    ///
    /// Long sequences are taken in pieces: beyond `memory`, what is held does not grow with their length.
    ///
    /// # Panics
    /// When there is no token, or `memory` was made for another number of sequences.
    pub fn extend(&self, tokens: Tokens, memory: &mut [Cache]) -> Tensor<2> {
        let Tokens { ids, batch, len } = tokens;
        assert!(len > 0, "there is no token to go on from");
        let most = (MOST_PREFILLED / batch.max(1)).max(1);
        let piece = |from: usize| -> Vec<u32> {
            let to = len.min(from + most);
            ids.chunks_exact(len).flat_map(|row| &row[from..to]).copied().collect()
        };
        let pieces = (0..len).step_by(most).map(|from| {
            let ids = piece(from);
            self.remember(Tokens { ids: &ids, batch, len: ids.len() / batch }, memory)
        });
        let x = pieces.last().expect("there is a token");
        let last = x.dims()[1] - 1;
        self.project(x.narrow(1, last, 1)).squeeze_dim(1)
    }

    /// The residual stream of new positions after the last layer, `[B, L, M]`.
    fn remember(&self, Tokens { ids, batch, len }: Tokens, memory: &mut [Cache]) -> Tensor<3> {
        let device = self.embedding.val().device();
        let before = memory.first().map_or(0, Cache::len);
        let positions = self.encoding.positions(len, before + len, (&device, DType::F32));
        let mut x = layers::embed(self.embedding.val(), ids, [batch, len]);
        if let Some(rows) = self.encoding.absolute(before, len, &device) {
            x = x + rows;
        }
        for (block, memory) in self.blocks.iter().zip(memory) {
            x = block.mlp.forward(block.attention.extend(x, &positions, memory));
        }
        x
    }

    /// Empty memories, one a layer, for `batch` sequences.
    pub fn caches(&self, batch: usize) -> Vec<Cache> {
        let geometry = self.encoding.geometry();
        self.blocks.iter().map(|_| Cache::new(batch, geometry.heads, geometry.head_dim)).collect()
    }
}
