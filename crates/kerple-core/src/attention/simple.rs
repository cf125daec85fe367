//! Read this first: causal attention with one distance table in sixty lines, forward and backward.
//!
//! One head of one sequence of `L` tokens with `D` features each. Arrays are row-major: row `i` of
//! `q` starts at `i * D`. The complete reference, [`naive`](super::naive), is the same with batches,
//! heads, windows, padding and everything else that scores may have.
//!
//! [`forward`] takes one query `i` at a time:
//!
//! 1. The score of key `j` is `scale * q_i.k_j + bias[i - j]`. The bias depends on the distance
//!    alone, which makes the encoding *relative*, and a table of `L` numbers holds all of it.
//!    Keys after the query have no score: that is the causal mask.
//! 2. The softmax subtracts the largest score before it exponentiates, so that nothing overflows.
//!    `lse` is the logarithm of the sum of exponentials, and `exp(score - lse)` is a weight.
//! 3. The output is the sum of the values, weighted.
//!
//! Only `out` and `lse` are kept. [`backward`] computes each weight `p` again from its score and
//! `lse`; the weights themselves would be `L * L` numbers. For each pair:
//!
//! 1. `delta = d_out.out`, once per query: the mean of `d_out.v` under the weights.
//! 2. The gradient of a score is `p (d_out.v - delta)`, the derivative of the softmax.
//! 3. The score is a sum, so its gradient goes unchanged to `bias[i - j]`. Every query adds one
//!    term per distance: the gradient of a table is a sum along the diagonals of `[L, L]`.
//! 4. It goes to `q_i` by way of `k_j` and to `k_j` by way of `q_i`, both times `scale`.
//! 5. The value `v_j` gets `p d_out`.
//!
//! The fast engine, [`tiled`](super::tiled), does these steps for tiles of queries and keys.

use crate::Number;

/// What attention reads.
#[derive(Clone, Copy, Debug)]
pub struct SimpleAttention<'a, T> {
    /// Queries, `[L, D]`.
    pub q: &'a [T],
    /// Keys, `[L, D]`.
    pub k: &'a [T],
    /// Values, `[L, D]`.
    pub v: &'a [T],
    /// The distance table, `[L]`: `bias[d]` is added to the score of the key `d` tokens before the query.
    pub bias: &'a [T],
    /// D
    pub head_dim: usize,
}

/// Gradients of what attention reads, of the same shapes.
#[derive(Clone, Debug)]
pub struct SimpleGradients<T> {
    /// `[L, D]`
    pub d_q: Vec<T>,
    /// `[L, D]`
    pub d_k: Vec<T>,
    /// `[L, D]`
    pub d_v: Vec<T>,
    /// `[L]`
    pub d_bias: Vec<T>,
}

impl<T: Number> SimpleAttention<'_, T> {
    fn scale(&self) -> T {
        T::ONE / T::from_f64(self.head_dim as f64).sqrt()
    }

    fn score(&self, i: usize, j: usize) -> T {
        self.scale() * dot(self.row(self.q, i), self.row(self.k, j)) + self.bias[i - j]
    }

    fn row<'r>(&self, rows: &'r [T], at: usize) -> &'r [T] {
        &rows[at * self.head_dim..][..self.head_dim]
    }
}

fn dot<T: Number>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

/// Returns the output, `[L, D]`, and `lse`, `[L]`.
///
/// # Panics
/// If a slice is shorter than its shape.
pub fn forward<T: Number>(inputs: SimpleAttention<T>) -> (Vec<T>, Vec<T>) {
    let (len, dim) = (inputs.bias.len(), inputs.head_dim);
    let (mut out, mut lse) = (vec![T::ZERO; len * dim], vec![T::ZERO; len]);
    for i in 0..len {
        let scores: Vec<T> = (0..=i).map(|j| inputs.score(i, j)).collect();
        let max = scores.iter().copied().fold(T::LOWEST, T::max);
        let sum: T = scores.iter().map(|&score| (score - max).exp()).sum();
        lse[i] = max + sum.ln();
        for (j, &score) in scores.iter().enumerate() {
            let p = (score - lse[i]).exp();
            for f in 0..dim {
                out[i * dim + f] += p * inputs.v[j * dim + f];
            }
        }
    }
    (out, lse)
}

/// Returns every gradient of [`forward`], given its results and the gradient of the output, `[L, D]`.
///
/// # Panics
/// If a slice is shorter than its shape.
pub fn backward<T: Number>(inputs: SimpleAttention<T>, out: &[T], lse: &[T], d_out: &[T]) -> SimpleGradients<T> {
    let (len, dim) = (inputs.bias.len(), inputs.head_dim);
    let zeros = || vec![T::ZERO; len * dim];
    let mut found = SimpleGradients { d_q: zeros(), d_k: zeros(), d_v: zeros(), d_bias: vec![T::ZERO; len] };
    for (i, &lse) in lse[..len].iter().enumerate() {
        let d_out = inputs.row(d_out, i);
        let delta = dot(d_out, inputs.row(out, i));
        for j in 0..=i {
            let p = (inputs.score(i, j) - lse).exp();
            let d_score = p * (dot(d_out, inputs.row(inputs.v, j)) - delta);
            found.d_bias[i - j] += d_score;
            let d_dot = d_score * inputs.scale();
            for (f, &d_out) in d_out.iter().enumerate() {
                found.d_q[i * dim + f] += d_dot * inputs.k[j * dim + f];
                found.d_k[j * dim + f] += d_dot * inputs.q[i * dim + f];
                found.d_v[j * dim + f] += p * d_out;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{
        AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, ScoreTransform, Strides, View, ViewMut,
        naive,
    };
    use crate::ops::testing::{random, single};

    /// Everything that the reference computes of the same numbers.
    fn reference<T: Number>(inputs: SimpleAttention<T>, d_out: &[T]) -> [Vec<T>; 6] {
        let (len, head_dim) = (inputs.bias.len(), inputs.head_dim);
        let dims =
            AttentionDims { batch: 1, heads: 1, kv_heads: 1, queries: len, keys: len, head_dim, value_dim: head_dim };
        let scores = ScoreTransform::table(Some(inputs.bias), None, len);
        let problem = AttentionProblem { scores, ..AttentionProblem::causal(dims, inputs.scale()) };
        let strides = Strides { batch: 0, head: 0, row: head_dim };
        let view = |data| View { data, strides };
        let [mut out, mut d_q, mut d_k, mut d_v] = [(); 4].map(|()| vec![T::ZERO; len * head_dim]);
        let [mut lse, mut d_bias] = [(); 2].map(|()| vec![T::ZERO; len]);
        let [q, k, v] = [inputs.q, inputs.k, inputs.v].map(view);
        naive::forward(&problem, q, k, v, ViewMut::new(&mut out, strides), &mut lse);
        let saved = AttentionSaved { q, k, v, out: view(&out), lse: &lse, d_out: view(d_out) };
        let gradients = AttentionGradients {
            d_bias: Some(&mut d_bias),
            ..AttentionGradients::of_rows(
                ViewMut::new(&mut d_q, strides),
                ViewMut::new(&mut d_k, strides),
                ViewMut::new(&mut d_v, strides),
            )
        };
        naive::backward(&problem, saved, gradients);
        [out, lse, d_q, d_k, d_v, d_bias]
    }

    fn check<T: Number>(cast: impl Fn(&[f64]) -> Vec<T>, tolerance: f64) {
        for (len, head_dim) in [(1, 1), (2, 3), (37, 8)] {
            let [q, k, v, d_out] = [1, 2, 3, 4].map(|seed| cast(&random(len * head_dim, seed)));
            let bias = cast(&random(len, 5));
            let inputs = SimpleAttention { q: &q, k: &k, v: &v, bias: &bias, head_dim };
            let (out, lse) = forward(inputs);
            let SimpleGradients { d_q, d_k, d_v, d_bias } = backward(inputs, &out, &lse, &d_out);
            for (found, expected) in [out, lse, d_q, d_k, d_v, d_bias].iter().zip(reference(inputs, &d_out)) {
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    let error = (found.to_f64() - expected.to_f64()).abs();
                    // rounding of sums of at most 37 terms below 10
                    assert!(error < tolerance, "{len} x {head_dim}: {found:?} {expected:?}");
                }
            }
        }
    }

    #[test]
    fn equals_the_complete_reference() {
        check(|values| values.to_vec(), 1e-12);
        check(single, 1e-4);
    }
}
