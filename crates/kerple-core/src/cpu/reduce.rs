//! Reductions over slices with a fixed order that fills vector registers.
//!
//! Element `i` goes to lane `i % 64`, and lanes are combined pairwise at the end.

use super::vectorized;
use crate::cpu::Number;
use std::hint::select_unpredictable;

/// Partial results kept side by side; as many as fill the pipelines of a core with AVX-512.
const LANES: usize = 64;

/// Folds equally long slices lane by lane.
#[inline(always)]
fn fold_lanes<T: Number, const N: usize>(slices: [&[T]; N], start: T, step: impl Fn(T, [T; N]) -> T) -> [T; LANES] {
    // loops, since `array::map` may become a call for every element
    let len = slices[0].len();
    let mut parts = [(&[][..], &[][..]); N];
    for (parts, slice) in parts.iter_mut().zip(slices) {
        *parts = slice[..len].as_chunks::<LANES>();
    }
    let mut lanes = [start; LANES];
    for block in 0..len / LANES {
        let mut blocks = [&parts[0].0[block]; N];
        for (block_of, (whole, _)) in blocks.iter_mut().zip(&parts) {
            *block_of = &whole[block];
        }
        for (i, lane) in lanes.iter_mut().enumerate() {
            let mut values = [start; N];
            for (value, block) in values.iter_mut().zip(&blocks) {
                *value = block[i];
            }
            *lane = step(*lane, values);
        }
    }
    for (i, lane) in lanes.iter_mut().enumerate().take(len % LANES) {
        let mut values = [start; N];
        for (value, (_, rest)) in values.iter_mut().zip(&parts) {
            *value = rest[i];
        }
        *lane = step(*lane, values);
    }
    lanes
}

/// Combines lanes pairwise: of 64, 32 with 32, then 16 with 16, down to one.
#[inline(always)]
pub(crate) fn combine<T: Number, const LANES: usize>(mut lanes: [T; LANES], both: impl Fn(T, T) -> T) -> T {
    // each width by itself, which makes it instructions on vectors
    macro_rules! halve {
        ($($width:literal)+) => {
            $(if $width < LANES {
                for i in 0..$width {
                    lanes[i] = both(lanes[i], lanes[i + $width]);
                }
            })+
        };
    }
    const { assert!(LANES.is_power_of_two() && LANES <= 64) };
    halve!(32 16 8 4 2 1);
    lanes[0]
}

/// The sum of `term` over corresponding elements of equally long slices.
#[inline(always)]
pub(crate) fn sum<T: Number, const N: usize>(slices: [&[T]; N], term: impl Fn([T; N]) -> T) -> T {
    combine(fold_lanes(slices, T::ZERO, |sum, values| sum + term(values)), |a, b| a + b)
}

/// The largest element, NaN ignored; minus infinity if there is none.
#[inline(always)]
pub(crate) fn max<T: Number>(values: &[T]) -> T {
    // an `if` becomes a masked store of the lanes that grow, which is slow on some processors
    let larger = |a: T, b: T| select_unpredictable(b > a, b, a);
    combine(fold_lanes([values], T::NEG_INFINITY, |largest, [value]| larger(largest, value)), larger)
}

vectorized! {
    /// The sum of the products of corresponding elements.
    pub(crate) fn dot(a: &[T], b: &[T]) -> T {
        sum([a, b], |[a, b]| a * b)
    }
}

vectorized! {
    /// Adds corresponding elements.
    pub(crate) fn add(to: &mut [T], from: &[T]) {
        assert_eq!(to.len(), from.len());
        for (to, from) in to.iter_mut().zip(from) {
            *to += *from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sum_and_max_equal_plain_loops(values in prop::collection::vec(-1000i32..1000, 0..300)) {
            // integers add exactly in any order
            let x: Vec<f32> = values.iter().map(|v| *v as f32).collect();
            let y: Vec<f32> = values.iter().rev().map(|v| (*v % 7) as f32).collect();
            prop_assert_eq!(sum([&x], |[a]| a), x.iter().sum::<f32>());
            prop_assert_eq!(sum([&x, &y], |[a, b]| a * b), x.iter().zip(&y).map(|(a, b)| a * b).sum::<f32>());
            prop_assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }

    #[test]
    fn max_ignores_nan() {
        let mut x = vec![1.0f32; 130];
        (x[3], x[70]) = (f32::NAN, 2.0);
        assert_eq!(max(&x), 2.0);
    }
}
