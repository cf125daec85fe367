//! A transformer block: attention and feed-forward, connected as its plan describes.

use crate::forms::Positions;
use crate::fused::Engine;
use crate::layers::{Attention, Init, Mlp, Norm, Place};
use crate::memory::Memory;
use crate::ops::Residual;
use crate::ops::dropout::{Dropout, dropout};
use crate::pass::{BRANCHES, HIDDEN, Pass};
use crate::plan::{BlockConfig, BlockSizes, ResidualKind};
use burn::module::Module;
use burn::tensor::Tensor;
use rand::Rng;

/// One block of a decoder or an encoder.
#[derive(Module, Debug)]
pub struct Block {
    /// Attention.
    pub attention: Attention,
    /// Feed-forward.
    pub mlp: Mlp,
    #[module(skip)]
    residual: ResidualKind,
    dropout: f64,
    hidden_dropout: bool,
    layer: usize,
}

impl Block {
    /// A fresh block, layer `layer` from 0.
    pub fn new(plan: &BlockConfig, sizes: &BlockSizes, layer: usize, init: &mut Init<impl Rng>) -> Block {
        let attention = Attention::new(plan, sizes, layer, init);
        let BlockConfig { residual, dropout, hidden_dropout, .. } = *plan;
        Block { attention, mlp: Mlp::new(plan, sizes, init), residual, dropout, hidden_dropout, layer }
    }

    /// `[B, L, M]` to `[B, L, M]`; values of both branches are dropped when `pass` trains.
    pub fn forward(&self, x: Tensor<3>, positions: &Positions, pass: &Pass, engine: Engine) -> Tensor<3> {
        let attention = |x, residual| self.attention.forward(x, residual, positions, engine);
        if !pass.train || self.dropout == 0.0 {
            return self.join(x, attention, |x, residual| self.mlp.forward(x, residual, engine));
        }
        let (share, layer) = (self.dropout, self.layer as u64);
        let drop = |branch, x| dropout(x, Dropout { share, pass, place: BRANCHES + 2 * layer + branch }, engine);
        let mlp = |x, residual| match self.hidden_dropout {
            true => self.mlp.forward_dropping(x, Dropout { share, pass, place: HIDDEN + layer }, residual, engine),
            false => self.mlp.forward(x, residual, engine),
        };
        let normed = |norm: Option<&Norm>, x: Tensor<3>| norm.map_or(x.clone(), |norm| norm.forward(x, engine));
        self.join(
            x,
            |x, residual| {
                let base = residual.of(x.clone(), |x| normed(self.attention.norm.as_ref(), x));
                let nothing = Residual::Beside(x.zeros_like());
                base + drop(0, attention(x, nothing))
            },
            |x, residual| {
                let base = residual.of(x.clone(), |x| normed(Some(&self.mlp.norm), x));
                let nothing = Residual::Beside(x.zeros_like());
                base + drop(1, mlp(x, nothing))
            },
        )
    }

    /// New positions `[B, L, M]` after those of the KV cache `memory`, to which they are added. For
    /// inference.
    pub fn extend(&self, x: Tensor<3>, positions: &Positions, memory: &mut Memory, engine: Engine) -> Tensor<3> {
        let attention = |x, residual| self.attention.extend(x, residual, positions, memory);
        self.join(x, attention, |x, residual| self.mlp.forward(x, residual, engine))
    }

    /// The same of `B` sequences at places of their own, `[B, L, M]`.
    ///
    /// # Panics
    /// As [`Attention::extend_each`].
    pub fn extend_each(&self, x: Tensor<3>, places: Vec<Place>, engine: Engine) -> Tensor<3> {
        let attention = |x, residual| self.attention.extend_each(x, residual, places);
        self.join(x, attention, |x, residual| self.mlp.forward(x, residual, engine))
    }

    fn join(
        &self,
        x: Tensor<3>,
        attention: impl FnOnce(Tensor<3>, Residual) -> Tensor<3>,
        mlp: impl FnOnce(Tensor<3>, Residual) -> Tensor<3>,
    ) -> Tensor<3> {
        match self.residual {
            ResidualKind::Sequential => mlp(attention(x, Residual::Input), Residual::Input),
            ResidualKind::Parallel => {
                let attended = attention(x.clone(), Residual::Input);
                mlp(x, Residual::Beside(attended))
            }
            ResidualKind::NormResidual | ResidualKind::PostLn => mlp(attention(x, Residual::Normed), Residual::Normed),
        }
    }
}
