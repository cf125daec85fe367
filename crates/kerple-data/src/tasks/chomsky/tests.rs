//! Every task against a solver written another way: on text, digit by digit, by the words of the paper.

use super::*;
use crate::split::Split;
use proptest::prelude::*;
use std::collections::HashMap;

/// The answer up to its end, without what counts for nothing, by other means.
fn slowly(task: Chomsky, input: &[u32]) -> Vec<u32> {
    let text: String = input.iter().map(|token| char::from(b'0' + *token as u8)).collect();
    let number = |value: bool| vec![u32::from(value)];
    match task {
        Chomsky::EvenPairs => number(text.matches("01").count() % 2 != text.matches("10").count() % 2),
        Chomsky::ParityCheck => number(text.matches('1').count() % 2 == 1),
        Chomsky::CycleNavigation => {
            let (back, forth) = (text.matches('0').count() as i64, text.matches('2').count() as i64);
            vec![(forth - back).rem_euclid(5) as u32]
        }
        Chomsky::ModularArithmetic | Chomsky::ModularArithmeticBrackets => {
            let signs = ['+', '-', '*', '(', ')'];
            vec![by_substitution(&spell(input, &signs))]
        }
        Chomsky::SolveEquation if input.len() < 3 => vec![0],
        Chomsky::SolveEquation => {
            let text = spell(input, &['+', '-', '(', ')', 'x', '=']);
            let (left, right) = text.split_once('=').unwrap();
            let solves = |digit: &u32| by_substitution(&left.replace('x', &digit.to_string())).to_string() == right;
            let found: Vec<u32> = (0..5).filter(solves).collect();
            assert_eq!(found.len(), 1, "{text}");
            found
        }
        Chomsky::StackManipulation => by_text_stack(&text),
        Chomsky::ReverseString => (0..input.len()).map(|at| input[input.len() - 1 - at]).collect(),
        Chomsky::DuplicateString => (0..2 * input.len()).map(|at| input[at % input.len()]).collect(),
        Chomsky::MissingDuplicate if input.len() == 1 => vec![1],
        Chomsky::MissingDuplicate => {
            let (first, second) = text.trim_end_matches('3').split_at(input.len() / 2);
            let solves = |bit: &u32| {
                let fill = |half: &str| half.replace('2', &bit.to_string());
                fill(first) == fill(second)
            };
            (0..2).filter(solves).collect()
        }
        Chomsky::OddsFirst => {
            let (odd, even): (Vec<_>, Vec<_>) = input.iter().enumerate().partition(|(at, _)| at % 2 == 1);
            odd.into_iter().chain(even).map(|(_, token)| *token).collect()
        }
        Chomsky::BinaryAddition => add_by_hand(&split(input)),
        Chomsky::BinaryMultiplication if input.len() <= 2 => vec![0; input.len() - 1],
        Chomsky::BinaryMultiplication => multiply_by_hand(&split(input)),
        Chomsky::ComputeSqrt => root_by_hand(input),
        Chomsky::BucketSort => {
            (0..5).flat_map(|digit| input.iter().filter(move |token| **token == digit)).copied().collect()
        }
    }
}

fn spell(input: &[u32], signs: &[char]) -> String {
    let letter = |token: &u32| if *token < 5 { char::from(b'0' + *token as u8) } else { signs[*token as usize - 5] };
    input.iter().map(letter).collect()
}

/// Innermost brackets first, replaced by their value until none is left.
fn by_substitution(text: &str) -> u32 {
    let mut text = text.to_owned();
    while let Some(close) = text.find(')') {
        let open = text[..close].rfind('(').unwrap();
        text.replace_range(open..=close, &flat(&text[open + 1..close]).to_string());
    }
    flat(&text)
}

/// `-1+2*3--4` without brackets: terms split at signs that follow a digit, factors at `*`.
fn flat(text: &str) -> u32 {
    let mut terms = vec![String::new()];
    for letter in text.chars() {
        let starts = matches!(letter, '+' | '-') && terms.last().unwrap().ends_with(|last: char| last.is_ascii_digit());
        if starts {
            terms.push(String::new());
        }
        terms.last_mut().unwrap().push(letter);
    }
    let factor =
        |text: &str| -> i64 { text.replace("--", "").replace("+-", "-").trim_start_matches('+').parse().unwrap() };
    let term = |text: &String| text.split('*').map(factor).fold(1, |product: i64, factor| (product * factor) % 5);
    terms.iter().map(term).sum::<i64>().rem_euclid(5) as u32
}

fn by_text_stack(text: &str) -> Vec<u32> {
    let mut stack = String::new();
    for letter in text.chars() {
        match letter {
            '2' => stack.truncate(stack.len().saturating_sub(1)),
            '3' => stack += "0",
            '4' => stack += "1",
            bit => stack.push(bit),
        }
    }
    stack.bytes().rev().map(|bit| u32::from(bit - b'0')).collect()
}

fn split(input: &[u32]) -> [Vec<u32>; 2] {
    let end = input.iter().position(|token| *token == 2).unwrap_or(input.len());
    [input[..end].to_vec(), input.get(end + 1..).unwrap_or(&[]).to_vec()]
}

/// Without leading zeros, lowest bit first.
fn trimmed(mut bits: Vec<u32>) -> Vec<u32> {
    while bits.len() > 1 && bits.last() == Some(&0) {
        bits.pop();
    }
    bits
}

fn add_by_hand([a, b]: &[Vec<u32>; 2]) -> Vec<u32> {
    let (mut carry, mut sum) = (0, Vec::new());
    for at in 0..=a.len().max(b.len()) {
        let bit = |number: &[u32]| number.get(at).copied().unwrap_or(0);
        let total = bit(a) + bit(b) + carry;
        sum.push(total % 2);
        carry = total / 2;
    }
    trimmed(sum)
}

fn multiply_by_hand([a, b]: &[Vec<u32>; 2]) -> Vec<u32> {
    let mut product = vec![0];
    for (shift, bit) in b.iter().enumerate().filter(|(_, bit)| **bit == 1) {
        let shifted = [vec![0; shift], a.iter().map(|other| other * bit).collect()].concat();
        product = add_by_hand(&[product, shifted]);
    }
    product
}

/// Whether `a <= b`, both lowest bit first.
fn at_most(a: &[u32], b: &[u32]) -> bool {
    let bit = |number: &[u32], at: usize| number.get(at).copied().unwrap_or(0);
    let differ = (0..a.len().max(b.len())).rev().find(|at| bit(a, *at) != bit(b, *at));
    differ.is_none_or(|at| bit(a, at) == 0)
}

/// The largest number whose square does not exceed the input, bit by bit from the highest.
fn root_by_hand(input: &[u32]) -> Vec<u32> {
    let lowest: Vec<u32> = input.iter().rev().copied().collect();
    let mut root = vec![0; input.len().div_ceil(2)];
    for at in (0..root.len()).rev() {
        root[at] = 1;
        if !at_most(&multiply_by_hand(&[root.clone(), root.clone()]), &lowest) {
            root[at] = 0;
        }
    }
    root.reverse();
    root
}

fn place(seed: u64, index: u64) -> ExampleId {
    ExampleId { split: Split::Train, seed, index }
}

fn check(task: Chomsky, seed: u64, length: usize) -> Example {
    let facts = task.facts();
    let example = task.example(place(seed, 0), length).unwrap();
    let Example { input, targets, scored, .. } = &example;
    let odd = usize::from(task == Chomsky::ModularArithmetic && length.is_multiple_of(2));
    assert_eq!(input.len(), length - odd, "{task:?}");
    assert!(input.iter().all(|token| (*token as usize) < facts.vocab), "{task:?}: {input:?}");
    assert!(targets.iter().all(|class| (*class as usize) < facts.classes), "{task:?}: {targets:?}");
    assert_eq!((targets.len(), scored.len()), (task.answers(input.len()), targets.len()), "{task:?}");
    let mut expected = slowly(task, input);
    let counted = if task.row().ends { expected.len() + 1 } else { expected.len() };
    if task.row().ends {
        expected.push(END);
    }
    assert_eq!(&targets[..counted], expected, "{task:?}: {input:?}");
    assert!(targets[counted..].iter().all(|rest| *rest == 0), "{task:?}: {targets:?}");
    assert!(scored.iter().enumerate().all(|(at, scored)| *scored == (at < counted)), "{task:?}: {scored:?}");
    example
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn answers_agree_with_another_solver(length in 1usize..=60, seed: u64) {
        for task in Chomsky::ALL {
            check(task, seed, length);
        }
    }
}

#[test]
fn long_sequences_too() {
    for task in Chomsky::ALL {
        for (seed, length) in [(1, 499), (2, 500), (3, 1001)] {
            check(task, seed, length);
        }
    }
}

#[test]
fn names_are_those_of_the_original() {
    let names: Vec<&str> = Chomsky::ALL.into_iter().map(Chomsky::name).collect();
    assert_eq!((names.len(), names[4]), (15, "stack_manipulation"));
    assert!(Chomsky::ALL.into_iter().all(|task| Chomsky::named(task.name()) == Some(task)));
    assert_eq!(Chomsky::named("even pairs"), None);
    assert!(Chomsky::ALL.windows(2).all(|pair| pair[0].level() <= pair[1].level()));
}

/// How often each value of `of(example)` comes in 4000 examples of this length.
fn counted(task: Chomsky, length: usize, of: impl Fn(&Example) -> usize) -> HashMap<usize, u32> {
    let mut counts = HashMap::new();
    for index in 0..4000 {
        *counts.entry(of(&task.example(place(5, index), length).unwrap())).or_default() += 1;
    }
    counts
}

/// Each of `values` equally often: within six standard deviations of a binomial.
fn assert_uniform(what: &str, counts: &HashMap<usize, u32>, values: std::ops::Range<usize>) {
    assert!(counts.keys().all(|value| values.contains(value)), "{what}: {counts:?}");
    let expected = 4000.0 / values.len() as f64;
    let allowed = 6.0 * (expected * (1.0 - (values.len() as f64).recip())).sqrt();
    for value in values {
        let count = f64::from(counts.get(&value).copied().unwrap_or(0));
        assert!((count - expected).abs() < allowed, "{what}: {value} came {count} times, not {expected}: {counts:?}");
    }
}

#[test]
fn inputs_are_drawn_as_the_original_draws_them() {
    use Chomsky::*;
    for (task, kinds) in [(EvenPairs, 2), (ParityCheck, 2), (CycleNavigation, 3), (ReverseString, 2), (BucketSort, 5)] {
        assert_uniform(task.name(), &counted(task, 9, |example| example.input[4] as usize), 0..kinds);
    }
    let digits = |example: &Example| example.input[8] as usize;
    assert_uniform("digits", &counted(ModularArithmetic, 10, digits), 0..5);
    assert_uniform("operations", &counted(ModularArithmetic, 9, |example| example.input[7] as usize - 5), 0..3);
    let height = |example: &Example| example.input.iter().take_while(|token| **token < 2).count() - 1;
    assert_uniform("height of the stack", &counted(StackManipulation, 6, height), 0..5);
    assert_uniform("actions", &counted(StackManipulation, 6, |example| example.input[5] as usize - 2), 0..3);
    let first = |example: &Example| example.input.iter().position(|token| *token == 2).unwrap() - 1;
    assert_uniform("length of the first number", &counted(BinaryAddition, 8, first), 0..6);
    let hidden = |example: &Example| example.input.iter().position(|token| *token == 2).unwrap();
    assert_uniform("hidden place", &counted(MissingDuplicate, 7, hidden), 0..6);
    let left = |example: &Example| example.input.iter().skip(1).position(|token| (5..8).contains(token)).unwrap();
    // of eight tokens: left sides of one to four, of which the second and fourth begin with a minus
    let lefts = counted(ModularArithmeticBrackets, 8, left);
    assert!(lefts.keys().all(|at| [0, 1, 2, 3].contains(at)), "{lefts:?}");
    let root = |example: &Example| example.input.iter().fold(0, |number, bit| 2 * number + *bit as usize) - 1;
    assert_uniform("radicand", &counted(ComputeSqrt, 3, root), 0..7);
    let single = |example: &Example| example.input[0] as usize + 2 * example.input[1] as usize;
    assert_uniform("single number", &counted(BinaryMultiplication, 2, single), 0..3);
    let answer = |example: &Example| example.targets[0] as usize;
    assert_uniform("hidden digit", &counted(SolveEquation, 11, answer), 0..5);
}

#[test]
fn one_and_two_tokens_are_as_the_original_has_them() {
    let example = |task: Chomsky, length: usize| task.example(place(1, 1), length).unwrap();
    assert_eq!(example(Chomsky::SolveEquation, 2).input, [0, 0]);
    assert_eq!(example(Chomsky::MissingDuplicate, 1).input, [1]);
    assert_eq!(example(Chomsky::BinaryMultiplication, 1).targets, [2]);
    assert_eq!(example(Chomsky::BinaryMultiplication, 2).targets, [0, 2]);
    assert_eq!(example(Chomsky::BinaryAddition, 1).targets, [0, 2]);
}
