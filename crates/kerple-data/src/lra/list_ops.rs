//! ListOps: nested minima, maxima, medians and sums modulo 10 of digits.
//!
//! Nangia and Bowman 2018, by the generator of Tay et al. 2021: a node above the deepest level is an operation with
//! probability 1/4, else a digit; an operation has 2 to 10 arguments. Expressions of more than 500 and fewer than 2000 tokens
//! are kept.
//!
//! ```text
//! [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]
//! ```
//!
//! Published files write each expression as a left-nested pair, `( ( ( [MAX 4 ) 3 ) ] )`. The tokenizer of the published runs
//! dropped closing brackets, which leaves no way to tell where an operation ends; `brackets = false` does the same.
//!
//! Equal expressions are in one split: a hash of the expression assigns the split, in the shares of
//! the published counts. The published generator draws without replacement instead, which is the
//! same for expressions of this length. Shorter ones, with limits of your own, may repeat within a
//! split.

use super::{check_stop, example, store};
use crate::error::{Error, Result};
use crate::examples::{Example, ExampleId, Examples, TaskInfo};
use crate::file::filled_lines;
use crate::order::StreamPurpose;
use crate::random::TaskRng;
use crate::split::Split;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use twox_hash::XxHash3_64;

/// Padding, digits, operations, the closing bracket.
pub const VOCABULARY: usize = 16;

/// Operations, by token.
const OPERATIONS: [&str; 4] = ["[MIN", "[MAX", "[MED", "[SM"];
const FIRST_DIGIT: u32 = 1;
const FIRST_OPERATION: u32 = 11;
const CLOSE: u32 = 15;

/// A longer file is not one of them: the published ones have 350 MB.
const LONGEST_FILE: u64 = 1 << 31;

/// Keys of `task = { kind = "listops" }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListOps {
    /// Whether closing brackets are tokens.
    pub brackets: bool,
    /// Expressions have more tokens than this, brackets counted.
    pub more_than: usize,
    /// Expressions have fewer tokens than this, brackets counted.
    pub fewer_than: usize,
    /// Most nodes on the way to a digit.
    pub depth: usize,
    /// Most arguments of an operation.
    pub arguments: usize,
    /// Expressions to train on.
    pub train: u64,
    /// Expressions to validate on.
    pub valid: u64,
    /// Expressions to test on.
    pub test: u64,
    /// Seed of the generator.
    pub seed: u64,
}

impl Default for ListOps {
    fn default() -> ListOps {
        ListOps {
            brackets: true,
            more_than: 500,
            fewer_than: 2000,
            depth: 10,
            arguments: 10,
            train: 96_000,
            valid: 2000,
            test: 2000,
            seed: 0,
        }
    }
}

impl ListOps {
    pub(super) fn open(&self, facts: TaskInfo, path: Option<&Path>, stop: &AtomicBool) -> Result<Box<dyn Examples>> {
        self.check(stop)?;
        match path {
            None => Ok(Box::new(GeneratedListOps { keys: *self, facts })),
            Some(path) => {
                let files = [&["basic_train.tsv"][..], &["basic_val.tsv"], &["basic_test.tsv"]];
                let read = |names: &&[&str]| {
                    check_stop(stop)?;
                    let (file, compression) =
                        store::require(path, names, "set `data.path` to the folder of the published files")?;
                    self.read(&file, &store::read(&file, compression, LONGEST_FILE)?)
                };
                let [train, valid, test] = [read(&files[0])?, read(&files[1])?, read(&files[2])?];
                Ok(Box::new(store::Store::new(facts, path, [train, valid, test], 0)?))
            }
        }
    }

    fn check(&self, stop: &AtomicBool) -> Result<()> {
        let refuse = |message: String, hint: &str| Err(Error::refused(message, hint));
        let ListOps { more_than, fewer_than, depth, arguments, .. } = *self;
        if fewer_than < more_than + 2 {
            return refuse(
                format!("data.task: more_than = {more_than} and fewer_than = {fewer_than} leave no length in between"),
                "the published values are more_than = 500 and fewer_than = 2000",
            );
        }
        if fewer_than > LONGEST {
            return refuse(
                format!("data.task.fewer_than = {fewer_than} is out of range; it must be at most {LONGEST}"),
                "the published values are more_than = 500 and fewer_than = 2000",
            );
        }
        if !(2..=1000).contains(&arguments) || !(1..=64).contains(&depth) {
            return refuse(
                format!("data.task: arguments = {arguments} or depth = {depth} is out of range"),
                "use 2 to 1000 arguments and a depth of 1 to 64; the published values are 10 and 10",
            );
        }
        super::check_counts([self.train, self.valid, self.test])?;
        // the smallest expression of some length there is must fit: one draw shows whether any does
        let place = ExampleId { split: Split::Train, seed: 0, index: 0 };
        match self.expression(place, stop)? {
            Ok(_) => Ok(()),
            Err(drawn) => refuse(
                format!(
                    "data.task: of {drawn} expressions, none has more than {more_than} and fewer \
                     than {fewer_than} tokens"
                ),
                "widen the limits, or raise `arguments` or `depth`",
            ),
        }
    }

    /// The expression at a place, or how many were drawn none of which is of the right length and split.
    ///
    /// # Errors
    /// `stop` was set before one was found.
    fn expression(&self, place: ExampleId, stop: &AtomicBool) -> Result<std::result::Result<Vec<u32>, u64>> {
        let split = place.split as u64;
        let mut draw = TaskRng::new(StreamPurpose::ListOps, [self.seed, split, place.index]);
        let (mut drawn, mut written) = (0, 0);
        while drawn < MOST_DRAWS && written < MOST_TOKENS {
            check_stop(stop)?;
            let mut tokens = Vec::new();
            self.tree(&mut draw, 1, &mut tokens);
            let fits = tokens.len() > self.more_than && tokens.len() < self.fewer_than;
            if fits && self.split_of(&tokens) == place.split {
                return Ok(Ok(tokens));
            }
            (drawn, written) = (drawn + 1, written + tokens.len() as u64);
        }
        Ok(Err(drawn))
    }

    /// Appends an expression; one that is too long is not finished.
    fn tree(&self, draw: &mut TaskRng, depth: usize, tokens: &mut Vec<u32>) {
        if tokens.len() >= self.fewer_than {
            return;
        }
        if depth >= self.depth || draw.unit() > 0.25 {
            tokens.push(FIRST_DIGIT + draw.below(10) as u32);
            return;
        }
        tokens.push(FIRST_OPERATION + draw.below(OPERATIONS.len()) as u32);
        for _ in 0..draw.between(2, self.arguments) {
            self.tree(draw, depth + 1, tokens);
        }
        tokens.push(CLOSE);
    }

    fn split_of(&self, tokens: &[u32]) -> Split {
        let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
        let counts = [self.train, self.valid, self.test].map(|count| count as f64);
        let shares = counts.map(|count| count / counts.iter().sum::<f64>());
        Split::draw(u128::from(XxHash3_64::oneshot(&bytes)), &shares)
    }

    /// The examples of a published file.
    fn read(&self, path: &Path, bytes: &[u8]) -> Result<store::Sequences> {
        let mut found = store::Sequences::default();
        for (number, line) in filled_lines(bytes) {
            let bad = |message: String| Error::damaged_at(path, format!(", line {number}"), message, HINT);
            let line = std::str::from_utf8(line)
                .map_err(|error| bad(format!("byte {} of the line is not valid UTF-8", error.valid_up_to())))?;
            if number == 1 && is_header(line) {
                continue;
            }
            let (source, target) = line
                .split_once('\t')
                .ok_or_else(|| bad("the line has no tab between expression and answer".to_owned()))?;
            let tokens = tokens(source).map_err(bad)?;
            let label =
                target.trim().parse::<u32>().map_err(|_| bad(format!("the answer `{target}` is not a number")))?;
            found.push(self.shown(&tokens).map(|token| token as u8), label).map_err(bad)?;
            let value = evaluate(&tokens).map_err(|why| bad(format!("the expression is not whole: {why}")))?;
            if value != label {
                return Err(bad(format!("the answer is {label}, but the value of the expression is {value}")));
            }
        }
        Ok(found)
    }

    /// The tokens that a model sees.
    fn shown<'t>(&self, tokens: &'t [u32]) -> impl Iterator<Item = u32> + 't {
        let brackets = self.brackets;
        tokens.iter().copied().filter(move |token| brackets || *token != CLOSE)
    }
}

/// Whether a line names the columns; files without such a line begin with an expression.
fn is_header(line: &str) -> bool {
    line.split('\t').map(str::trim).eq(["Source", "Target"])
}

const HINT: &str = "give files with one expression and its answer per line, separated by a tab; the \
                    first line may be `Source<tab>Target`";

/// Draws before it is said that there is no such expression; one in twelve is of the published length.
const MOST_DRAWS: u64 = 200_000;

/// Tokens of all of them together: a second or two.
const MOST_TOKENS: u64 = 1 << 27;

/// Most tokens of an expression, 500 times the published.
const LONGEST: usize = 1 << 20;

/// Expressions that are drawn when they are asked for.
struct GeneratedListOps {
    keys: ListOps,
    facts: TaskInfo,
}

impl Examples for GeneratedListOps {
    fn facts(&self) -> TaskInfo {
        self.facts.clone()
    }

    fn count(&self, split: Split) -> Option<u64> {
        Some(split.of([self.keys.train, self.keys.valid, self.keys.test]))
    }

    fn example(&self, place: ExampleId, length: usize) -> Result<Example> {
        let tokens = self.keys.expression(place, &AtomicBool::new(false))?.map_err(|drawn| {
            let message =
                format!("data.task: of {drawn} expressions, none belongs to the {} split", place.split.name());
            Error::refused(message, "widen the length limits")
        })?;
        let label = evaluate(&tokens).expect("generated expressions are whole");
        Ok(example(self.keys.shown(&tokens).take(length).collect(), label))
    }

    fn answers(&self, _: usize) -> usize {
        1
    }
}

/// The tokens of an expression as published files write it; parentheses carry no information beyond
/// the brackets.
///
/// # Errors
/// An unknown word.
pub fn tokens(source: &str) -> std::result::Result<Vec<u32>, String> {
    let token = |word: &str| match word {
        "]" => Ok(CLOSE),
        digit if digit.len() == 1 && digit.as_bytes()[0].is_ascii_digit() => {
            Ok(FIRST_DIGIT + u32::from(digit.as_bytes()[0] - b'0'))
        }
        name => match OPERATIONS.iter().position(|known| *known == name) {
            Some(at) => Ok(FIRST_OPERATION + at as u32),
            None => Err(format!("unknown ListOps word `{name}`")),
        },
    };
    source.split_whitespace().filter(|word| !matches!(*word, "(" | ")")).map(token).collect()
}

/// An expression as published files write it.
///
/// # Errors
/// Tokens that are not an expression.
pub fn source(tokens: &[u32]) -> std::result::Result<String, String> {
    fold(
        tokens,
        |digit| digit.to_string(),
        |operation, arguments: Vec<String>| {
            let parts = arguments.into_iter().chain(["]".to_owned()]);
            parts.fold(OPERATIONS[operation].to_owned(), |left, right| format!("( {left} {right} )"))
        },
    )
}

/// The answer of an expression, 0 to 9. A median between two digits is rounded down.
///
/// # Errors
/// Tokens that are not an expression.
pub fn evaluate(tokens: &[u32]) -> std::result::Result<u32, String> {
    fold(
        tokens,
        |digit| digit,
        |operation, mut values: Vec<u32>| {
            values.sort_unstable();
            let (smallest, largest) = (values[0], values[values.len() - 1]);
            match operation {
                0 => smallest,
                1 => largest,
                2 => (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2,
                _ => values.iter().sum::<u32>() % 10,
            }
        },
    )
}

/// Makes one value of an expression, from the innermost operations out.
fn fold<T>(
    tokens: &[u32],
    digit: impl Fn(u32) -> T,
    operation: impl Fn(usize, Vec<T>) -> T,
) -> std::result::Result<T, String> {
    let mut open: Vec<(usize, Vec<T>)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let value = match *token {
            token if (FIRST_DIGIT..FIRST_OPERATION).contains(&token) => digit(token - FIRST_DIGIT),
            token if (FIRST_OPERATION..CLOSE).contains(&token) => {
                open.push(((token - FIRST_OPERATION) as usize, Vec::new()));
                continue;
            }
            CLOSE => match open.pop() {
                Some((name, arguments)) if !arguments.is_empty() => operation(name, arguments),
                Some(_) => return Err(format!("the operation that token {at} closes has no arguments")),
                None => return Err(format!("token {at} closes an operation that was never opened")),
            },
            other => return Err(format!("token {at} is {other}, which is not a ListOps token")),
        };
        match open.last_mut() {
            Some((_, arguments)) => arguments.push(value),
            None if at + 1 == tokens.len() => return Ok(value),
            None => return Err(format!("the expression ends at token {at} of {}", tokens.len())),
        }
    }
    Err(match open.len() {
        1 => "1 operation is never closed".to_owned(),
        several => format!("{several} operations are never closed"),
    })
}
