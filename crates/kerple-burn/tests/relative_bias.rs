//! A relative bias per row: the fused operation against the reference in Burn's own operations, outputs and gradients.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::attention_context::{AttentionMask, Mask, RelativeTensors, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::attention;

/// Sizes of a call: sequences, heads, key heads, queries, keys, features, rank and reach.
struct Sizes([usize; 8]);

/// The output and the gradients in queries, keys, values, rows and profiles.
fn run(Sizes(sizes): &Sizes, mask: AttentionMask, dtype: DType, implementation: Impl) -> [Vec<f64>; 6] {
    let [batch, heads, kv_heads, queries, keys, head_dim, rank, reach] = *sizes;
    let device = Device::flex().autodiff();
    fn tensor<const D: usize>(shape: [usize; D], phase: f64, options: (&Device, DType)) -> Tensor<D> {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|at| (0.37 * at as f64 + phase).sin()).collect();
        Tensor::<D>::from_data(TensorData::new(values, shape), options).require_grad()
    }
    let options = (&device, dtype);
    let q = tensor([batch, heads, queries, head_dim], 0.0, options);
    let [k, v] = [1.0, 2.0].map(|phase| tensor([batch, kv_heads, keys, head_dim], phase, options));
    let rows = tensor([batch, heads, queries, rank], 3.0, options);
    let profiles = tensor([rank, reach], 4.0, options);
    let relative = Some(RelativeTensors { rows: rows.clone(), profiles: profiles.clone() });
    let context = ScoreContext { mask, relative, ..ScoreContext::default() };
    let out = attention(q.clone(), k.clone(), v.clone(), 0.125, &context, implementation);
    let up = tensor([batch, heads, queries, head_dim], 5.0, options).detach();
    let gradients = (out.clone() * up).sum().backward();
    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
        tensor.into_data().iter::<f64>().collect()
    }
    let of = |x: &Tensor<4>| numbers(x.grad(&gradients).expect("every input has a gradient"));
    let of_profiles = numbers(profiles.grad(&gradients).expect("every input has a gradient"));
    [numbers(out), of(&q), of(&k), of(&v), of(&rows), of_profiles]
}

#[test]
fn the_fused_operation_is_the_reference() {
    let causal = |window| AttentionMask::from(Mask::Causal { window });
    let padded = AttentionMask { lengths: Some([40, 17].into()), ..causal(None) };
    for (sizes, mask) in [
        (Sizes([2, 4, 2, 40, 40, 8, 5, 12]), causal(None)),
        (Sizes([1, 2, 1, 130, 130, 16, 16, 400]), causal(Some(50))),
        (Sizes([2, 2, 2, 3, 150, 8, 4, 60]), causal(None)),
        (Sizes([1, 2, 2, 1, 90, 8, 4, 30]), causal(Some(20))),
        (Sizes([2, 2, 1, 40, 40, 8, 4, 9]), padded),
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
