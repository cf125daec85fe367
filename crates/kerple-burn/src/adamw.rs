//! AdamW with clipping by global norm for the parameters of a module.
//!
//! [`kerple_core::ops::adam`] has the formula. Where a kernel exists, the update is one in-place pass
//! per parameter; elsewhere it is plain Burn operations on the parameter's device, the reference.
//! The optimizer state and the gradient norm are tensors on the same device, and no update returns
//! to the host.

#[cfg(feature = "cube")]
mod gpu;

use crate::custom_op::FloatElement;
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::parameters::{self, ParamGroup, ParamGroupOverrides, as_parameter, on_host, plain};
use crate::with_element;
use burn::backend::{Flex, flex::FlexTensor};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use kerple_core::ops::adam;

/// What updates in one pass: by a norm that the host knows, and by one on the device.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];
#[cfg(feature = "cube")]
const ON_DEVICE: &[DeviceKind] = &[DeviceKind::Gpu];

/// What stays the same over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Decay rates of the moments.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub epsilon: f64,
    /// Decoupled weight decay of the parameters whose [`ParamGroup`] decays.
    pub weight_decay: f64,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    pub clip: f64,
}

/// What changes from one update to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// Learning rate.
    pub learning_rate: f64,
    /// Step of the bias corrections, from 1.
    pub adam_step: u64,
}

/// Exponential averages of a parameter's gradient and of its square, flattened.
#[derive(Clone, Debug)]
struct AdamState {
    first: Tensor<1>,
    second: Tensor<1>,
}

/// The optimizer of a module.
#[derive(Clone, Debug)]
pub struct AdamW {
    settings: AdamWConfig,
    implementation: Impl,
    groups: Vec<ParamGroup>,
    moments: Vec<AdamState>,
}

impl AdamW {
    /// Zero moments for each parameter of `module`, which defines how it is updated.
    pub fn new<M: Module + ParamGroupOverrides>(module: &M, settings: AdamWConfig) -> AdamW {
        let zeros = |values: Tensor<1>| AdamState { first: values.zeros_like(), second: values.zeros_like() };
        let moments = parameters::values(module).into_iter().map(zeros).collect();
        AdamW { settings, implementation: Impl::Kernel, groups: parameters::param_groups(module), moments }
    }

    /// The same, computing with this implementation.
    pub fn with_implementation(self, implementation: Impl) -> AdamW {
        AdamW { implementation, ..self }
    }

    /// How each parameter is updated, in visiting order.
    pub fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    /// First and second moments of each parameter on the host, flattened, in visiting order.
    pub fn moments(&self) -> Vec<[HostArray; 2]> {
        let pair = |AdamState { first, second }: &AdamState| [first, second].map(|moment| on_host(moment.clone()));
        self.moments.iter().map(pair).collect()
    }

    /// Replaces the moments by what `fill` writes, given the parameter's index and whether it is the second moment.
    ///
    /// # Errors
    /// The first error of `fill`; moments before it are then replaced.
    pub fn load_moments<E>(&mut self, mut fill: impl FnMut(usize, bool, &mut [f32]) -> Result<(), E>) -> Result<(), E> {
        for (index, AdamState { first, second }) in self.moments.iter_mut().enumerate() {
            for (is_second, moment) in [(false, first), (true, second)] {
                let mut values = vec![0.0; moment.dims()[0]];
                fill(index, is_second, &mut values)?;
                let options = (&moment.device(), moment.dtype());
                *moment = Tensor::from_data(TensorData::new(values, moment.dims()), options);
            }
        }
        Ok(())
    }

    /// Global L2 norm of a set of gradients, `[1]`, on their device.
    ///
    /// Fused on the processor, squares are added in f64 in a fixed order, so that it is finite exactly if every element is. On GPUs
    /// and in the reference they are added in the type of the gradient.
    pub fn norm(&self, gradients: &[Tensor<1>]) -> Tensor<1> {
        let Some(first) = gradients.first() else { return Tensor::zeros([1], &Device::flex()) };
        if self.implementation.has_kernel(KERNELS, first) {
            let sum = |gradient: &Tensor<1>| {
                let values = flex(gradient.clone());
                with_element!(values, T => adam::sum_of_squares(slice::<T>(&values)))
            };
            let norm = gradients.iter().map(sum).sum::<f64>().sqrt();
            return Tensor::from_data(TensorData::new(vec![norm], [1]), (&first.device(), DType::F64));
        }
        #[cfg(feature = "cube")]
        if gradients.iter().all(|gradient| self.implementation.has_kernel(ON_DEVICE, gradient)) {
            return gpu::norm(gradients);
        }
        let sums = gradients.iter().map(|gradient| gradient.clone().square().sum()).collect();
        Tensor::cat(sums, 0).sum().sqrt()
    }

    /// Whether every value is finite.
    pub fn is_finite(&self, values: &Tensor<1>) -> bool {
        if self.implementation.has_kernel(KERNELS, values) {
            let values = flex(values.clone());
            return with_element!(values, T => adam::first_non_finite(slice::<T>(&values)).is_none());
        }
        values.clone().is_finite().all().into_scalar::<bool>()
    }

    /// One update of `module` by its gradients, whose global norm is `norm`, `[1]`. Where that is not finite, module and
    /// moments stay as they are.
    ///
    /// # Panics
    /// When there is not one gradient for each parameter.
    pub fn step<M: Module>(&mut self, module: M, gradients: Vec<Tensor<1>>, norm: Tensor<1>, update: AdamWStep) -> M {
        assert_eq!(gradients.len(), self.groups.len(), "gradients: expected one for each parameter");
        let AdamWConfig { betas, epsilon, clip, .. } = self.settings;
        let settings = adam::AdamWUpdate {
            lr: update.learning_rate,
            beta1: betas[0],
            beta2: betas[1],
            epsilon,
            weight_decay: 0.0,
            step: update.adam_step,
            gradient_scale: 1.0,
        };
        let clipped = self.clipped(&gradients, norm, clip);
        if let ClipFactor::Known(None) = clipped {
            return module;
        }
        let entries = std::mem::take(&mut self.moments).into_iter().zip(gradients).zip(&self.groups);
        let weight_decay = self.settings.weight_decay;
        let mut apply = ApplyUpdate { clipped, weight_decay, settings, entries, done: Vec::new() };
        let module = module.map(&mut apply);
        self.moments = apply.done;
        module
    }

    fn clipped(&self, gradients: &[Tensor<1>], norm: Tensor<1>, clip: f64) -> ClipFactor {
        if gradients.first().is_some_and(|first| self.implementation.has_kernel(KERNELS, first)) {
            return ClipFactor::known(norm, clip);
        }
        #[cfg(feature = "cube")]
        if gradients.iter().chain([&norm]).all(|values| self.implementation.has_kernel(ON_DEVICE, values)) {
            return ClipFactor::InKernel(Box::new(norm), clip);
        }
        ClipFactor::on_device(norm, clip)
    }
}

/// What clipping makes of a gradient.
enum ClipFactor {
    /// A factor that the host knows, for the kernel; `None`: the norm is not finite.
    Known(Option<f64>),
    /// The norm, `[1]`, for the kernel, and its limit.
    #[cfg(feature = "cube")]
    InKernel(Box<Tensor<1>>, f64),
    /// A factor, `[1]`, and whether the norm is finite, on the gradient's device.
    OnDevice(Box<(Tensor<1>, Tensor<1, Bool>)>),
}

impl ClipFactor {
    fn known(norm: Tensor<1>, clip: f64) -> ClipFactor {
        let norm: f64 = norm.into_scalar();
        let factor = if clip > 0.0 { adam::clip_scale(norm, clip) } else { 1.0 };
        ClipFactor::Known(norm.is_finite().then_some(factor))
    }

    /// As [`adam::clip_scale`].
    fn on_device(norm: Tensor<1>, clip: f64) -> ClipFactor {
        let finite = norm.clone().is_finite();
        let factor = if clip > 0.0 { ((norm + 1e-6) / clip).clamp_min(1.0).recip() } else { norm.ones_like() };
        ClipFactor::OnDevice(Box::new((factor, finite)))
    }
}

/// Walks a module with the moments, gradient and group of each parameter.
struct ApplyUpdate<I> {
    clipped: ClipFactor,
    /// Of groups that decay.
    weight_decay: f64,
    settings: adam::AdamWUpdate,
    entries: I,
    done: Vec<AdamState>,
}

impl<'a, I: Iterator<Item = ((AdamState, Tensor<1>), &'a ParamGroup)>> ModuleMapper for ApplyUpdate<I> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let ((moments, gradient), group) = self.entries.next().expect("mapping visits what visiting visits");
        let weight_decay = if group.decay { self.weight_decay } else { 0.0 };
        let settings = adam::AdamWUpdate { weight_decay, ..self.settings };
        param.map(|tensor| {
            let tracked = tensor.device().is_autodiff();
            let values = plain(tensor);
            let (values, moments) = match &self.clipped {
                ClipFactor::Known(factor) => {
                    let gradient_scale = factor.expect("an update needs a finite norm");
                    fused(&adam::AdamWUpdate { gradient_scale, ..settings }, group.range, values, gradient, moments)
                }
                #[cfg(feature = "cube")]
                ClipFactor::InKernel(norm, clip) => {
                    gpu::update(&settings, group.range, (values, moments), gradient, (&**norm, *clip))
                }
                ClipFactor::OnDevice(clipped) => {
                    let (factor, finite) = &**clipped;
                    let gradient = gradient * factor.clone();
                    reference(&settings, group.range, (values, moments), gradient, finite)
                }
            };
            self.done.push(moments);
            as_parameter(values, tracked)
        })
    }
}

/// The reference: one update of one parameter in plain Burn operations, by a gradient that is clipped already.
fn reference<const D: usize>(
    settings: &adam::AdamWUpdate,
    range: Option<[f64; 2]>,
    (values, old): (Tensor<D>, AdamState),
    g: Tensor<1>,
    finite: &Tensor<1, Bool>,
) -> (Tensor<D>, AdamState) {
    let adam::AdamWUpdate { lr, beta1, beta2, epsilon, weight_decay, step, .. } = *settings;
    let correction = |beta: f64| 1.0 - beta.powf(step as f64);
    let (shape, before) = (values.dims(), parameters::flat(values));
    let first = old.first.clone() + (g.clone() - old.first.clone()) * (1.0 - beta1);
    let second = old.second.clone() * beta2 + g.clone() * (1.0 - beta2) * g;
    let denominator = second.clone().sqrt() / correction(beta2).sqrt() + epsilon;
    let change = first.clone() / denominator * (lr / correction(beta1));
    let values = before.clone() * (1.0 - lr * weight_decay) - change;
    let values = match range {
        Some([low, high]) => values.clamp(low, high),
        None => values,
    };
    let finite = finite.clone().expand(before.dims());
    let kept = |old: Tensor<1>, new: Tensor<1>| old.mask_where(finite.clone(), new);
    let moments = AdamState { first: kept(old.first, first), second: kept(old.second, second) };
    (kept(before, values).reshape(shape), moments)
}

fn flex<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("fused operations run on the flex backend").to_contiguous()
}

fn slice<T: FloatElement>(values: &FlexTensor) -> &[T] {
    values.as_slice().expect("contiguous values of the type that was matched")
}

/// Into `low ..= high`; what is not a number stays so.
fn clamp<T: PartialOrd>(value: T, low: T, high: T) -> T {
    match value {
        value if value < low => low,
        value if value > high => high,
        value => value,
    }
}

fn in_place<T: FloatElement>(
    settings: &adam::AdamWUpdate,
    range: Option<[f64; 2]>,
    values: &mut [T],
    gradient: &[T],
    [first, second]: [&mut [T]; 2],
) {
    adam::update(settings, values, gradient, first, second);
    if let Some([low, high]) = range {
        let (low, high) = (T::from_f64(low), T::from_f64(high));
        values.iter_mut().for_each(|value| *value = clamp(*value, low, high));
    }
}

/// [`reference()`] in one pass, in place where nothing else shares the values.
fn fused<const D: usize>(
    settings: &adam::AdamWUpdate,
    range: Option<[f64; 2]>,
    values: Tensor<D>,
    gradient: Tensor<1>,
    moments: AdamState,
) -> (Tensor<D>, AdamState) {
    let (mut values, gradient) = (flex(values), flex(gradient));
    let (mut first, mut second) = (flex(moments.first), flex(moments.second));
    with_element!(values, T => {
        let moments = [first.storage_mut::<T>(), second.storage_mut::<T>()];
        in_place(settings, range, values.storage_mut(), slice(&gradient), moments);
    });
    let moments =
        AdamState { first: Tensor::from_primitive::<Flex>(first), second: Tensor::from_primitive::<Flex>(second) };
    (Tensor::from_primitive::<Flex>(values), moments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::ParamGroups;
    use rand::{RngExt, SeedableRng};

    /// A matrix, a vector, and a vector with a range that says nothing is decayed.
    #[derive(Module, Debug)]
    struct Three {
        matrix: Param<Tensor<2>>,
        vector: Param<Tensor<1>>,
        kernel: Param<Tensor<1>>,
    }

    const LOW: f64 = 0.4;

    impl ParamGroupOverrides for Three {
        fn override_param_groups(&self, groups: &mut ParamGroups) {
            groups.set(&self.kernel, ParamGroup { decay: false, range: Some([LOW, 2.0]) });
        }
    }

    fn random<const D: usize>(shape: [usize; D], dtype: DType, seed: u64) -> Tensor<D> {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random()).collect();
        Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), dtype))
    }

    fn three(dtype: DType) -> Three {
        let vector = |seed| Param::from_tensor(Tensor::from_inner(random([40], dtype, seed)));
        let matrix = Param::from_tensor(Tensor::from_inner(random([30, 70], dtype, 0)));
        Three { matrix, vector: vector(1), kernel: vector(2) }
    }

    fn gradients(dtype: DType, step: u64) -> Vec<Tensor<1>> {
        [2100, 40, 40].iter().zip(3 * step..).map(|(len, seed)| random([*len], dtype, 100 + seed) - 0.3).collect()
    }

    const SETTINGS: AdamWConfig = AdamWConfig { betas: [0.9, 0.99], epsilon: 1e-8, weight_decay: 0.1, clip: 1.0 };

    /// Values of every parameter and moment after some updates.
    fn train(dtype: DType, implementation: Impl, steps: u64) -> Vec<Vec<f64>> {
        let mut model = three(dtype);
        let mut optimizer = AdamW::new(&model, SETTINGS).with_implementation(implementation);
        for step in 1..=steps {
            let gradients = gradients(dtype, step);
            let norm = optimizer.norm(&gradients);
            model = optimizer.step(model, gradients, norm, AdamWStep { learning_rate: 0.05, adam_step: step });
        }
        let moments = optimizer.moments.into_iter().flat_map(|AdamState { first, second }| [first, second]);
        let all = parameters::values(&model).into_iter().chain(moments);
        all.map(|values| values.into_data().iter::<f64>().collect()).collect()
    }

    #[test]
    fn fused_equals_reference() {
        // the same roundings; f32 differs only by the norm, which the reference adds up in f32
        for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 1e-6)] {
            let (fused, reference) = (train(dtype, Impl::Kernel, 6), train(dtype, Impl::Reference, 6));
            assert_eq!(fused.len(), 9);
            for (fused, reference) in fused.iter().zip(&reference) {
                let error = fused.iter().zip(reference).fold(0f64, |m, (a, b)| m.max((a - b).abs()));
                assert!(error <= tolerance && fused.len() == reference.len(), "{dtype:?}: {error:e}");
            }
        }
    }

    #[test]
    fn an_update_is_the_formula_with_clipping_decay_and_projection() {
        let dtype = DType::F64;
        let gradients = gradients(dtype, 1);
        let numbers = |tensor: &Tensor<1>| tensor.clone().into_data().iter::<f64>().collect::<Vec<f64>>();
        let norm = gradients.iter().flat_map(numbers).map(|g| g * g).sum::<f64>().sqrt();
        assert!(norm > 1.0);
        let before: Vec<_> = parameters::values(&three(dtype)).iter().map(numbers).collect();
        let after = train(dtype, Impl::Kernel, 1);
        for (at, decay) in [(0, 0.1), (1, 0.0), (2, 0.0)] {
            for ((old, gradient), new) in before[at].iter().zip(numbers(&gradients[at])).zip(&after[at]) {
                // the first step's corrected moments are the clipped gradient and its square
                let g = gradient / (norm + 1e-6);
                let want = old * (1.0 - 0.05 * decay) - 0.05 * g / (g.abs() + 1e-8);
                let want = if at == 2 { want.clamp(LOW, 2.0) } else { want };
                assert!((new - want).abs() < 1e-12, "{at}: {new} {want}");
            }
        }
        assert!(after[2].contains(&LOW), "no value was projected");
    }

    fn one() -> Tensor<1> {
        Tensor::ones([1], &Device::flex())
    }

    fn number(tensor: Tensor<1>) -> f64 {
        tensor.into_scalar()
    }

    #[test]
    fn a_norm_that_is_no_number_updates_nothing() {
        for implementation in [Impl::Kernel, Impl::Reference] {
            let (model, dtype) = (three(DType::F32), DType::F32);
            let mut optimizer = AdamW::new(&model, SETTINGS).with_implementation(implementation);
            let update = |adam_step| AdamWStep { learning_rate: 0.1, adam_step };
            let model = optimizer.step(model, gradients(dtype, 1), one(), update(1));
            let state = |model: &Three, optimizer: &AdamW| {
                let moments = optimizer.moments().concat().into_iter().map(|moment| moment.slice::<f32>().to_vec());
                let values = parameters::values(model).into_iter().map(|values| values.into_data().iter().collect());
                values.chain(moments).collect::<Vec<Vec<f32>>>()
            };
            let before = state(&model, &optimizer);
            let mut poisoned = gradients(dtype, 2);
            poisoned[1] = poisoned[1].clone() * f64::NAN;
            let norm = optimizer.norm(&poisoned);
            let model = optimizer.step(model, poisoned, norm, update(2));
            assert_eq!(state(&model, &optimizer), before, "{implementation:?}");
            let model = optimizer.step(model, gradients(dtype, 2), one(), update(2));
            assert_ne!(state(&model, &optimizer), before, "{implementation:?}");
        }
    }

    #[test]
    fn values_that_are_no_numbers_are_found() {
        for implementation in [Impl::Kernel, Impl::Reference] {
            let optimizer = AdamW::new(&three(DType::F32), SETTINGS).with_implementation(implementation);
            let good = random::<1>([50], DType::F32, 0);
            assert!(optimizer.is_finite(&good) && number(optimizer.norm(std::slice::from_ref(&good))).is_finite());
            for bad in [f64::NAN, f64::INFINITY] {
                let bad = Tensor::cat(vec![good.clone(), good.clone() * bad], 0);
                assert!(!optimizer.is_finite(&bad) && !number(optimizer.norm(&[good.clone(), bad])).is_finite());
            }
        }
    }

    #[test]
    fn a_projection_keeps_what_is_no_number() {
        assert!(clamp(f64::NAN, 0.0, 1.0).is_nan());
        assert_eq!([-1.0, 0.5, 2.0].map(|value| clamp(value, 0.0, 1.0)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn moments_go_out_and_come_back() {
        let (mut model, dtype) = (three(DType::F32), DType::F32);
        let mut optimizer = AdamW::new(&model, SETTINGS);
        model = optimizer.step(model, gradients(dtype, 1), one(), AdamWStep { learning_rate: 0.1, adam_step: 1 });
        let kept = optimizer.moments();
        let mut other = AdamW::new(&model, SETTINGS);
        let fill = |at: usize, second: bool, values: &mut [f32]| {
            values.copy_from_slice(kept[at][usize::from(second)].slice());
            Ok::<(), ()>(())
        };
        other.load_moments(fill).unwrap();
        for (kept, loaded) in kept.iter().flatten().zip(other.moments().iter().flatten()) {
            assert!(kept.slice::<f32>().iter().any(|value| *value != 0.0));
            assert_eq!(kept.slice::<f32>(), loaded.slice::<f32>());
        }
    }
}
