//! A model from sequences to sequences of answers: an encoder reads the input followed by empty
//! places, and answers at these places. Ruoss et al. 2023, arXiv:2305.16843.

use super::{Encoder, TokenBatch, trunk};
use crate::plan::Plan;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kerple_burn::forward_context::ForwardContext;
use kerple_burn::implementation::Impl;
use kerple_burn::layers::Linear;
use kerple_burn::parameters::{ParamGroupOverrides, ParamGroups};
use kerple_core::seed::{Purpose, stream};

/// An encoder and a linear layer over answers at its last places.
#[derive(Module, Debug)]
pub struct Transducer {
    /// Makes the rows.
    pub encoder: Encoder,
    /// `[M, C]`
    pub head: Linear,
}

impl ParamGroupOverrides for Transducer {
    fn override_param_groups(&self, groups: &mut ParamGroups) {
        self.encoder.override_param_groups(groups);
    }
}

impl Transducer {
    /// A fresh model of this many answers.
    pub fn new(plan: &Plan, classes: usize, device: &Device) -> Transducer {
        let mut rng = stream(plan.seed, Purpose::Weights);
        let mut init = trunk::init(plan, Some(&mut rng), device);
        let encoder = Encoder::draw(plan, &mut init);
        Transducer { encoder, head: Linear::new([plan.model.d_model, classes], true, init.std, &mut init) }
    }

    /// The same model, computing with this implementation.
    pub fn with_implementation(self, implementation: Impl) -> Transducer {
        Transducer { encoder: self.encoder.with_implementation(implementation), ..self }
    }

    /// Logits at the last `places` tokens, `[B, places, C]`.
    ///
    /// # Panics
    /// When there are not as many tokens.
    pub fn logits(&self, tokens: TokenBatch, places: usize, pass: &ForwardContext) -> Tensor<3> {
        assert!(places <= tokens.len, "{places} answers at {} tokens", tokens.len);
        let rows = self.encoder.forward(tokens, None, pass);
        self.head.forward(rows.narrow(1, tokens.len - places, places))
    }
}
