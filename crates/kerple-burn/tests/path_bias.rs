//! A bias over paths: the fused operation against the reference in Burn's own operations, outputs and gradients, and what shifted
//! positions change.

use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::attention_context::{AttentionMask, Mask, PathTensors, RotaryTables, ScoreContext};
use kerple_burn::implementation::Impl;
use kerple_burn::ops::attention::{Scoring, attention, rotate};
use kerple_burn::ops::path::turned;
use kerple_core::attention::PackedDocuments;
use kerple_core::forms::PathFeatures;
use std::ops::Range;
use std::sync::Arc;

fn tensor<const D: usize>(shape: [usize; D], phase: f64, options: (&Device, DType)) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|at| (0.37 * at as f64 + phase).sin()).collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), options)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Sizes of a call: sequences, heads, key heads, queries, keys, features of rows and of paths.
struct Sizes([usize; 7]);

fn turn(width: usize, positions: Range<usize>) -> RotaryTables {
    let (cos, sin) = PathFeatures { width, slopes: Vec::new(), relative: false }.rotary().tables(positions);
    RotaryTables::new(width / 2, cos, sin)
}

/// The output and the gradients in queries, keys, values, features and sinks.
fn run(
    Sizes(sizes): &Sizes,
    (mask, relative, first): (AttentionMask, bool, usize),
    dtype: DType,
    implementation: Impl,
) -> [Vec<f64>; 6] {
    let [batch, heads, kv_heads, queries, keys, head_dim, width] = *sizes;
    let device = Device::flex().autodiff();
    let options = (&device, dtype);
    let q = tensor([batch, heads, queries, head_dim], 0.0, options).require_grad();
    let [k, v] = [1.0, 2.0].map(|phase| tensor([batch, kv_heads, keys, head_dim], phase, options).require_grad());
    let p = (tensor([batch, heads, keys, width], 3.0, options) * 2.0).detach().require_grad();
    let sinks = tensor([heads], 4.0, options).require_grad();
    let turn = turn(width, first..first + keys);
    let of_queries = if relative { rotate(p.clone(), Some(&turn)) } else { p.clone() };
    let path = PathTensors {
        queries: of_queries.narrow(2, keys - queries, queries),
        keys: turned(p.clone(), &turn, 1e-7),
        slopes: (0..heads).map(|head| 0.5 / (1 + head) as f64).collect(),
    };
    let context = ScoreContext { mask, path: Some(path), ..ScoreContext::default() };
    let scoring = Scoring { softcap: Some(3.0), sinks: Some(sinks.clone()), ..Scoring::from(0.125) };
    let out = attention(q.clone(), k.clone(), v.clone(), scoring, &context, implementation);
    let up = tensor([batch, heads, queries, head_dim], 5.0, options);
    let gradients = (out.clone() * up).sum().backward();
    let of = |x: &Tensor<4>| numbers(x.grad(&gradients).expect("every input has a gradient"));
    let of_sinks = numbers(sinks.grad(&gradients).expect("every input has a gradient"));
    [numbers(out), of(&q), of(&k), of(&v), of(&p), of_sinks]
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
        (Sizes([2, 4, 2, 40, 40, 8, 8]), causal(None)),
        (Sizes([1, 2, 1, 130, 130, 16, 4]), causal(Some(50))),
        (Sizes([2, 2, 2, 3, 150, 8, 6]), causal(None)),
        (Sizes([1, 2, 2, 1, 90, 8, 2]), causal(Some(20))),
        (Sizes([2, 2, 1, 40, 40, 8, 4]), padded),
        (Sizes([2, 2, 1, 40, 40, 8, 4]), packed),
    ] {
        for relative in [false, true] {
            // sums over up to 150 keys, in either type
            for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 2e-4)] {
                let setting = (mask.clone(), relative, 0);
                let [fused, reference] = [Impl::Kernel, Impl::Reference]
                    .map(|implementation| run(&sizes, setting.clone(), dtype, implementation));
                for (part, (fused, reference)) in fused.iter().zip(&reference).enumerate() {
                    assert_eq!(fused.len(), reference.len());
                    for (a, b) in fused.iter().zip(reference) {
                        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{part} of {:?}: {a} {b}", sizes.0);
                    }
                }
            }
        }
    }
}

/// The published form depends on positions, the relative form on distances alone.
#[test]
fn only_the_relative_form_is_the_same_at_shifted_positions() {
    let sizes = Sizes([1, 2, 1, 30, 30, 8, 8]);
    let apart = |relative: bool| {
        let [here, there] =
            [0, 1000].map(|first| run(&sizes, (causal(None), relative, first), DType::F64, Impl::Kernel));
        let pairs = here.into_iter().flatten().zip(there.into_iter().flatten());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    // angles of 1000 radians are rounded by 1e-13
    assert!(apart(true) < 1e-11, "{}", apart(true));
    assert!(apart(false) > 1e-2, "{}", apart(false));
}

#[test]
fn gradients_of_features_match_central_differences() {
    let device = Device::flex().autodiff();
    let options = (&device, DType::F64);
    let (shape, turn) = ([1, 2, 3, 4], turn(4, 5..8));
    let values: Vec<f64> = numbers(tensor(shape, 1.0, options));
    let up = tensor(shape, 2.0, options);
    let loss = |values: &[f64]| {
        let p = Tensor::<4>::from_data(TensorData::new(values.to_vec(), shape), options).require_grad();
        let loss = (turned(p.clone(), &turn, 0.1) * up.clone()).sum();
        (numbers(loss.clone())[0], numbers(p.grad(&loss.backward()).expect("a gradient")))
    };
    for (at, exact) in loss(&values).1.into_iter().enumerate() {
        let moved = |by: f64| {
            let mut values = values.clone();
            values[at] += by;
            loss(&values).0
        };
        let numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        // truncation is 1e-10 times a third derivative of order 10, rounding 1e-16 / 1e-5
        assert!((numeric - exact).abs() < 1e-8, "{at}: {numeric} {exact}");
    }
}
