//! Self-attention with its parameters.

use super::{Init, Linear, Norm};
use crate::forms::Positions;
use crate::fused::Engine;
use crate::memory::Memory;
use crate::ops::attention::{self, Seen, default_scale};
use crate::ops::attention_layer::{self, AttentionLayer, Heads};
use crate::ops::{Residual, linear, linear_attention, norm};
use crate::plan::{BlockPlan, ResidualKind, Sizes};
use burn::module::Module;
use burn::tensor::Tensor;
use rand::Rng;

/// A self-attention branch: norm, packed projection, attention, output projection.
#[derive(Module, Debug)]
pub struct Attention {
    /// Applied to the input; absent in the first layer of a model with [`ResidualKind::Post`].
    pub norm: Option<Norm>,
    /// Packed projection, `[M, (H + 2 G) D]`, see [`Heads`].
    pub qkv: Linear,
    /// Output projection, `[H D, M]`.
    pub out: Linear,
    #[module(skip)]
    heads: Heads,
    scale: f64,
    #[module(skip)]
    clamp: Option<f64>,
    #[module(skip)]
    linear: Option<linear_attention::Linear>,
}

impl Attention {
    /// A fresh branch of layer `layer`, counted from 0.
    pub fn new(plan: &BlockPlan, sizes: &Sizes, layer: usize, init: &mut Init<impl Rng>) -> Attention {
        let heads = sizes.heads(plan);
        let scale = plan.score_scale.unwrap_or(default_scale(heads.head_dim));
        let divisor = if plan.scale_by_layer { (layer + 1) as f64 } else { 1.0 };
        Attention {
            norm: (layer > 0 || plan.residual != ResidualKind::Post).then(|| Norm::new(plan, sizes.d_model, init)),
            qkv: Linear::packed([sizes.d_model, heads.packed()], heads.inner(), plan.qkv_bias, init.std, init),
            out: Linear::new([heads.inner(), sizes.d_model], plan.out_bias, init.std_out, init),
            heads,
            scale: scale / divisor,
            clamp: plan.clamp_qkv,
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
            scale: self.scale,
            clamp: self.clamp,
            linear: self.linear.clone(),
            residual,
        }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>, residual: Residual, positions: &Positions, engine: Engine) -> Tensor<3> {
        attention_layer::attention_layer(x, self.tensors(residual), positions, engine)
    }

    /// The input `[B, L, M]` after the norm, and its packed projection; composed.
    fn projected(&self, x: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let normed = match &self.norm {
            Some(norm) => norm::composed(x, norm.tensors()),
            None => x,
        };
        let qkv = attention_layer::clamped(linear::composed(normed.clone(), self.qkv.tensors()), self.clamp);
        (normed, qkv)
    }

    /// The weight of every key for every query, `[B, H, L, L]`, by the definition: for pictures and measures of short sequences.
    ///
    /// # Panics
    /// When there are fewer key heads than query heads and attention is linear: plans of such models are refused.
    pub fn weights(&self, x: Tensor<3>, positions: &Positions) -> Tensor<4> {
        let [batch, len, _] = x.dims();
        let [q, k, v] = self.heads.unpack(self.projected(x).1);
        let (q, k) = (attention::rotate(q, positions), attention::rotate(k, positions));
        let Some(linear) = &self.linear else { return attention::weights(q, k, self.scale, positions) };
        // of values that each stand for a key, attention makes its weights
        let each = Tensor::<2>::eye(len, &v.device()).cast(v.dtype());
        let each = each.unsqueeze::<4>().expand([batch, self.heads.kv_heads, len, len]);
        linear_attention::composed([q, k, each], linear, positions)
    }

    /// Scores of the last of `[B, L, M]` positions, `[B, H, 1, L]`; of softmax attention.
    pub fn last_scores(&self, x: Tensor<3>, positions: &Positions) -> Seen {
        let last = x.dims()[1] - 1;
        let [q, k, _] = self.heads.unpack(self.projected(x).1);
        let (q, k) = (attention::rotate(q, positions), attention::rotate(k, positions));
        attention::seen(q.narrow(2, last, 1), k, self.scale, positions)
    }

    /// New positions `[B, L, M]` behind those that `memory` holds; it then holds them too. For inference.
    pub fn extend(&self, x: Tensor<3>, residual: Residual, positions: &Positions, memory: &mut Memory) -> Tensor<3> {
        let (normed, qkv) = self.projected(x.clone());
        let a = memory.attend(qkv, self.heads, self.scale, positions);
        let base = match residual {
            Residual::Input => x,
            Residual::Normed => normed,
            Residual::Beside(base) => base,
        };
        base + linear::composed(a, self.out.tensors())
    }

    /// An empty memory for `batch` sequences.
    pub fn memory(&self, batch: usize, engine: Engine) -> Memory {
        Memory::new(batch, self.heads, self.linear.as_ref(), &self.qkv.weight.val(), engine)
    }
}
