//! Attention on a GPU against the processor: output and every gradient.
//!
//! A software renderer stands in, unless `KERPLE_TEST_DEVICE` names a device as `--device` does.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::adamw::{AdamW, AdamWConfig, AdamWStep};
use kerple_burn::attention_context::{
    AttentionBias, AttentionMask, DecayTensors, ExponentialTensors, LinearContext, Mask, ScoreContext,
};
use kerple_burn::device::DeviceName;
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::{LayerInit, Mlp};
use kerple_burn::ops::activation::Activation;
use kerple_burn::ops::attention::{Scoring, attention, query_chunked};
use kerple_burn::ops::dropout::{self, Dropout};
use kerple_burn::ops::linear_attention::{LinearAttentionSettings, linear_attention};
use kerple_burn::ops::loss::{self, LmHeadTensors, LossTargets};
use kerple_burn::ops::norm::RowNorm;
use kerple_burn::ops::{self, NormTensors, ResidualBase};
use kerple_burn::parameters::{self, ParamGroupOverrides};
use kerple_burn::plan::{BlockConfig, BlockSizes, FeatureKind, InitKind, LinearAttentionConfig, NormKind};
use kerple_core::precision::Precision;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn gpu() -> Device {
    let name: DeviceName =
        std::env::var("KERPLE_TEST_DEVICE").map_or(DeviceName::Software, |name| name.parse().unwrap());
    name.open().expect("a device; for tests without a GPU install Mesa's lavapipe").device
}

/// Output and gradients in queries, keys, values, bias and weight.
fn run(device: &Device, implementation: Impl, case: &Case) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
    let mut random = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
    let [batch, heads, kv_heads, len, head_dim] = case.sizes;
    let mut four = |heads: usize| {
        let shape = [batch, len, heads, head_dim];
        let data = TensorData::new(random(shape.iter().product()), shape);
        Tensor::<4>::from_data(data, &device).require_grad()
    };
    // as a projection leaves them: heads of a token lie beside one another
    let own = [four(heads), four(kv_heads), four(kv_heads)];
    let columns = case.mask.sides().columns(len + 2);
    let mut table =
        || Tensor::<2>::from_data(TensorData::new(random(heads * columns), [heads, columns]), &device).require_grad();
    let (bias, weight) = (table(), case.weight.then(table));
    let context = ScoreContext {
        mask: AttentionMask { pattern: case.mask, lengths: case.lengths.clone().map(Into::into), documents: None },
        bias: AttentionBias::Table { bias: Some(bias.clone()), weight: weight.clone() },
        ..ScoreContext::default()
    };
    let [q, k, v] = own.clone().map(|x| x.swap_dims(1, 2));
    let scoring = Scoring { softcap: case.cap, ..Scoring::from(0.4) };
    let out = attention(q, k, v, scoring, &context, implementation);
    let mut gradients = (out.clone() * out.clone().sin()).sum().backward();
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let flat = |tensor: Tensor<4>| get(tensor.reshape([-1]));
    let mut found = vec![flat(out.without_autodiff())];
    found.extend(own.map(|x| flat(x.grad_remove(&mut gradients).unwrap())));
    found.extend(
        [Some(bias), weight].into_iter().flatten().map(|x| get(x.grad_remove(&mut gradients).unwrap().reshape([-1]))),
    );
    found
}

/// Arrays that differ by no more than a share of their largest value.
fn assert_same(found: &[Vec<f32>], expected: &[Vec<f32>], share: f32, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
        let largest = expected.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
        let error = expected.iter().zip(found).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        let same = expected.len() == found.len() && error < share * largest;
        assert!(same, "{at} of {what}: {error:e} of {largest:e}");
    }
}

struct Case {
    seed: u64,
    /// B, H, kv heads, L, D.
    sizes: [usize; 5],
    mask: Mask,
    weight: bool,
    lengths: Option<Vec<usize>>,
    cap: Option<f64>,
}

#[test]
fn attention_is_that_of_the_processor() {
    let case = Case { seed: 1, sizes: [2, 4, 2, 40, 8], mask: Mask::CAUSAL, weight: false, lengths: None, cap: None };
    let device = gpu();
    for case in [
        Case { sizes: [1, 2, 2, 33, 8], seed: 2, mask: Mask::Causal { window: Some(7) }, lengths: None, ..case },
        Case { weight: true, seed: 3, lengths: None, ..case },
        Case { mask: Mask::BIDIRECTIONAL, lengths: Some(vec![40, 29]), ..case },
        Case { cap: Some(3.0), lengths: None, ..case },
    ] {
        let expected = run(&Device::flex(), Impl::Kernel, &case);
        for implementation in [Impl::Kernel, Impl::Reference] {
            let found = run(&device, implementation, &case);
            // f32 on both sides, summed in other orders
            assert_same(&found, &expected, 5e-6, &format!("{implementation:?}"));
        }
    }
}

/// Losses of each target, their weighted sum, and its gradients in what they are made of.
fn loss_of(device: &Device, [rows, width, vocab]: [usize; 3], (tied, whole): (bool, bool)) -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let mut random = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        TensorData::new(values, shape.to_vec())
    };
    let device = device.clone().autodiff();
    let x = Tensor::<3>::from_data(random(&[2, rows / 2, width]), &device).require_grad();
    let weight = Tensor::<2>::from_data(random(&if tied { [vocab, width] } else { [width, vocab] }), &device);
    let weight = weight.require_grad();
    let mut one = |width: usize| Tensor::<1>::from_data(random(&[width]), &device).require_grad();
    let (gamma, beta, bias) = (one(width), whole.then(|| one(width)), whole.then(|| one(vocab)));
    let kind = if whole { RowNorm::Layer } else { RowNorm::Rms };
    let norm = NormTensors { kind, gamma: gamma.clone(), beta: beta.clone(), epsilon: 1e-5 };
    let head = LmHeadTensors { norm, weight: weight.clone(), tied, bias: bias.clone() };
    let ids: Vec<u32> = (0..rows).map(|row| (row * 7919 % vocab) as u32).collect();
    let scored: Vec<bool> = (0..rows).map(|row| row % 5 != 3).collect();
    let targets = LossTargets { ids: &ids, scored: whole.then_some(&scored) };
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let untracked = LmHeadTensors {
        norm: NormTensors {
            gamma: gamma.clone().without_autodiff(),
            beta: beta.clone().map(Tensor::without_autodiff),
            ..head.norm
        },
        weight: weight.clone().without_autodiff(),
        bias: bias.clone().map(Tensor::without_autodiff),
        tied,
    };
    let each = loss::losses(x.clone().without_autodiff(), untracked, targets, Impl::Kernel);
    let loss = loss::loss(x.clone(), head, targets, 0.25, Impl::Kernel);
    // what comes after it is not one
    let mut gradients = (loss.clone() * -3.0).sum().backward();
    let mut found = vec![get(each.reshape([-1])), get(loss.without_autodiff())];
    found.push(get(x.grad_remove(&mut gradients).unwrap().reshape([-1])));
    found.push(get(weight.grad_remove(&mut gradients).unwrap().reshape([-1])));
    let single = [Some(gamma), beta, bias].into_iter().flatten();
    found.extend(single.map(|tensor| get(tensor.grad_remove(&mut gradients).unwrap())));
    found
}

#[test]
fn the_loss_is_that_of_the_processor_in_pieces_too() {
    let device = gpu();
    // the second has more logits than are held at once
    for (sizes, how) in [([24, 12, 40], (false, true)), ([300, 4, 70_000], (true, false)), ([24, 12, 40], (true, true))]
    {
        let (expected, found) = (loss_of(&Device::flex(), sizes, how), loss_of(&device, sizes, how));
        // f32 on both sides, sums over a vocabulary in other orders
        assert_same(&found, &expected, 2e-5, &format!("{sizes:?} {how:?}"));
    }
}

/// Output of linear attention, and gradients in queries, keys, values and a decay.
fn linear_of(
    device: &Device,
    len: usize,
    (features, count, fades, lengths): (FeatureKind, usize, bool, Option<&[usize]>),
    pattern: Mask,
) -> Vec<Vec<f32>> {
    const HEADS: usize = 2;
    let device = device.clone().autodiff();
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut random = |shape: &[usize], least: f32| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(least..1.0)).collect();
        TensorData::new(values, shape.to_vec())
    };
    let own = [(); 3].map(|()| Tensor::<4>::from_data(random(&[2, HEADS, len, 6], -1.0), &device).require_grad());
    let mut table = |columns: usize| Tensor::<2>::from_data(random(&[HEADS, columns], 0.2), &device).require_grad();
    let decay = fades.then(|| [table(256), table(3)]);
    let beyond = |weights: &Tensor<2>| ExponentialTensors {
        weights: weights.clone(),
        rates: [0.001, 0.02, 0.3, 0.0, 0.05, 1.0].into(),
    };
    let tables =
        decay.as_ref().map(|[near, weights]| DecayTensors { near: near.clone(), beyond: Some(beyond(weights)) }.into());
    let (mask, context) = (
        AttentionMask { pattern, lengths: lengths.map(Into::into), documents: None },
        LinearContext { decay: tables, ..LinearContext::default() },
    );
    let plan = LinearAttentionConfig { feature_map: features, n_features: count, ..LinearAttentionConfig::default() };
    let out =
        linear_attention(own.clone(), &LinearAttentionSettings { plan, layer: 0 }, &mask, None, &context, Impl::Kernel);
    let mut gradients = (out.clone() * out.clone().sin()).sum().backward();
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let mut found = vec![get(out.without_autodiff().reshape([-1]))];
    found.extend(own.map(|x| get(x.grad_remove(&mut gradients).unwrap().reshape([-1]))));
    found.extend(decay.into_iter().flatten().map(|x| get(x.grad_remove(&mut gradients).unwrap().reshape([-1]))));
    found
}

#[test]
fn linear_attention_is_that_of_the_processor() {
    let device = gpu();
    for (len, how) in [
        (400, (FeatureKind::Elu, 8, true, None)),
        (300, (FeatureKind::Favor, 8, true, Some(&[300, 201][..]))),
        (300, (FeatureKind::FavorJax, 8, false, None)),
        (40, (FeatureKind::ReluRf, 8, false, None)),
        // more than kernels take at once
        (70, (FeatureKind::ReluRf, 301, true, Some(&[70, 66]))),
        (40, (FeatureKind::Relu, 8, true, Some(&[17, 40]))),
    ] {
        for mask in [Mask::CAUSAL, Mask::BIDIRECTIONAL] {
            let (expected, found) = (linear_of(&Device::flex(), len, how, mask), linear_of(&device, len, how, mask));
            assert!(expected.iter().flatten().all(|value| value.is_finite()));
            // f32 on both sides, exponentials and quotients of sums in other orders
            assert_same(&found, &expected, 2e-5, &format!("{len} {how:?} {mask:?}"));
        }
    }
}

/// Output of linear attention with gates, and gradients in queries, keys, values and gates.
fn gated_of(device: &Device, len: usize, implementation: Impl) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let mut random = |shape: [usize; 4], range: std::ops::Range<f32>| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.random_range(range.clone())).collect();
        Tensor::<4>::from_data(TensorData::new(values, shape), &device)
    };
    let own = [(); 3].map(|()| random([2, 2, len, 6], -1.0..1.0).require_grad());
    // heads that forget at once, and ones that hardly do
    let strength = Tensor::<4>::from_data(TensorData::new(vec![1.0f32, 0.01], [1, 1, 2, 1]), &device);
    let gates = (random([1, 2, 2, len], -0.5..0.0) * strength).reshape([2, 2, len]).detach().require_grad();
    let plan = LinearAttentionConfig { feature_map: FeatureKind::Elu, ..LinearAttentionConfig::default() };
    let out = linear_attention(
        own.clone(),
        &LinearAttentionSettings { plan, layer: 0 },
        &AttentionMask::default(),
        Some(gates.clone()),
        &LinearContext::default(),
        implementation,
    );
    let mut gradients = (out.clone() * out.clone().sin()).sum().backward();
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let mut found = vec![get(out.without_autodiff().reshape([-1]))];
    found.extend(own.map(|x| get(x.grad_remove(&mut gradients).unwrap().reshape([-1]))));
    found.push(get(gates.grad_remove(&mut gradients).unwrap().reshape([-1])));
    found
}

#[test]
fn linear_attention_with_gates_is_that_of_the_processor() {
    let device = gpu();
    for len in [700, 256, 40] {
        let expected = gated_of(&Device::flex(), len, Impl::Kernel);
        let found = gated_of(&device, len, Impl::Kernel);
        assert!(expected.iter().flatten().all(|value| value.is_finite()));
        // f32 on both sides; the gradient of a gate is a sum over all rows behind it, whose terms cancel
        assert_same(&found, &expected, 2e-5, &format!("{len} gates"));
        assert!(found == gated_of(&device, len, Impl::Kernel), "{len} gates: other bits");
    }
}

#[derive(Module, Debug)]
struct Branch {
    mlp: Mlp,
}

impl ParamGroupOverrides for Branch {}

/// Values and moments of a norm and a matrix after updates, one of them by gradients that are no numbers.
fn updated(device: &Device, implementation: Impl) -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    let sizes = BlockSizes { d_model: 12, n_heads: 2, head_dim: 6, d_hidden: 20 };
    let on = device.clone().autodiff();
    let mut init = LayerInit {
        rng: Some(&mut rng),
        kind: InitKind::Normal,
        std: 0.5,
        std_out: 0.5,
        device: &on,
        dtype: DType::F32,
    };
    let mut model = Branch { mlp: Mlp::new(&BlockConfig::default(), &sizes, &mut init) };
    let settings = AdamWConfig { betas: [0.9, 0.99], epsilon: 1e-2, weight_decay: 0.1, clip: 1.0 };
    let mut optimizer = AdamW::new(&model, settings).with_implementation(implementation);
    for step in 1..=4 {
        let gradient = |values: Tensor<1>| {
            let values: Vec<f32> = (0..values.dims()[0]).map(|_| rng.random_range(-1.0..1.0)).collect();
            let factor = if step == 3 { f32::NAN } else { 1.0 };
            Tensor::<1>::from_data(TensorData::from(&values[..]), device) * factor
        };
        let gradients: Vec<Tensor<1>> = parameters::values(&model).into_iter().map(gradient).collect();
        let norm = optimizer.norm(&gradients);
        model = optimizer.step(model, gradients, norm, AdamWStep { learning_rate: 0.05, adam_step: step });
    }
    let values = parameters::values(&model).into_iter().map(|values| values.into_data().try_to_vec::<f32>().unwrap());
    values.chain(optimizer.moments().concat().into_iter().map(|moment| moment.slice::<f32>().to_vec())).collect()
}

#[test]
fn updates_are_those_of_the_processor() {
    let (device, expected) = (gpu(), updated(&Device::flex(), Impl::Kernel));
    for implementation in [Impl::Kernel, Impl::Reference] {
        // the norm is added up in f32 there
        assert_same(&updated(&device, implementation), &expected, 2e-6, &format!("{implementation:?}"));
    }
}

/// What a feed-forward branch makes of rows, and all its gradients.
fn branch(device: &Device, plan: &BlockConfig, implementation: Impl) -> Vec<Vec<f32>> {
    let (mut rng, device) = (ChaCha8Rng::seed_from_u64(13), device.clone().autodiff());
    let sizes = BlockSizes { d_model: 12, n_heads: 2, head_dim: 6, d_hidden: 20 };
    let mut init = LayerInit {
        rng: Some(&mut rng),
        kind: InitKind::SmallNormal,
        std: 0.5,
        std_out: 0.5,
        device: &device,
        dtype: DType::F32,
    };
    let model = Mlp::new(plan, &sizes, &mut init);
    let x: Vec<f32> = (0..2 * 9 * 12).map(|_| rng.random_range(-1.0..1.0)).collect();
    let x = Tensor::<3>::from_data(TensorData::new(x, [2, 9, 12]), &device).require_grad();
    let y = model.forward(x.clone(), ResidualBase::Input, implementation);
    let mut gradients = (y.clone() * y.clone().sin()).sum().backward();
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let mut found =
        vec![get(y.without_autodiff().reshape([-1])), get(x.grad_remove(&mut gradients).unwrap().reshape([-1]))];
    found.extend(parameters::gradients(&model, &mut gradients).into_iter().map(|gradient| get(gradient.unwrap())));
    found
}

#[test]
fn feed_forward_branches_are_those_of_the_processor() {
    let device = gpu();
    let plain = BlockConfig::default();
    let gated =
        BlockConfig { norm: NormKind::Rms, glu: true, mlp_bias: false, activation: Activation::Silu, ..plain.clone() };
    // in the reference, the derivative of GELU is Burn's, which is that of an approximation on GPUs
    for (plan, engines) in [(plain, &[Impl::Kernel][..]), (gated, &[Impl::Kernel, Impl::Reference])] {
        let expected = branch(&Device::flex(), &plan, Impl::Kernel);
        for implementation in engines {
            let found = branch(&device, &plan, *implementation);
            // f32 on both sides, products of matrices in other orders
            assert_same(&found, &expected, 5e-6, &format!("{:?} {implementation:?}", plan.norm));
        }
    }
}

/// Values, their gradient, and factors by themselves.
fn dropped(device: &Device) -> Vec<Vec<f32>> {
    let (pass, shape) = (ForwardContext::training(5, 6).at_row(1), [3, 7, 9]);
    let (dropout, device) = (Dropout { share: 0.3, pass: &pass, place: 1 << 33 }, device.clone().autodiff());
    let x =
        Tensor::<3>::from_data(TensorData::new((1..=189).map(|x| x as f32).collect(), shape), &device).require_grad();
    let y = dropout::dropout(x.clone(), dropout, Impl::Kernel);
    let gradient = x.grad(&y.clone().powi_scalar(2).sum().backward()).unwrap();
    let factors = dropout::factors(&x, 5, dropout, Impl::Kernel);
    [y, gradient, factors].into_iter().map(|x| x.into_data().try_to_vec::<f32>().unwrap()).collect()
}

#[test]
fn dropout_is_that_of_the_processor() {
    assert_eq!(dropped(&gpu()), dropped(&Device::flex()));
}

/// What products multiply, as it is or rounded before.
fn numbers(seed: u64, count: usize, precision: Precision) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| precision.round(rng.random_range(-1.0..1.0))).collect()
}

/// A linear layer's output, and the gradients of its sum with given weights in its input and its matrix.
fn layer_of(device: &Device, implementation: Impl, inputs: Precision) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let tensor = |seed: u64, shape: [usize; 3]| {
        let values = numbers(seed, shape.iter().product(), inputs);
        Tensor::<3>::from_data(TensorData::new(values, shape), &device)
    };
    let (x, up) = (tensor(1, [2, 9, 20]).require_grad(), tensor(2, [2, 9, 33]));
    let weight = tensor(3, [1, 20, 33]).reshape([20, 33]).require_grad();
    let y =
        ops::linear::linear(x.clone(), ops::LinearTensors { weight: weight.clone(), bias: None }, None, implementation);
    let mut gradients = (y.clone() * up).sum().backward();
    let get = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    let d_x = x.grad_remove(&mut gradients).unwrap();
    let d_weight = weight.grad_remove(&mut gradients).unwrap();
    vec![get(y.without_autodiff().reshape([-1])), get(d_x.reshape([-1])), get(d_weight.reshape([-1]))]
}

#[test]
fn linear_layers_round_what_they_multiply() {
    let device = gpu();
    for precision in [Precision::Tf32, Precision::Bf16] {
        let found = layer_of(&device, Impl::with_precision(precision), Precision::F32);
        let expected = layer_of(&Device::flex(), Impl::Kernel, precision);
        assert_same(&found, &expected, 5e-6, &precision.to_string());
    }
    let exact = layer_of(&device, Impl::Kernel, Precision::F32);
    assert_same(&exact, &layer_of(&Device::flex(), Impl::Kernel, Precision::F32), 5e-6, "f32");
}

#[test]
fn attention_rounds_what_it_multiplies() {
    let (device, precision) = (gpu(), Precision::Bf16);
    let out = |implementation: Impl, inputs: Precision, in_some: bool| {
        let [q, k, v] = [4, 5, 6].map(|seed| {
            let data = TensorData::new(numbers(seed, 2 * 50 * 8, inputs), [1, 2, 50, 8]);
            Tensor::<4>::from_data(data, &device)
        });
        let context = ScoreContext::default();
        let out = match in_some {
            true => query_chunked([q, k, v], &0.4.into(), &context, 10_000, implementation),
            false => attention(q, k, v, 0.4, &context, implementation),
        };
        out.into_data().try_to_vec::<f32>().unwrap()
    };
    for in_some in [false, true] {
        let found = out(Impl::with_precision(precision), Precision::F32, in_some);
        assert!(found == out(Impl::with_precision(precision), precision, in_some));
        // beside inputs, weights alone are rounded, and values are below 1
        let expected = out(Impl::Kernel, precision, in_some);
        let error = found.iter().zip(&expected).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(error > 1e-5 && f64::from(error) < precision.unit(), "{error:e}");
    }
}
