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
    /// `to = kept * to + from`
    pub(super) fn decay_add(to: &mut [T], kept: T, from: &[T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = kept.mul_add(*to, *from);
        }
    }
}

vectorized! {
    /// `to += from - lost * to`: [`decay_add`] with `kept = 1 - lost` close to 1.
    pub(super) fn decay_add_slow(to: &mut [T], lost: T, from: &[T]) {
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
