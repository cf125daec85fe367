//! Random draws for music and generated data; the streams are keyed by their purpose.

use crate::examples::ExampleId;
use crate::order::{StreamPurpose, below, stream};
use crate::split::Split;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use std::collections::HashMap;

/// The stream that the example at this place and of this length is drawn from.
pub(crate) fn random(place: ExampleId, length: usize) -> TaskRng {
    let split = Split::ALL.iter().position(|split| *split == place.split).expect("all splits are listed") as u64;
    TaskRng(stream(StreamPurpose::Example, place.seed, place.index, (length as u64) << 2 | split))
}

/// Uniform draws.
pub(crate) struct TaskRng(ChaCha8Rng);

impl TaskRng {
    /// A number in `0..bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        below(&mut self.0, bound)
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// `count` independent tokens below `bound`.
    pub(crate) fn tokens(&mut self, count: usize, bound: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(bound) as u32).collect()
    }

    /// `count` different numbers below `bound`, in random order.
    ///
    /// # Panics
    /// When there are not as many.
    pub(crate) fn distinct(&mut self, count: usize, bound: usize) -> Vec<usize> {
        assert!(count <= bound, "{count} different numbers below {bound}");
        // Fisher and Yates, of which only the swapped places are kept
        let mut swapped: HashMap<usize, usize> = HashMap::new();
        let mut take = |at: usize| {
            let from = at + self.below(bound - at);
            let value = *swapped.get(&from).unwrap_or(&from);
            let here = *swapped.get(&at).unwrap_or(&at);
            swapped.insert(from, here);
            value
        };
        (0..count).map(&mut take).collect()
    }

    /// The stream of a purpose at a place.
    pub(crate) fn new(purpose: StreamPurpose, [a, b, c]: [u64; 3]) -> TaskRng {
        TaskRng(stream(purpose, a, b, c))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn distinct_numbers_are_distinct() {
        let place = ExampleId { split: Split::Train, seed: 1, index: 0 };
        for (count, bound) in [(0, 0), (1, 1), (5, 5), (5, 1000), (999, 1000)] {
            let drawn = random(place, 1).distinct(count, bound);
            let set: BTreeSet<_> = drawn.iter().copied().collect();
            assert!(drawn.len() == count && set.len() == count && drawn.iter().all(|number| *number < bound));
        }
    }

    #[test]
    fn every_part_of_a_place_matters() {
        let first = |place: ExampleId, length: usize| random(place, length).below(1 << 40);
        let place = ExampleId { split: Split::Train, seed: 1, index: 5 };
        let base = first(place, 10);
        for other in
            [ExampleId { split: Split::Test, ..place }, ExampleId { seed: 2, ..place }, ExampleId { index: 6, ..place }]
        {
            assert_ne!(first(other, 10), base, "{other:?}");
        }
        assert_ne!(first(place, 11), base);
    }
}
