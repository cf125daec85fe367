//! Depthwise causal convolutions over a few tokens, added to what they read: `y_t[c] = x_t[c] + sum_{w<W} f[c, w] x_{t-W+1+w}[c]`,
//! where rows before a sequence or a document begins are 0. Those of Inkling (transformers, `models/inkling`).

use crate::attention_context::AttentionMask;
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{Bool, Tensor, TensorData};
use kerple_core::ops::heads::HeadLayout;
use kerple_core::ops::short_conv::{self, ShortConv};

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// How many tokens of its sequence, or of its document, are before each of `[B, L]` or `[L]` rows.
pub(super) fn positions(mask: &AttentionMask, len: usize) -> Vec<usize> {
    match &mask.documents {
        Some(documents) => documents.position_ids(),
        None => (0..len).collect(),
    }
}

/// `x` `[B, L, C]` convolved by filters `[C, W]`.
///
/// # Panics
/// When there is a filter for another number of channels.
pub fn short_conv(x: Tensor<3>, filters: Tensor<2>, mask: &AttentionMask, implementation: Impl) -> Tensor<3> {
    if !implementation.has_kernel(KERNELS, &x) {
        return reference(x, &filters, mask, None);
    }
    let positions = positions(mask, x.dims()[1]);
    let mut inputs = OpInputs::default();
    inputs.add(x);
    inputs.add(filters);
    inputs.apply(ShortConvOp { positions })
}

/// The convolution alone, which is not added to what it reads. `before` as for [`reference`].
pub(super) fn alone(
    x: Tensor<3>,
    filters: &Tensor<2>,
    mask: &AttentionMask,
    (implementation, before): (Impl, Option<&mut Option<Tensor<3>>>),
) -> Tensor<3> {
    let [_, width] = filters.dims();
    let own: Vec<f64> = (0..width).map(|tap| if tap + 1 == width { 1.0 } else { 0.0 }).collect();
    let own = Tensor::<2>::from_data(TensorData::new(own, [1, width]), (&filters.device(), filters.dtype()));
    let filters = filters.clone() - own;
    match before {
        Some(before) => reference(x, &filters, mask, Some(before)),
        None => short_conv(x, filters, mask, implementation),
    }
}

/// The reference. `before` holds the last `W - 1` rows before these, `[B, W - 1, C]`, where a cache has them; the last of all
/// rows take their place.
pub fn reference(
    x: Tensor<3>,
    filters: &Tensor<2>,
    mask: &AttentionMask,
    before: Option<&mut Option<Tensor<3>>>,
) -> Tensor<3> {
    let ([batch, len, channels], [_, width]) = (x.dims(), filters.dims());
    let earlier = match before.as_deref() {
        Some(Some(rows)) => rows.clone(),
        _ => Tensor::zeros([batch, width - 1, channels], (&x.device(), x.dtype())),
    };
    let rows = if width == 1 { x.clone() } else { Tensor::cat(vec![earlier, x.clone()], 1) };
    if let Some(before) = before.filter(|_| width > 1) {
        *before = Some(rows.clone().narrow(1, len, width - 1));
    }
    let positions = mask.documents.as_ref().map(|documents| documents.position_ids());
    let term = |back: usize| {
        let tap = filters.clone().narrow(1, width - 1 - back, 1).reshape([1, 1, channels]);
        let seen = rows.clone().narrow(1, width - 1 - back, len);
        let seen = match &positions {
            None => seen,
            Some(positions) => {
                let is_other: Vec<bool> = positions.iter().map(|position| *position < back).collect();
                let is_other = Tensor::<3, Bool>::from_data(TensorData::new(is_other, [batch, len, 1]), &x.device());
                seen.mask_fill(is_other.expand([batch, len, channels]), 0.0)
            }
        };
        seen * tap
    };
    (0..width).fold(x.clone(), |sum, back| sum + term(back))
}

/// [`short_conv()`] as an operation on rows and filters.
#[derive(Debug)]
struct ShortConvOp {
    positions: Vec<usize>,
}

impl ShortConvOp {
    fn of<'a, T: FloatElement>(&'a self, inputs: &'a [HostArray]) -> (&'a [T], HeadLayout, ShortConv<'a, T>) {
        let (x, filters) = (&inputs[0], &inputs[1]);
        let (&[_, _, channels], &[_, width]) = (x.shape(), filters.shape()) else {
            panic!("expected [B, L, C] and [C, W], got {:?} and {:?}", x.shape(), filters.shape())
        };
        let place = HeadLayout { row: channels, start: 0, stride: channels, heads: 1, head_dim: channels };
        (x.slice(), place, ShortConv { filters: filters.slice(), width, positions: &self.positions })
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray]) -> OpOutput {
        let (x, place, by) = self.of::<T>(inputs);
        let mut y = x.to_vec();
        short_conv::forward(&mut y, place, by);
        OpOutput { output: HostArray::from_vec(y, inputs[0].shape()), saved: SavedForBackward::nothing() }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let (x, place, by) = self.of::<T>(ctx.inputs);
        let mut d_x = ctx.d_output.slice::<T>().to_vec();
        let d_filters = short_conv::backward(x, &mut d_x, place, by);
        let mut found = InputGrads::new(ctx.inputs);
        found.put(0, d_x);
        found.put(1, d_filters);
        found.finish()
    }
}

impl CustomOp for ShortConvOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => ShortConvOp::forward::<T>(self, inputs))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => ShortConvOp::backward::<T>(self, ctx))
    }
}
