//! A transformer block: attention and feed-forward, joined as its plan says.

use crate::forms::Positions;
use crate::fused::Engine;
use crate::layers::{Attention, Init, Mlp};
use crate::memory::Memory;
use crate::ops::Residual;
use crate::plan::{BlockPlan, ResidualKind, Sizes};
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
}

impl Block {
    /// A fresh block, layer `layer` from 0.
    pub fn new(plan: &BlockPlan, sizes: &Sizes, layer: usize, init: &mut Init<impl Rng>) -> Block {
        let attention = Attention::new(plan, sizes, layer, init);
        Block { attention, mlp: Mlp::new(plan, sizes, init), residual: plan.residual }
    }

    /// `[B, L, M]` to `[B, L, M]`.
    pub fn forward(&self, x: Tensor<3>, positions: &Positions, engine: Engine) -> Tensor<3> {
        self.join(x, engine, |x, residual| self.attention.forward(x, residual, positions, engine))
    }

    /// New positions `[B, L, M]` behind those that `memory` holds; it then holds them too. For inference.
    pub fn extend(&self, x: Tensor<3>, positions: &Positions, memory: &mut Memory, engine: Engine) -> Tensor<3> {
        self.join(x, engine, |x, residual| self.attention.extend(x, residual, positions, memory))
    }

    fn join(
        &self,
        x: Tensor<3>,
        engine: Engine,
        attention: impl FnOnce(Tensor<3>, Residual) -> Tensor<3>,
    ) -> Tensor<3> {
        match self.residual {
            ResidualKind::Sequential => self.mlp.forward(attention(x, Residual::Input), Residual::Input, engine),
            ResidualKind::Parallel => {
                let attended = attention(x.clone(), Residual::Input);
                self.mlp.forward(x, Residual::Beside(attended), engine)
            }
            ResidualKind::Normed => self.mlp.forward(attention(x, Residual::Normed), Residual::Normed, engine),
        }
    }
}
