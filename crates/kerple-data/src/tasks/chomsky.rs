//! Fifteen formal languages of Chomsky's hierarchy. Source: Delétang et al. 2023, arXiv:2207.02098.
//! Where the paper and the released generators of Ruoss et al. 2023, arXiv:2305.16843, differ, the
//! generators are followed (see the docs of each task).
//!
//! A task is two functions: `draw` makes an input, `solve` the answer to any input. Numbers are as long as the sequence,
//! so those of [`Chomsky::BinaryAddition`], [`Chomsky::BinaryMultiplication`] and [`Chomsky::ComputeSqrt`] are big integers.

mod arithmetic;
mod numbers;
mod strings;

use super::{AnswerMode, AnswerUnit, ChomskyLevel, Example, ExampleId, Examples, TaskInfo};
use crate::error::Result;
use crate::random::{TaskRng, random};

/// Token that ends an answer of varying length; what follows it is trained and does not count.
const END: u32 = 2;

/// What is fixed about one of the tasks.
struct LanguageSpec {
    task: Chomsky,
    name: &'static str,
    level: ChomskyLevel,
    vocab: usize,
    classes: usize,
    /// Targets of a sequence of so many tokens.
    answers: fn(usize) -> usize,
    draw: fn(&mut TaskRng, usize) -> Vec<u32>,
    solve: fn(&[u32]) -> Vec<u32>,
    /// Whether the answer ends with [`END`].
    ends: bool,
}

/// The one list: `Name: name, level, vocabulary -> classes, answers, draw, solve, ends`.
macro_rules! tasks {
    ($($(#[$doc:meta])* $task:ident: $name:literal, $level:ident, $vocab:literal -> $classes:literal, $answers:expr,
        $draw:path, $solve:path, $ends:literal;)*) => {
        /// A task.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Chomsky {
            $($(#[$doc])* $task,)*
        }

        impl Chomsky {
            /// All of them, in the order of the hierarchy.
            pub const ALL: [Chomsky; [$($name),*].len()] = [$(Chomsky::$task),*];

            fn row(self) -> LanguageSpec {
                match self {
                    $(Chomsky::$task => LanguageSpec {
                        task: self, name: $name, level: ChomskyLevel::$level, vocab: $vocab, classes: $classes,
                        answers: $answers, draw: $draw, solve: $solve, ends: $ends,
                    },)*
                }
            }
        }
    };
}

tasks! {
    /// Bits; whether the number of unequal neighbours is odd, hence whether the first and last differ.
    EvenPairs: "even_pairs", Regular, 2 -> 2, |_| 1, strings::bits, strings::even_pairs, false;
    /// Digits below 5 and `+ - *` in turn; the value modulo 5, products first. Inputs have an odd number of tokens: one less
    /// than asked for when that is even (the paper has one more).
    ModularArithmetic: "modular_arithmetic", Regular, 9 -> 5, |_| 1, arithmetic::draw_simple, arithmetic::simple, false;
    /// Bits; whether the number of ones is odd.
    ParityCheck: "parity_check", Regular, 2 -> 2, |_| 1, strings::bits, strings::parity_check, false;
    /// Steps on a cycle of five: token 0 is back, 1 stay, 2 forth; where they end. The paper has 0 stay, 1 forth, 2 back.
    CycleNavigation: "cycle_navigation", Regular, 3 -> 5, |_| 1, strings::steps, strings::cycle_navigation, false;
    /// A stack of bits, bottom first, then actions: 2 pop, 3 push 0, 4 push 1; the stack after them, top first, and its end.
    StackManipulation: "stack_manipulation", ContextFree, 5 -> 3, |length| length + 1, strings::draw_stack,
        strings::stack_manipulation, true;
    /// Bits; the same backwards.
    ReverseString: "reverse_string", ContextFree, 2 -> 2, |length| length, strings::bits, strings::reverse_string, false;
    /// An expression of digits below 5, `+ - *`, unary minus and brackets around every operation; its value modulo 5.
    ModularArithmeticBrackets: "modular_arithmetic_brackets", ContextFree, 11 -> 5, |_| 1, arithmetic::draw_brackets,
        arithmetic::brackets, false;
    /// The same without products: one digit is hidden, and after `=` comes the value modulo 5; the
    /// answer is the digit. With fewer than three tokens all are 0, and so is the answer. The paper
    /// has products too.
    SolveEquation: "solve_equation", ContextFree, 11 -> 5, |_| 1, arithmetic::draw_equation, arithmetic::equation, false;
    /// Bits; the same twice.
    DuplicateString: "duplicate_string", ContextSensitive, 2 -> 2, |length| 2 * length, strings::bits,
        strings::duplicate_string, false;
    /// Bits, repeated, with one of them replaced by token 2, and a token 3 at the end when the
    /// length is odd; the answer is the hidden bit. With one token, the input is 1, and so is the
    /// answer.
    MissingDuplicate: "missing_duplicate_string", ContextSensitive, 4 -> 2, |_| 1, strings::draw_missing,
        strings::missing_duplicate, false;
    /// Bits; those at odd places, counted from 0, and then those at even places. The paper counts from 1.
    OddsFirst: "odds_first", ContextSensitive, 2 -> 2, |length| length, strings::bits, strings::odds_first, false;
    /// Two numbers of at least one bit, lowest bits first, with token 2 between them; their sum and its end. Of one or two
    /// tokens: one number, and itself.
    BinaryAddition: "binary_addition", ContextSensitive, 3 -> 3, |length| length + 1, numbers::draw_pair,
        numbers::binary_addition, true;
    /// The same; their product and its end. Of one or two tokens: one number, and 0.
    BinaryMultiplication: "binary_multiplication", ContextSensitive, 3 -> 3, |length| length, numbers::draw_pair,
        numbers::binary_multiplication, true;
    /// A number that is not 0, highest bits first (the paper has lowest first); the whole part of its square root.
    ComputeSqrt: "compute_sqrt", ContextSensitive, 2 -> 2, |length| length.div_ceil(2), numbers::draw_positive,
        numbers::compute_sqrt, false;
    /// Digits below 5; the same in order.
    BucketSort: "bucket_sort", ContextSensitive, 5 -> 5, |length| length, strings::digits, strings::bucket_sort, false;
}

impl Chomsky {
    /// The task of this name.
    pub fn named(name: &str) -> Option<Chomsky> {
        Chomsky::ALL.into_iter().find(|task| task.name() == name)
    }

    /// Its name in run files and reports.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its level in the hierarchy.
    pub fn level(self) -> ChomskyLevel {
        self.row().level
    }

    /// An input of `length` tokens, one less where the task needs an odd number.
    ///
    /// # Panics
    /// When the length is 0.
    pub(crate) fn draw(self, draw: &mut TaskRng, length: usize) -> Vec<u32> {
        assert!(length > 0, "a sequence has at least one token");
        (self.row().draw)(draw, length)
    }

    /// The answer to an input, and which of its tokens count for accuracy: all, or those up to its end.
    ///
    /// # Panics
    /// When the input is not valid for the task.
    pub fn solve(self, input: &[u32]) -> (Vec<u32>, Vec<bool>) {
        let row = self.row();
        let mut targets = (row.solve)(input);
        let answers = (row.answers)(input.len());
        if !row.ends {
            assert_eq!(targets.len(), answers, "{}: answers to {} tokens", row.name, input.len());
            return (targets, vec![true; answers]);
        }
        targets.push(END);
        assert!(targets.len() <= answers, "{}: {} answers to {} tokens", row.name, targets.len(), input.len());
        targets.resize(answers, 0);
        let counted = self.counted(&targets);
        (targets, counted)
    }

    /// Which tokens of an answer count for accuracy: all, or those up to its end.
    pub fn counted(self, targets: &[u32]) -> Vec<bool> {
        let end = targets.iter().position(|token| *token == END).filter(|_| self.row().ends);
        (0..targets.len()).map(|at| end.is_none_or(|end| at <= end)).collect()
    }
}

impl Examples for Chomsky {
    fn facts(&self) -> TaskInfo {
        let LanguageSpec { task, name, level, vocab, classes, .. } = self.row();
        // 1 of 5 where five answers are equally likely; the ternary answers of the paper count as bits
        let chance = if classes == 5 { 0.2 } else { 0.5 };
        TaskInfo {
            name: name.to_owned(),
            answer: AnswerMode::Tape,
            vocab,
            classes,
            shortest: 1,
            chance,
            unit: AnswerUnit::Token,
            level: Some(level),
            content: format!("{} 1", task.name()),
        }
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let input = self.draw(&mut random(place, length), length);
        let (targets, scored) = self.solve(&input);
        Ok(Example { input, targets, scored, ..Example::default() })
    }

    fn answers(&self, length: usize) -> usize {
        (self.row().answers)(length)
    }
}

#[cfg(test)]
mod tests;
