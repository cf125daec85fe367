//! Tasks: sequences with targets, generated without limit or read from a dataset.
//!
//! ```text
//! TaskConfig (from a run file) --open--> dyn Examples --example(place, length)--> Example --> a padded batch
//! ```
//!
//! | tasks | answered | examples |
//! |---|---|---|
//! | [`chomsky`]: 15 formal languages | at empty places after the sequence, [`AnswerMode::Tape`] | drawn, of any length |
//! | [`recall`]: passkey, associative recall | at marked tokens, [`AnswerMode::Marked`] | drawn, of any length |
//! | [`needles`]: facts hidden in noise or among others | the same | the same |
//! | [`mqrar`]: associative recall of the last values but some | the same | the same |
//! | [`memory`]: flip-flop language, selective copying | the same; the former by encoders too | the same |
//! | [`group`]: products in a finite group | the same; by encoders too | the same |
//! | [`chains`]: names that are set to each other | the same | the same |
//! | [`counts`]: frequent and common words | the same | the same |
//! | [`fuzzy_recall`]: associative recall of runs of symbols | the same | the same |
//! | sequences with a class | one for the whole, [`AnswerMode::Class`] | any source that implements [`Examples`] |
//!
//! An example is a function of its [`ExampleId`] and its length, so batches need no cursor, and a
//! resumed run gets the same examples as an uninterrupted one.

pub mod chains;
pub mod chomsky;
mod config;
pub mod counts;
pub mod fuzzy_recall;
pub mod group;
pub mod memory;
pub mod mqrar;
pub mod needles;
pub mod recall;

pub use crate::examples::{
    AnswerMode, AnswerUnit, ChomskyLevel, Example, ExampleId, Examples, PAIR_SEPARATOR, TaskInfo,
};
pub use config::TaskConfig;

use crate::error::{Error, Result};
use crate::order::{StreamPurpose, below, stream};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Where a task is answered that decoders and encoders can learn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerPlaces {
    /// At tokens of the sequence, by a decoder.
    #[default]
    Marked,
    /// At empty places after the sequence, by an encoder.
    Tape,
}

impl AnswerPlaces {
    /// Whether it is the default, which is not written down.
    pub fn is_marked(&self) -> bool {
        *self == AnswerPlaces::Marked
    }

    fn mode(self) -> AnswerMode {
        match self {
            AnswerPlaces::Marked => AnswerMode::Marked,
            AnswerPlaces::Tape => AnswerMode::Tape,
        }
    }

    /// What identifies the examples of a task, which is its name and keys where they are marked.
    fn content(self, marked: String) -> String {
        if self.is_marked() { marked } else { format!("{marked} at empty places") }
    }
}

/// Tokens of every sequence of the batch of an update, uniform from `shortest` to `longest`.
pub fn training_length(seed: u64, step: u64, shortest: usize, longest: usize) -> usize {
    let shortest = shortest.min(longest);
    shortest + below(&mut stream(StreamPurpose::Length, seed, step, 0), longest - shortest + 1)
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
        stream(StreamPurpose::Shuffle, seed, epoch, value << 3 | round).next_u64() & mask
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

/// Refuses the value of a key outside of its limits.
pub(crate) fn within(key: &str, value: usize, limits: RangeInclusive<usize>) -> Result<()> {
    if limits.contains(&value) {
        return Ok(());
    }
    let (low, high) = limits.into_inner();
    let message = format!("{key}: {value} is out of range; it must be between {low} and {high}");
    Err(Error::refused(message, "leave it out to use the default"))
}

/// Refuses sequences without room for the task.
pub(crate) fn refuse_short(task: &str, length: usize, shortest: usize) -> Result<()> {
    if length >= shortest {
        return Ok(());
    }
    let message = format!("{length} tokens are too short for the {task} task, which needs {shortest}");
    Err(Error::refused(message, "use longer sequences, or a smaller task"))
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
}
