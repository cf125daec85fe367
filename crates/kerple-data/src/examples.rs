//! Examples: sequences with targets, the common form of all tasks and datasets.

use crate::error::Result;
use crate::split::Split;
use std::ops::Range;

/// The token between the two texts of a pair: it follows the padding and the 256 bytes.
pub const PAIR_SEPARATOR: u32 = 257;

/// Where and how a model answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMode {
    /// An encoder reads the sequence and, after it, as many empty places as there are targets, and
    /// answers there.
    Tape,
    /// A decoder answers at some tokens, from what came before: as many targets as tokens, most of them not scored.
    Marked,
    /// An encoder gives one answer from the whole sequence, whose examples may have different lengths.
    Class,
}

/// The level of a language in Chomsky's hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChomskyLevel {
    /// Finite automata.
    Regular,
    /// Deterministic pushdown automata.
    ContextFree,
    /// Linear bounded automata.
    ContextSensitive,
}

impl ChomskyLevel {
    /// The abbreviation in tables: R, DCF, CS.
    pub fn letters(self) -> &'static str {
        match self {
            ChomskyLevel::Regular => "R",
            ChomskyLevel::ContextFree => "DCF",
            ChomskyLevel::ContextSensitive => "CS",
        }
    }
}

/// What is right or wrong as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerUnit {
    /// Each scored target.
    Token,
    /// All tokens of an answer together, see [`Example::whole_answer`]: the tokens that are fed back inflate the share of right ones.
    Whole,
}

/// The facts of a task that are known before any example is read.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskInfo {
    /// Short name.
    pub name: String,
    /// How it is answered.
    pub answer: AnswerMode,
    /// The vocabulary size of sequences; the empty place of a [`AnswerMode::Tape`] is this number
    /// itself.
    pub vocab: usize,
    /// The number of answer classes.
    pub classes: usize,
    /// Least tokens of a sequence.
    pub shortest: usize,
    /// Share of the targets that guessing hits.
    pub chance: f64,
    /// What its score counts.
    pub unit: AnswerUnit,
    /// Its level in Chomsky's hierarchy, if it is a formal language.
    pub level: Option<ChomskyLevel>,
    /// Identifies the examples: equal for equal examples at every place and length.
    pub content: String,
}

/// One sequence and its targets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// Token ids, without empty places.
    pub input: Vec<u32>,
    /// The answers.
    pub targets: Vec<u32>,
    /// Which of the targets count for accuracy, as many as targets.
    pub scored: Vec<bool>,
    /// Places of the targets that are right only together; absent where every target is an answer.
    pub whole_answer: Option<Range<usize>>,
    /// The position of the evidence in the sequence, from 0 (start) to 1; for tasks with one such
    /// position.
    pub depth: Option<f64>,
}

impl Example {
    /// Places of the targets that count.
    pub fn scored_places(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.scored.iter().enumerate().filter(|(_, scored)| **scored).map(|(at, _)| at)
    }

    /// A text that ends with a question: `body, mark, given.., a_1 .. a_(n-1)`, scored from the last given token on, where the
    /// targets are `a_1 .. a_n`.
    pub(crate) fn asked(body: Vec<u32>, question: &[u32], answer: &[u32]) -> Example {
        let mut input = body;
        input.extend_from_slice(question);
        let first = input.len() - 1;
        input.extend_from_slice(&answer[..answer.len() - 1]);
        let mut targets = vec![0; first];
        targets.extend_from_slice(answer);
        let scored = (0..input.len()).map(|at| at >= first).collect();
        let whole_answer = Some(first..input.len());
        Example { input, targets, scored, whole_answer, depth: None }
    }
}

/// Which example is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExampleId {
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
    fn facts(&self) -> TaskInfo;

    /// What the user should know of them.
    fn remark(&self) -> Option<&'static str> {
        None
    }

    /// Refuses keys out of range.
    ///
    /// # Errors
    /// The key, the value and the limit.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Examples of a split; `None` where they are drawn without end.
    fn count(&self, _split: Split) -> Option<u64> {
        None
    }

    /// One example of `length` tokens where they are drawn, else at most `length`: longer ones are cut. Sources with a count
    /// use nothing of the place but split and index, which is below the count.
    ///
    /// # Errors
    /// Data that can no longer be read.
    fn example(&self, place: ExampleId, length: usize) -> Result<Example>;

    /// What a rule answers that skips what the task is about: its name, and a token for each scored target, in their order.
    /// `None` where none is known. A model that is no better than the rule has not learned the task.
    fn shortcut(&self, _example: &Example) -> Option<(&'static str, Vec<u32>)> {
        None
    }

    /// Targets of a sequence of `length` tokens: as many as tokens, unless said otherwise.
    fn answers(&self, length: usize) -> usize {
        length
    }
}
