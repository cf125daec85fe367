//! Floors for right answers: the share that one constant answer reaches, and the share that the
//! first token alone reveals. A model that is not better than these has not learned the task,
//! however far it is above a guess.
//!
//! Both are rules that can be learned from the training split: the most frequent answer, and the
//! most frequent answer after each first token. The floors are how often they are right on the test
//! split.

use crate::error::Result;
use kerple_data::Split;
use kerple_data::tasks::{AnswerMode, ExampleId, Examples};
use kerple_run::number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the file of floors in the folder of a reproduction.
pub const FLOORS_FILE: &str = "floors.json";

/// Most examples of a split that are counted.
const MOST: u64 = 20_000;

/// The floors of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// Name of the corpus.
    pub corpus: String,
    /// Fingerprint of the examples, as in the rows of evaluations.
    pub content: String,
    /// Examples of the training split that the rules are computed from.
    pub train: u64,
    /// Examples of the test split that they are tried on.
    pub test: u64,
    /// Share of right answers of the most frequent answer.
    #[serde(with = "number")]
    pub constant: f64,
    /// Share of right answers of the most frequent answer after the same first token.
    #[serde(with = "number")]
    pub first_token: f64,
}

impl Floor {
    /// The floors of a task with one answer a sequence and a number of examples; none of another task.
    ///
    /// # Errors
    /// Data that can no longer be read.
    pub fn of(corpus: &str, examples: &dyn Examples, length: usize) -> Result<Option<Floor>> {
        let facts = examples.facts();
        let (AnswerMode::Class, Some(train), Some(test)) =
            (facts.answer, examples.count(Split::Train), examples.count(Split::Test))
        else {
            return Ok(None);
        };
        let (train, test) = (train.min(MOST), test.min(MOST));
        let pair = |split: Split, index: u64| -> Result<(Option<u32>, u32)> {
            let example = examples.example(ExampleId { split, seed: 0, index }, length)?;
            Ok((example.input.first().copied(), example.targets[0]))
        };
        let mut answers: BTreeMap<u32, u64> = BTreeMap::new();
        let mut by_token: BTreeMap<Option<u32>, BTreeMap<u32, u64>> = BTreeMap::new();
        for index in 0..train {
            let (token, answer) = pair(Split::Train, index)?;
            *answers.entry(answer).or_default() += 1;
            *by_token.entry(token).or_default().entry(answer).or_default() += 1;
        }
        let (constant, mut right) = (most_frequent(&answers), [0u64; 2]);
        for index in 0..test {
            let (token, answer) = pair(Split::Test, index)?;
            let after = by_token.get(&token).map_or(constant, most_frequent);
            right[0] += u64::from(constant == Some(answer));
            right[1] += u64::from(after == Some(answer));
        }
        let [constant, first_token] = right.map(|right| right as f64 / test as f64);
        Ok(Some(Floor {
            corpus: corpus.to_owned(),
            content: kerple_data::fingerprint(facts.content.as_bytes()),
            train,
            test,
            constant,
            first_token,
        }))
    }
}

/// The least of the answers that are given most often.
fn most_frequent(counts: &BTreeMap<u32, u64>) -> Option<u32> {
    counts.iter().rev().max_by_key(|(_, count)| **count).map(|(answer, _)| *answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerple_data::tasks::{AnswerUnit, Example, TaskInfo};

    /// The answer is the first token in training; in the test it is 1 in half of all cases, and always 1 after token 2.
    struct FirstTokenTask;

    impl Examples for FirstTokenTask {
        fn facts(&self) -> TaskInfo {
            TaskInfo {
                name: "told".into(),
                answer: AnswerMode::Class,
                vocab: 3,
                classes: 3,
                shortest: 1,
                chance: 1.0 / 3.0,
                unit: AnswerUnit::Token,
                level: None,
                content: "c".into(),
            }
        }

        fn count(&self, split: Split) -> Option<u64> {
            Some(if split == Split::Train { 40 } else { 4 })
        }

        fn example(&self, place: ExampleId, _: usize) -> kerple_data::Result<Example> {
            // in training 1 is as frequent as 0 and 2 together
            let train = [0, 1, 1, 2];
            let (token, answer) = match place.split {
                Split::Train => (train[place.index as usize % 4], train[place.index as usize % 4]),
                _ => [(0, 0), (1, 1), (2, 1), (7, 0)][place.index as usize],
            };
            Ok(Example { input: vec![token, 9], targets: vec![answer], scored: vec![true], ..Example::default() })
        }

        fn answers(&self, _: usize) -> usize {
            1
        }
    }

    #[test]
    fn rules_are_of_the_training_split_and_tried_on_the_test_split() {
        let floor = Floor::of("told", &FirstTokenTask, 8).unwrap().unwrap();
        // the constant answer 1 is right twice; the first token is right of 0 and 1, and where it is unknown the constant is taken
        assert_eq!((floor.constant, floor.first_token, floor.train, floor.test), (0.5, 0.5, 40, 4));
        assert_eq!(most_frequent(&[(3, 2), (5, 2), (1, 1)].into()), Some(3), "of equals the least");
    }
}
