//! The context of a forward pass besides its input: its position in the sequence, and its random
//! draws.

use kerple_core::seed::{Purpose, stream_at};
use rand_chacha::ChaCha8Rng;

/// One forward pass of a model.
///
/// Whatever is drawn in a pass (dropout, stochastic encodings, randomized positions) is a function of the seed, the step,
/// the sequence's row in the whole batch and the place in the model, so neither the number of threads nor how a batch is
/// split changes it, and a resumed run draws what an uninterrupted one would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardContext {
    /// Seed of the run.
    pub seed: u64,
    /// Updates done before this pass.
    pub step: u64,
    /// Row in the whole batch of the first sequence of this pass.
    pub first_row: u64,
    /// Row from which on sequences share what is drawn for all of them: 0 where that is the whole batch.
    pub shared_from: u64,
    /// Whether the pass trains: dropout is off otherwise.
    pub train: bool,
    /// Positions of the whole sequence where a pass processes it in chunks, as decoding does, or of
    /// the longest sequence of a batch in micro-batches; `None`: the longest is here, and processed
    /// at once. Draws for all positions together are for this many.
    pub span: Option<usize>,
}

/// Place of the embeddings' dropout.
pub const EMBEDDINGS: u64 = 1 << 32;
/// Place of the dropout of the first layer's attention; its feed-forward branch has the next one, then comes the next layer.
pub const BRANCHES: u64 = EMBEDDINGS + 1;
/// Place of the randomized positions at the embeddings; those of the first layer and of the others follow.
pub const POSITIONS: u64 = 2 << 32;

/// Place of a stochastic code that all layers share; those of the first layer and of the others follow.
pub const CODES: u64 = 3 << 32;
/// Place of the gate's noise in the first layer; those of the others follow.
pub const GATES: u64 = 4 << 32;
/// Place of the random features of the first layer; those of the others follow.
pub const FEATURES: u64 = 5 << 32;
/// Place of the dropout of hidden values in the first layer; those of the others follow.
pub const HIDDEN: u64 = 6 << 32;

/// The step of evaluation passes: no update has this number.
const EVALUATION: u64 = u64::MAX;

impl ForwardContext {
    /// A pass of the update after `step` others.
    pub const fn training(seed: u64, step: u64) -> ForwardContext {
        ForwardContext { seed, step, first_row: 0, shared_from: 0, train: true, span: None }
    }

    /// A pass that only measures; always the same draws for the same seed.
    pub const fn evaluation(seed: u64) -> ForwardContext {
        ForwardContext { seed, step: EVALUATION, first_row: 0, shared_from: 0, train: false, span: None }
    }

    /// The same pass for sequences further down the batch.
    pub fn at_row(self, row: usize) -> ForwardContext {
        ForwardContext { first_row: self.first_row + row as u64, ..self }
    }

    /// The same pass, sharing no draw with the rows before it.
    pub fn by_itself(self) -> ForwardContext {
        ForwardContext { shared_from: self.first_row, ..self }
    }

    /// The same pass as one chunk, or one micro-batch, of sequences the longest of which has this many positions.
    pub fn over(self, span: usize) -> ForwardContext {
        ForwardContext { span: Some(span), ..self }
    }

    /// The stream that all sequences share at a `place`, however a batch is split.
    pub fn shared_noise(&self, place: u64) -> ChaCha8Rng {
        // counted down from the end, where no row is
        ForwardContext { first_row: u64::MAX - self.shared_from, ..*self }.noise(0, place)
    }

    /// The stream for the sequence `row` of this pass at a `place` in the model, a number that each use has to itself.
    pub fn noise(&self, row: usize, place: u64) -> ChaCha8Rng {
        let mut stream = stream_at(self.seed, Purpose::Noise, [self.step, self.first_row + row as u64]);
        stream.set_stream(place);
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use std::collections::HashSet;

    #[test]
    fn every_seed_step_row_and_place_draws_for_itself() {
        let mut seen = HashSet::new();
        for seed in [0, 1] {
            for pass in
                [ForwardContext::training(seed, 0), ForwardContext::training(seed, 1), ForwardContext::evaluation(seed)]
            {
                for (row, place) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    assert!(seen.insert(pass.noise(row, place).next_u64()), "{pass:?} {row} {place}");
                }
                assert!(seen.insert(pass.shared_noise(0).next_u64()), "{pass:?}, shared");
            }
        }
    }

    #[test]
    fn parts_of_a_batch_draw_what_the_whole_does() {
        let (whole, part) = (ForwardContext::training(3, 9), ForwardContext::training(3, 9).at_row(4).at_row(1));
        assert_eq!(whole.noise(7, 2), part.noise(2, 2));
        assert_eq!(whole.shared_noise(2), part.shared_noise(2));
        assert_ne!(whole.shared_noise(2), part.by_itself().shared_noise(2));
        assert_eq!(ForwardContext::evaluation(3).noise(1, 1), ForwardContext::evaluation(3).noise(1, 1));
    }
}
