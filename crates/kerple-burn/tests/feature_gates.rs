//! Gates of features: the fused operation against the reference in Burn's own operations, outputs and gradients.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::attention_context::{AttentionMask, Mask, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::attention;
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

/// Sizes of a call: sequences, heads, key heads, queries, keys and features.
struct Sizes([usize; 6]);

/// The output and the gradients in queries, keys, values, gates of features and gates of heads.
fn run(Sizes(sizes): &Sizes, mask: AttentionMask, dtype: DType, implementation: Impl) -> [Vec<f64>; 6] {
    let [batch, heads, kv_heads, queries, keys, head_dim] = *sizes;
    let device = Device::flex().autodiff();
    let options = (&device, dtype);
    let q = tensor([batch, heads, queries, head_dim], 0.0, options).require_grad();
    let [k, v] = [1.0, 2.0].map(|phase| tensor([batch, kv_heads, keys, head_dim], phase, options).require_grad());
    // from gates that keep almost everything to some that keep nothing
    let strengths = tensor([batch, heads, keys, head_dim], 3.0, options);
    let feature_gates = ((strengths * 4.0 - 5.0).exp() * -1.0).detach().require_grad();
    let gates = (tensor([batch, heads, keys], 4.0, options).abs() * -0.1).detach().require_grad();
    let context = ScoreContext {
        mask,
        gates: Some(gates.clone()),
        feature_gates: Some(feature_gates.clone()),
        ..ScoreContext::default()
    };
    let out = attention(q.clone(), k.clone(), v.clone(), 0.125, &context, implementation);
    let up = tensor([batch, heads, queries, head_dim], 5.0, options);
    let gradients = (out.clone() * up).sum().backward();
    let of = |x: &Tensor<4>| numbers(x.grad(&gradients).expect("every input has a gradient"));
    let of_gates = numbers(gates.grad(&gradients).expect("every input has a gradient"));
    [numbers(out), of(&q), of(&k), of(&v), of(&feature_gates), of_gates]
}

#[test]
fn the_fused_operation_is_the_reference() {
    let causal = |window| AttentionMask::from(Mask::Causal { window });
    let padded = AttentionMask { lengths: Some([40, 17].into()), ..causal(None) };
    for (sizes, mask) in [
        (Sizes([2, 4, 2, 40, 40, 8]), causal(None)),
        (Sizes([1, 2, 1, 130, 130, 16]), causal(Some(50))),
        (Sizes([2, 2, 2, 3, 150, 8]), causal(None)),
        (Sizes([1, 2, 2, 1, 90, 8]), causal(Some(20))),
        (Sizes([2, 2, 1, 40, 40, 8]), padded),
    ] {
        // sums over up to 150 keys, in either type
        for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 2e-4)] {
            let [fused, reference] =
                [Impl::Kernel, Impl::Reference].map(|implementation| run(&sizes, mask.clone(), dtype, implementation));
            for (part, (fused, reference)) in fused.iter().zip(&reference).enumerate() {
                assert_eq!(fused.len(), reference.len());
                for (a, b) in fused.iter().zip(reference) {
                    assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{part} of {:?}: {a} {b}", sizes.0);
                }
            }
        }
    }
}

/// In packed documents too; that a document has the bits that it has alone is tested with the engine.
#[test]
fn the_fused_operation_is_the_reference_in_documents() {
    let lengths = [[13, 27]];
    let documents = PackedDocuments::from_lengths(lengths.iter().map(|row| &row[..]), 40).unwrap();
    let mask = AttentionMask { documents: Some(Arc::new(documents)), ..AttentionMask::from(Mask::CAUSAL) };
    let [fused, reference] = [Impl::Kernel, Impl::Reference]
        .map(|implementation| run(&Sizes([1, 2, 1, 40, 40, 8]), mask.clone(), DType::F64, implementation));
    for (a, b) in fused.iter().flatten().zip(reference.iter().flatten()) {
        // sums over 40 keys
        assert!((a - b).abs() <= 1e-11 * b.abs().max(1.0), "{a} {b}");
    }
}
