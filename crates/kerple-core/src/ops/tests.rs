//! Claims about all operations at the sizes of a real training step, where every one of them is cut into several tasks.

use super::activation::Activation;
use super::adam::{self, AdamWUpdate};
use super::cross_entropy::{self, LmHead, LossTargets};
use super::embedding::{gather, scatter_add};
use super::gemm::{MatmulShape, Out, add_rows, matmul};
use super::kept::KeptSlice;
use super::layer_norm::{self, EPSILON, NormGradients, NormParameters, RowNorm};
use super::linear::LinearParameters;
use super::mlp::{self, MlpParameters, MlpResidual};
use super::rotary::{Angles, Rotated, Turn, rotate};
use super::testing::{assert_same_at_any_threads, random, single};
use crate::precision::Precision;
use crate::tiles::Strides;

/// Rows, features, hidden features and tokens: a batch of 5 sequences of 512 tokens.
const ROWS: usize = 5 * 512;
const M: usize = 256;
const F: usize = 4 * M;
const V: usize = 1003;

fn values(len: usize, seed: u64) -> Vec<f32> {
    single(&random(len, seed))
}

fn ids() -> Vec<u32> {
    (0..ROWS).map(|i| (i * i % V) as u32).collect()
}

#[test]
fn threads_do_not_change_bits_of_products() {
    let (x, w, d_y) = (values(ROWS * M, 1), values(M * F, 2), values(ROWS * F, 3));
    assert_same_at_any_threads(|| {
        let [mut y, mut d_x, mut d_w] = [(); 3].map(|_| Vec::new());
        let mut d_bias = vec![0.0; F];
        matmul(Out::Append(&mut y), &x, &w, MatmulShape::new(ROWS, M, F));
        matmul(Out::Append(&mut d_x), &d_y, &w, MatmulShape::new(ROWS, F, M).transpose_b());
        matmul(Out::Append(&mut d_w), &x, &d_y, MatmulShape::new(M, ROWS, F).transpose_a());
        add_rows(&d_y, &mut d_bias);
        (y, d_x, d_w, d_bias)
    });
}

#[test]
fn threads_do_not_change_bits_of_a_block() {
    let (x, d_y) = (values(ROWS * M, 1), values(ROWS * M, 2));
    let [gamma, beta, b2] = [3, 4, 5].map(|seed| values(M, seed));
    let (w1, b1, w2) = (values(M * F, 6), values(F, 7), values(F * M, 8));
    let norm = NormParameters { kind: RowNorm::Layer, gamma: &gamma, beta: Some(&beta), epsilon: EPSILON };
    let linear = |weight, bias| LinearParameters {
        weight: KeptSlice::Exact(weight),
        bias: Some(bias),
        precision: Precision::F32,
    };
    let (up, down) = (linear(&w1[..], &b1[..]), linear(&w2[..], &b2[..]));
    let (activation, residual) = (Activation::Gelu, MlpResidual::Input);
    let block = MlpParameters { norm, up, gate: None, down, activation, factors: None, residual };
    assert_same_at_any_threads(|| {
        let (y, h) = mlp::forward_saving(block, &x);
        let gradients = mlp::backward(block, &x, &h, &d_y);
        let (mut normed, mut d_x) = (Vec::new(), Vec::new());
        let [mut d_gamma, mut d_beta] = [(); 2].map(|_| vec![0.0f32; M]);
        let stats = layer_norm::forward(norm, &x, &mut normed);
        let of_norm = NormGradients { d_gamma: &mut d_gamma, d_beta: Some(&mut d_beta) };
        layer_norm::backward(norm, &x, &stats, &d_y, Some(&x), &mut d_x, of_norm);
        (y, h, gradients, [normed, d_x, d_gamma, d_beta])
    });
}

#[test]
fn threads_do_not_change_bits_of_the_ends() {
    let (x, table, d_nll) = (values(ROWS * M, 1), values(V * M, 2), values(ROWS, 3));
    let [gamma, beta] = [4, 5].map(|seed| values(M, seed));
    let (w, bias, ids) = (values(M * V, 6), values(V, 7), ids());
    let norm = NormParameters { kind: RowNorm::Layer, gamma: &gamma, beta: Some(&beta), epsilon: EPSILON };
    assert_same_at_any_threads(|| {
        let head = LmHead { norm, w: (&w).into(), tied: false, bias: Some(&bias), precision: Precision::F32 };
        let targets = LossTargets { ids: &ids, scored: None };
        let (nll, gradients) = cross_entropy::forward_backward(head, &x, targets, &d_nll);
        let (mut rows, mut d_table) = (vec![0.0; ROWS * M], vec![0.0; V * M]);
        gather(&table, &ids, M, &mut rows);
        scatter_add(&x, &ids, M, &mut d_table);
        (nll, gradients, cross_entropy::forward(head, &x, targets), rows, d_table)
    });
}

#[test]
fn threads_do_not_change_bits_of_rotation_and_update() {
    let (heads, d, len) = (4, M / 4, 512);
    let (pairs, row) = (d / 2, 3 * M);
    let (start, gradient, qkv) = (values(M * F, 1), values(M * F, 2), values(ROWS * row, 3));
    let (cos, sin) = (values(len * pairs, 4), values(len * pairs, 5));
    assert_same_at_any_threads(|| {
        let mut qkv = qkv.clone();
        let strides = Strides { batch: len * row, head: 3 * d, row };
        let extent = Rotated { batch: ROWS / len, len, heads };
        rotate(&mut qkv, strides, extent, Angles { cos: &cos, sin: &sin, pairs }, Turn::Forward);
        let (mut p, mut m, mut v) = (start.clone(), vec![0.0; M * F], vec![0.0; M * F]);
        adam::update(&AdamWUpdate::default(), &mut p, &gradient, &mut m, &mut v);
        (qkv, p, m, v, adam::sum_of_squares(&gradient))
    });
}
