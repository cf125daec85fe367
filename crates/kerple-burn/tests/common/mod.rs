//! What the tests share: double precision through autodiff, and comparisons.
#![allow(dead_code, reason = "each test file takes what it needs")]

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::layers::LayerInit;
use kerple_burn::parameters;
use kerple_burn::plan::InitKind;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub const PASS: ForwardContext = ForwardContext::evaluation(0);
/// A pass that drops values where a plan says so.
pub const TRAINING: ForwardContext = ForwardContext::training(3, 5);

pub fn device() -> Device {
    Device::flex().autodiff()
}

pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub fn init<'a>(rng: &'a mut ChaCha8Rng, device: &'a Device) -> LayerInit<'a, ChaCha8Rng> {
    LayerInit { rng: Some(rng), kind: InitKind::Normal, std: 0.1, std_out: 0.1, device, dtype: DType::F64 }
}

pub fn tensor<const D: usize>(values: Vec<f64>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (&device(), DType::F64))
}

/// Uniform values in `-1..1`.
pub fn random<const D: usize>(shape: [usize; D], rng: &mut ChaCha8Rng) -> Tensor<D> {
    tensor((0..shape.iter().product()).map(|_| rng.random::<f64>() * 2.0 - 1.0).collect(), shape)
}

pub fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.clone().into_data().iter::<f64>().collect()
}

/// The module with its parameters replaced by random f64 values.
pub struct Randomize<'a>(pub &'a mut ChaCha8Rng);

impl ModuleMapper for Randomize<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| (random(tensor.dims(), self.0) * 0.5).detach().require_grad())
    }
}

/// The same values in f64.
pub struct ToDouble;

impl ModuleMapper for ToDouble {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| tensor(values(&old), old.dims()).require_grad())
    }
}

/// The same values in f32.
pub struct ToSingle;

impl ModuleMapper for ToSingle {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let single = |old: Tensor<D>| Tensor::from_data(old.into_data(), (&device(), DType::F32));
        param.map(|old| single(old).require_grad())
    }
}

/// The module with its parameter number `only` moved by `by` times a direction.
struct Move<'a> {
    index: usize,
    only: usize,
    by: f64,
    direction: &'a [f64],
}

impl ModuleMapper for Move<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.index;
        self.index += 1;
        if index != self.only {
            return param;
        }
        let moved =
            |tensor: Tensor<D>| values(&tensor).iter().zip(self.direction).map(|(v, d)| v + self.by * d).collect();
        param.map(|old| tensor(moved(old.clone()), old.dims()).require_grad())
    }
}

/// Output, gradient in the input and in every parameter of `loss = sum(output * up)`; zeros where the loss does not depend
/// on a parameter.
pub fn run<M: Module>(
    module: &M,
    x: &Tensor<3>,
    up: &Tensor<3>,
    f: impl Fn(&M, Tensor<3>) -> Tensor<3>,
) -> Vec<Vec<f64>> {
    let x = x.clone().detach().require_grad();
    let out = f(module, x.clone());
    let mut gradients = (out.clone() * up.clone()).sum().backward();
    let mut all = vec![values(&out), values(&x.grad(&gradients).unwrap())];
    let shapes = parameters::collect(module);
    let found = parameters::gradients(module, &mut gradients);
    let zero = |at: usize| vec![0.0; shapes[at].array.shape().iter().product()];
    all.extend(found.iter().enumerate().map(|(at, g)| g.as_ref().map_or_else(|| zero(at), values)));
    all
}

pub fn assert_close(fused: &[Vec<f64>], reference: &[Vec<f64>], what: &str) {
    assert_eq!(fused.len(), reference.len());
    for (at, (a, b)) in fused.iter().zip(reference).enumerate() {
        assert_eq!(a.len(), b.len(), "{what} {at}");
        // what adds one number to all keys of a row has no gradient: on both sides it is what rounding leaves of terms of size 1
        if a.iter().chain(b).all(|x| x.abs() < 1e-14) {
            continue;
        }
        let largest = b.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
        let error = a.iter().zip(b).fold(0f64, |m, (a, b)| m.max((a - b).abs()));
        // f64 sums of up to a thousand terms in another order
        assert!(error <= 1e-12 * largest, "{what}, value {at}: {error:e} of {largest:e}");
    }
}

/// Fails unless what [`run`] found agrees with central differences along a random direction in the input and in each
/// parameter. A smaller step rounds more, and crosses fewer kinks.
pub fn assert_slopes<M: Module>(
    module: &M,
    x: &Tensor<3>,
    up: &Tensor<3>,
    f: impl Fn(&M, Tensor<3>) -> Tensor<3>,
    found: &[Vec<f64>],
    step: f64,
    what: &str,
) {
    let mut rng = rng(77);
    let loss = |module: &M, x: Tensor<3>| (f(module, x) * up.clone()).sum().into_scalar::<f64>();
    for (at, gradient) in found.iter().enumerate().skip(1) {
        let direction: Vec<f64> = gradient.iter().map(|_| rng.random::<f64>() * 2.0 - 1.0).collect();
        let moved = |by: f64| {
            if at == 1 {
                let shifted = values(x).iter().zip(&direction).map(|(v, d)| v + by * d).collect();
                return loss(module, tensor(shifted, x.dims()));
            }
            let mut mapper = Move { index: 0, only: at - 2, by, direction: &direction };
            loss(&module.clone().map(&mut mapper), x.clone())
        };
        let near = moved(step) - moved(-step);
        let numeric = (8.0 * near - moved(2.0 * step) + moved(-2.0 * step)) / (12.0 * step);
        let analytic: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        let size: f64 = gradient.iter().zip(&direction).map(|(g, d)| (g * d).abs()).sum::<f64>().max(1e-2);
        // rounding of a loss of order 10, 1e-15, over the step, and the fifth derivative times step^4
        assert!((numeric - analytic).abs() <= 1e-7 * size, "{what}, gradient {at}: {analytic} differs from {numeric}");
    }
}
