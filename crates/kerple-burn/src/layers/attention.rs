//! Self-attention with its parameters.

use super::{LayerInit, Linear, Norm};
use crate::attention_context::{AttentionContext, FromRows};
use crate::heads::Heads;
use crate::implementation::Impl;
use crate::kv_cache::KvCache;
use crate::ops::attention::{self, AttentionScores, Scoring, default_scale};
use crate::ops::attention_layer::{self, AttentionLayer};
use crate::ops::grouped_attention::TurnedRows;
use crate::ops::qk_scaling::{self, QkScaling, RowsBefore};
use crate::ops::{ResidualBase, content_rotation, linear, linear_attention, query_key_map, relative};
use crate::plan::{BlockConfig, BlockSizes, ResidualKind, SinkKind};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use kerple_core::forms::{AttnTemperature, Normalizer, Selective};
use rand::Rng;

/// A sequence in one layer.
#[derive(Debug)]
pub struct CachedSequence<'a> {
    /// Of its new positions.
    pub context: &'a AttentionContext,
    /// Its earlier positions.
    pub cache: &'a mut KvCache,
}

/// A self-attention branch: norm, packed projection, attention, output projection.
#[derive(Module, Debug)]
pub struct SelfAttention {
    /// Applied to the input; absent in the first layer of a model with [`ResidualKind::PostLn`].
    pub norm: Option<Norm>,
    /// Packed projection, `[M, (H + 2 G) D]`, see [`Heads`].
    pub qkv: Linear,
    /// Output projection, `[H D, M]`.
    pub out: Linear,
    /// Scales of the norms of queries and of keys, `[D]` each, start at 1; where the plan has them.
    pub q_norm: Option<Param<Tensor<1>>>,
    /// See `q_norm`.
    pub k_norm: Option<Param<Tensor<1>>>,
    /// Filters of short convolutions of keys and of values, `[G D, W]` each, start at 0; where the plan has them.
    pub k_conv: Option<Param<Tensor<2>>>,
    /// See `k_conv`.
    pub v_conv: Option<Param<Tensor<2>>>,
    /// Those of a short convolution of the branch's output, `[M, W]`.
    pub out_conv: Option<Param<Tensor<2>>>,
    /// Logits of the share that a key takes of the key before it, `[G]`, start at 0; where the plan has a key shift.
    pub key_shift: Option<Param<Tensor<1>>>,
    /// ScalableSoftmax: the factor of the logarithm of the number of visible keys, `[H]`, where the
    /// plan has one.
    pub growth: Option<Param<Tensor<1>>>,
    /// Attention sinks, extra logits per head, `[H]`, initialised as 0; where they are learned.
    pub sinks: Option<Param<Tensor<1>>>,
    #[module(skip)]
    heads: Heads,
    scale: f64,
    norm_epsilon: f64,
    #[module(skip)]
    softcap: Option<f64>,
    #[module(skip)]
    normalizer: Normalizer,
    #[module(skip)]
    selective: Option<Selective>,
    #[module(skip)]
    sink: SinkKind,
    #[module(skip)]
    clamp: Option<f64>,
    #[module(skip)]
    temperature: Option<AttnTemperature>,
    #[module(skip)]
    linear: Option<linear_attention::LinearAttentionSettings>,
}

impl SelfAttention {
    /// A fresh branch of layer `layer`, counted from 0.
    pub fn new(plan: &BlockConfig, sizes: &BlockSizes, layer: usize, init: &mut LayerInit<impl Rng>) -> SelfAttention {
        let heads = sizes.heads(plan);
        let scale = plan.attn_scale.unwrap_or(default_scale(heads.head_dim));
        let divisor = if plan.scale_attn_by_layer { (layer + 1) as f64 } else { 1.0 };
        SelfAttention {
            norm: (layer > 0 || plan.residual != ResidualKind::PostLn).then(|| Norm::new(plan, sizes.d_model, init)),
            qkv: Linear::packed([sizes.d_model, heads.packed()], heads.inner(), plan.qkv_bias, init.std, init),
            out: Linear::new([heads.inner(), sizes.d_model], plan.out_bias, init.std_out, init),
            q_norm: plan.qk_norm.then(|| init.filled(1.0, heads.head_dim)),
            k_norm: plan.qk_norm.then(|| init.filled(1.0, heads.head_dim)),
            k_conv: plan.short_conv.map(|width| init.zero_matrix([heads.kv_heads * heads.head_dim, width])),
            v_conv: plan.short_conv.map(|width| init.zero_matrix([heads.kv_heads * heads.head_dim, width])),
            out_conv: plan.short_conv.map(|width| init.zero_matrix([sizes.d_model, width])),
            key_shift: plan.key_shift.then(|| init.zeros(heads.kv_heads)),
            growth: plan.ssmax.map(|start| init.filled(start, heads.heads)),
            sinks: (plan.sink == SinkKind::Learned).then(|| init.zeros(heads.heads)),
            heads,
            scale: scale / divisor,
            norm_epsilon: plan.norm_eps,
            softcap: plan.attn_softcap,
            normalizer: plan.normalizer,
            selective: plan.selective_attention,
            sink: plan.sink,
            clamp: plan.clip_qkv,
            temperature: plan.attn_temperature,
            linear: plan
                .attention
                .linear()
                .map(|plan| linear_attention::LinearAttentionSettings { plan: plan.clone(), layer }),
        }
    }

    /// Numbers of heads.
    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// Whether attention is linear, and its KV cache a state of fixed size.
    pub fn is_linear(&self) -> bool {
        self.linear.is_some()
    }

    /// Its tensors and choices, adding to `residual`.
    pub fn tensors(&self, residual: ResidualBase) -> AttentionLayer {
        AttentionLayer {
            norm: self.norm.as_ref().map(Norm::tensors),
            qkv: self.qkv.tensors(),
            out: self.out.tensors(),
            heads: self.heads,
            qk_scaling: self.qk_scaling(),
            scoring: self.scoring(),
            clamp: self.clamp,
            linear: self.linear.clone(),
            residual,
        }
    }

    fn qk_scaling(&self) -> QkScaling {
        let norms = self.q_norm.as_ref().zip(self.k_norm.as_ref()).map(|(q, k)| [q.val(), k.val()]);
        let [key_shift, ssmax] = [&self.key_shift, &self.growth].map(|own| own.as_ref().map(Param::val));
        let convs = self.k_conv.as_ref().zip(self.v_conv.as_ref()).map(|(k, v)| [k.val(), v.val()]);
        QkScaling { convs, key_shift, norms, epsilon: self.norm_epsilon, ssmax, temperature: self.temperature }
    }

    fn scoring(&self) -> Scoring {
        let one = || {
            let weight = self.qkv.weight.val();
            Tensor::zeros([self.heads.heads], (&weight.device(), weight.dtype()))
        };
        let sinks = match self.sink {
            SinkKind::None => None,
            SinkKind::OffByOne => Some(one()),
            SinkKind::Learned => self.sinks.as_ref().map(Param::val),
        };
        let (normalizer, selective) = (self.normalizer, self.selective);
        Scoring { scale: self.scale, softcap: self.softcap, sinks, normalizer, selective }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(
        &self,
        x: Tensor<3>,
        residual: ResidualBase,
        context: &AttentionContext,
        implementation: Impl,
    ) -> Tensor<3> {
        attention_layer::attention_layer(x, self.tensors(residual), context, implementation)
    }

    /// The input `[B, L, M]` after the norm, and its packed projection.
    fn packed(&self, x: Tensor<3>, implementation: Impl) -> (Tensor<3>, Tensor<3>) {
        let normed = match &self.norm {
            Some(norm) => norm.forward(x, implementation),
            None => x,
        };
        let qkv = linear::linear(normed.clone(), self.qkv.tensors(), None, implementation);
        (normed, attention_layer::clamped(qkv, self.clamp))
    }

    /// The same, ready to be rotated, of the last of `keys` positions, with the heads that are packed; `before` are rows before them in
    /// a cache.
    fn projected(
        &self,
        x: Tensor<3>,
        context: &AttentionContext,
        keys: usize,
        before: Option<&mut RowsBefore>,
        implementation: Impl,
    ) -> (Tensor<3>, Tensor<3>, Heads) {
        let (normed, qkv) = self.packed(x, implementation);
        let (qkv, heads) = self.made_ready(qkv, &normed, context, keys, before);
        (normed, qkv, heads)
    }

    /// A packed projection of normed rows, ready to be rotated by positions, and its heads.
    fn made_ready(
        &self,
        qkv: Tensor<3>,
        normed: &Tensor<3>,
        context: &AttentionContext,
        keys: usize,
        mut before: Option<&mut RowsBefore>,
    ) -> (Tensor<3>, Heads) {
        let (scaling, heads) = (self.qk_scaling(), self.heads);
        let of_scaling = (Impl::Reference, before.as_deref_mut());
        let qkv = qk_scaling::by_parts(qkv, &scaling, heads, &context.mask, keys, of_scaling);
        let qkv = relative::scaled(qkv, heads, context, keys);
        let of_angles = (Impl::Reference, before.map(|before| &mut before.angles));
        let (qkv, heads) = content_rotation::turned(qkv, heads, context, normed, of_angles);
        query_key_map::mapped(qkv, heads, context, Impl::Reference)
    }

    /// Queries, keys and values `[B, H, L, D]` after their rotation, and what comes from rows; reference implementation.
    fn attention_inputs(&self, x: Tensor<3>, context: &AttentionContext) -> ([Tensor<4>; 3], FromRows) {
        let len = x.dims()[1];
        let (normed, qkv, heads) = self.projected(x, context, len, None, Impl::Reference);
        let [q, k, v] = heads.unpack(qkv);
        let rope = context.rope.as_deref();
        let from_rows = relative::from_rows(context, &normed, len, (Impl::Reference, None));
        ([attention::rotate(q, rope), attention::rotate(k, rope), v], from_rows)
    }

    /// Queries and keys of a layer whose far keys have positions of groups; reference implementation.
    fn grouped_rows(&self, x: &Tensor<3>, context: &AttentionContext) -> Option<TurnedRows> {
        let rope = context.rope.as_deref()?;
        let (grouped, len) = (rope.grouped()?, x.dims()[1]);
        let (_, qkv, heads) = self.projected(x.clone(), context, len, None, Impl::Reference);
        let [q, k, _] = heads.unpack(qkv);
        Some(grouped.turned(rope, q, k))
    }

    /// The weight of every key for every query, `[B, H, L, L]`, by the reference: for pictures and measures of short sequences.
    ///
    /// # Panics
    /// When there are fewer key heads than query heads and attention is linear: plans of such models are refused.
    pub fn weights(&self, x: Tensor<3>, context: &AttentionContext) -> Tensor<4> {
        let [batch, len, _] = x.dims();
        if let Some(rows) = self.grouped_rows(&x, context) {
            return attention::grouped_weights(&rows, &self.scoring(), &context.scores(FromRows::default()));
        }
        let ([q, k, v], from_rows) = self.attention_inputs(x, context);
        let Some(linear) = &self.linear else {
            return attention::weights(q, k, &self.scoring(), &context.scores(from_rows));
        };
        let gates = from_rows.gates;
        // with one-hot values, the output of attention is its weights
        let each = Tensor::<2>::eye(len, &v.device()).cast(v.dtype());
        let each = each.unsqueeze::<4>().expand([batch, self.heads.kv_heads, len, len]);
        linear_attention::reference([q, k, each], linear, &context.mask, gates, &context.linear)
    }

    /// Scores of the last of `[B, L, M]` positions, `[B, H, 1, L]`; `None`: linear attention has no scores.
    pub fn last_scores(&self, x: Tensor<3>, context: &AttentionContext) -> Option<AttentionScores> {
        if self.is_linear() {
            return None;
        }
        if let Some(rows) = self.grouped_rows(&x, context) {
            let scores = context.scores(FromRows::default());
            return Some(attention::grouped_seen(&rows, &self.scoring(), &scores).last());
        }
        let len = x.dims()[1];
        let ([q, k, _], mut from_rows) = self.attention_inputs(x, context);
        if self.selective.is_some() {
            // the last query needs what all others mask
            return Some(attention::seen(q, k, &self.scoring(), &context.scores(from_rows)).last());
        }
        if let Some(relative) = &mut from_rows.relative {
            relative.rows = relative.rows.clone().narrow(2, len - 1, 1);
        }
        if let Some(path) = &mut from_rows.path {
            path.queries = path.queries.clone().narrow(2, len - 1, 1);
        }
        Some(attention::seen(q.narrow(2, len - 1, 1), k, &self.scoring(), &context.scores(from_rows)))
    }

    /// New positions `[B, L, M]` after those of the KV cache, to which they are added. For inference.
    pub fn extend(
        &self,
        x: Tensor<3>,
        residual: ResidualBase,
        context: &AttentionContext,
        cache: &mut KvCache,
        implementation: Impl,
    ) -> Tensor<3> {
        let keys = cache.len() + x.dims()[1];
        let (normed, qkv, heads) = self.projected(x.clone(), context, keys, cache.rows_before(), implementation);
        let from_rows = relative::from_rows(context, &normed, keys, (Impl::Reference, cache.rows_before()));
        let a = cache.attend(qkv, heads, &self.scoring(), context, from_rows);
        self.joined(a, [x, normed], residual, implementation)
    }

    /// The same of `B` sequences at positions of their own, `[B, L, M]`, each with its KV cache.
    ///
    /// # Panics
    /// When the number of KV caches differs, or one has more than one sequence.
    pub fn extend_each(
        &self,
        x: Tensor<3>,
        residual: ResidualBase,
        sequences: &mut [CachedSequence],
        implementation: Impl,
    ) -> Tensor<3> {
        let [batch, len, _] = x.dims();
        assert_eq!(batch, sequences.len(), "one KV cache per sequence");
        let (normed, qkv) = self.packed(x.clone(), implementation);
        let scoring = self.scoring();
        let attend = |(row, CachedSequence { context, cache }): (usize, &mut CachedSequence)| {
            let qkv = qkv.clone().narrow(0, row, 1);
            let keys = cache.len() + len;
            let normed = normed.clone().narrow(0, row, 1);
            let (qkv, heads) = self.made_ready(qkv, &normed, context, keys, cache.rows_before());
            let from_rows = relative::from_rows(context, &normed, keys, (Impl::Reference, cache.rows_before()));
            cache.attend(qkv, heads, &scoring, context, from_rows)
        };
        let a = Tensor::cat(sequences.iter_mut().enumerate().map(attend).collect(), 0);
        self.joined(a, [x, normed], residual, implementation)
    }

    /// What attention gave, projected and added to its residual.
    fn joined(
        &self,
        a: Tensor<3>,
        [x, normed]: [Tensor<3>; 2],
        residual: ResidualBase,
        implementation: Impl,
    ) -> Tensor<3> {
        linear::linear(a, self.out.tensors(), Some(residual.of(x, |_| normed)), implementation)
    }

    /// An empty KV cache for `batch` sequences.
    pub fn kv_cache(&self, batch: usize, implementation: Impl) -> KvCache {
        KvCache::new(batch, self.heads, self.linear.as_ref(), &self.qkv.weight.val(), implementation)
    }
}
