//! Memory without keys: a bit that is written and read, and tokens that are copied in their order.
//!
//! ```text
//! flipflop         w 1 i 0 i 1 r 1 w 0 i 1 r 0                    answers under each r: the bit that was written last
//! selective_copy   . c . . a b . COPY _ _ _                       answers under the places behind COPY: c a b
//! ```
//!
//! Flip-flop languages are those of Liu et al. 2023, arXiv:2306.00946. Selective copying is that of Gu and Dao 2023, arXiv:2312.00752;
//! its places are uniform here, and not the gaps of a random walk, which make long sequences the easiest.

use super::{AnswerMode, AnswerPlaces, AnswerUnit, Example, ExampleId, Examples, TaskInfo, refuse_short, within};
use crate::error::{Error, Result};
use crate::random::{TaskRng, random};
use serde::{Deserialize, Serialize};

const WRITE: u32 = 0;
const READ: u32 = 1;
const IGNORE: u32 = 2;
const FIRST_BIT: u32 = 3;

/// One bit of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlipFlop {
    /// Share of the instructions that change and read nothing.
    pub ignore: f64,
    /// Where the answers stand. At an empty place after the sequence only the last bit is asked for, since an encoder sees the bits
    /// after the other reads; sequences then have an odd number of tokens, one less than asked for when that is even.
    #[serde(skip_serializing_if = "AnswerPlaces::is_marked")]
    pub answer: AnswerPlaces,
}

impl Default for FlipFlop {
    fn default() -> Self {
        FlipFlop { ignore: 0.8, answer: AnswerPlaces::Marked }
    }
}

impl FlipFlop {
    /// An instruction between the first and the last.
    fn instruction(&self, draw: &mut TaskRng) -> u32 {
        match draw.unit() {
            unit if unit < self.ignore => IGNORE,
            unit if unit < self.ignore + (1.0 - self.ignore) / 2.0 => WRITE,
            _ => READ,
        }
    }
}

impl Examples for FlipFlop {
    fn facts(&self) -> TaskInfo {
        TaskInfo {
            name: "flipflop".to_owned(),
            answer: self.answer.mode(),
            vocab: 5,
            classes: 5,
            shortest: 3,
            chance: 0.5,
            unit: AnswerUnit::Token,
            level: None,
            content: self.answer.content(format!("flipflop 1 FlipFlop {{ ignore: {:?} }}", self.ignore)),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        refuse_short("flipflop", length, 3)?;
        // an encoder would see a bit after the last read
        let length = if self.answer == AnswerPlaces::Tape && length.is_multiple_of(2) { length - 1 } else { length };
        let mut draw = random(place, length);
        let (mut input, mut targets, mut scored) = (Vec::new(), vec![0; length], vec![false; length]);
        let mut memory = 0;
        // pairs of an instruction and a bit; of an odd length the last has no bit
        while input.len() < length {
            let instruction = match input.len() {
                0 => WRITE,
                at if at + 2 >= length => READ,
                _ => self.instruction(&mut draw),
            };
            if instruction == READ {
                (targets[input.len()], scored[input.len()]) = (memory, true);
                input.extend([READ, memory]);
            } else {
                let bit = FIRST_BIT + draw.below(2) as u32;
                memory = if instruction == WRITE { bit } else { memory };
                input.extend([instruction, bit]);
            }
        }
        input.truncate(length);
        if self.answer == AnswerPlaces::Tape {
            return Ok(Example { input, targets: vec![memory], scored: vec![true], ..Example::default() });
        }
        Ok(Example { input, targets, scored, ..Example::default() })
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let bits = match self.answer {
            AnswerPlaces::Marked => example.scored_places().map(|at| example.input[at - 1]).collect(),
            AnswerPlaces::Tape => vec![example.input[example.input.len() - 2]],
        };
        Some(("the last bit, written or not", bits))
    }

    fn check(&self) -> Result<()> {
        if (0.0..1.0).contains(&self.ignore) {
            return Ok(());
        }
        let message = format!("data.task.ignore: {} is out of range; it must be at least 0 and below 1", self.ignore);
        Err(Error::refused(message, "leave it out to use the default"))
    }
}

/// Where the tokens to copy stand among blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyPlaces {
    /// Every set of places is equally likely.
    Uniform,
    /// Blanks stand only before tokens, as published: the last token ends the text.
    Gaps,
}

/// How the copy is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyAnswer {
    /// Under blanks.
    Blanks,
    /// Under the tokens of the copy so far.
    Fed,
}

/// Copying of the tokens that are not blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SelectiveCopy {
    /// Number of distinct tokens to copy.
    pub content: usize,
    /// Tokens to copy.
    pub copy: usize,
    /// Where they stand.
    pub places: CopyPlaces,
    /// How the copy is answered.
    pub answer: CopyAnswer,
}

impl Default for SelectiveCopy {
    fn default() -> Self {
        SelectiveCopy { content: 14, copy: 16, places: CopyPlaces::Uniform, answer: CopyAnswer::Blanks }
    }
}

impl SelectiveCopy {
    /// Tokens from the mark on.
    fn behind(&self) -> usize {
        match self.answer {
            CopyAnswer::Blanks => self.copy + 1,
            CopyAnswer::Fed => self.copy,
        }
    }
}

impl Examples for SelectiveCopy {
    fn facts(&self) -> TaskInfo {
        TaskInfo {
            name: "selective_copy".to_owned(),
            answer: AnswerMode::Marked,
            vocab: self.content + 2,
            classes: self.content,
            shortest: self.copy + self.behind(),
            chance: 1.0 / self.content as f64,
            unit: AnswerUnit::Token,
            level: None,
            content: format!("selective_copy 1 {self:?}"),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let (blank, mark) = (self.content as u32, self.content as u32 + 1);
        refuse_short("selective_copy", length, self.facts().shortest)?;
        let mut draw = random(place, length);
        let tokens = draw.tokens(self.copy, self.content);
        let room = length - self.behind();
        let mut body = vec![blank; room];
        let mut places = match self.places {
            CopyPlaces::Uniform => draw.distinct(self.copy, room),
            CopyPlaces::Gaps => {
                // each blank is put before a random token
                let mut gaps = vec![0; self.copy];
                (0..room - self.copy).for_each(|_| gaps[draw.below(self.copy)] += 1);
                let mut at = 0;
                gaps.iter().map(|gap| (at += gap + 1, at - 1).1).collect()
            }
        };
        places.sort_unstable();
        places.iter().zip(&tokens).for_each(|(place, token)| body[*place] = *token);
        if self.answer == CopyAnswer::Fed {
            return Ok(Example { whole_answer: None, ..Example::asked(body, &[mark], &tokens) });
        }
        body.push(mark);
        body.resize(length, blank);
        let mut targets = vec![0; room + 1];
        targets.extend(tokens);
        let scored = (0..length).map(|at| at > room).collect();
        Ok(Example { input: body, targets, scored, ..Example::default() })
    }

    fn shortcut(&self, example: &Example) -> Option<(&'static str, Vec<u32>)> {
        let room = example.input.len() - self.behind();
        let tokens = || example.input[..room].iter().enumerate().filter(|(_, token)| **token < self.content as u32);
        let expected = |number: usize| match self.places {
            CopyPlaces::Uniform => (number + 1) as f64 * (room + 1) as f64 / (self.copy + 1) as f64 - 1.0,
            CopyPlaces::Gaps => (number + 1) as f64 * room as f64 / self.copy as f64 - 1.0,
        };
        let nearest = |number: usize| {
            let distance = |at: usize| (at as f64 - expected(number)).abs();
            tokens().min_by(|a, b| distance(a.0).total_cmp(&distance(b.0))).map_or(0, |(_, token)| *token)
        };
        Some(("the token nearest to the mean place", (0..self.copy).map(nearest).collect()))
    }

    fn check(&self) -> Result<()> {
        within("data.task.content", self.content, 2..=65_536)?;
        within("data.task.copy", self.copy, 1..=65_536)
    }
}
