//! Kernels of learned positions: the fused operation against the reference in Burn's own operations, outputs and gradients.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::attention_context::{AttentionMask, KernelTensors, Mask, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::attention;
use kerple_core::attention::PositionKernel;

/// The output and the gradients in queries, keys, values, steps and the kernel's parameters.
fn run(
    [batch, heads, kv_heads, len]: [usize; 4],
    mask: AttentionMask,
    kernel: PositionKernel,
    dtype: DType,
    implementation: Impl,
) -> [Vec<f64>; 6] {
    let device = Device::flex().autodiff();
    fn tensor<const D: usize>(shape: [usize; D], phase: f64, options: (&Device, DType)) -> Tensor<D> {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|at| (0.37 * at as f64 + phase).sin()).collect();
        Tensor::<D>::from_data(TensorData::new(values, shape), options)
    }
    let options = (&device, dtype);
    let q = tensor([batch, heads, len, 8], 0.0, options).require_grad();
    let [k, v] = [1.0, 2.0].map(|phase| tensor([batch, kv_heads, len, 8], phase, options).require_grad());
    let steps = (tensor([batch, heads, len], 3.0, options) * 0.5 + 0.8).require_grad();
    let parameters = (tensor([heads, kernel.parameters()], 4.0, options) * 0.3 + 0.7).require_grad();
    let of_kernel = Some(KernelTensors { kernel, parameters: parameters.clone() });
    let context = ScoreContext { mask, gates: Some(steps.clone()), kernel: of_kernel, ..ScoreContext::default() };
    let out = attention(q.clone(), k.clone(), v.clone(), 0.35, &context, implementation);
    let gradients = (out.clone() * tensor([batch, heads, len, 8], 5.0, options)).sum().backward();
    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
        tensor.into_data().iter::<f64>().collect()
    }
    let of = |x: &Tensor<4>| numbers(x.grad(&gradients).expect("every input has a gradient"));
    let of_steps = numbers(steps.grad(&gradients).expect("steps have a gradient"));
    let of_parameters = numbers(parameters.grad(&gradients).expect("parameters have a gradient"));
    [numbers(out), of(&q), of(&k), of(&v), of_steps, of_parameters]
}

#[test]
fn the_fused_kernel_is_the_reference() {
    let padded = AttentionMask { lengths: Some([40, 17].into()), ..AttentionMask::from(Mask::CAUSAL) };
    let kernels = [
        PositionKernel::Log,
        PositionKernel::Power,
        PositionKernel::Log3,
        PositionKernel::Spline { knots: 5 },
        PositionKernel::Table { entries: 12, grid_exponent: 0 },
    ];
    for kernel in kernels {
        for (sizes, mask) in [
            ([2, 4, 2, 40], AttentionMask::from(Mask::CAUSAL)),
            ([1, 2, 1, 130], AttentionMask::from(Mask::Causal { window: Some(50) })),
            ([2, 2, 2, 40], padded.clone()),
            ([1, 2, 2, 60], AttentionMask::from(Mask::BIDIRECTIONAL)),
        ] {
            // sums over up to 130 keys, in either type
            for (dtype, tolerance) in [(DType::F64, 1e-10), (DType::F32, 5e-4)] {
                let [fused, reference] = [Impl::Kernel, Impl::Reference]
                    .map(|implementation| run(sizes, mask.clone(), kernel, dtype, implementation));
                for (part, (fused, reference)) in fused.iter().zip(&reference).enumerate() {
                    assert_eq!(fused.len(), reference.len());
                    for (a, b) in fused.iter().zip(reference) {
                        assert!(
                            (a - b).abs() <= tolerance * b.abs().max(1.0),
                            "{part} of {kernel:?} {sizes:?}: {a} {b}"
                        );
                    }
                }
            }
        }
    }
}
