//! Dropout: a fraction of the values becomes 0, and the others are scaled up in return. Srivastava
//! et al. 2014.

#[cfg(feature = "cube")]
mod gpu;

#[cfg(feature = "cube")]
use crate::custom_op::GpuOp;
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, OpInputs, OpOutput, SavedForBackward};
use crate::forward_context::ForwardContext;
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu, DeviceKind::Gpu];

/// What is dropped where.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    /// Share of the values, below 1.
    pub share: f64,
    /// The pass that draws; outside training nothing is dropped.
    pub pass: &'a ForwardContext,
    /// The place of its noise.
    pub place: u64,
}

/// `x` `[B, L, M]` with each value either 0, with probability `share`, or divided by `1 - share`. Every sequence draws for
/// itself, so how a batch is split changes nothing.
///
/// # Panics
/// When the share is not in `0..1`.
pub fn dropout(x: Tensor<3>, dropout: Dropout, implementation: Impl) -> Tensor<3> {
    assert!((0.0..1.0).contains(&dropout.share), "dropout: a probability of {}", dropout.share);
    if !dropout.pass.train || dropout.share == 0.0 {
        return x;
    }
    if !implementation.has_kernel(KERNELS, &x) {
        return reference(x, dropout);
    }
    let Dropout { share, pass, place } = dropout;
    let mut inputs = OpInputs::default();
    inputs.add(x);
    inputs.apply(DropoutOp { share, pass: *pass, place })
}

/// The reference, for a pass that trains.
pub fn reference(x: Tensor<3>, dropout: Dropout) -> Tensor<3> {
    let factors = reference_factors(x.dims(), dropout, (&x.device(), x.dtype()));
    x * factors
}

/// What `width` values for each row of `x`, `[B, L, M]`, are multiplied by in a pass that trains, `[B, L, width]`.
pub fn factors(x: &Tensor<3>, width: usize, dropout: Dropout, implementation: Impl) -> Tensor<3> {
    let ([batch, len, _], device) = (x.dims(), x.device());
    let (shape, options) = ([batch, len, width], (&device, x.dtype()));
    if implementation.has_kernel(&[DeviceKind::Gpu], x) {
        self::dropout(Tensor::ones(shape, options), dropout, implementation)
    } else {
        reference_factors(shape, dropout, options)
    }
}

fn reference_factors(
    shape: [usize; 3],
    Dropout { share, pass, place }: Dropout,
    options: (&Device, DType),
) -> Tensor<3> {
    let drop = DropoutOp { share, pass: *pass, place };
    let dropped: Vec<bool> = drop.kept(&shape).into_iter().map(|kept| !kept).collect();
    let dropped = Tensor::<3, Bool>::from_data(TensorData::new(dropped, shape), options.0);
    Tensor::full(shape, drop.growth(), options).mask_fill(dropped, 0.0)
}

/// [`Dropout`] as an operation.
#[derive(Debug)]
struct DropoutOp {
    share: f64,
    pass: ForwardContext,
    place: u64,
}

impl DropoutOp {
    /// What values that stay are multiplied by.
    fn growth(&self) -> f64 {
        (1.0 - self.share).recip()
    }

    /// The least of a word whose value stays.
    fn limit(&self) -> u32 {
        (self.share * 2f64.powi(32)) as u32
    }

    /// The stream of words of a sequence, one for a value.
    fn stream(&self, row: usize) -> ChaCha8Rng {
        self.pass.noise(row, self.place)
    }

    /// Which values of sequences stay, `[B, ..]`.
    fn kept(&self, shape: &[usize]) -> Vec<bool> {
        let (mut kept, limit) = (vec![false; shape.iter().product()], self.limit());
        let width = shape[1..].iter().product::<usize>().max(1);
        kept.par_chunks_mut(width).enumerate().for_each(|(row, kept)| {
            let mut words = self.stream(row);
            kept.iter_mut().for_each(|kept| *kept = words.next_u32() >= limit);
        });
        kept
    }

    /// The same for values and for gradients.
    fn apply<T: FloatElement>(&self, kept: &[bool], x: &HostArray) -> HostArray {
        let growth = T::from_f64(self.growth());
        let values = x.slice::<T>().iter().zip(kept);
        HostArray::from_vec(values.map(|(x, kept)| if *kept { *x * growth } else { T::ZERO }).collect(), x.shape())
    }
}

impl CustomOp for DropoutOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        let x = &inputs[0];
        let kept = self.kept(x.shape());
        OpOutput { output: with_element!(x, T => self.apply::<T>(&kept, x)), saved: SavedForBackward::new(kept) }
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let kept = ctx.saved::<Vec<bool>>();
        vec![Some(with_element!(ctx.inputs[0], T => self.apply::<T>(kept, ctx.d_output)))]
    }

    #[cfg(feature = "cube")]
    fn on_gpu(&self) -> Option<&dyn GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn numbers(tensor: Tensor<3>) -> Vec<f64> {
        tensor.into_data().iter::<f64>().collect()
    }

    fn ones(shape: [usize; 3]) -> Tensor<3> {
        Tensor::ones(shape, &Device::flex().autodiff()).require_grad()
    }

    #[test]
    fn values_stay_or_go_and_the_mean_stays() {
        let pass = ForwardContext::training(1, 2);
        let y = numbers(dropout(ones([8, 50, 40]), Dropout { share: 0.25, pass: &pass, place: 3 }, Impl::Kernel));
        assert!(y.iter().all(|y| *y == 0.0 || (y - 4.0 / 3.0).abs() < 1e-6));
        // six standard deviations of 16,000 draws
        let mean = y.iter().sum::<f64>() / 16_000.0;
        assert!((mean - 1.0).abs() < 6.0 * (1.0f64 / 3.0 / 16_000.0).sqrt(), "{mean}");
    }

    #[test]
    fn fused_equals_reference_with_its_gradient_and_parts_equal_the_whole() {
        let pass = ForwardContext::training(1, 2);
        let all = [Impl::Kernel, Impl::Reference].map(|implementation| {
            let x = ones([3, 4, 5]);
            let y = dropout(x.clone(), Dropout { share: 0.5, pass: &pass, place: 3 }, implementation);
            let gradients = y.clone().powi_scalar(2).sum().backward();
            (numbers(y), numbers(x.grad(&gradients).unwrap()))
        });
        assert_eq!(all[0], all[1]);
        assert!(all[0].0.contains(&0.0) && all[0].0.contains(&2.0));
        let row = Dropout { share: 0.5, pass: &pass.at_row(2), place: 3 };
        assert_eq!(numbers(dropout(ones([1, 4, 5]), row, Impl::Kernel)), all[0].0[40..]);
        let off = Dropout { share: 0.5, pass: &ForwardContext::evaluation(1), place: 3 };
        assert_eq!(numbers(dropout(ones([1, 4, 5]), off, Impl::Kernel)), vec![1.0; 20]);
    }
}
