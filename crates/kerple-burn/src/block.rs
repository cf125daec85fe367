//! A transformer block: attention and feed-forward, connected as its plan describes.

use crate::attention_context::AttentionContext;
use crate::forward_context::{BRANCHES, ForwardContext, HIDDEN};
use crate::implementation::Impl;
use crate::kv_cache::KvCache;
use crate::layers::{CachedSequence, LayerInit, Mlp, Norm, SelfAttention};
use crate::ops::ResidualBase;
use crate::ops::dropout::{Dropout, dropout};
use crate::plan::{BlockConfig, BlockSizes, ResidualKind};
use burn::module::Module;
use burn::tensor::Tensor;
use rand::Rng;

/// One block of a decoder or an encoder.
#[derive(Module, Debug)]
pub struct TransformerBlock {
    /// Attention.
    pub attention: SelfAttention,
    /// Feed-forward.
    pub mlp: Mlp,
    #[module(skip)]
    residual: ResidualKind,
    dropout: f64,
    hidden_dropout: bool,
    layer: usize,
}

impl TransformerBlock {
    /// A fresh block, layer `layer` from 0.
    pub fn new(
        plan: &BlockConfig,
        sizes: &BlockSizes,
        layer: usize,
        init: &mut LayerInit<impl Rng>,
    ) -> TransformerBlock {
        let attention = SelfAttention::new(plan, sizes, layer, init);
        let BlockConfig { residual, dropout, hidden_dropout, .. } = *plan;
        TransformerBlock { attention, mlp: Mlp::new(plan, sizes, init), residual, dropout, hidden_dropout, layer }
    }

    /// `[B, L, M]` to `[B, L, M]`; values of both branches are dropped when `pass` trains.
    pub fn forward(
        &self,
        x: Tensor<3>,
        context: &AttentionContext,
        pass: &ForwardContext,
        implementation: Impl,
    ) -> Tensor<3> {
        let attention = |x, residual| self.attention.forward(x, residual, context, implementation);
        if !pass.train || self.dropout == 0.0 {
            return self.join(x, attention, |x, residual| self.mlp.forward(x, residual, implementation));
        }
        let (share, layer) = (self.dropout, self.layer as u64);
        let drop =
            |branch, x| dropout(x, Dropout { share, pass, place: BRANCHES + 2 * layer + branch }, implementation);
        let mlp = |x, residual| {
            if self.hidden_dropout {
                self.mlp.forward_dropping(x, Dropout { share, pass, place: HIDDEN + layer }, residual, implementation)
            } else {
                self.mlp.forward(x, residual, implementation)
            }
        };
        let normed = |norm: Option<&Norm>, x: Tensor<3>| norm.map_or(x.clone(), |norm| norm.forward(x, implementation));
        self.join(
            x,
            |x, residual| {
                let base = residual.of(x.clone(), |x| normed(self.attention.norm.as_ref(), x));
                let nothing = ResidualBase::Beside(x.zeros_like());
                base + drop(0, attention(x, nothing))
            },
            |x, residual| {
                let base = residual.of(x.clone(), |x| normed(Some(&self.mlp.norm), x));
                let nothing = ResidualBase::Beside(x.zeros_like());
                base + drop(1, mlp(x, nothing))
            },
        )
    }

    /// New positions `[B, L, M]` after those of the KV cache, to which they are added. For inference.
    pub fn extend(
        &self,
        x: Tensor<3>,
        context: &AttentionContext,
        cache: &mut KvCache,
        implementation: Impl,
    ) -> Tensor<3> {
        let attention = |x, residual| self.attention.extend(x, residual, context, cache);
        self.join(x, attention, |x, residual| self.mlp.forward(x, residual, implementation))
    }

    /// The same of `B` sequences at positions of their own, `[B, L, M]`.
    ///
    /// # Panics
    /// As [`SelfAttention::extend_each`].
    pub fn extend_each(&self, x: Tensor<3>, sequences: Vec<CachedSequence>, implementation: Impl) -> Tensor<3> {
        let attention = |x, residual| self.attention.extend_each(x, residual, sequences);
        self.join(x, attention, |x, residual| self.mlp.forward(x, residual, implementation))
    }

    fn join(
        &self,
        x: Tensor<3>,
        attention: impl FnOnce(Tensor<3>, ResidualBase) -> Tensor<3>,
        mlp: impl FnOnce(Tensor<3>, ResidualBase) -> Tensor<3>,
    ) -> Tensor<3> {
        match self.residual {
            ResidualKind::Sequential => mlp(attention(x, ResidualBase::Input), ResidualBase::Input),
            ResidualKind::Parallel => {
                let attended = attention(x.clone(), ResidualBase::Input);
                mlp(x, ResidualBase::Beside(attended))
            }
            ResidualKind::NormResidual | ResidualKind::PostLn => {
                mlp(attention(x, ResidualBase::Normed), ResidualBase::Normed)
            }
        }
    }
}
