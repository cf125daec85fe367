//! A transformer block: attention and feed-forward, connected as its plan describes.

use crate::attention_context::{AttentionContext, AttentionMask};
use crate::forward_context::{BRANCHES, ForwardContext, HIDDEN};
use crate::implementation::Impl;
use crate::kv_cache::KvCache;
use crate::layers::{CachedSequence, LayerInit, Mlp, Norm, SelfAttention};
use crate::ops::ResidualBase;
use crate::ops::dropout::{Dropout, dropout};
use crate::ops::short_conv::{self, short_conv};
use crate::plan::{BlockConfig, BlockSizes, ResidualKind};
use burn::module::{Module, Param};
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
        let drops = pass.train && self.dropout > 0.0;
        if !drops && self.attention.out_conv.is_none() {
            let mlp = |x, residual, (): &mut ()| self.mlp.forward(x, residual, implementation);
            return self.join(x, &mut (), |x, residual, (): &mut ()| attention(x, residual), mlp);
        }
        let (share, layer) = (self.dropout, self.layer as u64);
        let drop = |branch, x| match drops {
            true => dropout(x, Dropout { share, pass, place: BRANCHES + 2 * layer + branch }, implementation),
            false => x,
        };
        let convolved = |x, filters: &Option<Param<Tensor<2>>>| match filters {
            Some(filters) => short_conv(x, filters.val(), &context.mask, implementation),
            None => x,
        };
        let mlp = |x, residual| {
            if drops && self.hidden_dropout {
                self.mlp.forward_dropping(x, Dropout { share, pass, place: HIDDEN + layer }, residual, implementation)
            } else {
                self.mlp.forward(x, residual, implementation)
            }
        };
        self.join(
            x,
            &mut (),
            |x, residual, ()| {
                let (base, nothing) = self.bases(x.clone(), residual, self.attention.norm.as_ref(), implementation);
                base + drop(0, convolved(attention(x, nothing), &self.attention.out_conv))
            },
            |x, residual, ()| {
                let (base, nothing) = self.bases(x.clone(), residual, Some(&self.mlp.norm), implementation);
                base + drop(1, convolved(mlp(x, nothing), &self.mlp.out_conv))
            },
        )
    }

    /// What a branch with this norm is added to, and 0, for the branch by itself.
    fn bases(
        &self,
        x: Tensor<3>,
        residual: ResidualBase,
        norm: Option<&Norm>,
        implementation: Impl,
    ) -> (Tensor<3>, ResidualBase) {
        let nothing = ResidualBase::Beside(x.zeros_like());
        let normed = |x: Tensor<3>| norm.map_or(x.clone(), |norm| norm.forward(x, implementation));
        (residual.of(x, normed), nothing)
    }

    /// New positions `[B, L, M]` after those of the KV cache, to which they are added. For inference.
    pub fn extend(
        &self,
        x: Tensor<3>,
        context: &AttentionContext,
        cache: &mut KvCache,
        implementation: Impl,
    ) -> Tensor<3> {
        let attention =
            |x, residual, cache: &mut KvCache| self.attention.extend(x, residual, context, cache, implementation);
        let convolve = |x: Tensor<3>, filters: &Tensor<2>, branch: usize, cache: &mut KvCache| {
            convolve_after(x, filters, branch, &context.mask, cache)
        };
        self.extend_with(x, cache, attention, convolve, implementation)
    }

    /// The same of `B` sequences at positions of their own, `[B, L, M]`.
    ///
    /// # Panics
    /// As [`SelfAttention::extend_each`].
    pub fn extend_each(&self, x: Tensor<3>, mut sequences: Vec<CachedSequence>, implementation: Impl) -> Tensor<3> {
        let attention = |x, residual, sequences: &mut Vec<CachedSequence>| {
            self.attention.extend_each(x, residual, sequences, implementation)
        };
        let convolve = |x: Tensor<3>, filters: &Tensor<2>, branch: usize, sequences: &mut Vec<CachedSequence>| {
            let of_row = |(row, CachedSequence { context, cache }): (usize, &mut CachedSequence)| {
                convolve_after(x.clone().narrow(0, row, 1), filters, branch, &context.mask, cache)
            };
            Tensor::cat(sequences.iter_mut().enumerate().map(of_row).collect(), 0)
        };
        self.extend_with(x, &mut sequences, attention, convolve, implementation)
    }

    /// Both branches, where attention and short convolutions of a branch's output change what a cache holds.
    fn extend_with<C>(
        &self,
        x: Tensor<3>,
        cache: &mut C,
        attention: impl Fn(Tensor<3>, ResidualBase, &mut C) -> Tensor<3>,
        convolve: impl Fn(Tensor<3>, &Tensor<2>, usize, &mut C) -> Tensor<3>,
        implementation: Impl,
    ) -> Tensor<3> {
        let mlp = |x, residual| self.mlp.forward(x, residual, implementation);
        let [of_attention, of_mlp] =
            [&self.attention.out_conv, &self.mlp.out_conv].map(|own| own.as_ref().map(Param::val));
        let (Some(of_attention), Some(of_mlp)) = (of_attention, of_mlp) else {
            return self.join(x, cache, attention, |x, residual, _| mlp(x, residual));
        };
        self.join(
            x,
            cache,
            |x, residual, cache| {
                let (base, nothing) = self.bases(x.clone(), residual, self.attention.norm.as_ref(), implementation);
                let a = attention(x, nothing, cache);
                base + convolve(a, &of_attention, 0, cache)
            },
            |x, residual, cache| {
                let (base, nothing) = self.bases(x.clone(), residual, Some(&self.mlp.norm), implementation);
                base + convolve(mlp(x, nothing), &of_mlp, 1, cache)
            },
        )
    }

    /// Both branches with what they change.
    fn join<C>(
        &self,
        x: Tensor<3>,
        changed: &mut C,
        attention: impl FnOnce(Tensor<3>, ResidualBase, &mut C) -> Tensor<3>,
        mlp: impl FnOnce(Tensor<3>, ResidualBase, &mut C) -> Tensor<3>,
    ) -> Tensor<3> {
        let (read, base) = match self.residual {
            ResidualKind::Sequential => (None, ResidualBase::Input),
            ResidualKind::Parallel => (Some(x.clone()), ResidualBase::Input),
            ResidualKind::NormResidual | ResidualKind::PostLn => (None, ResidualBase::Normed),
        };
        let attended = attention(x, base.clone(), changed);
        match read {
            Some(x) => mlp(x, ResidualBase::Beside(attended), changed),
            None => mlp(attended, base, changed),
        }
    }
}

/// The short convolution of a branch's output, of positions after those of the KV cache.
fn convolve_after(
    x: Tensor<3>,
    filters: &Tensor<2>,
    branch: usize,
    mask: &AttentionMask,
    cache: &mut KvCache,
) -> Tensor<3> {
    let before = cache.rows_before().map(|before| &mut before.convolved[2 + branch]);
    short_conv::reference(x, filters, mask, before)
}
