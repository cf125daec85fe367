//! Self-attention with its parameters.

use super::{Init, Linear, Norm};
use crate::forms::Positions;
use crate::fused::Engine;
use crate::heads::Heads;
use crate::memory::Memory;
use crate::ops::attention::{self, Scoring, Seen, default_scale};
use crate::ops::attention_layer::{self, AttentionLayer};
use crate::ops::prepare::{self, Prepare};
use crate::ops::{Residual, gates, linear, linear_attention, norm};
use crate::plan::{BlockConfig, BlockSizes, ResidualKind, SinkKind};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use rand::Rng;

/// A sequence in one layer: the form for its new positions, and its KV cache.
pub type Place<'a> = (&'a Positions, &'a mut Memory);

/// A self-attention branch: norm, packed projection, attention, output projection.
#[derive(Module, Debug)]
pub struct Attention {
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
    cap: Option<f64>,
    #[module(skip)]
    sink: SinkKind,
    #[module(skip)]
    clamp: Option<f64>,
    #[module(skip)]
    linear: Option<linear_attention::Linear>,
}

impl Attention {
    /// A fresh branch of layer `layer`, counted from 0.
    pub fn new(plan: &BlockConfig, sizes: &BlockSizes, layer: usize, init: &mut Init<impl Rng>) -> Attention {
        let heads = sizes.heads(plan);
        let scale = plan.attn_scale.unwrap_or(default_scale(heads.head_dim));
        let divisor = if plan.scale_attn_by_layer { (layer + 1) as f64 } else { 1.0 };
        Attention {
            norm: (layer > 0 || plan.residual != ResidualKind::PostLn).then(|| Norm::new(plan, sizes.d_model, init)),
            qkv: Linear::packed([sizes.d_model, heads.packed()], heads.inner(), plan.qkv_bias, init.std, init),
            out: Linear::new([heads.inner(), sizes.d_model], plan.out_bias, init.std_out, init),
            q_norm: plan.qk_norm.then(|| init.filled(1.0, heads.head_dim)),
            k_norm: plan.qk_norm.then(|| init.filled(1.0, heads.head_dim)),
            growth: plan.ssmax.map(|start| init.filled(start, heads.heads)),
            sinks: (plan.sink == SinkKind::Learned).then(|| init.zeros(heads.heads)),
            heads,
            scale: scale / divisor,
            norm_epsilon: plan.norm_eps,
            cap: plan.attn_softcap,
            sink: plan.sink,
            clamp: plan.clip_qkv,
            linear: plan.attention.linear().map(|plan| linear_attention::Linear { plan: plan.clone(), layer }),
        }
    }

    /// Numbers of heads.
    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// Whether attention is linear, and memory of fixed size.
    pub fn is_linear(&self) -> bool {
        self.linear.is_some()
    }

    /// Its tensors and choices, adding to `residual`.
    pub fn tensors(&self, residual: Residual) -> AttentionLayer {
        AttentionLayer {
            norm: self.norm.as_ref().map(Norm::tensors),
            qkv: self.qkv.tensors(),
            out: self.out.tensors(),
            heads: self.heads,
            prepare: self.prepare(),
            scoring: self.scoring(),
            clamp: self.clamp,
            linear: self.linear.clone(),
            residual,
        }
    }

    fn prepare(&self) -> Prepare {
        let norms = self.q_norm.as_ref().zip(self.k_norm.as_ref()).map(|(q, k)| [q.val(), k.val()]);
        Prepare { norms, epsilon: self.norm_epsilon, slopes: self.growth.as_ref().map(Param::val) }
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
        Scoring { scale: self.scale, cap: self.cap, sinks }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>, residual: Residual, positions: &Positions, engine: Engine) -> Tensor<3> {
        attention_layer::attention_layer(x, self.tensors(residual), positions, engine)
    }

    /// The input `[B, L, M]` after the norm, and its packed projection; composed.
    fn packed(&self, x: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let normed = match &self.norm {
            Some(norm) => norm::composed(x, norm.tensors()),
            None => x,
        };
        let qkv = attention_layer::clamped(linear::composed(normed.clone(), self.qkv.tensors()), self.clamp);
        (normed, qkv)
    }

    /// The same, ready to be rotated, of the last of `keys` positions.
    fn projected(&self, x: Tensor<3>, positions: &Positions, keys: usize) -> (Tensor<3>, Tensor<3>) {
        let (normed, qkv) = self.packed(x);
        (normed, prepare::composed(qkv, &self.prepare(), self.heads, positions, keys))
    }

    /// The weight of every key for every query, `[B, H, L, L]`, by the definition: for pictures and measures of short sequences.
    ///
    /// # Panics
    /// When there are fewer key heads than query heads and attention is linear: plans of such models are refused.
    pub fn weights(&self, x: Tensor<3>, positions: &Positions) -> Tensor<4> {
        let [batch, len, _] = x.dims();
        let (normed, qkv) = self.projected(x, positions, len);
        let positions = &*gates::of_rows(positions, &normed);
        let [q, k, v] = self.heads.unpack(qkv);
        let (q, k) = (attention::rotate(q, positions), attention::rotate(k, positions));
        let Some(linear) = &self.linear else { return attention::weights(q, k, &self.scoring(), positions) };
        // of values that each stand for a key, attention makes its weights
        let each = Tensor::<2>::eye(len, &v.device()).cast(v.dtype());
        let each = each.unsqueeze::<4>().expand([batch, self.heads.kv_heads, len, len]);
        linear_attention::composed([q, k, each], linear, positions)
    }

    /// Scores of the last of `[B, L, M]` positions, `[B, H, 1, L]`; `None`: linear attention has no scores.
    pub fn last_scores(&self, x: Tensor<3>, positions: &Positions) -> Option<Seen> {
        if self.is_linear() {
            return None;
        }
        let len = x.dims()[1];
        let (normed, qkv) = self.projected(x, positions, len);
        let positions = &*gates::of_rows(positions, &normed);
        let [q, k, _] = self.heads.unpack(qkv);
        let (q, k) = (attention::rotate(q, positions), attention::rotate(k, positions));
        Some(attention::seen(q.narrow(2, len - 1, 1), k, &self.scoring(), positions))
    }

    /// New positions `[B, L, M]` after those of the KV cache `memory`, to which they are added. For
    /// inference.
    pub fn extend(&self, x: Tensor<3>, residual: Residual, positions: &Positions, memory: &mut Memory) -> Tensor<3> {
        let (normed, qkv) = self.projected(x.clone(), positions, memory.len() + x.dims()[1]);
        let a = memory.attend(qkv, self.heads, &self.scoring(), &gates::of_rows(positions, &normed));
        self.joined(a, [x, normed], residual)
    }

    /// The same of `B` sequences at places of their own, `[B, L, M]`, each with its memory.
    ///
    /// # Panics
    /// When the number of KV caches differs, or one has more than one sequence.
    pub fn extend_each(&self, x: Tensor<3>, residual: Residual, mut places: Vec<Place>) -> Tensor<3> {
        let [batch, len, _] = x.dims();
        assert_eq!(batch, places.len(), "one KV cache per sequence");
        let (normed, qkv) = self.packed(x.clone());
        let (prepare, scoring) = (self.prepare(), self.scoring());
        let attend = |(row, (positions, memory)): (usize, &mut Place)| {
            let qkv = qkv.clone().narrow(0, row, 1);
            let qkv = prepare::composed(qkv, &prepare, self.heads, positions, memory.len() + len);
            let positions = gates::of_rows(positions, &normed.clone().narrow(0, row, 1));
            memory.attend(qkv, self.heads, &scoring, &positions)
        };
        let a = Tensor::cat(places.iter_mut().enumerate().map(attend).collect(), 0);
        self.joined(a, [x, normed], residual)
    }

    /// What attention gave, projected and added to its residual.
    fn joined(&self, a: Tensor<3>, [x, normed]: [Tensor<3>; 2], residual: Residual) -> Tensor<3> {
        residual.of(x, |_| normed) + linear::composed(a, self.out.tensors())
    }

    /// An empty memory for `batch` sequences.
    pub fn memory(&self, batch: usize, engine: Engine) -> Memory {
        Memory::new(batch, self.heads, self.linear.as_ref(), &self.qkv.weight.val(), engine)
    }
}
