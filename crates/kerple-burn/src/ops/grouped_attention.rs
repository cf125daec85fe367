//! Attention with near keys at their own distances and far keys at distances of groups (Self-Extend), see
//! [`kerple_core::attention::grouped`].

use super::attention::{self, Scoring, dense};
use crate::attention_context::{AttentionMask, GroupedTables, RotaryTables, ScoreContext};
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::attention::grouped::{self, GroupedGradients, GroupedRows, GroupedSaved};
use kerple_core::attention::{AttentionDims, AttentionProblem, View, ViewMut};
use kerple_core::ops::zeros;

const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// Queries `[B, H, Q, D]` and keys `[B, G, K, D]` as they are turned for near keys and for far ones.
#[derive(Clone, Debug)]
pub(crate) struct TurnedRows {
    /// For keys at distances below the window.
    pub(crate) near: [Tensor<4>; 2],
    /// For the others.
    pub(crate) far: [Tensor<4>; 2],
    /// Distances from here on are far.
    pub(crate) window: usize,
}

impl GroupedTables {
    /// Queries and keys at the positions of these tables.
    pub(crate) fn turned(&self, rope: &RotaryTables, q: Tensor<4>, k: Tensor<4>) -> TurnedRows {
        let near = [q.clone(), k.clone()].map(|x| attention::rotate(x, Some(rope)));
        let far = [attention::rotate(q, Some(&self.queries)), attention::rotate(k, Some(&self.keys))];
        TurnedRows { near, far, window: self.window }
    }
}

/// Attention over values `[B, G, K, D]`.
///
/// # Panics
/// When anything but an attention sink and a softcap changes scores.
pub(crate) fn attention(
    rows: TurnedRows,
    v: Tensor<4>,
    scoring: Scoring,
    mask: &AttentionMask,
    implementation: Impl,
) -> Tensor<4> {
    if !implementation.has_kernel(KERNELS, &v) {
        return reference(rows, v, &scoring, mask);
    }
    let TurnedRows { near, far, window } = rows;
    let Scoring { scale, softcap, sinks, normalizer, selective } = scoring;
    assert!(normalizer.is_softmax() && selective.is_none(), "grouped distances are for softmax alone");
    let mut inputs = OpInputs::default();
    let [near, far] = [near, far].map(|rows| rows.map(|tensor| inputs.add(tensor)));
    let (v, sinks) = (inputs.add(v), inputs.add_some(sinks));
    inputs.apply(GroupedAttentionOp { near, far, v, sinks, scale, softcap, window, mask: mask.clone() })
}

/// The reference: scores of all pairs of both kinds.
pub(crate) fn reference(rows: TurnedRows, v: Tensor<4>, scoring: &Scoring, mask: &AttentionMask) -> Tensor<4> {
    let context = ScoreContext { mask: mask.clone(), ..ScoreContext::default() };
    attention::grouped_reference(rows, v, scoring, &context)
}

/// Inputs: queries and keys of both kinds, values and sinks. Saved: output and log-sum-exp.
#[derive(Debug)]
struct GroupedAttentionOp {
    near: [usize; 2],
    far: [usize; 2],
    v: usize,
    sinks: Option<usize>,
    scale: f64,
    softcap: Option<f64>,
    window: usize,
    mask: AttentionMask,
}

impl GroupedAttentionOp {
    fn dims(&self, inputs: &[HostArray]) -> AttentionDims {
        let [q, k, v] = [self.near[0], self.near[1], self.v].map(|place| inputs[place].shape());
        AttentionDims {
            batch: q[0],
            heads: q[1],
            kv_heads: k[1],
            queries: q[2],
            keys: k[2],
            head_dim: q[3],
            value_dim: v[3],
        }
    }

    fn with_problem<T: FloatElement, R>(
        &self,
        inputs: &[HostArray],
        f: impl FnOnce(&AttentionProblem<T>, GroupedRows<T>) -> R,
    ) -> R {
        let dims = self.dims(inputs);
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, value_dim, .. } = dims;
        let view = |place: usize, strides| View { data: inputs[place].slice::<T>(), strides };
        let rows =
            |[q, k]: [usize; 2]| [view(q, dense(heads, queries, head_dim)), view(k, dense(kv_heads, keys, head_dim))];
        let v = view(self.v, dense(kv_heads, keys, value_dim));
        let AttentionMask { pattern, lengths, documents } = &self.mask;
        let problem = AttentionProblem {
            mask: *pattern,
            lengths: lengths.as_deref(),
            documents: documents.as_deref(),
            softcap: self.softcap.map(T::from_f64),
            sinks: self.sinks.map(|place| inputs[place].slice::<T>()),
            ..AttentionProblem::causal(dims, T::from_f64(self.scale))
        };
        f(&problem, GroupedRows { near: rows(self.near), far: rows(self.far), v })
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray]) -> OpOutput {
        let AttentionDims { batch, heads, queries, value_dim, .. } = self.dims(inputs);
        let mut out = zeros::<T>(batch * heads * queries * value_dim);
        let mut lse = zeros::<T>(batch * heads * queries);
        self.with_problem(inputs, |problem, rows| {
            let out = ViewMut::new(&mut out, dense(heads, queries, value_dim));
            grouped::forward(problem, self.window, rows, out, &mut lse);
        });
        let output = HostArray::from_vec(out, &[batch, heads, queries, value_dim]);
        OpOutput { saved: SavedForBackward::new((output.clone(), lse)), output }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let AttentionDims { heads, kv_heads, queries, keys, head_dim, value_dim, .. } = self.dims(ctx.inputs);
        let (out, lse) = ctx.saved::<(HostArray, Vec<T>)>();
        let room = |place: usize| zeros::<T>(ctx.inputs[place].slice::<T>().len());
        let [mut near, mut far] = [self.near, self.far].map(|rows| rows.map(room));
        let (mut d_v, mut d_sinks) = (room(self.v), self.sinks.map(room));
        let (of_queries, of_keys) = (dense(heads, queries, head_dim), dense(kv_heads, keys, head_dim));
        let of_out = dense(heads, queries, value_dim);
        let [[near_q, near_k], [far_q, far_k]] = [near.each_mut(), far.each_mut()];
        let view = |array| View { data: HostArray::slice::<T>(array), strides: of_out };
        self.with_problem(ctx.inputs, |problem, rows| {
            let saved = GroupedSaved { out: view(out), lse, d_out: view(ctx.d_output) };
            let gradients = GroupedGradients {
                near: [ViewMut::new(near_q, of_queries), ViewMut::new(near_k, of_keys)],
                far: [ViewMut::new(far_q, of_queries), ViewMut::new(far_k, of_keys)],
                d_v: ViewMut::new(&mut d_v, dense(kv_heads, keys, value_dim)),
                d_sinks: d_sinks.as_deref_mut(),
            };
            grouped::backward(problem, self.window, rows, saved, gradients);
        });
        let mut found = InputGrads::new(ctx.inputs);
        let places = [self.near, self.far].concat().into_iter();
        places.zip(near.into_iter().chain(far)).for_each(|(place, gradient)| found.put(place, gradient));
        found.put(self.v, d_v);
        if let (Some(place), Some(gradient)) = (self.sinks, d_sinks) {
            found.put(place, gradient);
        }
        found.finish()
    }
}

impl CustomOp for GroupedAttentionOp {
    fn forward(&self, inputs: &[HostArray], _tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => GroupedAttentionOp::forward::<T>(self, inputs))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => GroupedAttentionOp::backward::<T>(self, ctx))
    }
}
