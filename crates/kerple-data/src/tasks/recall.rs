//! Recall over long contexts: facts stated once and asked for later. For decoders, of any length.
//!
//! ```text
//! passkey   noise.. KEY 4 0 7 1 9 noise.. ASK 4 0 7 1        answers under ASK 4 0 7 1: 4 0 7 1 9
//! recall    k1 v1 k2 v2 .. noise k2 noise.. k1 noise         answers under k2 and k1: v2 and v1
//! ```
//!
//! The passkey task is that of Mohtashami and Jaggi 2023, arXiv:2305.16300, in tokens of its own instead of English. The
//! other is multi-query associative recall of Arora et al. 2023, arXiv:2312.04927, section 4 and appendix E: keys and
//! values of disjoint halves of the vocabulary, every key asked once, at distances by a power law, everything else noise.

use super::{AnswerMode, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short, within};
use crate::error::{Error, Result};
use crate::random::{TaskRng, random};
use serde::{Deserialize, Serialize};

/// A number of some digits hidden in noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Passkey {
    /// Digits of the number.
    pub digits: usize,
    /// Number of distinct noise tokens.
    pub noise: usize,
}

impl Default for Passkey {
    fn default() -> Self {
        Passkey { digits: 5, noise: 32 }
    }
}

const KEY: u32 = 10;
const ASK: u32 = 11;
const NOISE: u32 = 12;

impl Examples for Passkey {
    fn facts(&self) -> TaskInfo {
        TaskInfo {
            name: "passkey".to_owned(),
            answer: AnswerMode::Marked,
            vocab: NOISE as usize + self.noise,
            classes: 10,
            // the key behind its mark, and the mark that asks with all digits but the last
            shortest: 2 * self.digits + 1,
            chance: 0.1,
            unit: AnswerUnit::Whole,
            level: None,
            content: format!("passkey 1 {self:?}"),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let shortest = self.facts().shortest;
        refuse_short("passkey", length, shortest)?;
        let mut draw = random(place, length);
        let key = draw.tokens(self.digits, 10);
        let before = draw.between(0, length - shortest);
        let mut input: Vec<u32> = draw.tokens(length, self.noise).into_iter().map(|kind| NOISE + kind).collect();
        input[before] = KEY;
        input[before + 1..=before + self.digits].copy_from_slice(&key);
        let asked = length - self.digits;
        input[asked] = ASK;
        input[asked + 1..].copy_from_slice(&key[..self.digits - 1]);
        let mut targets = vec![0; asked];
        targets.extend(key);
        let scored = (0..length).map(|at| at >= asked).collect();
        let depth = before as f64 / (length - shortest).max(1) as f64;
        Ok(Example { input, targets, scored, whole_answer: Some(asked..length), depth: Some(depth) })
    }

    fn check(&self) -> Result<()> {
        within("data.task.digits", self.digits, 1..=1024)?;
        within("data.task.noise", self.noise, 1..=65_536)
    }
}

/// Multi-query associative recall.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recall {
    /// Pairs of key and value.
    pub pairs: usize,
    /// Vocabulary size; keys are in the lower half, values in the upper half.
    pub vocab: usize,
    /// Exponent of the power law of distances: near 0 most keys are asked for soon, 1 is uniform.
    pub power: f64,
}

impl Default for Recall {
    fn default() -> Self {
        Recall { pairs: 4, vocab: 128, power: 0.01 }
    }
}

impl Recall {
    /// Places of the queries among `room`, in the order of the pairs: distinct, each drawn with probability in proportion to
    /// `a (n + 1)^(a - 1)` among those that are left.
    fn gaps(&self, draw: &mut TaskRng, room: usize) -> Vec<usize> {
        // the largest of u^(1/w) are a draw without replacement by weights w (Efraimidis and Spirakis 2006)
        let mut ranked: Vec<(f64, usize)> = (0..room)
            .map(|at| {
                let weight = self.power * ((at + 1) as f64).powf(self.power - 1.0);
                let uniform = (draw.below(1 << 53) as f64 + 0.5) / (1u64 << 53) as f64;
                (uniform.ln() / weight, at)
            })
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        ranked.truncate(self.pairs);
        ranked.into_iter().map(|(_, at)| at).collect()
    }
}

impl Examples for Recall {
    fn facts(&self) -> TaskInfo {
        TaskInfo {
            name: "recall".to_owned(),
            answer: AnswerMode::Marked,
            vocab: self.vocab,
            classes: self.vocab,
            shortest: 4 * self.pairs,
            // a guess among the values
            chance: ((self.vocab - self.vocab / 2) as f64).recip(),
            unit: AnswerUnit::Token,
            level: None,
            content: format!("recall 1 {self:?}"),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let Recall { pairs, vocab, .. } = *self;
        refuse_short("recall", length, 4 * pairs)?;
        let (mut draw, half) = (random(place, length), vocab / 2);
        // token 0 is no key
        let keys: Vec<u32> = draw.distinct(pairs, half - 1).into_iter().map(|key| key as u32 + 1).collect();
        let values: Vec<u32> =
            draw.distinct(pairs, vocab - half).into_iter().map(|value| (half + value) as u32).collect();
        let mut input = draw.tokens(length, vocab);
        let (mut targets, mut scored) = (vec![0; length], vec![false; length]);
        for (pair, (key, value)) in keys.iter().zip(&values).enumerate() {
            (input[2 * pair], input[2 * pair + 1]) = (*key, *value);
        }
        let room = (length - 2 * pairs) / 2;
        for (gap, (key, value)) in self.gaps(&mut draw, room).into_iter().zip(keys.iter().zip(&values)) {
            let at = 2 * pairs + 2 * gap;
            (input[at], targets[at], scored[at]) = (*key, *value, true);
        }
        Ok(Example { input, targets, scored, ..Example::default() })
    }

    fn check(&self) -> Result<()> {
        within("data.task.vocab", self.vocab, 4..=1 << 20)?;
        within("data.task.pairs", self.pairs, 1..=self.vocab / 2 - 1)?;
        if self.power > 0.0 && self.power <= 1.0 {
            Ok(())
        } else {
            Err(Error::refused(
                format!("data.task.power: {} is out of range; it must be above 0 and at most 1", self.power),
                "the original uses 0.01",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Split;
    use proptest::prelude::*;

    fn place(index: u64) -> ExampleId {
        ExampleId { split: Split::Test, seed: 3, index }
    }

    proptest! {
        #[test]
        fn a_passkey_stands_once_in_noise(digits in 1usize..9, extra in 0usize..100, index: u64) {
            let task = Passkey { digits, ..Passkey::default() };
            let length = 2 * digits + 1 + extra;
            let Example { input, targets, scored, depth, whole_answer } = task.example(place(index), length).unwrap();
            prop_assert_eq!((input.len(), targets.len(), scored.len()), (length, length, length));
            let at = |mark: u32| input.iter().position(|token| *token == mark).unwrap();
            let (key, ask) = (at(KEY), at(ASK));
            prop_assert!(key + digits < ask && ask + digits == length);
            let said = &input[key + 1..=key + digits];
            prop_assert_eq!(&targets[ask..], said);
            prop_assert_eq!(&input[ask + 1..], &said[..digits - 1]);
            prop_assert!(scored.iter().enumerate().all(|(at, scored)| *scored == (at >= ask)));
            prop_assert_eq!(whole_answer, Some(ask..length));
            let noise = input.iter().filter(|token| **token >= NOISE).count();
            prop_assert_eq!(noise, extra);
            let depth = depth.unwrap();
            prop_assert!((0.0..=1.0).contains(&depth) && (extra == 0 || depth == key as f64 / extra as f64));
        }

        #[test]
        fn every_key_is_asked_for_once(pairs in 1usize..12, extra in 0usize..200, index: u64) {
            let task = Recall { pairs, ..Recall::default() };
            let length = 4 * pairs + extra;
            let Example { input, targets, scored, .. } = task.example(place(index), length).unwrap();
            let mut asked = Vec::new();
            for at in (0..length).filter(|at| scored[*at]) {
                let pair = input[..2 * pairs].chunks(2).position(|pair| pair[0] == input[at]).unwrap();
                prop_assert_eq!(targets[at], input[2 * pair + 1]);
                prop_assert!(at >= 2 * pairs && (1..64).contains(&input[at]) && (64..128).contains(&targets[at]));
                asked.push(pair);
            }
            asked.sort_unstable();
            prop_assert_eq!(asked, (0..pairs).collect::<Vec<_>>());
        }
    }

    #[test]
    fn depths_are_uniform_and_queries_come_early() {
        let tasks = (Passkey::default(), Recall { pairs: 1, ..Recall::default() });
        let (mut cells, mut first) = ([0; 4], 0);
        for index in 0..4000 {
            let depth = tasks.0.example(place(index), 110).unwrap().depth.unwrap();
            cells[((depth * 4.0) as usize).min(3)] += 1;
            first += u32::from(tasks.1.example(place(index), 66).unwrap().scored[2]);
        }
        // 6 standard deviations of a binomial of 1000
        assert!(cells.iter().all(|count: &i32| (count - 1000).abs() < 165), "{cells:?}");
        // weights n^-0.99 over 32 places: the first has 1 / 4.123 of them; 6 standard deviations are 163
        let expected = 4000.0 / (1..=32).map(|n| f64::from(n).powf(-0.99)).sum::<f64>();
        assert!((f64::from(first) - expected).abs() < 163.0, "{first} of {expected}");
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let short = Passkey::default().example(place(0), 10).unwrap_err();
        assert!(short.to_string().contains("10 tokens") && short.to_string().contains("needs 11"), "{short}");
        assert!(Recall::default().example(place(0), 15).is_err());
        for error in [
            Passkey { digits: 0, ..Passkey::default() }.check().unwrap_err(),
            Recall { pairs: 64, ..Recall::default() }.check().unwrap_err(),
            Recall { vocab: 3, ..Recall::default() }.check().unwrap_err(),
            Recall { power: 0.0, ..Recall::default() }.check().unwrap_err(),
            Recall { power: f64::NAN, ..Recall::default() }.check().unwrap_err(),
        ] {
            assert!(error.to_string().contains("data.task.") && error.is_misuse(), "{error}");
        }
    }
}
