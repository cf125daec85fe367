//! Multi-query repeated associative recall: keys get new values all the time, and are asked for the last but some.
//!
//! ```text
//! k2 v5 k1 v3  k1 v7 Q k2 Q k1 ..      answers under k2 and k1, the last value of each: v5 and v7
//! ```
//!
//! After PaTH (Yang et al. 2025, arXiv:2505.16381, section 4.1), whose generator is not published: the slots of two tokens, the first
//! rounds and the share of questions are our own.

use super::{AnswerMode, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short, within};
use crate::error::Result;
use crate::random::random;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};

const QUESTION: u32 = 0;
const PAD: u32 = 1;
const FIRST_KEY: u32 = 2;

/// Recall of the value before the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mqrar {
    /// Number of keys.
    pub keys: usize,
    /// Number of values.
    pub values: usize,
    /// Which value is asked for, counted back from the last one: 1 is the last.
    pub back: usize,
}

impl Default for Mqrar {
    fn default() -> Self {
        Mqrar { keys: 8, values: 64, back: 1 }
    }
}

impl Examples for Mqrar {
    fn facts(&self) -> TaskInfo {
        let vocab = FIRST_KEY as usize + self.keys + self.values;
        TaskInfo {
            name: "mqrar".to_owned(),
            answer: AnswerMode::Marked,
            vocab,
            classes: vocab,
            shortest: 2 * (self.keys * self.back + 1),
            chance: 1.0 / self.values as f64,
            unit: AnswerUnit::Token,
            level: None,
            content: format!("mqrar 1 {self:?}"),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let Mqrar { keys, values, back } = *self;
        refuse_short("mqrar", length, self.facts().shortest)?;
        let mut draw = random(place, length);
        let mut input = vec![PAD; length % 2];
        let (mut targets, mut scored) = (vec![0; length], vec![false; length]);
        // the last `back` values of each key, the oldest in front
        let mut last: Vec<VecDeque<u32>> = vec![VecDeque::new(); keys];
        let first_rounds: Vec<usize> = (0..back).flat_map(|_| draw.distinct(keys, keys)).collect();
        let slots = length / 2;
        for slot in 0..slots {
            let asks = slot >= first_rounds.len() && (slot + 1 == slots || draw.below(2) == 0);
            let key = first_rounds.get(slot).copied().unwrap_or_else(|| draw.below(keys));
            let token = FIRST_KEY + key as u32;
            if asks {
                let at = input.len() + 1;
                input.extend([QUESTION, token]);
                (targets[at], scored[at]) = (last[key][0], true);
            } else {
                let value = FIRST_KEY + (keys + draw.below(values)) as u32;
                input.extend([token, value]);
                last[key].push_back(value);
                if last[key].len() > back {
                    last[key].pop_front();
                }
            }
        }
        Ok(Example { input, targets, scored, ..Example::default() })
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let (mut known, mut answers) = (HashMap::new(), Vec::new());
        for slot in example.input[example.input.len() % 2..].chunks_exact(2) {
            match slot[0] {
                QUESTION => answers.push(known[&slot[1]]),
                key if self.back > 1 => _ = known.insert(key, slot[1]),
                key => _ = known.entry(key).or_insert(slot[1]),
            }
        }
        Some((if self.back > 1 { "the last value" } else { "the first value" }, answers))
    }

    fn check(&self) -> Result<()> {
        within("data.task.keys", self.keys, 1..=65_536)?;
        within("data.task.values", self.values, 2..=65_536)?;
        within("data.task.back", self.back, 1..=1024)
    }
}
