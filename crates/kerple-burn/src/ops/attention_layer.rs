//! A self-attention branch with its norm and its residual: `base + out(attention(qkv(norm(x))))`.

use super::attention::{self, AttentionCall, MaskedBefore, ScoreInputs, Scoring};
use super::qk_scaling::{self, QkScaling};
use super::residual::{ResidualBase, ResidualInput};
use super::{
    LinearTensors, NormTensors, content_rotation, gates, grouped_attention, linear, linear_attention, norm,
    query_key_map, relative, score_mods,
};
use crate::attention_context::{AttentionBias, AttentionContext, FromRows, RotaryTables};
use crate::custom_op::{BackwardContext, CustomOp, FloatElement, InputGrads, OpInputs, OpOutput, SavedForBackward};
use crate::heads::Heads;
use crate::host_array::HostArray;
use crate::implementation::{DeviceKind, Impl};
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::attention::{AttentionDims, Strides, View, ViewMut};
use kerple_core::ops::gemm::Out;
use kerple_core::ops::kept::{self, KeptRows};
use kerple_core::ops::layer_norm;
use kerple_core::ops::mlp;
use kerple_core::ops::rotary::{self, Angles, Rotated, Turn};
use kerple_core::ops::zeros;
use std::borrow::Cow;
use std::sync::Arc;

/// Devices that have a kernel for a whole branch.
const KERNELS: &[DeviceKind] = &[DeviceKind::Cpu];

/// Most values of packed rows that are held at once where nothing is kept of them: 64 MiB in `f32`.
const MOST_PACKED: usize = 1 << 24;
/// Rows that are normed at once where they are normed anew for some heads after the others.
const NORMED_ROWS: usize = 2048;

/// Cosines and sines in the type of an operation, `[L, half]` each.
fn angles<T: FloatElement>(rotary: &RotaryTables) -> [Vec<T>; 2] {
    [rotary.cos(), rotary.sin()].map(|values| values.iter().map(|value| T::from_f64(*value)).collect())
}

impl Heads {
    /// What a method adds to queries, for packed rows: `[(H + 2 G) D]`, 0 for keys and values.
    pub(crate) fn query_bias(self, bias: &AttentionBias) -> Option<Tensor<1>> {
        let Heads { heads, kv_heads, head_dim: d, .. } = self;
        let bias = score_mods::query_bias(bias)?;
        let rest = |shape: [usize; 2]| Tensor::<2>::zeros(shape, (&bias.device(), bias.dtype()));
        let packed = if self.is_interleaved() {
            Tensor::cat(vec![bias.clone(), rest([heads, 2 * d])], 1)
        } else {
            Tensor::cat(vec![bias.clone(), rest([2 * kv_heads, d])], 0)
        };
        Some(packed.reshape([self.packed()]))
    }

    /// The packed projection with it.
    fn shift_queries(self, qkv: LinearTensors, bias: &AttentionBias) -> LinearTensors {
        let Some(shift) = self.query_bias(bias) else { return qkv };
        let bias = Some(if let Some(bias) = qkv.bias { bias + shift } else { shift });
        LinearTensors { bias, ..qkv }
    }

    /// Turns the queries and keys of packed rows `[B, L, (H + 2 G) D]` in place.
    pub(crate) fn rotate<T: FloatElement>(self, qkv: &mut [T], rotary: &RotaryTables, len: usize, turn: Turn) {
        let [cos, sin] = angles::<T>(rotary);
        let [cos, sin] = [rotary.by_token(&cos), rotary.by_token(&sin)];
        let angles = Angles { cos: &cos, sin: &sin, pairs: rotary.half() };
        let rows = qkv.len() / self.packed().max(1);
        // rows of sequences that have angles of their own are those of one long sequence
        let (batch, len) = if rotary.has_documents() { (1, rows) } else { (rows / len.max(1), len) };
        let ([q, k, _], strides) = self.layout(len);
        for (start, heads) in [(q, self.heads), (k, self.kv_heads)] {
            rotary::rotate(&mut qkv[start..], strides, Rotated { batch, len, heads }, angles, turn);
        }
    }
}

/// The tensors of a self-attention branch and its choices.
#[derive(Clone, Debug)]
pub struct AttentionLayer {
    /// Applied to the input, `[M]`, where there is one.
    pub norm: Option<NormTensors>,
    /// Packed projection, `[M, (H + 2 G) D]`, see [`Heads`].
    pub qkv: LinearTensors,
    /// Output projection, `[H D, M]`.
    pub out: LinearTensors,
    /// Numbers of heads.
    pub heads: Heads,
    /// Short convolutions, key shift, QK norm and scalable softmax, before the rotation.
    pub qk_scaling: QkScaling,
    /// Changes of scores, in addition to those by positions.
    pub scoring: Scoring,
    /// Queries, keys and values are cut to `-clamp ..= clamp` before everything else.
    pub clamp: Option<f64>,
    /// Features instead of a softmax, where attention is linear.
    pub linear: Option<linear_attention::LinearAttentionSettings>,
    /// What the branch adds to.
    pub residual: ResidualBase,
}

/// The branch on `[B, L, M]`.
///
/// # Panics
/// When the context has a code or a decay and attention is not linear: plans of such models are refused.
pub fn attention_layer(
    x: Tensor<3>,
    layer: AttentionLayer,
    context: &AttentionContext,
    implementation: Impl,
) -> Tensor<3> {
    let softmax = context.linear.code.is_none() && context.linear.decay.is_none();
    assert!(softmax || layer.linear.is_some(), "codes and decays are for linear attention");
    // clamped projections are rare, and would need their signs kept, one layer of a model may have no norm, what a method adds
    // to queries is added to normed ones, a relative bias, a bias over paths, Householder products, gates of features and angles have projections of their
    // own, maps of queries and keys learn numbers, and linear attention is an operation of its own: they take the parts one by one
    let plain = context.relative.is_none()
        && context.angles.is_none()
        && context.query_key_map.is_none()
        && context.path.is_none()
        && context.householder.is_none()
        && context.feature_gates.is_none()
        && context.rope.as_ref().is_none_or(|rope| rope.grouped().is_none())
        && (layer.qk_scaling.is_nothing() || score_mods::query_bias(&context.bias).is_none());
    let (true, None, None, Some(norm)) =
        (plain && implementation.has_kernel(KERNELS, &x), layer.clamp, &layer.linear, layer.norm.clone())
    else {
        return by_parts(x, layer, context, implementation);
    };
    let AttentionLayer { norm: _, qkv, out, heads, qk_scaling, scoring, clamp: _, linear: _, residual } = layer;
    let qkv = heads.shift_queries(qkv, &context.bias);
    let len = x.dims()[1];
    let mut inputs = OpInputs::default();
    let x = inputs.add(x);
    let op = AttentionLayerOp {
        x,
        base: ResidualInput::add(residual, &mut inputs),
        norm: norm::NormInputs::add(norm, &mut inputs),
        qkv: linear::LinearInputs::add(qkv, implementation, &mut inputs),
        out: linear::LinearInputs::add(out, implementation, &mut inputs),
        qk_scaling: qk_scaling::QkScalingInputs::add(qk_scaling, &context.mask, len, &mut inputs),
        scores: ScoreInputs::add(&context.mask, &context.bias, scoring, len, &mut inputs)
            .with_kernel(context.gates.as_ref().and_then(|gates| gates.kernel.clone()), &mut inputs),
        gates: context.gates.as_ref().map(|gates| gates::GateProjectionInputs::add(gates, &mut inputs)),
        rope: context.rope.clone(),
        heads,
    };
    inputs.apply(op)
}

/// The reference.
pub fn reference(x: Tensor<3>, layer: AttentionLayer, context: &AttentionContext) -> Tensor<3> {
    by_parts(x, layer, context, Impl::Reference)
}

/// Norm, projections and attention, each by this implementation.
fn by_parts(x: Tensor<3>, layer: AttentionLayer, context: &AttentionContext, implementation: Impl) -> Tensor<3> {
    let AttentionLayer { norm, qkv, out, heads, qk_scaling, scoring, clamp, linear, residual } = layer;
    let [batch, len, _] = x.dims();
    let normed = match norm {
        Some(norm) => norm::norm(x.clone(), norm, implementation),
        None => x.clone(),
    };
    let qkv = clamped(linear::linear(normed.clone(), qkv, None, implementation), clamp);
    let qkv = qk_scaling::by_parts(qkv, &qk_scaling, heads, &context.mask, len, (implementation, None));
    let qkv = relative::scaled(qkv, heads, context, len);
    let (qkv, heads) = content_rotation::turned(qkv, heads, context, &normed, (implementation, None));
    let (qkv, heads) = query_key_map::mapped(qkv, heads, context, implementation);
    let from_rows = relative::from_rows(context, &normed, len, (implementation, None));
    let a = match (linear, context.rope.as_deref()) {
        (None, None) => attention::packed(qkv, heads, scoring, &context.scores(from_rows), implementation),
        (linear, rope) => {
            let [q, k, v] = heads.unpack(qkv);
            let a = match (linear, rope.and_then(|rope| Some((rope, rope.grouped()?)))) {
                (None, Some((rope, grouped))) => {
                    grouped_attention::attention(grouped.turned(rope, q, k), v, scoring, &context.mask, implementation)
                }
                (linear, _) => turned_attention([q, k, v], (linear, scoring), context, from_rows, implementation),
            };
            a.swap_dims(1, 2).reshape([batch, len, heads.inner()])
        }
    };
    linear::linear(a, out, Some(residual.of(x, |_| normed)), implementation)
}

/// Attention of queries and keys that turn by their positions, where they turn.
fn turned_attention(
    [q, k, v]: [Tensor<4>; 3],
    (linear, scoring): (Option<linear_attention::LinearAttentionSettings>, Scoring),
    context: &AttentionContext,
    from_rows: FromRows,
    implementation: Impl,
) -> Tensor<4> {
    let rope = context.rope.as_deref();
    let (q, k) = (attention::rotate(q, rope), attention::rotate(k, rope));
    match linear {
        None => attention::attention(q, k, v, scoring, &context.scores(from_rows), implementation),
        Some(linear) => {
            let gates = from_rows.gates;
            linear_attention::linear_attention(
                [q, k, v],
                &linear,
                &context.mask,
                gates,
                &context.linear,
                implementation,
            )
        }
    }
}

/// A packed projection cut to `-clamp ..= clamp`.
pub(crate) fn clamped(qkv: Tensor<3>, clamp: Option<f64>) -> Tensor<3> {
    match clamp {
        Some(clamp) => qkv.clamp(-clamp, clamp),
        None => qkv,
    }
}

/// Norm, projection, rotation, attention, projection and residual.
#[derive(Debug)]
struct AttentionLayerOp {
    x: usize,
    base: ResidualInput,
    norm: norm::NormInputs,
    qkv: linear::LinearInputs,
    out: linear::LinearInputs,
    qk_scaling: qk_scaling::QkScalingInputs,
    scores: ScoreInputs,
    gates: Option<gates::GateProjectionInputs>,
    rope: Option<Arc<RotaryTables>>,
    heads: Heads,
}

/// What the backward needs of the forward: the projection, rotated where nothing else becomes of it, attention's output, its
/// log-sum-exp, and the logits of gates.
struct AttentionLayerSaved<T> {
    qkv: KeptRows<T>,
    a: KeptRows<T>,
    lse: Vec<T>,
    logits: Option<Vec<T>>,
}

/// AttentionLayerSizes of one call.
#[derive(Clone, Copy)]
struct AttentionLayerSizes {
    width: usize,
    dims: AttentionDims,
    /// Starts of q, k and v in a packed row.
    starts: [usize; 3],
    packed: Strides,
    merged: Strides,
}

impl AttentionLayerOp {
    fn sizes(&self, x: &HostArray) -> AttentionLayerSizes {
        let &[batch, len, width] = x.shape() else { panic!("x: expected [B, L, M], got {:?}", x.shape()) };
        let Heads { heads, kv_heads, head_dim, value_dim } = self.heads;
        let (starts, packed) = self.heads.layout(len);
        AttentionLayerSizes {
            width,
            dims: AttentionDims { batch, heads, kv_heads, queries: len, keys: len, head_dim, value_dim },
            starts,
            packed,
            merged: self.heads.merged(len),
        }
    }

    /// Cumulative gates of logits of gates.
    fn gate_cumsum<T: FloatElement>(&self, logits: &Option<Vec<T>>, dims: AttentionDims) -> Option<Vec<f64>> {
        let (sizes, documents) = ([dims.batch, dims.queries, dims.heads], self.scores.documents());
        Some(gates::cumsum_of_logits(logits.as_ref()?, sizes, documents, self.gates?.map))
    }

    /// How many heads are processed at once where nothing of them is kept; `None`: all.
    fn heads_at_once(&self, dims: AttentionDims) -> Option<usize> {
        let a_head = 3 * dims.queries * dims.head_dim;
        let long = dims.batch == 1 && a_head * dims.heads > MOST_PACKED;
        let apart = self.scores.heads_are_apart() && self.heads.is_interleaved() && self.qk_scaling.is_nothing();
        let needed_once = self.gates.is_none() && !matches!(self.base, ResidualInput::Normed);
        (long && apart && needed_once).then(|| {
            let parts = dims.heads.div_ceil((MOST_PACKED / a_head).max(1));
            dims.heads.div_ceil(parts)
        })
    }

    /// Attention's output for one long sequence, so many heads at once: the packed rows of all of them would be the most that a
    /// layer holds. Rows are normed anew for each part.
    fn attend_by_heads<T: FloatElement>(&self, inputs: &[HostArray], at_once: usize) -> Vec<T> {
        let AttentionLayerSizes { width, dims, merged, .. } = self.sizes(&inputs[self.x]);
        let (x, norm, qkv) = (inputs[self.x].slice::<T>(), self.norm.of::<T>(inputs), self.qkv.of::<T>(inputs));
        let (len, d) = (dims.queries, dims.head_dim);
        let (mut a, mut normed) = (zeros(len * self.heads.inner()), Vec::new());
        for first_head in (0..dims.heads).step_by(at_once) {
            let count = at_once.min(dims.heads - first_head);
            let heads = Heads { heads: count, kv_heads: count, ..self.heads };
            let part = qkv.part(width, 3 * d * first_head..3 * d * (first_head + count));
            let mut rows = Vec::with_capacity(len * heads.packed());
            for x in x.chunks(NORMED_ROWS * width) {
                normed.clear();
                layer_norm::forward(norm, x, &mut normed);
                part.as_linear().forward(Out::Append(&mut rows), &normed, width);
            }
            if let Some(rope) = &self.rope {
                heads.rotate(&mut rows, rope, len, Turn::Forward);
            }
            let (starts, packed) = heads.layout(len);
            let dims = AttentionDims { heads: count, kv_heads: count, ..dims };
            let rows = starts.map(|start| View { data: &rows[start..], strides: packed });
            let call = AttentionCall {
                dims,
                rows,
                gate_cumsum: None,
                decay_cumsum: None,
                relative: None,
                path: None,
                householder: None,
                evicted: 0,
                first_head,
                masked: MaskedBefore::default(),
            };
            self.scores.forward(inputs, call, ViewMut::new(&mut a[first_head * dims.value_dim..], merged));
        }
        a
    }

    /// The output for one long sequence of which nothing is kept.
    fn forward_by_heads<T: FloatElement>(&self, inputs: &[HostArray], at_once: usize) -> OpOutput {
        let (a, x) = (self.attend_by_heads::<T>(inputs, at_once), &inputs[self.x]);
        let (base, mut y) = (self.base.of::<T>(inputs), Vec::new());
        self.out.of::<T>(inputs).forward_onto(Out::Append(&mut y), &a, self.heads.inner(), base.rows(x.slice(), &[]));
        OpOutput { output: HostArray::from_vec(y, x.shape()), saved: SavedForBackward::nothing() }
    }

    fn forward<T: FloatElement>(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        let AttentionLayerSizes { width, dims, starts, packed, merged } = self.sizes(&inputs[self.x]);
        if let (false, Some(at_once)) = (tracked, self.heads_at_once(dims)) {
            return self.forward_by_heads::<T>(inputs, at_once);
        }
        let x = inputs[self.x].slice::<T>();
        let (mut normed, mut qkv) = (Vec::new(), Vec::new());
        layer_norm::forward(self.norm.of(inputs), x, &mut normed);
        self.qkv.of::<T>(inputs).forward(Out::Append(&mut qkv), &normed, width);
        let logits = self.gates.map(|gates| gates.logits::<T>(inputs, &normed, width));
        let gate_cumsum = self.gate_cumsum(&logits, dims);
        let base = self.base.of::<T>(inputs);
        if !matches!(base, mlp::MlpResidual::Normed) {
            normed = Vec::new();
        }
        let precision = self.qkv.precision();
        let raw = (!self.qk_scaling.is_nothing()).then(|| {
            kept::round(&mut qkv, precision);
            tracked.then(|| KeptRows::of(qkv.clone(), precision))
        });
        self.make_ready(inputs, &mut qkv, dims.queries);
        if raw.is_none() {
            kept::round(&mut qkv, precision);
        }
        let mut a = zeros(dims.batch * dims.queries * self.heads.inner());
        let rows = starts.map(|start| View { data: &qkv[start..], strides: packed });
        let gate_cumsum = attention::strided_by_keys(&gate_cumsum, dims);
        let call = AttentionCall { gate_cumsum, ..AttentionCall::of(dims, rows) };
        let lse = self.scores.forward(inputs, call, ViewMut::new(&mut a, merged));
        // the widest rows of a layer go before the last are made
        let qkv = tracked.then(|| raw.flatten().unwrap_or_else(|| KeptRows::of(qkv, precision)));
        let mut y = Vec::new();
        self.out.of::<T>(inputs).forward_onto(Out::Append(&mut y), &a, self.heads.inner(), base.rows(x, &normed));
        let saved = match qkv {
            Some(qkv) => SavedForBackward::new(AttentionLayerSaved { qkv, a: KeptRows::of(a, precision), lse, logits }),
            None => SavedForBackward::nothing(),
        };
        OpOutput { output: HostArray::from_vec(y, inputs[self.x].shape()), saved }
    }

    /// Prepares and rotates packed rows in place.
    fn make_ready<T: FloatElement>(&self, inputs: &[HostArray], qkv: &mut [T], len: usize) {
        self.qk_scaling.forward(inputs, self.heads, qkv);
        if let Some(rope) = &self.rope {
            self.heads.rotate(qkv, rope, len, Turn::Forward);
        }
    }

    fn backward<T: FloatElement>(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        let (inputs, inner) = (ctx.inputs, self.heads.inner());
        let AttentionLayerSizes { width, dims, .. } = self.sizes(&inputs[self.x]);
        let kept = ctx.saved::<AttentionLayerSaved<T>>();
        let (x, d_y) = (inputs[self.x].slice::<T>(), ctx.d_output.slice::<T>());
        let mut found = InputGrads::new(inputs);

        let out = self.out.of::<T>(inputs);
        let (mut d_out, mut d_a) = (out.gradients(inner), Vec::new());
        let a = kept.a.values();
        out.backward(&a, d_y, inner, &mut d_out);
        out.backward_input(Out::Append(&mut d_a), d_y, inner);
        self.out.put(d_out, &mut found);
        let (d_qkv, d_gate_cumsum) = self.backward_attention(ctx, kept, [&a, &d_a], &mut found);
        drop((a, d_a));

        let (norm, qkv) = (self.norm.of::<T>(inputs), self.qkv.of::<T>(inputs));
        let mut normed = Vec::new();
        let stats = layer_norm::forward(norm, x, &mut normed);
        let mut d_weights = qkv.gradients(width);
        qkv.backward(&normed, &d_qkv, width, &mut d_weights);
        self.qkv.put(d_weights, &mut found);
        let mut d_normed = match (self.gates, &kept.logits, d_gate_cumsum) {
            (Some(gates), Some(logits), Some(d_gate_cumsum)) => {
                let mut d_normed = Vec::new();
                qkv.backward_input(Out::Append(&mut d_normed), &d_qkv, width);
                let sizes = [dims.batch, dims.queries, width];
                let d_gates = (&logits[..], &d_gate_cumsum[..], self.scores.documents());
                gates.backward(d_gates, &normed, &mut d_normed, sizes, &mut found);
                d_normed
            }
            _ => {
                // the normed rows are done with: their place takes their gradient
                qkv.backward_input(Out::Store(&mut normed), &d_qkv, width);
                normed
            }
        };
        drop(d_qkv);
        self.base.put(ctx, &mut found);
        let through = self.base.of(inputs).backward(d_y, &mut d_normed);
        let d_x = self.norm.backward(x, &stats, &d_normed, through, &mut found);
        found.put(self.x, d_x);
        found.finish()
    }

    /// From the gradient in attention's output to that in the packed projection, and in the cumulative gates; records those of the
    /// scores' numbers.
    fn backward_attention<T: FloatElement>(
        &self,
        ctx: &BackwardContext,
        kept: &AttentionLayerSaved<T>,
        [a, d_a]: [&[T]; 2],
        found: &mut InputGrads,
    ) -> (Vec<T>, Option<Vec<f64>>) {
        let AttentionLayerSizes { dims, starts, packed, merged, .. } = self.sizes(&ctx.inputs[self.x]);
        let AttentionLayerSaved { qkv, lse, logits, .. } = kept;
        let raw = qkv.values();
        let mut qkv = Cow::from(&raw[..]);
        if !self.qk_scaling.is_nothing() {
            self.make_ready(ctx.inputs, qkv.to_mut(), dims.queries);
        }
        let mut d_qkv = zeros(qkv.len());
        let rows = starts.map(|start| View { data: &qkv[start..], strides: packed });
        let merged = |data| View { data, strides: merged };
        let gate_cumsum = self.gate_cumsum(logits, dims);
        let gate_cumsum = attention::strided_by_keys(&gate_cumsum, dims);
        let call = AttentionCall { gate_cumsum, ..AttentionCall::of(dims, rows) };
        let d_rows = ViewMut::parts(&mut d_qkv, starts, packed);
        let saved = attention::AttentionOutput { out: merged(a), lse, d_out: merged(d_a) };
        let d_gate_cumsum = self.scores.backward(ctx, call, saved, d_rows, found).gate_cumsum;
        if let Some(rope) = &self.rope {
            self.heads.rotate(&mut d_qkv, rope, dims.queries, Turn::Inverse);
        }
        self.qk_scaling.backward(&raw, self.heads, &mut d_qkv, found);
        (d_qkv, d_gate_cumsum)
    }
}

impl CustomOp for AttentionLayerOp {
    fn forward(&self, inputs: &[HostArray], tracked: bool) -> OpOutput {
        with_element!(inputs[0], T => AttentionLayerOp::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, ctx: &BackwardContext) -> Vec<Option<HostArray>> {
        with_element!(ctx.inputs[0], T => AttentionLayerOp::backward::<T>(self, ctx))
    }
}
