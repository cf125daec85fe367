//! Householder products: the fused operation against the reference in Burn's own operations, outputs and gradients.

use burn::tensor::{DType, Device, Tensor, TensorData, activation};
use kerple_burn::attention_context::{AttentionMask, HouseholderTensors, Mask, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, attention};
use kerple_core::attention::PackedDocuments;
use std::sync::Arc;

fn tensor<const D: usize>(shape: [usize; D], phase: f64, options: (&Device, DType)) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|at| (0.37 * at as f64 + phase).sin()).collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), options)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The output and the gradients in queries, keys, values, directions, strengths, gates and sinks, of so many sequences, heads, key heads,
/// queries, keys and features.
fn run(
    [batch, heads, kv_heads, queries, keys, head_dim]: [usize; 6],
    (mask, gated): (AttentionMask, bool),
    dtype: DType,
    implementation: Impl,
) -> Vec<Vec<f64>> {
    let device = Device::flex().autodiff();
    let options = (&device, dtype);
    let q = tensor([batch, heads, queries, head_dim], 0.0, options).require_grad();
    let [k, v, u] =
        [1.0, 2.0, 3.0].map(|phase| tensor([batch, kv_heads, keys, head_dim], phase, options).require_grad());
    let logits = tensor([batch, kv_heads, keys, 1], 4.0, options).require_grad();
    let gates = tensor([batch, heads, keys], 5.0, options).require_grad();
    let sinks = tensor([heads], 6.0, options).require_grad();
    let lengths = (u.clone() * u.clone()).sum_dim(3).sqrt();
    let products = HouseholderTensors {
        directions: u.clone() / lengths,
        strengths: activation::sigmoid(logits.clone() * 3.0) * 2.0,
    };
    let gates_or_none = gated.then(|| activation::log_sigmoid(gates.clone()));
    let context = ScoreContext { mask, gates: gates_or_none, householder: Some(products), ..ScoreContext::default() };
    let scoring = Scoring { softcap: Some(3.0), sinks: Some(sinks.clone()), ..Scoring::from(0.125) };
    let out = attention(q.clone(), k.clone(), v.clone(), scoring, &context, implementation);
    let up = tensor([batch, heads, queries, head_dim], 7.0, options);
    let gradients = (out.clone() * up).sum().backward();
    let of = |x: &Tensor<4>| numbers(x.grad(&gradients).expect("every input has a gradient"));
    let mut all = vec![numbers(out), of(&q), of(&k), of(&v), of(&u), of(&logits)];
    all.push(numbers(sinks.grad(&gradients).expect("every input has a gradient")));
    all.extend(gates.grad(&gradients).filter(|_| gated).map(numbers));
    all
}

fn causal(window: Option<usize>) -> AttentionMask {
    AttentionMask::from(Mask::Causal { window })
}

#[test]
fn the_fused_operation_is_the_reference() {
    let padded = AttentionMask { lengths: Some([40, 17].into()), ..causal(None) };
    let rows = [[13, 27], [30, 8]];
    let documents = PackedDocuments::from_lengths(rows.iter().map(|row| &row[..]), 40).unwrap();
    let packed = AttentionMask { documents: Some(Arc::new(documents)), ..causal(None) };
    for (sizes, mask) in [
        ([2, 4, 2, 40, 40, 8], causal(None)),
        ([1, 2, 1, 130, 130, 16], causal(Some(50))),
        ([2, 2, 2, 3, 150, 8], causal(None)),
        ([1, 2, 2, 1, 90, 8], causal(Some(20))),
        ([2, 2, 1, 40, 40, 8], padded),
        ([2, 2, 1, 40, 40, 8], packed),
    ] {
        for gated in [false, true] {
            // sums over up to 150 keys and as many products, in either type
            for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 2e-4)] {
                let setting = (mask.clone(), gated);
                let [fused, reference] = [Impl::Kernel, Impl::Reference]
                    .map(|implementation| run(sizes, setting.clone(), dtype, implementation));
                assert_eq!(fused.len(), reference.len());
                for (part, (fused, reference)) in fused.iter().zip(&reference).enumerate() {
                    assert_eq!(fused.len(), reference.len());
                    for (a, b) in fused.iter().zip(reference) {
                        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{part} of {sizes:?}: {a} {b}");
                    }
                }
            }
        }
    }
}
