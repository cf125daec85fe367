//! A self-attention branch with its norm and its residual: `base + out(attention(qkv(norm(x))))`.

use super::attention::{self, Call, ScoreInputs, Scoring};
use super::prepare::{self, Prepare};
use super::residual::{Base, Residual};
use super::{Linear, Norm, gates, linear, linear_attention, maps, norm};
use crate::array::Array;
use crate::forms::{Positions, RotaryTables};
use crate::fused::{Engine, Forward, Found, Inputs, Number, Op, Saved, Step, Target};
use crate::heads::Heads;
use crate::with_element;
use burn::tensor::Tensor;
use kerple_core::attention::{AttentionDims, Strides, View, ViewMut};
use kerple_core::ops::gate_cumsum;
use kerple_core::ops::gemm::Out;
use kerple_core::ops::layer_norm;
use kerple_core::ops::mlp;
use kerple_core::ops::rotary::{self, Angles, Rotated, Turn};
use kerple_core::ops::zeros;
use std::borrow::Cow;
use std::sync::Arc;

/// What has a kernel for a whole branch.
const KERNELS: &[Target] = &[Target::Host];

/// Most values of packed rows that are held at once where nothing is kept of them: 64 MiB in `f32`.
const MOST_PACKED: usize = 1 << 24;
/// Rows that are normed at once where they are normed anew for some heads after the others.
const NORMED_ROWS: usize = 2048;

/// Cosines and sines in the type of an operation, `[L, half]` each.
fn angles<T: Number>(rotary: &RotaryTables) -> [Vec<T>; 2] {
    [rotary.cos(), rotary.sin()].map(|values| values.iter().map(|value| T::from_f64(*value)).collect())
}

impl Heads {
    /// What a method adds to queries, for packed rows: `[(H + 2 G) D]`, 0 for keys and values.
    pub(crate) fn query_bias(self, positions: &Positions) -> Option<Tensor<1>> {
        let Heads { heads, kv_heads, head_dim: d } = self;
        let bias = maps::query_bias(&positions.scores)?;
        let rest = |shape: [usize; 2]| Tensor::<2>::zeros(shape, (&bias.device(), bias.dtype()));
        let packed = match self.is_interleaved() {
            true => Tensor::cat(vec![bias.clone(), rest([heads, 2 * d])], 1),
            false => Tensor::cat(vec![bias.clone(), rest([2 * kv_heads, d])], 0),
        };
        Some(packed.reshape([self.packed()]))
    }

    /// The packed projection with it.
    fn shift_queries(self, qkv: Linear, positions: &Positions) -> Linear {
        let Some(shift) = self.query_bias(positions) else { return qkv };
        let bias = Some(if let Some(bias) = qkv.bias { bias + shift } else { shift });
        Linear { bias, ..qkv }
    }

    /// Turns the queries and keys of packed rows `[B, L, (H + 2 G) D]` in place.
    pub(crate) fn rotate<T: Number>(self, qkv: &mut [T], rotary: &RotaryTables, len: usize, turn: Turn) {
        let ([q, k, _], strides) = self.layout(len);
        let [cos, sin] = angles::<T>(rotary);
        let angles = Angles { cos: &cos, sin: &sin, pairs: rotary.half() };
        let batch = qkv.len() / (len * self.packed()).max(1);
        for (start, heads) in [(q, self.heads), (k, self.kv_heads)] {
            rotary::rotate(&mut qkv[start..], strides, Rotated { batch, len, heads }, angles, turn);
        }
    }
}

/// The tensors of a self-attention branch and its choices.
#[derive(Clone, Debug)]
pub struct AttentionLayer {
    /// Applied to the input, `[M]`, where there is one.
    pub norm: Option<Norm>,
    /// Packed projection, `[M, (H + 2 G) D]`, see [`Heads`].
    pub qkv: Linear,
    /// Output projection, `[H D, M]`.
    pub out: Linear,
    /// Numbers of heads.
    pub heads: Heads,
    /// What becomes of queries and keys before they are rotated.
    pub prepare: Prepare,
    /// Changes of scores, in addition to those by positions.
    pub scoring: Scoring,
    /// Queries, keys and values are cut to `-clamp ..= clamp` before everything else.
    pub clamp: Option<f64>,
    /// Features instead of a softmax, where attention is linear.
    pub linear: Option<linear_attention::Linear>,
    /// What the branch adds to.
    pub residual: Residual,
}

/// The branch on `[B, L, M]`.
///
/// # Panics
/// When positions are a code or a decay and attention is not linear: plans of such models are refused.
pub fn attention_layer(x: Tensor<3>, layer: AttentionLayer, positions: &Positions, engine: Engine) -> Tensor<3> {
    let softmax = positions.code.is_none() && positions.fading.is_none();
    assert!(softmax || layer.linear.is_some(), "codes and decays are for linear attention");
    // clamped projections are rare, and would need their signs kept, one layer of a model may have no norm, what a method adds
    // to queries is added to normed ones, and linear attention is an operation of its own: they take the parts one by one
    let plain = layer.prepare.is_nothing() || maps::query_bias(&positions.scores).is_none();
    let (true, None, None, Some(norm)) =
        (plain && engine.has_kernel(KERNELS, &x), layer.clamp, &layer.linear, layer.norm.clone())
    else {
        return by_parts(x, layer, positions, engine);
    };
    let AttentionLayer { norm: _, qkv, out, heads, prepare, scoring, clamp: _, linear: _, residual } = layer;
    let qkv = heads.shift_queries(qkv, positions);
    let len = x.dims()[1];
    let mut inputs = Inputs::default();
    let x = inputs.add(x);
    let op = Branch {
        x,
        base: Base::add(residual, &mut inputs),
        norm: norm::Places::add(norm, &mut inputs),
        qkv: linear::Places::add(qkv, &mut inputs),
        out: linear::Places::add(out, &mut inputs),
        prepare: prepare::Places::add(prepare, positions, len, &mut inputs),
        scores: ScoreInputs::add(positions, scoring, len, &mut inputs),
        gates: gates::Places::add(positions, &mut inputs),
        rotary: positions.rotary.clone(),
        heads,
    };
    inputs.apply(op)
}

/// The definition.
pub fn composed(x: Tensor<3>, layer: AttentionLayer, positions: &Positions) -> Tensor<3> {
    by_parts(x, layer, positions, Engine::Composed)
}

/// Norm, projections and attention, each by this engine.
fn by_parts(x: Tensor<3>, layer: AttentionLayer, positions: &Positions, engine: Engine) -> Tensor<3> {
    let AttentionLayer { norm, qkv, out, heads, prepare, scoring, clamp, linear: features, residual } = layer;
    let [batch, len, _] = x.dims();
    let normed = match norm {
        Some(norm) => norm::norm(x.clone(), norm, engine),
        None => x.clone(),
    };
    let qkv = clamped(linear::linear(normed.clone(), qkv, None, engine), clamp);
    let [q, k, v] = heads.unpack(prepare::composed(qkv, &prepare, heads, positions, len));
    let positions = &*gates::of_rows(positions, &normed);
    let a = match features {
        None => attention::rotated(q, k, v, scoring, positions, engine),
        Some(linear) => {
            let rows = [attention::rotate(q, positions), attention::rotate(k, positions), v];
            linear_attention::linear_attention(rows, &linear, positions, engine)
        }
    };
    let a = a.swap_dims(1, 2).reshape([batch, len, heads.inner()]);
    linear::linear(a, out, Some(residual.of(x, |_| normed)), engine)
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
struct Branch {
    x: usize,
    base: Base,
    norm: norm::Places,
    qkv: linear::Places,
    out: linear::Places,
    prepare: prepare::Places,
    scores: ScoreInputs,
    gates: Option<gates::Places>,
    rotary: Option<Arc<RotaryTables>>,
    heads: Heads,
}

/// What the backward needs of the forward: the projection, rotated where nothing else becomes of it, attention's output, its
/// log-sum-exp, and the logits of gates.
struct Kept<T> {
    qkv: Vec<T>,
    a: Vec<T>,
    lse: Vec<T>,
    logits: Option<Vec<T>>,
}

/// Sizes of one call.
#[derive(Clone, Copy)]
struct Sizes {
    width: usize,
    dims: AttentionDims,
    /// Starts of q, k and v in a packed row.
    starts: [usize; 3],
    packed: Strides,
    merged: Strides,
}

impl Branch {
    fn sizes(&self, x: &Array) -> Sizes {
        let &[batch, len, width] = x.shape() else { panic!("x: expected [B, L, M], got {:?}", x.shape()) };
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let (starts, packed) = self.heads.layout(len);
        let inner = self.heads.inner();
        let merged = Strides { batch: len * inner, head: head_dim, row: inner };
        Sizes {
            width,
            dims: AttentionDims { batch, heads, kv_heads, queries: len, keys: len, head_dim },
            starts,
            packed,
            merged,
        }
    }

    /// How many heads are processed at once where nothing of them is kept; `None`: all.
    fn heads_at_once(&self, dims: AttentionDims) -> Option<usize> {
        let a_head = 3 * dims.queries * dims.head_dim;
        let long = dims.batch == 1 && a_head * dims.heads > MOST_PACKED;
        let apart = self.scores.heads_are_apart() && self.heads.is_interleaved() && self.prepare.is_nothing();
        let needed_once = self.gates.is_none() && !matches!(self.base, Base::Normed);
        (long && apart && needed_once).then(|| {
            let parts = dims.heads.div_ceil((MOST_PACKED / a_head).max(1));
            dims.heads.div_ceil(parts)
        })
    }

    /// Attention's output for one long sequence, so many heads at once: the packed rows of all of them would be the most that a
    /// layer holds. Rows are normed anew for each part.
    fn attend_by_heads<T: Number>(&self, inputs: &[Array], at_once: usize) -> Vec<T> {
        let Sizes { width, dims, merged, .. } = self.sizes(&inputs[self.x]);
        let (x, norm, qkv) = (inputs[self.x].slice::<T>(), self.norm.of::<T>(inputs), self.qkv.of::<T>(inputs));
        let (len, d) = (dims.queries, dims.head_dim);
        let (mut a, mut normed) = (zeros(len * self.heads.inner()), Vec::new());
        for first_head in (0..dims.heads).step_by(at_once) {
            let count = at_once.min(dims.heads - first_head);
            let heads = Heads { heads: count, kv_heads: count, head_dim: d };
            let part = qkv.part(width, 3 * d * first_head..3 * d * (first_head + count));
            let mut rows = Vec::with_capacity(len * heads.packed());
            for x in x.chunks(NORMED_ROWS * width) {
                normed.clear();
                layer_norm::forward(norm, x, &mut normed);
                part.as_linear().forward(Out::Append(&mut rows), &normed, width);
            }
            if let Some(rotary) = &self.rotary {
                heads.rotate(&mut rows, rotary, len, Turn::Forward);
            }
            let (starts, packed) = heads.layout(len);
            let dims = AttentionDims { heads: count, kv_heads: count, ..dims };
            let rows = starts.map(|start| View { data: &rows[start..], strides: packed });
            let call = Call { dims, rows, clocks: None, first_head };
            self.scores.forward(inputs, call, ViewMut::new(&mut a[first_head * d..], merged));
        }
        a
    }

    /// The output for one long sequence of which nothing is kept.
    fn forward_by_heads<T: Number>(&self, inputs: &[Array], at_once: usize) -> Forward {
        let (a, x) = (self.attend_by_heads::<T>(inputs, at_once), &inputs[self.x]);
        let (base, mut y) = (self.base.of::<T>(inputs), Vec::new());
        self.out.of::<T>(inputs).forward_onto(Out::Append(&mut y), &a, self.heads.inner(), base.rows(x.slice(), &[]));
        Forward { output: Array::from_vec(y, x.shape()), saved: Saved::nothing() }
    }

    fn forward<T: Number>(&self, inputs: &[Array], tracked: bool) -> Forward {
        let Sizes { width, dims, starts, packed, merged } = self.sizes(&inputs[self.x]);
        if let (false, Some(at_once)) = (tracked, self.heads_at_once(dims)) {
            return self.forward_by_heads::<T>(inputs, at_once);
        }
        let x = inputs[self.x].slice::<T>();
        let (mut normed, mut qkv) = (Vec::new(), Vec::new());
        layer_norm::forward(self.norm.of(inputs), x, &mut normed);
        self.qkv.of::<T>(inputs).forward(Out::Append(&mut qkv), &normed, width);
        let logits = self.gates.map(|gates| gates.logits::<T>(inputs, &normed, width));
        let clocks = clocks_of(&logits, dims);
        let base = self.base.of::<T>(inputs);
        if !matches!(base, mlp::MlpResidual::Normed) {
            normed = Vec::new();
        }
        let raw = (tracked && !self.prepare.is_nothing()).then(|| qkv.clone());
        self.make_ready(inputs, &mut qkv, dims.queries);
        let mut a = zeros(dims.batch * dims.queries * self.heads.inner());
        let rows = starts.map(|start| View { data: &qkv[start..], strides: packed });
        let call = Call { dims, rows, clocks: attention::rows(&clocks, dims), first_head: 0 };
        let lse = self.scores.forward(inputs, call, ViewMut::new(&mut a, merged));
        // the widest rows of a layer go before the last are made
        let qkv = tracked.then(|| raw.unwrap_or(qkv));
        let mut y = Vec::new();
        self.out.of::<T>(inputs).forward_onto(Out::Append(&mut y), &a, self.heads.inner(), base.rows(x, &normed));
        let saved = match qkv {
            Some(qkv) => Saved::new(Kept { qkv, a, lse, logits }),
            None => Saved::nothing(),
        };
        Forward { output: Array::from_vec(y, inputs[self.x].shape()), saved }
    }

    /// Prepares and rotates packed rows in place.
    fn make_ready<T: Number>(&self, inputs: &[Array], qkv: &mut [T], len: usize) {
        self.prepare.forward(inputs, self.heads, qkv);
        if let Some(rotary) = &self.rotary {
            self.heads.rotate(qkv, rotary, len, Turn::Forward);
        }
    }

    fn backward<T: Number>(&self, step: &Step) -> Vec<Option<Array>> {
        let (inputs, inner) = (step.inputs, self.heads.inner());
        let Sizes { width, dims, .. } = self.sizes(&inputs[self.x]);
        let kept = step.saved::<Kept<T>>();
        let (x, d_y) = (inputs[self.x].slice::<T>(), step.d_output.slice::<T>());
        let mut found = Found::new(inputs);

        let out = self.out.of::<T>(inputs);
        let (mut d_out, mut d_a) = (out.gradients(inner), Vec::new());
        out.backward(&kept.a, d_y, inner, &mut d_out);
        out.backward_input(Out::Append(&mut d_a), d_y, inner);
        self.out.put(d_out, &mut found);
        let (d_qkv, d_clocks) = self.backward_attention(step, kept, d_a, &mut found);

        let (norm, qkv) = (self.norm.of::<T>(inputs), self.qkv.of::<T>(inputs));
        let mut normed = Vec::new();
        let stats = layer_norm::forward(norm, x, &mut normed);
        let mut d_weights = qkv.gradients(width);
        qkv.backward(&normed, &d_qkv, width, &mut d_weights);
        self.qkv.put(d_weights, &mut found);
        let mut d_normed = match (self.gates, &kept.logits, d_clocks) {
            (Some(gates), Some(logits), Some(d_clocks)) => {
                let mut d_normed = Vec::new();
                qkv.backward_input(Out::Append(&mut d_normed), &d_qkv, width);
                let sizes = [dims.batch, dims.queries, width];
                gates.backward((logits, &d_clocks), &normed, &mut d_normed, sizes, &mut found);
                d_normed
            }
            _ => {
                // the normed rows are done with: their place takes their gradient
                qkv.backward_input(Out::Store(&mut normed), &d_qkv, width);
                normed
            }
        };
        drop(d_qkv);
        self.base.put(step, &mut found);
        let through = self.base.of(inputs).backward(d_y, &mut d_normed);
        let d_x = self.norm.backward(x, &stats, &d_normed, through, &mut found);
        found.put(self.x, d_x);
        found.finish()
    }

    /// From the gradient in attention's output to that in the packed projection, and in the clocks; records those of the
    /// scores' numbers.
    fn backward_attention<T: Number>(
        &self,
        step: &Step,
        kept: &Kept<T>,
        d_a: Vec<T>,
        found: &mut Found,
    ) -> (Vec<T>, Option<Vec<f64>>) {
        let Sizes { dims, starts, packed, merged, .. } = self.sizes(&step.inputs[self.x]);
        let Kept { qkv: raw, a, lse, logits } = kept;
        let mut qkv = Cow::from(&raw[..]);
        if !self.prepare.is_nothing() {
            self.make_ready(step.inputs, qkv.to_mut(), dims.queries);
        }
        let mut d_qkv = zeros(qkv.len());
        let rows = starts.map(|start| View { data: &qkv[start..], strides: packed });
        let merged = |data| View { data, strides: merged };
        let clocks = clocks_of(logits, dims);
        let call = Call { dims, rows, clocks: attention::rows(&clocks, dims), first_head: 0 };
        let d_rows = ViewMut::parts(&mut d_qkv, starts, packed);
        let d_clocks = self.scores.backward(step, call, (merged(a), lse, merged(&d_a)), d_rows, found);
        if let Some(rotary) = &self.rotary {
            self.heads.rotate(&mut d_qkv, rotary, dims.queries, Turn::Inverse);
        }
        self.prepare.backward(raw, self.heads, &mut d_qkv, found);
        (d_qkv, d_clocks)
    }
}

/// The clocks that logits of gates make.
fn clocks_of<T: Number>(logits: &Option<Vec<T>>, dims: AttentionDims) -> Option<Vec<f64>> {
    logits.as_ref().map(|logits| gate_cumsum::of_logits(logits, [dims.batch, dims.queries, dims.heads]))
}

impl Op for Branch {
    fn forward(&self, inputs: &[Array], tracked: bool) -> Forward {
        with_element!(inputs[0], T => Branch::forward::<T>(self, inputs, tracked))
    }

    fn backward(&self, step: &Step) -> Vec<Option<Array>> {
        with_element!(step.inputs[0], T => Branch::backward::<T>(self, step))
    }
}
