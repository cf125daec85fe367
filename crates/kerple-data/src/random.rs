//! Draws for music and generated data, whose streams are keyed by what they are for.

use crate::order::{Use, stream};
pub(crate) use crate::tasks::Draw;
use rand_chacha::rand_core::Rng;

impl Draw {
    /// The stream of a purpose at a place.
    pub(crate) fn new(purpose: Use, [a, b, c]: [u64; 3]) -> Draw {
        Draw(stream(purpose, a, b, c))
    }

    /// A number in `[0, 1)`, of 53 random bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Any order equally likely.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}
