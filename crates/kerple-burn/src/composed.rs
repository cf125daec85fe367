//! The definitions: every fused operation of this crate written with plain Burn operations.
//!
//! Backends without a fused version run these, and the tests hold the fused versions to them. They hold whole score
//! matrices in memory; that is the price of being readable and portable.

use crate::positions::Positions;
use burn::tensor::{Bool, Int, Tensor, TensorData, activation};

/// `(x - mean) / sqrt(variance + eps) * gamma + beta` over the last axis, biased variance.
pub fn layer_norm(x: Tensor<3>, gamma: Tensor<1>, beta: Tensor<1>, eps: f64) -> Tensor<3> {
    let mean = x.clone().mean_dim(2);
    let centred = x - mean;
    let variance = centred.clone().powi_scalar(2).mean_dim(2);
    centred / (variance + eps).sqrt() * gamma.unsqueeze() + beta.unsqueeze()
}

/// `x W + b` over the last axis; `weight` is `[in, out]`.
pub fn linear(x: Tensor<3>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<3> {
    let [batch, len, width] = x.dims();
    let [_, out] = weight.dims();
    x.reshape([batch * len, width]).matmul(weight).reshape([batch, len, out]) + bias.unsqueeze()
}

/// `[Q, K]` of the distances from query `i` at position `keys - queries + i` to key `j`; negative ahead of the query.
fn distances(queries: usize, keys: usize) -> Vec<i64> {
    let row = |i: usize| (0..keys).map(move |j| (keys + i) as i64 - (queries + j) as i64);
    (0..queries).flat_map(row).collect()
}

/// Spreads a table over distances `[H, T]` into `[H, Q, K]`; entries ahead of the query take distance 0.
fn spread(table: Tensor<2>, distances: &[i64], [queries, keys]: [usize; 2]) -> Tensor<3> {
    let heads = table.dims()[0];
    let index: Vec<i64> = distances.iter().map(|d| (*d).max(0)).collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [queries * keys]), &table.device());
    table.select(1, index).reshape([heads, queries, keys])
}

/// Causal attention on `[B, H, Q, D]` queries and `[B, H, K, D]` keys and values:
/// `softmax(q.k / sqrt(D) * weight[d] + bias[d]) v`, the last query being at the last key's position.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, positions: &Positions) -> Tensor<4> {
    let ([_, _, queries, head_dim], [_, _, keys, _]) = (q.dims(), k.dims());
    let device = q.device();
    let distances = distances(queries, keys);
    // a product, since the derivative of a division by a number is rounded to f32
    let mut scores = q.matmul(k.swap_dims(2, 3)) * (head_dim as f64).sqrt().recip();
    if let Some(weight) = &positions.weight {
        scores = scores * spread(weight.clone(), &distances, [queries, keys]).unsqueeze();
    }
    if let Some(bias) = &positions.bias {
        scores = scores + spread(bias.clone(), &distances, [queries, keys]).unsqueeze();
    }
    let window = positions.window.unwrap_or(usize::MAX) as u64;
    let hidden: Vec<bool> = distances.iter().map(|d| *d < 0 || *d as u64 >= window).collect();
    let hidden = Tensor::<2, Bool>::from_data(TensorData::new(hidden, [queries, keys]), &device);
    let weights = activation::softmax(scores.mask_fill(hidden.unsqueeze(), f64::NEG_INFINITY), 3);
    weights.matmul(v)
}

/// Splits a packed projection `[B, L, 3M]`, grouped `[head][q|k|v][D]`, into three `[B, H, L, D]`.
pub fn unpack(qkv: Tensor<3>, heads: usize) -> [Tensor<4>; 3] {
    let [batch, len, width] = qkv.dims();
    let head_dim = width / 3 / heads;
    let packed = qkv.reshape([batch, len, heads, 3, head_dim]);
    [0, 1, 2].map(|part| packed.clone().narrow(3, part, 1).reshape([batch, len, heads, head_dim]).swap_dims(1, 2))
}

/// Turns the first features of `[B, H, L, D]` by the angles of `positions`, half-split.
pub fn rotate(x: Tensor<4>, positions: &Positions) -> Tensor<4> {
    let Some(rotary) = &positions.rotary else { return x };
    let [_, _, len, head_dim] = x.dims();
    let half = rotary.half();
    let table = |values: &[f64]| {
        let data = TensorData::new(values.to_vec(), [len, half]);
        Tensor::<2>::from_data(data, (&x.device(), x.dtype())).unsqueeze::<4>()
    };
    let (cos, sin) = (table(rotary.cos()), table(rotary.sin()));
    let (low, high) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    let mut parts = vec![low.clone() * cos.clone() - high.clone() * sin.clone(), high * cos + low * sin];
    if head_dim > 2 * half {
        parts.push(x.narrow(3, 2 * half, head_dim - 2 * half));
    }
    Tensor::cat(parts, 3)
}

/// [`attention`] after the rotation of queries and keys, all `[B, H, L, D]`.
pub fn rotated_attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, positions: &Positions) -> Tensor<4> {
    attention(rotate(q, positions), rotate(k, positions), v, positions)
}

/// Causal self-attention on a packed projection `[B, L, 3M]`; returns `[B, L, M]`.
pub fn self_attention(qkv: Tensor<3>, heads: usize, positions: &Positions) -> Tensor<3> {
    let [batch, len, width] = qkv.dims();
    let [q, k, v] = unpack(qkv, heads);
    let out = rotated_attention(q, k, v, positions);
    out.swap_dims(1, 2).reshape([batch, len, width / 3])
}

/// Rows of `table` `[V, M]` for `[B, L]` token ids.
pub fn embed(table: Tensor<2>, tokens: &[u32], [batch, len]: [usize; 2]) -> Tensor<3> {
    let width = table.dims()[1];
    let index: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [batch * len]), &table.device());
    table.select(0, index).reshape([batch, len, width])
}

/// Negative log-likelihood in nats of each target under `softmax(x W)`, `[B, L]`; `weight` is `[M, V]`.
pub fn cross_entropy(x: Tensor<3>, weight: Tensor<2>, targets: &[u32]) -> Tensor<2> {
    let [batch, len, width] = x.dims();
    let rows = batch * len;
    let log_probabilities = activation::log_softmax(x.reshape([rows, width]).matmul(weight), 1);
    let index: Vec<i64> = targets.iter().map(|id| i64::from(*id)).collect();
    let index = Tensor::<2, Int>::from_data(TensorData::new(index, [rows, 1]), &log_probabilities.device());
    -log_probabilities.gather(1, index).reshape([batch, len])
}
