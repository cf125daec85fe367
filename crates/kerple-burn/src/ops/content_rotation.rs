//! Rotations of queries and keys by angles that a layer computes from its normed rows, see
//! [`kerple_core::ops::content_rotation`].
//!
//! ```text
//! u = W2 (W1 x')          phi_t = sum over w < W of f[:, w] u_(t-W+1+w)  [+ e^beta]  [* sigmoid(x' Wg + bg)]
//! x': the part of each head divided by sqrt(|part|^2 + 1e-6)
//! ```

use super::{LinearTensors, linear, short_conv};
use crate::attention_context::{
    AngleProjection, AttentionContext, AttentionMask, IncrementProjection, ProjectedIncrements,
};
use crate::custom_op::{CustomOp, FloatElement, InPlaceOp, OpInputs, SavedForBackward};
use crate::heads::Heads;
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::{Tensor, TensorData, activation};
use kerple_core::ops::content_rotation::{self as core, Increments};
use kerple_core::ops::heads::HeadLayout;
use std::f64::consts::TAU;

/// Devices that have a kernel for it.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];
/// Added to the squared length of a part.
const LENGTH_EPSILON: f64 = 1e-6;

/// What a cache keeps of the positions before: the last rows of a convolution, `[B, W - 1, H P]`, and their angles in turns,
/// `[B, H P]`.
#[derive(Clone, Debug, Default)]
pub struct AnglesBefore {
    convolved: Option<Tensor<3>>,
    turns: Vec<f64>,
}

impl AngleProjection {
    /// What each token turns by, `[B, L, H P]`, of normed rows `[B, L, M]`. A cache has the last projected rows before these.
    pub fn increments(
        &self,
        rows: &Tensor<3>,
        mask: &AttentionMask,
        place: (Impl, Option<&mut Option<Tensor<3>>>),
    ) -> Tensor<3> {
        let ([batch, len, _], pairs) = (rows.dims(), self.rates.len());
        let increments = match &self.increments {
            IncrementProjection::Projected(projected) => projected.increments(rows, mask, pairs, place),
            IncrementProjection::Steps(steps) => {
                let steps = steps.gates(rows).swap_dims(1, 2).unsqueeze_dim::<4>(3);
                let heads = steps.dims()[2];
                steps.expand([batch, len, heads, pairs])
            }
        };
        let rates = TensorData::new(self.rates.to_vec(), [1, 1, 1, pairs]);
        let turned = increments * Tensor::<4>::from_data(rates, (&rows.device(), rows.dtype()));
        turned.flatten(2, 3)
    }
}

impl ProjectedIncrements {
    /// `[B, L, H, P]`
    fn increments(
        &self,
        rows: &Tensor<3>,
        mask: &AttentionMask,
        pairs: usize,
        (implementation, before): (Impl, Option<&mut Option<Tensor<3>>>),
    ) -> Tensor<4> {
        let ProjectedIncrements { weights: [of_rows, of_angles], filters, bias, gate } = self;
        let ([batch, len, width], [angles, _]) = (rows.dims(), filters.dims());
        let heads = angles / pairs;
        let parts = rows.clone().reshape([batch, len, heads, width / heads]);
        let lengths = (parts.clone().powi_scalar(2).sum_dim(3) + LENGTH_EPSILON).sqrt();
        let normed = (parts / lengths).reshape([batch, len, width]);
        let product = |rows: Tensor<3>, weight: &Tensor<2>, bias: Option<Tensor<1>>| {
            linear::linear(rows, LinearTensors { weight: weight.clone(), bias }, None, implementation)
        };
        let projected = product(product(normed.clone(), of_rows, None), of_angles, None);
        let increments = short_conv::alone(projected, filters, mask, (implementation, before));
        let increments = match bias {
            Some(beta) => increments + beta.clone().exp().unsqueeze::<3>(),
            None => increments,
        };
        let increments = increments.reshape([batch, len, heads, pairs]);
        match gate {
            Some((weight, bias)) => {
                let gates = activation::sigmoid(product(normed, weight, Some(bias.clone())));
                increments * gates.reshape([batch, len, heads, 1])
            }
            None => increments,
        }
    }
}

/// Packed rows `[B, L, (H + 2 G) D]` whose queries and keys are turned by what their context makes of normed rows `[B, L, M]`, and their
/// heads: query heads turn the keys they read by angles of their own, so each has a key head then. `before` is what a cache keeps of
/// the positions before these, and is brought up to them.
pub(crate) fn turned(
    qkv: Tensor<3>,
    heads: Heads,
    context: &AttentionContext,
    normed: &Tensor<3>,
    (implementation, before): (Impl, Option<&mut AnglesBefore>),
) -> (Tensor<3>, Heads) {
    let Some(projection) = &context.angles else { return (qkv, heads) };
    let (qkv, heads) = with_keys_of_each(qkv, heads);
    let mask = &context.mask;
    let Some(before) = before else {
        let increments = projection.increments(normed, mask, (implementation, None));
        return (by_increments(qkv, increments, heads, mask, implementation), heads);
    };
    let increments = projection.increments(normed, mask, (implementation, Some(&mut before.convolved)));
    let [batch, len, width] = increments.dims();
    before.turns.resize(batch * width, 0.0);
    let (device, dtype) = (qkv.device(), qkv.dtype());
    let of = Increments { batch, len, width, positions: &[] };
    let values: Vec<f64> = increments.into_data().iter::<f64>().collect();
    let tables = core::cos_sin::<f64>(&values, of, &mut before.turns);
    let [cos, sin] = tables.map(|values| {
        let values = TensorData::new(values, [batch, len, heads.heads, width / heads.heads]);
        Tensor::<4>::from_data(values, (&device, dtype))
    });
    (turned_by(qkv, heads, [cos, sin]), heads)
}

/// Packed rows with a key head, and a value head, for each query head.
pub(super) fn with_keys_of_each(qkv: Tensor<3>, heads: Heads) -> (Tensor<3>, Heads) {
    let Heads { heads: query_heads, kv_heads, head_dim, .. } = heads;
    if query_heads == kv_heads {
        return (qkv, heads);
    }
    let [batch, len, _] = qkv.dims();
    let [q, k, v] = heads.split(qkv);
    let of_each = |x: Tensor<4>| {
        let x = x.reshape([batch, len, kv_heads, 1, head_dim]).repeat_dim(3, query_heads / kv_heads);
        x.reshape([batch, len, query_heads, head_dim])
    };
    let all = Heads { kv_heads: query_heads, ..heads };
    (all.join([q, of_each(k), of_each(v)]), all)
}

/// Packed rows with as many key heads as query heads, turned by increments `[B, L, H P]` from the first token on.
pub fn by_increments(
    qkv: Tensor<3>,
    increments: Tensor<3>,
    heads: Heads,
    mask: &AttentionMask,
    implementation: Impl,
) -> Tensor<3> {
    if !implementation.has_kernel(KERNELS, &qkv) {
        return reference(qkv, increments, heads);
    }
    let positions = mask.documents.as_ref().map(|documents| documents.position_ids()).unwrap_or_default();
    let mut inputs = OpInputs::default();
    inputs.add(qkv);
    inputs.add(increments);
    inputs.apply(ContentRotationOp { heads, positions })
}

/// The reference: sums from the first token of a sequence on, in documents too, where only what they differ by matters. In f32
/// they lose precision as they grow.
fn reference(qkv: Tensor<3>, increments: Tensor<3>, heads: Heads) -> Tensor<3> {
    let [batch, len, width] = increments.dims();
    let angles = increments.cumsum(1).reshape([batch, len, heads.heads, width / heads.heads]);
    // whole turns have no gradient
    let whole = (angles.clone().detach() / TAU).floor() * TAU;
    let angles = angles - whole;
    turned_by(qkv, heads, [angles.clone().cos(), angles.sin()])
}

/// Queries and keys turned by these cosines and sines, `[B, L, H, P]`.
fn turned_by(qkv: Tensor<3>, heads: Heads, [cos, sin]: [Tensor<4>; 2]) -> Tensor<3> {
    let [q, k, v] = heads.split(qkv);
    let turn = |x: Tensor<4>| {
        let pairs = heads.head_dim / 2;
        let (low, high) = (x.clone().narrow(3, 0, pairs), x.narrow(3, pairs, pairs));
        let turned = [low.clone() * cos.clone() - high.clone() * sin.clone(), high * cos.clone() + low * sin.clone()];
        Tensor::cat(turned.into(), 3)
    };
    heads.join([turn(q), turn(k), v])
}

/// Packed rows, and increments.
#[derive(Debug)]
struct ContentRotationOp {
    heads: Heads,
    /// How many tokens of its document are before each, `[B, L]`; empty where sequences are one document.
    positions: Vec<usize>,
}

impl ContentRotationOp {
    fn increments(&self, inputs: &[HostArray]) -> Increments<'_> {
        let &[batch, len, width] = inputs[1].shape() else { panic!("expected increments [B, L, H P]") };
        Increments { batch, len, width, positions: &self.positions }
    }

    /// Where queries and keys are.
    fn places(&self) -> [HeadLayout; 2] {
        let Heads { heads, head_dim, .. } = self.heads;
        let ([q, k, _], strides) = self.heads.layout(1);
        [q, k].map(|start| HeadLayout { row: self.heads.packed(), start, stride: strides.head, heads, head_dim })
    }

    fn forward<T: FloatElement>(&self, inputs: &mut [HostArray]) -> SavedForBackward {
        let of = self.increments(inputs);
        let [cos, sin] = core::cos_sin::<T>(inputs[1].slice(), of, &mut vec![0.0; of.batch * of.width]);
        core::rotate(inputs[0].slice_mut(), &self.places(), [&cos, &sin]);
        SavedForBackward::new([cos, sin])
    }

    /// The gradient in the increments.
    fn backward<T: FloatElement>(
        &self,
        d_rows: &mut HostArray,
        inputs: &[HostArray],
        saved: &SavedForBackward,
    ) -> HostArray {
        let [cos, sin] = saved.get::<[Vec<T>; 2]>();
        let d_angles = core::backward(inputs[0].slice(), d_rows.slice_mut(), &self.places(), [cos, sin]);
        HostArray::from_vec(core::d_increments::<T>(&d_angles, self.increments(inputs)), inputs[1].shape())
    }
}

impl CustomOp for ContentRotationOp {
    fn in_place(&self) -> Option<&dyn InPlaceOp> {
        Some(self)
    }
}

impl InPlaceOp for ContentRotationOp {
    fn forward(&self, inputs: &mut [HostArray]) -> SavedForBackward {
        with_element!(inputs[0], T => ContentRotationOp::forward::<T>(self, inputs))
    }

    fn backward(
        &self,
        d_rows: &mut HostArray,
        inputs: &[HostArray],
        saved: &SavedForBackward,
    ) -> Vec<Option<HostArray>> {
        vec![Some(with_element!(inputs[0], T => ContentRotationOp::backward::<T>(self, d_rows, inputs, saved)))]
    }
}
