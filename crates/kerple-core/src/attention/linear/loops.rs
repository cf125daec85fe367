//! Loops over rows of numbers, compiled for each instruction set.

use crate::cpu::{reduce, vectorized};

vectorized! {
    /// `to = factor * from`
    pub(super) fn scaled(to: &mut [T], factor: T, from: &[T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = factor * *from;
        }
    }
}

vectorized! {
    /// `to = to * by`
    pub(super) fn multiply(to: &mut [T], by: &[T]) {
        for (to, by) in to.iter_mut().zip(by) {
            *to = *to * *by;
        }
    }
}

vectorized! {
    /// `to += a * b`
    pub(super) fn add_products(to: &mut [T], a: &[T], b: &[T]) {
        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
            *to = a.mul_add(*b, *to);
        }
    }
}

vectorized! {
    /// `to = keep * to + from`
    pub(super) fn fade(to: &mut [T], keep: T, from: &[T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = keep.mul_add(*to, *from);
        }
    }
}

vectorized! {
    /// `to += from - lost * to`
    pub(super) fn lose(to: &mut [T], lost: T, from: &[T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += (-lost).mul_add(*to, *from);
        }
    }
}

vectorized! {
    pub(super) fn sum(values: &[T]) -> T {
        reduce::sum([values], |[value]| value)
    }
}

vectorized! {
    /// `to += value`
    pub(super) fn add(to: &mut [T], value: T) {
        for to in to {
            *to += value;
        }
    }
}
