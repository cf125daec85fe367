//! Needles in a haystack: values that are stated once, hidden in noise or among others, and asked for at the end.
//!
//! ```text
//! niah_single   noise.. NEEDLE k 4 0 7 noise.. ASK k 4 0               answers under k 4 0: 4 0 7
//! niah_words    PAD.. NEEDLE k1 4 0 7 NEEDLE k2 1 1 9 .. ASK k2 1 1    answers under k2 1 1: 1 1 9
//! niah_codes    the same, with keys of several symbols and their values
//! ```
//!
//! The forms are those of RULER (Hsieh et al. 2024, arXiv:2404.06654) in tokens of their own instead of English. Unlike there, keys
//! are distinct, and a needle may stand at the end. A whole answer counts: most of its tokens are fed back.

use super::{AnswerMode, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short, within};
use crate::error::Result;
use crate::random::{TaskRng, random};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

const NEEDLE: u32 = 10;
const ASK: u32 = 11;

/// One needle in periodic noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NiahSingle {
    /// Digits of the value.
    pub digits: usize,
    /// Number of distinct keys.
    pub keys: usize,
    /// Number of distinct noise tokens, which come in turns.
    pub period: usize,
}

impl Default for NiahSingle {
    fn default() -> Self {
        NiahSingle { digits: 7, keys: 64, period: 24 }
    }
}

impl Examples for NiahSingle {
    fn facts(&self) -> TaskInfo {
        facts("niah_single", 12 + self.keys + self.period, 10, 2 * self.digits + 3, format!("niah_single 1 {self:?}"))
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let NiahSingle { digits, keys, period } = *self;
        refuse_short("niah_single", length, self.facts().shortest)?;
        let mut draw = random(place, length);
        let (key, value) = (12 + draw.below(keys) as u32, draw.tokens(digits, 10));
        // the noise ends on a whole period, and the needle stands behind one, or behind the part of one at the start
        let noise = length - self.facts().shortest;
        let before = noise % period + period * draw.between(0, noise / period);
        let noise_token = |at: usize| (12 + keys + (at + period - noise % period) % period) as u32;
        let mut body: Vec<u32> = (0..before).map(noise_token).collect();
        body.extend([NEEDLE, key]);
        body.extend(&value);
        body.extend((before..noise).map(noise_token));
        let depth = before as f64 / noise.max(1) as f64;
        Ok(Example { depth: Some(depth), ..Example::asked(body, &[ASK, key], &value) })
    }

    fn check(&self) -> Result<()> {
        within("data.task.digits", self.digits, 1..=1024)?;
        within("data.task.keys", self.keys, 1..=65_536)?;
        within("data.task.period", self.period, 1..=65_536)
    }
}

/// Needles alone, each a word and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NiahWords {
    /// Digits of a value.
    pub digits: usize,
    /// Number of distinct keys, and most needles of a sequence.
    pub keys: usize,
}

impl Default for NiahWords {
    fn default() -> Self {
        NiahWords { digits: 7, keys: 1024 }
    }
}

impl NiahWords {
    const PAD: u32 = 12;
}

impl Examples for NiahWords {
    fn facts(&self) -> TaskInfo {
        facts("niah_words", 13 + self.keys, 10, 2 * self.digits + 3, format!("niah_words 1 {self:?}"))
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let NiahWords { digits, keys } = *self;
        refuse_short("niah_words", length, self.facts().shortest)?;
        let mut draw = random(place, length);
        let needles = ((length - digits - 1) / (digits + 2)).min(keys);
        let words: Vec<Vec<u32>> = draw.distinct(needles, keys).into_iter().map(|key| vec![13 + key as u32]).collect();
        let values: Vec<Vec<u32>> = words.iter().map(|_| draw.tokens(digits, 10)).collect();
        let asked = draw.below(needles);
        Ok(among_others(length, [NEEDLE, ASK, Self::PAD], &words, &values, asked))
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        Some(("any value that begins alike", begun_alike(example, NEEDLE, 1, &|_, _| true)))
    }

    fn check(&self) -> Result<()> {
        within("data.task.digits", self.digits, 1..=1024)?;
        within("data.task.keys", self.keys, 1..=65_536)
    }
}

/// Needles alone, each a code of some symbols and another as its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NiahCodes {
    /// Number of distinct symbols.
    pub symbols: usize,
    /// Symbols of a code.
    pub code: usize,
}

impl Default for NiahCodes {
    fn default() -> Self {
        NiahCodes { symbols: 16, code: 8 }
    }
}

impl NiahCodes {
    /// Distinct codes; of a few symbols there are only so many.
    fn keys(&self, draw: &mut TaskRng, count: usize) -> Vec<Vec<u32>> {
        let (mut seen, mut keys) = (HashSet::new(), Vec::new());
        let all = self.symbols.checked_pow(self.code as u32).unwrap_or(usize::MAX);
        while keys.len() < count.min(all) {
            let key = draw.tokens(self.code, self.symbols);
            if seen.insert(key.clone()) {
                keys.push(key);
            }
        }
        keys
    }
}

impl Examples for NiahCodes {
    fn facts(&self) -> TaskInfo {
        let content = format!("niah_codes 1 {self:?}");
        facts("niah_codes", self.symbols + 3, self.symbols, 4 * self.code + 1, content)
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        refuse_short("niah_codes", length, self.facts().shortest)?;
        let mut draw = random(place, length);
        let keys = self.keys(&mut draw, (length - 2 * self.code) / (2 * self.code + 1));
        let values: Vec<Vec<u32>> = keys.iter().map(|_| draw.tokens(self.code, self.symbols)).collect();
        let asked = draw.below(keys.len());
        let mark = self.symbols as u32;
        Ok(among_others(length, [mark, mark + 1, mark + 2], &keys, &values, asked))
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let same_end = |key: &[u32], asked: u32| key.last() == Some(&asked);
        Some(("the last symbol of the key", begun_alike(example, self.symbols as u32, self.code, &same_end)))
    }

    fn check(&self) -> Result<()> {
        within("data.task.symbols", self.symbols, 2..=65_536)?;
        within("data.task.code", self.code, 1..=1024)
    }
}

fn facts(name: &str, vocab: usize, classes: usize, shortest: usize, content: String) -> TaskInfo {
    TaskInfo {
        name: name.to_owned(),
        answer: AnswerMode::Marked,
        vocab,
        classes,
        shortest,
        chance: 1.0 / classes as f64,
        unit: AnswerUnit::Whole,
        level: None,
        content,
    }
}

/// Answers from the first value that begins as the answer so far, of the needles whose keys may be meant by the last token of
/// the question.
fn begun_alike(example: &Example, mark: u32, key_len: usize, may_be: &dyn Fn(&[u32], u32) -> bool) -> Vec<u32> {
    let (input, answer) = (&example.input, example.whole_answer.clone().unwrap_or_default());
    let value_len = answer.len();
    let needles: Vec<&[u32]> = (0..answer.start)
        .filter(|at| input[*at] == mark)
        .filter_map(|at| input.get(at + 1..at + 1 + key_len + value_len))
        .filter(|needle| may_be(&needle[..key_len], input[answer.start]))
        .collect();
    let next = |number: usize| {
        let so_far = &input[answer.start + 1..][..number];
        needles.iter().find(|needle| needle[key_len..].starts_with(so_far)).map_or(0, |needle| needle[key_len + number])
    };
    (0..value_len).map(next).collect()
}

/// Padding, all needles, and the question for one of them.
fn among_others(
    length: usize,
    [needle, ask, pad]: [u32; 3],
    keys: &[Vec<u32>],
    values: &[Vec<u32>],
    asked: usize,
) -> Example {
    let all: Vec<u32> =
        keys.iter().zip(values).flat_map(|(key, value)| [&[needle], &key[..], value].concat()).collect();
    let question = [&[ask], &keys[asked][..]].concat();
    let padding = length - all.len() - question.len() - (values[asked].len() - 1);
    let mut body = vec![pad; padding];
    body.extend(&all);
    let depth = (asked * (all.len() / keys.len())) as f64 / all.len() as f64;
    Example { depth: Some(depth), ..Example::asked(body, &question, &values[asked]) }
}
