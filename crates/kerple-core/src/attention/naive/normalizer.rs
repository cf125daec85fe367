//! From the logits of one row to its weights, and back: the three normalisers as they are defined.

use crate::Number;
use crate::forms::{Normalizer, SOFTPICK_EPS};

/// The weights of a row, and what its backward needs besides the logits.
pub(super) struct RowWeights<T> {
    pub(super) weights: Vec<T>,
    /// Log-sum-exp, for softpick the logarithm of the denominator, for stick-breaking the remainder.
    pub(super) saved: T,
}

/// Weights of the keys with these logits, from left to right, beside a sink where there is one.
pub(super) fn weights<T: Number>(normalizer: Normalizer, z: &[T], sink: Option<T>) -> RowWeights<T> {
    match normalizer {
        Normalizer::Softmax => softmax(z, sink),
        Normalizer::StickBreaking(_) => {
            // ln of what the keys to the right have left
            let mut left = T::ZERO;
            let mut weights = vec![T::ZERO; z.len()];
            for (weight, &z) in weights.iter_mut().zip(z).rev() {
                *weight = (left + log_sigmoid(z)).exp();
                left += log_sigmoid(-z);
            }
            RowWeights { weights, saved: left.exp() }
        }
        Normalizer::Softpick => {
            // where no logit is positive all weights are 0, whatever the shift
            let largest = z.iter().copied().fold(T::ZERO, T::max);
            let shifted = |&z: &T| (z - largest).exp() - (T::ZERO - largest).exp();
            let sum: T = z.iter().filter(|z| **z != T::NEG_INFINITY).map(|z| abs(shifted(z))).sum();
            let sum = sum + T::from_f64(SOFTPICK_EPS);
            let weights = z.iter().map(|z| shifted(z).max(T::ZERO) / sum).collect();
            RowWeights { weights, saved: largest + sum.ln() }
        }
    }
}

fn softmax<T: Number>(z: &[T], sink: Option<T>) -> RowWeights<T> {
    let all = || z.iter().copied().chain(sink);
    let largest = all().fold(T::LOWEST, T::max);
    let total: T = all().map(|z| (z - largest).exp()).sum(); // NaN if any of them is
    if total == T::ZERO {
        return RowWeights { weights: vec![T::ZERO; z.len()], saved: T::NEG_INFINITY };
    }
    let lse = largest + total.ln();
    RowWeights { weights: z.iter().map(|&z| (z - lse).exp()).collect(), saved: lse }
}

/// Replaces the gradients in the weights by those in the logits, given `mean`, the gradient of the output times the output.
pub(super) fn backward<T: Number>(
    normalizer: Normalizer,
    z: &[T],
    RowWeights { weights, saved }: &RowWeights<T>,
    mean: T,
    d: &mut [T],
) {
    let row = d.iter_mut().zip(weights).zip(z);
    match normalizer {
        Normalizer::Softmax => row.for_each(|((d, &p), _)| *d = p * (*d - mean)),
        Normalizer::StickBreaking(_) => {
            // what the key and those to its left, and the remainder, contribute
            let mut left = mean;
            for ((d, &p), &z) in row.rev() {
                let own = p * *d;
                *d = own - log_sigmoid(z).exp() * left;
                left -= own;
            }
        }
        Normalizer::Softpick => row.for_each(|((d, _), &z)| {
            let along = match z {
                z if z > T::ZERO => *d - mean,
                z if z < T::ZERO => mean,
                _ => T::ZERO,
            };
            *d = (z - *saved).exp() * along;
        }),
    }
}

/// `ln sigmoid(z)`
fn log_sigmoid<T: Number>(z: T) -> T {
    T::ZERO - (T::ZERO - z).max(T::ZERO) - (T::ZERO - abs(z)).exp().log_1p()
}

fn abs<T: Number>(x: T) -> T {
    x.max(T::ZERO - x)
}
