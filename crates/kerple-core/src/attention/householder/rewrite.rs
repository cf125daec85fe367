//! Keys of a KV cache, rewritten for queries after more tokens.

use super::{HouseholderProducts, TILE};
use crate::Number;
use crate::cpu::InstructionSet;
use crate::cpu::lanes::{Lanes, SimdKernel};
use crate::tiles::rows::{AddScaledRow, Dots};
use crate::tiles::workers;

/// Rewrites keys `[B, G, capacity, D]`: the first `held` of each head become `H_e .. H_s k_j`, where `s` is the first and `e` the last
/// token of `products`, and those of these tokens, which follow as they were projected, `H_e .. H_(j+1) k_j`. So each key is what a
/// query at the position of the last token multiplies with. A few tokens rewrite all keys one after another; of more, a head's product
/// is computed once, and time per token does not grow with the number of keys held.
///
/// # Panics
/// If a slice does not fit the sizes.
pub fn rewrite_keys<T: Number>(products: HouseholderProducts<T>, held: usize, capacity: usize, keys: &mut [T]) {
    let HouseholderProducts { batch, kv_heads, tokens, head_dim, directions, strengths } = products;
    crate::check_shape!(keys, B = batch, G = kv_heads, capacity = capacity, D = head_dim);
    crate::check_shape!(directions, B = batch, G = kv_heads, L = tokens, D = head_dim);
    crate::check_shape!(strengths, B = batch, G = kv_heads, L = tokens);
    assert!(held + tokens <= capacity, "{held} + {tokens} keys do not fit in {capacity}");
    T::householder_rewrite(InstructionSet::current(), products, held, capacity, keys);
}

/// [`rewrite_keys`] of checked sizes.
pub(in crate::attention) fn run_rewrite<T: Number>(
    set: InstructionSet,
    products: HouseholderProducts<T>,
    held: usize,
    capacity: usize,
    keys: &mut [T],
) {
    let HouseholderProducts { tokens, head_dim, directions, strengths, .. } = products;
    if tokens == 0 {
        return;
    }
    workers::for_each_task(keys.chunks_exact_mut(capacity * head_dim), |unit, keys| {
        let directions = &directions[unit * tokens * head_dim..][..tokens * head_dim];
        let strengths = &strengths[unit * tokens..][..tokens];
        T::dispatch(set, RewriteHead { keys: &mut keys[..(held + tokens) * head_dim], held, directions, strengths });
    });
}

/// The keys of one head.
struct RewriteHead<'a, T> {
    keys: &'a mut [T],
    held: usize,
    directions: &'a [T],
    strengths: &'a [T],
}

impl<T: Number> SimdKernel<T> for RewriteHead<'_, T> {
    type Output = ();

    fn run<L: Lanes<Number = T>>(self, lanes: L) {
        let RewriteHead { keys, held, directions, strengths } = self;
        let (tokens, head_dim) = (strengths.len(), directions.len() / strengths.len());
        let by_token = |token: usize, keys: &mut [T]| {
            let (w, mut along) = (&directions[token * head_dim..][..head_dim], [T::ZERO; TILE]);
            for keys in keys.chunks_mut(TILE * head_dim) {
                let along = &mut along[..keys.len() / head_dim];
                lanes.run(Dots { q: w, k: keys, stride: head_dim, to: along });
                for (key, &mut along) in keys.chunks_exact_mut(head_dim).zip(along) {
                    lanes.run(AddScaledRow { to: key, factor: -(strengths[token] * along), from: w });
                }
            }
        };
        // of a key, each token costs two rows, and a product D
        if 2 * tokens < head_dim {
            (0..tokens).for_each(|token| by_token(token, &mut keys[..(held + token) * head_dim]));
            return;
        }
        // the rows of H_e .. H_(t+1), and what is left of a key
        let mut product = workers::scratch(head_dim * head_dim);
        product.fill(T::ZERO);
        product.iter_mut().step_by(head_dim + 1).for_each(|one| *one = T::ONE);
        let mut seen = workers::scratch(head_dim);
        let (held, new) = keys.split_at_mut(held * head_dim);
        for (token, key) in new.chunks_exact_mut(head_dim).enumerate().rev() {
            lanes.run(Dots { q: key, k: &product, stride: head_dim, to: &mut seen });
            key.copy_from_slice(&seen);
            by_token(token, &mut product);
        }
        for key in held.chunks_exact_mut(head_dim) {
            lanes.run(Dots { q: key, k: &product, stride: head_dim, to: &mut seen });
            key.copy_from_slice(&seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewritten keys of two heads, one matrix after another.
    fn by_the_definition(products: HouseholderProducts<f64>, held: usize, capacity: usize, keys: &mut [f64]) {
        let HouseholderProducts { tokens, head_dim, directions, strengths, .. } = products;
        for (unit, keys) in keys.chunks_mut(capacity * head_dim).enumerate() {
            for token in 0..tokens {
                let w = &directions[(unit * tokens + token) * head_dim..][..head_dim];
                for key in keys[..(held + token) * head_dim].chunks_mut(head_dim) {
                    let along: f64 = w.iter().zip(&*key).map(|(w, k)| w * k).sum();
                    key.iter_mut().zip(w).for_each(|(k, w)| *k -= strengths[unit * tokens + token] * along * w);
                }
            }
        }
    }

    #[test]
    fn few_tokens_and_many_rewrite_keys_as_the_definition() {
        for (held, tokens, head_dim) in [(7, 1, 5), (100, 1, 16), (70, 3, 16), (70, 40, 16), (0, 9, 4), (3, 0, 4)] {
            let (batch, kv_heads, capacity) = (2, 2, held + tokens + 3);
            let numbers = |count: usize, phase: f64| -> Vec<f64> {
                (0..count).map(|at| (0.7 * at as f64 + phase).sin()).collect()
            };
            let units = batch * kv_heads;
            let mut directions = numbers(units * tokens * head_dim, 1.0);
            for w in directions.chunks_mut(head_dim) {
                let length = w.iter().map(|x| x * x).sum::<f64>().sqrt();
                w.iter_mut().for_each(|x| *x /= length);
            }
            let strengths: Vec<f64> = numbers(units * tokens, 2.0).into_iter().map(|x| 1.0 + x).collect();
            let (directions, strengths) = (&directions[..], &strengths[..]);
            let products = HouseholderProducts { batch, kv_heads, tokens, head_dim, directions, strengths };
            let keys = numbers(units * capacity * head_dim, 3.0);
            let (mut found, mut expected) = (keys.clone(), keys);
            rewrite_keys(products, held, capacity, &mut found);
            by_the_definition(products, held, capacity, &mut expected);
            // tens of products of numbers of size 1
            found.iter().zip(&expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-13, "{held} {tokens}: {a} {b}"));
        }
    }
}
