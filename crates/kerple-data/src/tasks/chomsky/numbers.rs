//! Tasks on binary numbers as long as the sequence.

use super::{END, TaskRng};
use num_bigint::BigUint;

/// A number that is not 0, of at most `length` bits, as its bits.
pub(super) fn draw_positive(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    loop {
        let bits = draw.tokens(length, 2);
        if bits.contains(&1) {
            return bits;
        }
    }
}

/// Two numbers that are not 0 with [`END`] between them; of one or two tokens one number, not the largest.
pub(super) fn draw_pair(draw: &mut TaskRng, length: usize) -> Vec<u32> {
    if length <= 2 {
        return loop {
            let bits = draw.tokens(length, 2);
            if bits.contains(&0) {
                break bits;
            }
        };
    }
    let first = draw.between(1, length - 2);
    let mut input = draw_positive(draw, first);
    input.push(END);
    input.extend(draw_positive(draw, length - 1 - first));
    input
}

fn lowest_first(bits: &[u32]) -> BigUint {
    let bits: Vec<u8> = bits.iter().map(|bit| *bit as u8).collect();
    BigUint::from_radix_le(&bits, 2).expect("tokens are bits")
}

/// As few bits as there can be, one for 0.
fn bits_of(number: &BigUint) -> Vec<u32> {
    number.to_radix_le(2).into_iter().map(u32::from).collect()
}

/// The numbers of an input; a single one stands for itself and 0.
fn pair(input: &[u32]) -> [BigUint; 2] {
    let mut numbers = input.split(|token| *token == END).map(lowest_first);
    let first = numbers.next().expect("an input has a token");
    [first, numbers.next().unwrap_or_default()]
}

pub(super) fn binary_addition(input: &[u32]) -> Vec<u32> {
    let [a, b] = pair(input);
    bits_of(&(a + b))
}

pub(super) fn binary_multiplication(input: &[u32]) -> Vec<u32> {
    if input.len() <= 2 {
        return vec![0; input.len() - 1];
    }
    let [a, b] = pair(input);
    bits_of(&(a * b))
}

pub(super) fn compute_sqrt(input: &[u32]) -> Vec<u32> {
    let lowest: Vec<u32> = input.iter().rev().copied().collect();
    let mut root = bits_of(&lowest_first(&lowest).sqrt());
    root.resize(input.len().div_ceil(2), 0);
    root.reverse();
    root
}
