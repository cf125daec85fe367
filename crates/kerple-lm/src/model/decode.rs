//! Decoding of sequences of different lengths, token by token, and the model's predictions along a
//! sequence.
//!
//! A sequence is computed at its current length, never at the length it may reach. Where positions
//! of earlier tokens depend on the length (RoPE scaling by the length, randomized positions), the
//! KV cache of a shorter sequence cannot be used: the whole sequence is computed again for each
//! token, and predictions equal those of an evaluation at that length. A cache of keys before their
//! rotation (Peng et al. 2023, arXiv:2309.00071, section 3.4) would save the products. But it would
//! keep what the layers below computed from the old positions, so a text would depend on how it
//! reached its length.

use super::{Decoder, MOST_PREFILLED, TokenBatch};
use burn::tensor::Tensor;
use kerple_burn::attention_context::AttentionContext;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::kv_cache::KvCache;
use kerple_burn::layers::CachedSequence;
use kerple_burn::ops::loss::{self, LossTargets, TopK};

/// A sequence that grows: its tokens, and what the layers remember of them.
#[derive(Clone, Debug)]
pub struct Sequence {
    ids: Vec<u32>,
    caches: Vec<KvCache>,
    pass: ForwardContext,
}

impl Sequence {
    /// Tokens so far.
    pub fn len(&self) -> usize {
        self.caches.first().map_or(0, KvCache::len)
    }

    /// Whether the sequence is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Decoder {
    /// An empty sequence; what its encoding draws, it draws from `seed`.
    pub fn new_sequence(&self, seed: u64) -> Sequence {
        Sequence { ids: Vec::new(), caches: self.kv_caches(1), pass: ForwardContext::evaluation(seed).over(0) }
    }

    /// Adds tokens; returns the logits of the token after them, `[V]`.
    ///
    /// # Panics
    /// When the sequence is empty.
    pub fn decode(&self, ids: &[u32], sequence: &mut Sequence) -> Vec<f32> {
        if !self.can_append(ids.len(), sequence) {
            sequence.caches = self.kv_caches(1);
        }
        let new = sequence.len();
        let Sequence { ids: all, caches, pass } = sequence;
        all.extend(ids);
        *pass = pass.over(all.len());
        numbers(self.extend(
            TokenBatch { ids: &all[new..], batch: 1, len: all.len() - new, documents: None },
            caches,
            pass,
        ))
    }

    /// Whether earlier tokens keep their positions when so many are added.
    fn can_append(&self, count: usize, sequence: &Sequence) -> bool {
        let len = sequence.len();
        len == 0 || self.trunk.encoding.keeps_positions([len, len + count])
    }

    /// Adds one token to each of several sequences, whose lengths may differ; returns the logits after it of each, `[V]`. The
    /// products with the layers' matrices are made for all of them together.
    ///
    /// # Panics
    /// When there are not as many tokens as sequences, or none.
    pub fn decode_batch(&self, ids: &[u32], sequence: &mut [&mut Sequence]) -> Vec<Vec<f32>> {
        assert!(!ids.is_empty() && ids.len() == sequence.len(), "one token per sequence");
        if !sequence.iter().all(|one| self.can_append(1, one)) {
            return ids.iter().zip(sequence).map(|(id, one)| self.decode(&[*id], one)).collect();
        }
        let begin = |(id, one): (&u32, &mut &mut Sequence)| {
            let before = one.len();
            let Sequence { ids, caches, pass } = &mut **one;
            ids.push(*id);
            *pass = pass.over(ids.len());
            self.embedded(TokenBatch { ids: &[*id], batch: 1, len: 1, documents: None }, before, pass, caches)
        };
        let (rows, positions): (Vec<Tensor<3>>, Vec<Vec<AttentionContext>>) =
            ids.iter().zip(sequence.iter_mut()).map(begin).unzip();
        let mut x = Tensor::cat(rows, 0);
        for (layer, block) in self.trunk.blocks.iter().enumerate() {
            let places = positions.iter().zip(sequence.iter_mut());
            let places = places
                .map(|(positions, one)| CachedSequence { context: &positions[layer], cache: &mut one.caches[layer] })
                .collect();
            x = block.extend_each(x, places, self.trunk.implementation);
        }
        let logits = loss::logits(x, self.output(), self.trunk.implementation);
        let vocab = logits.dims()[2];
        numbers(logits).chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }

    /// What the model predicts along one sequence: the loss of every token but the first, with the `count` likeliest in its
    /// place, and the logits of the token after the last, `[V]`. The logits of all positions are never held together.
    ///
    /// The sequence begins `sequence`, which then holds it if it is to be kept; whether it is changes no number. Layers of softmax
    /// attention take it whole, and the losses have the bits of [`Decoder::token_losses`].
    ///
    /// # Panics
    /// When there are no tokens, or `sequence` has some already.
    pub fn score_prompt(
        &self,
        ids: &[u32],
        count: usize,
        sequence: &mut Sequence,
        keep: bool,
    ) -> (TopK<f64>, Vec<f32>) {
        assert!(sequence.is_empty(), "the sequence has begun");
        let len = ids.len();
        let pass = sequence.pass.over(len);
        if !self.trunk.blocks.iter().all(|block| block.attention.is_linear()) {
            let x = self.hidden(TokenBatch { ids, batch: 1, len, documents: None }, &pass);
            let found = self.predicted(x.clone(), ids, 0..len, count);
            let last = numbers(loss::logits(x.narrow(1, len - 1, 1), self.output(), self.trunk.implementation));
            if keep {
                self.decode(ids, sequence);
            }
            return (found, last);
        }
        (sequence.ids, sequence.pass) = (ids.to_vec(), pass);
        let (mut all, mut last) = (TopK::default(), Vec::new());
        for from in (0..len).step_by(MOST_PREFILLED) {
            let piece = from..len.min(from + MOST_PREFILLED);
            let tokens = TokenBatch { ids: &ids[piece.clone()], batch: 1, len: piece.len(), documents: None };
            let x = self.extend_caches(tokens, &mut sequence.caches, &sequence.pass);
            if piece.end == len {
                last = numbers(loss::logits(
                    x.clone().narrow(1, piece.len() - 1, 1),
                    self.output(),
                    self.trunk.implementation,
                ));
            }
            let TopK { target_nll, ids, nll } = self.predicted(x, ids, piece, count);
            all.target_nll.extend(target_nll);
            all.ids.extend(ids);
            all.nll.extend(nll);
        }
        assert!(!last.is_empty(), "the prompt has no token to continue from");
        (all, last)
    }

    /// Predictions of the tokens after those of a chunk of a sequence, where such tokens exist,
    /// given its hidden rows.
    fn predicted(&self, x: Tensor<3>, ids: &[u32], piece: std::ops::Range<usize>, count: usize) -> TopK<f64> {
        let end = ids.len().min(piece.end + 1);
        let targets = &ids[piece.start + 1..end];
        if targets.is_empty() {
            return TopK::default();
        }
        let x = x.narrow(1, 0, targets.len());
        loss::likeliest(x, self.output(), LossTargets { ids: targets, scored: None }, count, self.trunk.implementation)
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
