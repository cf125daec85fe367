//! Associative recall of runs of symbols, whose lengths are not marked.
//!
//! ```text
//! PAD.. k3 k1 v2 v7 v1  k2 v4  k3 k1 v2 v7      answers under k1 v2 v7: v2 v7 v1, the run that stood behind k3 k1 before
//! ```
//!
//! After the fuzzy recall of MAD (Poli et al. 2024, arXiv:2403.17844).

use super::{AnswerMode, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short, within};
use crate::error::{Error, Result};
use crate::random::{TaskRng, random};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Runs of symbols with runs as their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FuzzyRecall {
    /// Number of distinct tokens: symbols of keys, of values, and padding.
    pub vocab: usize,
    /// Most symbols of a key.
    pub key_max: usize,
    /// Most symbols of a value.
    pub value_max: usize,
    /// Whether every key has the most symbols.
    pub fixed: bool,
    /// Number of distinct keys of a sequence; 0 for all there are.
    pub pool: usize,
}

impl Default for FuzzyRecall {
    fn default() -> Self {
        FuzzyRecall { vocab: 16, key_max: 3, value_max: 3, fixed: false, pool: 0 }
    }
}

impl FuzzyRecall {
    /// Symbols that keys are made of, which come first.
    fn key_symbols(&self) -> usize {
        (self.vocab - 1) / 2
    }

    fn value_symbols(&self) -> usize {
        self.vocab - 1 - self.key_symbols()
    }

    fn key(&self, draw: &mut TaskRng) -> Vec<u32> {
        let length = if self.fixed { self.key_max } else { draw.between(1, self.key_max) };
        draw.distinct(length, self.key_symbols()).into_iter().map(|symbol| symbol as u32).collect()
    }

    fn value(&self, draw: &mut TaskRng) -> Vec<u32> {
        let length = draw.between(1, self.value_max);
        draw.distinct(length, self.value_symbols())
            .into_iter()
            .map(|symbol| (self.key_symbols() + symbol) as u32)
            .collect()
    }

    /// Number of distinct keys there are.
    fn all_keys(&self) -> usize {
        let runs =
            |length: usize| (0..length).fold(1usize, |all, taken| all.saturating_mul(self.key_symbols() - taken));
        let shortest = if self.fixed { self.key_max } else { 1 };
        (shortest..=self.key_max).fold(0, |all, length| all.saturating_add(runs(length)))
    }

    /// Distinct keys, if a sequence takes its own from some.
    fn pool(&self, draw: &mut TaskRng) -> Vec<Vec<u32>> {
        let mut pool: Vec<Vec<u32>> = Vec::new();
        while pool.len() < self.pool {
            let key = self.key(draw);
            if !pool.contains(&key) {
                pool.push(key);
            }
        }
        pool
    }
}

impl Examples for FuzzyRecall {
    fn facts(&self) -> TaskInfo {
        TaskInfo {
            name: "fuzzy_recall".to_owned(),
            answer: AnswerMode::Marked,
            vocab: self.vocab,
            classes: self.vocab,
            shortest: 2 * (self.key_max + self.value_max) - 1,
            chance: 1.0 / self.value_symbols() as f64,
            unit: AnswerUnit::Token,
            level: None,
            content: format!("fuzzy_recall 1 {self:?}"),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        refuse_short("fuzzy_recall", length, self.facts().shortest)?;
        let mut draw = random(place, length);
        let pool = self.pool(&mut draw);
        let longest = self.key_max + self.value_max;
        let (mut said, mut answers) = (Vec::new(), Vec::new());
        let mut values: HashMap<Vec<u32>, Vec<u32>> = HashMap::new();
        let mut keys: Vec<Vec<u32>> = Vec::new();
        let mut say = |key: &[u32], value: &[u32], is_known: bool| {
            said.extend_from_slice(key);
            if is_known {
                answers.push((said.len() - 1, value.to_vec()));
            }
            said.extend_from_slice(value);
            said.len()
        };
        // another pair, as long as the last one has room behind it whatever their lengths
        let mut end = 0;
        while end + 2 * longest - 1 <= length {
            let key = if pool.is_empty() { self.key(&mut draw) } else { pool[draw.below(pool.len())].clone() };
            let is_known = values.contains_key(&key);
            if !is_known {
                values.insert(key.clone(), self.value(&mut draw));
                keys.push(key.clone());
            }
            end = say(&key, &values[&key], is_known);
        }
        let last = &keys[draw.below(keys.len())];
        say(last, &values[last], true);
        said.pop(); // nothing follows that would need it
        let padding = length - said.len();
        let mut input = vec![self.vocab as u32 - 1; padding];
        input.extend(said);
        let (mut targets, mut scored) = (vec![0; length], vec![false; length]);
        for (first, value) in answers {
            for (number, token) in value.into_iter().enumerate() {
                (targets[padding + first + number], scored[padding + first + number]) = (token, true);
            }
        }
        Ok(Example { input, targets, scored, ..Example::default() })
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let (mut next, mut answers) = (HashMap::<u32, HashMap<u32, usize>>::new(), Vec::new());
        for (at, &token) in example.input.iter().enumerate() {
            if example.scored[at] {
                // of equally frequent ones the least, so that the answer does not depend on the order of a map
                let usual =
                    next.get(&token).and_then(|all| all.iter().max_by_key(|(next, n)| (**n, u32::MAX - **next)));
                answers.push(usual.map_or(0, |(next, _)| *next));
            }
            let values = self.key_symbols() as u32..self.vocab as u32 - 1;
            if let Some(following) = example.input.get(at + 1).filter(|next| values.contains(*next)) {
                *next.entry(token).or_default().entry(*following).or_default() += 1;
            }
        }
        Some(("the most frequent value symbol after the last token", answers))
    }

    fn check(&self) -> Result<()> {
        within("data.task.vocab", self.vocab, 3..=65_536)?;
        within("data.task.key_max", self.key_max, 1..=self.key_symbols())?;
        within("data.task.value_max", self.value_max, 1..=self.value_symbols())?;
        within("data.task.pool", self.pool, 0..=1024)?;
        if self.pool > self.all_keys() {
            let message = format!("data.task.pool: {} keys, but there are only {}", self.pool, self.all_keys());
            return Err(Error::refused(message, "lower `pool`, or raise `vocab` or `key_max`"));
        }
        Ok(())
    }
}
