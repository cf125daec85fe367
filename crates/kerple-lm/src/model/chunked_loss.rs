//! Training on sequences that exceed the memory: chunk by chunk, where layers keep a state of fixed
//! size.
//!
//! ```text
//! forwards, outside autodiff:   the state of every layer before every chunk
//! backwards, from the last:     a chunk's loss and its gradient; the layers leave for the chunk before what it needs of this one
//! ```
//!
//! The gradients equal those of whole sequences up to rounding. KvCache is needed for one chunk and
//! for at most [`MOST_STATES`] states. With more chunks, states are kept before every few chunks
//! and recomputed from there when needed.

use super::{Decoder, TokenBatch, columns};
use burn::tensor::Tensor;
use kerple_burn::chunk::ChunkCarry;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::kv_cache::KvCache;
use kerple_burn::ops::loss::{self, LossTargets};
use kerple_burn::parameters;
use std::ops::Range;

/// Most states that are kept of one stretch of a sequence.
pub(crate) const MOST_STATES: usize = 64;

/// The loss of sequences that are computed in chunks.
struct ChunkedLoss<'a> {
    model: &'a Decoder,
    /// The model outside autodiff.
    plain: Decoder,
    tokens: TokenBatch<'a>,
    targets: LossTargets<'a>,
    share: f64,
    /// Positions of a chunk.
    each: usize,
    pass: ForwardContext,
    /// For each layer.
    behind: Vec<ChunkCarry>,
}

impl Decoder {
    /// [`Decoder::weighted_loss`] as a sum over chunks of `each` positions, which are handed to `learn` from the last to the first.
    /// It makes the gradient of each before it returns. Without dropout; models whose memory grows take everything at once.
    pub fn chunked_loss(
        &self,
        tokens: TokenBatch,
        targets: LossTargets,
        share: f64,
        (each, pass): (usize, &ForwardContext),
        learn: &mut dyn FnMut(Tensor<1>),
    ) {
        let (plain, pass) = (parameters::without_autodiff(self), pass.over(tokens.len));
        let caches = plain.kv_caches(tokens.batch);
        let behind: Vec<ChunkCarry> = caches.iter().map(|_| ChunkCarry::default()).collect();
        if caches.iter().zip(&behind).any(|(own, behind)| own.chunk(behind).is_none()) {
            return learn(self.weighted_loss(tokens, targets, share, &pass));
        }
        let chunks = ChunkedLoss { model: self, plain, tokens, targets, share, each, pass, behind };
        chunks.learn(0..tokens.len, caches, learn);
    }
}

impl ChunkedLoss<'_> {
    /// The chunks of a range of positions after those of `caches`, last chunk first.
    fn learn(&self, range: Range<usize>, caches: Vec<KvCache>, learn: &mut dyn FnMut(Tensor<1>)) {
        if range.len() <= self.each {
            return learn(self.loss(range, &caches));
        }
        let part = range.len().div_ceil(self.each).div_ceil(MOST_STATES) * self.each;
        let starts = || range.clone().step_by(part);
        let mut states = vec![caches];
        for start in starts().skip(1) {
            let mut caches = states.last().expect("the first is present").clone();
            for from in (start - part..start).step_by(self.each) {
                let ids = columns(self.tokens.ids, self.tokens.len, from..from + self.each);
                let tokens = TokenBatch { ids: &ids, batch: self.tokens.batch, len: self.each, documents: None };
                self.plain.extend_caches(tokens, &mut caches, &self.pass);
            }
            caches.iter_mut().for_each(KvCache::drop_noise);
            states.push(caches);
        }
        for (start, caches) in starts().zip(states).rev() {
            self.learn(start..range.end.min(start + part), caches, learn);
        }
    }

    /// The loss of one chunk.
    fn loss(&self, range: Range<usize>, caches: &[KvCache]) -> Tensor<1> {
        let ChunkedLoss { model, tokens: TokenBatch { ids, batch, len, .. }, targets, .. } = *self;
        let [ids, own] = [ids, targets.ids].map(|all| columns(all, len, range.clone()));
        let scored = targets.scored.map(|scored| columns(scored, len, range.clone()));
        let tokens = TokenBatch { ids: &ids, batch, len: range.len(), documents: None };
        let (mut x, positions) = model.embedded(tokens, range.start, &self.pass, &mut []);
        let layers = model.trunk.blocks.iter().zip(positions).zip(caches.iter().zip(&self.behind));
        for ((block, positions), (cache, behind)) in layers {
            let positions = positions.with_chunk(cache.chunk(behind));
            x = block.forward(x, &positions, &self.pass, model.trunk.implementation);
        }
        let targets = LossTargets { ids: &own, scored: scored.as_deref() };
        loss::loss(x, model.output(), targets, self.share, model.trunk.implementation)
    }
}
