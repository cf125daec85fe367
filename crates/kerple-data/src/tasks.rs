//! Tasks: sequences with answers to give, drawn without end or read from data.
//!
//! ```text
//! TaskConfig (what a run file says) --open--> dyn Examples --example(place, length)--> Example --> a padded batch
//! ```
//!
//! | tasks | answered | examples |
//! |---|---|---|
//! | [`chomsky`]: 15 formal languages | at empty places behind the sequence, [`Answer::Tape`] | drawn, of any length |
//! | [`recall`]: passkey, associative recall | at marked tokens, [`Answer::Marked`] | drawn, of any length |
//! | sequences with a class | one for the whole, [`Answer::Class`] | any source that implements [`Examples`] |
//!
//! An example is a function of its [`Place`] and its length, so batches need no cursor and a resumed run sees what an
//! uninterrupted one would have seen.

pub mod chomsky;
mod config;
pub mod recall;

pub use config::TaskConfig;

use crate::error::Result;
use crate::order::{Use, below, stream};
use crate::split::Split;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;

/// Where and how a model gives its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An encoder reads the sequence and behind it as many empty places as there are targets, and answers there.
    Tape,
    /// A decoder answers at some tokens, from what came before: as many targets as tokens, most of them not scored.
    Marked,
    /// An encoder gives one answer from the whole sequence, whose examples may have different lengths.
    Class,
}

/// Place of a language in Chomsky's hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Finite automata.
    Regular,
    /// Deterministic pushdown automata.
    ContextFree,
    /// Linear bounded automata.
    ContextSensitive,
}

impl Level {
    /// As tables have it: R, DCF, CS.
    pub fn letters(self) -> &'static str {
        match self {
            Level::Regular => "R",
            Level::ContextFree => "DCF",
            Level::ContextSensitive => "CS",
        }
    }
}

/// What is fixed about a task before any example is seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Short name.
    pub name: String,
    /// How it is answered.
    pub answer: Answer,
    /// Tokens of sequences are below this; the empty place of a [`Answer::Tape`] is this number itself.
    pub vocab: usize,
    /// Answers are below this.
    pub classes: usize,
    /// Least tokens of a sequence.
    pub shortest: usize,
    /// Share of the targets that guessing hits.
    pub chance: f64,
    /// Where it stands in Chomsky's hierarchy, if it is of that kind.
    pub level: Option<Level>,
    /// Identifies the examples: equal for equal examples at every place and length.
    pub content: String,
}

/// One sequence and what is to be answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// Token ids, without empty places.
    pub input: Vec<u32>,
    /// The answers.
    pub targets: Vec<u32>,
    /// Which of the targets count for accuracy, as many as targets.
    pub scored: Vec<bool>,
    /// Where in the sequence the answer is to be found, from 0 (beginning) to 1; for tasks with one such place.
    pub depth: Option<f64>,
}

/// Which example is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Drawn examples of different splits and seeds are independent.
    pub split: Split,
    /// Seed of the run or of the evaluation.
    pub seed: u64,
    /// Number within the split.
    pub index: u64,
}

/// A source of examples.
pub trait Examples: Send + Sync {
    /// What is known of all of them.
    fn facts(&self) -> Facts;

    /// What the user should know of them.
    fn remark(&self) -> Option<&'static str> {
        None
    }

    /// Examples of a split; `None` where they are drawn without end.
    fn count(&self, split: Split) -> Option<u64>;

    /// One example of `length` tokens where they are drawn, else at most `length`: longer ones are cut. Sources with a count
    /// use nothing of the place but split and index, which is below the count.
    ///
    /// # Errors
    /// Data that can no longer be read.
    fn example(&self, place: Place, length: usize) -> Result<Example>;

    /// Targets of a sequence of `length` tokens.
    fn answers(&self, length: usize) -> usize;
}

/// The stream that the example at this place and of this length is drawn from.
pub(crate) fn random(place: Place, length: usize) -> Draw {
    let split = Split::ALL.iter().position(|split| *split == place.split).expect("all splits are listed") as u64;
    Draw(stream(Use::Example, place.seed, place.index, (length as u64) << 2 | split))
}

/// Tokens of every sequence of the batch of an update, uniform from `shortest` to `longest`.
pub fn training_length(seed: u64, step: u64, shortest: usize, longest: usize) -> usize {
    let shortest = shortest.min(longest);
    shortest + below(&mut stream(Use::Length, seed, step, 0), longest - shortest + 1)
}

/// Which example of `count` stands at `index` of an endless sequence of epochs, each in an order of its own.
///
/// A permutation without a table: a Feistel network on the next even number of bits, walked until it falls below the
/// count (Black and Rogaway 2002), with rounds keyed by seed and epoch.
pub fn shuffled(seed: u64, index: u64, count: u64) -> u64 {
    let (epoch, mut place) = (index / count, index % count);
    let half = (64 - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << half) - 1;
    let round = |round: u64, value: u64| -> u64 {
        use rand_chacha::rand_core::Rng;
        stream(Use::Shuffle, seed, epoch, value << 3 | round).next_u64() & mask
    };
    loop {
        let (mut left, mut right) = (place >> half, place & mask);
        for number in 0..4 {
            (left, right) = (right, left ^ round(number, right));
        }
        place = left << half | right;
        if place < count {
            return place;
        }
    }
}

/// Uniform draws for examples.
pub(crate) struct Draw(pub(crate) ChaCha8Rng);

impl Draw {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_epoch_has_every_example_once_in_another_order() {
        for count in [1, 2, 3, 10, 100, 257] {
            let epoch =
                |epoch: u64| -> Vec<u64> { (0..count).map(|at| shuffled(7, epoch * count + at, count)).collect() };
            for number in 0..3 {
                let seen: BTreeSet<u64> = epoch(number).into_iter().collect();
                assert_eq!(seen, (0..count).collect(), "epoch {number} of {count}");
            }
            assert!(count < 10 || epoch(0) != epoch(1), "{count}");
        }
    }

    /// 40,000 draws into 40 cells of expectation 1000: five standard deviations are 158.
    #[test]
    fn training_lengths_are_uniform() {
        let mut cells = [0i32; 41];
        (0..40_000).for_each(|step| cells[training_length(3, step, 1, 40)] += 1);
        assert!(cells[0] == 0 && cells[1..].iter().all(|count| (count - 1000).abs() < 158), "{cells:?}");
        assert_eq!(training_length(3, 0, 9, 4), 4, "the longest is the limit");
    }

    #[test]
    fn distinct_numbers_are_distinct() {
        let place = Place { split: Split::Train, seed: 1, index: 0 };
        for (count, bound) in [(0, 0), (1, 1), (5, 5), (5, 1000), (999, 1000)] {
            let drawn = random(place, 1).distinct(count, bound);
            let set: BTreeSet<_> = drawn.iter().copied().collect();
            assert!(drawn.len() == count && set.len() == count && drawn.iter().all(|number| *number < bound));
        }
    }

    #[test]
    fn every_part_of_a_place_matters() {
        let first = |place: Place, length: usize| random(place, length).below(1 << 40);
        let place = Place { split: Split::Train, seed: 1, index: 5 };
        let base = first(place, 10);
        for other in [Place { split: Split::Test, ..place }, Place { seed: 2, ..place }, Place { index: 6, ..place }] {
            assert_ne!(first(other, 10), base, "{other:?}");
        }
        assert_ne!(first(place, 11), base);
    }
}
