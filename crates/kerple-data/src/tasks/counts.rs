//! Counting words: which occur most often, at places that say nothing.
//!
//! ```text
//! fwe   . b . a . a . . c a . b ASK a b      answers under ASK a b: a b c, the most frequent first
//! cwe   PAD b d a c b a e ASK b              answers under ASK b: b a, which occur more often than the rest, as they first appear
//! ```
//!
//! The frequent and common words of RULER (Hsieh et al. 2024, arXiv:2404.06654). There every example has the same order of places, so
//! that a trained model learns places; here each example is shuffled by itself.

use super::{AnswerMode, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short, within};
use crate::error::{Error, Result};
use crate::random::random;
use serde::{Deserialize, Serialize};

const ASK: u32 = 0;
/// Noise of `fwe`, padding of `cwe`.
const OTHER: u32 = 1;
const FIRST_WORD: u32 = 2;

/// Tokens that a sequence needs at most, so that the words asked for differ in their counts.
const LONGEST_NEEDED: f64 = 65_536.0;

/// Words by a power law.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrequentWords {
    /// Number of distinct words.
    pub words: usize,
    /// The word of rank k, from 2 on, has the share `1 / (k^alpha zeta(alpha))`; noise has the rest.
    pub alpha: f64,
    /// Words asked for.
    pub answers: usize,
}

impl Default for FrequentWords {
    fn default() -> Self {
        FrequentWords { words: 64, alpha: 2.0, answers: 3 }
    }
}

/// Riemann's zeta function above 1: terms, and what Euler's and Maclaurin's sum says of the others. To rounding from 1.01 on.
fn zeta(s: f64) -> f64 {
    const N: i32 = 16;
    let n = f64::from(N);
    let terms: f64 = (1..N).map(|k| f64::from(k).powf(-s)).sum();
    // B_2j / (2j)! for j = 1 to 6
    const BERNOULLI: [f64; 6] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30_240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
    ];
    let mut falling = s * n.powf(-s - 1.0);
    let mut rest = n.powf(1.0 - s) / (s - 1.0) + 0.5 * n.powf(-s);
    for (j, factor) in BERNOULLI.into_iter().enumerate() {
        rest += factor * falling;
        let j = j as f64;
        falling *= (s + 2.0 * j + 1.0) * (s + 2.0 * j + 2.0) / (n * n);
    }
    terms + rest
}

impl FrequentWords {
    /// Tokens that each word has of so many, most first.
    fn counts(&self, body: usize) -> impl Iterator<Item = usize> {
        let (alpha, zeta) = (self.alpha, zeta(self.alpha));
        (2..self.words + 2).map(move |rank| (body as f64 / ((rank as f64).powf(alpha) * zeta)).floor() as usize)
    }

    /// Whether the words asked for and the next one all have different counts.
    fn is_decided(&self, body: usize) -> bool {
        self.counts(body).take(self.answers + 1).is_sorted_by(|a, b| a > b)
    }

    /// Tokens from which on the shares of the words asked for are at least one token apart, so that counts must differ.
    fn always_decided(&self) -> f64 {
        let share = |rank: usize| (rank as f64).powf(-self.alpha) / zeta(self.alpha);
        (1.0 / (share(self.answers + 1) - share(self.answers + 2))).ceil()
    }
}

impl Examples for FrequentWords {
    fn facts(&self) -> TaskInfo {
        // keys that are out of range have no shortest sequence that could be searched
        let always = self.always_decided().min(LONGEST_NEEDED) as usize;
        let body = (1..always).rev().find(|body| !self.is_decided(*body)).map_or(1, |body| body + 1);
        counting("fwe", self.words, body + self.answers, format!("fwe 1 {self:?}"))
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        if length <= self.answers || !self.is_decided(length - self.answers) {
            refuse_short("fwe", length, self.facts().shortest)?;
        }
        let mut draw = random(place, length);
        let counts: Vec<usize> = self.counts(length - self.answers).take_while(|count| *count > 0).collect();
        let words: Vec<u32> =
            draw.distinct(counts.len(), self.words).into_iter().map(|word| FIRST_WORD + word as u32).collect();
        let mut body: Vec<u32> =
            words.iter().zip(&counts).flat_map(|(word, count)| std::iter::repeat_n(*word, *count)).collect();
        body.resize(length - self.answers, OTHER);
        draw.shuffle(&mut body);
        Ok(Example::asked(body, &[ASK], &words[..self.answers]))
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let body = example.input.len() - self.answers;
        Some(("counts of the first 64 tokens", most_frequent(&example.input[..body.min(64)], self.answers)))
    }

    fn check(&self) -> Result<()> {
        within("data.task.words", self.words, 2..=65_536)?;
        within("data.task.answers", self.answers, 1..=self.words - 1)?;
        if !(1.01..=16.0).contains(&self.alpha) {
            let message = format!("data.task.alpha: {} is out of range; it must be between 1.01 and 16", self.alpha);
            return Err(Error::refused(message, "leave it out to use the default"));
        }
        let needed = self.always_decided();
        if needed > LONGEST_NEEDED {
            let message = format!(
                "data.task.answers: {} words at alpha = {} may have equal counts up to {needed:.3e} tokens; the limit is {LONGEST_NEEDED}",
                self.answers, self.alpha
            );
            return Err(Error::refused(message, "ask for fewer words"));
        }
        Ok(())
    }
}

/// Some words that are all equally frequent, among rarer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommonWords {
    /// Words asked for.
    pub common: usize,
    /// Words beside them.
    pub uncommon: usize,
    /// Number of distinct words.
    pub words: usize,
    /// How many times as often a common word occurs.
    pub ratio: usize,
}

impl Default for CommonWords {
    fn default() -> Self {
        CommonWords { common: 10, uncommon: 54, words: 128, ratio: 6 }
    }
}

impl CommonWords {
    /// Tokens in which each uncommon word occurs once.
    fn round(&self) -> usize {
        self.common * self.ratio + self.uncommon
    }
}

impl Examples for CommonWords {
    fn facts(&self) -> TaskInfo {
        counting("cwe", self.words, self.round() + self.common, format!("cwe 1 {self:?}"))
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let CommonWords { common, uncommon, words, ratio } = *self;
        refuse_short("cwe", length, self.facts().shortest)?;
        let mut draw = random(place, length);
        let rounds = (length - common) / self.round();
        let drawn: Vec<u32> =
            draw.distinct(common + uncommon, words).into_iter().map(|word| FIRST_WORD + word as u32).collect();
        let times = |number: usize| if number < common { ratio * rounds } else { rounds };
        let mut said: Vec<u32> =
            drawn.iter().enumerate().flat_map(|(number, word)| std::iter::repeat_n(*word, times(number))).collect();
        draw.shuffle(&mut said);
        let mut answer: Vec<u32> = drawn[..common].to_vec();
        answer.sort_by_key(|word| said.iter().position(|token| token == word));
        let mut body = vec![OTHER; length - common - said.len()];
        body.extend(said);
        Ok(Example::asked(body, &[ASK], &answer))
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let body = &example.input[..example.input.len() - self.common];
        let start = body.iter().position(|token| *token != OTHER).unwrap_or(0);
        let half = &body[start..start + (body.len() - start) / 2];
        let mut words = most_frequent(half, self.common);
        words.sort_by_key(|word| half.iter().position(|token| token == word));
        Some(("counts of the first half", words))
    }

    fn check(&self) -> Result<()> {
        within("data.task.words", self.words, 2..=65_536)?;
        within("data.task.common", self.common, 1..=self.words - 1)?;
        within("data.task.uncommon", self.uncommon, 1..=self.words - self.common)?;
        within("data.task.ratio", self.ratio, 2..=1024)
    }
}

/// The most frequent words of some tokens, most first; of equally frequent ones that which appears first.
fn most_frequent(tokens: &[u32], count: usize) -> Vec<u32> {
    let mut words: Vec<(u32, usize)> = Vec::new();
    for &token in tokens.iter().filter(|token| **token >= FIRST_WORD) {
        match words.iter_mut().find(|(word, _)| *word == token) {
            Some((_, times)) => *times += 1,
            None => words.push((token, 1)),
        }
    }
    words.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    words.resize(words.len().max(count), (FIRST_WORD, 0));
    words.into_iter().take(count).map(|(word, _)| word).collect()
}

fn counting(name: &str, words: usize, shortest: usize, content: String) -> TaskInfo {
    TaskInfo {
        name: name.to_owned(),
        answer: AnswerMode::Marked,
        vocab: FIRST_WORD as usize + words,
        classes: FIRST_WORD as usize + words,
        shortest,
        chance: 1.0 / words as f64,
        unit: AnswerUnit::Whole,
        level: None,
        content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::PI;

    #[test]
    fn zeta_at_even_numbers() {
        for (s, value) in [(2.0, PI.powi(2) / 6.0), (4.0, PI.powi(4) / 90.0), (6.0, PI.powi(6) / 945.0)] {
            assert!((zeta(s) - value).abs() < 1e-15 * 4.0, "{s}: {}", zeta(s));
        }
        // 1 / (s - 1) + the constant of Euler and Mascheroni, up to a term of 0.0728 (s - 1)
        assert!((zeta(1.01) - 100.0 - 0.577_943_168_8).abs() < 1e-5, "{}", zeta(1.01));
    }

    #[test]
    fn counts_differ_from_the_shortest_sequence_on() {
        for (task, decided) in [
            (FrequentWords::default(), 56),
            (FrequentWords { words: 16, alpha: 3.0, answers: 2 }, 1),
            (FrequentWords { words: 3, alpha: 1.5, answers: 2 }, 1),
        ] {
            let shortest = task.facts().shortest;
            assert!(shortest >= decided, "{task:?}: {shortest}");
            assert!((shortest..5000).all(|length| task.is_decided(length - task.answers)), "{task:?}");
            assert!(!task.is_decided(shortest - 1 - task.answers), "{task:?}");
        }
        assert_eq!(FrequentWords::default().facts().shortest, 56);
    }
}
