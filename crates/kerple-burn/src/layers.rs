//! The layers of a GPT-NeoX decoder as Burn modules: `x += Attn(LN(x)); x += MLP(LN(x))`.

use crate::cache::Cache;
use crate::composed;
use crate::fused::runs_fused;
use crate::head;
use crate::positions::Positions;
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kerple::encoding::standard_normal;
use rand::Rng;

/// Added to the variance in every layer norm.
pub const EPS: f64 = 1e-5;

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), (device, DType::F32)))
}

/// A matrix of independent draws from N(0, std^2).
pub fn normal_matrix(shape: [usize; 2], std: f64, rng: &mut impl Rng, device: &Device) -> Param<Tensor<2>> {
    tensor((0..shape[0] * shape[1]).map(|_| (std * standard_normal(rng)) as f32).collect(), shape, device)
}

/// Layer normalisation over the model width.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scale, `[M]`, starts at 1.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[M]`, starts at 0.
    pub beta: Param<Tensor<1>>,
}

impl LayerNorm {
    /// A fresh norm of this width.
    pub fn new(width: usize, device: &Device) -> LayerNorm {
        LayerNorm { gamma: tensor(vec![1.0; width], [width], device), beta: tensor(vec![0.0; width], [width], device) }
    }

    /// The definition: normalises `[B, L, M]` over the last axis.
    pub fn composed(&self, x: Tensor<3>) -> Tensor<3> {
        composed::layer_norm(x, self.gamma.val(), self.beta.val(), EPS)
    }
}

/// `x W + b`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[in, out]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`, starts at 0.
    pub bias: Param<Tensor<1>>,
}

impl Linear {
    /// A fresh layer with weights from N(0, std^2).
    pub fn new([input, output]: [usize; 2], std: f64, rng: &mut impl Rng, device: &Device) -> Linear {
        Linear {
            weight: normal_matrix([input, output], std, rng, device),
            bias: tensor(vec![0.0; output], [output], device),
        }
    }

    /// The definition, over the last axis of `[B, L, in]`.
    pub fn composed(&self, x: Tensor<3>) -> Tensor<3> {
        composed::linear(x, self.weight.val(), self.bias.val())
    }
}

/// Pre-norm causal self-attention with its residual connection.
#[derive(Module, Debug)]
pub struct Attention {
    /// Applied to the input.
    pub norm: LayerNorm,
    /// Packed projection, `[M, 3M]`, grouped `[head][q|k|v][D]`.
    pub qkv: Linear,
    /// Output projection, `[M, M]`.
    pub out: Linear,
    heads: usize,
}

impl Attention {
    /// A fresh layer; the output projection starts smaller, with `std_out`.
    pub fn new(width: usize, heads: usize, [std, std_out]: [f64; 2], rng: &mut impl Rng, device: &Device) -> Attention {
        Attention {
            norm: LayerNorm::new(width, device),
            qkv: Linear::new([width, 3 * width], std, rng, device),
            out: Linear::new([width, width], std_out, rng, device),
            heads,
        }
    }

    /// Number of heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>, positions: &Positions) -> Tensor<3> {
        if runs_fused(&x) { self.fused(x, positions) } else { self.composed(x, positions) }
    }

    /// New positions `[B, L, M]` behind those that `cache` holds; the cache then holds them too. For inference on the CPU.
    pub fn extend(&self, x: Tensor<3>, positions: &Positions, cache: &mut Cache) -> Tensor<3> {
        let qkv = self.qkv.composed(self.norm.composed(x.clone()));
        x + self.out.composed(crate::attention::extend(qkv, self.heads, positions, cache))
    }

    /// The definition: `x + out(attention(qkv(norm(x))))` on `[B, L, M]`.
    pub fn composed(&self, x: Tensor<3>, positions: &Positions) -> Tensor<3> {
        let qkv = self.qkv.composed(self.norm.composed(x.clone()));
        x + self.out.composed(composed::self_attention(qkv, self.heads, positions))
    }
}

/// Pre-norm feed-forward layer with exact GELU and its residual connection.
#[derive(Module, Debug)]
pub struct Mlp {
    /// Applied to the input.
    pub norm: LayerNorm,
    /// `[M, 4M]`.
    pub up: Linear,
    /// `[4M, M]`.
    pub down: Linear,
}

impl Mlp {
    /// A fresh layer of inner width `hidden`; the down projection starts smaller, with `std_out`.
    pub fn new(width: usize, hidden: usize, [std, std_out]: [f64; 2], rng: &mut impl Rng, device: &Device) -> Mlp {
        Mlp {
            norm: LayerNorm::new(width, device),
            up: Linear::new([width, hidden], std, rng, device),
            down: Linear::new([hidden, width], std_out, rng, device),
        }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        if runs_fused(&x) { self.fused(x) } else { self.composed(x) }
    }

    /// The definition: `x + down(gelu(up(norm(x))))` on `[B, L, M]`.
    pub fn composed(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = burn::tensor::activation::gelu(self.up.composed(self.norm.composed(x.clone())));
        x + self.down.composed(hidden)
    }
}

/// Rows of `table` `[V, M]` for `[B, L]` token ids.
pub fn embed(table: Tensor<2>, tokens: &[u32], shape: [usize; 2]) -> Tensor<3> {
    if runs_fused(&table) { head::embed(table, tokens, shape) } else { composed::embed(table, tokens, shape) }
}

/// Negative log-likelihood in nats of each target under `softmax(norm(x) W)`, `[B, L]`; `weight` is `[M, V]`.
pub fn cross_entropy(x: Tensor<3>, norm: &LayerNorm, weight: Tensor<2>, targets: &[u32]) -> Tensor<2> {
    if runs_fused(&x) {
        return head::loss(x, norm, weight, targets, false);
    }
    composed::cross_entropy(norm.composed(x), weight, targets)
}

/// The mean of [`cross_entropy`], `[1]`. Its fused gradients are made with the loss, from one computation of the logits.
pub fn mean_cross_entropy(x: Tensor<3>, norm: &LayerNorm, weight: Tensor<2>, targets: &[u32]) -> Tensor<1> {
    if runs_fused(&x) {
        return head::loss(x, norm, weight, targets, true);
    }
    composed::cross_entropy(norm.composed(x), weight, targets).mean()
}

/// Causal self-attention on `[B, H, L, D]` after the rotation of queries and keys.
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, positions: &Positions) -> Tensor<4> {
    crate::attention::attention(composed::rotate(q, positions), composed::rotate(k, positions), v, positions)
}
