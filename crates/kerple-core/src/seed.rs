//! Independent random streams of one seed, one per purpose.
//!
//! A stream is a ChaCha8 generator whose key *is* the coordinates of a draw (seed, place, purpose),
//! so draws of one use change nothing for another. A model has the same initial weights under every
//! encoding, and an encoding the same values in a model of any width. No state is carried along; a
//! stream is created where it is needed.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The seed of a run whose run file sets none: the first of the five seeds that the KERPLE paper trains with.
pub const DEFAULT_SEED: u64 = 1235;

/// What the numbers of a stream are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Initial weights of a model.
    Weights,
    /// Initial values of a positional encoding.
    Encoding,
    /// Order of the training data.
    Order,
    /// Noise of a training step: dropout, stochastic encodings.
    Noise,
    /// Text that an evaluation scores.
    Evaluation,
    /// Tokens drawn by a trained model.
    Sampling,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Purpose; 6] =
        [Purpose::Weights, Purpose::Encoding, Purpose::Order, Purpose::Noise, Purpose::Evaluation, Purpose::Sampling];

    /// The part of the key; numbers are never reused, or seeds would change their meaning.
    ///
    /// Numbers below 16 belong to the windows of `kerple-data`, whose keys have the same layout.
    fn number(self) -> u64 {
        match self {
            Purpose::Weights => 16,
            Purpose::Encoding => 17,
            Purpose::Order => 18,
            Purpose::Noise => 19,
            Purpose::Evaluation => 20,
            Purpose::Sampling => 21,
        }
    }
}

/// The stream of `seed` for one purpose.
pub fn stream(seed: u64, purpose: Purpose) -> ChaCha8Rng {
    stream_at(seed, purpose, [0, 0])
}

/// The stream of `seed` for one purpose at one place, such as (step, row) or (parameter, layer).
///
/// Places are independent of each other; `[0, 0]` is [`stream`].
pub fn stream_at(seed: u64, purpose: Purpose, place: [u64; 2]) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, number) in key.chunks_exact_mut(8).zip([seed, place[0], place[1], purpose.number()]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A draw from N(0, 1) by the Box-Muller transform.
pub fn standard_normal(rng: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use std::collections::HashSet;

    #[test]
    fn every_purpose_place_and_seed_has_a_stream_of_its_own() {
        let mut seen = HashSet::new();
        for seed in [0, 1, 1235, u64::MAX] {
            for purpose in Purpose::ALL {
                for place in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                    assert!(seen.insert(stream_at(seed, purpose, place).next_u64()), "{seed} {purpose:?} {place:?}");
                }
            }
        }
        assert_eq!(stream(5, Purpose::Noise), stream_at(5, Purpose::Noise, [0, 0]));
    }

    #[test]
    fn a_seed_keeps_its_meaning() {
        let first = Purpose::ALL.map(|purpose| stream(1235, purpose).next_u64());
        assert_eq!(first, FIRST_OF_1235, "runs with a seed would no longer be repeatable");
    }

    #[rustfmt::skip]
    const FIRST_OF_1235: [u64; 6] = [
        13_042_776_108_537_379_859, 4_499_962_980_488_690_786, 16_979_499_085_980_435_361,
        12_786_451_562_970_963_058, 8_261_882_574_089_009_384, 7_632_517_302_286_786_045,
    ];
}
