//! Tasks on expressions modulo 5.

use super::TaskRng;

const MODULUS: u32 = 5;

/// What a token of an expression means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Digit(u32),
    Plus,
    Minus,
    Times,
    Open,
    Close,
    /// The hidden digit of an equation.
    Hidden,
    Equals,
}

/// The tokens behind the digits, in order.
const BRACKETS: [Symbol; 5] = [Symbol::Plus, Symbol::Minus, Symbol::Times, Symbol::Open, Symbol::Close];
const EQUATION: [Symbol; 6] =
    [Symbol::Plus, Symbol::Minus, Symbol::Open, Symbol::Close, Symbol::Hidden, Symbol::Equals];

fn read(tokens: &[u32], signs: &[Symbol]) -> Vec<Symbol> {
    let symbol = |token: &u32| match token.checked_sub(MODULUS) {
        None => Symbol::Digit(*token),
        Some(sign) => signs[sign as usize],
    };
    tokens.iter().map(symbol).collect()
}

fn write(symbols: &[Symbol], signs: &[Symbol]) -> Vec<u32> {
    let token = |symbol: &Symbol| match symbol {
        Symbol::Digit(digit) => *digit,
        sign => MODULUS + signs.iter().position(|known| known == sign).expect("the task has this sign") as u32,
    };
    symbols.iter().map(token).collect()
}

/// `a op b` modulo 5, for a and b below 5.
fn apply(a: u32, operation: Symbol, b: u32) -> u32 {
    match operation {
        Symbol::Plus => (a + b) % MODULUS,
        Symbol::Minus => (a + MODULUS - b) % MODULUS,
        Symbol::Times => a * b % MODULUS,
        other => panic!("{other:?} is not an operation"),
    }
}

/// Digits with operations between them.
pub(super) fn draw_simple(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    let length = length - usize::from(length.is_multiple_of(2));
    let token = |at: usize| if at.is_multiple_of(2) { draw.below(5) } else { 5 + draw.below(3) } as u32;
    (0..length).map(token).collect()
}

/// The value, products first: a sum of products of which the last is still open.
pub(super) fn simple(input: &[u32]) -> Vec<u32> {
    let symbols = read(input, &BRACKETS);
    let (mut sum, mut sign, mut product) = (0, Symbol::Plus, 1);
    for symbol in symbols {
        match symbol {
            Symbol::Digit(digit) => product = product * digit % MODULUS,
            Symbol::Times => {}
            next => {
                sum = apply(sum, sign, product);
                (sign, product) = (next, 1);
            }
        }
    }
    vec![apply(sum, sign, product)]
}

/// An expression of exactly `length` symbols.
fn expression(draw: &mut TaskRng, length: usize, operations: &[Symbol], out: &mut Vec<Symbol>) {
    let digit = |draw: &mut TaskRng| Symbol::Digit(draw.below(5) as u32);
    match length {
        1 => out.push(digit(draw)),
        2 => out.extend([Symbol::Minus, digit(draw)]),
        3 => out.extend([Symbol::Open, digit(draw), Symbol::Close]),
        4 => out.extend([Symbol::Open, Symbol::Minus, digit(draw), Symbol::Close]),
        _ => {
            let left = draw.between(1, length - 4);
            out.push(Symbol::Open);
            expression(draw, left, operations, out);
            out.push(operations[draw.below(operations.len())]);
            expression(draw, length - 3 - left, operations, out);
            out.push(Symbol::Close);
        }
    }
}

/// The value of an expression whose hidden digit, if it has one, is `hidden`.
fn value(symbols: &[Symbol], hidden: u32) -> u32 {
    // the value of every open bracket so far, and the operation that waits for its right side; the first is the whole
    let mut open: Vec<(Option<u32>, Symbol)> = vec![(None, Symbol::Plus)];
    let (mut before, mut negative) = (Symbol::Open, false);
    for &symbol in symbols {
        let operand = match (symbol, before) {
            (Symbol::Digit(digit), _) => Some(digit),
            (Symbol::Hidden, _) => Some(hidden),
            (Symbol::Close, _) => open.pop().expect("brackets match").0,
            (Symbol::Open, _) => {
                open.push((None, Symbol::Plus));
                None
            }
            // where a number must follow, a minus is its sign
            (Symbol::Minus, Symbol::Open | Symbol::Plus | Symbol::Minus | Symbol::Times) => {
                negative = true;
                None
            }
            (operation, _) => {
                open.last_mut().expect("brackets match").1 = operation;
                None
            }
        };
        if let Some(operand) = operand {
            let operand = if std::mem::take(&mut negative) { apply(0, Symbol::Minus, operand) } else { operand };
            let (left, operation) = open.last_mut().expect("brackets match");
            *left = Some(left.map_or(operand, |left| apply(left, *operation, operand)));
        }
        before = symbol;
    }
    open[0].0.expect("an expression has a value")
}

pub(super) fn draw_brackets(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    let mut symbols = Vec::with_capacity(length);
    expression(draw, length, &[Symbol::Plus, Symbol::Minus, Symbol::Times], &mut symbols);
    write(&symbols, &BRACKETS)
}

pub(super) fn brackets(input: &[u32]) -> Vec<u32> {
    vec![value(&read(input, &BRACKETS), 0)]
}

/// An expression with a hidden digit, `=`, its value.
pub(super) fn draw_equation(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    if length < 3 {
        return vec![0; length];
    }
    let mut symbols = Vec::with_capacity(length);
    expression(draw, length - 2, &[Symbol::Plus, Symbol::Minus], &mut symbols);
    let result = value(&symbols, 0);
    // from a drawn place on to the right, and round
    let from = draw.below(symbols.len());
    let is_digit = |at: &usize| matches!(symbols[*at], Symbol::Digit(_));
    let hidden = (from..symbols.len()).chain(0..from).find(is_digit).expect("an expression has a digit");
    symbols[hidden] = Symbol::Hidden;
    symbols.extend([Symbol::Equals, Symbol::Digit(result)]);
    write(&symbols, &EQUATION)
}

/// The only digit with which both sides are equal: the hidden one is added or subtracted once.
pub(super) fn equation(input: &[u32]) -> Vec<u32> {
    if input.len() < 3 {
        return vec![0];
    }
    let symbols = read(input, &EQUATION);
    let (left, right) = symbols.split_at(symbols.len() - 2);
    let right = value(&right[1..], 0);
    let solution = (0..MODULUS).find(|digit| value(left, *digit) == right);
    vec![solution.expect("one of five digits solves it")]
}
