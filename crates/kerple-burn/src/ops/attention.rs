//! Exact attention on queries, keys and values: `softmax(scale q.k weight[d] + bias[d]) v`, or with a map of all heads, or with
//! another normaliser than softmax, with the gradients of tables and maps.

mod cumsum;
#[cfg(feature = "cube")]
mod gpu;
mod kernels;
mod op;
#[cfg(feature = "cube")]
mod query_chunks;
mod reference;
mod score_inputs;

pub(super) use cumsum::running_sums;
#[cfg(feature = "cube")]
pub use query_chunks::query_chunked;
pub use reference::{AttentionScores, reference, seen, weights};
pub(crate) use reference::{MaskedAfter, grouped_reference, grouped_seen, grouped_weights, selective_after};
pub(super) use reference::{gate_differences, repeat_heads};
pub(crate) use score_inputs::{AttentionCall, AttentionOutput, MaskedBefore, ScoreInputs, strided_by_keys};

use super::{grouped_attention, score_mods};
#[cfg(feature = "cube")]
use crate::attention_context::AttentionBias;
use crate::attention_context::{
    AttentionContext, FromRows, HouseholderTensors, PathTensors, RelativeTensors, RotaryTables, ScoreContext,
};
use crate::custom_op::OpInputs;
use crate::heads::Heads;
use crate::implementation::{DeviceKind, Impl};
use burn::tensor::Tensor;
use kerple_core::attention::Strides;
use kerple_core::forms::{Normalizer, Selective};
use op::{AttentionOp, PathInputs, RelativeInputs, RowInputs};
use reference::shifted;
#[cfg(feature = "cube")]
use std::sync::Arc;

/// The usual factor on `q.k`, `1 / sqrt(D)`.
pub fn default_scale(head_dim: usize) -> f64 {
    (head_dim as f64).sqrt().recip()
}

/// Changes of scores by a layer, in addition to those by positions.
#[derive(Clone, Debug)]
pub struct Scoring {
    /// Factor on `q.k`.
    pub scale: f64,
    /// The softcap: scaled scores become `softcap tanh(s / softcap)` before any other change.
    pub softcap: Option<f64>,
    /// The attention sink: an extra logit per head without a value, `[H]`.
    pub sinks: Option<Tensor<1>>,
    /// How logits become weights; another one than softmax without sinks, score modifications and biases over paths.
    pub normalizer: Normalizer,
    /// Selective attention, for a causal mask and softmax, with tables by distance or score modifications.
    pub selective: Option<Selective>,
}

impl From<f64> for Scoring {
    fn from(scale: f64) -> Scoring {
        Scoring { scale, softcap: None, sinks: None, normalizer: Normalizer::Softmax, selective: None }
    }
}

/// Attention of `[B, H, Q, D]` queries over `[B, G, K, D]` keys and `[B, G, K, E]` values; G divides H
/// (grouped-query attention), and the last query is at the last key's position. Rotations are not
/// part of it, see [`rotated`]; what a method adds to queries is.
pub fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scoring: impl Into<Scoring>,
    context: &ScoreContext,
    implementation: Impl,
) -> Tensor<4> {
    let scoring = scoring.into();
    if !implementation.has_kernel(kernels::of([&q, &k, &v], &scoring, context), &q) {
        // chunks of queries take no documents, and values as wide as queries
        #[cfg(feature = "cube")]
        if context.relative.is_none()
            && context.path.is_none()
            && context.householder.is_none()
            && context.kernel.is_none()
            && context.feature_gates.is_none()
            && context.mask.documents.is_none()
            && scoring.selective.is_none()
            && v.dims()[3] == q.dims()[3]
            && implementation.has_kernel(&[DeviceKind::Gpu], &q)
        {
            return query_chunked([q, k, v], &scoring, context, query_chunks::AT_ONCE, implementation);
        }
        return reference(q, k, v, &scoring, context);
    }
    let (q, keys) = (shifted(q, &context.bias), k.dims()[2]);
    let mut inputs = OpInputs::default();
    let rows = RowInputs::Apart([q, k, v].map(|tensor| inputs.add(tensor)));
    fused((rows, keys), inputs, scoring, context, implementation)
}

/// [`attention()`] of packed rows `[B, L, (H + 2 G) D]`, `[B, L, H E]`.
pub(crate) fn packed(
    qkv: Tensor<3>,
    heads: Heads,
    scoring: Scoring,
    context: &ScoreContext,
    implementation: Impl,
) -> Tensor<3> {
    let [batch, len, _] = qkv.dims();
    if implementation.has_kernel(&[DeviceKind::Cpu], &qkv) && score_mods::query_bias(&context.bias).is_none() {
        let mut inputs = OpInputs::default();
        let rows = RowInputs::Packed(inputs.add(qkv), heads);
        return fused((rows, len), inputs, scoring, context, implementation);
    }
    let [q, k, v] = heads.unpack(qkv);
    attention(q, k, v, scoring, context, implementation).swap_dims(1, 2).reshape([batch, len, heads.inner()])
}

/// Attention of these rows, which are among the inputs, over so many keys.
fn fused<const D: usize>(
    (rows, keys): (RowInputs, usize),
    mut inputs: OpInputs,
    scoring: Scoring,
    context: &ScoreContext,
    implementation: Impl,
) -> Tensor<D> {
    assert!(implementation.uses_kernels(), "the reference is plain operations");
    let scores = ScoreInputs::add(&context.mask, &context.bias, scoring, keys, &mut inputs)
        .with_kernel(context.kernel.clone(), &mut inputs);
    let gates = context.gates.clone().map(|gates| inputs.add(context.mask.without_nan_in_padding(gates)));
    let feature_gates = context.feature_gates.clone().map(|gates| inputs.add(gates));
    let relative = context.relative.clone().map(|RelativeTensors { rows, profiles }| RelativeInputs {
        rows: inputs.add(rows),
        profiles: inputs.add(profiles),
    });
    let path = context.path.clone().map(|PathTensors { queries, keys, slopes }| PathInputs {
        queries: inputs.add(queries),
        keys: inputs.add(keys),
        slopes,
    });
    let householder = context
        .householder
        .clone()
        .map(|HouseholderTensors { directions, strengths }| [directions, strengths].map(|tensor| inputs.add(tensor)));
    inputs.apply(AttentionOp {
        rows,
        scores,
        gates,
        feature_gates,
        relative,
        path,
        householder,
        #[cfg(feature = "cube")]
        known: if let AttentionBias::ScoreMod { known, .. } = &context.bias { known.clone() } else { Arc::default() },
        #[cfg(feature = "cube")]
        precision: implementation.precision(),
    })
}

/// [`attention()`] after the rotation of queries and keys, which are at the same positions; all `[B, H, L, D]`.
///
/// # Panics
/// When the context has gates or a relative bias, which a layer computes from its rows.
pub fn rotated(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    scoring: impl Into<Scoring>,
    context: &AttentionContext,
    implementation: Impl,
) -> Tensor<4> {
    let rope = context.rope.as_deref();
    if let Some((rope, grouped)) = rope.and_then(|rope| Some((rope, rope.grouped()?))) {
        return grouped_attention::attention(
            grouped.turned(rope, q, k),
            v,
            scoring.into(),
            &context.mask,
            implementation,
        );
    }
    attention(rotate(q, rope), rotate(k, rope), v, scoring, &context.scores(FromRows::default()), implementation)
}

/// Turns the first features of `[B, H, L, D]` by these angles, half-split; reference implementation.
pub fn rotate(x: Tensor<4>, rope: Option<&RotaryTables>) -> Tensor<4> {
    let Some(rope) = rope else { return x };
    let ([_, _, _, head_dim], half) = (x.dims(), rope.half());
    let [cos, sin] = rope.tensors((&x.device(), x.dtype()));
    let (low, high) = (x.clone().narrow(3, 0, half), x.clone().narrow(3, half, half));
    let mut parts = vec![low.clone() * cos.clone() - high.clone() * sin.clone(), high * cos + low * sin];
    if head_dim > 2 * half {
        parts.push(x.narrow(3, 2 * half, head_dim - 2 * half));
    }
    Tensor::cat(parts, 3)
}

/// Of an array `[B, H, L, D]` without gaps.
pub(crate) fn dense(heads: usize, rows: usize, width: usize) -> Strides {
    Strides { batch: heads * rows * width, head: rows * width, row: width }
}
