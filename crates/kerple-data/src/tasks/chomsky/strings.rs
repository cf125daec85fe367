//! Tasks on strings of tokens.

use super::TaskRng;

pub(super) fn bits(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    draw.tokens(length, 2)
}

pub(super) fn steps(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    draw.tokens(length, 3)
}

pub(super) fn digits(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    draw.tokens(length, 5)
}

/// A stack of 1 to `length - 1` bits, then actions.
pub(super) fn draw_stack(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    if length == 1 {
        return draw.tokens(1, 2);
    }
    let height = draw.between(1, length - 1);
    let mut input = draw.tokens(height, 2);
    input.extend((height..length).map(|_| 2 + draw.below(3) as u32));
    input
}

/// Bits twice, one of them hidden.
pub(super) fn draw_missing(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    if length == 1 {
        return vec![1];
    }
    let half = length / 2;
    let mut input = draw.tokens(half, 2);
    input.extend_from_within(..);
    input[draw.below(2 * half)] = 2;
    input.resize(length, 3);
    input
}

pub(super) fn even_pairs(input: &[u32]) -> Vec<u32> {
    let unequal = input.windows(2).filter(|pair| pair[0] != pair[1]).count();
    vec![(unequal % 2) as u32]
}

pub(super) fn parity_check(input: &[u32]) -> Vec<u32> {
    vec![input.iter().fold(0, |parity, bit| parity ^ bit)]
}

pub(super) fn cycle_navigation(input: &[u32]) -> Vec<u32> {
    // one step back is four forth
    vec![input.iter().fold(0, |place, step| (place + step + 4) % 5)]
}

pub(super) fn stack_manipulation(input: &[u32]) -> Vec<u32> {
    let mut stack = Vec::new();
    for token in input {
        match token {
            bit @ (0 | 1) => stack.push(*bit),
            2 => drop(stack.pop()),
            push => stack.push(push - 3),
        }
    }
    stack.reverse();
    stack
}

pub(super) fn reverse_string(input: &[u32]) -> Vec<u32> {
    input.iter().rev().copied().collect()
}

pub(super) fn duplicate_string(input: &[u32]) -> Vec<u32> {
    input.repeat(2)
}

pub(super) fn missing_duplicate(input: &[u32]) -> Vec<u32> {
    let half = input.len() / 2;
    match input.iter().position(|token| *token == 2) {
        Some(hidden) => vec![input[(hidden + half) % (2 * half)]],
        None => vec![1],
    }
}

pub(super) fn odds_first(input: &[u32]) -> Vec<u32> {
    let from = |first: usize| input.iter().skip(first).step_by(2).copied();
    from(1).chain(from(0)).collect()
}

pub(super) fn bucket_sort(input: &[u32]) -> Vec<u32> {
    let mut sorted = input.to_vec();
    sorted.sort_unstable();
    sorted
}
